/* Scenarios of processes that are asked several questions: sets of probes that change while threads launch. */
#include <sched.h>

#include "host.h"

enum { THREADS = 4, ROUNDS = 60 };

static int running;

/* HOST_KEYS: keys of sets whose twins are in the cache, separated by commas. Numbers of the sets; how many. */
static int bring(uint32_t numbers[8])
{
	uint32_t (*neutrino_set)(const char *, const char *, const char *, const char *);
	const char *keys = getenv("HOST_KEYS");
	int count = 0;

	*(void **)&neutrino_set = dlsym(cu.library, "neutrino_set");
	if (!neutrino_set || !keys)
		return 0;
	numbers[count++] = 1;
	for (; count < 8 && strlen(keys) >= 64; keys += 65) {
		char key[65] = {0};
		memcpy(key, keys, 64);
		numbers[count++] = neutrino_set(key, "", NULL, "others");
		if (keys[64] != ',')
			break;
	}
	return count;
}

/* Change the set; false if a stream is being captured. */
static bool use(uint32_t number)
{
	int (*neutrino_use)(uint32_t);

	*(void **)&neutrino_use = dlsym(cu.library, "neutrino_use");
	int result = neutrino_use(number);
	if (result != 0 && result != 2) {
		printf("neutrino_use: %d\n", result);
		exit(9);
	}
	return result == 0;
}

/* Two launch, of a module and of a library; one replays a graph; one loads and unloads modules. */
static void *work(void *number)
{
	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(1);
	CUkernel kernel = (intptr_t)number == 1 ? obtain_kernel(load_library(), "count_p2") : NULL;
	void *graph = NULL, *exec = NULL;

	if ((intptr_t)number == 2) {
		CHECK(cu.StreamBeginCapture_v2(own, 2));
		for (int i = 0; i < 3; i++)
			CHECK(count(function, (unsigned)i + 1, 64, own));
		CHECK(cu.StreamEndCapture(own, &graph));
		CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
		CHECK(cu.GraphDestroy(graph));
	}
	for (int i = 0; i < ROUNDS; i++) {
		CUmodule loaded = NULL;
		CUfunction launched = function;
		if ((intptr_t)number == 3) {
			CHECK(cu.ModuleLoadData(&loaded, image));
			launched = obtain(loaded, "count_p2");
			CHECK(cu.FuncSetAttribute(launched, 8, 1024));
		}
		if (exec)
			CHECK(cu.GraphLaunch(exec, own));
		else
			CHECK(count(kernel ? (CUfunction)kernel : launched, 2, 64, own));
		if (i % 4 == 0 || loaded)
			CHECK(cu.StreamSynchronize(own));
		if (loaded)
			CHECK(cu.ModuleUnload(loaded));
		sched_yield();
	}
	CHECK(cu.StreamSynchronize(own));
	if (exec)
		CHECK(cu.GraphExecDestroy(exec));
	CHECK(cu.StreamDestroy_v2(own));
	__atomic_sub_fetch(&running, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The set changes while threads launch, until all of them have ended. */
void sets_change(void)
{
	pthread_t threads[THREADS];
	uint32_t numbers[8];
	int sets = bring(numbers), changes = 0;

	running = THREADS;
	for (intptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			exit(9);
	while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
		if (sets && use(numbers[changes % sets]))
			changes++;
		sched_yield();
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	say_counter();
	if (sets && changes < sets)
		printf("only %d changes\n", changes);
}

/*
 * A graph is launched under one set after the other. sets_nodes: the program sets what its nodes run before each change;
 * else it has destroyed the source.
 */
static void replay_sets(bool sets_nodes)
{
	uint32_t numbers[8], unused = 5;
	int sets = bring(numbers);
	void *graph = NULL, *exec = NULL, *nodes[5], *each[] = {&counter, &unused};
	size_t known = 5;

	CHECK(cu.StreamBeginCapture_v2(stream, 2));
	for (int i = 0; i < 5; i++)
		CHECK(count(function, (unsigned)i + 1, 64, stream));
	CHECK(cu.StreamEndCapture(stream, &graph));
	CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	CHECK(cu.GraphGetNodes(graph, nodes, &known));
	if (!sets_nodes)
		CHECK(cu.GraphDestroy(graph));
	for (int i = 0; i < 12; i++) {
		/* Replays of one set are queued when the next one comes. */
		for (int j = 0; j < 3; j++)
			CHECK(cu.GraphLaunch(exec, stream));
		for (unsigned j = 0; sets_nodes && j < 5; j++) {
			struct kernel_node node = {function, {j + 1, 1, 1}, {64, 1, 1}, 0, each, NULL, NULL, NULL};
			TELL(cu.GraphExecKernelNodeSetParams_v2(exec, nodes[j], &node));
		}
		if (sets && !use(numbers[i % sets]))
			exit(9);
	}
	CHECK(cu.StreamSynchronize(stream));
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	CHECK(cu.GraphExecDestroy(exec));
}

void sets_in_graphs(void)
{
	replay_sets(false);
}

void sets_in_set_graphs(void)
{
	replay_sets(true);
}

/* The numbers of a set that is brought twice, and of keys and sets that are none. */
void sets_numbers(void)
{
	uint32_t (*neutrino_set)(const char *, const char *, const char *, const char *);
	int (*neutrino_use)(uint32_t);
	char key[65] = {0}, path[256];

	*(void **)&neutrino_set = dlsym(cu.library, "neutrino_set");
	*(void **)&neutrino_use = dlsym(cu.library, "neutrino_use");
	memcpy(key, getenv("HOST_KEYS"), 64);
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	if (neutrino_set(key + 1, "", NULL, NULL) || neutrino_set("", "", NULL, NULL) || neutrino_set(NULL, "", NULL, NULL) ||
	    neutrino_set(key, path, NULL, NULL) || neutrino_set(key, NULL, NULL, NULL) || neutrino_use(7) != 4 || neutrino_use(0) != 4)
		exit(9);
	uint32_t number = neutrino_set(key, "/none", NULL, NULL);
	printf("%u %u\n", number, neutrino_set(key, "", NULL, NULL));
}
