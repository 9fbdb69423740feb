#include "front/audit_passing.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/front.h"
#include "front/audit_object.h"

/* How the files of both libraries are called, followed by a version or a hash. */
#define NVRTC "libnvrtc"
#define NVJITLINK "libnvJitLink"

/* The functions that are wrapped. Those of nvJitLink have a name for each release, too: __nvJitLinkCreate_13_0. */
enum wrapped { COMPILED, LINK_BEGINS, LINK_GETS_DATA, LINK_GETS_FILE, LINKED, LINK_ENDS, WRAPPED, NOT_WRAPPED = WRAPPED };

/*
 * Each wrapper has so many copies, since a process may have several versions of a library, and several names of a function.
 * What is beyond them is left alone.
 */
#define COPIES 12

/* What a copy wraps: written when it is given out, by each thread that gets it, with the same values. */
struct copy {
	uintptr_t real; /* 0: the copy is free */
	struct neutrino_nvrtc nvrtc;	     /* of COMPILED */
	struct neutrino_nvjitlink nvjitlink; /* of LINKED */
};

static struct copy copies[WRAPPED][COPIES];
static const struct neutrino_passing *passing; /* NULL: the hook is not there */
/* Somebody got a function of nvJitLink itself: it is not known any more which inputs a link has. */
static bool is_link_unseen;

/* What the hook wants to be told; NULL if it is not there. */
static const struct neutrino_passing *listening(void)
{
	return __atomic_load_n(&passing, __ATOMIC_ACQUIRE);
}

/* Wraps nvrtcGetCUBIN: the program has got what NVRTC has compiled. caller: in the code of the program. */
static int wrap_compiled(const struct copy *copy, void *program, char *cubin, const void *caller)
{
	int result = ((int (*)(void *, char *))copy->real)(program, cubin);
	const struct neutrino_passing *hook = listening();

	if (!result && hook)
		hook->compiled(program, cubin, &copy->nvrtc, caller);
	return result;
}

/* Wraps nvJitLinkCreate: a link begins. */
static int wrap_link_begins(const struct copy *copy, void **handle, uint32_t count, const char **options)
{
	int result = ((int (*)(void **, uint32_t, const char **))copy->real)(handle, count, options);
	const struct neutrino_passing *hook = listening();

	if (!result && hook)
		hook->link_begins(*handle, count, options);
	return result;
}

/* Wraps nvJitLinkGetLinkedCubin: the program has got what was linked. caller: in the code of the program. */
static int wrap_linked(const struct copy *copy, void *handle, void *cubin, const void *caller)
{
	int result = ((int (*)(void *, void *))copy->real)(handle, cubin);
	const struct neutrino_passing *hook = listening();

	if (!result && hook && !__atomic_load_n(&is_link_unseen, __ATOMIC_ACQUIRE))
		hook->linked(handle, cubin, &copy->nvjitlink, caller);
	return result;
}

/*
 * The copies of the wrappers. The last three tell the hook first, and then jump to the real function: it may be a point
 * where the thread is cancelled, which unwinds the stack, and this module is not known to who does that.
 */
#define NUMBERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define WRAPPERS(number)                                                                                               \
	static int compiled_##number(void *program, char *cubin)                                                       \
	{                                                                                                              \
		return wrap_compiled(&copies[COMPILED][number], program, cubin, __builtin_return_address(0));          \
	}                                                                                                              \
	static int link_begins_##number(void **handle, uint32_t count, const char **options)                           \
	{                                                                                                              \
		return wrap_link_begins(&copies[LINK_BEGINS][number], handle, count, options);                         \
	}                                                                                                              \
	static int link_gets_data_##number(void *handle, int type, const void *data, size_t size, const char *name)    \
	{                                                                                                              \
		if (listening())                                                                                       \
			listening()->link_gets(handle, type, data, size);                                              \
		return ((int (*)(void *, int, const void *, size_t, const char *))copies[LINK_GETS_DATA][number].real)(\
			handle, type, data, size, name);                                                               \
	}                                                                                                              \
	static int link_gets_file_##number(void *handle, int type, const char *path)                                   \
	{                                                                                                              \
		if (listening())                                                                                       \
			listening()->link_gets(handle, type, NULL, 0);                                                 \
		return ((int (*)(void *, int, const char *))copies[LINK_GETS_FILE][number].real)(handle, type, path);  \
	}                                                                                                              \
	static int linked_##number(void *handle, void *cubin)                                                          \
	{                                                                                                              \
		return wrap_linked(&copies[LINKED][number], handle, cubin, __builtin_return_address(0));               \
	}                                                                                                              \
	static int link_ends_##number(void **handle)                                                                   \
	{                                                                                                              \
		if (handle && listening())                                                                             \
			listening()->link_ends(*handle);                                                               \
		return ((int (*)(void **))copies[LINK_ENDS][number].real)(handle);                                     \
	}
