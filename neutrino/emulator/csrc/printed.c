#include "printed.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Taken before the mutex, so that two flushes keep their order. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static char *kept;
static size_t kept_size;
static size_t limit = ED_PRINTED_SIZE;

/*
 * Keep what a kernel has printed, until the program waits for the device. Beyond the limit the oldest text is dropped.
 */
void ed_printed_add(const void *text, size_t size)
{
	if (!size)
		return;
	pthread_mutex_lock(&mutex);
	if (size > limit) {
		text = (const char *)text + (size - limit);
		size = limit;
	}
	size_t dropped = kept_size + size > limit ? kept_size + size - limit : 0;
	char *more = realloc(kept, kept_size + size + 1);
	if (more) {
		kept = more;
		memmove(kept, kept + dropped, kept_size - dropped);
		memcpy(kept + kept_size - dropped, text, size);
		__atomic_store_n(&kept_size, kept_size - dropped + size, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&mutex);
}

/* Set the limit of what is kept of kernels' printed text, in bytes. */
void ed_printed_limit(size_t size)
{
	pthread_mutex_lock(&mutex);
	limit = size;
	pthread_mutex_unlock(&mutex);
}

/* Write what kernels have printed to the program's standard output, in the order in which launches ended. */
void ed_printed_flush(void)
{
	if (!__atomic_load_n(&kept_size, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&writing);
	pthread_mutex_lock(&mutex);
	char *text = kept;
	size_t size = kept_size;
	kept = NULL;
	__atomic_store_n(&kept_size, 0, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	/* A program that has closed stdout may have another file at its descriptor: write by stdio, and only if it is open. */
	if (size && fileno(stdout) >= 0 && fcntl(fileno(stdout), F_GETFD) >= 0) {
		fwrite(text, 1, size, stdout);
		fflush(stdout);
	}
	pthread_mutex_unlock(&writing);
	free(text);
}
