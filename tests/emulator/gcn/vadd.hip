// Compiled without HIP's headers and device libraries, for AMD's GPUs.
extern "C" __attribute__((global)) void vadd(const float *a, const float *b, float *c, int n)
{
    int i = __builtin_amdgcn_workgroup_id_x() * 128 + __builtin_amdgcn_workitem_id_x();
    if (i < n)
        c[i] = a[i] + b[i];
}
