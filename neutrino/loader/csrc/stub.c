/*
 * What DT_AUXILIARY of patched libraries names: it loads the hook beside it where NEUTRINO_TRACEDIR is set.
 *
 * Where the dynamic loader finds this file, whatever it lacks would make loading the patched library fail: a library
 * that it needs, a version of a symbol, in a container with an older libc say. So it needs nothing, and is linked with
 * nothing: what it calls is weak, and of that as little as can be. The hook's own loading may fail, and is then as if it were not there.
 *
 * glibc before 2.32 runs the start of such an object without having relocated it when a dlopened library names it (its
 * bug 16272). So there is no start but DT_INIT, which calls nothing before it knows that it was relocated.
 */
#include <dlfcn.h>
#include <stdlib.h>

#define HOOK "libneutrino_late.so"

#pragma weak dladdr
#pragma weak dlerror
#pragma weak dlopen
#pragma weak secure_getenv

/* Equal to its own address once this library has been relocated. */
static void *const volatile relocated = (void *)&relocated;

__attribute__((visibility("hidden"))) void nt_stub_init(void);
void nt_stub_init(void)
{
	char path[4096];
	size_t folder_end = 0, length = 0;
	Dl_info info;

	if (relocated != (const void *)&relocated || !dladdr || !dlerror || !dlopen || !secure_getenv)
		return;
	/* A program with another user's rights writes no traces where its caller says. */
	const char *folder = secure_getenv("NEUTRINO_TRACEDIR");
	if (!folder || !*folder)
		return;
	if (!dladdr(nt_stub_init, &info) || !info.dli_fname)
		return;
	/* Not $ORIGIN: a dlopen that stands before the dynamic loader's would be who asks. */
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
