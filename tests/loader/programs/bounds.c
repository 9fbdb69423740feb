/* Scenarios of what must have no bound: streams and threads that come, stay and go. And of a process that does nothing. */
#include <dirent.h>
#include <limits.h>
#include <malloc.h>

#include "host.h"

enum { AT_ONCE = 16, FEW = 8 };

void passing_streams(void)
{
	for (int i = 0; i < wished(); i++) {
		CUstream brief = make_stream(CU_STREAM_NON_BLOCKING);
		CHECK(count(function, 1, 32, brief));
		CHECK(cu.StreamDestroy_v2(brief));
		if (i % AT_ONCE == AT_ONCE - 1)
			written();
	}
}

void standing_streams(void)
{
	CUstream *streams = calloc((size_t)wished(), sizeof(*streams));

	for (int i = 0; i < wished(); i++)
		streams[i] = make_stream(CU_STREAM_NON_BLOCKING);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < wished(); i++) {
			CHECK(count(function, 1, 32, streams[i]));
			/* Each keeps a segment until few are free: then those of all come back, in time for some more. */
			if (i % FEW == FEW - 1) {
				CHECK(cu.CtxSynchronize());
				written();
			}
		}
	free(streams);
}

static void *once_on_its_own_stream(void *unused)
{
	uint32_t five = 5;
	void *each[] = {&counter, &five};

	(void)unused;
	CHECK(cu.CtxSetCurrent(context));
	__atomic_fetch_add(&launches_made, 1, __ATOMIC_RELAXED);
	CHECK(cu.LaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, NULL, each, NULL));
	CHECK(cu.StreamSynchronize_ptsz(NULL));
	return NULL;
}

void passing_threads(void)
{
	for (int i = 0; i < wished(); i += 8) {
		run_threads(8, once_on_its_own_stream);
		written();
	}
}

/* How often the hook's own thread has slept. */
static long slept(void)
{
	long switches = -1;
	char path[300], line[200];
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	while (tasks && (entry = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		FILE *file = fopen(path, "r");
		bool is_ours = false;
		while (file && fgets(line, sizeof(line), file)) {
			is_ours |= !strncmp(line, "Name:\tneutrino-drain", 20);
			if (is_ours)
				sscanf(line, "voluntary_ctxt_switches: %ld", &switches);
		}
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return switches;
}

void idle(void)
{
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 100; i++)
			CHECK(count(function, 2, 32, stream));
		CHECK(cu.StreamSynchronize(stream));
		written();
		/* At last: on a loaded machine it may take a while until the thread has found that nothing happens. */
		long times = LONG_MAX;
		for (int tries = 0; tries < 60 && times > 1; tries++) {
			long before = slept();
			usleep(2000000);
			times = slept() - before;
		}
		fprintf(stderr, "slept %ld times\n", times);
	}
}

static long heap_kilobytes(void)
{
	return (long)(mallinfo2().uordblks / 1024);
}

/* Modules that come and go; now and then one is launched. */
void reloads(void)
{
	long before = 0;

	for (int i = 0; i < wished(); i++) {
		CUmodule loaded = load();
		CUfunction obtained = obtain(loaded, "count_p2");
		if (i % 100 == 0) {
			CHECK(count(obtained, 1, 32, stream));
			CHECK(cu.StreamSynchronize(stream));
		}
		CHECK(cu.ModuleUnload(loaded));
		/* The hook's own thread frees what is gone. */
		if (i % 100 == 99)
			settled();
		if (i == 1000) {
			settled();
			before = heap_kilobytes();
		}
	}
	settled();
	fprintf(stderr, "grew by %ld KiB\n", heap_kilobytes() - before);
}

/* Launches that are larger than what a pool begins with. */
void growth(void)
{
	for (int i = 0; i < 12; i++) {
		CHECK(count(function, 330, 1, stream));
		CHECK(cu.StreamSynchronize(stream));
		settled();
	}
}

/* The program takes all memory that there is, frees it, and goes on. */
void out_of_memory(void)
{
	enum { PIECE = 1 << 20 };
	static CUdeviceptr pieces[4096];
	int got = 0;

	for (int i = 0; i < 600; i++)
		CHECK(count(function, 2, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	while (got < 4096 && cu.MemAlloc_v2(&pieces[got], PIECE) == CUDA_SUCCESS) {
		CHECK(cu.MemsetD32Async(pieces[got++], 0x5a5a5a5a, PIECE / 4, stream));
		CHECK(cu.StreamSynchronize(stream));
	}
	fprintf(stderr, "got %d MiB\n", got);
	for (int i = 0; i < 600; i++)
		CHECK(count(function, 2, 32, stream));
	CHECK(cu.CtxSynchronize());
	long changed = 0;
	static uint32_t back[PIECE / 4];
	for (int i = 0; i < got; i++) {
		CHECK(cu.MemcpyDtoH_v2(back, pieces[i], PIECE));
		for (int j = 0; j < PIECE / 4; j++)
			changed += back[j] != 0x5a5a5a5a;
		CHECK(cu.MemFree_v2(pieces[i]));
	}
	printf("%ld words changed\n", changed);
}
