/* Files of the cache that the program's process reads, by a key of 32 bytes. neutrino/maker/store.py writes them. */
#ifndef NEUTRINO_CACHED_FILE_H
#define NEUTRINO_CACHED_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A kind of such files: <cache>/<folder>/<2 digits>/<key><ending>, of fewer than so many bytes. */
struct nt_cached_file {
	const char *folder, *ending;
	uint64_t limit;
};

/* The path of the file of that key; false if no cache is set, or the path is too long. */
bool nt_cached_file_path(const struct nt_cached_file *kind, const uint8_t key[32], char ret[PATH_MAX]);

/* Its content: memory of nt_memory_alloc, the caller's; NULL if there is none that is safe to read. In an errand. */
void *nt_cached_file_read(const struct nt_cached_file *kind, const uint8_t key[32], size_t *size);

#endif
