"""How much work it is to write twins: what is done once for all kernels, snippets and places is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import GcnPlan
from neutrino.backend.gcn_writing import write_twins
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.instrument.frame import Frame
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.snippets.meaning import typed
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.gcn.objects import code_objects, need_llvm
from tests.gcn.test_shortage import _crowded


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    need_llvm()
    return code_objects()


def _planned(data: bytes, probe: str, every: int = 1, first: int = 0) -> tuple[CodeObjectSource, GcnPlan]:
    """every: of so many kernels one is taken, from the first one on."""
    able, left_out = able_probes(GcnTarget(), load_probes([probe], platform="hip"))
    source = CodeObjectSource(0, code_object_functions(data, "built here").target, data)
    names = [function.name for function in source.module.functions if function.is_kernel and function.code]
    return source, GcnTwins(source, typed(able), left_out).plan(names[first::every])


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("probe", "every", "first"), [
    ("inst_count", 1, 0), ("gmem_bytes", 3, 1), ("dmat", 6, 0), ("branch_divergence", 3, 2),
])  # fmt: skip
@pytest.mark.parametrize("build", ["gfx942-O0", "gfx90a-O2", "gfx1030-wave64", "gfx1100-O2", "gfx1201-O0"])
def test_texts_are_those_of_decoded_twins(
    objects: dict[str, Path], build: str, probe: str, every: int, first: int
) -> None:
    # With the texts of functions apart, twins are decoded as a whole; else their texts are the originals' lines.
    # dmat's twins are ten times as long as the others.
    source, plan = _planned(objects[build].read_bytes(), probe, every, first)
    quick, whole = (write_twins(source, plan.kernels, parts=parts) for parts in (False, True))
    assert quick.image == whole.image
    assert quick.twins
    for one, other in zip(quick.twins, whole.twins, strict=True):
        assert one.original == other.original
        assert one.probed == other.probed
        assert one.added == other.added


def test_of_twins_that_is_decoded_which_is_inserted_and_each_piece_once(
    objects: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, plan = _planned(objects["gfx942-O2"].read_bytes(), "inst_count")
    decoded: list[bytes] = []
    decode = Llvm.decode

    def counted(self: Llvm, code: bytes, *arguments: Any, **named: Any) -> Any:
        decoded.append(bytes(code))
        return decode(self, code, *arguments, **named)

    monkeypatch.setattr(Llvm, "decode", counted)
    code = write_twins(source, plan.kernels)
    inserted = sum(twin.inserted for twin in code.twins)
    assert 0 < sum(map(len, decoded)) < inserted
    # What is shorter may be an instruction that depends on its place.
    pieces = [code for code in decoded if len(code) > 8]
    assert len(pieces) == len(set(pieces))


def test_what_counts_is_written_once_for_the_places_where_it_is_the_same(
    objects: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[object] = []
    lower = Frame.lowered

    def counted(self: Frame, *arguments: Any, **named: Any) -> list[str]:
        if named.get("offset") is not None and self.needs is not None:
            lowered.append(named["offset"])
        return lower(self, *arguments, **named)

    monkeypatch.setattr(Frame, "lowered", counted)
    for data in (objects["gfx942-O0"].read_bytes(), _crowded(tmp_path, "gfx942")):
        lowered.clear()
        source, plan = _planned(data, "inst_count")
        code = write_twins(source, plan.kernels)
        sites = sum(len(kernel.sites) for kernel in plan.kernels)
        assert code.twins
        assert len(lowered) < sites / 8, (len(lowered), sites)
