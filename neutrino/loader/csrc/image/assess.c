#include "image/assess.h"

#include <stdio.h>
#include <string.h>

#include "base/driver.h"
#include "base/settings.h"
#include "base/sha256.h"
#include "image/entry_fetch.h"
#include "image/requests.h"

#define IDENTITY_BYTES 65536u

/*
 * Decide whether an image (GPU code of the program) has twins (copies with probes) in a patched file: looks in the
 * .neutrino section of the loaded file that contains its bytes. is_file: the bytes were read from a file by us, and so
 * are in no loaded object. arch: such as "sm_90". Sets ret->reason (PROBED: *twins and ret->key are set) and
 * ret->detail.
 */
void nt_assess_by_section(const struct nt_image_bytes *bytes, bool is_file, const char *arch,
			  struct nt_section_twins *twins, struct nt_assessment *ret)
{
	bool embedded = nt_driver.neutrinoEmbeddedRefusal != NULL;

	ret->reason = bytes->has_text ? NEUTRINO_REASON_NOT_PATCHED : NEUTRINO_REASON_NO_PTX;
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
			 "the twins in %s are damaged; patch it again", twins->library);
		break;
	case NT_SECTION_OTHER_VERSION:
		ret->reason = NEUTRINO_REASON_NOT_PATCHED;
		snprintf(ret->detail, sizeof(ret->detail),
			 "%s was patched by another version of Neutrino; patch it again", twins->library);
		break;
	case NT_SECTION_NONE:
		break;
	}
}

/*
 * Decide whether an image (GPU code of the program) can have twins (copies with probes) in a run with probes of its
 * own, by a set of them: sets ret->key, the key of its cache entry, or else ret->reason and ret->detail. ret->reason is
 * PROBED before. is_of_kernel: the bytes ask for the entry of one kernel alone.
 */
void nt_assess_by_run(const struct nt_image_bytes *bytes, const struct nt_set *set, const char *arch, bool is_of_kernel,
		      struct nt_assessment *ret)
{
	const struct nt_settings *settings = nt_settings();
	/* A kernel that is not ready has no entry yet that could say whether the image has its PTX. */
	bool is_by_kernel = nt_settings_by_kernel(arch) && !is_of_kernel && (settings->is_code_only || nt_requests_are_on);

	if (is_by_kernel || (!bytes->has_text && !settings->takes_code)) {
		ret->reason = NEUTRINO_REASON_NO_PTX;
	} else if (!nt_entry_fetch_key(set, arch, bytes->data, bytes->size, ret->key)) {
		ret->reason = NEUTRINO_REASON_HELPER;
		snprintf(ret->detail, sizeof(ret->detail), "NEUTRINO_KEY is not a valid key");
	}
}

/*
 * Compute an identity for an image (GPU code of the program) without twins (copies with probes), by which it is found
 * again: the hash of its size and of its first IDENTITY_BYTES, which is quicker than hashing all of it. If two images
 * had the same, the trace would show them as one.
 */
void nt_assess_identity(const struct nt_image_bytes *bytes, uint8_t ret[32])
{
	struct nt_sha256 hash;
	uint64_t size = bytes->size;

	nt_sha256_init(&hash);
	nt_sha256_add(&hash, &size, sizeof(size));
	nt_sha256_add(&hash, bytes->data, bytes->size < IDENTITY_BYTES ? bytes->size : IDENTITY_BYTES);
	nt_sha256_finish(&hash, ret);
}
