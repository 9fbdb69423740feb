/* Writes that do no harm to the program: no signal reaches it, and stderr is written only while it is the program's. */
#ifndef NEUTRINO_QUIET_WRITE_H
#define NEUTRINO_QUIET_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Write all bytes to fd, in the calling thread; false if that fails. */
bool nt_quiet_write_all(int fd, const void *data, size_t size);

/* The same, at an offset of the file. */
bool nt_quiet_write_all_at(int fd, const void *data, size_t size, uint64_t offset);

/* Have the disk set size bytes aside for an empty file, which gets that size; false if that fails. */
bool nt_quiet_write_allocate(int fd, uint64_t size);

/*
 * Return fd, or if that is 0, 1 or 2 a duplicate with a higher number, and close fd: the program would take such a
 * descriptor for its stdin, stdout or stderr. -1 if that fails.
 */
int nt_quiet_write_above_stdio(int fd);

/* Remember which file stderr is. Until then, and when it is another one later, nt_quiet_write_say is silent. */
void nt_quiet_write_say_start(void);

/* Write a line to stderr, if that does not block. Control characters in it are left out. */
__attribute__((format(printf, 1, 2))) void nt_quiet_write_say(const char *format, ...);

#endif
