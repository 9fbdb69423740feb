"""Counting probes in AMD's kernels: results keep their bits, and sums equal what the interpreter saw."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.trace import Trace
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.snippets.opcodes import names_of
from neutrino.maker.patcher import patch_image
from neutrino.maps.regions import copy_stride
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import KernelEntry, read_entry
from neutrino.twins.values import SUFFIX
from neutrino.verification import load_probes
from tests.gcn.objects import code_objects, need_llvm

LAUNCHES = {
    "saxpy": ((2, 1, 1), (80, 1, 1)), "histogram": ((2, 1, 1), (80, 1, 1)), "floats": ((1, 1, 1), (48, 1, 1)),
    "bits": ((1, 1, 1), (48, 1, 1)), "calls": ((1, 1, 1), (48, 1, 1)), "recursion": ((1, 1, 1), (64, 1, 1)),
    "pointers": ((1, 1, 1), (64, 1, 1)),
}  # fmt: skip
"""Grid and work-group by kernel. The last wave of a group has 16 lanes; no result depends on the order of waves."""
SIZE = 1 << 13
COPIES = 8
CLASSES = ("load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_llvm()
    return code_objects(tmp_path_factory)


class Run:
    """A launch. buffers: what they hold afterwards. trace: of what it executed. records: of two maps, by copies."""

    def __init__(self, image: bytes, name: str, entry: KernelEntry | None = None, *, cell: bool = False) -> None:
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
        stride = copy_stride(72)
        if entry is not None:
            records = memory.put(bytes(2 * COPIES * stride))
            # In a graph the maps' addresses are offsets from what the cell holds.
            at = memory.put(struct.pack("<Q", records)) if cell else 0
            first = 0 if cell else records
            maps = (first, 0, first + COPIES * stride, 0)[: (entry.block_size - 24) // 8]
            block = struct.pack(f"<IIIIQ{len(maps)}Q", len(maps) // 2, 6, 0, COPIES - 1, at, *maps)
            packed[entry.block_offset : entry.block_offset + entry.block_size] = block
        program = loaded.program(kernel.descriptor.lanes)
        self.trace = Trace(program)
        self.texts = {one.address: one.text for one in program.instructions}
        grid, block_size = LAUNCHES[name.removesuffix(SUFFIX)]
        loaded.run(name, grid, block_size, bytes(packed), seed=3, poison=5, checks=True, observer=self.trace.observe)
        self.buffers = [memory.read(address, SIZE) for address in addresses]
        self.records = memory.read(records, 2 * COPIES * stride) if entry is not None else b""

    def sums(self, number: int, fields: int) -> list[int]:
        """The sums of a map's record over its copies."""
        stride = copy_stride(72)
        words = np.frombuffer(self.records, np.uint64).reshape(2, COPIES, stride // 8)
        return [int(word) for word in words[number, :, :fields].sum(axis=0)]


def patched(path: Path, arch: str, *names: str) -> tuple[KernelEntry, ...]:
    # Without optimization accesses are of any space, whose bytes take more than sums of sizes.
    probes = load_probes(["inst_count", "gmem_bytes"][: 1 if "-O0" in path.name else 2], platform="hip")
    chosen = Selection(("/^(" + "|".join(names) + ")$/",))
    entry = read_entry(
        patch_image(path.read_bytes(), probes, arch, selection=chosen, assembler=None, key=bytes(32)), "entry"
    )
    kernels = [kernel for kernel in entry.kernels if kernel.reason is not Reason.NOT_SELECTED]
    assert [(kernel.name, kernel.detail) for kernel in kernels if kernel.reason is not Reason.PROBED] == []
    Images.of = {kernel.name: entry.images[kernel.image] for kernel in kernels}
    return tuple(kernels)


class Images:
    of: dict[str, bytes]


def functions_left_out(path: Path, kernel: KernelEntry) -> list[tuple[int, int]]:
    """Where the functions begin and end whose sites the kernel's manifest names as not probed."""
    names = {row["function"] for row in json.loads(kernel.files["manifest.json"])["sites_left_out"]}
    found = code_object_functions(path.read_bytes(), path.name).functions
    return [(row.address, row.address + len(row.code)) for row in found if row.name in names]


def test_what_it_cannot_do_has_its_reason(objects: dict[str, Path]) -> None:
    path = objects["gfx90a-O2"]
    reasons = {}
    for probe in ("block_sched", "inst_count"):
        probes = load_probes([probe], platform="hip")
        data = patch_image(
            path.read_bytes(), probes, "gfx90a", selection=Selection(), assembler=None, key=bytes(32)
        )  # fmt: skip
        reasons[probe] = {kernel.name: (kernel.reason, kernel.detail) for kernel in read_entry(data, "entry").kernels}
    assert {reason for reason, _ in reasons["block_sched"].values()} == {Reason.UNSUPPORTED}
    assert "code at a kernel's entry is not put into kernels yet" in reasons["block_sched"]["saxpy"][1]
    assert reasons["inst_count"]["saxpy"][0] is Reason.PROBED


@pytest.mark.parametrize(
    ("build", "names"),
    [
        ("gfx90a-O2", ("saxpy", "bits")), ("gfx942-preload", ("saxpy",)), ("gfx1030-O2", ("histogram",)),
        ("gfx1100-O2", ("saxpy", "floats")), ("gfx1100-wave64", ("histogram",)),
        # Kernels that call functions: by known addresses, themselves, by pointers; at -O0 all of them do.
        ("gfx90a-O0", ("saxpy", "calls")), ("gfx942-O2", ("calls", "recursion")), ("gfx1030-O0", ("recursion",)),
        ("gfx1030-O2", ("pointers",)), ("gfx1100-O0", ("histogram", "pointers")), ("gfx1100-lines", ("calls",)),
    ],
)  # fmt: skip
def test_sums_are_what_was_executed_and_results_keep_their_bits(
    objects: dict[str, Path], build: str, names: tuple[str, ...]
) -> None:
    path = objects[build]
    for kernel in patched(path, build.partition("-")[0], *names):
        original = Run(path.read_bytes(), kernel.name)
        twin = Run(Images.of[kernel.name], kernel.twin, kernel)
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


def test_in_a_graph_addresses_are_behind_what_the_cell_holds(objects: dict[str, Path]) -> None:
    path = objects["gfx90a-O2"]
    (kernel,) = patched(path, "gfx90a", "saxpy")
    usual, graph = (Run(Images.of["saxpy"], kernel.twin, kernel, cell=cell) for cell in (False, True))
    assert any(usual.records)
    assert usual.records == graph.records
