/* A hash table of records that have their link in them, under the caller's lock. It grows; records are never removed. */
#ifndef NEUTRINO_HASH_TABLE_H
#define NEUTRINO_HASH_TABLE_H

#include <stdint.h>
#include <stdlib.h>

#include "base/handles.h"
#include "base/memory.h"

/* The first member of every record. */
struct nt_hashed {
	struct nt_hashed *next;
	uint64_t hash;
};

struct nt_hash_table {
	struct nt_hashed **buckets;
	uint32_t bits; /* there are 2^bits buckets, once there is one */
	uint32_t count;
};

/* In a chain of records, the first one with that hash, beginning with `record` itself; NULL if none has it. */
static inline struct nt_hashed *nt_hashed_next(struct nt_hashed *record, uint64_t hash)
{
	for (; record; record = record->next) {
		NT_COUNT_STEP();
		if (record->hash == hash)
			break;
	}
	return record;
}

/*
 * The first record of a hash in the table, or NULL. Different keys may share a hash: the caller compares, and goes on
 * by nt_hashed_next(record->next, hash). Under the caller's lock.
 */
static inline struct nt_hashed *nt_hashed_first(const struct nt_hash_table *table, uint64_t hash)
{
	return table->buckets ? nt_hashed_next(table->buckets[hash & ((1u << table->bits) - 1)], hash) : NULL;
}

/* Put a record, whose hash is set, at the front of its bucket. The table has buckets already. */
static inline void nt_hashed_link(struct nt_hash_table *table, struct nt_hashed *record)
{
	struct nt_hashed **bucket = &table->buckets[record->hash & ((1u << table->bits) - 1)];

	record->next = *bucket;
	*bucket = record;
}

/*
 * Add a record to the table, which grows when it has as many records as buckets; 0 if there is no memory for a first
 * table. Does not look whether its key is in the table already. Under the caller's lock.
 */
static inline int nt_hashed_add(struct nt_hash_table *table, struct nt_hashed *record, uint64_t hash)
{
	if (!table->buckets || table->count >= 1u << table->bits) {
		struct nt_hash_table larger = {.bits = table->buckets ? table->bits + 2 : 4};
		larger.buckets = nt_memory_alloc_zeroed((size_t)1 << larger.bits, sizeof(*larger.buckets));
		/* Without memory, the present table is kept, and its lists get longer. */
		if (!larger.buckets && !table->buckets)
			return 0;
		for (uint32_t i = 0; larger.buckets && table->buckets && i < 1u << table->bits; i++)
			while (table->buckets[i]) {
				struct nt_hashed *moved = table->buckets[i];
				table->buckets[i] = moved->next;
				NT_COUNT_STEP();
				nt_hashed_link(&larger, moved);
			}
		if (larger.buckets) {
			larger.count = table->count;
			nt_memory_free(table->buckets);
			*table = larger;
		}
	}
	record->hash = hash;
	nt_hashed_link(table, record);
	table->count++;
	return 1;
}

/* A 64-bit hash of a string: FNV-1a, https://www.rfc-editor.org/rfc/rfc9923 */
static inline uint64_t nt_hash_text(const char *text)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *text; text++)
		hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
