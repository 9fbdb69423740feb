"""Try a probe on one kernel: generated inputs, run on the embedded device with and without the probe."""
