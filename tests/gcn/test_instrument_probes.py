"""Shipped probes in kernels that clang compiles: results keep their bits, and maps have what a model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.snippets.meaning import typed
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.emulator.gcn import judge
from tests.gcn.objects import need_clang, need_llvm
from tests.gcn.probe_model import ProbeModel, Shape, run

FLAT, DEEP = Shape((2, 1, 1), (128, 1, 1)), Shape((1, 2, 2), (120, 1, 1))
"""Launches; of the second one the last wave of a work-group is not full, and all axes of the grid count."""

PROBE = """
from neutrino import Map, probe
import neutrino.language as nl

seen: nl.u32 = 0
highest: nl.u32 = 7

@Map(level="thread", type="max", per="thread")
class Seen:
    seen: nl.u32
    highest: nl.u32

@Map(level="warp", type="sum", per="warp")
class PerWave:
    stores: nl.u64
    lanes: nl.u64

@Map(level="block", type="array", cap=1)
class First:
    block: nl.u64
    warp: nl.u32
    threads: nl.u32

@probe(pos="kernel", level="block", before=True)
def first():
    row = nl.ctaid.y + nl.nctaid.y * nl.ctaid.z
    First.save(nl.u64(nl.ctaid.x + nl.nctaid.x * row), nl.warpid, nl.ntid.x * nl.ntid.y)

@probe(pos="store", level="thread", before=True)
def before():
    seen += 1
    if nl.tid.x > highest:
        highest = nl.tid.x

@probe(pos="store", level="warp", before=True)
def wave():
    PerWave.save(1, nl.u64(nl.lane))

@probe(pos="load", level="thread", after=True)
def behind():
    seen += 3

@probe(pos="kernel", level="thread", after=True)
def last():
    Seen.save(seen, highest)
"""


def _kernels(probes: ProbeSet, data: bytes, names: list[str]) -> tuple[GcnTwins, list[str]]:
    target = code_object_functions(data, "built here").target
    able, left_out = able_probes(GcnTarget(), probes)
    assert not left_out
    return GcnTwins(CodeObjectSource(0, target, data), typed(able), left_out), names


def judged(probes: ProbeSet, data: bytes, names: list[str], shape: Shape, *, seed: int | None = 3) -> int:
    """Run kernels and their twins, and compare. Returns the number of records that probes saved."""
    backend, names = _kernels(probes, data, names)
    plan = backend.plan(names)
    code = backend.write(plan)
    assert not {**plan.refused, **code.refused}
    llvm, saved = need_llvm(), 0
    for kernel, twin in zip(plan.kernels, code.twins, strict=True):
        assert twin.name == kernel.name
        ran = run(
            code.image, twin.twin_name, llvm, shape, judge.inputs(5), twin, seed=seed, poison=4, checks=True
        )  # fmt: skip
        model = ProbeModel(kernel, shape, ran.ticks)
        original = run(data, kernel.name, llvm, shape, judge.inputs(5), observer=model.observer, seed=seed)
        assert ran.buffers == original.buffers, kernel.name
        assert model.compare(twin, ran.memory) == ([], []), kernel.name
        saved += len(model.saved)
    return saved


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    need_clang()
    folder = tmp_path_factory.mktemp("judged")
    return {
        f"{processor}{wave}": judge.compile_for_gpu(folder, processor, ("-O1", *options))
        for processor, wave, options in (
            ("gfx942", "", ()), ("gfx1100", "", ()), ("gfx90a", "", ()), ("gfx1030", "", ()), ("gfx1201", "", ()),
            ("gfx1100", "-wave64", ("-mwavefrontsize64",)),
        )
    }  # fmt: skip


@pytest.mark.parametrize(
    ("build", "names", "shape", "probes"),
    [
        ("gfx942", ["left_early"], DEEP, ("block_sched", "launch_skew", "warp_timeline")),
        ("gfx1100", ["exchanged"], DEEP, ("inst_count", "launch_skew", "value_watch")),
        ("gfx90a", ["exchanged"], FLAT, ("gmem_bytes", "work_per_warp", "smem_bank_conflict")),
        ("gfx1030", ["scanned"], FLAT, ("block_sched", "gmem_bytes")),
        ("gfx1201", ["exchanged"], DEEP, ("block_sched", "inst_count")),
        ("gfx1100-wave64", ["sorted_together"], FLAT, ("warp_timeline", "smem_bank_conflict")),
    ],
)  # fmt: skip
def test_shipped_probes_record_what_the_model_says(
    objects: dict[str, bytes], build: str, names: list[str], shape: Shape, probes: tuple[str, ...]
) -> None:
    for probe in probes:
        assert judged(load_probes([probe], platform="hip"), objects[build], names, shape)


@pytest.mark.parametrize(
    ("build", "names", "shape"),
    [("gfx942", ["scanned"], FLAT), ("gfx1100", ["exchanged"], DEEP), ("gfx1030", ["exchanged"], FLAT)],
)  # fmt: skip
def test_places_levels_and_both_sides_of_an_instruction(
    objects: dict[str, bytes], tmp_path: Path, build: str, names: list[str], shape: Shape
) -> None:
    path = tmp_path / "sides.py"
    path.write_text(PROBE)
    assert judged(load_probes([str(path)], platform="hip"), objects[build], names, shape)


def test_waves_keep_their_number(objects: dict[str, bytes]) -> None:
    for build in ("gfx942", "gfx1100"):
        backend, _ = _kernels(load_probes(["block_sched"], platform="hip"), objects[build], [])
        plan = backend.plan([kernel.name for kernel in judge.kernels()][::4])
        code = backend.write(plan)
        processor = PROCESSORS[build]
        assert not code.refused
        for twin in code.twins:
            before, after = twin.registers
            assert processor.waves(before, twin.lanes) == processor.waves(after, twin.lanes), twin.name


_REUSED = """
from neutrino import Map, probe
import neutrino.language as nl

@Map(level="thread", type="sum", size=8)
class Sums:
    sums: nl.u64

@probe(pos="load", level="thread", before=True)
def reused():
    x = nl.addr
    y = x >> 40
    for x in range(3):
        y += nl.u64(x)
    Sums.save(y + x)
"""


def test_a_variable_with_a_value_of_the_instruction_may_get_another(objects: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "reused.py"
    path.write_text(_REUSED)
    for build in ("gfx942", "gfx1100"):
        assert judged(load_probes([str(path)], platform="hip"), objects[build], ["turned"], FLAT)
