/* Scenarios of one thread: sizes, parameters, variables, attributes, every call that launches. */
#include "host.h"

void plain(void)
{
	for (int i = 0; i < 20; i++)
		CHECK(count(function, 3, 48, stream));
}

/* Loads a kernel and launches none. */
void loaded(void)
{
}

/* Five kernels of two images, each launched a number of times of its own. */
void mixture(void)
{
	CUfunction nothing = obtain(module, "count_p0"), looping = obtain(module, "loop_p2");
	CUfunction raising = obtain(module, "raise_p1");

	CHECK(count(function, 1, 32, stream));
	for (int i = 0; i < 1200; i++)
		CHECK(cu.LaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	for (int i = 0; i < 4; i++)
		CHECK(launch_at(looping, counter, 1, 32, stream));
	for (int i = 0; i < 3; i++)
		CHECK(launch_at(raising, flag, 1, 32, stream));
	image[strlen(image) - 1] ^= 1;
	CUmodule other = load();
	CUfunction counting = obtain(other, "count_p2"), left_out = obtain(other, "loop_p2");
	for (int i = 0; i < 2; i++)
		CHECK(count(counting, 1, 32, stream));
	for (int i = 0; i < 7; i++)
		CHECK(launch_at(left_out, counter, 1, 32, stream));
}

void many(void)
{
	CUstream streams[4];
	CUevent event;
	int launches = atoi(getenv("HOST_LAUNCHES"));

	for (int i = 0; i < 4; i++)
		streams[i] = make_stream(CU_STREAM_NON_BLOCKING);
	CHECK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < launches; i++) {
		CHECK(count(function, 1, 32, streams[i / 64 % 4]));
		/* By events, of whose waits the hook knows nothing. */
		if (i % 64 == 63) {
			CHECK(cu.EventRecord(event, streams[i / 64 % 4]));
			CHECK(cu.EventSynchronize(event));
		}
	}
}

void large(void)
{
	for (int i = 0; i < 6; i++)
		CHECK(count(function, 512, 1, stream));
	CHECK(count(function, 4096, 1, stream));
}

void immense(void)
{
	CHECK(count(function, 8192, 1, stream));
}

