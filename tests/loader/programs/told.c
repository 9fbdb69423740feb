/*
 * Does what its standard input says, a word and numbers a line, and answers each line by one: so a test decides when
 * something happens. Modules, and functions of them, are known by a number; the images of modules differ by a comment.
 */
#include <sys/wait.h>

#include "program.h"

#define MOST 64

static struct {
	CUmodule module;
	CUlibrary library;
	CUfunction count, spin, raise;
} known[MOST];
static CUcontext context;
static CUstream streams[2];
static CUdeviceptr counter, flag;
static void *graph, *exec;

/* Load an image, as a module or a library. */
static void load_numbered(int number, bool is_library)
{
	static char text[sizeof(image) + 64];

	snprintf(text, sizeof(text), "%s\n// %d\n", image, number);
	if (is_library)
		CHECK(cu.LibraryLoadData(&known[number].library, text, NULL, NULL, 0, NULL, NULL, 0));
	else
		CHECK(cu.ModuleLoadData(&known[number].module, text));
}

static void obtain_all(int number)
{
	if (known[number].library) {
		known[number].count = (CUfunction)obtain_kernel(known[number].library, "count_p2");
		return;
	}
	known[number].count = obtain(known[number].module, "count_p2");
	known[number].spin = obtain(known[number].module, "spin_p1");
	known[number].raise = obtain(known[number].module, "raise_p1");
}

static void launch(int number, int times)
{
	for (int i = 0; i < times; i++)
		CHECK(launch_at(known[number].count, counter, 2, 64, streams[0]));
}

/* In a child of this one, which exits. */
static int in_child(void)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		exit(cu.CtxGetCurrent(&context) ? 1 : 0);
	waitpid(child, &status, 0);
	return WIFEXITED(status);
}

static void begin(void)
{
	uint64_t zero = 0;

	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	streams[0] = make_stream(1);
	streams[1] = make_stream(1);
	counter = allocate(sizeof(uint64_t));
	flag = allocate(sizeof(uint64_t));
	CHECK(cu.MemcpyHtoD_v2(flag, &zero, sizeof(zero)));
}

static void obey(const char *word, int number, int times)
{
	if (strcmp(word, "load") == 0) {
		load_numbered(number, false);
	} else if (strcmp(word, "library") == 0) {
		load_numbered(number, true);
	} else if (strcmp(word, "obtain") == 0) {
		obtain_all(number);
	} else if (strcmp(word, "launch") == 0) {
		launch(number, times);
		CHECK(cu.StreamSynchronize(streams[0]));
	} else if (strcmp(word, "enqueue") == 0) {
		launch(number, times);
	} else if (strcmp(word, "spin") == 0) {
		CHECK(launch_at(known[number].spin, flag, 1, 1, streams[1]));
	} else if (strcmp(word, "raise") == 0) {
		CHECK(launch_at(known[number].raise, flag, 1, 1, streams[0]));
		CHECK(cu.CtxSynchronize());
	} else if (strcmp(word, "shared") == 0) {
		CHECK(cu.FuncSetAttribute(known[number].count, 8, times));
	} else if (strcmp(word, "capture") == 0) {
		CHECK(cu.StreamBeginCapture_v2(streams[0], 0));
	} else if (strcmp(word, "captured") == 0) {
		CHECK(cu.StreamEndCapture(streams[0], &graph));
		CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	} else if (strcmp(word, "instantiate") == 0) {
		CHECK(cu.GraphExecDestroy(exec));
		CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	} else if (strcmp(word, "replay") == 0) {
		for (int i = 0; i < times; i++)
			CHECK(cu.GraphLaunch(exec, streams[0]));
		CHECK(cu.StreamSynchronize(streams[0]));
	} else if (strcmp(word, "unload") == 0) {
		if (known[number].library)
			CHECK(cu.LibraryUnload(known[number].library));
		else
			CHECK(cu.ModuleUnload(known[number].module));
		memset(&known[number], 0, sizeof(known[number]));
	} else if (strcmp(word, "reset") == 0) {
		CHECK(cu.DevicePrimaryCtxReset_v2(0));
		memset(known, 0, sizeof(known));
		begin();
	} else if (strcmp(word, "fork") == 0) {
		printf("%d ", in_child());
	} else {
		printf("what? ");
	}
}

int main(void)
{
	char line[256], word[64];
	int number, times;

	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	find_launches();
	read_image();
	begin();
	while (fgets(line, sizeof(line), stdin)) {
		number = times = 0;
		if (sscanf(line, "%63s %d %d", word, &number, &times) < 1 || number < 0 || number >= MOST)
			return 8;
		obey(word, number, times);
		/* Not while kernels may be running that wait for the next line, or in a capture. */
		if (strcmp(word, "launch") == 0 || strcmp(word, "replay") == 0 || strcmp(word, "raise") == 0)
			printf("%llu\n", (unsigned long long)value_at(counter));
		else
			printf("done\n");
		fflush(stdout);
	}
	return 0;
}
