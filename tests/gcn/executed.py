"""What a launch of one of AMD's kernels does, as the interpreter sees it: the trace that models of probes go by.

Nothing here is of the tools: instructions are classified by their own text and by what they are seen to access.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.memory import BASE, Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.text import Parsed, parse
from neutrino.emulator.gcn.trace import WaveKey
from neutrino.emulator.gcn.wave import Wave
from tests.gcn.branch_trace import BranchTrace
from tests.gcn.operation_trace import OperationTrace

Array = npt.NDArray[Any]

_NO_ACCESS = re.compile(
    r"ds_(nop|swizzle|permute|bpermute|bpermute_fi|gws_\w+)(_b32)?|(buffer|global)_(inv|wb|wbinv|wbl2|gl[01]_inv|wbinvl1)\w*"
)
_MEMORY = re.compile(r"(ds|global|flat|buffer|tbuffer|scratch|s)_(\w+)")
_SIZE = re.compile(r"(?:^|_)(?:[buif](8|16|32|64|96|128|256|512)|dword(?:x(\d+))?|[us]?(byte|short))(?:_|$)")
_BYTES = {"byte": 1, "short": 2}


class Access(NamedTuple):
    """How an instruction accesses memory. what: ``load``, ``store``, ``atomic`` or ``copy`` (into LDS, past registers).
    space: ``global``, ``generic``, ``shared``, ``local`` or ``scalar``. size: bytes of a lane, of all its addresses.
    returns: whether an atomic access gives the old value."""

    what: str
    space: str
    size: int
    returns: bool


@dataclass(frozen=True)
class Instruction:
    """address: in the code object. names: of it, or of the halves of a dual one. access: None if it has none."""

    address: int
    text: str
    names: tuple[str, ...]
    parsed: Parsed
    access: Access | None


class Touched(NamedTuple):
    """Lanes that touched memory. places: addresses as the memory has them."""

    what: str
    space: str
    size: int
    lanes: Array
    places: Array


@dataclass
class Event:
    """An instruction that a wave has executed. mask: EXEC before it. addresses: of what each lane accesses first, as a
    probe sees them. result: words of what it wrote, one row each."""

    instruction: Instruction
    mask: Array
    touched: list[Touched] = field(default_factory=list)
    addresses: Array | None = None

    @property
    def lanes(self) -> int:
        """How many lanes executed it."""
        return int(np.count_nonzero(self.mask))


@dataclass
class WaveTrace:
    """What a wave has executed. block: linear number of its work-group. number: in it. lanes: 32 or 64. entry: EXEC at
    first."""

    block: int
    number: int
    lanes: int
    entry: Array
    events: list[Event] = field(default_factory=list)


@lru_cache(1 << 14)
def access_of(text: str) -> Access | None:
    """Return how an instruction accesses memory, by its text."""
    row = parse(text)
    name = row.mnemonic
    match = _MEMORY.fullmatch(name)
    if match is None or _NO_ACCESS.fullmatch(name):
        return None
    space, rest = match[1], match[2]
    if space == "s" and not re.match(r"(buffer_|scratch_)?(load|store|atomic)_", rest):
        return None
    is_twice = "2addr" in rest or re.match(r"(read|write)2", rest) is not None
    if re.search(r"(^|_)(load|read)", rest):
        what = "copy" if "_lds_" in name or "lds" in row.modifiers else "load"
    elif re.search(r"(^|_)(store|write)", rest) and "storexchg" not in rest:
        what = "store"
    else:
        what = "atomic"
    returns = what == "atomic" and (
        "_rtn" in name or "glc" in row.modifiers or "RETURN" in row.modifiers.get("th", "")
        or ("sc0" in row.modifiers and space != "ds")
    )  # fmt: skip
    size = _size(rest, what)
    spaces = {"ds": "shared", "flat": "generic", "scratch": "local", "s": "scalar"}
    return Access(what, spaces.get(space, "global"), size * (2 if is_twice else 1), returns)


def _size(rest: str, what: str) -> int:
    if what == "atomic":
        if rest.endswith("_x2") or re.search(r"[buif]64", rest):
            return 8
        return 4
    match = _SIZE.search(rest)
    assert match is not None, rest
    if match[1]:
        return int(match[1]) // 8
    return _BYTES[match[3]] if match[3] else 4 * int(match[2] or 1)


class _OneProgram:
    """A program where a loaded object is asked for one."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def program(self, lanes: int) -> Program:
        return self._program


