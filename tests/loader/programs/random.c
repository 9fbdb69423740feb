/*
 * A program of random calls: `random SEED THREADS CALLS`. The same seed makes the same calls, and each thread
 * has streams, modules, graphs and counters of its own, so what the driver answers and what the counters hold depend
 * on nothing else: with and without the hook the output must be the same.
 *
 * Even threads share the primary context, odd ones make contexts of their own, and destroy them. Several threads capture
 * in their own threads' modes only, and leave the legacy stream alone: those concern the other threads.
 */
#include <stdarg.h>
#include <sys/wait.h>

#include "program.h"

#define STREAMS 4
#define MODULES 3
#define THREADS 8

/* Something kernels can be obtained from. */
struct source {
	CUmodule module;
	CUlibrary library;
	CUfunction two, six;
};

struct thread {
	uint64_t random;
	intptr_t number;
	bool alone, owns_context;
	unsigned generation;
	CUcontext context;
	CUstream streams[STREAMS];
	CUevent events[2];
	struct source sources[MODULES];
	CUdeviceptr counter;
	uint64_t start, expected; /* what the counter began with, and holds once all streams are done */
	CUstream captured;	  /* where a capture began */
	uint64_t in_graph;	  /* what a launch of the captured graph will add */
	void *exec;
	uint64_t exec_adds;
	char *text;
	size_t used, room;
};

static struct thread threads[THREADS];
static CUcontext primary;
static unsigned calls;

static uint64_t draw(struct thread *t, uint64_t below)
{
	uint64_t z = t->random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % below;
}

/* Threads keep what they say until all are done. */
static void __attribute__((format(printf, 2, 3))) say(struct thread *t, const char *format, ...)
{
	va_list arguments;

	if (t->room - t->used < 512) {
		t->room = 2 * t->room + 4096;
		t->text = realloc(t->text, t->room);
	}
	va_start(arguments, format);
	t->used += (size_t)vsnprintf(t->text + t->used, t->room - t->used, format, arguments);
	va_end(arguments);
}

static void fill_source(struct thread *t, struct source *source)
{
	bool as_library = draw(t, 2);

	*source = (struct source){0};
	if (as_library) {
		source->library = load_library();
		source->two = obtain_kernel(source->library, "count_p2");
		source->six = obtain_kernel(source->library, "count_p6");
		if (draw(t, 3) == 0)
			CHECK(cu.KernelGetFunction(&source->two, source->two));
	} else {
		source->module = load();
		source->two = obtain(source->module, "count_p2");
		source->six = obtain(source->module, "count_p6");
	}
}

static void empty_source(struct source *source)
{
	if (source->library)
		CHECK(cu.LibraryUnload(source->library));
	else
		CHECK(cu.ModuleUnload(source->module));
}

