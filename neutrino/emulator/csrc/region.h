/* The device's memory and pinned memory as regions with pieces in them, for the files that share them. */
#ifndef ED_REGION_H
#define ED_REGION_H

#include <pthread.h>

#include "memory.h"

/* Between two pieces there are at least so many bytes that no kernel may touch. */
#define RED_ZONE 256u
#define REMEMBERED 64 /* places that were freed last */

enum ed_sort {
	DEVICE,
	MANAGED,
	PINNED,
	VARIABLE,
};

struct ed_piece {
	uint64_t offset, size; /* in its region */
	struct ed_context *context; /* NULL: no context's, as pinned memory that outlives it */
	enum ed_sort sort;
	unsigned flags;
	uint64_t id;
};

/* Pieces in order of their offsets. */
struct ed_region {
	struct ed_piece *pieces;
	size_t count, room;
	uint64_t begin;	 /* the device process allocates before this offset */
	uint64_t in_use; /* bytes */
	uint64_t freed[REMEMBERED];
	unsigned freed_count;
};

struct ed_registered {
	uint64_t address, size;
};

/* Guards everything below. */
extern pthread_mutex_t ed_memory_mutex;
extern struct ed_region ed_device_region, ed_host_region;

/* Memory of the program that it has registered. */
extern struct ed_registered *ed_registered;
extern size_t ed_registered_count;

bool ed_region_is_host(const struct ed_region *region);
uint64_t ed_region_size(const struct ed_region *region);
uint64_t ed_region_base(const struct ed_region *region);

/* The region that an address lies in, with its offset there; NULL: in none. */
struct ed_region *ed_region_of(uint64_t address, uint64_t *offset);

/* The piece that an offset lies in, or NULL. */
struct ed_piece *ed_piece_at(const struct ed_region *region, uint64_t offset);

/* A new piece of that size, otherwise like the one given; its address, 0 where there is no room. */
uint64_t ed_region_take(struct ed_region *region, uint64_t size, struct ed_piece like);

/* Give a piece back by its address; CUDA_ERROR_INVALID_VALUE where none begins. */
CUresult ed_memory_release(uint64_t address, bool is_pinned);

#endif
