/*
 * The dynamic loader's auditing module (rtld-audit(7)), which LD_AUDIT loads into COMMAND and its children: whoever asks
 * for the driver, by whatever name, gets the hook.
 *
 * It runs in processes that have nothing to do with a GPU. So it needs no library, not even libc, of which the loader
 * would otherwise load a second copy into each process; it has no relocations and nothing to initialize; and it exports
 * five functions, which only the dynamic loader sees. It does nothing until somebody asks for the driver, but for room that
 * some programs need to start (audit_start.c), and for NVRTC and nvJitLink (audit_passing.c).
 */
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_functions.h"
#include "base/front.h"
#include "front/audit_calls.h"
#include "front/audit_object.h"
#include "front/audit_passing.h"
#include "front/audit_start.h"

#define EXPORT __attribute__((visibility("default")))

/* The loader calls them. Declared here, as link.h declares la_version alone under that name. */
EXPORT unsigned la_version(unsigned version);
EXPORT unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie);
EXPORT void la_activity(uintptr_t *cookie, unsigned flag);
EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);
EXPORT uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
			      const char *name);

static const volatile char hook[] = NT_FRONT_HOOK;
static const volatile char driver[] = NT_FRONT_DRIVER;

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
	const char *base = nt_audit_object_base(name);

	return nt_audit_object_is_same(base, NT_DRIVER_NAME) || nt_audit_object_is_same(base, NT_DRIVER_SONAME);
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
 * considered. Returns which of its bindings of names to others la_symbind64 is told of: none, but for NVRTC and nvJitLink.
 */
unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
	*cookie = (uintptr_t)map;
	if (namespace == LM_ID_BASE)
		nt_audit_start_object(map);
	return nt_audit_passing_flags(map);
}

/*
 * Called by the dynamic loader when it has found a name for a program or library that uses it, by a call or by dlsym, in
 * an object for which la_objopen has said so: returns the address that it gets. from, to: the cookies of both.
 */
uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
		       const char *name)
{
	(void)index, (void)from, (void)flags;
	return nt_audit_passing_bound((const struct link_map *)*to, name, symbol->st_value);
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

	/* The name as it was asked for; other calls are for the paths that the loader tries for it. */
	if (flag != LA_SER_ORIG || !name)
		return ret;
	/* The hook itself asks, when it is there: it is found under its own path. */
	if (nt_audit_object_is_same(name, NT_FRONT_PASSING)) {
		nt_audit_passing_starts((const struct link_map *)*cookie);
		return (char *)(uintptr_t)hook;
	}
	bool is_question = nt_audit_object_begins(name, NT_FRONT_QUESTION);
	if (!is_question && (!is_driver(name) || nt_audit_object_begins(name, NT_FRONT_BYPASS)))
		return ret;
	/* Another user's process may not read the hook, and in a container one of the files may be missing. */
	if (!is_readable(hook) || !is_readable(driver))
		return ret;
	return is_question ? ret + sizeof(NT_FRONT_QUESTION) - 1 : (char *)(uintptr_t)hook;
}
