/*
 * The stub, which patched libraries name in DT_AUXILIARY: it loads the late hook beside it if NEUTRINO_TRACEDIR is set.
 *
 * If the stub needed a library or a symbol version that is missing, for example in a container with an older libc, the
 * dynamic loader could not load the patched library either. So the stub is linked with nothing, and the few functions that
 * it calls are weak. If the late hook cannot be loaded, nothing is recorded.
 *
 * glibc before 2.32 runs the initializers of such an object without having relocated it, if the library that names it was
 * loaded by dlopen (glibc bug 16272). So the only initializer is DT_INIT, which first checks that it was relocated.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#define HOOK "libneutrino_late.so"

#pragma weak dladdr
#pragma weak dladdr1
#pragma weak dlerror
#pragma weak dlopen
#pragma weak secure_getenv

/* Equal to its own address once this library has been relocated. */
static void *const volatile relocated = (void *)&relocated;

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/*
 * Put this library back into the dynamic loader's list of loaded objects. glibc moves it to the place before the library
 * that names it, but does not make it the list's first if that one was, as when dlmopen loads it. Then it is counted but
 * not in the list, and the next dlclose, or the end of the process, is an assertion that fails.
 *
 * In DT_INIT the dynamic loader's lock is held. A thread that walks the list meanwhile sees it with or without this library.
 */
static void join_list(void)
{
	struct link_map *map = NULL;
	Dl_info info;

	/* This library cannot be found by its address, but libc can: it is in the same list, further on. */
	if (!dladdr1((void *)secure_getenv, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return;
	while (map->l_prev)
		map = map->l_prev;
	struct link_map *first = map->l_next;
	if (map->l_ld != _DYNAMIC || !first)
		return;
	map->l_next = first->l_next;
	map->l_prev = first;
	if (first->l_next)
		first->l_next->l_prev = map;
	first->l_prev = NULL;
	__atomic_store_n(&first->l_next, map, __ATOMIC_RELEASE);
}

__attribute__((visibility("hidden"))) void nt_stub_init(void);

/*
 * The initializer (DT_INIT) of the stub, a small library that patched libraries name, so that the dynamic loader calls
 * this when one is loaded: loads the late hook (Neutrino's library for processes that run already), which records its
 * kernels, if NEUTRINO_TRACEDIR is set.
 */
void nt_stub_init(void)
{
	char path[4096];
	size_t folder_end = 0, length = 0;
	Dl_info info;

	if (relocated != (const void *)&relocated || !dladdr || !dladdr1 || !dlerror || !dlopen || !secure_getenv)
		return;
	if (!dladdr(nt_stub_init, &info))
		join_list();
	/* secure_getenv: a set-user-ID program must not write where its caller says. */
	const char *folder = secure_getenv("NEUTRINO_TRACEDIR");
	if (!folder || !*folder)
		return;
	if (!dladdr(nt_stub_init, &info) || !info.dli_fname)
		return;
	/* Not $ORIGIN, which would be the folder of a library that wraps dlopen. */
	for (; info.dli_fname[length]; length++) {
		if (length >= sizeof(path) - sizeof(HOOK))
			return;
		path[length] = info.dli_fname[length];
		if (path[length] == '/')
			folder_end = length + 1;
	}
	for (size_t i = 0; i < sizeof(HOOK); i++)
		path[folder_end + i] = HOOK[i];
	dlopen(path, RTLD_NOW | RTLD_LOCAL);
	/* The program's own dlopen succeeds: no error of this one may be left. */
	dlerror();
}
