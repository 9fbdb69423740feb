"""ELF files: read where they lie, with every bound checked, and their tables written anew. Knows no GPUs."""
