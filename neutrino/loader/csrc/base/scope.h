/*
 * What is undone at the end of a scope, however it is left: by return, break or its last line. Not where a thread is
 * cancelled, which C does not notice: so no cancellation point stands in such a scope, unless cancellation is off.
 */
#ifndef NEUTRINO_SCOPE_H
#define NEUTRINO_SCOPE_H

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/raw_files.h"

#define NT_SCOPE_JOIN(left, right) left##right
#define NT_SCOPE_NAME(line) NT_SCOPE_JOIN(nt_scope_, line)
#define NT_SCOPE_END(function) __attribute__((unused, cleanup(function)))

/* Hold a lock: to the end of the scope, so not where it is released on the way. */
#define NT_LOCKED(mutex) NT_SCOPE_END(nt_scope_unlock) pthread_mutex_t *NT_SCOPE_NAME(__LINE__) = nt_scope_lock(mutex)

/* For NT_LOCKED only: lock the mutex, and return it for the variable whose end of life unlocks it. */
static inline pthread_mutex_t *nt_scope_lock(pthread_mutex_t *mutex)
{
	nt_lock_take(mutex);
	return mutex;
}

/*
 * For NT_LOCKED only: called by the compiler at the end of the scope, with the address of the variable that holds the
 * mutex.
 */
static inline void nt_scope_unlock(pthread_mutex_t **mutex)
{
	nt_lock_release(*mutex);
}

/* For the declaration of a pointer to memory of nt_memory_alloc, or NULL: it is freed, unless nt_scope_keep has given it out. */
#define NT_FREED NT_SCOPE_END(nt_scope_free)

/*
 * Give out memory that the end of the scope would free. address: of a pointer declared NT_FREED, which is set to NULL.
 * Returns what it was, which is the caller's now.
 */
static inline void *nt_scope_keep(void *address)
{
	void *ret, *none = NULL;

	memcpy(&ret, address, sizeof(ret));
	memcpy(address, &none, sizeof(none));
	return ret;
}

/*
 * For NT_FREED only: called by the compiler at the end of the scope, with the address of the pointer, whose memory is
 * freed.
 */
static inline void nt_scope_free(void *address)
{
	nt_memory_free(nt_scope_keep(address));
}

/* The same of a descriptor, or -1, that is closed. errno stays. */
#define NT_CLOSED NT_SCOPE_END(nt_scope_close)

/*
 * For NT_CLOSED only: called by the compiler at the end of the scope; closes the descriptor unless it is negative.
 * errno stays.
 */
static inline void nt_scope_close(const int *fd)
{
	int before = errno;

	if (*fd >= 0)
		nt_raw_close(*fd);
	errno = before;
}

/*
 * Give out a descriptor that the end of the scope would close: *fd, declared NT_CLOSED, becomes -1, and the caller has
 * the descriptor.
 */
static inline int nt_scope_keep_fd(int *fd)
{
	int ret = *fd;

	*fd = -1;
	return ret;
}

#endif
