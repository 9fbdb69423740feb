/* What kernels print, and when the program sees it: `prints SCENARIO`. */
#include <fcntl.h>
#include <poll.h>

#include "host.h"

static CUfunction says;
static CUstream stream;
static CUevent event;
static CUdeviceptr word;

static void say(uint32_t number, uint32_t fail, unsigned blocks)
{
	void *parameters[] = {&number, &fail};

	CHECK(launch(says, blocks, 32, stream, parameters));
}

/* Until all is done, by a question that is no wait. */
static void let_it_run(void)
{
	CUresult result;

	do
		result = CALL(cuStreamQuery, (CUstream))(stream);
	while (result == CUDA_ERROR_NOT_READY);
	CHECK(result);
}

static CUresult wait_by(int way)
{
	uint32_t found;

	switch (way) {
	case 0:
		return CALL(cuCtxSynchronize, (void))();
	case 1:
		return synchronize(stream);
	case 2:
		return CALL(cuEventSynchronize, (CUevent))(event);
	case 3:
		return CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))(&found, word, sizeof(found));
	default:
		return CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0);
	}
}

/* Nothing before a wait, of whatever kind; then everything, in order. */
static void waits(void)
{
	char text[256], expected[64];
	int ends[2], before = dup(STDOUT_FILENO);

	if (pipe(ends) != 0)
		exit(6);
	dup2(ends[1], STDOUT_FILENO);
	for (uint32_t way = 0; way < 5; way++) {
		say(way, 0, 1);
		say(way + 10, 0, 1);
		CHECK(CALL(cuEventRecord, (CUevent, CUstream))(event, stream));
		let_it_run();
		int early = poll(&(struct pollfd){ends[0], POLLIN, 0}, 1, 0);
		CUresult result = wait_by((int)way);
		struct pollfd now = {ends[0], POLLIN, 0};
		ssize_t size = poll(&now, 1, 0) == 1 ? read(ends[0], text, sizeof(text) - 1) : 0;
		text[size] = 0;
		snprintf(expected, sizeof(expected), "launch %u block 0\nlaunch %u block 0\n", way, way + 10);
		if (early || result || strcmp(text, expected) != 0) {
			dup2(before, STDOUT_FILENO);
			printf("way %u: early %d, result %d, text %s\n", way, early, result, text);
			exit(9);
		}
	}
	dup2(before, STDOUT_FILENO);
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "mixed";

	begin();
	says = obtain(load(), "says");
	stream = make_stream(1);
	word = allocate(4);
	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&event, 0));
	if (!strcmp(scenario, "waits")) {
		waits();
	} else if (!strcmp(scenario, "mixed")) {
		/* Through the same stdio as the program's own lines. */
		printf("before\n");
		for (uint32_t i = 0; i < 3; i++)
			say(i, 0, 4);
		CHECK(synchronize(stream));
		printf("between\n");
		say(3, 0, 2);
		CHECK(CALL(cuCtxSynchronize, (void))());
	} else if (!strcmp(scenario, "fault")) {
		say(1, 1, 1);
		EXPECT(719, synchronize(stream));
	} else if (!strcmp(scenario, "limit")) {
		CHECK(CALL(cuCtxSetLimit, (int, size_t))(1, 36));
		for (uint32_t i = 0; i < 5; i++)
			say(i, 0, 1);
		CHECK(synchronize(stream));
	} else if (!strcmp(scenario, "closed")) {
		/* Another file has the number by now, of which stdio knows nothing. */
		fclose(stdout);
		int other = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
		say(1, 0, 1);
		CUresult result = synchronize(stream);
		return result || other != STDOUT_FILENO || lseek(other, 0, SEEK_END) != 0;
	} else {
		return 2;
	}
	printf("done\n");
	return 0;
}
