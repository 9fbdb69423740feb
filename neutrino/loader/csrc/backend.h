/*
 * Ways of probing a kernel, a row of the table for each. Which row a kernel has is decided when the program obtains it;
 * one that none can probe has no row, and its launches run the original, with the reason on record.
 */
#ifndef NEUTRINO_BACKEND_H
#define NEUTRINO_BACKEND_H

#include "launch.h"
#include "pool.h"
#include "regions.h"
#include "registry.h"

/* A launch of a probed kernel on its way: what one step leaves for the next. */
struct nt_attempt {
	struct nt_function *function;
	const struct nt_launch *launch;
	CUcontext context;
	CUstream stream; /* default streams by their explicit handles */
	struct nt_pool *pool;
	struct nt_extent extent; /* room sets dynamic_cap */
	/* Set by room. */
	const struct nt_addresses *addresses;
	uint32_t variant; /* as launches.bin has it */
	uint64_t size;	  /* bytes of the regions */
	struct nt_room room;
};

struct nt_backend {
	/*
	 * When the program obtains the function, and again for each further context that it may be launched in, which is
	 * current then: get ready what launches need, so that none of them loads, allocates or waits. context NULL: none
	 * is current. PROBED, or the reason why the original has to run.
	 */
	unsigned (*prepare)(struct nt_function *function, CUcontext context);
	/* On the launch path: take room for the launch's maps. PROBED, or the reason why the original has to run. */
	unsigned (*room)(struct nt_attempt *attempt);
	/* On the launch path: make the launch with its maps at attempt->room. Returns what the driver said. */
	CUresult (*submit)(const struct nt_attempt *attempt);
};

enum {
	NT_BACKEND_TWIN,
	NT_BACKENDS,
};

extern const struct nt_backend nt_backends[NT_BACKENDS];

/*
 * For a row's room: take bytes for all maps of the kernel in attempt->extent, with fewer records per slot of those with
 * a dynamic cap where the pool has no more at the moment. PROBED, or the reason why there is none.
 */
unsigned nt_backend_take_room(struct nt_attempt *attempt);

#endif
