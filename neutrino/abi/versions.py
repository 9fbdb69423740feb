"""Versions of the file formats."""

from __future__ import annotations

FORMAT_VERSION = 3
TWINS_VERSION = 4
"""Of cache entries, in the cache and in sections."""
