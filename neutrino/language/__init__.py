"""Probes written in Python: files that are parsed, never run, and become typed IR."""
