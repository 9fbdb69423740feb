"""Properties that are computed once, when they are first asked for."""

from __future__ import annotations

import threading

from neutrino.lazy import lazy


class _Counted:
    def __init__(self) -> None:
        self.times = 0

    @lazy
    def value(self) -> int:
        """What it is."""
        self.times += 1
        return 7 * self.times


def test_it_is_computed_once() -> None:
    counted = _Counted()
    assert counted.times == 0
    assert (counted.value, counted.value, counted.times) == (7, 7, 1)
    assert _Counted().value == 7
    assert _Counted.value.__doc__ == "What it is."


def test_one_that_another_thread_computes_does_not_hold_up_others() -> None:
    """With a lock for the class, the second object would wait for the first."""
    asked, go = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, waits: bool) -> None:
            self._waits = waits

        @lazy
        def value(self) -> bool:
            if self._waits:
                asked.set()
                go.wait(5)
            return self._waits

    thread = threading.Thread(target=lambda: Slow(True).value)
    thread.start()
    assert asked.wait(5)
    other = threading.Thread(target=lambda: Slow(False).value)
    other.start()
    other.join(2)
    assert not other.is_alive()
    go.set()
    thread.join()
