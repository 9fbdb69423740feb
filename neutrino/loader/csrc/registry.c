#include "registry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "regions.h"
#include "section.h"
#include "sha256.h"
#include "trace.h"
#include "entry_fetch.h"

#define USERS_LIMIT_NS UINT64_C(1000000000)

enum resolve_state {
	UNRESOLVED,
	RESOLVING,
	RESOLVED,
};

struct image {
	uint32_t id;
	enum nt_image_kind kind;
	size_t size;
	char *source;
	uint8_t key[32];
	char arch[16];
	unsigned reason; /* PROBED: the entry tells kernel by kernel */
	char *detail;
	int state;
	bool from_section; /* of the patched file that it lies in; else its twins are the run's */
	void *copy;	   /* of the image's bytes, or of its entry from a section, until resolved */
	size_t copy_size;
	struct nt_entry entry;
	struct nt_kernel *kernels;
	struct image *next;
};

/* One image of an entry, loaded beside a module or a library: with the first kernel obtained whose twin lies in it. */
struct part {
	int state;   /* enum resolve_state */
	void *twins; /* CUmodule or CUlibrary of ours, once resolved; NULL: would not load */
};

/* A module or a library of the program. */
struct nt_owner {
	struct nt_handle handle;
	bool is_library;
	struct image *image;
	CUcontext context;	/* that a module belongs to */
	struct nt_owner *alias; /* a module made of this library */
	struct part *parts;	/* by image of the entry; NULL while no kernel with a twin was obtained */
	int load_noted;		/* that a part would not load: said once */
	int users; /* threads that prepare contexts for its functions: it is not unloaded under them */
	struct nt_function *functions;
	struct nt_owner *next;
};

/* Guards everything below but lookups in the tables. Never held across a driver call or a request. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct image *images;
static uint32_t image_count, kernel_count;
static struct nt_owner *owners;
static struct nt_handles owner_table, function_table;
static int has_twins;
static bool in_sections;

/* Libraries whose licence forbids changing them: listed, never rewritten. */
static const char *const vendor_libraries[] = { NEUTRINO_VENDOR_LIBRARIES };

static const char *library_of(const void *address)
{
	Dl_info info;

	return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : NULL;
}

static bool is_vendor_library(const char *path)
{
	if (!path)
		return false;
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	for (size_t i = 0; i < sizeof(vendor_libraries) / sizeof(vendor_libraries[0]); i++)
		if (strncmp(name, vendor_libraries[i], strlen(vendor_libraries[i])) == 0)
			return true;
	return false;
}

/* "sm_90" of the current context's device, or of device 0. */
static bool device_arch(char ret[16], CUdevice *device)
{
	int major, minor;

	if (nt_driver.cuCtxGetDevice(device) != CUDA_SUCCESS && nt_driver.cuDeviceGet(device, 0) != CUDA_SUCCESS)
		return false;
	if (nt_driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *device) !=
		    CUDA_SUCCESS ||
	    nt_driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *device) !=
		    CUDA_SUCCESS)
		return false;
	snprintf(ret, 16, "sm_%d%d", major, minor);
	return true;
}

static void log_device(CUdevice device, const char *arch)
{
	static int logged[64];
	char name[256] = "";
	struct nt_event event;

	if (device < 0 || device >= 64 || __atomic_exchange_n(&logged[device], 1, __ATOMIC_ACQ_REL))
		return;
	nt_driver.cuDeviceGetName(name, sizeof(name), device);
	nt_event_begin(&event, "device");
	nt_event_number(&event, "ordinal", (uint64_t)device);
	nt_event_string(&event, "name", name);
	nt_event_string(&event, "arch", arch);
	nt_event_end(&event);
}

/* An image that is not hashed whole still needs an identity: its size and its beginning. */
static void identity_of(const struct nt_image_bytes *bytes, uint8_t ret[32])
{
	struct nt_sha256 hash;
	uint64_t size = bytes->size;

	nt_sha256_init(&hash);
	nt_sha256_add(&hash, &size, sizeof(size));
	nt_sha256_add(&hash, bytes->data, bytes->size < 65536 ? bytes->size : 65536);
	nt_sha256_finish(&hash, ret);
}

static struct image *find_image(const uint8_t key[32])
{
	for (struct image *image = images; image; image = image->next)
		if (memcmp(image->key, key, 32) == 0)
			return image;
	return NULL;
}

