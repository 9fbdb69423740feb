"""Functions that PTX calls and no module defines, which the device provides (CUDA C++ Programming Guide)."""

from __future__ import annotations

from collections.abc import Mapping

PROVIDED: Mapping[str, int] = {"vprintf": 2, "__assertfail": 5, "malloc": 1, "free": 1}
"""Name → how many arguments."""
