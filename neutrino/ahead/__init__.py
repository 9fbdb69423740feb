"""Ahead of time: a library with twins in it. Plan them, write them beside the originals, check and restore the file."""
