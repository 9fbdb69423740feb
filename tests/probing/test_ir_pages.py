"""The tables of docs/ir.md, and that probes in both languages become the same."""

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


SAME = {
    "toml": """
[map.Loads]
type = "sum"
level = "thread"
data = { bytes = "u64" }

[probe.loads]
position = "ld.global"
level = "thread"
before = "SAVE [ Loads ] { BYTES };"
""",
    "py": """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="sum")
class Loads:
    bytes: nl.u64

@probe(pos="ld.global", level="thread", before=True)
def loads():
    Loads.save(nl.bytes())
""",
}
"""By ending: the same probe in both languages."""


def test_both_languages_count_the_same(tmp_path: Path) -> None:
    totals = []
    place: Kernel = MEMORY
    for ending, text in SAME.items():
        (tmp_path / f"p.{ending}").write_text(text)
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
