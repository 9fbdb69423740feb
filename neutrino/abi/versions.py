"""Versions of the file formats: one for each, so that a change of one leaves files in the others readable."""

from __future__ import annotations

BENCHMARK_VERSION = 1
LAUNCHES_VERSION = 4
RESULT_VERSION = 8
RESULT_VERSIONS = (3, 4, 5, 6, 7, RESULT_VERSION)
"""Those that can be read. From 4 on logs have chunks of groups; from 5 on those with cap 0 have no chunks; from 6 on
there are chunks of one lane, and in groups further records and fields with one of two values; from 8 on short further
records."""
SECTION_VERSION = 3
TWINS_VERSION = 7
"""Of cache entries, in the cache and in sections."""
