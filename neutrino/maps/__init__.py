"""Map types: where what probes save is put, and how it is read."""
