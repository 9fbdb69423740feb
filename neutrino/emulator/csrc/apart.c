#include "apart.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#define STACK_SIZE ((size_t)8 << 20)

static bool is_apart;

/* Main function of a thread that only has to have been started: does nothing. */
static void *end_at_once(void *unused)
{
	return unused;
}

/*
 * Runs when this library is loaded: looks whether it is in another namespace than the program, and then has the program's
 * libc start a thread, so that it takes locks from now on.
 */
__attribute__((constructor)) static void look(void)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	struct link_map *map = NULL;
	Lmid_t id = LM_ID_BASE;
	pthread_attr_t attributes;
	pthread_t thread;
	Dl_info info;

	if (!dladdr1(&is_apart, &info, (void **)&map, RTLD_DL_LINKMAP) || !map || dlinfo(map, RTLD_DI_LMID, &id) != 0 ||
	    id == LM_ID_BASE)
		return;
	is_apart = true;
	void *libc = dlmopen(LM_ID_BASE, "libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	const char *single = libc ? dlsym(libc, "__libc_single_threaded") : NULL;
	*(void **)&create = libc ? dlsym(libc, "pthread_create") : NULL;
	/* One before glibc 2.34 has no pthread_create of its own, and needs none. */
	if (!create || (single && !*single))
		return;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	create(&thread, &attributes, end_at_once, NULL);
	pthread_attr_destroy(&attributes);
}

/*
 * Give a thread that will never end a stack that no other thread has had, if this library is in another namespace than
 * the program: sets it in the attributes. False without memory.
 */
bool ed_apart_set_stack(pthread_attr_t *attributes)
{
	if (!is_apart)
		return true;
	void *memory = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK,
			    -1, 0);
	if (memory == MAP_FAILED)
		return false;
	pthread_attr_setstack(attributes, memory, STACK_SIZE);
	return true;
}
