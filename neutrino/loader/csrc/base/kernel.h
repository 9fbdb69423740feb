/* A kernel in the trace: one for each name in an image, however often the image is loaded. Never freed. */
#ifndef NEUTRINO_KERNEL_H
#define NEUTRINO_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash_table.h"
#include "base/neutrino_layout.h"

struct nt_backend;
struct nt_image;
struct nt_run;

/* How much memory the logs of a kernel wanted: image/needs.c keeps it. */
struct nt_need {
	uint64_t kernel; /* nt_hash_text of its name */
	uint64_t units;	 /* of the log that wanted most */
	uint64_t per_warp; /* of NT_NEED_PARTS parts of a unit, for each warp of the launch that wanted most by this */
};

#define NT_NEED_PARTS 256u

/*
 * How much log memory one warp of a launch wanted, in parts of a unit (NT_NEED_PARTS parts are one unit of 32 bytes),
 * rounded up. units: what the whole launch wanted; warps: its warps, not 0.
 */
static inline uint64_t nt_need_per_warp(uint64_t units, uint64_t warps)
{
	return (units * NT_NEED_PARTS + warps - 1) / warps;
}

struct nt_kernel {
	struct nt_hashed by_name; /* first: in its image's table */
	uint32_t id;	 /* in the trace, from 1 */
	/*
	 * PROBED: launches go to the backend; else why the original runs. NOT_READY: the image is not resolved, and what
	 * follows not known yet (nt_kernel_reason).
	 */
	enum neutrino_reason reason;
	struct nt_image *image;
	const struct nt_backend *backend;
	char *name;
	const struct neutrino_map *maps; /* as the twin has them: nt_entry_maps */
	uint32_t map_count;
	const struct neutrino_twin_parameter *parameters;
	uint32_t parameter_count;
	uint32_t block_offset;	 /* of the probe block, in bytes, in the twin's parameters */
	uint32_t block_size;
	uint32_t variable_count; /* module variables whose addresses are in the block */
	uint32_t lanes;	      /* of a warp */
	uint32_t set;	      /* number of the probes that its twin has (image/sets.h); 0: it has none, whatever the probes */
	uint32_t log_count;   /* maps that are logs and saved to */
	uint64_t log_wanted;  /* most units of a log that a launch wanted; 0: not known yet */
	uint64_t log_per_warp; /* the same for each warp of a launch, in parts: NT_NEED_PARTS */
	uint64_t log_warps; /* most warps of a launch of which it is known what its logs wanted */
	struct nt_need log_kept; /* of wanted and per_warp, what the cache has */
	uint64_t log_first; /* as log_per_warp, of launches whose warps had no chunks of their own; 0: not known yet */
	uint64_t log_beyond; /* likewise, what warps with chunks of their own wanted beyond these, and one; 0: not known yet */
	uint64_t expected_in; /* bits of the pools that expect it */
	bool result_started;  /* the drain thread's own */
	uint32_t run_count;   /* maps per run */
	struct nt_run *run;   /* their result, of the drain thread; NULL before the first launch */
	bool size_noted;      /* it was noted that a launch needs more than a pool can hold */
	const struct neutrino_twin_kernel *twin; /* the entry's row, where there is one */
	char before[64];   /* so that no other member is in the line of what launches change */
	uint64_t launches; /* choice.c's: how many have a number */
	/* background.c's: launches while it is not ready, up to --hot; whether it is listed, and the next in the list. */
	uint64_t called;
	struct nt_kernel *next_requested;
	int is_requested;
	char after[36];
};

/*
 * Why launches of the kernel run the original; PROBED if they run its twin (the copy with probes), NOT_READY while that
 * is not known yet. Lock-free: another thread may set it meanwhile.
 */
static inline enum neutrino_reason nt_kernel_reason(const struct nt_kernel *kernel)
{
	return __atomic_load_n(&kernel->reason, __ATOMIC_ACQUIRE);
}

#endif
