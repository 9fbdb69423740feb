/*
 * A program that gets the driver in one of the ways in which programs get it, and works: `ways HOW [PATH]`. With and
 * without the hook it must print the same. Compiled with
 * LINKED    the driver is a dependency, and its functions are called by name,
 * POINTERS  it has global pointers under the functions' names, as cuew and the CUDA samples have,
 * CALLED    it is a library, whose run() a program calls,
 * CALLER    it is that program.
 */
#include <errno.h>

#include "program.h"

int run(const char *how, const char *path);

#if !defined(CALLED)
int main(int argc, char **argv)
{
	return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
}
#endif

#if !defined(CALLER)

#if defined(LINKED)
#define DECLARE(name, parameters) CUresult cu##name parameters;
FUNCTIONS(DECLARE)
#define FIND(name, parameters) cu.name = cu##name;
#elif defined(POINTERS)
#define DECLARE(name, parameters) CUresult(*cu##name) parameters;
FUNCTIONS(DECLARE)
LAUNCHES(DECLARE)
#define FIND(name, parameters) *(void **)&cu.name = *(void **)&cu##name = dlsym(cu.library, "cu" #name);
#else
#define FIND(name, parameters) *(void **)&cu.name = dlsym(cu.library, "cu" #name);
#endif

static void *open_driver(const char *how, const char *path)
{
	if (!strcmp(how, "path"))
		return dlopen(path, RTLD_NOW);
	if (!strcmp(how, "deepbind"))
		return dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
	if (!strcmp(how, "global"))
		return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!strcmp(how, "dlmopen"))
		return dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	if (!strcmp(how, "around")) {
		/* As a profiler does that has the hook loaded and calls the driver below it. */
		dlopen("libcuda.so.1", RTLD_NOW);
		return dlopen(path, RTLD_NOW);
	}
	if (!strcmp(how, "again")) {
		/* It is closed before it was used, and opened by its other names. */
		for (int i = 0; i < 3; i++)
			dlclose(dlopen("libcuda.so.1", RTLD_LAZY));
		dlopen(path, RTLD_LAZY);
		return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	}
	return dlopen(how, RTLD_NOW);
}

int run(const char *how, const char *path)
{
	CUcontext context;

	printf("at the start: %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
	cu.library = open_driver(how, path);
	if (!cu.library) {
		printf("no driver: %s\n", dlerror());
		return 7;
	}
	FUNCTIONS(FIND)
	printf("no error: %d\n", !dlerror());
	CHECK(cu.Init(0));
	printf("no error: %d\n", !dlerror());
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	read_image();
	CUfunction function = obtain(load(), "count_p2");
	CUdeviceptr counter = allocate(sizeof(uint64_t));
	for (int i = 0; i < 20; i++)
		CHECK(launch_at(function, counter, 2, 96, NULL));
	CHECK(cu.CtxSynchronize());
	printf("%llu\n", (unsigned long long)value_at(counter));
	printf("nobody: %d %s\n", dlsym(cu.library, "cuNobody") != NULL, dlerror() ? "error" : "none");
	printf("for all: %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
	return 0;
}

#endif