/* A counter begins with a number of its own, so that no two tickets of the whole process are the same. */
static void enter(struct thread *t)
{
	t->start = t->expected = (uint64_t)(t->number + 1) << 48 | (uint64_t)t->generation++ << 32;
	CHECK(cu.MemAlloc_v2(&t->counter, 8));
	CHECK(cu.MemcpyHtoD_v2(t->counter, &t->start, 8));
	for (int i = 0; i < STREAMS; i++)
		t->streams[i] = make_stream(t->alone && i == 0 ? 0 : CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 2; i++)
		CHECK(cu.EventCreate(&t->events[i], CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < MODULES; i++)
		fill_source(t, &t->sources[i]);
}

static void finish_streams(struct thread *t)
{
	for (int i = 0; i < STREAMS; i++)
		CHECK(cu.StreamSynchronize(t->streams[i]));
	CHECK(cu.StreamSynchronize(CU_STREAM_PER_THREAD));
	if (t->alone)
		CHECK(cu.StreamSynchronize(NULL));
}

static void drop_exec(struct thread *t)
{
	if (t->exec)
		CHECK(cu.GraphExecDestroy(t->exec));
	t->exec = NULL;
}

static void end_capture(struct thread *t)
{
	void *graph = NULL;

	CUresult result = cu.StreamEndCapture(t->captured, &graph);
	t->captured = NULL;
	say(t, "end capture: %d %s\n", result, graph ? "graph" : "-");
	if (!graph)
		return;
	drop_exec(t);
	t->exec_adds = t->in_graph;
	CHECK(cu.GraphInstantiateWithFlags(&t->exec, graph, 0));
	CHECK(cu.GraphDestroy(graph));
}

static void check_counter(struct thread *t)
{
	if (t->captured)
		end_capture(t);
	finish_streams(t);
	uint64_t value = value_at(t->counter);
	say(t, "counted %llu\n", (unsigned long long)(value - t->start));
	if (value != t->expected)
		say(t, "but %llu was expected\n", (unsigned long long)(t->expected - t->start));
}

static void leave(struct thread *t)
{
	check_counter(t);
	drop_exec(t);
	for (int i = 0; i < MODULES; i++)
		empty_source(&t->sources[i]);
	for (int i = 0; i < STREAMS; i++)
		CHECK(cu.StreamDestroy_v2(t->streams[i]));
	for (int i = 0; i < 2; i++)
		CHECK(cu.EventDestroy_v2(t->events[i]));
	CHECK(cu.MemFree_v2(t->counter));
}

static CUresult launch_six(const struct thread *t, CUfunction six, unsigned blocks, unsigned size, CUstream stream,
			   bool packed_form)
{
	struct {
		CUdeviceptr counter;
		uint8_t byte, hole[7];
		uint64_t structure[3];
		uint16_t half, hole2;
		float single;
		uint64_t sum;
	} packed = {t->counter, 3, {0}, {5, 0, 7}, 11, 0, 13, 3 + 5 + 7 + 11 + 13};
	size_t length = sizeof(packed);
	void *each[] = {&packed.counter, &packed.byte, packed.structure, &packed.half, &packed.single, &packed.sum};
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &length,
			 CU_LAUNCH_PARAM_END};
	CUlaunchConfig config = {blocks, 1, 1, size, 1, 1, 0, stream, NULL, 0};

	_Static_assert(sizeof(packed) == 56, "as the kernel's parameters lie");
	return packed_form ? cu.LaunchKernelEx(&config, six, NULL, extra)
			   : cu.LaunchKernel(six, blocks, 1, 1, size, 1, 1, 0, stream, each, NULL);
}

static CUstream any_stream(struct thread *t)
{
	uint64_t which = draw(t, STREAMS + 2);

	if (which < STREAMS)
		return t->streams[which];
	return which == STREAMS || !t->alone ? CU_STREAM_PER_THREAD : NULL;
}

static void launch(struct thread *t)
{
	/* Graphs keep the first source's kernels: it stays until the context is left. */
	const struct source *source = &t->sources[t->captured ? 0 : draw(t, MODULES)];
	CUstream stream = any_stream(t);
	unsigned blocks = 1 + (unsigned)draw(t, 4), size = 1 + (unsigned)draw(t, 70), form = (unsigned)draw(t, 4);
	int status = 0;

	if (draw(t, 16) == 0)
		size = 0;
	cu.StreamIsCapturing(stream, &status);
	CUresult result = form < 2 ? launch_at(source->two, t->counter, blocks, size, stream)
				   : launch_six(t, source->six, blocks, size, stream, form == 2);
	say(t, "launch: %d\n", result);
	if (result == 0)
		*(status ? &t->in_graph : &t->expected) += blocks * ((size + 31) / 32);
}

static void change_stream(struct thread *t)
{
	CUstream *stream = &t->streams[draw(t, STREAMS)];
	int status = 0;

	CHECK(cu.StreamIsCapturing(*stream, &status));
	if (status)
		return;
	/* Its work goes on; what it still adds is waited for by an event. */
	unsigned which = (unsigned)draw(t, 2);
	if (t->captured)
		return;
	CHECK(cu.EventRecord(t->events[which], *stream));
	CHECK(cu.StreamDestroy_v2(*stream));
	*stream = make_stream(CU_STREAM_NON_BLOCKING);
	CHECK(cu.StreamWaitEvent(*stream, t->events[which], 0));
	say(t, "stream changed\n");
}

static void change_source(struct thread *t)
{
	struct source *source = &t->sources[1 + draw(t, MODULES - 1)];

	if (t->captured)
		return;
	finish_streams(t);
	empty_source(source);
	fill_source(t, source);
	say(t, "source changed\n");
}

static void begin_capture(struct thread *t)
{
	CUstream stream = t->streams[draw(t, STREAMS)];
	int mode = t->alone ? (int)draw(t, 3) : 1 + (int)draw(t, 2);

	if (t->captured)
		return;
	t->in_graph = 0;
	CUresult result = cu.StreamBeginCapture_v2(stream, mode);
	say(t, "begin capture in mode %d: %d\n", mode, result);
	if (result == 0)
		t->captured = stream;
}

