"""Hosts that are built once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.ahead.hosts import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("hosts"))
