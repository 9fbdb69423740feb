"""The PTX ISA versions and architectures that the tools of each CUDA release support."""

from __future__ import annotations

# CUDA release -> PTX ISA version: the table "PTX Release History" of the PTX ISA manual, "Release Notes".
# 12.6 came with 8.5. A release newer than the table accepts at least the last line's.
PTX_RELEASES: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    ((11, 0), (7, 0)), ((11, 1), (7, 1)), ((11, 2), (7, 2)), ((11, 3), (7, 3)), ((11, 4), (7, 4)),
    ((11, 5), (7, 5)), ((11, 6), (7, 6)), ((11, 7), (7, 7)), ((11, 8), (7, 8)), ((12, 0), (8, 0)),
    ((12, 1), (8, 1)), ((12, 2), (8, 2)), ((12, 3), (8, 3)), ((12, 4), (8, 4)), ((12, 5), (8, 5)),
    ((12, 7), (8, 6)), ((12, 8), (8, 7)), ((12, 9), (8, 8)), ((13, 0), (9, 0)), ((13, 1), (9, 1)),
)  # fmt: skip

# Architecture -> first CUDA release whose assembler supports it: the same manual, table "PTX Release History".
FIRST_RELEASES: dict[int, tuple[int, int]] = {
    75: (10, 0), 80: (11, 0), 86: (11, 1), 87: (11, 4), 88: (13, 0), 89: (11, 8), 90: (11, 8),
    100: (12, 8), 101: (12, 8), 103: (12, 9), 110: (13, 0), 120: (12, 8), 121: (12, 9),
}  # fmt: skip

LATEST_PTX = PTX_RELEASES[-1][1]
"""The highest PTX ISA ``.version`` known here, for twins that are not assembled."""


def release_of_ptx(version: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first CUDA release that accepts PTX of a ``.version``, both as (major, minor).

    None when the version is newer than all known releases.
    """
    return next((release for release, ptx in PTX_RELEASES if ptx >= version), None)
