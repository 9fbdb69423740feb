#include "base/handles.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"


#define LEAST_BITS 8u

struct nt_handle nt_handles_gone = {.handle = &nt_handles_gone};

/* Free an old array of rows, once no reader can have it any more: nt_grace_retire calls it. */
static void free_rows(struct nt_retired *record)
{
	nt_memory_free(record); /* the first member of the rows */
}

/* Put a record, whose handle is not in the table, into the first empty row from its hash on. There must be one. */
static void put_new(struct nt_handle_rows *rows, struct nt_handle *record)
{
	uint32_t mask = (1u << rows->bits) - 1, i = nt_handles_start(record->handle, rows->bits);

	while (rows->rows[i]) {
		NT_COUNT_STEP();
		i = (i + 1) & mask;
	}
	__atomic_store_n(&rows->rows[i], record, __ATOMIC_RELEASE);
	rows->used++;
	rows->live++;
}

/*
 * Make sure that the table can take one record more and stays at most half full: if not, copy it into larger rows
 * without removed records, and have the old rows freed when no reader has them. False without memory.
 */
static bool make_space(struct nt_handles *table)
{
	struct nt_handle_rows *before = nt_handles_rows(table);
	uint32_t bits = LEAST_BITS;

	if (before && before->used + 1 <= 1u << (before->bits - 1))
		return true;
	/* A quarter filled: as many records again can come before the next copy. */
	while (before && before->live + 1 > 1u << (bits - 2))
		bits++;
	size_t size = sizeof(*before) + sizeof(before->rows[0]) * ((size_t)1 << bits);
	size = (size + NT_HANDLE_ROWS_ALIGNMENT - 1) & ~(size_t)(NT_HANDLE_ROWS_ALIGNMENT - 1);
	struct nt_handle_rows *rows = nt_memory_alloc_aligned(NT_HANDLE_ROWS_ALIGNMENT, size);
	if (!rows)
		return false;
	memset(rows, 0, size);
	rows->bits = bits;
	for (uint32_t i = 0; before && i < 1u << before->bits; i++) {
		NT_COUNT_STEP();
		if (before->rows[i] && before->rows[i] != &nt_handles_gone)
			put_new(rows, before->rows[i]);
	}
	__atomic_store_n(&table->rows, (uintptr_t)rows + bits, __ATOMIC_RELEASE);
	if (before)
		nt_grace_retire(&before->retired, free_rows);
	return true;
}

/* The row of a handle, or NULL if the table has none. There must be an empty row, at which the search ends. */
static struct nt_handle **row_of(struct nt_handle_rows *rows, const void *handle)
{
	uint32_t mask = (1u << rows->bits) - 1;

	for (uint32_t i = nt_handles_start(handle, rows->bits); rows->rows[i]; i = (i + 1) & mask) {
		NT_COUNT_STEP();
		if (rows->rows[i]->handle == handle)
			return &rows->rows[i];
	}
	return NULL;
}

/*
 * Add a record to a hash table by its handle, or replace the one with the same handle. False without memory. The record
 * stays the caller's. Under the caller's lock; readers need none.
 */
bool nt_handles_put(struct nt_handles *table, struct nt_handle *record)
{
	if (!make_space(table))
		return false;
	struct nt_handle_rows *rows = nt_handles_rows(table);
	struct nt_handle **row = row_of(rows, record->handle);
	if (row)
		__atomic_store_n(row, record, __ATOMIC_RELEASE);
	else
		put_new(rows, record);
	return true;
}

/*
 * Take a record out of the table if it is in it; its row keeps a mark, so that searches go on past it. The caller frees
 * it after a grace period, since readers may have it. Under the caller's lock.
 */
void nt_handles_remove(struct nt_handles *table, const struct nt_handle *record)
{
	struct nt_handle_rows *rows = nt_handles_rows(table);
	struct nt_handle **row = rows ? row_of(rows, record->handle) : NULL;

	if (!row || *row != record)
		return;
	__atomic_store_n(row, &nt_handles_gone, __ATOMIC_RELEASE);
	rows->live--;
}