static void order_streams(struct thread *t)
{
	CUevent event = t->events[draw(t, 2)];
	CUstream from = t->streams[draw(t, STREAMS)], to = t->streams[draw(t, STREAMS)];

	CUresult recorded = cu.EventRecord(event, from), waited = cu.StreamWaitEvent(to, event, 0);
	say(t, "event: %d %d\n", recorded, waited);
}

static void take_memory(struct thread *t)
{
	CUdeviceptr memory;

	CUresult result = cu.MemAlloc_v2(&memory, 100 + draw(t, 10000));
	say(t, "memory: %d\n", result);
	if (result == 0)
		say(t, "memory: %d\n", cu.MemFree_v2(memory));
}

static void change_context(struct thread *t)
{
	if (t->captured)
		return;
	if (!t->owns_context) {
		CHECK(cu.CtxSetCurrent(NULL));
		CHECK(cu.CtxSetCurrent(t->context));
		return;
	}
	/* Sometimes with all that is in it. */
	if (draw(t, 2))
		leave(t);
	else
		check_counter(t);
	drop_exec(t);
	CHECK(cu.CtxDestroy_v2(t->context));
	CHECK(cu.CtxCreate_v2(&t->context, 0, 0));
	enter(t);
	say(t, "context changed\n");
}

static void launch_graph(struct thread *t)
{
	CUstream stream = t->streams[draw(t, STREAMS)];
	int status = 0;

	if (!t->exec || t->captured)
		return;
	CHECK(cu.StreamIsCapturing(stream, &status));
	CUresult result = cu.GraphLaunch(t->exec, stream);
	say(t, "graph: %d\n", result);
	if (result == 0)
		t->expected += t->exec_adds;
}

static void wait_for_stream(struct thread *t)
{
	say(t, "wait: %d\n", cu.StreamSynchronize(any_stream(t)));
}

static void have_child(struct thread *t)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(t->number + 20);
	waitpid(child, &status, 0);
	say(t, "child: %d\n", WEXITSTATUS(status));
}

static void look_for(struct thread *t)
{
	CUfunction none;

	if (t->sources[0].module)
		say(t, "look: %d\n", cu.ModuleGetFunction(&none, t->sources[0].module, "no_such_kernel"));
	else
		say(t, "look: %d\n", cu.LibraryGetKernel(&none, t->sources[0].library, "no_such_kernel"));
}

static void *run(void *number)
{
	struct thread *t = &threads[(intptr_t)number];

	if (t->owns_context) {
		CHECK(cu.CtxCreate_v2(&t->context, 0, 0));
	} else {
		t->context = primary;
		CHECK(cu.CtxSetCurrent(primary));
	}
	enter(t);
	for (unsigned i = 0; i < calls; i++) {
		uint64_t which = draw(t, 100);
		if (which < 50)
			launch(t);
		else if (which < 55)
			for (int j = 0; j < 24; j++)
				launch(t);
		else if (which < 60)
			wait_for_stream(t);
		else if (which < 66)
			change_stream(t);
		else if (which < 71)
			change_source(t);
		else if (which < 75)
			begin_capture(t);
		else if (which < 80)
			order_streams(t);
		else if (which < 83)
			take_memory(t);
		else if (which < 85)
			change_context(t);
		else if (which < 88)
			check_counter(t);
		else if (which < 92)
			launch_graph(t);
		else if (which < 93)
			have_child(t);
		else if (which < 95)
			look_for(t);
		else if (which < 97 && t->captured)
			end_capture(t);
		else
			usleep((useconds_t)draw(t, 3000));
	}
	leave(t);
	if (t->owns_context)
		CHECK(cu.CtxDestroy_v2(t->context));
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int count = atoi(argv[2]);
	calls = (unsigned)atoi(argv[3]);
	read_image();
	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&primary, 0));
	for (int i = 0; i < count; i++)
		threads[i] = (struct thread){
			.random = strtoull(argv[1], NULL, 10) * THREADS + (unsigned)i,
			.number = i,
			.alone = count == 1,
			.owns_context = i % 2 == 1,
		};
	run_threads(count, run);
	for (int i = 0; i < count; i++)
		printf("thread %d\n%.*s", i, (int)threads[i].used, threads[i].text);
	return 0;
}
