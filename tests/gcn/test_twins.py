"""Counting probes in AMD's kernels: results keep their bits, and sums equal what the interpreter saw."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.trace import Trace
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.snippets.opcodes import names_of
from neutrino.maker.patcher import patch_image
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copy_stride, region_layout
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import Entry, KernelEntry, read_entry
from neutrino.twins.values import SUFFIX
from neutrino.verification import load_probes
from tests.gcn.objects import code_objects, compiled, need_llvm

LAUNCHES = {
    "saxpy": ((2, 1, 1), (80, 1, 1)), "histogram": ((2, 1, 1), (80, 1, 1)), "floats": ((1, 1, 1), (48, 1, 1)),
    "bits": ((1, 1, 1), (48, 1, 1)), "calls": ((1, 1, 1), (48, 1, 1)), "recursion": ((1, 1, 1), (64, 1, 1)),
    "pointers": ((1, 1, 1), (64, 1, 1)), "numbered": ((3, 2, 2), (48, 1, 1)), "nothing": ((1, 1, 1), (64, 1, 1)),
}  # fmt: skip
"""Grid and work-group by kernel. The last wave of a group has 16 lanes; no result depends on the order of waves."""
SIZE = 1 << 13
CLASSES = ("load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    need_llvm()
    return code_objects()


class Run:
    """A launch. buffers: what they and variables hold afterwards. trace: of what it executed. launch, memory: of its
    maps; None, b"" without probes."""

    def __init__(
        self, image: bytes, name: str, entry: KernelEntry | None = None, maps: Sequence[Map] = (), *, cell: bool = False
    ) -> None:
        memory = Memory(16 << 20)
        loaded = LoadedObject(image, memory, find_llvm().disassemble)
        kernel = loaded.kernels[name]
        random = np.random.default_rng(7)
        packed = bytearray(kernel.descriptor.kernarg)
        addresses = []
        for argument in kernel.arguments:
            if argument.kind == "global_buffer":
                addresses.append(memory.put(random.integers(0, 9, SIZE // 4, np.uint32)))
                struct.pack_into("<Q", packed, argument.offset, addresses[-1])
            elif argument.kind == "by_value" and (entry is None or argument.offset != entry.block_offset):
                packed[argument.offset : argument.offset + argument.size] = struct.pack("<Q", 200)[: argument.size]
        grid, block = LAUNCHES[name.removesuffix(SUFFIX)]
        self.launch = None
        if entry is not None:
            self.launch = LaunchMemory(maps, grid, block, kernel.descriptor.lanes)
            records = memory.put(bytes(self.launch.size))
            # In a graph the maps' addresses are offsets from what the cell holds.
            at = memory.put(struct.pack("<Q", records)) if cell else 0
            data = self.launch.probe_block(0 if cell else records, entry.block_size, cell=at)
            packed[entry.block_offset : entry.block_offset + entry.block_size] = data
        program = loaded.program(kernel.descriptor.lanes)
        self.trace = Trace(program)
        self.texts = {one.address: one.text for one in program.instructions}
        loaded.run(name, grid, block, bytes(packed), seed=3, poison=5, checks=True, observer=self.trace.observe)
        places = [(address, SIZE) for address in addresses] + sorted(loaded.variables.values())
        self.buffers = [memory.read(*place) for place in places]
        self.memory = memory.read(records, self.launch.size) if self.launch is not None else b""

    def region(self, number: int) -> bytes:
        """The memory of a map's records."""
        assert self.launch is not None
        launch = self.launch
        regions, _ = region_layout(launch.maps, launch.blocks, launch.warps_per_block, launch.lanes)
        return self.memory[regions[number].records :][: regions[number].records_size]

    def sums(self, number: int, fields: int) -> list[int]:
        """The sums of a map's record over its copies."""
        assert self.launch is not None
        stride = copy_stride(self.launch.maps[number].size)
        words = np.frombuffer(self.region(number), np.uint64).reshape(-1, stride // 8)
        return [int(word) for word in words[:, :fields].sum(axis=0)]


@dataclass(frozen=True)
class Patched:
    """Kernels of a code object with probes."""

    entry: Entry
    kernels: tuple[KernelEntry, ...]
    maps: tuple[Map, ...]

    def run(self, kernel: KernelEntry, *, cell: bool = False) -> Run:
        """Run a kernel's twin."""
        return Run(self.entry.images[kernel.image], kernel.twin, kernel, self.maps, cell=cell)


def patched(path: Path, arch: str, names: Sequence[str], probe: Sequence[str]) -> Patched:
    """Put probes into kernels, each of which must get them."""
    probes = load_probes(probe, platform="hip")
    chosen = Selection(("/^(" + "|".join(names) + ")$/",))
    entry = read_entry(
        patch_image(path.read_bytes(), probes, arch, selection=chosen, assembler=None, key=bytes(32)), "entry"
    )
    kernels = [kernel for kernel in entry.kernels if kernel.reason is not Reason.NOT_SELECTED]
    assert [(kernel.name, kernel.detail) for kernel in kernels if kernel.reason is not Reason.PROBED] == []
    return Patched(entry, tuple(kernels), probes.maps)


def functions_left_out(path: Path, kernel: KernelEntry) -> list[tuple[int, int]]:
    """Where the functions begin and end whose sites the kernel's manifest names as not probed."""
    names = {row["function"] for row in json.loads(kernel.files["manifest.json"])["sites_left_out"]}
    found = code_object_functions(path.read_bytes(), path.name).functions
    return [(row.address, row.address + len(row.code)) for row in found if row.name in names]


_UNITS = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="sum", per="sm")
class Threads:
    n: nl.u64

