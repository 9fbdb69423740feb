/* Green contexts: `green SCENARIO`. */
#include "replaying.h"

/* CUdevResource */
struct resource {
	int type;
	char padding[92];
	unsigned count, least, alignment;
	char rest[36];
};

#define MULTIPROCESSORS 1

/* A green context with the first group of a split into two, as its CUgreenCtx and its CUcontext. */
static void *make_green(CUcontext *ret)
{
	struct resource all, groups[2], rest;
	unsigned count = 2;
	void *description, *green;

	CHECK(CALL(cuDeviceGetDevResource, (CUdevice, void *, int))(0, &all, MULTIPROCESSORS));
	EXPECT(132, all.count);
	CHECK(CALL(cuDevSmResourceSplitByCount, (void *, unsigned *, const void *, void *, unsigned, unsigned))(
		groups, &count, &all, &rest, 0, 60));
	EXPECT(2, count);
	EXPECT(64, groups[0].count);
	EXPECT(132 - 2 * 64, rest.count);
	CHECK(CALL(cuDevResourceGenerateDesc, (void **, void *, unsigned))(&description, groups, 1));
	EXPECT(1, CALL(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned))(&green, description, 0, 0));
	/* Without a description it has all. */
	CHECK(CALL(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned))(&green, NULL, 0, 1));
	CHECK(CALL(cuGreenCtxGetDevResource, (void *, void *, int))(green, &rest, MULTIPROCESSORS));
	EXPECT(132, rest.count);
	CHECK(CALL(cuGreenCtxDestroy, (void *))(green));
	CHECK(CALL(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned))(&green, description, 0, 1));
	CHECK(CALL(cuCtxFromGreenCtx, (CUcontext *, void *))(ret, green));
	return green;
}

/* Kernels of the primary context run on its streams, memory is the primary's, and what it was ends with it. */
static void contexts(void)
{
	CUcontext primary, context, found;
	CUstream stream, under;
	struct resource part;
	unsigned long long ids[2];
	void *of, *green = make_green(&context);
	int active;

	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&primary));
	CHECK(CALL(cuGreenCtxGetDevResource, (void *, void *, int))(green, &part, MULTIPROCESSORS));
	EXPECT(64, part.count);
	EXPECT(1, CALL(cuGreenCtxStreamCreate, (CUstream *, void *, unsigned, int))(&stream, green, 0, 0));
	CHECK(CALL(cuGreenCtxStreamCreate, (CUstream *, void *, unsigned, int))(&stream, green, 1, -1));
	CHECK(CALL(cuStreamGetCtx, (CUstream, CUcontext *))(stream, &found));
	EXPECT((intptr_t)context, (intptr_t)found);
	CHECK(CALL(cuStreamGetGreenCtx, (CUstream, void **))(stream, &of));
	EXPECT((intptr_t)green, (intptr_t)of);
	set_word(1);
	CHECK(launch_step(2, stream));
	CHECK(write32(stream, word + 4, 6));
	CHECK(launch_step(3, stream));
	CHECK(synchronize(stream));
	EXPECT((1 * 3 + 2) * 3 + 3, get_word());

	CHECK(CALL(cuCtxPushCurrent_v2, (CUcontext))(context));
	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&found));
	EXPECT((intptr_t)context, (intptr_t)found);
	CHECK(CALL(cuCtxGetId, (CUcontext, unsigned long long *))(primary, &ids[0]));
	CHECK(CALL(cuCtxGetId, (CUcontext, unsigned long long *))(NULL, &ids[1]));
	EXPECT(1, ids[0] != ids[1]);
	under = make_stream(1);
	CHECK(CALL(cuStreamGetCtx, (CUstream, CUcontext *))(under, &found));
	EXPECT((intptr_t)context, (intptr_t)found);
	CUdeviceptr memory = allocate(64);
	CUfunction loaded = obtain(load(), "step");
	uint32_t four = 4;
	void *of_four[] = {&word, &four};
	set_word(1);
	CHECK(launch(loaded, 1, 1, under, of_four));
	CHECK(launch(loaded, 1, 1, NULL, of_four));
	EXPECT((1 * 3 + 4) * 3 + 4, get_word());
	CHECK(CALL(cuStreamDestroy_v2, (CUstream))(under));
	CHECK(CALL(cuCtxPopCurrent_v2, (CUcontext *))(&found));
	EXPECT((intptr_t)context, (intptr_t)found);
	EXPECT(201, CALL(cuCtxDestroy_v2, (CUcontext))(context));

	/* Its streams answer that it is destroyed; memory and modules are the primary context's. */
	CHECK(CALL(cuGreenCtxDestroy, (void *))(green));
	EXPECT(709, launch_step(1, stream));
	EXPECT(709, CALL(cuStreamDestroy_v2, (CUstream))(stream));
	CHECK(launch(loaded, 1, 1, NULL, of_four));
	CHECK(CALL(cuMemFree_v2, (CUdeviceptr))(memory));

	/* It retains the primary context. */
	green = make_green(&context);
	CHECK(CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice))(0));
	CHECK(CALL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))(0, &(unsigned){0}, &active));
	EXPECT(1, active);
	CHECK(CALL(cuGreenCtxDestroy, (void *))(green));
	CHECK(CALL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))(0, &(unsigned){0}, &active));
	EXPECT(0, active);
}

static void *push_it(void *context)
{
	CHECK(CALL(cuCtxPushCurrent_v2, (CUcontext))(context));
	return NULL;
}

/* Current in one thread after the other, then in two at once, which the stand-in reports. */
static void two_threads(void)
{
	CUcontext context, found;
	pthread_t thread;

	make_green(&context);
	for (int i = 0; i < 2; i++) {
		pthread_create(&thread, NULL, push_it, context);
		pthread_join(thread, NULL);
	}
	CHECK(CALL(cuCtxPushCurrent_v2, (CUcontext))(context));
	CHECK(CALL(cuCtxPopCurrent_v2, (CUcontext *))(&found));
	pthread_create(&thread, NULL, push_it, context);
	pthread_join(thread, NULL);
	CHECK(CALL(cuCtxPushCurrent_v2, (CUcontext))(context));
	pthread_create(&thread, NULL, push_it, context);
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {{"contexts", contexts}, {"two-threads", two_threads}};

	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
