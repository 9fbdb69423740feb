/* Scenarios of modules and libraries that come and go, in one thread and in several. */
#include "host.h"

void reload(void)
{
	char *last = image + strlen(image) - 1;

	for (int i = 0; i < 50; i++) {
		CHECK(count(function, 1, 32, stream));
		CHECK(cu.StreamSynchronize(stream));
		CHECK(cu.ModuleUnload(module));
		*last ^= (char)(i % 2);
		module = load();
		function = obtain(module, "count_p2");
	}
}

void names(void)
{
	for (int i = 0; i < 5; i++) {
		CUlibrary library = load_library();
		CUmodule of_library;
		CUfunction in_context;
		CHECK(cu.LibraryGetModule(&of_library, library));
		CHECK(count(obtain(of_library, "count_p2"), 2, 32, stream));
		CUkernel kernel = obtain_kernel(library, "count_p2");
		CHECK(count(kernel, 2, 32, stream));
		CHECK(cu.KernelGetFunction(&in_context, kernel));
		CHECK(count(in_context, 2, 32, stream));
		CHECK(cu.StreamSynchronize(stream));
		CHECK(cu.LibraryUnload(library));
	}
}

static void *launch_many(void *number)
{
	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(0);
	for (int i = 0; i < 150; i++)
		CHECK(count(function, 1 + i % 3, 33 + i % 64, i % 3 ? own : (intptr_t)number % 2 ? stream : NULL));
	CHECK(cu.StreamDestroy_v2(own));
	return NULL;
}

void threads(void)
{
	run_threads(4, launch_many);
}

static void *load_launch_unload(void *number)
{
	bool as_library = (intptr_t)number % 2;

	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(0);
	for (int i = 0; i < 25; i++) {
		CUlibrary library = as_library ? load_library() : NULL;
		CUmodule mine = as_library ? NULL : load();
		CUfunction counting = as_library ? obtain_kernel(library, "count_p2") : obtain(mine, "count_p2");
		for (int j = 0; j < 3; j++) {
			CHECK(count(counting, 2, 32, own));
			CHECK(count(function, 2, 32, own));
		}
		CHECK(cu.StreamSynchronize(own));
		CHECK(as_library ? cu.LibraryUnload(library) : cu.ModuleUnload(mine));
	}
	return NULL;
}

void churn(void)
{
	run_threads(4, load_launch_unload);
}

/* Three kernels of many, one of them asked for again, another while a context is current that the module is not in. */
void parts(void)
{
	CUcontext other;
	CUdeviceptr tally;
	size_t size;
	CUfunction looping = obtain(module, "loop_p2");

	obtain(module, "loop_p2");
	CHECK(cu.CtxCreate_v2(&other, 0, 0));
	CUfunction nothing = obtain(module, "count_p0");
	CHECK(cu.CtxSetCurrent(context));
	for (int i = 0; i < 5; i++) {
		CHECK(launch_at(looping, counter, 1, 32, stream));
		CHECK(cu.LaunchKernel(nothing, 1, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
		CHECK(count(function, 2, 32, stream));
	}
	CHECK(cu.StreamSynchronize(stream));
	CHECK(cu.CtxDestroy_v2(other));
	CHECK(cu.ModuleGetGlobal_v2(&tally, &size, module, "tally"));
	printf("%llu\n", (unsigned long long)value_at(tally));
	CHECK(cu.ModuleUnload(module));
}

static pthread_barrier_t together;
static CUlibrary shared_library;

/* Two threads ask for each of two kernels, all four at once. */
static void *obtain_and_launch(void *number)
{
	bool is_first = (intptr_t)number % 2;

	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(0);
	for (int i = 0; i < 20; i++) {
		pthread_barrier_wait(&together);
		if (!number) {
			module = load();
			shared_library = load_library();
		}
		pthread_barrier_wait(&together);
		const char *name = is_first ? "count_p2" : "loop_p2";
		CUfunction obtained = obtain(module, name);
		CUkernel kernel = obtain_kernel(shared_library, name);
		CHECK(count(obtained, 1, 32, own));
		CHECK(count(kernel, 1, 32, own));
		CHECK(cu.StreamSynchronize(own));
		pthread_barrier_wait(&together);
		if (!number) {
			CHECK(cu.ModuleUnload(module));
			CHECK(cu.LibraryUnload(shared_library));
		}
	}
	return NULL;
}

void parts_at_once(void)
{
	CHECK(cu.ModuleUnload(module));
	pthread_barrier_init(&together, NULL, 4);
	run_threads(4, obtain_and_launch);
	pthread_barrier_destroy(&together);
}

#define KEPT 8

static CUlibrary library_with_kernels(void)
{
	static const char *const names[] = {"count_p2", "count_p6", "count_p0", "shared_p3", "spin_p1", "raise_p1"};
	CUlibrary library = load_library();

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		obtain_kernel(library, names[i]);
	return library;
}

/*
 * Contexts come into being in one thread while libraries, whose kernels a hook prepares for them, go in another: the
 * oldest first, for which it comes last, and with time in which nothing else has the handles that were.
 */
static void *make_contexts(void *number)
{
	static int done;
	CUlibrary kept[KEPT];

	if ((intptr_t)number == 0) {
		for (int i = 0; i < 30; i++) {
			CUcontext other;
			CHECK(cu.CtxCreate_v2(&other, 0, 0));
			CHECK(cu.CtxSetCurrent(NULL));
			CHECK(cu.CtxSetCurrent(other));
			CHECK(cu.CtxDestroy_v2(other));
		}
		__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
		return NULL;
	}
	for (int i = 0; i < KEPT; i++)
		kept[i] = library_with_kernels();
	for (int i = 0; !__atomic_load_n(&done, __ATOMIC_ACQUIRE); i = (i + 1) % KEPT) {
		CHECK(cu.LibraryUnload(kept[i]));
		usleep(1000);
		kept[i] = library_with_kernels();
	}
	return NULL;
}

void contexts_and_libraries(void)
{
	CUkernel kernel = obtain_kernel(load_library(), "count_p2");

	CHECK(count(kernel, 2, 32, stream));
	run_threads(2, make_contexts);
	CHECK(cu.CtxSetCurrent(context));
	CHECK(count(kernel, 2, 32, stream));
}
