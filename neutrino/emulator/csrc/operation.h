/* Operations of streams and of graphs' nodes, with copies of everything that they need. */
#ifndef ED_OPERATION_H
#define ED_OPERATION_H

#include "abi.h"

struct ed_mark;
struct ed_plan;
struct ed_graph_memory;
struct ed_condition;

/* A copy of rows in slices. Addresses are those that the program uses, of the device or of the host. */
struct ed_copy {
	uint64_t to, from;
	uint64_t to_pitch, to_slice, from_pitch, from_slice;
	uint64_t width, height, depth;
	uint8_t *staged; /* the source's bytes, copied at the call; NULL: read when the operation runs */
};

struct ed_fill {
	uint64_t to, pitch;
	uint64_t width, height; /* elements, rows */
	uint32_t value, element; /* element: bytes */
};

/* A word of 4 or 8 bytes to write. */
struct ed_write {
	uint64_t to, value;
	uint32_t size;
};

/* How many attributes of a launch are for tuning: ed_tuning_find. */
#define ED_TUNINGS 4

struct ed_kernel_work {
	CUfunction function; /* the program's handle, which may be a CUkernel */
	uint64_t module;     /* the device process's id */
	uint32_t kernel;
	uint32_t grid[3], block[3];
	uint32_t shared;
	bool is_cooperative;
	uint32_t cluster[3]; /* blocks, 0 where none were asked for */
	int priority;
	uint32_t tuning[ED_TUNINGS]; /* nodes show it; it changes nothing here */
	bool is_packed; /* the parameters were given as a buffer, with this size */
	uint64_t packed_size;
	uint32_t size;
	uint8_t *parameters;
};

struct ed_operation {
	int type; /* CU_GRAPH_NODE_TYPE_… */
	bool is_whole; /* a plan that is launched, not one within another */
	struct ed_context *context;
	union {
		struct ed_kernel_work kernel;
		struct ed_copy copy;
		struct ed_fill fill;
		struct ed_write write;
		struct {
			CUhostFn function; /* or a callback of cuStreamAddCallback */
			CUstreamCallback callback;
			CUstream stream;
			void *data;
		} host;
		struct {
			struct ed_mark *mark; /* NULL in a graph: each launch makes a new one */
			CUevent event;
		} event;
		struct ed_plan *plan; /* of an executable graph */
		struct ed_graph_memory *memory;
		struct {
			struct ed_condition *condition;
			int type; /* CUgraphConditionalNodeType */
			uint32_t size;
			struct ed_plan **bodies; /* NULL in a graph, whose node has graphs */
		} conditional;
	};
};

/* Copy an operation with everything that it owns; false without memory. */
bool ed_operation_copy(struct ed_operation *to, const struct ed_operation *from);

/* Run an operation in the calling thread. An error is recorded as the device's fault. */
CUresult ed_operation_run(struct ed_operation *operation);

void ed_operation_release(struct ed_operation *operation);

#endif
