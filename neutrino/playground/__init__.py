"""Try a probe on one kernel: inputs made up for it, run on the embedded device with and without the probe."""
