/*
 * The dynamic loader's auditing module (rtld-audit(7)), which LD_AUDIT loads into COMMAND and its children: whoever asks
 * for the driver, by whatever name, gets the hook.
 *
 * It runs in processes that have nothing to do with a GPU. So it needs no library, not even libc, of which the loader
 * would otherwise load a second copy into each process; it has no relocations and nothing to initialize; and it exports
 * two functions, which only the dynamic loader sees. It does nothing until somebody asks for the driver.
 */
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "base/cuda_functions.h"
#include "base/front.h"

#define EXPORT __attribute__((visibility("default")))

/* The loader calls them. Declared here, as link.h declares la_version alone under that name. */
EXPORT unsigned la_version(unsigned version);
EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

static const volatile char hook[] = NT_FRONT_HOOK;
static const volatile char driver[] = NT_FRONT_DRIVER;

static bool begins_with(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return false;
	return true;
}

static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* open(path, O_RDONLY | O_CLOEXEC) as a system call: there is no libc, and errno is the program's. */
static long open_call(const char *path)
{
#if defined(__x86_64__)
	register long flags __asm__("r10") = 0;
	long ret = SYS_openat;
	__asm__ volatile("syscall"
			 : "+a"(ret)
			 : "D"((long)AT_FDCWD), "S"(path), "d"((long)(O_RDONLY | O_CLOEXEC)), "r"(flags)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_openat;
	register long ret __asm__("x0") = AT_FDCWD;
	register const char *name __asm__("x1") = path;
	register long flags __asm__("x2") = O_RDONLY | O_CLOEXEC;
	register long mode __asm__("x3") = 0;
	__asm__ volatile("svc 0" : "+r"(ret) : "r"(number), "r"(name), "r"(flags), "r"(mode) : "memory");
	return ret;
#else
#error "system calls of this processor are not known"
#endif
}

static void close_call(long descriptor)
{
#if defined(__x86_64__)
	long number = SYS_close;
	__asm__ volatile("syscall" : "+a"(number) : "D"(descriptor) : "rcx", "r11", "memory");
#else
	register long number __asm__("x8") = SYS_close;
	register long first __asm__("x0") = descriptor;
	__asm__ volatile("svc 0" : "+r"(first) : "r"(number) : "memory");
#endif
}

/*
 * Whether a file can be read by this process. It is opened and closed, as the loader itself does next: a filter on system
 * calls that allows a library to be loaded allows this.
 */
static bool is_readable(const volatile char *path)
{
	long descriptor = open_call((const char *)path);

	if (descriptor < 0)
		return false;
	close_call(descriptor);
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

unsigned la_version(unsigned version)
{
	/* la_objsearch is the same in all versions of the interface, and for AArch64 the loader accepts only its own. */
	return version;
}

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
