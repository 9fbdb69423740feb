"""The GPU bench: workloads, the runner, and the verdicts recomputed from what it recorded."""
