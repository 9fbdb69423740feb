"""NVIDIA's machine code: cubins, their instructions, the resources and arithmetic of kernels, and comparisons."""
