"""How many random kernels the oracle tries."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-rewrites", type=int, default=0, help="random kernels to rewrite, in place of a few")
