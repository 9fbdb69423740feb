#include "base/apart.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

#define LEAST_STACK (UINT64_C(256) << 10)

/* A stack of ours, and of one thread after the other. */
struct nt_apart_stack {
	struct nt_apart_stack *next;
	void *memory;
	size_t size;
	pthread_t thread; /* the last one that had it, and has_thread */
	bool has_thread;
	pid_t process; /* that has these threads */
};

typedef int create_thread(pthread_t *ret, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
typedef int register_handlers(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

static bool is_apart;
static register_handlers *register_at_fork; /* the program's libc's */
static struct nt_apart_stack *free_stacks;

/* Main function of a thread that only has to have been started: does nothing. */
static void *end_at_once(void *unused)
{
	return unused;
}

/*
 * Have the program's libc (handle) take locks from now on: it starts a thread, which ends at once. One before glibc 2.34
 * has no pthread_create, and needs none: it looks whether the thread itself has started one, or was started as one.
 */
static void end_single_thread(void *libc)
{
	const char *single = dlsym(libc, "__libc_single_threaded");
	create_thread *create;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	*(void **)&create = dlsym(libc, "pthread_create");
	if (!create || (single && !*single))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	create(&thread, &attributes, end_at_once, NULL);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * Runs before the other constructors of this library, when the dynamic loader's lock is held, which may not be waited
 * for later: looks which namespace this is, and for the program's libc if it is another one.
 */
__attribute__((constructor(101))) static void look(void)
{
	struct link_map *map = NULL;
	Lmid_t id = LM_ID_BASE;
	Dl_info info;

	if (!dladdr1(&is_apart, &info, (void **)&map, RTLD_DL_LINKMAP) || !map || dlinfo(map, RTLD_DI_LMID, &id) != 0 ||
	    id == LM_ID_BASE)
		return;
	is_apart = true;
	void *libc = dlmopen(LM_ID_BASE, "libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	if (!libc)
		return;
	*(void **)&register_at_fork = dlsym(libc, "__register_atfork");
	end_single_thread(libc);
}

/*
 * Whether this library is in another namespace (list of libraries) than the program, with a libc of its own, as dlmopen
 * loads it.
 */
bool nt_apart_is(void)
{
	return is_apart;
}

/*
 * Have fork call in_child in the child process, whichever libc's fork it is where there are two. False if it cannot be
 * registered.
 */
bool nt_apart_at_fork(void (*in_child)(void))
{
	if (pthread_atfork(NULL, NULL, in_child) != 0)
		return false;
	/* Of no library: this one is never unloaded. */
	return !is_apart || (register_at_fork && register_at_fork(NULL, NULL, in_child, NULL) == 0);
}

/* Put a stack, whose thread ends or was not started, into the list of those to be used again. Lock-free. */
void nt_apart_stack_give(struct nt_apart_stack *stack)
{
	stack->next = __atomic_load_n(&free_stacks, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&free_stacks, &stack->next, stack, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/*
 * Take a stack whose thread is gone from the list, in which a thread may be that has not quite ended; NULL if there is
 * none. Lock-free, so that a child after fork may call it.
 */
static struct nt_apart_stack *take_free(void)
{
	struct nt_apart_stack *left = __atomic_exchange_n(&free_stacks, NULL, __ATOMIC_ACQUIRE), *taken = NULL;

	while (left) {
		struct nt_apart_stack *stack = left;
		left = stack->next;
		/* A thread of the parent process cannot be joined: its stack is left as it is. */
		if (stack->process != getpid())
			continue;
		if (!taken && (!stack->has_thread || pthread_tryjoin_np(stack->thread, NULL) == 0))
			taken = stack;
		else
			nt_apart_stack_give(stack);
	}
	return taken;
}

/* Map a new stack of so many bytes, with a page below it that faults; NULL without memory. */
static struct nt_apart_stack *map_stack(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct nt_apart_stack *stack = nt_memory_alloc(sizeof(*stack));

	if (!stack)
		return NULL;
	size = (size + page - 1) / page * page;
	char *memory = mmap(NULL, page + size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (memory == MAP_FAILED) {
		nt_memory_free(stack);
		return NULL;
	}
	mprotect(memory, page, PROT_NONE);
	*stack = (struct nt_apart_stack){.memory = memory + page, .size = size};
	return stack;
}

/*
 * Get a stack of ours for a thread, and set it in the attributes: a new one, or one whose thread has ended. NULL without
 * memory. The thread can be joined: attributes must not say that it is detached.
 */
struct nt_apart_stack *nt_apart_stack_take(pthread_attr_t *attributes)
{
	size_t size = 0;
	struct nt_apart_stack *stack = take_free();

	pthread_attr_getstacksize(attributes, &size);
	if (!stack)
		stack = map_stack(size > LEAST_STACK ? size : LEAST_STACK);
	if (!stack)
		return NULL;
	stack->has_thread = false;
	stack->process = getpid();
	pthread_attr_setstack(attributes, stack->memory, stack->size);
	return stack;
}

/* The calling thread, which has this stack, ends: what it calls last. */
void nt_apart_stack_end(struct nt_apart_stack *stack)
{
	stack->thread = pthread_self();
	stack->has_thread = true;
	nt_apart_stack_give(stack);
}
