/* Scenarios of streams: more of them than segments, destroyed ones, those of threads, waiting kernels. */
#include "host.h"

void short_streams(void)
{
	for (int i = 0; i < 100; i++) {
		CUstream brief = make_stream(0);
		for (int j = 0; j < 3; j++)
			CHECK(count(function, 2, 32, brief));
		CHECK(cu.StreamDestroy_v2(brief));
		if (i % 4 == 3)
			written();
	}
}

/* More streams than the pool has segments, each of which keeps one for as long as others do not lack it. */
void many_streams(void)
{
	CUstream streams[24];

	for (int i = 0; i < 24; i++)
		streams[i] = make_stream(CU_STREAM_NON_BLOCKING);
	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < 24; i += 8) {
			for (int j = i; j < i + 8; j++)
				CHECK(count(function, 2, 32, streams[j]));
			CHECK(cu.CtxSynchronize());
			settled();
		}
	}
}

static void wait_for_flag(void *flag)
{
	while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE))
		usleep(1000);
}

/*
 * As many streams as segments, all of them filled before any launch has ended: else a segment that is back already goes to
 * a launch that nothing follows and nobody waits for. Then a few launches at a time, which are waited for.
 */
void full_streams(void)
{
	CUstream streams[8];
	int all_launched = 0;

	for (int i = 0; i < 8; i++) {
		streams[i] = make_stream(CU_STREAM_NON_BLOCKING);
		CHECK(cu.LaunchHostFunc(streams[i], wait_for_flag, &all_launched));
	}
	for (int j = 0; j < 8 * 3; j++)
		CHECK(count(function, 100, 1, streams[j % 8]));
	__atomic_store_n(&all_launched, 1, __ATOMIC_RELEASE);
	settled();
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 8; i++)
			CHECK(count(function, 100, 1, streams[i]));
		CHECK(cu.CtxSynchronize());
		settled();
	}
}

/* A stream is destroyed while a kernel on it waits; the next has its address, and is waited for. */
void heirs(void)
{
	CUstream heir, other = make_stream(CU_STREAM_NON_BLOCKING);
	CUfunction spin = obtain(module, "spin_p1"), raise_flag = obtain(module, "raise_p1");

	stream = make_stream(CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 4; i++) {
		CHECK(cu.MemsetD32Async(flag, 0, 1, other));
		CHECK(cu.StreamSynchronize(other));
		CHECK(launch_at(spin, flag, 1, 32, stream));
		for (int j = 0; j < 5; j++)
			CHECK(count(function, 2, 32, stream));
		CHECK(cu.StreamDestroy_v2(stream));
		heir = make_stream(CU_STREAM_NON_BLOCKING);
		printf("%s\n", heir == stream ? "at the same address" : "elsewhere");
		CHECK(count(function, 2, 32, heir));
		CHECK(cu.StreamSynchronize(heir));
		rest();
		CHECK(launch_at(raise_flag, flag, 1, 1, other));
		CHECK(cu.CtxSynchronize());
		stream = heir;
	}
}

static void *once_on_the_threads_own_stream(void *unused)
{
	uint32_t five = 5;
	void *each[] = {&counter, &five};

	(void)unused;
	CHECK(cu.CtxSetCurrent(context));
	__atomic_fetch_add(&launches_made, 1, __ATOMIC_RELAXED);
	CHECK(cu.LaunchKernel_ptsz(function, 2, 1, 1, 32, 1, 1, 0, NULL, each, NULL));
	CHECK(cu.StreamSynchronize_ptsz(NULL));
	return NULL;
}

void own_streams(void)
{
	for (int i = 0; i < 40; i++) {
		run_threads(1, once_on_the_threads_own_stream);
		written();
	}
}

void spin(void)
{
	CUstream others[8];
	uint32_t one = 1;

	stream = make_stream(CU_STREAM_NON_BLOCKING);
	CHECK(launch_at(obtain(module, "spin_p1"), flag, 1, 32, stream));
	for (int i = 0; i < 8; i++)
		others[i] = make_stream(CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 200; i++)
		CHECK(count(function, 1, 64, others[i % 8]));
	TELL(cu.StreamQuery(stream));
	CHECK(cu.MemcpyHtoD_v2(flag, &one, sizeof(one)));
	CHECK(cu.StreamSynchronize(stream));
}
