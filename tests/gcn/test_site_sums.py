"""Sums of values that probes read of instructions, before and after them, against what the interpreter saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import decode, written
from neutrino.gcn.isa.memory import access_of
from tests.gcn.objects import code_objects, compiled, need_llvm
from tests.gcn.test_twins import LAUNCHES, Run, patched

_PROBES = """from neutrino import probe, Map
import neutrino.language as nl

early: nl.u64 = 0
late: nl.u64 = 0
loaded: nl.u64 = 0
moved: nl.u64 = 0

@Map(level="thread", type="sum")
class Sums:
    early: nl.u64
    late: nl.u64
    loaded: nl.u64
    moved: nl.u64

@probe(pos="kernel", level="thread", after=True)
def total():
    Sums.save(early, late, loaded, moved)

@probe(pos="ld.global !uniform | st.global | ld.shared | st.shared | ld.local | st.local", level="thread", before=True)
def before_it():
    early += nl.addr
    moved += nl.bytes

@probe(pos="ld.global !uniform | st.global | ld.shared | st.shared | ld.local | st.local", level="thread", after=True)
def after_it():
    late += nl.addr

@probe(pos="global_load_dword | global_load_b32", level="thread", after=True)
def after_load():
    value: nl.u32 = nl.out
    loaded += value
"""
_BUILDS = [
    ("gfx90a-O2", ("saxpy", "histogram")), ("gfx942-O2", ("saxpy", "calls")), ("gfx1030-O2", ("histogram", "pointers")),
    ("gfx1100-O2", ("saxpy", "histogram", "bits")), ("gfx1100-wave64", ("saxpy",)), ("gfx1201-O2", ("histogram",)),
    ("gfx1030-O0", ("saxpy",)),
]  # fmt: skip


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    need_llvm()
    return code_objects()


@pytest.mark.parametrize(("build", "names"), _BUILDS)
def test_sums_of_addresses_and_bytes(
    objects: dict[str, Path], tmp_path: Path, build: str, names: tuple[str, ...]
) -> None:
    _check(objects[build], build.partition("-")[0], names, tmp_path)


_LOOKED_UP = """
extern "C" __attribute__((global)) void saxpy(unsigned *o, const unsigned *a) {
	unsigned i = __builtin_amdgcn_workitem_id_x() + 80 * __builtin_amdgcn_workgroup_id_x();
	unsigned x = i & 63, y = i * 3 & 63, z = i * 5 & 63;
	for (int k = 0; k < 4; k++) { x = a[x & 63]; y = a[y & 63]; z = a[z & 63]; }
	o[i] = x + y * 3 + z * 5;
}
"""


@pytest.mark.parametrize(("arch", "clauses"), [("gfx1100", True), ("gfx1030", True), ("gfx942", False)])
def test_loads_that_overwrite_their_addresses(tmp_path: Path, arch: str, clauses: bool) -> None:
    llvm = need_llvm()
    path = compiled(_LOOKED_UP, tmp_path, f"--offload-arch={arch}", "-O2")
    found = code_object_functions(path.read_bytes(), "x")
    (function,) = decode(found.functions, arch, "", llvm).functions
    placement = Placement(function)
    loads = [row for row in function.instructions if row.mnemonic.startswith("global_load")]
    # Several of one clause are kept together.
    overwriting = [row for row in loads if row.operands[0] == row.operands[1]]
    assert len(overwriting) > 2 or not clauses
    assert len({placement.before(row.offset) for row in overwriting}) < len(overwriting) or not clauses
    _check(path, arch, ("saxpy",), tmp_path)


def _check(path: Path, arch: str, names: tuple[str, ...], folder: Path) -> None:
    """Run kernels with the probes, and compare the sums."""
    probe = folder / "sums.py"
    probe.write_text(_PROBES)
    made = patched(path, arch, names, [str(probe)])
    for kernel in made.kernels:
        original = Run(path.read_bytes(), kernel.name)
        twin = made.run(kernel)
        assert twin.buffers == original.buffers, kernel.name
        own = set(original.texts.values())
        addresses = moved = 0
        seen: dict[object, int] = {}
        for access in twin.trace.accesses:
            text = twin.texts[access.address]
            row = written(text or "")
            kind = access_of(row)
            if (
                text not in own
                or kind is None
                or access.what not in ("load", "store")
                or row.mnemonic.startswith("flat")
            ):
                continue
            # Where registers are saved of whole waves, EXEC has lanes that are no threads.
            (width, _, _), (_, number) = LAUNCHES[kernel.name][1], access.wave
            there = access.lanes + number * twin.launch.lanes < width if twin.launch is not None else access.lanes >= 0
            moved += access.size * int(there.sum())
            seen[access.wave, access.address] = seen.get((access.wave, access.address), 0) + 1
            if kind.addresses == 2 and seen[access.wave, access.address] % 2 == 0:
                continue
            addresses += sum(int(address) for address in access.addresses[there])
        sums = twin.sums(0, 4)
        assert moved > 0
        assert sums[0] == addresses % (1 << 64), kernel.name
        assert sums[1] == sums[0], kernel.name
        assert sums[3] == moved, kernel.name


@pytest.mark.parametrize(
    ("build", "name"), [("gfx1030-O0", "saxpy"), ("gfx1100-O0", "histogram"), ("gfx1201-O0", "floats")]
)
def test_bytes_of_accesses_to_any_memory(objects: dict[str, Path], build: str, name: str) -> None:
    # Without optimization addresses say which memory it is, and scratch memory may be a buffer.
    path = objects[build]
    made = patched(path, build.partition("-")[0], [name], ["gmem_bytes"])
    original, twin = Run(path.read_bytes(), name), made.run(made.kernels[0])
    assert twin.buffers == original.buffers
    moved = [sum(original.trace.bytes_of(what, "global").values()) for what in ("load", "store", "atomic")]
    sums = twin.sums(0, 5)
    assert sums[1:] == [*moved[1:], 0, 0]
    # Scalar loads count once a wave, but for those that are known to be of arguments.
    scalars = sum(original.trace.bytes_of("scalar load", "global").values())
    assert moved[0] <= sums[0] <= moved[0] + scalars