class Recorder:
    """Notes what waves execute; its ``observe`` is the observer of a launch. operations: what they computed, by the
    address of the instruction. branches: what they reached and took."""

    def __init__(self, program: Program, grid: Sequence[int]) -> None:
        self._grid = grid
        self.waves: dict[WaveKey, WaveTrace] = {}
        self._rows: list[Instruction | None] = []
        self.operations = OperationTrace(0).observer(_OneProgram(program), program.lanes)
        self.branches = BranchTrace(0).observer(_OneProgram(program), program.lanes)
        for row in program.instructions:
            if row.text is None:
                self._rows.append(None)
                continue
            parsed = parse(row.text)
            names = (parsed.mnemonic, *([parsed.second.mnemonic] if parsed.second is not None else []))
            self._rows.append(Instruction(row.address, row.text, names, parsed, access_of(row.text)))

    def observe(self, wave: Wave, place: int) -> None:
        """Note an instruction that is about to be executed."""
        key = wave.group.index, wave.number
        trace = self.waves.get(key)
        if trace is None:
            x, y, z = key[0]
            block = x + self._grid[0] * (y + self._grid[1] * z)
            trace = self.waves[key] = WaveTrace(block, wave.number, wave.lanes, wave.mask.copy())
        self.operations(wave, place)
        self.branches(wave, place)
        row = self._rows[place]
        assert row is not None
        event = Event(row, wave.mask.copy())
        trace.events.append(event)
        wave.watcher = None
        if row.access is not None:
            wave.watcher = partial(self._watch, event)
            event.addresses = _addresses(wave, row)

    def _watch(
        self, event: Event, wave: Wave, what: str, lanes: Any, memory: Array, places: Array, size: int
    ) -> None:  # fmt: skip
        if memory is wave.memory.bytes:
            space, addresses = "global", (places + BASE).astype(np.uint64)
        elif memory is wave.group.lds:
            space, addresses = "shared", np.asarray(places).astype(np.uint64)
        else:
            space, addresses = "local", np.asarray(places).astype(np.uint64)
        numbers = np.empty(0, int) if lanes is None else np.arange(wave.lanes)[lanes]
        event.touched.append(Touched(what, space, size, numbers, addresses.copy()))


def _addresses(wave: Wave, row: Instruction) -> Array | None:
    """What a buffer or generic instruction adds up, for each lane; None where what is touched says it."""
    operands, parsed, access = row.parsed.operands, row.parsed, row.access
    assert access is not None
    if parsed.mnemonic.startswith("buffer_"):
        at = next(number for number, text in enumerate(operands) if re.fullmatch(r"s\[\d+:\d+\]", text))
        first = _number(operands[at])
        base = wave.s[first] | (wave.s[first + 1] & 0xFFFF) << 32
        total = np.full(wave.lanes, base + parsed.number("offset") + _scalar(wave, operands[at + 1]), np.uint64)
        assert "idxen" not in parsed.modifiers
        if "offen" in parsed.modifiers:
            total += wave.v[_number(operands[at - 1])].astype(np.uint64)
        return total
    if parsed.mnemonic.startswith("flat_"):
        first = _number(operands[int(access.what == "load" or access.returns)])
        low, high = wave.v[first].astype(np.uint64), wave.v[first + 1].astype(np.uint64)
        found: Array = (low | high << np.uint64(32)) + np.uint64(parsed.number("offset") % (1 << 64))
        return found
    return None


