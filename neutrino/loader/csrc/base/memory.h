/*
 * The hook's own memory: none of it is the program's allocator's. A signal may end the program within malloc, whose locks
 * are then never released; what our threads and the exit handler need must not wait for those. Lock-free. Under a sanitizer,
 * which watches malloc, it is malloc.
 */
#ifndef NEUTRINO_MEMORY_H
#define NEUTRINO_MEMORY_H

#include <stddef.h>

/* As malloc, calloc, realloc, strdup and free. NULL without memory; errno is kept. */
void *nt_memory_alloc(size_t size);
void *nt_memory_alloc_zeroed(size_t count, size_t size);
/* alignment: a power of two. */
void *nt_memory_alloc_aligned(size_t alignment, size_t size);
void *nt_memory_realloc(void *memory, size_t size);
char *nt_memory_strdup(const char *text);
void nt_memory_free(void *memory);

#endif