void cut(void)
{
	CHECK(count(function, 1024, 1, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	for (int i = 0; i < 20; i++)
		CHECK(count(function, 2, 1, stream));
}

static void take(CUfunction looping, unsigned blocks, unsigned threads, uint32_t tickets)
{
	void *parameters[] = {&counter, &tickets};

	__atomic_fetch_add(&launches_made, 1, __ATOMIC_RELAXED);
	CHECK(cu.LaunchKernel(looping, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
}

static const uint32_t growing_tickets[] = {10, 100, 100, 300, 7, 300};
#define GROWING (sizeof(growing_tickets) / sizeof(*growing_tickets))

/* What one launch wanted is known to the hook when the next one comes. */
void growing(void)
{
	CUfunction looping = obtain(module, "loop_p2");

	for (unsigned i = 0; i < GROWING; i++) {
		take(looping, 3, 48, growing_tickets[i]);
		CHECK(cu.StreamSynchronize(stream));
		settled();
	}
}

struct grid {
	unsigned blocks;
	uint32_t tickets;
};

/* What one launch wanted is known to the hook when the next one comes. */
static void take_each(const struct grid *each, unsigned count)
{
	CUfunction looping = obtain(module, "loop_p2");

	for (unsigned i = 0; i < count; i++) {
		take(looping, each[i].blocks, 48, each[i].tickets);
		CHECK(cu.StreamSynchronize(stream));
		settled();
	}
}

/* A larger grid than before, and then longer loops. */
void spreading(void)
{
	static const struct grid each[] = {{3, 50}, {100, 50}, {100, 200}};

	take_each(each, sizeof(each) / sizeof(*each));
}

/* The same small grid twice, and a large one. */
void widening(void)
{
	static const struct grid each[] = {{3, 50}, {3, 50}, {200, 50}};

	take_each(each, sizeof(each) / sizeof(*each));
}

static void wait_for(void *launched)
{
	while (!__atomic_load_n((int *)launched, __ATOMIC_ACQUIRE))
		usleep(1000);
}

/* The same launches, none of which begins before all were made. */
void growing_in_a_row(void)
{
	static int launched;
	CUfunction looping = obtain(module, "loop_p2");

	CHECK(cu.LaunchHostFunc(stream, wait_for, &launched));
	for (unsigned i = 0; i < GROWING; i++)
		take(looping, 3, 48, growing_tickets[i]);
	__atomic_store_n(&launched, 1, __ATOMIC_RELEASE);
}

/* The same as growing when the program has taken most of the memory. */
void growing_in_little(void)
{
	size_t left, total;

	CHECK(cu.MemGetInfo_v2(&left, &total));
	allocate(left - ((size_t)200 << 20));
	growing();
}

/* More than the pool has room for, by the records of a slot and by the slots. */
void crowded(void)
{
	CUfunction looping = obtain(module, "loop_p2");

	for (int i = 0; i < 3; i++) {
		take(looping, 1024, 128, 20);
		CHECK(cu.StreamSynchronize(stream));
		settled();
	}
	take(looping, 4096, 1024, 1);
}

/* Copied back in pieces, of which the first has none of the counts. */
void spread(void)
{
	CUfunction looping = obtain(module, "loop_p2");

	for (int i = 0; i < 2; i++) {
		take(looping, 1200, 32, 70);
		CHECK(cu.StreamSynchronize(stream));
		settled();
	}
}

/* Parameters of every size, in both forms, and forms that the driver is to refuse. */
void parameters(void)
{
	struct __attribute__((packed, aligned(16))) {
		CUdeviceptr counter;
		uint8_t byte, hole[7];
		uint64_t structure[3];
		uint16_t half, hole2;
		float single;
		uint64_t sum;
	} packed = {counter, 200, {0}, {1 << 20, 77, 1 << 30}, 60000, 0, 4096, 200 + (1 << 20) + (1 << 30) + 60000 + 4096};
	void *each[] = {&packed.counter, &packed.byte, packed.structure, &packed.half, &packed.single, &packed.sum};
	size_t size = (size_t)((char *)(&packed.sum + 1) - (char *)&packed), small = 16;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	void *too_small[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &small,
			     CU_LAUNCH_PARAM_END};
	CUfunction six = obtain(module, "count_p6");

	for (int i = 0; i < 5; i++) {
		TELL(cu.LaunchKernel(six, 2, 2, 1, 8, 8, 1, 0, stream, each, NULL));
		TELL(cu.LaunchKernel(six, 1, 1, 3, 40, 1, 1, 0, stream, NULL, extra));
	}
	TELL(cu.LaunchKernel(six, 1, 1, 1, 32, 1, 1, 0, stream, each, extra));
	TELL(cu.LaunchKernel(six, 1, 1, 1, 32, 1, 1, 0, stream, NULL, too_small));
	TELL(cu.LaunchKernel(six, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	TELL(cu.LaunchKernel(six, 0, 1, 1, 32, 1, 1, 0, stream, each, NULL));
	TELL(cu.LaunchKernel(six, 1, 1, 1, 2048, 1, 1, 0, stream, each, NULL));
	TELL(cu.LaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, stream, each, NULL));
}

/* The module's own variable: the program's address of it, and what its kernels do to it. */
void variables(void)
{
	CUdeviceptr tally;
	size_t size;
	CUlibrary library = load_library();
	CUkernel kernel = obtain_kernel(library, "count_p0");
	CUfunction nothing = obtain(module, "count_p0");

	for (int i = 0; i < 10; i++) {
		CHECK(cu.LaunchKernel(nothing, 2, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
		CHECK(cu.LaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
	}
	CHECK(cu.StreamSynchronize(stream));
	CHECK(cu.ModuleGetGlobal_v2(&tally, &size, module, "tally"));
	printf("%zu bytes: %llu\n", size, (unsigned long long)value_at(tally));
	CHECK(cu.LibraryGetGlobal(&tally, &size, library, "tally"));
	printf("%zu bytes: %llu\n", size, (unsigned long long)value_at(tally));
}

/* Shared memory beyond 48 KiB needs an attribute, which the twin must get too. */
void shared_memory(void)
{
	CUfunction sharing = obtain(module, "shared_p3");
	uint32_t threads = 64, offset = 0;
	void *each[] = {&counter, &offset, &threads};

	TELL(cu.LaunchKernel(sharing, 2, 1, 1, threads, 1, 1, 1024, stream, each, NULL));
	offset = 60000;
	TELL(cu.LaunchKernel(sharing, 2, 1, 1, threads, 1, 1, 61440, stream, each, NULL));
	TELL(cu.FuncSetAttribute(sharing, 8, 65536));
	TELL(cu.LaunchKernel(sharing, 2, 1, 1, threads, 1, 1, 61440, stream, each, NULL));
	TELL(cu.FuncSetAttribute(sharing, 8, 1 << 30));
}

/* Launches by every call that there is. */
void forms(void)
{
	uint32_t unused = 5;
	void *each[] = {&counter, &unused};
	CUlaunchConfig config = {2, 1, 1, 32, 1, 1, 0, stream, NULL, 0};

	TELL(cu.LaunchKernelEx(&config, function, each, NULL));
	TELL(cu.LaunchKernelEx(&config, obtain_kernel(load_library(), "count_p2"), each, NULL));
	TELL(cu.LaunchCooperativeKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, each));
	TELL(cu.LaunchKernel_ptsz(function, 2, 1, 1, 32, 1, 1, 0, NULL, each, NULL));
	TELL(cu.LaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, each, NULL));
	TELL(cu.LaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, each, NULL));
	TELL(cu.LaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, NULL, each, NULL));
	TELL(cu.StreamSynchronize(NULL));
	TELL(cu.StreamSynchronize_ptsz(NULL));
}
