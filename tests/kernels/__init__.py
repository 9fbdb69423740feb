"""Kernels whose results NumPy knows: what the emulator, the probes and a GPU are judged by."""
