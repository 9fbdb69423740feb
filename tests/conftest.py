"""What all tests run in; and the summary of the oracle, which several processes may have worked for."""

from __future__ import annotations

import gc
import os
from typing import Any

import hypothesis
import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.once import BUILDS, missing_builds
from tests.oracle.tally import TALLY, Tally

# Limits count work: on a loaded machine any example may take long.
hypothesis.settings.register_profile("neutrino", deadline=None)
hypothesis.settings.load_profile("neutrino")
_LEAST_EXAMPLES = 25
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
    """Hypothesis draws other examples each time: a run takes a third of them, a thorough one all."""
    if config.getoption("--thorough"):
        return
    for function in {item.function for item in items if isinstance(item, pytest.Function)}:
        own = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None and not own.derandomize and own.max_examples > _LEAST_EXAMPLES:
            fewer = hypothesis.settings(own, max_examples=max(own.max_examples // 3, _LEAST_EXAMPLES))
            function._hypothesis_internal_use_settings = fewer  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: Python's collector need not look at it again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def ptxas() -> None:
    """Skip where the assembler is missing."""
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes: what it did goes to the one that reports."""
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
