"""Assembles twins, and compares their machine code with the originals'."""
