/*
 * The dynamic loader's auditing module (rtld-audit(7)), which LD_AUDIT loads into COMMAND and its children: whoever asks
 * for the driver, by whatever name, gets the hook.
 *
 * It runs in processes that have nothing to do with a GPU. So it needs no library, not even libc, of which the loader
 * would otherwise load a second copy into each process; it has no relocations and nothing to initialize; and it exports
 * four functions, which only the dynamic loader sees. It does nothing until somebody asks for the driver, but for room that
 * some programs need to start (audit_start.c).
 */
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_functions.h"
#include "base/front.h"
#include "front/audit_calls.h"
#include "front/audit_start.h"

#define EXPORT __attribute__((visibility("default")))

/* The loader calls them. Declared here, as link.h declares la_version alone under that name. */
EXPORT unsigned la_version(unsigned version);
EXPORT unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie);
EXPORT void la_activity(uintptr_t *cookie, unsigned flag);
EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

static const volatile char hook[] = NT_FRONT_HOOK;
static const volatile char driver[] = NT_FRONT_DRIVER;

/* Whether a text begins with a prefix. This module has no libc. */
static bool begins_with(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return false;
	return true;
}

/* Whether two texts are equal. This module has no libc. */
static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/*
 * Whether a file can be read by this process. It is opened and closed, as the loader itself does next: a filter on system
 * calls that allows a library to be loaded allows this.
 */
static bool is_readable(const volatile char *path)
{
	/* Not by open, which there is no libc for; and errno is the program's. */
	long descriptor = nt_audit_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);

	if (descriptor < 0)
		return false;
	nt_audit_call(SYS_close, descriptor, 0, 0, 0);
	return true;
}

/*
 * Whether a name asks for the driver, with or without a folder. Only by the names that programs use: WSL's driver loads
 * another part of itself, which is called libcuda.so.1.1.
 */
static bool is_driver(const char *name)
{
	const char *base = name;

	for (const char *end = name; *end; end++)
		if (*end == '/')
			base = end + 1;
	return is_same(base, NT_DRIVER_NAME) || is_same(base, NT_DRIVER_SONAME);
}

/*
 * Called by the dynamic loader first: accepts whatever version of the auditing interface it has, since la_objsearch is
 * the same in all of them (and for AArch64 the loader accepts only its own).
 */
unsigned la_version(unsigned version)
{
	return version;
}

/*
 * Called by the dynamic loader when it has mapped an object (program or library): room for its thread-local storage is
 * considered. Calls between objects are not audited (0).
 */
unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
	(void)cookie;
	if (namespace == LM_ID_BASE)
		nt_audit_start_object(map);
	/* Calls between objects are not audited. */
	return 0;
}

/*
 * Called by the dynamic loader when its list of objects changes: once it is consistent, the start of the process is
 * over.
 */
void la_activity(uintptr_t *cookie, unsigned flag)
{
	(void)cookie;
	if (flag == LA_ACT_CONSISTENT)
		nt_audit_start_end();
}

/*
 * Called by the dynamic loader with each name that it looks for: in place of the GPU driver's it returns the path of
 * our hook (Neutrino's library in the process), which wraps the driver. A name after NT_FRONT_QUESTION is one of our
 * own libraries, which asks in this way whether this module is here.
 */
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
	char *ret = (char *)name;

	(void)cookie;
	/* The name as it was asked for; other calls are for the paths that the loader tries for it. */
	if (flag != LA_SER_ORIG || !name)
		return ret;
	bool is_question = begins_with(name, NT_FRONT_QUESTION);
	if (!is_question && (!is_driver(name) || begins_with(name, NT_FRONT_BYPASS)))
		return ret;
	/* Another user's process may not read the hook, and in a container one of the files may be missing. */
	if (!is_readable(hook) || !is_readable(driver))
		return ret;
	return is_question ? ret + sizeof(NT_FRONT_QUESTION) - 1 : (char *)(uintptr_t)hook;
}
