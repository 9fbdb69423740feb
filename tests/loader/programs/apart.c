/*
 * A program that loads the driver in a namespace of its own, with a libc of its own, and works: `apart`. Its threads have
 * thread-local storage that the dynamic loader allocates, and end; the libcs' later threads must not free that with the
 * wrong one's free. A child that it forks must not wait for threads that it does not have.
 */
#include <sys/single_threaded.h>
#include <sys/wait.h>

#include "program.h"

#define THREADS 4

void __libc_free(void *memory);

static pthread_barrier_t all_there;
static char *own[THREADS]; /* thread-local storage of the first threads */
static int count, freed;

/* What the dynamic loader calls, too, as the program has it. */
void free(void *memory)
{
	for (int i = 0; i < THREADS; i++)
		if (memory && (char *)memory <= own[i] && own[i] < (char *)memory + 64) {
			own[i] = NULL;
			__atomic_add_fetch(&freed, 1, __ATOMIC_RELAXED);
		}
	__libc_free(memory);
}

static void *touch(void *library)
{
	char *storage = dlsym(library, "own");
	int number = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);

	*storage = 1;
	pthread_barrier_wait(&all_there);
	if (number < THREADS)
		own[number] = storage;
	return NULL;
}

/* As many threads at once, which then end, and leave their stacks to others. */
static void come_and_go(void *library)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&all_there, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, touch, library);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void work(void)
{
	CUfunction function = obtain(load(), "count_p2");
	CUdeviceptr counter = allocate(sizeof(uint64_t));

	for (int i = 0; i < 20; i++)
		CHECK(launch_at(function, counter, 2, 96, NULL));
	CHECK(cu.CtxSynchronize());
	printf("%llu\n", (unsigned long long)value_at(counter));
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUmodule module;
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

	if (library)
		come_and_go(library);
	cu.library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	if (!cu.library)
		return 7;
#define FIND(name, parameters) *(void **)&cu.name = dlsym(cu.library, "cu" #name);
	FUNCTIONS(FIND)
	CHECK(cu.Init(0));
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	read_image();
	work();
	printf("single: %d\n", __libc_single_threaded);
	if (library)
		come_and_go(library);
	printf("freed: %d\n", freed);
	work();
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		alarm(60);
		image[strlen(image) - 1]++;
		return cu.ModuleLoadData(&module, image);
	}
	int status;
	waitpid(child, &status, 0);
	printf("child: %d\n", status);
	return 0;
}
