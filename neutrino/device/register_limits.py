"""How many registers a user may leave a thread."""

from __future__ import annotations

LEAST_CAP, MOST_CAP = 24, 255
"""Registers per thread that ``--max-registers`` may be: NVIDIA's assembler raises fewer to 24, and ignores more."""
