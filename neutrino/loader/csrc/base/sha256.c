#include "base/sha256.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constants[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* Rotate a 32-bit word right by count bits, 1 to 31. */
static uint32_t rotate_right(uint32_t value, int count)
{
	return value >> count | value << (32 - count);
}

/* Add blocks of 64 bytes to the hash's state, as in FIPS 180-4, section 6.2.2. */
static void add_blocks_portable(uint32_t state[8], const uint8_t *data, size_t blocks)
{
	for (; blocks; blocks--, data += 64) {
		/* Names as in the standard: w is the message schedule, s the words a to h. */
		uint32_t w[64];
		for (int i = 0; i < 16; i++)
			w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
			       (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
		for (int i = 16; i < 64; i++) {
			uint32_t low = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
			uint32_t high = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
			w[i] = w[i - 16] + low + w[i - 7] + high;
		}
		uint32_t s[8];
		memcpy(s, state, sizeof(s));
		for (int i = 0; i < 64; i++) {
			uint32_t sum1 = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
			uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
			uint32_t first = s[7] + sum1 + choice + round_constants[i] + w[i];
			uint32_t sum0 = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
			uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
			memmove(s + 1, s, 7 * sizeof(s[0]));
			s[4] += first;
			s[0] = first + sum0 + majority;
		}
		for (int i = 0; i < 8; i++)
			state[i] += s[i];
	}
}

#if defined(__x86_64__)
/*
 * Add blocks of 64 bytes to a SHA-256 state by the x86 SHA extensions: two rounds per instruction, with the state's
 * words as two vectors ABEF and CDGH, as these instructions require (Intel, "New Instructions Supporting the Secure
 * Hash Algorithm").
 */
__attribute__((target("sha,sse4.1,ssse3"))) static void add_blocks_sha(uint32_t state[8], const uint8_t *data,
								       size_t blocks)
{
	/* Reverses the bytes of each word, which are big-endian in the message. */
	const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
	/* From the order in memory to that of the instructions. */
	__m128i abcd = _mm_loadu_si128((const __m128i *)state);
	__m128i efgh = _mm_loadu_si128((const __m128i *)(state + 4));
	__m128i badc = _mm_shuffle_epi32(abcd, 0xb1);
	__m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);
	__m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
	__m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);

	for (; blocks; blocks--, data += 64) {
		__m128i abef_before = abef, cdgh_before = cdgh, w[4];
		for (int i = 0; i < 4; i++)
			w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
		for (int i = 0; i < 16; i++) {
			__m128i k = _mm_loadu_si128((const __m128i *)(round_constants + 4 * i));
			__m128i wk = _mm_add_epi32(w[i & 3], k);
			cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
			abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
			/* The message words of a later round, for all but the last four: 16 rounds of 4 words. */
			if (i < 12) {
				__m128i next = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
				next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
				w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
			}
		}
		abef = _mm_add_epi32(abef, abef_before);
		cdgh = _mm_add_epi32(cdgh, cdgh_before);
	}

	/* And back. */
	__m128i feba = _mm_shuffle_epi32(abef, 0x1b);
	__m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
	_mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

/*
 * Add blocks of 64 bytes to a SHA-256 state: by the SHA extensions if the processor has them, which is found out once,
 * else in plain C. From any thread.
 */
static void add_blocks(uint32_t state[8], const uint8_t *data, size_t blocks)
{
#if defined(__x86_64__)
	static int has_sha = -1;
	int known = __atomic_load_n(&has_sha, __ATOMIC_RELAXED);
	if (known < 0) {
		uint32_t eax, ebx, ecx, edx;
		/* cpuid itself: __builtin_cpu_supports depends on a constructor of libgcc. */
		known = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_SSE4_1) &&
			__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_SHA);
		__atomic_store_n(&has_sha, known, __ATOMIC_RELAXED);
	}
	if (known) {
		add_blocks_sha(state, data, blocks);
		return;
	}
#endif
	add_blocks_portable(state, data, blocks);
}

/* Begin a SHA-256 hash; data follows by nt_sha256_add, and nt_sha256_finish gives the digest. */
void nt_sha256_init(struct nt_sha256 *hash)
{
	static const uint32_t initial[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	};
	memcpy(hash->state, initial, sizeof(initial));
	hash->length = 0;
}

/* Add size bytes to a SHA-256 hash that is under way; data may come in pieces of any size. */
void nt_sha256_add(struct nt_sha256 *hash, const void *data, size_t size)
{
	const uint8_t *bytes = data;
	size_t buffered = hash->length % 64;

	hash->length += size;
	/* Complete the block that earlier calls have begun. */
	if (buffered) {
		size_t count = 64 - buffered < size ? 64 - buffered : size;
		memcpy(hash->block + buffered, bytes, count);
		bytes += count;
		size -= count;
		if (buffered + count < 64)
			return;
		add_blocks(hash->state, hash->block, 1);
	}
	add_blocks(hash->state, bytes, size / 64);
	memcpy(hash->block, bytes + size / 64 * 64, size % 64);
}

/* End a SHA-256 hash, and write its digest of 32 bytes. The hash cannot be added to after that. */
void nt_sha256_finish(struct nt_sha256 *hash, uint8_t ret[32])
{
	/*
	 * A 1 bit, zeros up to 8 bytes before the end of a block (56 bytes into it, or into the next one), then the length
	 * in bits, big-endian.
	 */
	uint64_t bits = hash->length * 8;
	uint8_t tail[72] = {0x80};
	size_t padding = (hash->length % 64 < 56 ? 56 : 120) - hash->length % 64;

	for (int i = 0; i < 8; i++)
		tail[padding + i] = (uint8_t)(bits >> (56 - 8 * i));
	nt_sha256_add(hash, tail, padding + 8);
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 4; j++)
			ret[4 * i + j] = (uint8_t)(hash->state[i] >> (24 - 8 * j));
}
