"""The examples and tables of docs/ir.md."""

from __future__ import annotations

import re
from pathlib import Path

from neutrino.ir.operands import Special
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.probing.ir.verifier import BUDGET, DEPTH
from neutrino.verification import load_probe_file
from tests.oracle.bench import Kernel
from tests.oracle.kernels import MEMORY
from tests.oracle.typed import run

DOCS = Path(__file__).parents[2] / "docs"
IR = (DOCS / "ir.md").read_text()


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_both_languages_count_the_same(tmp_path: Path) -> None:
    totals = []
    place: Kernel = MEMORY
    for language, ending in (("toml", "toml"), ("python", "py")):
        blocks = _blocks(IR, language)
        (tmp_path / f"p.{ending}").write_text(blocks[0])
        assert len(blocks) == 1
        totals.append(run(load_probe_file(tmp_path / f"p.{ending}"), place)["Loads"].total()["bytes"])
    assert totals[0] == totals[1] > 0


def test_the_tables_are_whole() -> None:
    words = set(re.findall(r"`([^`]+)`", IR))
    assert {operator.name for operator in Operator} <= words
    assert {relation.name for relation in Relation} <= words
    assert {reduction.name for reduction in Reduction} <= words
    assert {special.name.removesuffix("_Y").removesuffix("_Z") for special in Special} - words <= {
        f"{name}_X" for name in words
    }
    assert {kind.value for kind in Type} <= words
    assert f"at most {BUDGET} statements" in IR
    assert f"at most {DEPTH} deep" in IR