/* What can be said of an image before its entry is read. */
struct verdict {
	unsigned reason; /* PROBED: there may be an entry for this key */
	uint8_t key[32];
	char detail[NT_SECTION_PATH + 128];
};

/* The twins of an image in the section of the file that it lies in. */
static void judge_by_section(const struct nt_image_bytes *bytes, bool is_file, const char *arch,
			     struct nt_section_twins *twins, struct verdict *ret)
{
	bool embedded = nt_driver.neutrinoEmbeddedRefusal != NULL;

	ret->reason = bytes->has_ptx ? NEUTRINO_REASON_NOT_PATCHED : NEUTRINO_REASON_NO_PTX;
	/* The bytes of a file are a copy of ours: they lie in no object. */
	switch (is_file ? NT_SECTION_NONE : nt_section_find(bytes, arch, embedded, twins)) {
	case NT_SECTION_FOUND:
		ret->reason = NEUTRINO_REASON_PROBED;
		memcpy(ret->key, twins->key, sizeof(ret->key));
		break;
	case NT_SECTION_OTHER:
		ret->reason = NEUTRINO_REASON_NOT_PATCHED;
		snprintf(ret->detail, sizeof(ret->detail), "%s has no twins of this image for %s", twins->library,
			 embedded ? "the embedded device" : arch);
		break;
	case NT_SECTION_UNSOUND:
		ret->reason = NEUTRINO_REASON_NOT_PATCHED;
		snprintf(ret->detail, sizeof(ret->detail),
			 "the twins in %s are damaged, or of another version of Neutrino", twins->library);
		break;
	case NT_SECTION_NONE:
		break;
	}
}

static void judge_by_run(const struct nt_image_bytes *bytes, const char *arch, struct verdict *ret)
{
	if (!bytes->has_ptx) {
		ret->reason = NEUTRINO_REASON_NO_PTX;
	} else if (!nt_entry_key(arch, bytes->data, bytes->size, ret->key)) {
		ret->reason = NEUTRINO_REASON_HELPER;
		snprintf(ret->detail, sizeof(ret->detail), "NEUTRINO_KEY is not a run's key");
	}
}

/* The program may free its bytes once the driver has them, or unload its library; the request comes later, if at all. */
static void keep_bytes(struct image *image, const void *data, size_t size)
{
	image->copy = malloc(size);
	if (!image->copy)
		return;
	memcpy(image->copy, data, size);
	image->copy_size = size;
}

static void free_image(struct image *image)
{
	free(image->copy);
	free(image->source);
	free(image->detail);
	free(image);
}

/* The image of these bytes, made when it is new; NULL without memory. */
static struct image *image_of(const struct nt_image_bytes *bytes, const char *source, const void *caller)
{
	const char *library = source ? NULL : library_of(bytes->data);
	const char *asker = source ? NULL : library_of(caller);
	struct nt_section_twins twins;
	struct verdict verdict = {.reason = NEUTRINO_REASON_PROBED};
	char arch[16] = "";
	CUdevice device;

	if (device_arch(arch, &device))
		log_device(device, arch);
	if (is_vendor_library(source ? source : library) || is_vendor_library(asker))
		verdict.reason = NEUTRINO_REASON_VENDOR;
	else if (in_sections)
		judge_by_section(bytes, source, arch, &twins, &verdict);
	else
		judge_by_run(bytes, arch, &verdict);
	bool has_entry = verdict.reason == NEUTRINO_REASON_PROBED, from_section = has_entry && in_sections;
	if (!has_entry)
		identity_of(bytes, verdict.key);
	if (from_section)
		nt_section_use(&twins);

	pthread_mutex_lock(&mutex);
	struct image *image = find_image(verdict.key);
	pthread_mutex_unlock(&mutex);
	if (image)
		return image;