NUMBERS(WRAPPERS)

/* The address of a copy of a wrapper. By code: a table of addresses would have to be relocated. */
static uintptr_t wrapper_of(enum wrapped wrapped, unsigned number)
{
#define CASE(name, number)                                                                                             \
	case number:                                                                                                   \
		return (uintptr_t)name##_##number;
#define CASES(NAME, name)                                                                                              \
	case NAME:                                                                                                     \
		switch (number) {                                                                                      \
			CASE(name, 0) CASE(name, 1) CASE(name, 2) CASE(name, 3) CASE(name, 4) CASE(name, 5)            \
			CASE(name, 6) CASE(name, 7) CASE(name, 8) CASE(name, 9) CASE(name, 10) CASE(name, 11)          \
		}                                                                                                      \
		break;

	switch (wrapped) {
		CASES(COMPILED, compiled)
		CASES(LINK_BEGINS, link_begins)
		CASES(LINK_GETS_DATA, link_gets_data)
		CASES(LINK_GETS_FILE, link_gets_file)
		CASES(LINKED, linked)
		CASES(LINK_ENDS, link_ends)
	default:
		break;
	}
	return 0;
}

/*
 * Which function of nvJitLink a name is, NOT_WRAPPED if it is none of these. *suffix: its end, as "_13_0" of a release's,
 * or "" of the plain one.
 */
static enum wrapped wrapped_of(const char *name, const char **suffix)
{
	enum wrapped ret = NOT_WRAPPED;
	bool is_of_release = nt_audit_object_begins(name, "__");

	name += is_of_release ? 2 : 0;
#define IS(ENUMERATOR, text)                                                                                           \
	if (nt_audit_object_begins(name, text) &&                                                                      \
	    (is_of_release ? name[sizeof(text) - 1] == '_' : !name[sizeof(text) - 1])) {                               \
		ret = ENUMERATOR;                                                                                      \
		*suffix = name + sizeof(text) - 1;                                                                     \
	}
	IS(LINK_BEGINS, "nvJitLinkCreate")
	IS(LINK_GETS_DATA, "nvJitLinkAddData")
	IS(LINK_GETS_FILE, "nvJitLinkAddFile")
	IS(LINKED, "nvJitLinkGetLinkedCubin")
	IS(LINK_ENDS, "nvJitLinkDestroy")
#undef IS
	return ret;
}

