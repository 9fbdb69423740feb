/* A hash table from the driver's handles to the hook's records, written under the caller's lock and read lock-free. */
#ifndef NEUTRINO_HANDLES_H
#define NEUTRINO_HANDLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define NT_HANDLES_CAPACITY (1u << 16)

/* The first member of every record in a table. Records are never freed, since another thread may be reading them. */
struct nt_handle {
	void *handle;
};

struct nt_handles {
	struct nt_handle *rows[NT_HANDLES_CAPACITY];
	uint32_t used; /* rows that are not empty */
};

/* Replaces a removed record in its row, so that searches continue after it. */
extern struct nt_handle nt_handle_gone;

/* The row where the search for a handle begins: the high 16 bits of a multiplicative hash. */
static inline uint32_t nt_handles_start(const void *handle)
{
	return (uint32_t)((uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> 48);
}

/* The record of that handle, or NULL. Lock-free. */
static inline void *nt_handles_find(struct nt_handles *table, const void *handle)
{
	uint32_t start = nt_handles_start(handle);

	for (uint32_t i = 0; i < NT_HANDLES_CAPACITY; i++) {
		struct nt_handle *row =
			__atomic_load_n(&table->rows[(start + i) % NT_HANDLES_CAPACITY], __ATOMIC_ACQUIRE);
		if (!row)
			return NULL;
		if (row->handle == handle)
			return row;
	}
	return NULL;
}

/* Add a record, in place of one with the same handle; false if the table is full. Under the caller's lock. */
bool nt_handles_put(struct nt_handles *table, struct nt_handle *record);
/* Remove a record, if it is in the table. Under the caller's lock. */
void nt_handles_remove(struct nt_handles *table, const struct nt_handle *record);

#endif