@probe(pos="kernel", level="thread", before=True)
def count():
    Threads.save(1)
"""


def test_what_it_cannot_do_has_its_reason(objects: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "units.py").write_text(_UNITS)
    probes = load_probes(["inst_count", str(tmp_path / "units.py")], platform="hip")
    data = patch_image(
        objects["gfx942-O2"].read_bytes(), probes, "gfx942", selection=Selection(), assembler=None, key=bytes(32)
    )  # fmt: skip
    found = {kernel.name: (kernel.reason, kernel.detail) for kernel in read_entry(data, "entry").kernels}
    reason, detail = found["saxpy"]
    assert (reason, "too few for the compute units" in detail) == (Reason.UNSUPPORTED, True)


_FLOATS = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="array")
class Products:
    product: nl.f32

@probe(pos="kernel", level="thread", before=True)
def multiply():
    small: nl.f32 = nl.f32(nl.lane) * 1e-30
    Products.save(small * 1e-10)
"""
_MODES = """
extern "C" __attribute__((global)) void nothing(float *out) {
    unsigned lane = __builtin_amdgcn_workitem_id_x();
    float kept = out[lane] * 1e-30f;
    SET
    out[lane + 64] = (float)(lane + 1) * 1e-30f * kept;
}
"""


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_floats_are_computed_the_same_whatever_the_mode_of_the_kernel(tmp_path: Path, arch: str) -> None:
    """Denormal numbers are kept in probes, and flushed in the program."""
    need_llvm()
    (tmp_path / "floats.py").write_text(_FLOATS)
    options = (f"--offload-arch={arch}", "-O1", "-fgpu-flush-denormals-to-zero")
    path = compiled(_MODES.replace("SET", ""), tmp_path, *options)
    found = patched(path, arch, ["nothing"], [str(tmp_path / "floats.py")])
    run, plain = found.run(found.kernels[0]), Run(path.read_bytes(), "nothing")
    assert run.buffers == plain.buffers
    assert not np.frombuffer(plain.buffers[0], np.float32)[64:128].any()
    lanes = np.arange(64, dtype=np.float32) % run.launch.lanes  # type: ignore[union-attr]
    wanted = lanes * np.float32(1e-30) * np.float32(1e-10)
    assert np.array_equal(np.frombuffer(run.region(0), np.float32)[:64], wanted)
    assert 0 < wanted[1] < np.finfo(np.float32).tiny


