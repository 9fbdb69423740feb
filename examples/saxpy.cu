// y = a x + y on 1 Mi floats, three times. Build: nvcc -arch=sm_90 -o saxpy examples/saxpy.cu
#include <cstdio>
#include <vector>

__global__ void saxpy(const float *x, float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];
}

int main() {
    const int n = 1 << 20;
    std::vector<float> host(n, 1.0f);
    float *x, *y;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(y, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    for (int i = 0; i < 3; i++)
        saxpy<<<n / 256, 256>>>(x, y, 2.0f, n);
    cudaMemcpy(host.data(), y, n * sizeof(float), cudaMemcpyDeviceToHost);
    std::printf("y[0] = %g: %s\n", host[0], cudaGetErrorString(cudaDeviceSynchronize()));
}
