// Kernels that the interpreter of AMD's machine code is judged with: the same source is compiled for the CPU, and every
// bit that it writes is compared. Work-items read a[i] and b[i], 8 bytes each, and write 8 bytes to o[i].
// A kernel with phases is one whose work-items meet at a barrier in front of each.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned u32;
typedef int i32;
typedef unsigned long u64;
typedef long i64;
typedef float f32;
typedef double f64;
typedef _Float16 f16;

#define BLOCK 128
#define LENGTH 64

#ifdef __AMDGCN__
#define FUNCTION __attribute__((device)) static
#define CALLED __attribute__((device, noinline)) static
#define KERNEL(name) \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, BLOCK))) void name(const u64 *a, const u64 *b, u64 *o)
#define SHARED __attribute__((shared)) static
#define CONSTANT __attribute__((device)) static const
#define GROUP ((int)__builtin_amdgcn_workgroup_id_x())
#define ITEM const int t = __builtin_amdgcn_workitem_id_x(), i = GROUP * BLOCK + t;
#define PHASE \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
    __builtin_amdgcn_s_barrier(); \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#define ATOMIC(operation, at, value) __hip_atomic_##operation(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#define PHASED(name) KERNEL(name)
#define OWN(type, name) type name
#define MINE(name) name
#else
#define FUNCTION static
#define CALLED __attribute__((noinline)) static
#define KERNEL(name) extern "C" void name(const u64 *a, const u64 *b, u64 *o, int i, int t, int group)
#define PHASED(name) extern "C" void name(const u64 *a, const u64 *b, u64 *o, int group)
#define SHARED static
#define CONSTANT static const
#define GROUP group
#define ITEM
#define PHASE for (int t = 0, i = group * BLOCK; t < BLOCK; t++, i++)
#define ATOMIC(operation, at, value) __atomic_##operation(at, value, __ATOMIC_RELAXED)
#define OWN(type, name) static type name[BLOCK]
#define MINE(name) name[t]
#endif

template <class To, class From> FUNCTION To as(From x) { return __builtin_bit_cast(To, x); }
FUNCTION u32 low(u64 x) { return (u32)x; }
FUNCTION u32 high(u64 x) { return (u32)(x >> 32); }
FUNCTION f32 single(u64 x) { return as<f32>((u32)x); }
FUNCTION u64 both(u32 x, u32 y) { return x | (u64)y << 32; }
FUNCTION u64 floats(f32 x, f32 y) { return both(as<u32>(x), as<u32>(y)); }
/* A number of moderate size, of which conversions and comparisons are defined. */
FUNCTION f32 moderate(u64 x) { return (i32)low(x) * 0x1p-20f; }
FUNCTION f64 moderate64(u64 x) { return (i64)x * 0x1p-40; }

