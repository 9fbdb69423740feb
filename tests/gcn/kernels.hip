// Kernels for AMD's GPUs that clang compiles without ROCm: no header, no device library.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define THREADS(count) __attribute__((amdgpu_flat_work_group_size(1, count)))
#define KERNEL(count) extern "C" __global__ THREADS(count) void

typedef unsigned int u32;
typedef unsigned long u64;

static __device__ inline u32 item() { return __builtin_amdgcn_workitem_id_x(); }
static __device__ inline u32 index() { return __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + item(); }

static __device__ inline void meet()
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
	__builtin_amdgcn_s_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <typename T> static __device__ inline T add(T *at, T value)
{
	return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

__device__ u32 launches;
__device__ double table[32];
__constant__ float weights[8];

// Global loads and stores, a constant, a variable of the module.
KERNEL(256) saxpy(float *y, const float *x, float a, u32 count)
{
	u32 i = index();
	if (i < count)
		y[i] += a * x[i] + weights[i & 7];
	if (i == 0)
		add(&launches, 1u);
}

// Vectors of four, so the widest loads.
typedef float float4 __attribute__((ext_vector_type(4)));
KERNEL(256) wide(float4 *to, const float4 *from, u32 count)
{
	for (u32 i = index(); i < count; i += 4096)
		to[i] = from[i] * 2.0f + from[i + 1];
}

// Shared memory and barriers; divergent at the end.
KERNEL(128) block_sum(float *sums, const float *x)
{
	__shared__ float part[128];
	u32 i = item();
	part[i] = x[index()];
	meet();
	for (u32 half = 64; half; half >>= 1) {
		if (i < half)
			part[i] += part[i + half];
		meet();
	}
	if (i == 0)
		sums[__builtin_amdgcn_workgroup_id_x()] = part[0];
}

// A matrix product in tiles, in two dimensions.
KERNEL(64) tiles(float *c, const float *a, const float *b, u32 n)
{
	__shared__ float left[8][8], right[8][8];
	u32 x = item(), y = __builtin_amdgcn_workitem_id_y();
	u32 column = __builtin_amdgcn_workgroup_id_x() * 8 + x, row = __builtin_amdgcn_workgroup_id_y() * 8 + y;
	float sum = 0;
	for (u32 k = 0; k < n; k += 8) {
		left[y][x] = a[row * n + k + x];
		right[y][x] = b[(k + y) * n + column];
		meet();
		for (u32 j = 0; j < 8; j++)
			sum += left[y][j] * right[j][x];
		meet();
	}
	c[row * n + column] = sum;
}

// A loop whose count differs by lane, and 64-bit integers.
KERNEL(256) steps(u32 *counts, const u64 *starts, u32 count)
{
	u32 i = index();
	if (i >= count)
		return;
	u64 value = starts[i];
	u32 taken = 0;
	while (value > 1 && taken < 500) {
		value = value & 1 ? value * 3 + 1 : value >> 1;
		taken++;
	}
	counts[i] = taken;
}

// Bytes, halves, division, rotation and bit counts.
KERNEL(64) bits(unsigned char *bytes, short *shorts, u32 *words, u64 *longs)
{
	u32 i = item();
	bytes[i] = (bytes[i + 64] ^ 0x5a) >> 1;
	shorts[i] = (short)(shorts[i + 64] * 7 - bytes[i]);
	words[i] = words[i] % (words[i + 64] | 1) + __builtin_popcount(words[i]) + (__builtin_ctz(words[i] | 256) << 4);
	longs[i] = longs[i] / (longs[i + 64] | 3) ^ (longs[i] << (i & 31));
}

// Floats of all widths.
KERNEL(64) floats(double *d, float *f, _Float16 *h)
{
	u32 i = item();
	d[i] = d[i] / d[i + 64] + table[i & 31];
	f[i] = __builtin_sqrtf(f[i]) / f[i + 64] + (float)d[i];
	h[i] = h[i] * (_Float16)f[i] + h[i + 64];
}

// Atomics of global and of shared memory.
KERNEL(256) histogram(u32 *bins, const u32 *keys, u32 count)
{
	__shared__ u32 local[64];
	u32 i = index();
	if (item() < 64)
		local[item()] = 0;
	meet();
	if (i < count)
		__hip_atomic_fetch_add(&local[keys[i] % 64], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
	meet();
	if (item() < 64)
		add(&bins[item()], local[item()]);
}

KERNEL(64) atomics(u64 *longs, double *doubles, float *floats_, u32 *words)
{
	u32 i = item();
	add(&longs[0], (u64)i);
	add(&doubles[0], 0.5);
	__hip_atomic_fetch_min(&longs[1], (u64)i * 3, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
	u32 expected = i;
	__hip_atomic_compare_exchange_strong(&words[i & 3], &expected, i + 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED,
					     __HIP_MEMORY_SCOPE_AGENT);
	floats_[i] = __hip_atomic_exchange(&floats_[64], (float)i, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
	words[4 + i] = expected;
}

// A function that is called, one that calls itself, and some by their addresses.
__device__ __attribute__((noinline)) float polynomial(float x, u32 degree)
{
	float sum = 1;
	for (u32 i = 0; i < degree; i++)
		sum = sum * x + weights[i & 7];
	return sum;
}

KERNEL(64) calls(float *x)
{
	x[item()] = polynomial(x[item()], 6) - polynomial(x[item()] * 0.5f, 2);
}

__device__ __attribute__((noinline)) u32 ackermann(u32 m, u32 n)
{
	return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

KERNEL(64) recursion(u32 *x)
{
	x[item()] = ackermann(1 + (item() & 1), x[item()] & 3);
}

typedef u32 (*Operation)(u32, u32);
__device__ u32 sum_of(u32 a, u32 b) { return a + b; }
__device__ u32 difference_of(u32 a, u32 b) { return a - b; }
__device__ u32 product_of(u32 a, u32 b) { return a * b; }
__device__ Operation operations[4] = {sum_of, difference_of, product_of, sum_of};
KERNEL(64) pointers(u32 *x, u32 which)
{
	x[item()] = operations[which & 3](x[item()], item() + 3);
}

// A choice that is the same for all lanes, and one by lane.
KERNEL(64) choices(int *x, int which)
{
	switch (which) {
	case 0: x[0] = 11; break;
	case 1: x[1] = x[2] - 7; break;
	case 2: x[item()] = which * 5; break;
	case 3: x[3] += (int)table[1]; break;
	case 4: x[item()] ^= x[item() + 64]; break;
	case 5: x[item() + 64] = -x[item()]; break;
	default: x[9] = 1;
	}
	if (item() & 1)
		x[item()] += 3;
	else if (item() & 2)
		x[item()] -= 4;
}

// An array by a variable index, so scratch memory; arguments by value that hold much.
struct Settings { double scale[6]; u32 count; char flag; };
KERNEL(64) scratch(Settings settings, double *x, u32 at)
{
	volatile double kept[16];
	for (u32 i = 0; i < 16; i++)
		kept[i] = x[i] * settings.scale[i % 6];
	x[item()] = kept[at & 15] + settings.count * settings.flag;
}

// What only some lanes leave by.
KERNEL(64) checked(int *x)
{
	if (x[item()] < 0)
		__builtin_trap();
	x[item()] += 1;
}

// Lanes read each other, and a shared counter is taken by one lane of a wave.
KERNEL(64) lanes(u32 *x, u32 *next)
{
	u32 i = item();
	u32 other = (u32)__builtin_amdgcn_ds_bpermute((int)((i ^ 1) << 2), (int)x[i]);
	u32 first = (u32)__builtin_amdgcn_readfirstlane((int)other);
	if (x[i] > first)
		x[i] = add(next, 2u) + other;
}

// The clock and the place of a wave.
KERNEL(64) clock(u64 *x)
{
	u64 begin = __builtin_readcyclecounter();
	meet();
	x[item()] = __builtin_readcyclecounter() - begin;
}

KERNEL(64) nothing() {}
