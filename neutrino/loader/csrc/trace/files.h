/*
 * The files of the trace directory, for the thread that writes them. That thread has a descriptor table of its own, where
 * that is allowed: then its files stay open, and the program neither sees their descriptors nor can close them. Where it
 * is not, each file is opened for a write and closed again. Every file is opened relative to the directory, which is
 * opened once.
 */
#ifndef NEUTRINO_FILES_H
#define NEUTRINO_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* nt_own_table_unshare for the thread that writes. */
void nt_files_own_table(void);

/* Whether descriptors may stay open. */
bool nt_files_keep_open(void);

/*
 * Create the trace directory in folder, an absolute path. path, of PATH_MAX bytes, gets its path. False if that fails:
 * errno is set, and why gets a reason that errno cannot give, or NULL.
 */
bool nt_files_create(const char *folder, char *path, const char **why);

/*
 * Whether a seccomp filter that the program has installed since may kill the process for an openat. Open files can still
 * be written. Without a table of its own this thread keeps none open, so it must open them.
 */
bool nt_files_is_filtered(void);

/* Remove the directory again, which is empty. */
void nt_files_remove_directory(void);

/* openat in the directory, for a file of the user alone. -1 if that fails, or if opening a file could end the program. */
int nt_files_open(const char *name, int flags);

/* Write a file atomically, create a folder, remove a file. False if that fails. */
bool nt_files_write(const char *name, const void *data, size_t size);
/* Write a file of the cache atomically, for the user alone. path: absolute. False if that fails. */
bool nt_files_write_cached(const char *path, const void *data, size_t size);
/* Copy a small file into the directory. True also if there is none at path. */
bool nt_files_copy(const char *name, const char *path);
bool nt_files_mkdir(const char *name);
bool nt_files_unlink(const char *name);

/*
 * Remember why a write to the trace has failed, by errno; 0 is no reason. nt_files_failure: what was remembered, above all
 * that there was no space left; 0: nothing. From any thread.
 */
void nt_files_failed(void);
int nt_files_failure(void);
/* In words: "the disk was full", or as strerror. */
const char *nt_files_words(int error);

/*
 * Set some space of the disk aside, in a file of the directory, and give it back at the end: a full disk that is copied on
 * write takes nothing at all, not even in place of what is there.
 */
void nt_files_reserve(void);
void nt_files_release(void);

#endif
