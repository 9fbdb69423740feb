#include "late.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "process.h"
#include "slots.h"
#include "trace.h"

#define MOST_HOOKS 8

/* By the exported name copies of this library know that one records. It is the hook's too, so it is not used here. */
static int is_active;
extern int neutrino_hook __attribute__((alias("is_active"), visibility("default")));

static bool came_after; /* the driver */
static pid_t process;

bool nt_late_is_active(void)
{
	return is_active;
}

bool nt_late_came_after(void)
{
	return came_after;
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
	    (strncmp(name, NT_DRIVER_NAME, strlen(NT_DRIVER_NAME)) != 0 && !strstr(name, "neutrino")))
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
		found = hook && hook != &is_active && *hook;
		if (handle)
			dlclose(handle);
	}
	free(paths);
	return found;
}

static void at_end(void)
{
	if (getpid() == process)
		nt_process_missed();
}

/* Before any code of the patched library that brought the stub. */
__attribute__((constructor)) static void start(void)
{
	/* As the stub, which may be older. */
	const char *folder = secure_getenv("NEUTRINO_TRACEDIR");

	if (!folder || !*folder)
		return;
	if (another_hook_is_there())
		return;
	came_after = nt_driver_load();
	nt_trace_parent(folder);
	process = getpid();
	is_active = 1;
	/* Last: from here on other threads may come. */
	is_active = nt_slots_start();
	if (is_active)
		atexit(at_end);
}
