/* SHA-256 (FIPS 180-4), with the x86 SHA extensions where the processor has them. */
#ifndef NEUTRINO_SHA256_H
#define NEUTRINO_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct nt_sha256 {
	uint32_t state[8];
	uint64_t length;   /* bytes so far */
	uint8_t block[64]; /* the last length % 64 bytes, which are not in the state yet */
};

void nt_sha256_init(struct nt_sha256 *hash);
void nt_sha256_add(struct nt_sha256 *hash, const void *data, size_t size);
void nt_sha256_finish(struct nt_sha256 *hash, uint8_t ret[32]);

#endif