def test_kernels_that_change_the_mode_get_no_probes_that_compute_floats(tmp_path: Path) -> None:
    need_llvm()
    (tmp_path / "floats.py").write_text(_FLOATS)
    source = _MODES.replace("SET", "__builtin_amdgcn_s_setreg(1 | 4 << 6 | 1 << 11, 3);")
    path = compiled(source, tmp_path, "--offload-arch=gfx942", "-O1")
    probes = load_probes([str(tmp_path / "floats.py")], platform="hip")
    data = patch_image(
        path.read_bytes(), probes, "gfx942", selection=Selection(), assembler=None, key=bytes(32)
    )  # fmt: skip
    (kernel,) = read_entry(data, "entry").kernels
    assert (kernel.reason, "changes how floats are rounded" in kernel.detail) == (Reason.UNSUPPORTED, True)


BUILDS = [
    ("gfx90a-O2", ("saxpy", "bits")), ("gfx942-preload", ("saxpy",)), ("gfx1030-O2", ("histogram",)),
    ("gfx1100-O2", ("saxpy", "floats")), ("gfx1100-wave64", ("histogram",)), ("gfx1201-O2", ("saxpy",)),
    # Kernels that call functions: by known addresses, themselves, by pointers; at -O0 all of them do.
    ("gfx90a-O0", ("saxpy", "calls")), ("gfx942-O2", ("calls", "recursion")), ("gfx1030-O0", ("recursion",)),
    ("gfx1030-O2", ("pointers",)), ("gfx1100-O0", ("histogram", "pointers")), ("gfx1100-lines", ("calls",)),
]  # fmt: skip


@pytest.mark.parametrize(("build", "names"), BUILDS)
def test_sums_are_what_was_executed_times_are_of_each_wave_and_results_keep_their_bits(
    objects: dict[str, Path], build: str, names: tuple[str, ...]
) -> None:
    path = objects[build]
    # What costs most, and is the same for all probes.
    originals = {name: Run(path.read_bytes(), name) for name in names}
    check_times(path, build, originals)
    # Without optimization accesses are of any space, whose bytes take more than sums of sizes.
    probes = ["inst_count", "gmem_bytes"][: 1 if "-O0" in build else 2]
    made = patched(path, build.partition("-")[0], names, probes)
    for kernel in made.kernels:
        original = originals[kernel.name]
        twin = made.run(kernel)
        assert twin.buffers == original.buffers, kernel.name
        expected: Counter[str] = Counter()
        left_out = functions_left_out(path, kernel)
        for lanes in original.trace.lanes.values():
            for address, count in lanes.items():
                if any(address in range(begin, end) for begin, end in left_out):
                    continue
                text = original.texts[address]
                words = text.split()
                classes = names_of(words[0], tuple(words[2:])).classes
                expected["all"] += count
                expected.update(dict.fromkeys(classes, count))
        assert twin.sums(0, 9) == [expected[name] for name in ("all", *CLASSES)], kernel.name
        if "-O0" in build:
            continue
        for index, what in enumerate(("load", "store", "atomic")):
            moved = sum(original.trace.bytes_of(what, "global").values())
            if what == "load":
                continue
            assert twin.sums(1, 5)[index] == moved, (kernel.name, what)
        loads = sum(original.trace.bytes_of("load", "global").values())
        assert twin.sums(1, 1)[0] >= loads


