// The kernel behind torch.zeros, from PyTorch's own headers, and the same work by as many blocks as run at once.
//
// PyTorch's libraries have no PTX of it. Templates and policies are those of ATen/native/cuda; only the functor is
// written here, word for word as in ATen/native/cuda/FillKernel.cu, which is no header.
#include <ATen/native/cuda/Loops.cuh>

#include <array>

namespace at::native {

template <typename scalar_t>
struct FillFunctor {
  FillFunctor(scalar_t v) : value(v) {}
  __device__ __forceinline__ scalar_t operator()() const {
    return value;
  }

 private:
  scalar_t value;
};

}  // namespace at::native

using Half = c10::Half;
using Functor = at::native::FillFunctor<Half>;
using Data = std::array<char*, 1>;

// What torch.zeros(..., dtype=torch.half) launches on compute capability 9.0: 16 bytes are 8 elements.
template __global__ void at::native::vectorized_elementwise_kernel<8, Functor, Data>(int, Functor, Data);

// One block's work: policy and helper of the kernel above, for a block with a number of its own.
template <int vector, int elements>
__device__ __forceinline__ void fill_block(Functor fill, Data data, int block) {
  auto policy = at::native::memory::policies::vectorized<vector, Data, elements>(data);
  Half values[elements];
#pragma unroll
  for (int i = 0; i < elements; ++i) {
    values[i] = fill();
  }
  policy.store(values, block);
}

// As it was when the case was published: 4 elements a thread, in one vector of 8 bytes. n: a multiple of a block's 512.
extern "C" __global__ void __launch_bounds__(128) fill_published(int n, Functor fill, Data data) {
  fill_block<4, 4>(fill, data, blockIdx.x);
}

// More work for each block: 32 elements a thread. n: a multiple of a block's 4,096.
extern "C" __global__ void __launch_bounds__(128) fill_large_blocks(int n, Functor fill, Data data) {
  fill_block<8, 32>(fill, data, blockIdx.x);
}

// As many blocks as run at once, each of which takes every gridDim.x-th part. n: a multiple of a part's 1,024.
extern "C" __global__ void __launch_bounds__(128) fill_persistent(int n, Functor fill, Data data) {
  for (int block = blockIdx.x; block < n / 1024; block += gridDim.x) {
    fill_block<8, 8>(fill, data, block);
  }
}
