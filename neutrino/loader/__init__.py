"""The hook between a program and its GPU driver: C, its build, and how the program comes to load it."""
