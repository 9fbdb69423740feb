"""ELF files: reading them in place, with every bound checked, and writing their tables. Nothing here is about GPUs."""
