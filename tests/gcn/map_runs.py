"""Kernels of AMD's whose threads save to maps, run in the interpreter, and what the maps should have."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neutrino.abi.probe_block import BLOCK_WARP_CAPACITY
from neutrino.abi.reasons import Reason
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.wave import Wave
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.snippets.opcodes import names_of
from neutrino.maker.patcher import patch_image
from neutrino.maps.declaration import Layout
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace
from neutrino.tracing.manifest import read_manifest
from neutrino.tracing.views import MapView
from neutrino.tracing.written import OneLaunch, write_trace
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes

GRID, BLOCK = (3, 1, 1), (80, 1, 1)
"""The last wave of a work-group has 16 lanes, whether waves have 32 or 64."""
TURNS = (0, 1, 2, 3)
"""Of saves in each thread: the first ones at the kernel's entry, the others at its ends."""
_WORD = (1 << 32) - 1
_FLAGS, _GFX950 = 48, 0x4F
"""Where an ELF file has its flags; the processor's number in them."""
_HEAD = '''from neutrino import probe, Map
import neutrino.language as nl

'''
_PROBE = '''
@probe(pos="{position}", level="{level}", {side}=True)
def {side}_it():
    k: nl.u32 = 0
'''
_TURN = '''    k = (nl.tid.x + {turn}) * 2654435761 + nl.ctaid.x * 40503
    k = k ^ (k >> 15)
    if {condition}:
        {name}.save({values})
'''


def mixed(block: int, thread: int, turn: int) -> int:
    """The number that the values saved in a turn are made of, as the probe computes it."""
    k = ((thread + turn) * 2654435761 + block * 40503) & _WORD
    return k ^ k >> 15


Executed = tuple[int, int, int]
"""A work-group's number, that of a wave in it, and EXEC."""


@dataclass(frozen=True)
class Saved:
    """A save: of which thread, and the values."""

    block: int
    thread: int
    turn: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Case:
    """A map and what is saved. declared: keys of the map besides its level. fields: names and types. values: of a save
    in the probe's language; model: the same of ``k``. condition: on ``k``; every: whether it holds, of it."""

    declared: str
    fields: tuple[tuple[str, str], ...]
    values: str
    model: Callable[[int], tuple[float, ...]]
    level: str = "thread"
    condition: str = "k & 5"
    every: Callable[[int], bool] = lambda k: bool(k & 5)
    name: str = "Kept"
    position: str = ""
    """Of instructions at which is saved, in place of the kernel's entry and ends."""

    def probe(self, folder: Path) -> str:
        """Write the probe; return its path."""
        text = f'{_HEAD}@Map(level="{self.level}", {self.declared})\nclass {self.name}:\n'
        text += "".join(f"    {name}: nl.{type_}\n" for name, type_ in self.fields)
        sides = (("before", (0,)),) if self.position else (("before", TURNS[:2]), ("after", TURNS[2:]))
        for side, turns in sides:
            text += _PROBE.format(level=self.level, side=side, position=self.position or "kernel")
            for turn in turns:
                text += _TURN.format(turn=turn, condition=self.condition, name=self.name, values=self.values)
        path = folder / "saving.py"
        path.write_text(text)
        return str(path)

    def saves(self, lanes: int) -> list[Saved]:
        """What is saved, each thread's in its order. lanes: of a wave."""
        return [one for one in self._threads(lanes) if self.every(mixed(one.block, one.thread, one.turn))]

    def at_sites(self, executed: Sequence[Executed], lanes: int) -> list[Saved]:
        """What is saved at instructions, each wave's in its order. executed: where the probe is."""
        found = []
        for block, wave, mask in executed:
            here = [lane for lane in range(lanes) if mask >> lane & 1]
            first = {"thread": here, "warp": [0], "group": here[:1], "block": [0] if wave == 0 else []}[self.level]
            for lane in first:
                k = mixed(block, wave * lanes + lane, 0)
                if lane in here and self.every(k):
                    found.append(Saved(block, wave * lanes + lane, 0, self.model(k)))
        return found

    def _threads(self, lanes: int) -> Iterator[Saved]:
        for block in range(GRID[0]):
            for thread in range(BLOCK[0]):
                if thread % {"thread": 1, "warp": lanes, "group": lanes, "block": BLOCK[0]}[self.level]:
                    continue
                for turn in TURNS:
                    yield Saved(block, thread, turn, self.model(mixed(block, thread, turn)))


@dataclass(frozen=True)
class Ran:
    """What a launch has left in a map. same: whether the kernel's buffers have the same bits as without probes.
    executed: by the original, of the instructions of a class."""

    view: MapView
    is_same: bool
    lanes: int
    executed: Sequence[Executed]


@dataclass(frozen=True)
class Place:
    """Where a twin's probe block is among its arguments, and what is in it. cell: the maps' addresses are behind what a
    cell holds, as in graphs. capacity: of how many waves the launch has memory, None for all."""

    launch: LaunchMemory
    offset: int
    size: int
    cell: bool = False
    capacity: int | None = None


