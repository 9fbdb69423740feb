/*
 * Sets of probes. A process has one from its start on; where NEUTRINO_ASKS is set, the program may bring others and change
 * between them. Each has a number, and twins of its own: an image of the program is an image of the trace for each set,
 * and so are its kernels. registry.c says which functions run whose twins.
 */
#ifndef NEUTRINO_SETS_H
#define NEUTRINO_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hot.h"

/* Bytes of a socket's path, with NUL: those of sockaddr_un. */
#define NT_SOCKET_PATH 108

struct nt_set {
	uint32_t number; /* from 1 */
	const char *key; /* the part of cache keys that all images of the set share; NULL: the process has no probes */
	const char *probe_file; /* NULL: there is none */
	const char *names;
	char socket[NT_SOCKET_PATH]; /* of the listener that makes its twins; "": none. nt_sets_socket reads it */
	bool is_noted; /* by its event in the trace */
	struct nt_set *next;
};

/* The number of the set in force. */
extern NT_HIDDEN uint32_t nt_sets_number;

/* The same for launches: lock-free. */
static inline uint32_t nt_sets_number_now(void)
{
	return __atomic_load_n(&nt_sets_number, __ATOMIC_ACQUIRE);
}

/* The set in force, by which functions that are obtained now get their twins. Never NULL. Lock-free. */
const struct nt_set *nt_sets_now(void);

/* The set of that number, NULL if there is none. */
const struct nt_set *nt_sets_find(uint32_t number);

/*
 * The number of the set with that key, which is added if it is new, and gets the socket of a new listener if it is not. 0: this
 * process has one set alone, or too many, or a text is too long.
 */
uint32_t nt_sets_add(const char *key, const char *socket, const char *probe_file, const char *names);

/* Have a set in force from now on. By registry.c, which changes the functions with it. */
void nt_sets_put_in_force(const struct nt_set *set);

/* Copy the path of a set's socket. */
void nt_sets_socket(const struct nt_set *set, char ret[NT_SOCKET_PATH]);

/* Write what the trace has of the set in force, unless that was done: its event, and its probes as a file. */
void nt_sets_note(void);

#endif
