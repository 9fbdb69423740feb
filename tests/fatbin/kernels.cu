// Kernels for the tests of neutrino/fatbin: each has something in its cubin that another lacks.

__device__ int calls;
__constant__ float scale[16];

extern "C" __global__ void vadd(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i] * scale[i & 15];
        atomicAdd(&calls, 1);
    }
}

template <typename T> __global__ void smooth(T *x, T factor, long n)
{
    extern __shared__ float dynamic[];
    for (long i = threadIdx.x; i < n; i += blockDim.x) {
        dynamic[i & 31] = float(x[i]);
        __syncthreads();
        x[i] = x[i] * factor + T(dynamic[(i + 1) & 31]);
    }
}
template __global__ void smooth<float>(float *, float, long);
template __global__ void smooth<double>(double *, double, long);

namespace space {
struct Point {
    double coordinates[10];
    int weight;
    char tag;
};

// Struct parameter with padding after it, static shared memory, launch bounds.
__global__ void __launch_bounds__(256, 2) gather(Point p, float *out, char q, short r, char s)
{
    __shared__ float tile[256];
    tile[threadIdx.x] = float(p.coordinates[q % 10]) + r;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 1] + p.weight + s;
}
}

// A stack frame: the array is indexed at run time.
extern "C" __global__ void stacked(int *x, int n)
{
    int local[64];
    for (int i = 0; i < 64; i++)
        local[i] = x[i] * n;
    for (int i = 0; i < n; i++)
        x[i] = local[(x[i] ^ i) & 63];
}

// A device function of its own.
__device__ __noinline__ float twisted(float x, int n)
{
    for (int i = 0; i < n; i++)
        x = x * x - __sinf(x) * i;
    return x;
}

extern "C" __global__ void calling(float *x, int n)
{
    x[threadIdx.x] = twisted(x[threadIdx.x], n) + twisted(x[threadIdx.x + 1], n + 1);
}

static __global__ void hidden(int *x)
{
    x[threadIdx.x] += 1;
}

extern "C" __global__ void nothing(void)
{
}

// More than 4 KiB of parameters, and more than the 16 383 bytes that the first form of KPARAM_INFO can say.
struct Big {
    int values[5000];
};

extern "C" __global__ void big(const __grid_constant__ Big b, int *out, int n)
{
    out[threadIdx.x] = b.values[n];
}

int launch(int *x)
{
    hidden<<<1, 32>>>(x);
    return 0;
}