// ---- integers ----
KERNEL(mixed_sums) { ITEM u32 x = low(a[i]), y = low(b[i]); o[i] = both(x * 3 + y - (x ^ y), (x & y) + (x | ~y)); }
KERNEL(wide_sums) { ITEM o[i] = a[i] + b[i] * 5 - (a[i] ^ b[i]); }
KERNEL(wide_products) { ITEM o[i] = a[i] * b[i] + (u64)(((unsigned __int128)a[i] * b[i]) >> 64); }
KERNEL(signed_products) { ITEM o[i] = (u64)((__int128)(i64)a[i] * (i64)b[i] >> 64) ^ (u64)((i64)(i32)a[i] * (i32)b[i]); }
KERNEL(divided) { ITEM i32 x = (i32)a[i], y = (i32)b[i] | 1; if (y == -1) y = 3; o[i] = both(x / y, x % y); }
KERNEL(divided_unsigned) { ITEM u32 x = low(a[i]), y = (low(b[i]) >> (i % 32)) | 1; o[i] = both(x / y, x % y); }
KERNEL(divided_wide) { ITEM i64 x = (i64)a[i], y = ((i64)b[i] >> (i % 64)) | 1; if (y == -1) y = 7; o[i] = x / y ^ x % y << 1; }
KERNEL(divided_wide_unsigned) { ITEM u64 y = (b[i] >> (i % 64)) | 1; o[i] = a[i] / y + a[i] % y * 3; }
KERNEL(divided_by_constants) { ITEM u32 x = low(a[i]); i32 y = (i32)high(a[i]); o[i] = both(x / 7 + x % 1000, y / -13 + y % 10); }
KERNEL(shifted) { ITEM u32 x = low(a[i]), n = low(b[i]) & 31; o[i] = both(x << n ^ x >> (31 - n), (i32)x >> n); }
KERNEL(shifted_wide) { ITEM u64 x = a[i], n = b[i] & 63; o[i] = x << n ^ x >> (63 - n) ^ (u64)((i64)x >> n); }
KERNEL(rotated) { ITEM u32 x = low(a[i]), n = low(b[i]) & 31; o[i] = both(__builtin_rotateleft32(x, n), __builtin_rotateright32(x, 11)) ^ __builtin_rotateleft64(a[i], n); }
KERNEL(counted_bits) { ITEM u64 x = a[i] >> (b[i] & 63) | 1; o[i] = both(__builtin_popcountl(x) * 100 + __builtin_clzl(x), __builtin_ctzl(x) + 100 * __builtin_clz((u32)x | 1) + 10000 * __builtin_popcount((u32)x)); }
KERNEL(reversed) { ITEM o[i] = __builtin_bitreverse64(a[i]) ^ __builtin_bswap64(b[i]) ^ both(__builtin_bitreverse32(low(a[i])), __builtin_bswap32(low(b[i]))); }
KERNEL(chosen) { ITEM i32 x = (i32)a[i], y = (i32)b[i]; i64 v = (i64)a[i], w = (i64)b[i]; i32 least = x < y ? x : y; i64 most = v > w ? v : w; o[i] = (u64)most ^ both(least < 0 ? -least : least, (u32)x > (u32)y ? x : y); }
KERNEL(narrow) { ITEM i8 x = (i8)a[i]; i16 y = (i16)b[i]; u8 z = (u8)(x * y >> 3); o[i] = both((u32)(i32)(i16)(x * 3 + y) ^ z, (u32)(u16)(y - x) << 8 | (u8)(z - x)); }
KERNEL(packed_bytes) { ITEM u32 sum = 0; for (int k = 0; k < 8; k++) sum += (i8)(a[i] >> 8 * k) * (i32)(u8)(b[i] >> 8 * k); o[i] = sum; }
KERNEL(saturated) { ITEM i32 x = (i32)a[i], y = (i32)b[i]; o[i] = both(__builtin_elementwise_add_sat(x, y), __builtin_elementwise_sub_sat((u32)x, (u32)y)); }
KERNEL(fields) { ITEM u32 x = low(a[i]), n = low(b[i]); o[i] = both((x >> 5 & 0x3ff) | (x << 20 & 0xfff00000), (x >> (n & 15) & ((1u << (n >> 8 & 15)) - 1)) ^ (i32)(x << 7) >> 20); }
KERNEL(carried) { ITEM u32 c, d; u32 x = __builtin_addc(low(a[i]), low(b[i]), 0u, &c); u32 y = __builtin_addc(high(a[i]), high(b[i]), c, &d); o[i] = both(x, y) + d; }
// ---- control flow ----
KERNEL(collatz) { ITEM u64 v = (a[i] & 0xffff) + 1; u32 s = 0; while (v != 1 && s < 60) { v = v & 1 ? 3 * v + 1 : v / 2; s++; } o[i] = both(s, (u32)v); }
KERNEL(common_divisor) { ITEM u32 x = low(a[i]) >> 8, y = (low(b[i]) >> 8) + 1; int n = 0; while (y && n++ < 40) { u32 r = x % y; x = y; y = r; } o[i] = both(x, n); }
KERNEL(square_root_of_integer) { ITEM u32 x = low(a[i]), r = 0; for (u32 bit = 1u << 30; bit; bit >>= 2) { if (x >= r + bit) { x -= r + bit; r = r >> 1 | bit; } else r >>= 1; if (bit < 4 && x == b[i]) break; } o[i] = both(r, x); }
KERNEL(cyclic_code) { ITEM u32 c = ~0u; for (int k = 0; k < 8; k++) { c ^= (u8)(a[i] >> 8 * k); for (int j = 0; j < 8; j++) c = c >> 1 ^ (0xedb88320 & -(c & 1)); } o[i] = ~c; }
KERNEL(hashed) { ITEM u32 x = low(a[i]), y = high(a[i]), k = low(b[i]); for (int r = 0; r < 10; r++) { u64 p = (u64)x * 0xd2511f53; u32 h = (u32)(p >> 32) ^ y ^ k; y = (u32)p; x = h; k += 0x9e3779b9; } o[i] = both(x, y); }
KERNEL(searched) { ITEM u32 from = 0, to = LENGTH; while (from < to) { u32 m = (from + to) / 2; if ((b[m] >> 32) * 64 / 0x100000000 * m < (a[i] & 63)) from = m + 1; else to = m; } o[i] = from; }
KERNEL(switched) { ITEM u32 x = low(b[i]); u64 r; switch (a[i] & 7) { case 0: r = x + 1; break; case 1: r = x * 7; break; case 2: r = x >> 3; break; case 3: r = ~x; break; case 4: r = x ^ 0x55; break; case 5: r = a[i] + b[i]; break; default: r = 9; } o[i] = r; }
KERNEL(sorted_in_scratch) { ITEM u32 v[8]; for (int k = 0; k < 8; k++) v[k] = (u32)(a[i] >> 8 * k & 0xff) | (u32)k << 8; for (int k = 1; k < 8; k++) for (int j = k; j && (v[j] & 0xff) < (v[j - 1] & 0xff); j--) { u32 s = v[j]; v[j] = v[j - 1]; v[j - 1] = s; } o[i] = both(v[b[i] & 7], v[b[i] >> 3 & 7]); }
CALLED u32 twice(u32 x, int n) { for (int k = 0; k < n; k++) x = x * x + 1; return x; }
CALLED u32 thrice(u32 x, int n) { return twice(x, n & 7) * 3 + twice(x ^ 1, 2); }
KERNEL(calling) { ITEM o[i] = both(twice(low(a[i]), (int)(b[i] & 7)), a[i] & 1 ? thrice(low(b[i]), 5) : 4); }
CONSTANT u32 table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
KERNEL(looked_up) { ITEM u32 s = 0; for (int k = 0; k < 16; k++) s = s * 31 + table[a[i] >> 4 * k & 15]; o[i] = s; }
KERNEL(left_early) { ITEM if (a[i] & 1) return; for (u32 k = 0; k < (b[i] & 15); k++) { if ((a[i] >> k & 7) == 5) { o[i] = k; return; } if (k == 9) break; } o[i] = 77; }
// ---- floats ----
KERNEL(float_sums) { ITEM f32 x = single(a[i]), y = single(b[i]); o[i] = floats(x + y, x - y * 3.0f); }
KERNEL(float_products) { ITEM f32 x = single(a[i]), y = single(b[i]); o[i] = floats(x * y, x * x - y); }
KERNEL(float_fused) { ITEM f32 x = single(a[i]), y = single(b[i]), z = single(a[i] >> 32); o[i] = floats(__builtin_fmaf(x, y, z), __builtin_fmaf(-x, 3.0f, y)); }
KERNEL(float_quotients) { ITEM f32 x = single(a[i]), y = single(b[i]); o[i] = floats(x / y, 1.0f / y); }
KERNEL(float_roots) { ITEM f32 x = single(a[i]); o[i] = floats(__builtin_sqrtf(__builtin_fabsf(x)), __builtin_sqrtf(moderate(b[i]))); }
KERNEL(float_of_integers) { ITEM o[i] = floats((f32)(i32)a[i], (f32)low(b[i])) ^ floats((f32)(i64)a[i], (f32)b[i]); }
KERNEL(integers_of_float) { ITEM f32 x = moderate(a[i]); u32 y = (u32)__builtin_fabsf(x); o[i] = both((u32)(i32)x, y) ^ (u64)(i64)(x * 1e6f); }
KERNEL(float_roundings) { ITEM f32 x = moderate(a[i]); o[i] = floats(__builtin_floorf(x) + __builtin_ceilf(x * 3), __builtin_truncf(x) - __builtin_rintf(x * 0.5f)); }
KERNEL(float_choices) { ITEM f32 x = single(a[i]) + 0.0f, y = single(b[i]) + 0.0f; o[i] = floats(__builtin_fminf(x, y), __builtin_fmaxf(x, y)) ^ both(0, (u32)__builtin_signbitf(__builtin_copysignf(1.0f, x))); }
KERNEL(float_comparisons) { ITEM f32 x = single(a[i]), y = single(b[i]); u32 r = (x < y) | (x <= y) << 1 | (x == y) << 2 | (x != y) << 3 | (x > y) << 4 | (x >= y) << 5 | __builtin_isunordered(x, y) << 6 | !(x < y) << 7 | __builtin_isnan(x) << 8 | __builtin_isinf(y) << 9 | __builtin_isfinite(x) << 10 | __builtin_isnormal(y) << 11 | __builtin_islessgreater(x, y) << 12; o[i] = r; }
KERNEL(polynomial) { ITEM f32 x = moderate(a[i]) * 0x1p-10f, s = 0; for (int k = 0; k < 9; k++) s = s * x + (f32)(k * 3 - 7); o[i] = as<u32>(s); }
KERNEL(compensated_sum) { ITEM f32 s = 0, c = 0; for (int k = 0; k < 20; k++) { f32 y = moderate(a[(i + k) % LENGTH]) - c, n = s + y; c = (n - s) - y; s = n; } o[i] = floats(s, c); }
KERNEL(mandelbrot) { ITEM f32 x = moderate(a[i]) * 0x1p-10f, y = moderate(b[i]) * 0x1p-10f, u = x, v = y; u32 n = 0; while (n < 30 && u * u + v * v < 4) { f32 w = u * u - v * v + x; v = 2 * u * v + y; u = w; n++; } o[i] = n; }
KERNEL(scaled) { ITEM f32 x = single(a[i]); int n = (int)(b[i] & 63) - 32; o[i] = floats(__builtin_ldexpf(x, n), __builtin_ldexpf(moderate(a[i]), 4 * n)); }
KERNEL(half_conversions) { ITEM f16 x = (f16)moderate(a[i]), y = as<f16>((u16)b[i]); o[i] = floats((f32)x, (f32)y) ^ as<u16>((f16)(moderate(b[i]) * 0x1p-20f)); }
KERNEL(half_arithmetic) { ITEM f16 x = as<f16>((u16)a[i]), y = as<f16>((u16)b[i]); f16 s = x + y, p = x * y, d = x - y; o[i] = floats((f32)s, (f32)p + (f32)d); }
KERNEL(brain_floats) { ITEM u32 x = as<u32>(moderate(a[i])); u32 r = (x + 0x7fff + (x >> 16 & 1)) >> 16; o[i] = floats(as<f32>(r << 16), moderate(b[i])); }
KERNEL(double_arithmetic) { ITEM f64 x = as<f64>(a[i]), y = as<f64>(b[i]); f64 r = x * y + x - y; o[i] = as<u64>(r); }
KERNEL(double_fused) { ITEM f64 x = as<f64>(a[i]), y = as<f64>(b[i]); o[i] = as<u64>(__builtin_fma(x, y, moderate64(a[i]))); }
KERNEL(double_quotients) { ITEM f64 x = moderate64(a[i]), y = moderate64(b[i]); o[i] = as<u64>(x / y); }
KERNEL(double_roots) { ITEM f64 x = moderate64(a[i] >> 1); o[i] = as<u64>(__builtin_sqrt(x)); }
KERNEL(double_conversions) { ITEM f64 x = moderate64(a[i]); o[i] = both((u32)(i32)(x * 0.1), as<u32>((f32)x)) ^ as<u64>((f64)single(b[i] & 0x7effffff) + (f64)(i32)b[i] * (f64)low(a[i])); }
KERNEL(double_roundings) { ITEM f64 x = moderate64(a[i]); o[i] = as<u64>(__builtin_floor(x) + __builtin_ceil(x * 3) - __builtin_trunc(x * 5) + __builtin_rint(x * 7)); }
// ---- work-groups ----
PHASED(summed) { SHARED u32 s[BLOCK]; ITEM PHASE { s[t] = low(a[i]); } for (int k = BLOCK / 2; k; k >>= 1) { PHASE { if (t < k) s[t] += s[t + k]; } } PHASE { o[i] = both(s[0], s[t]); } }
PHASED(scanned) { SHARED u32 s[2][BLOCK]; ITEM PHASE { s[0][t] = low(a[i]); } int w = 0; for (int k = 1; k < BLOCK; k *= 2, w ^= 1) { PHASE { s[w ^ 1][t] = s[w][t] + (t >= k ? s[w][t - k] : 0); } } PHASE { o[i] = s[w][t]; } }
PHASED(binned) { SHARED u32 s[64]; ITEM PHASE { if (t < 64) s[t] = 0; } PHASE { ATOMIC(fetch_add, &s[a[i] & 63], (u32)(b[i] & 7)); } PHASE { o[i] = s[t & 63]; } }
PHASED(turned) { SHARED u64 s[16][17]; ITEM PHASE { s[t / 16][t % 16] = a[i]; s[8 + t / 16][t % 16] = b[i]; } PHASE { o[i] = s[t % 16][t / 16] + s[t % 16][8 + t / 16]; } }
PHASED(sorted_together) { SHARED u32 s[BLOCK]; ITEM PHASE { s[t] = low(a[i]); } for (int k = 2; k <= BLOCK; k *= 2) for (int j = k / 2; j; j /= 2) { PHASE { int p = t ^ j; if (p > t && (s[t] > s[p]) == !(t & k)) { u32 x = s[t]; s[t] = s[p]; s[p] = x; } } } PHASE { o[i] = s[t]; } }
PHASED(exchanged) { SHARED u32 s[BLOCK]; ITEM OWN(u32, v); PHASE { MINE(v) = low(a[i]); s[t] = MINE(v); } PHASE { MINE(v) += s[(t * 7 + 3) % BLOCK]; } PHASE { s[t] = MINE(v); } PHASE { o[i] = both(s[BLOCK - 1 - t], MINE(v)); } }
PHASED(bytes_shared) { SHARED u8 s[BLOCK * 4]; ITEM PHASE { s[4 * t] = (u8)a[i]; s[4 * t + 1] = (u8)(a[i] >> 8); *(u16 *)(s + 4 * t + 2) = (u16)b[i]; } PHASE { o[i] = both(*(u32 *)(s + 4 * (t ^ 5)), *(i16 *)(s + 4 * (t ^ 9)) + *(i8 *)(s + (t * 3 & 511))); } }
KERNEL(counted_together) { ITEM u32 *c = (u32 *)(o + 4 * BLOCK); ATOMIC(fetch_add, c, low(a[i])); ATOMIC(fetch_xor, c + 1, low(b[i])); ATOMIC(fetch_or, (u64 *)(c + 2), a[i] & b[i]); ATOMIC(fetch_and, c + 4, low(a[i]) | 0xff); ATOMIC(fetch_max, (i32 *)c + 5, (i32)a[i]); ATOMIC(fetch_min, c + 6, low(b[i])); ATOMIC(fetch_add, (u64 *)(c + 8), a[i]); o[i] = i; }