def _run(
    image: bytes, kernel: str, seed: int | None, probed: Place | None, noted: tuple[str, list[Executed]] | None = None
) -> tuple[list[bytes], bytes]:
    """noted: a class of instructions, and where it is noted when one of these is executed."""
    memory = Memory(24 << 20)
    loaded = LoadedObject(image, memory, find_llvm().disassemble)
    found = loaded.kernels[kernel]
    packed = bytearray(found.descriptor.kernarg)
    random, addresses = np.random.default_rng(7), []
    for argument in found.arguments:
        if argument.kind == "global_buffer":
            addresses.append(memory.put(random.integers(0, 9, 2048, np.uint32)))
            struct.pack_into("<Q", packed, argument.offset, addresses[-1])
        elif argument.kind == "by_value" and (probed is None or argument.offset != probed.offset):
            packed[argument.offset : argument.offset + argument.size] = struct.pack("<Q", 200)[: argument.size]
    records = 0
    if probed is not None:
        records = memory.put(bytes(probed.launch.size))
        cell = memory.put(struct.pack("<Q", records)) if probed.cell else 0
        block = bytearray(probed.launch.probe_block(0 if cell else records, probed.size, cell=cell))
        if probed.capacity is not None:
            struct.pack_into("<I", block, BLOCK_WARP_CAPACITY, probed.capacity)
        packed[probed.offset : probed.offset + probed.size] = block
    program = loaded.program(found.descriptor.lanes)
    texts = [(one.text or "?").split() for one in program.instructions]

    def observe(wave: Wave, place: int) -> None:
        if noted is not None and noted[0] in names_of(texts[place][0], tuple(texts[place][2:])).classes:
            noted[1].append((wave.group.index[0], wave.number, wave.execute()))

    loaded.run(
        kernel, GRID, BLOCK, bytes(packed), seed=seed, poison=5, checks=True, observer=observe if noted else None
    )  # fmt: skip
    after = b"" if probed is None else memory.read(records, probed.launch.size)
    return [memory.read(address, 8192) for address in addresses], after


def run(
    path: Path, arch: str, kernel: str, case: Case, folder: Path, *, seed: int | None = 3, log_units: int = 4096,
    log_first: int = 0, cell: bool = False, capacity: int | None = None,
) -> Ran:  # fmt: skip
    """Run a kernel with a probe that saves, and without. folder: an empty one. seed: of the order of waves. log_units,
    log_first: as of ``LaunchMemory``; cell, capacity: as of ``Place``. AssertionError if it gets no probe."""
    folder.mkdir(exist_ok=True, parents=True)
    probes = load_probes([case.probe(folder)], platform="hip")
    data = patch_image(
        path.read_bytes(), probes, arch, selection=Selection((f"/^{kernel}$/",)), assembler=None, key=bytes(32)
    )  # fmt: skip
    entry = read_entry(data, "entry")
    (made,) = [one for one in entry.kernels if one.reason is not Reason.NOT_SELECTED]
    if made.reason is not Reason.PROBED:
        raise AssertionError(made.detail)
    manifest = folder / "manifest.json"
    manifest.write_bytes(made.files["manifest.json"])
    maps = read_manifest(manifest).maps
    logs = [one for one in maps if one.kind.layout is Layout.CHUNKS]
    launch = LaunchMemory(maps, GRID, BLOCK, made.lanes, log_units if logs else 0, log_first)
    executed: list[Executed] = []
    noted = (case.position, executed) if case.position else None
    plain, _ = _run(path.read_bytes(), kernel, seed, None, noted)
    place = Place(launch, made.block_offset, made.block_size, cell, capacity)
    twin, memory = _run(entry.images[made.image], made.twin, seed, place)
    units, frame = launch.frame(memory)
    one = OneLaunch(
        "here", arch, ("code object", 1), kernel, made.reason, made.detail, "saving", GRID, BLOCK, 0, lanes=made.lanes,
        files=made.files, maps=maps, frame=frame, log_units=units, whole_run=launch.whole_run(memory),
    )  # fmt: skip
    trace = Trace(write_trace(folder, one))
    (found,) = trace.kernels
    if any(one.per.value == "run" for one in maps):
        views = found.whole_run.maps
    else:
        (only,) = found.launches()
        views = only.maps
    return Ran(views[case.name], plain == twin, made.lanes, executed)


def as_gfx950(path: Path, folder: Path) -> Path:
    """Write a code object for gfx942 as one for gfx950, which has the same instructions and more; clang 19 builds none.
    """
    data = bytearray(path.read_bytes().replace(b"gfx942", b"gfx950"))
    (flags,) = struct.unpack_from("<I", data, _FLAGS)
    struct.pack_into("<I", data, _FLAGS, flags & ~0xFF | _GFX950)
    found = folder / "gfx950-O2.hsaco"
    found.write_bytes(data)
    return found


def rows(ran: Ran) -> list[tuple[float, ...]]:
    """The map's rows or records, with whose they are where it has several."""
    names: Sequence[str] = ran.view.valid().dtype.names or ()
    return [tuple(row[name].item() for name in names) for row in ran.view.valid()]
