// Two kernels for AMD's GPUs, without ROCm's headers. libvector.so was made of it:
//   clang-19 -x hip --offload-arch=gfx942 --offload-arch=gfx1100 -O2 -g1 -fPIC -shared -s -nostdlib -nogpuinc -nogpulib \\
//            --offload-compress vector.hip -o libvector.so
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef struct { unsigned x, y, z; } dim3;
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" unsigned __hipPushCallConfiguration(dim3, dim3, unsigned long, void *);
extern "C" unsigned __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);

extern "C" __global__ void saxpy(float *y, const float *x, float a, int count)
{
	int i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
	if (i < count)
		y[i] += a * x[i];
}

extern "C" __global__ void sum(float *total, const float *x, int count)
{
	int i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
	if (i < count)
		__hip_atomic_fetch_add(total, x[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
