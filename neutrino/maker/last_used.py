"""Values that are kept as long as they are among those that were used last."""

from __future__ import annotations

from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LastUsed(Generic[_Key, _Value]):
    """Values by key. Of those that take more than so many bytes together the ones that were used longest ago are
    forgotten, but for the last one."""

    def __init__(self, most: int) -> None:
        """most: bytes."""
        self._most = most
        self._kept: dict[_Key, tuple[_Value, int]] = {}
        self._bytes = 0

    def get(self, key: _Key) -> _Value | None:
        """Return the value of a key, None where there is none any more."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        # The last one is the one that was used last.
        self._kept[key] = found
        return found[0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        """Keep a value. size: bytes that it takes."""
        self._forget(key)
        self._kept[key] = value, size
        self._bytes += size
        while self._bytes > self._most and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        """Keep the value of a key no longer."""
        _, size = self._kept.pop(key, (None, 0))
        self._bytes -= size
