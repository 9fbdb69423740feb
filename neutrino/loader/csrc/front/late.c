#include "front/late.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/driver.h"
#include "base/front.h"
#include "base/memory.h"
#include "front/hook.h"
#include "front/process.h"
#include "front/slots.h"
#include "trace/trace.h"

#define MOST_HOOKS 8

static pid_t process;

/* For collect: the result. */
struct paths {
	char rows[MOST_HOOKS][4096];
	unsigned count;
};

/*
 * Callback of dl_iterate_phdr: collect the paths of objects that may be a hook (Neutrino's library in the process), by
 * their names: copies of this library, or a library under the driver's name.
 */
static int collect_paths(struct dl_phdr_info *object, size_t size, void *argument)
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

/*
 * Whether the auditing module is in the process, so that the program gets the ordinary hook (Neutrino's library in the
 * process) when it asks for the driver. It is asked by looking this library up under a name that only the module
 * understands.
 */
static bool is_audited(void)
{
	char name[sizeof(NT_FRONT_QUESTION) + 4096] = NT_FRONT_QUESTION;
	Dl_info info;

	if (!dladdr(&nt_late_active, &info) || !info.dli_fname || strlen(info.dli_fname) > sizeof(name) - sizeof(NT_FRONT_QUESTION))
		return false;
	strcat(name, info.dli_fname);
	void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
	if (handle)
		dlclose(handle);
	return handle;
}

/*
 * Whether another hook (Neutrino's library in the process), or another copy of this library, records in this process.
 * True also if there is no memory to find out.
 */
static bool has_other_hook(void)
{
	struct paths *paths = nt_memory_alloc_zeroed(1, sizeof(*paths));
	bool ret = false;

	if (!paths)
		return true;
	dl_iterate_phdr(collect_paths, paths);
	for (unsigned i = 0; i < paths->count && !ret; i++) {
		void *handle = dlopen(paths->rows[i], RTLD_LAZY | RTLD_NOLOAD);
		const int *hook = handle ? dlsym(handle, "neutrino_hook") : NULL;
		ret = hook && hook != &nt_late_active && *hook;
		if (handle)
			dlclose(handle);
	}
	nt_memory_free(paths);
	return ret;
}

/* At the program's normal end: record what was missed. Does nothing in a child that fork has made. */
static void at_end(void)
{
	if (getpid() == process)
		nt_process_end_missed();
}

/*
 * Runs when this library (the hook for processes that run already) is loaded, before any code of the patched library
 * (neutrino-patch has added probes to it) that has it loaded: decides whether it records in this process, and puts
 * itself in front of the driver.
 */
__attribute__((constructor)) static void start(void)
{
	/* The stub has checked the same, but it may be of an older version. */
	const char *folder = secure_getenv("NEUTRINO_TRACEDIR");

	if (!folder || !*folder)
		return;
	/* A process that install() has put the hook into has started this one, which is not probed. */
	const char *only = secure_getenv("NEUTRINO_PID");
	if (only && atol(only) != getpid())
		return;
	/* Also if the hook is not loaded yet: it will be, when the program asks for the driver. */
	if (is_audited() || has_other_hook())
		return;
	nt_late_came = nt_hook_load_driver();
	nt_trace_parent(folder);
	process = getpid();
	nt_process_prepare_end();
	/* Set before nt_slots_start, since other threads may call the hook as soon as that redirects slots. */
	nt_late_active = 1;
	nt_late_active = nt_slots_start();
	if (nt_late_active)
		atexit(at_end);
}
