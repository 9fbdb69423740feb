/* A kernel as the trace knows it: one id for each (image, name), however often the image is loaded. */
#ifndef NEUTRINO_KERNEL_H
#define NEUTRINO_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "neutrino_layout.h"

struct nt_backend;

struct nt_kernel {
	uint32_t id;
	unsigned reason; /* NEUTRINO_REASON_PROBED: by backend; else why its original runs */
	const struct nt_backend *backend;
	char *name;
	const struct neutrino_map *maps;
	uint32_t map_count;
	const struct neutrino_twin_parameter *parameters;
	uint32_t parameter_count;
	uint32_t block_offset;
	uint32_t block_size;
	uint32_t variable_count;
	uint32_t lanes;	      /* of a warp */
	bool has_dynamic_cap; /* of some map */
	uint32_t wanted;      /* records that the fullest slot of a dynamic map had for saving so far, 0: not known yet */
	bool result_started;  /* the drain thread's own */
	const struct neutrino_twin_kernel *twin; /* the entry's row, where there is one */
	struct nt_kernel *next; /* of the same image */
};

#endif
