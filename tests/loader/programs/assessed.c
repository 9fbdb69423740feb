/*
 * Prints for each file whether the hook would ask for twins of the image in it: "asked" or the reason's name. The first
 * argument holds "w" where kernels may wait for twins while they run without, and "k" where the bytes are one kernel's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/driver.h"
#include "image/assess.h"
#include "image/entry_fetch.h"
#include "image/requests.h"

/* What the driver and the patched files would say is not asked here. */
struct nt_driver nt_driver;
bool nt_requests_are_on;

bool nt_entry_fetch_key(const struct nt_set *set, const char *arch, const void *image, size_t size, uint8_t ret[32])
{
	(void)set, (void)arch, (void)image, (void)size;
	memset(ret, 1, 32);
	return true;
}

enum nt_section_answer nt_section_find(const struct nt_image_bytes *image, const char *arch, bool embedded,
				       struct nt_section_twins *ret)
{
	(void)image, (void)arch, (void)embedded, (void)ret;
	return NT_SECTION_NONE;
}

int main(int count, char **paths)
{
	static const char *const words[] = { NEUTRINO_REASON_WORDS };

	if (count < 2)
		return 3;
	nt_requests_are_on = strchr(paths[1], 'w');
	for (int i = 2; i < count; i++) {
		static char data[1 << 20];
		struct nt_image_bytes bytes;
		struct nt_assessment assessment = {.reason = NEUTRINO_REASON_PROBED};
		FILE *file = fopen(paths[i], "rb");

		if (!file)
			return 1;
		size_t size = fread(data, 1, sizeof(data) - 1, file);
		fclose(file);
		data[size] = 0;
		if (!nt_image_bytes_measure(data, size + 1, &bytes))
			return 2;
		nt_assess_by_run(&bytes, NULL, "sm_90", strchr(paths[1], 'k'), &assessment);
		puts(assessment.reason == NEUTRINO_REASON_PROBED && assessment.key[31] == 1 ? "asked" : words[assessment.reason]);
	}
	return 0;
}
