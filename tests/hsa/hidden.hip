// Kernels with hidden arguments, by the places that they read: AMD's runtime fills them. And one whose results and
// accesses are easy to tell.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __constant__ __attribute__((constant))
#define KERNEL extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, 256)))

typedef unsigned int u32;
typedef unsigned long u64;

struct Three {
	u32 a, b, c;
};

__device__ u32 launches;
__constant__ u32 factors[4];

static __device__ inline u64 hidden(u32 offset)
{
	return *(const __attribute__((address_space(4))) u64 *)((const __attribute__((address_space(4))) char *)__builtin_amdgcn_implicitarg_ptr() + offset);
}

KERNEL offsets(u64 *to, char small, Three three) { to[three.a + small] = hidden(0) + hidden(8) + hidden(16); }

KERNEL calls_host(u64 *to, u32 at) { to[at] = hidden(24); }

KERNEL grids(char first, u64 *to) { to[first] = hidden(48) + hidden(0); }

KERNEL scaled(u32 *to, const u32 *from, u32 count)
{
	u32 i = __builtin_amdgcn_workgroup_id_x() * 128 + __builtin_amdgcn_workitem_id_x();
	if (i < count)
		to[i] = from[i] * factors[i & 3] + from[count - 1 - i];
	if (__builtin_amdgcn_workitem_id_x() == 0)
		__hip_atomic_fetch_add(&launches, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
