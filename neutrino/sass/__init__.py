"""NVIDIA's machine code: cubins, the resource usage and arithmetic of kernels, and comparisons of kernels."""
