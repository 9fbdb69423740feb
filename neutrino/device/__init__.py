"""Which image of a container a device runs, and the PTX that it was compiled from."""
