#include "stub.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "hook.h"
#include "slots.h"
#include "trace.h"

#define SONAME "libneutrino_stub.so"
#define MOST_HOOKS 8

/* By this a copy of this library, or the preloaded hook, knows that another records. */
__attribute__((visibility("default"))) int neutrino_hook;

static bool is_late;
static pid_t process;

bool nt_stub_is_active(void)
{
	return neutrino_hook;
}

bool nt_stub_is_late(void)
{
	return is_late;
}

struct paths {
	char rows[MOST_HOOKS][4096];
	unsigned count;
};

/* Files that may be a hook, by their names: copies of this library, and what stands in front of the driver. */
static int collect(struct dl_phdr_info *object, size_t size, void *argument)
{
	struct paths *paths = argument;
	const char *slash = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
	const char *name = slash ? slash + 1 : object->dlpi_name;

	(void)size;
	if (!name || paths->count == MOST_HOOKS || strlen(object->dlpi_name) >= sizeof(paths->rows[0]) ||
	    (strncmp(name, "libcuda.so", strlen("libcuda.so")) != 0 && !strstr(name, "neutrino")))
		return 0;
	strcpy(paths->rows[paths->count++], object->dlpi_name);
	return 0;
}

static bool another_hook_is_there(void)
{
	struct paths *paths = calloc(1, sizeof(*paths));
	bool found = false;

	if (!paths)
		return true;
	dl_iterate_phdr(collect, paths);
	for (unsigned i = 0; i < paths->count && !found; i++) {
		void *handle = dlopen(paths->rows[i], RTLD_LAZY | RTLD_NOLOAD);
		const int *hook = handle ? dlsym(handle, "neutrino_hook") : NULL;
		found = hook && hook != &neutrino_hook && *hook;
		if (handle)
			dlclose(handle);
	}
	free(paths);
	return found;
}

static void at_end(void)
{
	if (getpid() == process)
		nt_hook_missed();
}

__attribute__((constructor)) static void constructor(void)
{
	/* A program with another user's rights writes no traces where its caller says. */
	const char *folder = secure_getenv("NEUTRINO_TRACEDIR");

	if (!folder || !*folder)
		return;
	if (!another_hook_is_there()) {
		is_late = nt_driver_load();
		nt_trace_parent(folder);
		process = getpid();
		neutrino_hook = 1;
		/* Last: from here on other threads may come. */
		neutrino_hook = nt_slots_start();
		if (neutrino_hook)
			atexit(at_end);
	}
	/* The program's dlopen succeeds: no error of ours may be left. */
	dlerror();
}
