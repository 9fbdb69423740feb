/* A map from driver handles to records of ours: written under a lock on loads, read without one on launches. */
#ifndef NEUTRINO_HANDLES_H
#define NEUTRINO_HANDLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define NT_HANDLES_CAPACITY (1u << 16)

/* First member of every record that a table holds. Records are never freed: a reader may still be at one. */
struct nt_handle {
	void *handle;
};

struct nt_handles {
	struct nt_handle *rows[NT_HANDLES_CAPACITY];
	uint32_t used;
};

/* A row that once held a record: searches continue after it. */
extern struct nt_handle nt_handle_gone;

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

/* Under the caller's lock. False when the table is full. A record of the same handle is replaced. */
bool nt_handles_put(struct nt_handles *table, struct nt_handle *record);
void nt_handles_remove(struct nt_handles *table, const struct nt_handle *record);

#endif
