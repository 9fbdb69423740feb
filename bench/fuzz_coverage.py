"""Which branches of some sources have been taken, at next to no cost once all are known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Coverage:
    """Branches (from Python 3.12 on) or lines taken in sources whose path contains one of names.

    A branch that has gone both ways is not watched any more. Before 3.12 each line is traced, which is slow.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._names = names
        self._ways: dict[tuple[CodeType, int], int] = {}
        self._inside: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Watch from here on, until the process ends."""
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "neutrino-fuzz")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.BRANCH, self._branch)
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, self._begin)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.BRANCH | monitoring.events.PY_START)
        else:
            sys.settrace(self._call)

    def _is_inside(self, code: CodeType) -> bool:
        inside = self._inside.get(code)
        if inside is None:
            inside = self._inside[code] = any(name in code.co_filename for name in self._names)
        return inside

    def _begin(self, code: CodeType, _offset: int) -> object:
        if self._is_inside(code):
            self.seen.add((code, -1, -1))
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def _branch(self, code: CodeType, offset: int, target: int) -> object:
        if not self._is_inside(code):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        way = (code, offset, target)
        if way not in self.seen:
            self.seen.add(way)
            ways = self._ways[code, offset] = self._ways.get((code, offset), 0) + 1
            if ways == 2:
                return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        return None

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        if not self._is_inside(frame.f_code):
            return None
        code, seen, last = frame.f_code, self.seen, -1

        def line(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            nonlocal last
            seen.add((code, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line
