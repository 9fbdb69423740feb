/*
 * Backends, the ways of probing a kernel: a table with a row for each. A kernel gets its backend when the program obtains
 * it. A kernel without one runs its original, and its launches are counted with the reason.
 */
#ifndef NEUTRINO_BACKEND_H
#define NEUTRINO_BACKEND_H

#include "base/regions.h"
#include "image/function.h"
#include "memory/pool.h"

/* A launch of the program, whatever call it came by. */
struct nt_launch {
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared; /* bytes of dynamic shared memory */
	CUstream stream;     /* as the program gave it */
	bool per_thread; /* by a _ptsz call: stream 0 is the thread's own */
	void **parameters; /* of the kernel: pointers to values, or NULL */
	void **extra;	   /* else these in one buffer: CU_LAUNCH_PARAM_... */
	/* Makes the program's call with that function and these parameters. */
	CUresult (*submit)(const struct nt_launch *launch, CUfunction function, void **parameters, void **extra);
	const void *argument; /* for submit */
	bool is_ordinary; /* without attributes, and not in a graph: no blocks have to run at the same time */
};

/* Of what code a launch ran, as launches.bin has it. */
enum nt_variant {
	NT_VARIANT_TWIN,
	NT_VARIANT_CAPPED,
	NT_VARIANT_FEWER_BLOCKS, /* the twin, though fewer blocks of it fit on a multiprocessor than of the original */
};

/* A launch of a probed kernel in progress: each step sets what the next ones need. */
struct nt_attempt {
	struct nt_function *function;
	const struct nt_launch *launch;
	CUcontext context;
	CUstream stream; /* default streams by their explicit handles */
	struct nt_pool *pool;
	struct nt_extent extent; /* log_units is set with size */
	/* Set by choose. */
	const struct nt_addresses *addresses;
	uint32_t variant; /* enum nt_variant */
	/* Where the maps are, as for nt_regions_describe. */
	uint64_t size; /* bytes of the regions */
	uint64_t base;
	uint64_t cell;
	struct nt_room room;
	bool is_submitted; /* the twin was launched */
};

struct nt_backend {
	/*
	 * Prepare what launches of a function need, so that none of them loads, allocates or waits. Called when the
	 * program obtains the function, and for each further context that it may be launched in, which is current then;
	 * context is NULL if none is. PROBED, or the reason why the original has to run.
	 */
	enum neutrino_reason (*prepare)(struct nt_function *function, CUcontext context);
	/* On the launch path: choose the code for this launch. PROBED, or the reason why the original has to run. */
	enum neutrino_reason (*choose)(struct nt_attempt *attempt);
	/* On the launch path: launch. Returns the driver's result. */
	CUresult (*submit)(const struct nt_attempt *attempt);
};

enum {
	NT_BACKEND_TWIN,
	NT_BACKENDS,
};

extern const struct nt_backend nt_backend_table[NT_BACKENDS];

/*
 * Set size, and the memory of logs: as much as earlier launches of the kernel needed, for as many warps, and more, less if
 * the regions would otherwise take more than most bytes. Logs of a kernel that has no earlier launch get all of that; in a
 * graph enough for some records of each thread, warp or block.
 */
void nt_backend_measure(struct nt_attempt *attempt, uint64_t most);

/* Have the pool get memory for a kernel that was obtained, if the need of its logs is known. Not on the launch path. */
void nt_backend_expect(struct nt_kernel *kernel, struct nt_pool *pool);

/*
 * Take memory for all maps of the kernel. If the pool has no more at the moment, logs get less: if their need is known and
 * the pool can hold it, not less than that, which it waits for. PROBED, or the reason why there is none. Lock-free.
 */
enum neutrino_reason nt_backend_take_room(struct nt_attempt *attempt);

#endif
