#include "image/twin.h"

#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "trace/trace.h"

/*
 * One image of an entry, loaded for a module or a library of the program, when the program obtains the first kernel whose
 * twin is in it.
 */
struct nt_part {
	int state;   /* enum nt_resolve_state */
	void *twins; /* our CUmodule or CUlibrary, once resolved; NULL if the driver refused it */
};

/* --- loading --- */

/* Not shorter: on a busy machine a thread may take seconds to load, and after the unload its handles are not valid. */
#define USERS_LIMIT_NS UINT64_C(30000000000)

/* What a module or library has loaded of an image, which is its own for one of the sets of probes. Lock-free. */
static struct nt_made *made_of(struct nt_owner *owner, const struct nt_image *image)
{
	struct nt_made *made = &owner->made;

	while (made && made->image != image)
		made = __atomic_load_n(&made->next, __ATOMIC_ACQUIRE);
	return made;
}

/*
 * The parts of a module or library for a set of probes, one for each GPU image of its twins (copies with probes),
 * allocated by the first call and not loaded yet. NULL without memory. Lock-free, from any thread.
 */
static struct nt_part *parts_of(struct nt_made *made)
{
	struct nt_part *parts = __atomic_load_n(&made->parts, __ATOMIC_ACQUIRE);

	if (parts)
		return parts;
	struct nt_part *fresh = nt_memory_alloc_zeroed(made->image->entry.header->images, sizeof(*fresh));
	if (!fresh || __atomic_compare_exchange_n(&made->parts, &parts, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	nt_memory_free(fresh);
	return parts;
}

/*
 * Load one image of twins (copies of kernels with probes) into the driver, once; other threads that need it wait for
 * the first. number: index of the image in the entry (an image's kernels with probes).
 */
static void load_part(const struct nt_owner *owner, struct nt_made *made, struct nt_part *part, uint32_t number)
{
	const struct nt_image *image = made->image;
	const void *data = image->entry.data + image->entry.images[number].offset;
	int unresolved = UNRESOLVED;
	void *twins = NULL;

	if (!__atomic_compare_exchange_n(&part->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		while (__atomic_load_n(&part->state, __ATOMIC_ACQUIRE) == RESOLVING)
			nt_clock_sleep_us(200);
		return;
	}
	CUresult result = owner->is_library ? nt_driver.cuLibraryLoadData(&twins, data, NULL, NULL, 0, NULL, NULL, 0)
					    : nt_driver.cuModuleLoadData(&twins, data);
	if (result == CUDA_SUCCESS)
		part->twins = twins;
	else if (nt_entry_has_twins(&image->entry, number) &&
		 !__atomic_exchange_n(&made->load_noted, 1, __ATOMIC_ACQ_REL))
		nt_lines_note("the driver did not load the twins of image %u: error %d", image->id, result);
	__atomic_store_n(&part->state, RESOLVED, __ATOMIC_RELEASE);
}

/*
 * The driver's handle of the twin (copy with probes) of that name; number: of the twins' image in the image's entry,
 * which is loaded if it is not. NULL if it cannot be had.
 */
static void *twin_function(struct nt_owner *owner, const struct nt_image *image, uint32_t number, const char *name)
{
	struct nt_made *made = made_of(owner, image);
	struct nt_part *parts = made ? parts_of(made) : NULL;
	void *handle = NULL;

	if (!parts)
		return NULL;
	load_part(owner, made, &parts[number], number);
	void *twins = parts[number].twins;
	if (!twins)
		return NULL;
	CUresult result = owner->is_library ? nt_driver.cuLibraryGetKernel(&handle, twins, name)
					    : nt_driver.cuModuleGetFunction(&handle, twins, name);
	return result == CUDA_SUCCESS ? handle : NULL;
}

/*
 * Store the addresses of the module variables that a kernel uses, in a context, which is current. False if the driver has
 * none for one of them, or if addresses are stored for NT_FUNCTION_CONTEXTS other contexts. Lock-free, from any thread.
 */
static bool add_addresses(struct nt_function *function, const struct nt_owner *owner, CUcontext context)
{
	uint32_t count = function->kernel->variable_count;
	unsigned slot = 0;

	/* The first slot that is free, or that belonged to a context that is gone (NULL). */
	struct nt_addresses *replaced = NULL;
	for (; slot < NT_FUNCTION_CONTEXTS; slot++) {
		replaced = __atomic_load_n(&function->addresses[slot], __ATOMIC_ACQUIRE);
		CUcontext slot_context = replaced ? __atomic_load_n(&replaced->context, __ATOMIC_ACQUIRE) : NULL;
		if (slot_context == context)
			return true; /* they are stored already */
		if (!slot_context)
			break;
	}
	if (slot == NT_FUNCTION_CONTEXTS)
		return false;
	struct nt_addresses *addresses = nt_memory_alloc(sizeof(*addresses) + count * sizeof(addresses->values[0]));
	if (!addresses)
		return false;
	addresses->context = context;
	const struct nt_kernel *kernel = function->kernel;
	const struct nt_image *image = kernel->image;
	const uint64_t *names = (const void *)(image->entry.data + kernel->twin->variables_offset);
	for (uint32_t i = 0; i < count; i++) {
		const char *name = nt_entry_string(&image->entry, names[i]);
		size_t size;
		CUresult result =
			owner->is_library
				? nt_driver.cuLibraryGetGlobal(&addresses->values[i], &size, owner->handle.handle, name)
				: nt_driver.cuModuleGetGlobal_v2(&addresses->values[i], &size, owner->handle.handle,
								 name);
		if (result != CUDA_SUCCESS) {
			nt_lines_note("kernel %u %s: the driver has no address of variable %s (error %d)", kernel->id,
				      kernel->name, name, result);
			nt_memory_free(addresses);
			return false;
		}
	}
	/* The replaced addresses are not freed, since a launch may still be reading them. */
	if (!__atomic_compare_exchange_n(&function->addresses[slot], &replaced, addresses, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		/* Another thread has taken the slot: look for a free one again. */
		nt_memory_free(addresses);
		return add_addresses(function, owner, context);
	}
	return true;
}

/*
 * The CUfunction of a twin (copy with probes) in the current context, with its code loaded, so that its first launch
 * does not have to. twin: CUfunction or CUkernel, or NULL. NULL if that fails.
 */
static CUfunction load_code(const struct nt_owner *owner, void *twin)
{
	CUfunction function = twin;

	if (!twin || (owner->is_library && nt_driver.cuKernelGetFunction(&function, twin) != CUDA_SUCCESS))
		return NULL;
	if (nt_driver.cuFuncLoad)
		nt_driver.cuFuncLoad(function);
	return function;
}

/* Bytes of local memory that each thread of a CUfunction needs; 0 if that is not known. */
static int local_size(CUfunction function)
{
	int size = 0;

	if (!function || !nt_driver.cuFuncGetAttribute ||
	    nt_driver.cuFuncGetAttribute(&size, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) != CUDA_SUCCESS)
		return 0;
	return size;
}

/*
 * Whether the driver would have to set aside more local memory to launch the twin (copy with probes) than for its
 * original: it would wait for the whole device then, and so perhaps for ever. twin: in the current context.
 */
static bool needs_more_local(const struct nt_function *function, CUfunction twin)
{
	CUfunction original = function->handle.handle;
	size_t set_aside = 0;
	int needed = local_size(twin);

	if (function->is_kernel && nt_driver.cuKernelGetFunction(&original, original) != CUDA_SUCCESS)
		original = NULL;
	if (needed <= local_size(original))
		return false;
	if (nt_driver.cuCtxGetLimit)
		nt_driver.cuCtxGetLimit(&set_aside, CU_LIMIT_STACK_SIZE);
	return (size_t)needed > set_aside;
}

/*
 * Load the twin (copy with probes) of a function for launches in a context, which is current (NULL: none is). PROBED,
 * or the reason why the original has to run.
 */
enum neutrino_reason nt_twin_prepare(struct nt_function *function, CUcontext context)
{
	struct nt_owner *owner = nt_function_library_of(function->owner);
	void *twin = function->twin, *capped = function->capped;
	bool is_loaded = twin;

	/* A function may be prepared for several contexts, but its twin is looked up once. */
	if (!is_loaded) {
		const struct neutrino_twin_kernel *row = function->kernel->twin;
		const struct nt_image *image = function->kernel->image;
		const char *name = nt_entry_string(&image->entry, row->twin_offset);
		twin = twin_function(owner, image, row->image, name);
		capped = row->capped ? twin_function(owner, image, row->capped, name) : NULL;
	}
	if (context) {
		CUfunction twin_in_context = load_code(owner, twin), capped_in_context = load_code(owner, capped);
		if (twin_in_context && needs_more_local(function, twin_in_context))
			return NEUTRINO_REASON_LOCAL_MEMORY;
		if (capped_in_context && needs_more_local(function, capped_in_context))
			capped = capped_in_context = NULL;
		/* A CUfunction is launched by a CUfunction, a CUkernel by a CUkernel, which is valid in all contexts. */
		if (!function->is_kernel) {
			twin = twin_in_context;
			capped = capped_in_context;
		} else if (is_loaded && !twin_in_context) {
			return NEUTRINO_REASON_LOAD;
		}
	}
	if (!twin || (context && !add_addresses(function, owner, context)))
		return NEUTRINO_REASON_LOAD;
	if (!is_loaded) {
		function->capped = capped;
		function->twin = twin;
	}
	return NEUTRINO_REASON_PROBED;
}

/*
 * Wait until no other thread prepares functions of the module or library; false after half a minute: then its twins
 * (copies with probes) must stay loaded.
 */
static bool wait_for_users(const struct nt_owner *owner)
{
	uint64_t until = nt_clock_now_ns() + USERS_LIMIT_NS;

	while (__atomic_load_n(&owner->users, __ATOMIC_ACQUIRE)) {
		if (nt_clock_now_ns() >= until)
			return false;
		nt_clock_sleep_us(100);
	}
	return true;
}

/*
 * Unload all twins (copies with probes) of a module or library, just before the program unloads that. If another thread
 * still uses them after half a minute, all stay; one that another thread is loading stays, too.
 */
void nt_twin_unload_all(struct nt_owner *owner)
{
	/* First: another thread may be about to load them. */
	bool is_unused = wait_for_users(owner);

	for (struct nt_made *made = &owner->made; made && is_unused; made = __atomic_load_n(&made->next, __ATOMIC_ACQUIRE)) {
		struct nt_part *parts = __atomic_load_n(&made->parts, __ATOMIC_ACQUIRE);
		for (uint32_t i = 0; parts && i < made->image->entry.header->images; i++) {
			/* One that another thread is loading stays: the program must not use a module while it unloads it. */
			if (__atomic_load_n(&parts[i].state, __ATOMIC_ACQUIRE) != RESOLVED || !parts[i].twins)
				continue;
			if (owner->is_library)
				nt_driver.cuLibraryUnload(parts[i].twins);
			else
				nt_driver.cuModuleUnload(parts[i].twins);
		}
	}
}

/* --- choice --- */

/*
 * The stored addresses of the module variables that a function's kernel uses, in a context; NULL if there are none.
 * Lock-free, on the launch path.
 */
static const struct nt_addresses *addresses_in(struct nt_function *function, CUcontext context)
{
	for (int i = 0; i < NT_FUNCTION_CONTEXTS; i++) {
		const struct nt_addresses *addresses = __atomic_load_n(&function->addresses[i], __ATOMIC_ACQUIRE);
		if (!addresses)
			return NULL; /* slots are filled in order */
		if (__atomic_load_n(&addresses->context, __ATOMIC_ACQUIRE) == context)
			return addresses;
	}
	return NULL;
}

/*
 * Which code a launch runs, so that its occupancy (blocks per multiprocessor) is not below the original's. It depends on
 * the launch's shape: threads per block and dynamic shared memory. Choices are stored in nt_function.shapes, one word
 * each: threads in bits 0-15, bytes of shared memory in 16-47, the choice in 48-51, the most blocks that it is for in
 * 52-63. Rows are only added; when all are taken, the driver is asked at each launch.
 */
#define SHAPE_THREADS_MASK UINT64_C(0xffff)
#define SHAPE_SHARED_SHIFT 16
#define SHAPE_CHOICE_SHIFT 48
enum shape_choice {
	SHAPE_TWIN = 1, /* so that no word with a choice is 0, which is a free row */
	SHAPE_CAPPED,
	SHAPE_ORIGINAL,
	/* The twin though fewer blocks of it fit, unless a launch's blocks have to run together; then as named. */
	SHAPE_FEWER_OR_CAPPED,
	SHAPE_FEWER_OR_ORIGINAL,
};
#define SHAPE_CHOICE_MASK 0xfu
#define SHAPE_BLOCKS_SHIFT 4 /* after the choice */
#define SHAPE_BLOCKS_MOST 0xfffu

/*
 * Pack a choice of what runs (the kernel's copy with probes, that with fewer registers, or the original) with the most
 * blocks of a launch that it holds for, into the bits that remember it.
 */
static uint32_t pack_choice(enum shape_choice choice, uint64_t blocks)
{
	return (uint32_t)choice | (uint32_t)(blocks < SHAPE_BLOCKS_MOST ? blocks : SHAPE_BLOCKS_MOST) << SHAPE_BLOCKS_SHIFT;
}

/* How many multiprocessors the current context's device has; 0 if that is not known. */
static unsigned multiprocessors(void)
{
	CUdevice device;
	int count = 0;

	if (nt_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
	    nt_driver.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS)
		return 0;
	return count > 0 ? (unsigned)count : 0;
}

/* Of a twin that may run with fewer blocks than the original has, at least a share of them have to fit: one over this. */
#define LEAST_SHARE 4

/*
 * Ask the driver how many blocks of the original and of its twins (copies with probes) fit on a multiprocessor, and
 * choose which one launches of that shape run. threads: of a block; shared: bytes of dynamic shared memory. Returns the
 * choice as pack_choice packs it.
 */
static uint32_t choose_for_shape(const struct nt_function *function, int threads, unsigned shared)
{
	int original = 0, twin = 0, capped = 0;
	const struct neutrino_twin_kernel *row = function->kernel->twin;

	if (nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&original, function->handle.handle, threads, shared) !=
	    CUDA_SUCCESS)
		return SHAPE_ORIGINAL;
	if (nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&twin, function->twin, threads, shared) ==
		    CUDA_SUCCESS &&
	    twin >= original)
		return SHAPE_TWIN;
	bool has_capped = function->capped &&
			  nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&capped, function->capped, threads,
										shared) == CUDA_SUCCESS &&
			  capped >= original;
	enum shape_choice fewer = has_capped ? SHAPE_FEWER_OR_CAPPED : SHAPE_FEWER_OR_ORIGINAL;
	if (row && row->fewer_blocks == NEUTRINO_FEWER_ANY && LEAST_SHARE * twin >= original)
		return pack_choice(fewer, SHAPE_BLOCKS_MOST);
	/* Half of the GPU stays free for what the blocks may wait for. */
	if (row && row->fewer_blocks == NEUTRINO_FEWER_ALL_FIT && twin > 0)
		return pack_choice(fewer, (uint64_t)twin * multiprocessors() / 2);
	return has_capped ? SHAPE_CAPPED : SHAPE_ORIGINAL;
}

/*
 * The choice of what runs (copy with probes or original) for launches of a shape (threads of a block, bytes of shared
 * memory), remembered or from the driver. Lock-free, on the launch path.
 */
static uint32_t choice_for_shape(struct nt_function *function, uint64_t threads, unsigned shared)
{
	uint64_t shape = (threads & SHAPE_THREADS_MASK) | (uint64_t)shared << SHAPE_SHARED_SHIFT;

	for (int i = 0; i < NT_FUNCTION_SHAPES; i++) {
		uint64_t row = __atomic_load_n(&function->shapes[i], __ATOMIC_ACQUIRE);
		if (row && (row & ((UINT64_C(1) << SHAPE_CHOICE_SHIFT) - 1)) == shape)
			return (uint32_t)(row >> SHAPE_CHOICE_SHIFT);
		if (row)
			continue;
		uint32_t choice = choose_for_shape(function, (int)threads, shared);
		/* If another thread has taken the row, this choice is not stored. */
		uint64_t empty = 0;
		__atomic_compare_exchange_n(&function->shapes[i], &empty, shape | (uint64_t)choice << SHAPE_CHOICE_SHIFT, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		return choice;
	}
	return choose_for_shape(function, (int)threads, shared);
}

/*
 * Forget what launches of a function run (copy with probes or original) by threads and shared memory, because the
 * program has changed an attribute of it: the driver is asked again.
 */
void nt_twin_forget_shapes(struct nt_function *function)
{
	for (int i = 0; i < NT_FUNCTION_SHAPES; i++)
		__atomic_store_n(&function->shapes[i], 0, __ATOMIC_RELEASE);
}

/*
 * Choose whether a launch runs the twin (copy with probes), the twin under a register cap, or the original, so that not
 * fewer blocks fit on a multiprocessor than of the original, unless the probes allow that. PROBED, or the reason why
 * the original runs. On the launch path.
 */
enum neutrino_reason nt_twin_choose(struct nt_attempt *attempt)
{
	struct nt_function *function = attempt->function;

	attempt->addresses = addresses_in(function, attempt->context);
	if (!attempt->addresses)
		return NEUTRINO_REASON_CONTEXT;
	uint32_t found = choice_for_shape(function, attempt->extent.threads, attempt->launch->shared);
	uint32_t most = found >> SHAPE_BLOCKS_SHIFT;
	enum shape_choice choice = (enum shape_choice)(found & SHAPE_CHOICE_MASK);
	if (choice == SHAPE_FEWER_OR_CAPPED || choice == SHAPE_FEWER_OR_ORIGINAL) {
		attempt->variant = NT_VARIANT_FEWER_BLOCKS;
		if (attempt->launch->is_ordinary && (most == SHAPE_BLOCKS_MOST || attempt->extent.blocks <= most))
			return NEUTRINO_REASON_PROBED;
		choice = choice == SHAPE_FEWER_OR_CAPPED ? SHAPE_CAPPED : SHAPE_ORIGINAL;
	}
	if (choice == SHAPE_ORIGINAL)
		return NEUTRINO_REASON_OCCUPANCY;
	attempt->variant = choice == SHAPE_CAPPED ? NT_VARIANT_CAPPED : NT_VARIANT_TWIN;
	return NEUTRINO_REASON_PROBED;
}

/* --- submission --- */

/*
 * Fill in the probe block, the last parameter of a twin (copy with probes): where the launch's maps (stores of probe
 * results) are, and the addresses of module variables. block: of the kernel's block_size bytes.
 */
static void fill_block(uint8_t *block, const struct nt_attempt *attempt)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	const struct nt_addresses *addresses = attempt->addresses;
	uint8_t *variables = nt_regions_describe(kernel->maps, kernel->map_count, &attempt->extent, attempt->base,
						 attempt->cell, block);

	memcpy(variables, addresses->values, kernel->variable_count * sizeof(addresses->values[0]));
}

/* The bytes of the program's own kernel parameters in one buffer: up to the end of the last one. */
size_t nt_twin_parameters_size(const struct nt_kernel *kernel)
{
	size_t size = 0;

	for (uint32_t i = 0; i < kernel->parameter_count; i++)
		if (kernel->parameters[i].offset + kernel->parameters[i].size > size)
			size = kernel->parameters[i].offset + kernel->parameters[i].size;
	return size;
}

/*
 * Launch a twin (copy with probes) with the probe block after the program's parameters, which the program gave as an
 * array of pointers or as one buffer (extra). Copies are on the stack. CUDA_ERROR_INVALID_VALUE if the program's
 * parameters are not as they should be: then the original is launched, and the driver decides.
 */
static CUresult submit_with_block(const struct nt_launch *launch, const struct nt_kernel *kernel, CUfunction twin,
				  void *block)
{
	if (launch->extra) {
		const void *buffer = NULL;
		size_t size = 0, twin_size = kernel->block_offset + kernel->block_size;
		for (void **key = launch->extra; *key != CU_LAUNCH_PARAM_END; key += 2) {
			if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER)
				buffer = key[1];
			else if (*key == CU_LAUNCH_PARAM_BUFFER_SIZE)
				size = *(size_t *)key[1];
		}
		/* Both forms at once, no buffer, or one of another size than that of the parameters. */
		if (launch->parameters || (!buffer && size) || size != nt_twin_parameters_size(kernel))
			return CUDA_ERROR_INVALID_VALUE;
		uint8_t *packed = alloca(twin_size);
		memset(packed, 0, twin_size);
		memcpy(packed, buffer, size < kernel->block_offset ? size : kernel->block_offset);
		memcpy(packed + kernel->block_offset, block, kernel->block_size);
		void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &twin_size,
				 CU_LAUNCH_PARAM_END};
		return launch->submit(launch, twin, NULL, extra);
	}
	if (kernel->parameter_count && !launch->parameters)
		return CUDA_ERROR_INVALID_VALUE;
	void **parameters = alloca((kernel->parameter_count + 1) * sizeof(*parameters));
	if (kernel->parameter_count)
		memcpy(parameters, launch->parameters, kernel->parameter_count * sizeof(*parameters));
	parameters[kernel->parameter_count] = block;
	return launch->submit(launch, twin, parameters, NULL);
}

/*
 * Launch the twin (copy with probes) that was chosen for this attempt, with its probe block (the twin's extra
 * parameter). Returns the driver's result.
 */
CUresult nt_twin_submit(const struct nt_attempt *attempt)
{
	const struct nt_function *function = attempt->function;
	uint8_t *block = alloca(function->kernel->block_size);

	fill_block(block, attempt);
	return submit_with_block(attempt->launch, function->kernel,
				 attempt->variant == NT_VARIANT_CAPPED ? function->capped : function->twin, block);
}
