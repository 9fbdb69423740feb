#include "printed.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; /* taken before: two flushes do not change places */
static char *kept;
static size_t kept_size;
static size_t limit = ED_PRINTED_SIZE;

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

void ed_printed_limit(size_t size)
{
	pthread_mutex_lock(&mutex);
	limit = size;
	pthread_mutex_unlock(&mutex);
}

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
	/* A program that has closed it may have another file there: only what stdio still calls its own. */
	if (size && fileno(stdout) >= 0 && fcntl(fileno(stdout), F_GETFD) >= 0) {
		fwrite(text, 1, size, stdout);
		fflush(stdout);
	}
	pthread_mutex_unlock(&writing);
	free(text);
}
