"""Probe files, taken apart; the typed IR that verified probes are made of; which kernels to probe."""