def _number(text: str) -> int:
    """The first register of an operand."""
    return int(re.findall(r"\d+", text)[0])


def _scalar(wave: Wave, text: str) -> int:
    if re.fullmatch(r"s\d+", text):
        return wave.s[int(text[1:])]
    return 0 if text in ("null", "off") else int(text, 0)


@dataclass
class Ran:
    """A launch that has run. buffers: as it left them. memory: of the maps, b"" without a twin. waves: empty unless
    they were noted. passed: where the launch's own arguments begin. ticks: clocks that each wave has read."""

    buffers: list[bytes]
    memory: bytes
    waves: list[WaveTrace]
    passed: int
    ticks: dict[WaveKey, list[int]]
    operations: OperationTrace | None = None
    branches: BranchTrace | None = None

    def events(self) -> Iterator[tuple[WaveTrace, Event]]:
        """All that was executed, wave by wave, in order."""
        for wave in self.waves:
            for event in wave.events:
                yield wave, event

    def is_passed(self, event: Event) -> bool:
        """Whether a scalar load reads what the launch passes to the kernel."""
        return bool(event.touched) and int(event.touched[0].places.min()) >= self.passed


@contextmanager
def ticking() -> Iterator[dict[WaveKey, list[int]]]:
    """Note all clocks that waves read meanwhile."""
    found: dict[WaveKey, list[int]] = {}
    usual = Wave.tick

    def tick(wave: Wave) -> int:
        value = usual(wave)
        found.setdefault((wave.group.index, wave.number), []).append(value)
        return value

    Wave.tick = tick  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        Wave.tick = usual  # type: ignore[method-assign]


def run(
    image: bytes, name: str, disassemble: Any, grid: tuple[int, int, int], block: tuple[int, int, int],
    arguments: Sequence[Any], *, extra: Any = None, notes: bool = False,
    dynamic_lds: int | None = None, **options: Any,
) -> Ran:  # fmt: skip
    """Run a kernel. extra: for a twin: size of its maps' memory, offset of the probe block, and what gives the block
    from the memory's address. notes: whether what is executed is noted. dynamic_lds: all LDS that is left if None."""
    memory = Memory(64 << 20)
    packed = bytearray()
    places: list[tuple[int, int]] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            places.append((memory.put(argument), argument.nbytes))
            value = places[-1][0].to_bytes(8, "little")
        else:
            value = argument.tobytes()
        packed += bytes(-len(packed) % len(value)) + value
    # After the buffers, so that these have the same addresses whatever is in the code object.
    loaded = LoadedObject(image, memory, disassemble)
    kernel = loaded.kernels[name]
    records = size = 0
    if extra is not None:
        size, offset, block_of = extra
        records = memory.put(bytes(size + 64))
        packed = packed.ljust(kernel.descriptor.kernarg, b"\0")
        probe_block = block_of(records)
        packed[offset : offset + len(probe_block)] = probe_block
    passed = memory._top
    recorder = Recorder(loaded.program(kernel.descriptor.lanes), grid) if notes else None
    with ticking() as ticks:
        loaded.run(
            name, grid, block, bytes(packed), observer=recorder.observe if recorder else None,
            dynamic_lds=max(0, (64 << 10) - kernel.descriptor.lds) if dynamic_lds is None else dynamic_lds, **options,
        )  # fmt: skip
    found = memory.read(records, size + 64) if extra is not None else b""
    if any(found[size:]):
        raise AssertionError("written beyond the maps")
    waves = list(recorder.waves.values()) if recorder else []
    return Ran(
        [memory.read(at, length) for at, length in places], found[:size], waves, BASE + passed, ticks,
        recorder.operations if recorder else None, recorder.branches if recorder else None,
    )  # fmt: skip


__all__ = ["Access", "Event", "Instruction", "Ran", "Recorder", "WaveTrace", "access_of", "run"]
