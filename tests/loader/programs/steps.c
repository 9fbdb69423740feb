/* Counts what the tables of handles and names look at, compiled with NT_COUNT_STEPS: prints work per operation. */
#include <stdio.h>
#include <stdlib.h>

#include "base/handles.h"
#include "base/hash_table.h"

uint64_t nt_steps;

/* A clock of which each reading is a second later: no grace period waits for it. */
uint64_t nt_clock_now_ns(void)
{
	static uint64_t now;

	return now += 1000000000;
}

struct record {
	struct nt_hashed hashed;
	struct nt_handle handle;
};

/* n handles that come and go, of which alive at a time are there; the most steps that a thousand operations took. */
static uint64_t churn(uint64_t n, uint64_t alive)
{
	struct nt_handles table = {0};
	struct nt_handle *records = calloc(alive, sizeof(*records));

	nt_steps = 0;
	for (uint64_t i = 0; i < n; i++) {
		struct nt_handle *record = &records[i % alive];
		if (record->handle)
			nt_handles_remove(&table, record);
		record->handle = (void *)(0x7f0000000000 + i * 0x40);
		if (!nt_handles_put(&table, record) || nt_handles_find(&table, record->handle) != record)
			exit(1);
		nt_grace_step();
		nt_grace_release();
	}
	free(records);
	return nt_steps * 1000 / n;
}

static uint64_t names(uint64_t n)
{
	struct nt_hash_table table = {NULL, 0, 0};
	char name[32];

	nt_steps = 0;
	for (uint64_t i = 0; i < n; i++) {
		struct nt_hashed *record = nt_memory_alloc_zeroed(1, sizeof(*record));
		snprintf(name, sizeof(name), "kernel_%llu", (unsigned long long)i);
		uint64_t hash = nt_hash_text(name);
		if (nt_hashed_first(&table, hash) || !nt_hashed_add(&table, record, hash) ||
		    nt_hashed_first(&table, hash) != record)
			exit(2);
	}
	return nt_steps * 1000 / n;
}

int main(void)
{
	for (uint64_t n = 10000; n <= 1000000; n *= 10)
		printf("%llu %llu %llu\n", (unsigned long long)churn(n, 100), (unsigned long long)churn(n, n),
		       (unsigned long long)names(n < 100000 ? n : 100000));
	return 0;
}
