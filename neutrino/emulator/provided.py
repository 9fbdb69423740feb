"""Device functions that no PTX module defines, since the device provides them (CUDA C++ Programming Guide)."""

from __future__ import annotations

from collections.abc import Mapping

PROVIDED: Mapping[str, int] = {"vprintf": 2, "__assertfail": 5, "malloc": 1, "free": 1, "cudaGraphSetConditional": 2}
"""Name → number of arguments."""
