"""Libraries and programs patched ahead of time: planned, written with twins beside the originals, checked, restored."""
