"""Probes written in Python. Empty in this release: probes are written in TOML."""
