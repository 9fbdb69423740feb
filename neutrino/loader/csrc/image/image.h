/*
 * Images that the program has loaded (fatbins, cubins, PTX), identified by their bytes: where their twins (instrumented
 * copies of kernels) come from, and the kernels in them. All functions may be called from any thread.
 */
#ifndef NEUTRINO_IMAGE_H
#define NEUTRINO_IMAGE_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/kernel.h"
#include "image/entry.h"
#include "image/image_bytes.h"

/* State of something that is loaded once, by the first thread that needs it. */
enum nt_resolve_state {
	UNRESOLVED,
	RESOLVING,
	RESOLVED,
};

struct nt_begun;
struct nt_set;

struct nt_image {
	struct nt_hashed by_key; /* first: in the table of images */
	uint32_t id;
	enum nt_image_kind kind;
	size_t size;
	char *source;
	uint8_t key[32];
	const struct nt_set *set; /* of probes, that its twins have; NULL: it has none, whatever the set */
	char arch[16];
	int driver_version;
	enum neutrino_reason reason; /* PROBED: the entry has a reason per kernel */
	char *detail;
	const char *ptx_by; /* who made it of PTX in this process, such as "NVRTC"; NULL: it is not known, or it holds PTX */
	int state;	   /* enum nt_resolve_state */
	bool has_entry;	   /* or may have one: kernels that are obtained before it is resolved are not ready */
	bool is_of_kernel; /* its entry has one kernel, whose name is in its key: kernel_image.c */
	bool from_section; /* its twins are in the section of the patched file that contains it; else the run's */
	void *copy;	   /* until resolved: of the image's bytes, or of its entry from a section; or NULL */
	size_t copy_size;
	struct nt_begun *begun; /* until resolved: the request for its entry, or NULL; of the thread that resolves it */
	pid_t begun_pid; /* of the process that made it */
	uint64_t begun_ns; /* and when (nt_clock_now_ns) */
	struct nt_image *next_begun; /* background.c's: in a list of those that were, or are to be, asked for */
	struct nt_entry entry;
	struct nt_hash_table kernels; /* by name */
};

/* Take twins from the sections of patched files, not from the run. Called before the first image is loaded. */
void nt_image_use_sections(void);

/*
 * The image with these bytes, which is made if it is new; NULL without memory. source: path of the file that the driver
 * loaded, NULL if the program gave it bytes in memory. caller: return address of the program's call. may_be_chosen: whether
 * any launch of its kernels can be; else it needs no twins.
 */
struct nt_image *nt_image_of(const struct nt_image_bytes *bytes, const char *source, const void *caller,
			     bool may_be_chosen);

/*
 * The same for a set of probes (image/sets.h) that is not, or not yet, in force; image: what nt_image_of has returned for these
 * bytes, with an entry. is_of_kernel: the bytes are those of one kernel's request (kernel_image.c), which has an entry of its own.
 */
struct nt_image *nt_image_of_set(const struct nt_image *image, const struct nt_image_bytes *bytes, const struct nt_set *set,
				 bool is_of_kernel);

/* Whether an address is in a loaded library that is never rewritten, since its licence forbids that. */
bool nt_image_is_vendors(const void *address);

/* Keep in the cache what memory the logs of all images' kernels wanted, where it is more than is kept there. */
void nt_image_keep_needs(void);

/* Get an image's entry, once. Takes long if twins have to be made; other threads wait for the first. */
void nt_image_resolve(struct nt_image *image);

/*
 * Whether it is known what twins (probed copies of kernels) the image (GPU code of the program) has, so that nobody
 * waits for that any more. Lock-free.
 */
static inline bool nt_image_is_resolved(const struct nt_image *image)
{
	return __atomic_load_n(&image->state, __ATOMIC_ACQUIRE) == RESOLVED;
}

/* The same as far as the entry is there already; whether the image is resolved now. */
bool nt_image_resolve_at_once(struct nt_image *image);

/*
 * Have the entry made while the caller goes on, unless that was asked for, or another thread is resolving the image. By one
 * thread.
 */
void nt_image_begin(struct nt_image *image);

/* Give up what nt_image_begin has begun. By the same thread. */
void nt_image_drop(struct nt_image *image);

/*
 * Whether resolving it takes no wait for the listener, as far as is known. What was begun is waited for, at most that long.
 * True as well when that has taken NEUTRINO_TIMEOUT.
 */
bool nt_image_is_answered(struct nt_image *image, unsigned milliseconds);

/* The image is resolved: set what is known of a kernel that was obtained before, and log it again. By one thread. */
void nt_image_complete(struct nt_kernel *kernel);

/*
 * The kernel of that name, which is made and logged if it is new: not ready if its image is not resolved. NULL without
 * memory.
 */
struct nt_kernel *nt_image_kernel(struct nt_image *image, const char *name);

/* How many kernels there are in all images: their ids are 1 to this number. */
uint32_t nt_image_kernels(void);

/*
 * Kernels with launches, by name, at most so many; returns how many there are. *are_unselected: whether they have no twin since
 * -k or --filter left them out, all of them.
 */
uint32_t nt_image_launched(const char **ret, uint32_t most, bool *are_unselected);

/* How many kernels have twins without some of the run's probes. */
uint32_t nt_image_incomplete(void);

#endif