/* The copy of a wrapper that wraps the function at that address, or a free one, which is taken; NULL if there is none. */
static struct copy *copy_for(enum wrapped wrapped, uintptr_t address)
{
	for (unsigned i = 0; i < COPIES; i++) {
		struct copy *copy = &copies[wrapped][i];
		uintptr_t real = 0;
		if (__atomic_compare_exchange_n(&copy->real, &real, address, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
		    real == address)
			return copy;
	}
	return NULL;
}

/* Write the address of a function that an object defines, or NULL, to *to, a pointer to a function. Returns whether it does. */
static bool find(const struct link_map *object, const char *name, void *to)
{
	__atomic_store_n((const void **)to, nt_audit_object_symbol(object, name), __ATOMIC_RELEASE);
	return *(const void **)to;
}

/*
 * Write the address of one of nvJitLink's functions, or NULL, to *to, a pointer to a function. name: without nvJitLink
 * before it; suffix: of its release's names, as "_13_0", or "" of plain ones. Returns whether its library has it.
 */
static bool find_of_release(const struct link_map *object, const char *name, const char *suffix, void *to)
{
	static const char before[] = "__nvJitLink";
	const char *parts[] = {before, name, suffix};
	char whole[64];
	size_t size = 0;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		for (const volatile char *from = parts[i]; *from; from++) {
			if (size == sizeof(whole) - 1)
				return false;
			whole[size++] = *from;
		}
	whole[size] = 0;
	return find(object, *suffix ? whole : whole + 2, to);
}

/* Find what the wrapper of nvJitLinkGetLinkedCubin needs of its library. suffix: of that function's name. */
static bool find_nvjitlink(const struct link_map *object, const char *suffix, struct copy *copy)
{
	struct neutrino_nvjitlink *to = &copy->nvjitlink;

	/* Without one of these its LTO IR gives no PTX; releases of names may differ. */
	find_of_release(object, "Create", suffix, &to->create);
	find_of_release(object, "AddData", suffix, &to->add_data);
	find_of_release(object, "Complete", suffix, &to->complete);
	find_of_release(object, "GetLinkedPtxSize", suffix, &to->get_ptx_size);
	find_of_release(object, "GetLinkedPtx", suffix, &to->get_ptx);
	find_of_release(object, "Destroy", suffix, &to->destroy);
	return find_of_release(object, "GetLinkedCubinSize", suffix, &to->get_cubin_size);
}

/* Find what the wrapper of nvrtcGetCUBIN needs of its library. */
static bool find_nvrtc(const struct link_map *object, struct copy *copy)
{
	return find(object, "nvrtcGetCUBINSize", &copy->nvrtc.get_cubin_size) &&
	       find(object, "nvrtcGetPTXSize", &copy->nvrtc.get_ptx_size) &&
	       find(object, "nvrtcGetPTX", &copy->nvrtc.get_ptx);
}

/*
 * An object (program or library) was mapped: whether bindings of names in it, or by it, to others are of interest: in NVRTC
 * and nvJitLink, and by what depends on them.
 */
unsigned nt_audit_passing_flags(const struct link_map *object)
{
	const char *name = nt_audit_object_base(object->l_name ? object->l_name : "");

	if (nt_audit_object_begins(name, NVRTC) || nt_audit_object_begins(name, NVJITLINK))
		return LA_FLG_BINDTO;
	return nt_audit_object_needs(object, NVRTC) || nt_audit_object_needs(object, NVJITLINK) ? LA_FLG_BINDFROM : 0;
}

/*
 * A name was found in an object (program or library), at that address: the address that who looks it up gets, which is of
 * a wrapper if it is one of the functions that pass PTX.
 */
uintptr_t nt_audit_passing_bound(const struct link_map *object, const char *name, uintptr_t address)
{
	const char *suffix = "";
	enum wrapped wrapped = NOT_WRAPPED;
	const char *file = nt_audit_object_base(object->l_name ? object->l_name : "");

	/* By a library that depends on them, names of others are bound, too. */
	if (nt_audit_object_begins(file, NVRTC))
		wrapped = nt_audit_object_is_same(name, "nvrtcGetCUBIN") ? COMPILED : NOT_WRAPPED;
	else if (nt_audit_object_begins(file, NVJITLINK))
		wrapped = wrapped_of(name, &suffix);
	struct copy *copy = wrapped != NOT_WRAPPED ? copy_for(wrapped, address) : NULL;
	if (!copy && wrapped != NOT_WRAPPED && wrapped != COMPILED)
		__atomic_store_n(&is_link_unseen, true, __ATOMIC_RELEASE);
	if (!copy || (wrapped == COMPILED && !find_nvrtc(object, copy)) ||
	    (wrapped == LINKED && !find_nvjitlink(object, suffix, copy)))
		return address;
	return wrapper_of(wrapped, (unsigned)(copy - copies[wrapped]));
}

/* The hook is there, and has asked for NT_FRONT_PASSING: from now on it is told. The first one, where there are two. */
void nt_audit_passing_starts(const struct link_map *hook)
{
	const struct neutrino_passing *found = nt_audit_object_symbol(hook, NT_FRONT_PASSING_SYMBOL), *none = NULL;

	if (found && found->magic == NEUTRINO_PASSING_MAGIC)
		__atomic_compare_exchange_n(&passing, &none, found, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
