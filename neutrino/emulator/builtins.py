"""Functions that PTX calls and no module defines (CUDA C++ Programming Guide: formatted output, assertion, heap)."""

from __future__ import annotations

BUILTINS = frozenset({"vprintf", "__assertfail", "malloc", "free"})
"""Names of functions that the device brings itself."""
