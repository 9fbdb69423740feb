// The first image of reload.cu. Both images name their kernel alike, and the two differ in what it does.
// 4 B loaded and stored by each thread: 4 n, 4 n.
extern "C" __global__ void work(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i] * 2 + 1;
}
