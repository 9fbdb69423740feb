#include "settings.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct ed_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The value of a hexadecimal digit, -1 for another character. */
static int hexadecimal(char digit)
{
	return digit >= '0' && digit <= '9'   ? digit - '0'
	       : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
	       : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
					      : -1;
}

/* Copy the text [from, end) to a buffer of size bytes, with %XX decoded; what does not fit is cut off. */
static void copy_value(char *to, size_t size, const char *from, const char *end)
{
	size_t used = 0;

	while (from < end && used < size - 1) {
		if (*from == '%' && end - from > 2 && hexadecimal(from[1]) >= 0 && hexadecimal(from[2]) >= 0) {
			to[used++] = (char)(hexadecimal(from[1]) << 4 | hexadecimal(from[2]));
			from += 3;
		} else {
			to[used++] = *from++;
		}
	}
	to[used] = 0;
}

/*
 * Set the setting of a name (length bytes) to the value in [value, end). Each TEXT and NUMBER line is one setting; an
 * unknown name is said on stderr.
 */
static void set_setting(const char *key, size_t length, const char *value, const char *end)
{
	char number[32];

	copy_value(number, sizeof(number), value, end);
#define TEXT(name)                                                                                                     \
	if (length == sizeof(#name) - 1 && !memcmp(key, #name, length)) {                                              \
		copy_value(settings.name, sizeof(settings.name), value, end);                                          \
		return;                                                                                                \
	}
#define NUMBER(name, type)                                                                                             \
	if (length == sizeof(#name) - 1 && !memcmp(key, #name, length)) {                                              \
		settings.name = (type)strtoull(number, NULL, 0);                                                       \
		return;                                                                                                \
	}
	TEXT(python)
	TEXT(root)
	TEXT(count)
	TEXT(fail)
	TEXT(seed)
	NUMBER(steps, uint64_t)
	NUMBER(memory, uint64_t)
	NUMBER(host_memory, uint64_t)
	NUMBER(delay, uint32_t)
	NUMBER(strict, bool)
	ed_say("NEUTRINO_EMBEDDED: unknown key %.*s", (int)length, key);
}

/*
 * Set the root, the folder of the package neutrino, from this library's path, ROOT/neutrino/emulator/lib/libcuda.so.1.
 */
static void default_root(void)
{
	Dl_info info;

	if (!dladdr((void *)default_root, &info) || !info.dli_fname)
		return;
	snprintf(settings.root, sizeof(settings.root), "%s", info.dli_fname);
	for (int level = 0; level < 4; level++) {
		char *slash = strrchr(settings.root, '/');
		if (!slash) {
			settings.root[0] = 0;
			return;
		}
		*slash = 0;
	}
}

/* Read NEUTRINO_EMBEDDED, pairs key=value separated by semicolons, over the defaults. Once. */
static void read_settings(void)
{
	const char *text = getenv("NEUTRINO_EMBEDDED");

	settings.memory = UINT64_C(256) << 20;
	settings.host_memory = UINT64_C(256) << 20;
	snprintf(settings.python, sizeof(settings.python), "python3");
	default_root();
	while (text && *text) {
		const char *end = strchrnul(text, ';');
		const char *equals = memchr(text, '=', (size_t)(end - text));
		if (equals)
			set_setting(text, (size_t)(equals - text), equals + 1, end);
		else if (end != text)
			ed_say("NEUTRINO_EMBEDDED: no value for %.*s", (int)(end - text), text);
		text = *end ? end + 1 : end;
	}
	/* From 64 MiB to 64 GiB, in whole pages of 2 MiB. */
	uint64_t *sizes[] = {&settings.memory, &settings.host_memory};
	for (int i = 0; i < 2; i++) {
		if (*sizes[i] < UINT64_C(64) << 20)
			*sizes[i] = UINT64_C(64) << 20;
		if (*sizes[i] > UINT64_C(64) << 30)
			*sizes[i] = UINT64_C(64) << 30;
		*sizes[i] &= ~UINT64_C(0x1fffff);
	}
}

/* The settings of the emulated device, read from NEUTRINO_EMBEDDED at the first call. */
const struct ed_settings *ed_settings(void)
{
	pthread_once(&once, read_settings);
	return &settings;
}

/* Write a line to stderr, formatted as by printf, with the device's name in front and the newline added. */
void ed_say(const char *format, ...)
{
	char line[4096] = "neutrino: embedded device: ";
	size_t used = strlen(line);
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
	va_end(arguments);
	used += length < 0 ? 0 : (size_t)length < sizeof(line) - used - 1 ? (size_t)length : sizeof(line) - used - 2;
	line[used++] = '\n';
	/* One write, so that lines of several threads stay whole. SIGPIPE is blocked: it must not end the program. */
	sigset_t pipe_signal, before, pending;
	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
	if (write(STDERR_FILENO, line, used) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe_signal, NULL, &(struct timespec){0, 0});
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t ed_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
