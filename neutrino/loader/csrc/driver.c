#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define NT_DECLARE(name, parameters) CUresult name parameters;
NT_DRIVER_WRAPPED(NT_DECLARE)
#undef NT_DECLARE

struct nt_driver nt_driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool loaded;

static void load(void)
{
	const char *path = getenv("NEUTRINO_DRIVER");
	/*
	 * The variable is gone where a program empties its children's environment but for LD_PRELOAD: then the driver is
	 * what the preloaded libraries brought with them.
	 */
	void *handle = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : RTLD_NEXT;

	if (!handle)
		return;
#define NT_LOOK_UP(name, parameters) *(void **)&nt_driver.name = dlsym(handle, #name);
	NT_DRIVER_CALLED(NT_LOOK_UP)
	NT_DRIVER_WRAPPED(NT_LOOK_UP)
#undef NT_LOOK_UP
	/* A driver that finds our own functions under its names is the hook itself: calling it would never return. */
	loaded = nt_driver.cuInit && nt_driver.cuInit != cuInit;
	if (!loaded)
		nt_driver = (struct nt_driver){0};
}

bool nt_driver_load(void)
{
	pthread_once(&once, load);
	return loaded;
}

void *nt_driver_wrapper_of(void *real)
{
	if (!real)
		return real;
#define NT_COMPARE(name, parameters)                                                                                   \
	if (real == *(void **)&nt_driver.name)                                                                         \
		return *(void **)&(CUresult(*[]) parameters){name}[0];
	NT_DRIVER_WRAPPED(NT_COMPARE)
#undef NT_COMPARE
	return real;
}
