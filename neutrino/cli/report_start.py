"""``neutrino-report``, with less of NumPy to wait for."""

from __future__ import annotations

import gc
import os

_THREADS = "OPENBLAS_NUM_THREADS"


def main() -> int:
    """Run the command. Returns the exit status, as ``report.main``.

    When NumPy is imported, its library of linear algebra makes a thread for each processor, which takes as long as
    reading a small trace. Scripts that the command starts have the environment as it was.

    What is imported stays, so nobody looks for garbage among it meanwhile.
    """
    is_set = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    gc.disable()
    from neutrino.cli.report import main as report

    gc.enable()
    if not is_set:
        del os.environ[_THREADS]
    return report()


if __name__ == "__main__":
    raise SystemExit(main())
