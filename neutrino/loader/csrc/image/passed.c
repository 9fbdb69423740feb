#include "image/passed.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/sha256.h"

/* At most so many cubins, and bytes of PTX, are kept: those that were compiled last. */
#ifndef NT_PASSED_MOST
#define NT_PASSED_MOST 8192u
#endif
#define MOST_BYTES (UINT64_C(256) << 20)
#define BUCKETS 1024u

/* One that was kept: in the list of its bucket, and in that of all in the order of their time. */
struct kept {
	struct kept *next, *later;
	uint8_t digest[32]; /* of nt_passed_digest */
	const char *by, *why;
	size_t size;	    /* of the text */
	char text[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct kept *buckets[BUCKETS], *oldest, *newest;
static uint32_t count; /* also read without the mutex */
static uint64_t bytes_kept;

/* The fields of a fatbin's header and of an entry's, as neutrino/fatbin/entry.py has them. */
struct container {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
};
struct entry {
	uint16_t kind, version;
	uint32_t header_size;
	uint64_t payload_size;
	uint32_t compressed_size, options;
	uint16_t minor, major;
	uint32_t arch, name, name_size;
	uint64_t flags, reserved, uncompressed_size;
};
_Static_assert(sizeof(struct container) == 16 && sizeof(struct entry) == 64, "as in files");

enum { KIND_PTX = 1, KIND_CUBIN = 2, ENTRY_VERSION = 0x101, FLAGS = 0x11 /* 64 bits, Linux */ };
#define MAGIC 0xba55ed50u
#define FLAG_ARCH_A UINT64_C(0x100000)
#define FLAG_ARCH_F UINT64_C(0x200000)
/* The name of the source file in the entry of the PTX: by it, and who made it, such a fatbin is known. */
#define NAME "neutrino: passed by "
#define EI_ABIVERSION_AT 8 /* in a cubin */

/* A size rounded up to a multiple of 8 bytes. */
static size_t padded(size_t size)
{
	return (size + 7) & ~(size_t)7;
}

/* An architecture in its parts: 90 and FLAG_ARCH_A of "sm_90a". */
struct arch {
	uint32_t number;
	uint64_t flag;
};

/* Read an architecture such as "sm_90a" at the start of a text of size bytes. False if there is none. */
static bool read_arch(const char *text, size_t size, struct arch *ret)
{
	size_t at = 3;

	*ret = (struct arch){0, 0};
	if (size <= at || memcmp(text, "sm_", at) != 0)
		return false;
	for (; at < size && at < 8 && isdigit((unsigned char)text[at]); at++)
		ret->number = ret->number * 10 + (uint32_t)(text[at] - '0');
	if (at < size && (text[at] == 'a' || text[at] == 'f'))
		ret->flag = text[at] == 'a' ? FLAG_ARCH_A : FLAG_ARCH_F;
	return ret->number != 0;
}

/* The architecture that PTX is for, by the first line that begins with ".target". False if it states none. */
static bool read_target(const char *text, size_t size, struct arch *ret)
{
	static const char directive[] = ".target";
	const char *end = text + size, *found = text;
	bool is_at_start = false;

	while (!is_at_start) {
		found = memmem(found, (size_t)(end - found), directive, strlen(directive));
		if (!found)
			return false;
		const char *line = found;
		while (line > text && (line[-1] == ' ' || line[-1] == '\t'))
			line--;
		is_at_start = line == text || line[-1] == '\n';
		found += strlen(directive);
	}
	while (found < end && (*found == ' ' || *found == '\t'))
		found++;
	return read_arch(found, (size_t)(end - found), ret);
}

/* The list in which a cubin with that digest is. */
static struct kept **bucket_of(const uint8_t digest[32])
{
	return &buckets[(digest[0] | (uint32_t)digest[1] << 8) % BUCKETS];
}

/* What was kept of the cubin with that digest, or NULL. Under the mutex. */
static struct kept *find(const uint8_t digest[32])
{
	struct kept *found = *bucket_of(digest);

	while (found && memcmp(found->digest, digest, sizeof(found->digest)) != 0)
		found = found->next;
	return found;
}

/* Take one out of both lists, and put it into a list of those to be freed. Under the mutex. */
static void drop(struct kept *old, struct kept **dropped)
{
	struct kept **link = bucket_of(old->digest), **time = &oldest, *before = NULL;

	while (*link != old)
		link = &(*link)->next;
	*link = old->next;
	/* Mostly it is the oldest. */
	for (; *time != old; time = &before->later)
		before = *time;
	*time = old->later;
	if (newest == old)
		newest = before;
	bytes_kept -= old->size;
	__atomic_fetch_sub(&count, 1, __ATOMIC_RELAXED);
	old->later = *dropped;
	*dropped = old;
}

/* Put one into both lists as the newest. Under the mutex. */
static void link_newest(struct kept *new)
{
	struct kept **bucket = bucket_of(new->digest);

	new->later = NULL;
	new->next = *bucket;
	*bucket = new;
	if (newest)
		newest->later = new;
	else
		oldest = new;
	newest = new;
	bytes_kept += new->size;
	__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}

/*
 * The SHA-256 by which a cubin (machine code for a GPU) is known: of its bytes, and zeros up to a multiple of 8 bytes, as
 * fatbins store it.
 */
void nt_passed_digest(const struct nt_image_bytes *cubin, uint8_t ret[32])
{
	static const uint8_t zeros[8];
	struct nt_sha256 hash;

	nt_sha256_init(&hash);
	nt_sha256_add(&hash, cubin->data, cubin->size);
	nt_sha256_add(&hash, zeros, padded(cubin->size) - cubin->size);
	nt_sha256_finish(&hash, ret);
}

/* Measure a cubin (machine code for a GPU) of size bytes. False if it is none, or holds its PTX itself. */
static bool measure_bare(const void *cubin, size_t size, struct nt_image_bytes *ret)
{
	return nt_image_bytes_measure(cubin, size, ret) && ret->kind == NT_IMAGE_CUBIN && !ret->has_text;
}

/*
 * Whether the PTX of a cubin (machine code for a GPU) of size bytes would be kept: it holds none, and none of it is kept
 * yet.
 */
bool nt_passed_is_wanted(const void *cubin, size_t size)
{
	struct nt_image_bytes bytes;
	uint8_t digest[32];

	if (!measure_bare(cubin, size, &bytes))
		return false;
	nt_passed_digest(&bytes, digest);
	nt_lock_take(&mutex);
	const struct kept *known = find(digest);
	bool ret = !known || !known->size;
	nt_lock_release(&mutex);
	return ret;
}

/*
 * Keep the PTX that a cubin (machine code for a GPU, whose kernels get probes when the program loads it) was compiled
 * from. text: NULL if it cannot be used; then why says the reason. by: who made it, such as "NVRTC". Both are never freed.
 */
void nt_passed_keep(const void *cubin, size_t cubin_size, const char *text, size_t text_size, const char *by,
		    const char *why)
{
	struct nt_image_bytes bytes;
	struct kept *dropped = NULL;
	struct arch arch;

	if (!measure_bare(cubin, cubin_size, &bytes))
		return;
	text_size = text ? strnlen(text, text_size) : 0;
	if (text && !read_target(text, text_size, &arch)) {
		why = "its PTX states no architecture";
		text_size = 0;
	}
	if (text_size > MOST_BYTES)
		return;
	struct kept *new = nt_memory_alloc(sizeof(*new) + text_size);
	if (!new)
		return;
	*new = (struct kept){.by = by, .why = text_size ? NULL : why, .size = text_size};
	if (text_size)
		memcpy(new->text, text, text_size);
	nt_passed_digest(&bytes, new->digest);

	nt_lock_take(&mutex);
	struct kept *known = find(new->digest);
	/* The same compilation again. Of two texts with the same machine code, either is its PTX; one is better than none. */
	if (known && (known->size || !text_size)) {
		dropped = new;
	} else {
		if (known)
			drop(known, &dropped);
		link_newest(new);
		while (count > NT_PASSED_MOST || bytes_kept > MOST_BYTES)
			drop(oldest, &dropped);
	}
	nt_lock_release(&mutex);
	while (dropped) {
		struct kept *later = dropped->later;
		nt_memory_free(dropped);
		dropped = later;
	}
}

/*
 * Make a fatbin of a cubin (machine code for a GPU) and its PTX; NULL without memory. arch: of the device on which it
 * runs, which is what the entry of the cubin states. *size: of the fatbin in bytes.
 */
static uint8_t *make_fatbin(const struct nt_image_bytes *cubin, const char *arch, const struct kept *kept, size_t *size)
{
	char name[64] = NAME;
	struct arch of_text, of_code;

	if (!read_target(kept->text, kept->size, &of_text) || !read_arch(arch, strlen(arch), &of_code))
		return NULL;
	strncat(name, kept->by, sizeof(name) - sizeof(NAME));
	size_t name_size = strlen(name), room = padded(name_size + 1);
	size_t text_size = padded(kept->size + 1), code_size = padded(cubin->size);
	size_t all = 2 * sizeof(struct entry) + room + text_size + code_size;
	uint8_t *ret = nt_memory_alloc_zeroed(1, sizeof(struct container) + all), *to = ret;

	if (!ret)
		return NULL;
	struct container container = {MAGIC, 1, sizeof(container), all};
	struct entry text = {.kind = KIND_PTX, .version = ENTRY_VERSION, .header_size = (uint32_t)(sizeof(text) + room),
			     .payload_size = text_size, .major = 8, .arch = of_text.number, .name = sizeof(text),
			     .name_size = (uint32_t)name_size, .flags = FLAGS | of_text.flag};
	struct entry code = {.kind = KIND_CUBIN, .version = ENTRY_VERSION, .header_size = sizeof(code),
			     .payload_size = code_size, .major = 1, .minor = cubin->data[EI_ABIVERSION_AT], .arch = of_code.number, .flags = FLAGS | of_code.flag};
	to = (uint8_t *)mempcpy(to, &container, sizeof(container));
	to = (uint8_t *)mempcpy(to, &text, sizeof(text));
	memcpy(to, name, name_size);
	to += room;
	memcpy(to, kept->text, kept->size);
	to += text_size;
	to = (uint8_t *)mempcpy(to, &code, sizeof(code));
	memcpy(to, cubin->data, cubin->size);
	*size = sizeof(container) + all;
	return ret;
}

/*
 * What is known of an image that the program has loaded, if it is a cubin (machine code for a GPU) without PTX: a fatbin
 * of it and the PTX that it was compiled from in this process, or why there is none. arch: of the device, such as "sm_90".
 */
struct nt_passed nt_passed_find(const struct nt_image_bytes *bytes, const char *arch)
{
	struct nt_passed ret = {.fatbin = NULL};
	uint8_t digest[32];

	if (bytes->kind != NT_IMAGE_CUBIN || bytes->has_text || !__atomic_load_n(&count, __ATOMIC_RELAXED))
		return ret;
	nt_passed_digest(bytes, digest);
	/* Copied under the mutex, since another thread may drop it. */
	nt_lock_take(&mutex);
	const struct kept *found = find(digest);
	if (found) {
		ret.by = found->by;
		ret.why = found->why;
		if (found->size)
			ret.fatbin = make_fatbin(bytes, arch, found, &ret.size);
	}
	nt_lock_release(&mutex);
	return ret;
}
