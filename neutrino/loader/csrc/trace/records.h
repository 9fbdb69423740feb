/*
 * The launch records in memory. They lie in chunks of CHUNK_RECORDS, each for a run of consecutive numbers. A thread that
 * launches takes records from its chunk, and another chunk when that is used up; no line of memory is written by all threads
 * at each launch. The writer writes records to launches.bin when they were submitted and again when their data were, and
 * then uses the chunk for later numbers. Nothing is mapped from a file: a file that is full or cut off raises no signal.
 */
#ifndef NEUTRINO_RECORDS_H
#define NEUTRINO_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/neutrino_layout.h"

/* Records of a chunk: as many as a mask has bits. */
#define CHUNK_RECORDS 32u

/* Make the first chunks. False without memory. Called once, before any record is taken. */
bool nt_records_start(void);

/*
 * Have enough chunks ready for the next launches. Whether records have changed since they were last collected. Called by
 * the drain thread from time to time.
 */
bool nt_records_prepare(void);

/*
 * Complete a record by its last state: WRITTEN if its frame begins at an offset of the kernel's data, LOST or MEASURED
 * without one. size: bytes of its maps.
 */
void nt_records_settle(uint64_t index, enum neutrino_launch_state state, uint64_t offset, uint64_t size, uint32_t set);

/*
 * How many launches have lost their results so far: those that were settled as LOST; and with is_end, after the last try
 * to write records, those whose data are written while the file does not say so.
 */
uint64_t nt_records_lost(bool is_end);

/* A record that is to be written, and where it is in memory. */
struct nt_changed {
	struct neutrino_launch record;
	uint64_t index;
	uint32_t chunk;
};

/*
 * Copy records that were submitted or settled since they were last collected, most at once, by ascending number within a
 * chunk. is_last: look at all of them, also for those that the driver refused meanwhile. Returns how many.
 */
uint32_t nt_records_collect(struct nt_changed *ret, uint32_t most, bool is_last);

/* Say whether collected records were written; those that were not are collected again. */
void nt_records_collected(const struct nt_changed *changed, uint32_t count, bool written);

#endif
