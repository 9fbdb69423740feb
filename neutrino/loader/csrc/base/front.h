/*
 * What the auditing module (audit.c), the hook and the late hook agree on, so that the hook gets in front of the driver, and
 * no process has two. neutrino/loader/install.py knows it, too.
 */
#ifndef NEUTRINO_FRONT_H
#define NEUTRINO_FRONT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Placeholders for the paths of the hook and of the driver, which install.py replaces in the built files, so that one
 * build serves every machine. build.py defines them. What is initialized with one is volatile: otherwise the compiler
 * could compute with the placeholder's own bytes.
 */
#if !defined(NT_FRONT_HOOK) || !defined(NT_FRONT_DRIVER)
#error "build.py defines the placeholders"
#endif

/*
 * The start of a path that the module leaves alone. The hook names the driver by its absolute path with "/." before it.
 * The dynamic loader compares paths as text, so a program's own request for the driver's path is another one.
 */
#define NT_FRONT_BYPASS "/./"

/*
 * The module removes this from the start of a name. A library that looks itself up under its own path, with this before
 * it, finds itself only if the module is in the process and has a hook to give.
 */
#define NT_FRONT_QUESTION "neutrino-front:"

/*
 * The hook looks for a library of this name when it has been loaded: from then on the module tells it of calls of NVRTC and
 * nvJitLink, by what the hook exports as NT_FRONT_PASSING_SYMBOL, a struct neutrino_passing.
 */
#define NT_FRONT_PASSING "neutrino-passing"
#define NT_FRONT_PASSING_SYMBOL "neutrino_passing"
#define NEUTRINO_PASSING_MAGIC UINT64_C(0x326773617074746e)

/* Functions of the library of NVRTC that was called: nvrtcGetCUBINSize, nvrtcGetPTXSize, nvrtcGetPTX. 0: success. */
struct neutrino_nvrtc {
	int (*get_cubin_size)(void *program, size_t *ret);
	int (*get_ptx_size)(void *program, size_t *ret);
	int (*get_ptx)(void *program, char *ret);
};

/* Functions of the library of nvJitLink that was called, by their names there. 0: success. All but the first may be NULL. */
struct neutrino_nvjitlink {
	int (*get_cubin_size)(void *handle, size_t *ret);
	int (*create)(void **handle, uint32_t count, const char **options);
	int (*add_data)(void *handle, int type, const void *data, size_t size, const char *name);
	int (*complete)(void *handle);
	int (*get_ptx_size)(void *handle, size_t *ret);
	int (*get_ptx)(void *handle, char *ret);
	int (*destroy)(void **handle);
};

struct neutrino_passing {
	uint64_t magic;
	/* After nvrtcGetCUBIN has succeeded. caller: address in the code that has called it. */
	void (*compiled)(void *program, const char *cubin, const struct neutrino_nvrtc *nvrtc, const void *caller);
	/* After nvJitLinkCreate has succeeded; before nvJitLinkAddData and nvJitLinkAddFile, whose data is NULL. */
	void (*link_begins)(void *handle, uint32_t count, const char *const *options);
	void (*link_gets)(void *handle, int type, const void *data, size_t size);
	/* After nvJitLinkGetLinkedCubin has succeeded; before nvJitLinkDestroy. */
	void (*linked)(void *handle, const void *cubin, const struct neutrino_nvjitlink *library, const void *caller);
	void (*link_ends)(void *handle);
};

#endif
