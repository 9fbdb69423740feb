"""What all tests run in; and the summary of the oracle, which several processes may have worked for."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.once import BUILDS, missing_builds
from tests.oracle.tally import TALLY, Tally

# Tests see what they see in CI, where nothing of this environment is on PATH and python3 is one without Neutrino: what
# finds a command or a package only since somebody has activated the environment fails at once, not there.
if sys.prefix != sys.base_prefix:
    _folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(name for name in _folders if Path(name) != Path(sys.prefix, "bin"))
    for _name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        os.environ.pop(_name, None)

# Limits count work: on a loaded machine any example may take long.
hypothesis.settings.register_profile("neutrino", deadline=None)
hypothesis.settings.load_profile("neutrino")
_ONE_IN, _LEAST_EXAMPLES = 5, 20
# Tests make many objects and few cycles: looking for these by Python's own thresholds takes a fifth of their time, and
# at 50,000 objects still a tenth. What they hold goes when a process has grown: see pytest_runtest_logfinish.
gc.set_threshold(1_000_000, 20, 100)
_GROWTH = 300 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_collected_at = 0
# Programs of the tests that import NumPy start sooner where it makes no threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="all schedules, seeds and examples: what make corpus runs")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Without the libraries of these very sources, many tests would fail, and none would say why."""
    missing = "" if hasattr(session.config, "workerinput") else missing_builds(BUILDS)
    if missing:
        raise pytest.UsageError(missing)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a run leaves to a thorough one.

    Hypothesis draws other examples each time: a run takes a fifth of them. Of products of parameters it takes each
    parameter's every value, not each with every other: see ``_off_diagonals``.
    """
    if config.getoption("--thorough"):
        return
    left_out = _off_diagonals(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for function in {item.function for item in items if isinstance(item, pytest.Function)}:
        own = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None and not own.derandomize and own.max_examples > _LEAST_EXAMPLES:
            fewer = hypothesis.settings(own, max_examples=max(own.max_examples // _ONE_IN, _LEAST_EXAMPLES))
            function._hypothesis_internal_use_settings = fewer  # type: ignore[attr-defined]


def _off_diagonals(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return those tests marked ``diagonal(step)`` whose parameters' numbers add up to no multiple of the step.

    A parameter's values are numbered as they come. Each value is in a test that stays if another parameter of the same
    product has as many values as the step.
    """
    numbers: dict[tuple[object, str], dict[int, int]] = {}
    found = set()
    for item in items:
        mark, call = item.get_closest_marker("diagonal"), getattr(item, "callspec", None)
        if mark is None or call is None or not isinstance(item, pytest.Function):
            continue
        place = 0
        for name, value in call.params.items():
            known = numbers.setdefault((item.function, name), {})
            place += known.setdefault(id(value), len(known))
        if place % mark.args[0]:
            found.add(item)
    return found


def pytest_collection_finish() -> None:
    """What was imported and collected stays: Python's collector need not look at it again and again."""
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Look for cycles where tests have left much memory behind: few objects may hold large arrays."""
    global _collected_at  # noqa: PLW0603
    if _resident() > _collected_at + _GROWTH:
        gc.collect()
        _collected_at = _resident()


def _resident() -> int:
    """Return how many bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


@pytest.fixture(scope="session")
def ptxas() -> None:
    """Skip where the assembler is missing."""
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes: what it did goes to the one that reports."""
    # All goes with the process: nobody need look through it once more.
    gc.freeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["oracle"] = vars(TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A process that crashed has no output.
    TALLY.add(Tally(**getattr(node, "workeroutput", {}).get("oracle", {})))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TALLY.judged:
        terminalreporter.write_line(str(TALLY))
    for line in TALLY.lines:
        terminalreporter.write_line(line)
