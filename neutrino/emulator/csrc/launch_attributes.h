/* Attributes of launches. */
#ifndef ED_LAUNCH_ATTRIBUTES_H
#define ED_LAUNCH_ATTRIBUTES_H

#include "operation.h"
#include "queue.h"

struct ed_launch_attributes {
	const CUlaunchConfig *config; /* NULL: of a launch without attributes */
	bool is_cooperative;
	bool says_updatable; /* whether its node can be updated from the device, which only one of a graph can say */
	bool has_priority;   /* else the stream's */
	int priority;
	uint32_t cluster[3]; /* 0 where none were asked for */
	CUevent events[2];   /* to record with the launch; NULL: none */
};

/* What the attributes for tuning are where no launch says: of the documentation. */
extern const uint32_t ed_tuning_default[ED_TUNINGS];

/* The value of an attribute for tuning, NULL if it is none. */
uint32_t *ed_tuning_find(struct ed_kernel_work *work, int attribute);

/* Read the attributes of a launch. Unknown ones are CUDA_ERROR_INVALID_VALUE. */
CUresult ed_launch_attributes_read(const CUlaunchConfig *config, struct ed_launch_attributes *ret);

/* Check a launch against its attributes, and let its work have those that a graph's node shows. */
CUresult ed_launch_attributes_apply(const struct ed_launch_attributes *attributes, struct ed_queue *queue,
				    CUstream stream, struct ed_kernel_work *work);

/* After a launch: record its events. */
CUresult ed_launch_attributes_record(const struct ed_launch_attributes *attributes, struct ed_queue *queue);

#endif