def check_times(path: Path, build: str, originals: dict[str, Run]) -> None:
    """Each wave has a record of when it ran."""
    made = patched(path, build.partition("-")[0], tuple(originals), ["block_sched"])
    for kernel in made.kernels:
        original = originals[kernel.name]
        twin = made.run(kernel)
        assert twin.buffers == original.buffers, kernel.name
        launch = twin.launch
        assert launch is not None
        records = np.frombuffer(twin.region(0), [("start", "<u8"), ("elapsed", "<u4"), ("cuid", "<u4")])
        assert len(records) == launch.blocks * launch.warps_per_block
        units = {}
        for number, (start, elapsed, cuid) in enumerate(records):
            assert start
            # At least as many ticks as instructions.
            key = (number // launch.warps_per_block % launch.grid[0], 0, 0), number % launch.warps_per_block
            assert elapsed > sum(original.trace.executed[key].values()), (kernel.name, key)
            units.setdefault(int(cuid), set()).add(key[0])
        assert len(units) == launch.blocks


def test_in_a_graph_addresses_are_behind_what_the_cell_holds(objects: dict[str, Path]) -> None:
    made = patched(objects["gfx90a-O2"], "gfx90a", ["saxpy"], ["inst_count", "block_sched"])
    (kernel,) = made.kernels
    usual, graph = (made.run(kernel, cell=cell) for cell in (False, True))
    assert any(usual.region(0))
    assert usual.region(0) == graph.region(0)
    assert any(graph.region(1))


NUMBERED = """
__attribute__((device)) unsigned seen[1024];
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 64))) void numbered()
{
	unsigned x = __builtin_amdgcn_workgroup_id_x(), y = __builtin_amdgcn_workgroup_id_y();
	unsigned z = __builtin_amdgcn_workgroup_id_z(), i = __builtin_amdgcn_workitem_id_x();
	volatile unsigned kept[4] = {x, y, z, i};
	seen[((z * 2 + y) * 3 + x) * 64 + i] = 1 + kept[0] + 10 * kept[1] + 100 * kept[2] + 1000 * kept[3];
}
"""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("axes", ["xyz", "x"])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100"])
def test_a_kernel_without_arguments_has_its_registers_at_its_entry(tmp_path: Path, arch: str, axes: str) -> None:
    need_llvm()
    # With the number of one axis, clang has the launch fill 15 registers for gfx1100, all with nothing.
    source = NUMBERED
    for axis in {"y", "z"} - {*axes}:
        source = source.replace(f"__builtin_amdgcn_workgroup_id_{axis}()", "0")
    path = compiled(source, tmp_path, f"--offload-arch={arch}", "-O1")
    made = patched(path, arch, ["numbered"], ["inst_count"])
    (kernel,) = made.kernels
    original, twin = Run(path.read_bytes(), "numbered"), made.run(kernel)
    # The original's launch passes no address of arguments.
    descriptors = CodeObjectSource(0, arch, made.entry.images[kernel.image]).descriptors
    assert {name: row[56] >> 3 & 1 for name, row in descriptors.items()} == {"numbered": 0, kernel.twin: 1}
    seen = max(original.buffers, key=len)
    assert np.count_nonzero(np.frombuffer(seen, np.uint32)) == 3 * (2 * 2 if axes == "xyz" else 1) * 48
    assert twin.buffers == original.buffers
    assert twin.sums(0, 1) == [sum(sum(lanes.values()) for lanes in original.trace.lanes.values())]


def test_assembly_of_the_guide_runs_as_it_is_written(objects: dict[str, Path]) -> None:
    path = objects["gfx90a-O2"]
    guide = Path(__file__).parents[1] / "fixtures/probes/guide_hip.toml"
    made = patched(path, "gfx90a", ["saxpy", "floats"], [str(guide)])
    for kernel in made.kernels:
        original, twin = Run(path.read_bytes(), kernel.name), made.run(kernel)
        assert twin.buffers == original.buffers
        assert twin.launch is not None
        records = np.frombuffer(twin.region(0), [("start", "<u8"), ("elapsed", "<u4"), ("cuid", "<u4")])
        assert len(records) == twin.launch.blocks * twin.launch.warps_per_block
        # The interpreter's clock of 100 MHz begins at 10 ** 15; one tick an instruction.
        least = min(sum(counts.values()) for counts in original.trace.executed.values())
        assert all(10**15 < start < 10**15 + 10**6 and elapsed > least for start, elapsed, _ in records)
