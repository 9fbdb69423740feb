/*
 * A hash table from the driver's handles to the hook's records, written under the caller's lock and read lock-free. It
 * grows, and drops removed records, by a copy that takes its place; the old one is freed after a grace period, as records
 * must be. So look-ups are in reading sections, which last as long as what was found is used.
 */
#ifndef NEUTRINO_HANDLES_H
#define NEUTRINO_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/grace.h"

/* Tests count the rows and records that are looked at. */
#ifdef NT_COUNT_STEPS
extern uint64_t nt_steps;
#define NT_COUNT_STEP() ((void)nt_steps++)
#else
#define NT_COUNT_STEP() ((void)0)
#endif

/* The first member of every record in a table. */
struct nt_handle {
	void *handle;
};

struct nt_handle_rows {
	struct nt_retired retired;
	uint32_t bits; /* there are 2^bits rows */
	uint32_t used; /* rows that are not empty */
	uint32_t live; /* of those, records that were not removed */
	struct nt_handle *rows[];
};

#define NT_HANDLE_ROWS_ALIGNMENT 64u

struct nt_handles {
	/*
	 * The address of the rows, which is a multiple of their alignment, plus their bits: so a search needs not read them
	 * first. 0 while nothing was added.
	 */
	uintptr_t rows;
};

/*
 * The table's array of rows, NULL while nothing was added: its address is stored with the number of bits in the low
 * ones. In a reading section (which keeps it from being freed), or under the caller's lock.
 */
static inline struct nt_handle_rows *nt_handles_rows(const struct nt_handles *table)
{
	uintptr_t rows = __atomic_load_n(&table->rows, __ATOMIC_ACQUIRE);

	return (struct nt_handle_rows *)(rows & ~(uintptr_t)(NT_HANDLE_ROWS_ALIGNMENT - 1));
}

/* Replaces a removed record in its row, so that searches continue after it. */
extern struct nt_handle nt_handles_gone;

/* The row (0 to 2^bits - 1) where the search for a handle begins: the high bits of a multiplicative hash. */
static inline uint32_t nt_handles_start(const void *handle, uint32_t bits)
{
	return (uint32_t)((uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
}

/*
 * Find the record of a driver's handle in a hash table; NULL if it has none. Lock-free: in a reading section, which
 * keeps what is found from being freed as long as it lasts.
 */
static inline void *nt_handles_find(struct nt_handles *table, const void *handle)
{
	uintptr_t tagged = __atomic_load_n(&table->rows, __ATOMIC_ACQUIRE);
	uint32_t bits = tagged % NT_HANDLE_ROWS_ALIGNMENT;
	const struct nt_handle_rows *rows = (const struct nt_handle_rows *)(tagged - bits);

	if (NT_UNLIKELY(!rows))
		return NULL;
	/* There is always an empty row. */
	for (uint32_t i = nt_handles_start(handle, bits);; i = (i + 1) & ((1u << bits) - 1)) {
		struct nt_handle *row = __atomic_load_n(&rows->rows[i], __ATOMIC_ACQUIRE);
		NT_COUNT_STEP();
		if (NT_UNLIKELY(!row))
			return NULL;
		if (!NT_UNLIKELY(row->handle != handle))
			return row;
	}
}

/* Add a record, in place of one with the same handle; false without memory. Under the caller's lock. */
bool nt_handles_put(struct nt_handles *table, struct nt_handle *record);
/* Remove a record, if it is in the table. Under the caller's lock. */
void nt_handles_remove(struct nt_handles *table, const struct nt_handle *record);

#endif
