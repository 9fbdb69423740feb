"""Code of probes in AMD's kernels: what goes between a kernel's instructions, and the registers that it takes."""
