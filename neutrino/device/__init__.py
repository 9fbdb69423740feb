"""Devices: what runs a program's kernels, and how many registers its multiprocessors have."""