	image = calloc(1, sizeof(*image));
	if (!image)
		return NULL;
	image->kind = bytes->kind;
	image->size = bytes->size;
	image->source = strdup(source ? source : library ? library : asker ? asker : "");
	image->reason = verdict.reason;
	image->detail = *verdict.detail ? strdup(verdict.detail) : NULL;
	image->from_section = from_section;
	memcpy(image->key, verdict.key, sizeof(verdict.key));
	memcpy(image->arch, arch, sizeof(arch));
	if (from_section)
		keep_bytes(image, twins.entry, twins.entry_size);
	else if (has_entry)
		keep_bytes(image, bytes->data, bytes->size);
	pthread_mutex_lock(&mutex);
	struct image *other = find_image(verdict.key);
	if (!other) {
		image->id = ++image_count;
		image->next = images;
		images = image;
	}
	pthread_mutex_unlock(&mutex);
	if (other) {
		free_image(image);
		return other;
	}
	return image;
}

static void log_image(const struct image *image, bool cached, double ready_ms)
{
	struct nt_event event;

	nt_event_begin(&event, "image");
	nt_event_number(&event, "id", image->id);
	nt_event_string(&event, "kind", nt_image_kind_word(image->kind));
	nt_event_number(&event, "size", image->size);
	nt_event_string(&event, "source", image->source ? image->source : "");
	if (image->from_section)
		nt_event_string(&event, "twins", "section");
	if (image->reason == NEUTRINO_REASON_PROBED) {
		if (!image->from_section)
			nt_event_number(&event, "cached", cached);
		nt_event_real(&event, "ready_ms", ready_ms);
	}
	nt_event_end(&event);
}

/* The entry that a patched file carried: its copy is what the image works with from here on. */
static void open_copy(struct image *image)
{
	if (image->copy && nt_entry_open(image->copy, image->copy_size, image->key, &image->entry)) {
		image->copy = NULL;
		return;
	}
	/* Another file may carry the same twins undamaged: they are not to be taken for these. */
	pthread_mutex_lock(&mutex);
	memset(image->key, 0, sizeof(image->key));
	pthread_mutex_unlock(&mutex);
	image->reason = NEUTRINO_REASON_NOT_PATCHED;
	image->detail = strdup(image->copy ? "the twins in its file are damaged, or of another version of Neutrino" : "no memory for its twins");
}

/* The entry of the run's probes. Returns whether it was in the cache. */
static bool fetch_entry(struct image *image)
{
	char error[512] = "";
	int version = 0;

	if (nt_entry_read(image->key, &image->entry))
		return true;
	nt_driver.cuDriverGetVersion(&version);
	if (!image->copy || !nt_entry_request(image->key, image->arch, version, image->copy, image->size, &image->entry,
					      error, sizeof(error))) {
		image->reason = NEUTRINO_REASON_HELPER;
		image->detail = strdup(error);
	}
	return false;
}

