#include "handles.h"

struct nt_handle nt_handle_gone = {.handle = &nt_handle_gone};

bool nt_handles_put(struct nt_handles *table, struct nt_handle *record)
{
	uint32_t start = nt_handles_start(record->handle);
	struct nt_handle **free_row = NULL;

	/* Linear probing: until the same handle, or an empty row. A removed record's row is used again. */
	for (uint32_t i = 0; i < NT_HANDLES_CAPACITY; i++) {
		struct nt_handle **row = &table->rows[(start + i) % NT_HANDLES_CAPACITY];
		if (*row && *row != &nt_handle_gone && (*row)->handle == record->handle) {
			__atomic_store_n(row, record, __ATOMIC_RELEASE);
			return true;
		}
		if (*row == &nt_handle_gone && !free_row)
			free_row = row;
		if (*row)
			continue;
		/* An empty row: the handle is not in the table. */
		if (!free_row) {
			/* At most three quarters are filled, which keeps searches short. */
			if (table->used >= NT_HANDLES_CAPACITY / 4 * 3)
				return false;
			table->used++;
			free_row = row;
		}
		break;
	}
	if (!free_row)
		return false;
	__atomic_store_n(free_row, record, __ATOMIC_RELEASE);
	return true;
}

void nt_handles_remove(struct nt_handles *table, const struct nt_handle *record)
{
	uint32_t start = nt_handles_start(record->handle);

	for (uint32_t i = 0; i < NT_HANDLES_CAPACITY; i++) {
		struct nt_handle **row = &table->rows[(start + i) % NT_HANDLES_CAPACITY];
		if (!*row)
			return;
		if (*row == record) {
			__atomic_store_n(row, &nt_handle_gone, __ATOMIC_RELEASE);
			return;
		}
	}
}
