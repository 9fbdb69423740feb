/* Images that the device process has read, and the kernels and variables in them. */
#ifndef ED_IMAGE_H
#define ED_IMAGE_H

#include <stdbool.h>

#include "abi.h"

struct ed_parameter {
	uint32_t offset, size;
};

/* One kernel of an image, as the device process described it. */
struct ed_description {
	const char *name;
	uint32_t number;
	uint32_t parameter_count;
	uint32_t parameter_size; /* of the whole buffer */
	uint32_t shared_size, local_size;
	uint32_t max_threads;
	uint32_t required[3]; /* the only block that it is launched with; 0: any */
	struct ed_parameter *parameters;
};

struct ed_variable {
	const char *name;
	uint64_t address, size;
};

/* One loading of an image: its kernels and variables. */
struct ed_loaded {
	uint64_t number; /* the device process's id of the module */
	bool needs_clusters; /* some code of it asks for its place in a cluster, or reaches other blocks of it */
	uint32_t kernel_count, variable_count;
	struct ed_description *kernels;
	struct ed_variable *variables;
	uint8_t *reply; /* the data that the names are in */
	size_t reply_size;
};

/* The size of an image in memory; *image is moved to where it begins. */
size_t ed_image_measure(const void **image);

/* The bytes of a file, which the caller frees; NULL with the result. */
uint8_t *ed_image_file(const char *path, size_t *size, CUresult *result);

/* Let the device process load an image, with the options of cuModuleLoadDataEx. */
CUresult ed_image_load(const void *image, size_t size, unsigned count, const int *options, void **values,
		       struct ed_loaded *ret);
void ed_image_unload(struct ed_loaded *loaded);

/* A description that outlives the loading: only its kernels mean something. False without memory. */
bool ed_image_copy(const struct ed_loaded *loaded, struct ed_loaded *ret);
void ed_image_forget(struct ed_loaded *copy);

/* Whether the device process gave a reason for refusing this thread's last image. */
bool ed_image_was_refused(void);

/* The number of the kernel of that name; a variable of that name, address and size where they are asked for. */
CUresult ed_image_find(const struct ed_loaded *loaded, const char *name, uint32_t *ret);
CUresult ed_image_variable(const struct ed_loaded *loaded, const char *name, CUdeviceptr *address, size_t *size);

#endif
