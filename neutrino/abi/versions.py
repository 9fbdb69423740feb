"""Versions of the file formats: one for each, so that a change of one leaves files in the others readable."""

from __future__ import annotations

LAUNCHES_VERSION = 4
RESULT_VERSION = 4
RESULT_VERSIONS = (3, RESULT_VERSION)
"""Those that can be read. From 4 on logs have chunks of groups."""
SECTION_VERSION = 3
TWINS_VERSION = 5
"""Of cache entries, in the cache and in sections."""
