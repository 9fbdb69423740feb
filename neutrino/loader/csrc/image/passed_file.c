#include "image/passed_file.h"

#include <string.h>

#include "base/errand.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/sha256.h"
#include "image/cached_file.h"
#include "image/passed.h"

static const struct nt_cached_file passed_file = {"passed", ".ptx", UINT64_C(64) << 20};

/* A file is a name, NUL and zeros up to so many bytes; the SHA-256 of the text; and the text, PTX. */
#define NAME_SIZE 32
#define DIGEST_SIZE 32

/* For read_file: which file, and what it holds; data: NULL if there is none. */
struct reading {
	uint8_t key[32];
	void *data;
	size_t size;
};

/* Errand of nt_passed_file_keep (argument: its struct reading): read the cache's file. */
static void read_file(void *argument)
{
	struct reading *reading = argument;

	reading->data = nt_cached_file_read(&passed_file, reading->key, &reading->size);
}

/*
 * The name of a compiler or linker of those whose PTX is kept, or of the option by which the user gave it, as a text that
 * is never freed; NULL: it is none.
 */
static const char *known_name(const char name[NAME_SIZE])
{
	static const char *const known[] = {"NVRTC", "nvJitLink", "cuLink", "--ptx"};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strncmp(name, known[i], NAME_SIZE))
			return known[i];
	return NULL;
}

/*
 * Keep the PTX of an image without PTX that the program loads, if the cache has it from an earlier run, in which the image's
 * machine code was compiled.
 */
void nt_passed_file_keep(const struct nt_image_bytes *bytes)
{
	struct reading reading = {.data = NULL};
	uint8_t digest[DIGEST_SIZE];
	struct nt_sha256 hash;

	nt_passed_digest(bytes, reading.key);
	nt_errand_run(read_file, &reading);
	NT_FREED uint8_t *data = reading.data;
	if (!data || reading.size <= NAME_SIZE + DIGEST_SIZE)
		return;
	const char *text = (const char *)data + NAME_SIZE + DIGEST_SIZE;
	size_t size = reading.size - NAME_SIZE - DIGEST_SIZE;
	nt_sha256_init(&hash);
	nt_sha256_add(&hash, text, size);
	nt_sha256_finish(&hash, digest);
	const char *by = known_name((const char *)data);
	if (by && !memcmp(digest, data + NAME_SIZE, sizeof(digest)))
		nt_passed_keep(bytes->data, bytes->size, text, size, by, NULL);
}