/* Bring an image's entry in, once; other threads wait for the one that is at it. */
static void resolve_image(struct image *image)
{
	int unresolved = UNRESOLVED;
	uint64_t begin = nt_now_ns();
	bool cached = true;

	if (!__atomic_compare_exchange_n(&image->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		while (__atomic_load_n(&image->state, __ATOMIC_ACQUIRE) == RESOLVING)
			nt_sleep_us(500);
		return;
	}
	if (image->from_section)
		open_copy(image);
	else if (image->reason == NEUTRINO_REASON_PROBED)
		cached = fetch_entry(image);
	free(image->copy);
	image->copy = NULL;
	log_image(image, cached, (double)(nt_now_ns() - begin) / 1e6);
	__atomic_store_n(&image->state, RESOLVED, __ATOMIC_RELEASE);
}

static void write_kernel_files(const struct image *image, const struct nt_kernel *kernel)
{
	const struct neutrino_twin_file *files = (const void *)(image->entry.data + kernel->twin->files_offset);
	char name[512];

	snprintf(name, sizeof(name), "kernel/%u", kernel->id);
	if (!nt_trace_mkdir(name))
		return;
	for (uint32_t i = 0; i < kernel->twin->files; i++) {
		const char *file = nt_entry_string(&image->entry, files[i].name_offset);
		if (snprintf(name, sizeof(name), "kernel/%u/%s", kernel->id, file) < (int)sizeof(name))
			nt_trace_file(name, image->entry.data + files[i].offset, files[i].size);
	}
}

static void log_kernel(const struct image *image, const struct nt_kernel *kernel, const char *detail)
{
	static const char *const words[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_WORDS};
	static const char *const texts[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_TEXTS};
	struct nt_event event;
	unsigned reason = kernel->reason;

	nt_event_begin(&event, "kernel");
	nt_event_number(&event, "id", kernel->id);
	nt_event_number(&event, "image", image->id);
	nt_event_string(&event, "name", kernel->name);
	nt_event_string(&event, "reason", words[reason] ? words[reason] : "unknown");
	nt_event_string(&event, "detail", detail ? detail : "");
	nt_event_end(&event);
	if (reason == NEUTRINO_REASON_PROBED)
		nt_trace_log("kernel %u %s: probed", kernel->id, kernel->name);
	else
		nt_trace_log("kernel %u %s: not probed: %s%s%s", kernel->id, kernel->name,
			     texts[reason] ? texts[reason] : "", detail && *detail ? ": " : "", detail ? detail : "");
}

static struct nt_kernel *find_kernel(const struct image *image, const char *name)
{
	for (struct nt_kernel *kernel = image->kernels; kernel; kernel = kernel->next)
		if (strcmp(kernel->name, name) == 0)
			return kernel;
	return NULL;
}

static struct nt_kernel *kernel_of(struct image *image, const char *name)
{
	const char *detail = image->detail;

	pthread_mutex_lock(&mutex);
	struct nt_kernel *kernel = find_kernel(image, name);
	pthread_mutex_unlock(&mutex);
	if (kernel)
		return kernel;
	kernel = calloc(1, sizeof(*kernel));
	if (!kernel)
		return NULL;
	kernel->name = strdup(name);
	kernel->reason = image->reason;
	if (image->reason == NEUTRINO_REASON_PROBED) {
		kernel->twin = nt_entry_find(&image->entry, name);
		kernel->reason = kernel->twin ? kernel->twin->reason : NEUTRINO_REASON_NO_PTX;
		detail = kernel->twin ? nt_entry_string(&image->entry, kernel->twin->detail_offset)
				   : "the image's PTX has no kernel of this name";
	}
	if (kernel->reason == NEUTRINO_REASON_PROBED) {
		kernel->maps = image->entry.maps;
		kernel->map_count = image->entry.header->maps;
		kernel->has_dynamic_cap = nt_has_dynamic_cap(kernel->maps, kernel->map_count);
		kernel->parameters = (const void *)(image->entry.data + kernel->twin->parameters_offset);
		kernel->parameter_count = kernel->twin->parameters;
		kernel->block_offset = kernel->twin->block_offset;
		kernel->block_size = kernel->twin->block_size;
		kernel->variable_count = kernel->twin->variables;
		kernel->lanes = NEUTRINO_LANES;
	}
	pthread_mutex_lock(&mutex);
	struct nt_kernel *other = kernel->name ? find_kernel(image, name) : NULL;
	if (!other && kernel->name) {
		kernel->id = ++kernel_count;
		kernel->next = image->kernels;
		image->kernels = kernel;
	}
	pthread_mutex_unlock(&mutex);
	if (other || !kernel->name) {
		free(kernel->name);
		free(kernel);
		return other;
	}
	if (kernel->reason == NEUTRINO_REASON_PROBED)
		write_kernel_files(image, kernel);
	log_kernel(image, kernel, detail);
	return kernel;
}

/* The owner's parts, none of them loaded when they are asked for first; NULL without memory. */
static struct part *parts_of(struct nt_owner *owner)
{
	struct part *parts = __atomic_load_n(&owner->parts, __ATOMIC_ACQUIRE);

	if (parts)
		return parts;
	struct part *fresh = calloc(owner->image->entry.header->images, sizeof(*fresh));
	if (!fresh || __atomic_compare_exchange_n(&owner->parts, &parts, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return parts;
}

/* Load a part beside the original, once; other threads that need it wait for the one that is at it. */
static void load_part(struct nt_owner *owner, struct part *part, uint32_t number)
{
	const struct image *image = owner->image;
	const void *data = image->entry.data + image->entry.images[number].offset;
	int unresolved = UNRESOLVED;
	void *twins = NULL;

	if (!__atomic_compare_exchange_n(&part->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		while (__atomic_load_n(&part->state, __ATOMIC_ACQUIRE) == RESOLVING)
			nt_sleep_us(200);
		return;
	}
	CUresult result = owner->is_library ? nt_driver.cuLibraryLoadData(&twins, data, NULL, NULL, 0, NULL, NULL, 0)
					    : nt_driver.cuModuleLoadData(&twins, data);
	if (result == CUDA_SUCCESS)
		part->twins = twins;
	else if (nt_entry_has_twins(&image->entry, number) &&
		 !__atomic_exchange_n(&owner->load_noted, 1, __ATOMIC_ACQ_REL))
		nt_trace_note("the driver would not load twins of image %u: error %d", image->id, result);
	__atomic_store_n(&part->state, RESOLVED, __ATOMIC_RELEASE);
}

/* The twin of that name, in that image of the entry, or NULL. */
static void *twin_function(struct nt_owner *owner, uint32_t number, const char *name)
{
	struct part *parts = parts_of(owner);
	void *handle = NULL;

	if (!parts)
		return NULL;
	load_part(owner, &parts[number], number);
	void *twins = parts[number].twins;
	if (!twins)
		return NULL;
	CUresult result = owner->is_library ? nt_driver.cuLibraryGetKernel(&handle, twins, name)
					    : nt_driver.cuModuleGetFunction(&handle, twins, name);
	return result == CUDA_SUCCESS ? handle : NULL;
}

/* Addresses of the variables in the current context; false when the driver has none for one of them. */
static bool add_addresses(struct nt_function *function, const struct nt_owner *owner, CUcontext context)
{
	uint32_t count = function->kernel->variable_count;
	unsigned slot = 0;

	struct nt_addresses *replaced = NULL;
	for (; slot < NT_FUNCTION_CONTEXTS; slot++) {
		replaced = __atomic_load_n(&function->addresses[slot], __ATOMIC_ACQUIRE);
		CUcontext known = replaced ? __atomic_load_n(&replaced->context, __ATOMIC_ACQUIRE) : NULL;
		if (known == context)
			return true;
		if (!known)
			break;
	}
	if (slot == NT_FUNCTION_CONTEXTS)
		return false;
	struct nt_addresses *addresses = malloc(sizeof(*addresses) + count * sizeof(addresses->values[0]));
	if (!addresses)
		return false;
	addresses->context = context;
	const struct image *image = owner->image;
	const struct nt_kernel *kernel = function->kernel;
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
			nt_trace_note("kernel %u %s: the driver has no address of variable %s (error %d)", kernel->id,
				      kernel->name, name, result);
			free(addresses);
			return false;
		}
	}
	/* What is replaced belonged to a context that is gone; it is kept for readers that still hold it. */
	if (!__atomic_compare_exchange_n(&function->addresses[slot], &replaced, addresses, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		free(addresses);
		return add_addresses(function, owner, context);
	}
	return true;
}

static struct nt_owner *library_behind(struct nt_owner *owner)
{
	return owner->alias ? owner->alias : owner;
}

/*
 * The twin's CUfunction in the current context, its code loaded now: loading it at the first launch could synchronise.
 */
static CUfunction load_now(const struct nt_owner *owner, void *twin)
{
	CUfunction function = twin;

	if (!twin || (owner->is_library && nt_driver.cuKernelGetFunction(&function, twin) != CUDA_SUCCESS))
		return NULL;
	if (nt_driver.cuFuncLoad)
		nt_driver.cuFuncLoad(function);
	return function;
}

/* Load the function's twin for the current context, NULL without one. False: the original has to run. */
static bool load_twin(struct nt_function *function, CUcontext context)
{
	struct nt_owner *owner = library_behind(function->owner);
	const struct neutrino_twin_kernel *row = function->kernel->twin;
	const char *name = nt_entry_string(&owner->image->entry, row->twin_offset);
	void *twin = twin_function(owner, row->image, name);
	void *capped = row->capped ? twin_function(owner, row->capped, name) : NULL;

	if (context) {
		CUfunction in_context = load_now(owner, twin), capped_in_context = load_now(owner, capped);
		if (!function->is_kernel) {
			twin = in_context;
			capped = capped_in_context;
		}
	}
	if (!twin || (context && !add_addresses(function, owner, context)))
		return false;
	function->capped = capped;
	function->twin = twin;
	__atomic_store_n(&has_twins, 1, __ATOMIC_RELEASE);
	nt_pool_prepare(context);
	return true;
}

/*
 * Give a function its twin, or the reason why it has none. Whichever context is current as the program asks for it, a
 * module's function and its twin belong to the module's.
 */
static void pair(struct nt_function *function)
{
	CUcontext current = NULL, own = function->context, popped;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	function->reason = function->kernel->reason;
	if (function->reason != NEUTRINO_REASON_PROBED)
		return;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	nt_driver.cuCtxGetCurrent(&current);
	bool pushed = own && own != current && nt_driver.cuCtxPushCurrent_v2(own) == CUDA_SUCCESS;
	bool is_own = !own || own == current || pushed;
	if (!is_own || !load_twin(function, pushed ? own : current))
		function->reason = NEUTRINO_REASON_LOAD;
	if (pushed)
		nt_driver.cuCtxPopCurrent_v2(&popped);
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

static void add_function(struct nt_owner *owner, void *handle, struct nt_kernel *kernel, bool is_kernel)
{
	struct nt_function *function = calloc(1, sizeof(*function));

	if (!function)
		return;
	function->handle.handle = handle;
	function->owner = owner;
	function->kernel = kernel;
	function->is_kernel = is_kernel;
	if (!is_kernel && owner->context)
		function->context = owner->context;
	else if (!is_kernel)
		nt_driver.cuCtxGetCurrent(&function->context);
	pair(function);
	pthread_mutex_lock(&mutex);
	struct nt_function *other = nt_handles_find(&function_table, handle);
	if (!other || other->owner != owner) {
		if (nt_handles_put(&function_table, &function->handle)) {
			function->next = owner->functions;
			owner->functions = function;
		}
	}
	pthread_mutex_unlock(&mutex);
}

static struct nt_owner *find_owner(void *handle, bool is_library)
{
	struct nt_owner *owner = handle ? nt_handles_find(&owner_table, handle) : NULL;

	return owner && owner->is_library == is_library ? owner : NULL;
}

static void add_owner(void *handle, bool is_library, struct image *image, struct nt_owner *alias)
{
	struct nt_owner *owner = calloc(1, sizeof(*owner));

	if (!owner)
		return;
	owner->handle.handle = handle;
	owner->is_library = is_library;
	owner->image = image;
	owner->alias = alias;
	if (!is_library)
		nt_driver.cuCtxGetCurrent(&owner->context);
	pthread_mutex_lock(&mutex);
	if (nt_handles_put(&owner_table, &owner->handle)) {
		owner->next = owners;
		owners = owner;
	}
	pthread_mutex_unlock(&mutex);
}

void nt_registry_use_sections(void)
{
	in_sections = true;
}

void nt_registry_loaded(void *handle, bool is_library, const struct nt_image_bytes *bytes, const char *source,
			const void *caller)
{
	struct image *image = image_of(bytes, source, caller);

	if (image)
		add_owner(handle, is_library, image, NULL);
}

void nt_registry_alias(CUmodule module, CUlibrary library)
{
	struct nt_owner *owner = find_owner(library, true);

	if (owner && !find_owner(module, false))
		add_owner(module, false, owner->image, owner);
}

void nt_registry_obtained(void *owner_handle, bool is_library, void *handle, const char *name)
{
	struct nt_owner *owner = find_owner(owner_handle, is_library);

	if (!owner || !handle)
		return;
	struct nt_function *function = nt_handles_find(&function_table, handle);
	if (function && library_behind(function->owner) == library_behind(owner))
		return;
	if (!name && (is_library ? !nt_driver.cuKernelGetName || nt_driver.cuKernelGetName(&name, handle)
				 : !nt_driver.cuFuncGetName || nt_driver.cuFuncGetName(&name, handle)))
		return;
	resolve_image(owner->image);
	struct nt_kernel *kernel = kernel_of(owner->image, name);
	if (kernel)
		add_function(owner, handle, kernel, is_library);
}

void nt_registry_function_of(CUkernel kernel, CUfunction handle)
{
	struct nt_function *origin = nt_registry_find(kernel);
	struct nt_function *known = nt_registry_find(handle);

	if (!origin || !origin->is_kernel || (known && known->kernel == origin->kernel))
		return;
	add_function(origin->owner, handle, origin->kernel, false);
}

struct nt_function *nt_registry_find(const void *handle)
{
	return handle ? nt_handles_find(&function_table, handle) : NULL;
}

/* Takes the owner and the modules made of it out of the lists; returns them linked by next. Under the lock. */
static struct nt_owner *take_owner(struct nt_owner *gone)
{
	struct nt_owner *taken = NULL;

	for (struct nt_owner **link = &owners; *link;) {
		struct nt_owner *owner = *link;
		if (owner != gone && owner->alias != gone) {
			link = &owner->next;
			continue;
		}
		*link = owner->next;
		owner->next = taken;
		taken = owner;
		nt_handles_remove(&owner_table, &owner->handle);
		for (struct nt_function *function = owner->functions; function; function = function->next)
			nt_handles_remove(&function_table, &function->handle);
	}
	return taken;
}

/* Another thread may be about to load their code in a context of its own. Where that takes too long they stay loaded. */
static bool wait_for_users(const struct nt_owner *owner)
{
	uint64_t until = nt_now_ns() + USERS_LIMIT_NS;

	while (__atomic_load_n(&owner->users, __ATOMIC_ACQUIRE)) {
		if (nt_now_ns() >= until)
			return false;
		nt_sleep_us(100);
	}
	return true;
}

static void unload_twins(struct nt_owner *owner)
{
	struct part *parts = __atomic_load_n(&owner->parts, __ATOMIC_ACQUIRE);

	if (!parts || !wait_for_users(owner))
		return;
	for (uint32_t i = 0; i < owner->image->entry.header->images; i++) {
		/* One that another thread is at, against the program's own unload, stays. */
		if (__atomic_load_n(&parts[i].state, __ATOMIC_ACQUIRE) != RESOLVED || !parts[i].twins)
			continue;
		if (owner->is_library)
			nt_driver.cuLibraryUnload(parts[i].twins);
		else
			nt_driver.cuModuleUnload(parts[i].twins);
	}
}

void nt_registry_unloading(void *handle, bool is_library)
{
	struct nt_owner *owner = find_owner(handle, is_library);

	if (!owner)
		return;
	pthread_mutex_lock(&mutex);
	take_owner(owner);
	pthread_mutex_unlock(&mutex);
	unload_twins(owner);
}

void nt_registry_forget_context(CUcontext context)
{
	pthread_mutex_lock(&mutex);
	for (struct nt_owner *owner = owners; owner;) {
		/* The modules, and our twins among them, go with the context. */
		if (!owner->is_library && owner->context == context) {
			take_owner(owner);
			owner = owners;
			continue;
		}
		for (struct nt_function *function = owner->functions; function; function = function->next) {
			if (!function->is_kernel && function->context == context)
				nt_handles_remove(&function_table, &function->handle);
			for (int i = 0; i < NT_FUNCTION_CONTEXTS; i++) {
				struct nt_addresses *addresses =
					__atomic_load_n(&function->addresses[i], __ATOMIC_ACQUIRE);
				/* Readers may be at it: what is left is never matched again. */
				if (addresses && __atomic_load_n(&addresses->context, __ATOMIC_ACQUIRE) == context)
					__atomic_store_n(&addresses->context, NULL, __ATOMIC_RELEASE);
			}
		}
		owner = owner->next;
	}
	pthread_mutex_unlock(&mutex);
}

void nt_registry_prepare_context(CUcontext context)
{
	struct nt_function **list = NULL;
	size_t count = 0, room = 0;

	/* Collected under the lock, served outside it. */
	pthread_mutex_lock(&mutex);
	for (struct nt_owner *owner = owners; owner; owner = owner->next)
		for (struct nt_function *function = owner->functions; function; function = function->next) {
			if (!function->is_kernel || !function->twin)
				continue;
			if (count == room) {
				size_t larger = room ? 2 * room : 64;
				struct nt_function **moved = realloc(list, larger * sizeof(*list));
				if (!moved)
					break;
				list = moved;
				room = larger;
			}
			list[count++] = function;
			__atomic_add_fetch(&library_behind(owner)->users, 1, __ATOMIC_ACQ_REL);
		}
	pthread_mutex_unlock(&mutex);

	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (size_t i = 0; i < count; i++) {
		struct nt_owner *owner = library_behind(list[i]->owner);
		load_now(owner, list[i]->capped);
		if (load_now(owner, list[i]->twin))
			add_addresses(list[i], owner, context);
		__atomic_sub_fetch(&owner->users, 1, __ATOMIC_ACQ_REL);
	}
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	free(list);
	nt_pool_prepare(context);
}

bool nt_registry_has_twins(void)
{
	return __atomic_load_n(&has_twins, __ATOMIC_ACQUIRE);
}
