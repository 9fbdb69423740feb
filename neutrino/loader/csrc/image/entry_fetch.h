/* Where cache entries come from: the cache, or the listener that `neutrino` left running. */
#ifndef NEUTRINO_ENTRY_FETCH_H
#define NEUTRINO_ENTRY_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/entry.h"
#include "image/sets.h"

/*
 * Compute the cache key of an image for a device: SHA-256 of the set's key (NEUTRINO_KEY), the architecture and the image.
 * False if the set's key is not valid.
 */
bool nt_entry_fetch_key(const struct nt_set *set, const char *arch, const void *image, size_t size, uint8_t ret[32]);

/* Read the entry of that key from the cache. False when it is missing or not valid. */
bool nt_entry_fetch_read(const uint8_t key[32], struct nt_entry *ret);

struct nt_begun;

/*
 * Ask the set's listener to make an entry, and do not wait: a request for nt_entry_fetch_request or nt_entry_fetch_drop, or NULL if the
 * entry is in the cache, or has to be asked for when it is needed. Keeps nothing of the image.
 */
struct nt_begun *nt_entry_fetch_begin(const struct nt_set *set, const uint8_t key[32], const char *arch, int driver_version, const void *image, size_t size);

/* Whether such a request was not sent yet. */
bool nt_entry_fetch_is_unsent(void);

/*
 * Whether nt_entry_fetch_request would not wait, or nt_entry_fetch_read find the entry, as far as is known. begun: of nt_entry_fetch_begin, on
 * whose answer this waits at most that long; NULL if nobody has asked for the entry yet.
 */
bool nt_entry_fetch_is_near(struct nt_begun *begun, const uint8_t key[32], unsigned milliseconds);

/* How long the process waits for an entry, in nanoseconds. */
uint64_t nt_entry_fetch_timeout(void);

/* Give up a request of nt_entry_fetch_begin that is not used. NULL is ignored. */
void nt_entry_fetch_drop(struct nt_begun *begun);

/*
 * Get an entry from the listener, and wait for it, NEUTRINO_TIMEOUT seconds at most; not at all once two in a row took
 * longer. begun: of nt_entry_fetch_begin, which is given up; NULL if nobody has asked for the entry yet. False with a message in
 * error if that fails. ret refers to memory that is never freed.
 */
bool nt_entry_fetch_request(struct nt_begun *begun, const struct nt_set *set, const uint8_t key[32], const char *arch,
			    int driver_version, const void *image, size_t size, struct nt_entry *ret, char *error, size_t error_size);

/* Why nt_entry_fetch_request has failed first, in words; NULL if it never has. */
const char *nt_entry_fetch_failure(void);

/* Tell the listener that this process has begun a trace, and its path, so that it runs until this process has ended. */
void nt_entry_fetch_hello(const char *trace);

#endif
