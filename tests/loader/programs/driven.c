/*
 * A program that does what it is told: each line of stdin is `THREAD VERB [NUMBER]` or `THREAD VERB [NUMBER] NAME`, and is answered by a line once it is
 * done. At the end of stdin it prints the counter, and ends.
 */
#include <locale.h>

#include "program.h"
#include "ranges_verbs.h"

enum { THREADS = 3 };

static CUcontext context;
static CUmodule module;
static CUfunction function;
static CUstream stream;
static CUdeviceptr counter;
static void *graph, *exec;

/* A thread, and the line that it is to do; without one, "". */
static struct worker {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	char line[256];
} workers[THREADS];

static CUresult count(CUstream on)
{
	return launch_at(function, counter, 2, 64, on);
}

/* A graph of that many launches. */
static void *captured(int launches)
{
	void *made = NULL;

	CHECK(cu.StreamBeginCapture_v2(stream, 2));
	for (int i = 0; i < launches; i++)
		CHECK(count(stream));
	CHECK(cu.StreamEndCapture(stream, &made));
	return made;
}

static void launch(int times)
{
	for (int i = 0; i < times; i++)
		CHECK(count(stream));
}

static void make_graph(int launches)
{
	graph = captured(launches);
	CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
}

static void replay(int times)
{
	for (int i = 0; i < times; i++)
		CHECK(cu.GraphLaunch(exec, stream));
}

static void update(int launches)
{
	uint64_t info[4];

	CHECK(cu.GraphExecUpdate_v2(exec, captured(launches), info));
}

/* As often as that: set each node of the graph to what it runs already. */
static void set_nodes(int times)
{
	uint32_t unused = 5;
	void *each[] = {&counter, &unused}, *nodes[8];
	struct kernel_node node = {function, {2, 1, 1}, {64, 1, 1}, 0, each, NULL, NULL, NULL};
	size_t known = 8;

	CHECK(cu.GraphGetNodes(graph, nodes, &known));
	for (size_t i = 0; i < known * (size_t)times; i++)
		CHECK(cu.GraphExecKernelNodeSetParams_v2(exec, nodes[i % known], &node));
}

static void begin_capture(int unused)
{
	(void)unused;
	CHECK(cu.StreamBeginCapture_v2(stream, 2));
}

static void end_capture(int unused)
{
	(void)unused;
	CHECK(cu.StreamEndCapture(stream, &graph));
	CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
}

static void synchronize(int unused)
{
	(void)unused;
	CHECK(cu.CtxSynchronize());
}

/* As neutrino.trace() does. */
static void record(int is_on)
{
	void (*switched)(int) = NULL;

	*(void **)&switched = dlsym(cu.library, "neutrino_record");
	switched(is_on);
}

static const struct {
	const char *name;
	void (*run)(int number);
} verbs[] = {
	{"launch", launch},
	{"graph", make_graph},
	{"replay", replay},
	{"update", update},
	{"set-nodes", set_nodes},
	{"begin-capture", begin_capture},
	{"end-capture", end_capture},
	{"synchronize", synchronize},
	{"record", record},
};

static void run(const char *line)
{
	char verb[32] = "", argument[200] = "";

	sscanf(line, "%31s %199[^\n]", verb, argument);
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		if (!strcmp(verbs[i].name, verb)) {
			verbs[i].run(atoi(argument));
			return;
		}
	if (range_verb(verb, argument))
		return;
	printf("no verb %s\n", verb);
	exit(4);
}

static void *work(void *number)
{
	struct worker *worker = &workers[(intptr_t)number];

	CHECK(cu.CtxSetCurrent(context));
	pthread_mutex_lock(&worker->mutex);
	for (;;) {
		while (!worker->line[0])
			pthread_cond_wait(&worker->changed, &worker->mutex);
		if (!strcmp(worker->line, "end"))
			break;
		run(worker->line);
		worker->line[0] = 0;
		pthread_cond_broadcast(&worker->changed);
	}
	worker->line[0] = 0;
	pthread_cond_broadcast(&worker->changed);
	pthread_mutex_unlock(&worker->mutex);
	return NULL;
}

/* Have a thread do a line, and wait for it. */
static void tell(struct worker *worker, const char *line)
{
	pthread_mutex_lock(&worker->mutex);
	snprintf(worker->line, sizeof(worker->line), "%s", line);
	pthread_cond_broadcast(&worker->changed);
	while (worker->line[0])
		pthread_cond_wait(&worker->changed, &worker->mutex);
	pthread_mutex_unlock(&worker->mutex);
}

int main(void)
{
	char line[256], rest[240];
	pthread_t threads[THREADS];
	bool has_ended[THREADS] = {false};
	int number;

	setlocale(LC_CTYPE, "C.UTF-8");
	read_image();
	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	counter = allocate(8);
	if (!getenv("DRIVEN_LATE")) {
		module = load();
		function = obtain(module, "count_p2");
	}
	stream = make_stream(1);
	for (intptr_t i = 0; i < THREADS; i++) {
		pthread_mutex_init(&workers[i].mutex, NULL);
		pthread_cond_init(&workers[i].changed, NULL);
		pthread_create(&threads[i], NULL, work, (void *)i);
	}
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%d %239[^\n]", &number, rest) != 2 || number < 0 || number >= THREADS || has_ended[number])
			return 3;
		tell(&workers[number], rest);
		if (!strcmp(rest, "end")) {
			has_ended[number] = true;
			pthread_join(threads[number], NULL);
		}
		printf("done\n");
		fflush(stdout);
	}
	CHECK(cu.CtxSynchronize());
	printf("%llu\n", (unsigned long long)value_at(counter));
	return 0;
}
