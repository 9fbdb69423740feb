"""docs/architecture.md names each module of the packages that it tells module by module, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("package", ["abi", "maps", "probing", "ptx", "assemble", "backend"])
def test_each_module_is_in_the_table(package: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split(f"| module of `{package}/` | what |\n", 1)[1].split("\n\n", 1)[0]
    told = re.findall(r"`(\w+\.py)`", table)
    assert sorted(told) == sorted(path.name for path in (ROOT / "neutrino" / package).rglob("[!_]*.py"))
