"""NVIDIA's machine code: cubins, what kernels use of a GPU, their arithmetic, and whether two of them are the same."""
