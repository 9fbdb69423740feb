"""What probes of a kernel must record: typed statements computed in NumPy beside the original in the interpreter.

Only where probes are comes from the tools (``GcnKernel.at``); what statements mean is ``tests/oracle/typed_model.py``.
Clocks are those that the twin has read, in order: the model takes as many of them as its statements ask for.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.backend.gcn_values import GcnKernel, GcnTwin
from neutrino.backend.launch_memory import Extents, LaunchMemory
from neutrino.emulator.gcn.kernel import hardware_identity
from neutrino.emulator.gcn.memory import BASE, Memory
from neutrino.emulator.gcn.numbering import EXEC
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.trace import WaveKey
from neutrino.emulator.gcn.wave import Wave
from neutrino.gcn.isa.memory import Space, access_of, operands_of
from neutrino.gcn.llvm import Llvm
from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.statements import ClockAfter, IsGlobal, Load
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.regions import SM_ROWS, copies_of, copy_stride, has_counts, region_layout, row_stride
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import If, Save, Statement
from tests.oracle.typed_model import Lanes, Machine, dtype_of, from_bits

Buffers = list[npt.NDArray[Any]]
_EPOCH = 10**15
"""What the interpreter's counter of 100 MHz is before that of cycles."""
_LEADER = SiteOperand("LEADER")
_LDS = 64 << 10
_APERTURES = (0x1_0000, 0x2_0000)
"""Upper halves of generic addresses in LDS and in scratch memory, in the interpreter."""
_TICKS = ("s_memtime", "s_memrealtime", "s_sendmsg_rtn_b64", "s_getreg_b32")


class UnmodelledError(Exception):
    """The model does not know what a probe asks for."""


@dataclass(frozen=True)
class Shape:
    """A launch. grid: in work-groups; block: in work-items. Its ``arguments`` are addresses of buffers, 0 for those
    that are numbers instead, and ``numbers``."""

    grid: Extents
    block: Extents

    def waves(self, lanes: int) -> int:
        """How many waves a work-group has."""
        return -(-int(np.prod(self.block)) // lanes)


@dataclass
class Ran:
    """A launch that has run. buffers: as it left them. memory: of the maps."""

    buffers: list[bytes]
    memory: bytes = b""
    ticks: dict[WaveKey, deque[int]] = field(default_factory=dict)


@contextmanager
def _ticks() -> Iterator[dict[WaveKey, deque[int]]]:
    """Note all clocks that waves read meanwhile."""
    found: dict[WaveKey, deque[int]] = defaultdict(deque)
    usual = Wave.tick

    def tick(wave: Wave) -> int:
        value = usual(wave)
        found[wave.group.index, wave.number].append(value)
        return value

    Wave.tick = tick  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Wave.tick = usual  # type: ignore[method-assign]


def run(
    image: bytes, name: str, llvm: Llvm, shape: Shape, arguments: Sequence[npt.NDArray[Any] | np.generic],
    twin: GcnTwin | None = None, observer: Any = None, **options: Any,
) -> Ran:  # fmt: skip
    """Run a kernel, or a twin. arguments: arrays are buffers. observer: called with the loaded object, returns one."""
    memory = Memory(64 << 20)
    loaded = LoadedObject(image, memory, llvm.disassemble)
    kernel = loaded.kernels[name]
    packed = bytearray()
    places: list[tuple[int, int]] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            places.append((memory.put(argument), argument.nbytes))
            value = places[-1][0].to_bytes(8, "little")
        else:
            value = argument.tobytes()
        packed += bytes(-len(packed) % len(value)) + value
    records = size = 0
    if twin is not None:
        launch = LaunchMemory(twin.maps, shape.grid, shape.block, twin.lanes, log_units=64)
        size = launch.size
        records = memory.put(bytes(size + 64))
        packed = packed.ljust(kernel.descriptor.kernarg, b"\0")
        block = launch.probe_block(records, twin.block_size)
        packed[twin.block_offset : twin.block_offset + len(block)] = block
    with _ticks() as ticks:
        loaded.run(
            name, shape.grid, shape.block, bytes(packed), observer=observer(loaded) if observer else None,
            dynamic_lds=_LDS - kernel.descriptor.lds, **options,
        )  # fmt: skip
    data = memory.read(records, size + 64) if twin is not None else b""
    assert not any(data[size:]), "written beyond the maps"
    return Ran([memory.read(at, length) for at, length in places], data[:size], ticks)


class _Machine(Machine):
    """One wave's statements. chosen: the threads that save and assign shared registers."""

    def __init__(self, wave: _OfWave, shared: Sequence[Register]) -> None:
        super().__init__(wave.lanes, {}, shared, warp=wave.lanes)
        self.wave = wave
        self.chosen = np.ones(wave.lanes, np.bool_)
        self.active = np.ones(wave.lanes, np.bool_)
        self.number = 0

    def _assign(self, register: Register, values: Lanes, threads: Lanes) -> None:
        super()._assign(register, values, threads if register.is_local else threads & self.chosen)

    def _run(self, statements: Sequence[Statement], threads: Lanes) -> None:
        if not threads.any():
            return
        super()._run(statements, threads)

    def value(self, operand: Any) -> Lanes:
        if isinstance(operand, Special):
            return self.wave.special(operand)
        if isinstance(operand, SiteOperand):
            return np.broadcast_to(np.asarray(self.wave.operand(operand, self), np.uint64), (self.wave.lanes,)).copy()
        return super().value(operand)

    def _computed(self, statement: Statement) -> Lanes:
        if isinstance(statement, Load) and isinstance(statement.operand, SiteOperand):
            bits = self.wave.operand(statement.operand, self)
            return from_bits(np.broadcast_to(np.asarray(bits, np.uint64), (self.wave.lanes,)).copy(),
                             statement.destination.type)  # fmt: skip
        if isinstance(statement, ClockAfter):
            return self.wave.special(Special.CLOCK)
        if isinstance(statement, IsGlobal):
            upper = self.value(statement.address) >> np.uint64(32)
            return ~np.isin(upper, np.array(_APERTURES, np.uint64))
        return super()._computed(statement)


class _OfWave:
    """One wave's place, and its probes' registers."""

    def __init__(self, model: ProbeModel, wave: Wave) -> None:
        self.model, self.lanes = model, wave.lanes
        self.group, self.number = wave.group.index, wave.number
        shape = model.shape
        items = self.number * self.lanes + np.arange(self.lanes)
        width, height, _ = shape.block
        self.items = (items % width, items // width % height, items // (width * height))
        self.entry = bits_of(wave)
        x, y, z = self.group
        self.block = x + shape.grid[0] * (y + shape.grid[1] * z)
        self.warp = self.block * shape.waves(self.lanes) + self.number
        self.machine = _Machine(self, [one for one in model.kernel.probes.registers if not one.is_local])
        self.instruction: Any = None
        self.wave: Wave | None = None
        self.addresses: Lanes = np.zeros(wave.lanes, np.uint64)
        self.is_generic = False
        self.identity = hardware_identity(model.processor, self.block, self.number)

    @property
    def unit(self) -> int:
        """The number of its compute unit, dense."""
        if self.model.processor.startswith("gfx9"):
            number = self.identity["HW_REG_HW_ID"] >> 8 & 0xFF
            if self.model.processor.startswith(("gfx94", "gfx95")):
                number |= (self.identity["HW_REG_XCC_ID"] & 15) << 8
            return number
        found = self.identity["HW_REG_HW_ID1"]
        return (found >> 18 & 7) << 5 | (found >> 16 & 1) << 4 | (found >> 10 & 15)

    def special(self, special: Special) -> Lanes:
        """Values of the hardware, one for each lane."""
        name, _, axis = special.value.partition(".")
        number = "xyz".index(axis) if axis else 0
        if special is Special.CLOCK:
            return self._all(self._clock(), np.uint64)
        if special is Special.TIME:
            return self._all((self._tick() + _EPOCH) * 10, np.uint64)
        found: Any = {
            "cuid": self.unit, "lane": np.arange(self.lanes), "warp": self.number, "tid": self.items[number],
            "ctaid": self.group[number], "ntid": self.model.shape.block[number],
            "nctaid": self.model.shape.grid[number],
        }.get(name)  # fmt: skip
        if special is Special.LANEMASK_LT:
            return np.array([(1 << lane) - 1 for lane in range(self.lanes)], np.uint64)
        if found is None:
            raise UnmodelledError(special.value)
        return self._all(found, np.uint32)

    def _all(self, value: Any, kind: Any) -> Lanes:
        return np.broadcast_to(np.asarray(value, kind), (self.lanes,)).copy()

    def _tick(self) -> int:
        ticks = self.model.ticks[self.group, self.number]
        if not ticks:
            raise AssertionError("the twin has read fewer clocks than its probes ask for")
        return ticks.popleft()

    def _clock(self) -> int:
        processor = self.model.processor
        if processor.startswith("gfx11"):
            return self._tick() + _EPOCH
        if processor.startswith("gfx12"):
            upper, lower, again = self._tick(), self._tick(), self._tick()
            return again >> 32 << 32 | (lower & 0xFFFFFFFF if upper >> 32 == again >> 32 else 0)
        return self._tick()

    def operand(self, operand: SiteOperand, machine: _Machine) -> Any:
        """The bits of a site's value in each lane."""
        if operand.name == "BYTES":
            access = access_of(self.instruction)
            assert access is not None
            if access.space is Space.SCALAR:
                # Once for the wave.
                return np.where(self.operand(_LEADER, machine), access.size, 0)
            return access.size * access.addresses
        if operand.name == "ADDR" and access_of(self.instruction) is not None:
            return self.addresses
        if operand.name == "OUT":
            return self._result(operand.element)
        if operand.name == "LANES":
            return mask_of(machine.active)
        if operand.name == "SITE":
            return machine.number
        if operand.name == "LEADER":
            return np.arange(self.lanes) == int(np.flatnonzero(machine.active)[0])
        if operand.name == "THREAD":
            return self.number * self.lanes + np.arange(self.lanes)
        if operand.name == "BLOCK":
            return self.block
        raise UnmodelledError(operand.text)


    def _result(self, element: str | None) -> Any:
        """What a load has brought, or an instruction has computed."""
        assert self.wave is not None
        access = access_of(self.instruction)
        name = self.instruction.operands[0] if access is None else operands_of(self.instruction, access).result
        match = re.fullmatch(r"([vs])(?:(\d+)|\[(\d+):(\d+)\])", name)
        if match is None or (access is not None and (access.size < 4 or access.keeps_half)):
            raise UnmodelledError(f"OUT of {self.instruction.text}")
        first = int(match[2] or match[3])
        words = int(match[4]) - first + 1 if match[4] else 1
        at = "xyzw".index(element) if element in ("x", "y", "z", "w") else int(element or 0)
        row = self.wave.v if match[1] == "v" else self.wave.s
        low = np.asarray(row[first + at], np.uint64)
        if element is None and words >= 2:
            low = low | np.asarray(row[first + 1], np.uint64) << np.uint64(32)
        return low


def bits_of(wave: Wave) -> Lanes:
    """EXEC as bools."""
    execute = wave.pair(EXEC) if wave.lanes == 64 else wave.s[EXEC]
    return np.array([execute >> lane & 1 for lane in range(wave.lanes)], np.bool_)


def mask_of(lanes: Lanes) -> int:
    """Bools as a number."""
    return sum(1 << int(lane) for lane in np.flatnonzero(lanes))


@dataclass
class _Saved:
    map: Map
    values: tuple[Lanes, ...]
    threads: Lanes
    wave: _OfWave


class ProbeModel:
    """What the probes of a kernel record. ticks: those that the twin has read, by wave."""

    def __init__(
        self, kernel: GcnKernel, shape: Shape, ticks: Mapping[WaveKey, deque[int]]
    ) -> None:  # fmt: skip
        self.kernel, self.shape = kernel, shape
        self.processor, self.lanes = kernel.source.processor, kernel.function.wave
        self.ticks = {key: deque(values) for key, values in ticks.items()}
        self._waves: dict[WaveKey, _OfWave] = {}
        self._rows = {row.offset: row for row in kernel.function.instructions}
        self._numbers = {offset: number for number, offset in enumerate(kernel.at)}
        self._sites: dict[WaveKey, tuple[int, Lanes]] = {}
        self._offsets: list[int | None] = []
        self.saved: list[_Saved] = []

    def observer(self, loaded: LoadedObject) -> ProbeModel:
        """Return itself, as what is called before each instruction of the original."""
        function = self.kernel.function
        places = loaded.program(self.lanes).instructions
        begin, end = function.address, function.address + len(function.code)
        self._offsets = [one.address - begin if begin <= one.address < end else None for one in places]
        return self

    def __call__(self, wave: Wave, place: int) -> None:
        """Do what probes do at an instruction."""
        key = wave.group.index, wave.number
        mine = self._waves.get(key)
        if mine is None:
            mine = self._waves[key] = _OfWave(self, wave)
            self._of_kernel(mine, "before", mine.entry)
        self._finish(mine, wave, key)
        offset = self._offsets[place]
        if offset is None:
            return
        row = self._rows[offset]
        active = bits_of(wave)
        self._sites[key] = offset, active
        mine.addresses = np.zeros(mine.lanes, np.uint64)
        access = access_of(row)
        mine.is_generic = access is not None and access.space is Space.GENERIC
        wave.watcher = partial(self._watch, mine)
        if row.mnemonic == "s_endpgm":
            self._finish(mine, wave, key)
            self._of_kernel(mine, "after", mine.entry)

    def _finish(self, mine: _OfWave, wave: Wave, key: WaveKey) -> None:
        """Do what probes do before and after the instruction that has just run."""
        if key not in self._sites:
            return
        offset, active = self._sites.pop(key)
        row = self._rows[offset]
        mine.wave = wave
        if offset in self.kernel.at:
            self._at_site(mine, offset, "before", active)
        if row.mnemonic in _TICKS and (row.mnemonic != "s_getreg_b32" or "SHADER_CYCLES" in row.text):
            self.ticks[key].popleft()
        if offset in self.kernel.at:
            self._at_site(mine, offset, "after", active)

    def _watch(
        self, mine: _OfWave, wave: Wave, what: str, lanes: Any, memory: Lanes, places: Lanes, size: int
    ) -> None:  # fmt: skip
        """Note the addresses of an access."""
        del what, size
        if memory is wave.memory.bytes:
            places = places + BASE
        elif mine.is_generic:
            # The window, which is what matters of it: places in scratch memory are those of all lanes.
            places = places + (_APERTURES[memory is not wave.group.lds] << 32)
        if lanes is None:
            mine.addresses[:] = places[0]
        else:
            numbers = np.arange(mine.lanes)[lanes]
            fresh = mine.addresses[numbers] == 0
            mine.addresses[numbers[fresh]] = places[fresh]

    def _of_kernel(self, mine: _OfWave, when: str, active: Lanes) -> None:
        for probe in self.kernel.probes.probes:
            if probe.tracepoint.is_kernel:
                self._run(mine, probe, getattr(probe, when), active)

    def _at_site(self, mine: _OfWave, offset: int, when: str, active: Lanes) -> None:
        mine.instruction = self._rows[offset]
        mine.machine.number = self._numbers[offset]
        for probe in self.kernel.at[offset]:
            if not probe.tracepoint.is_kernel:
                self._run(mine, probe, getattr(probe, when), active)

    def _run(self, mine: _OfWave, probe: Probe, snippet: Snippet | None, active: Lanes) -> None:
        if snippet is None or not active.any():
            return
        lanes = np.arange(mine.lanes)
        chosen = active
        if probe.level in (Level.WARP, Level.BLOCK):
            chosen = active & (lanes == 0) & (probe.level is Level.WARP or mine.number == 0)
        elif probe.level is Level.GROUP:
            chosen = lanes == int(np.flatnonzero(active)[0])
        if not chosen.any():
            return
        machine = mine.machine
        machine.chosen, machine.active = chosen, active
        machine.saved.clear()
        with np.errstate(all="ignore"):
            machine._run(snippet.statements, active)
        saves = {save.map.name: save.map for save in _saves(snippet.statements)}
        for name, values, threads in machine.saved:
            where = threads & chosen
            if where.any():
                self.saved.append(_Saved(saves[name], values, where, mine))

    # Results

    def compare(self, twin: GcnTwin, memory: bytes) -> tuple[list[str], list[str]]:
        """Compare with what a twin recorded: what differs, as text, and the maps that were not compared."""
        blocks, waves = int(np.prod(self.shape.grid)), self.shape.waves(self.lanes)
        regions, _ = region_layout(twin.maps, blocks, waves, self.lanes, 64)
        wrong, skipped = [], []
        for entry, region in zip(twin.maps, regions, strict=True):
            data = memory[region.records : region.records + region.records_size]
            saved = [one for one in self.saved if one.map.name == entry.name]
            if entry.kind.layout is Layout.SLOTS and not has_counts(entry):
                wrong += self._slots(entry, data, saved)
            elif entry.kind.name in ("sum", "min", "max") and not entry.sums_floats:
                wrong += self._combined(entry, data, saved, blocks * waves)
            else:
                skipped.append(entry.name)
        left = {key: len(values) for key, values in self.ticks.items() if values}
        if left:
            wrong.append(f"the twin has read clocks that its probes do not ask for: {left}")
        return wrong, skipped

    def _slots(self, entry: Map, data: bytes, saved: Sequence[_Saved]) -> list[str]:
        expected = np.zeros(len(data), np.uint8)
        for one in saved:
            for lane in np.flatnonzero(one.threads):
                slot = {
                    Level.THREAD: one.wave.warp * self.lanes + int(lane), Level.WARP: one.wave.warp,
                    Level.BLOCK: one.wave.block,
                }[entry.level]  # fmt: skip
                for cell, values in zip(entry.fields, one.values, strict=True):
                    at = slot * entry.size + cell.offset
                    raw = np.asarray(values[lane]).tobytes()[: cell.type.size]
                    fill = 255 if values.dtype.kind == "i" and int(values[lane]) < 0 else 0
                    expected[at : at + cell.type.size] = list(raw.ljust(cell.type.size, bytes([fill])))
        if expected.tobytes() == data:
            return []
        where = int(np.flatnonzero(expected != np.frombuffer(data, np.uint8))[0])
        slot = where // entry.size * entry.size
        return [
            f"map {entry.name}: slot {where // entry.size}: {data[slot : slot + entry.size].hex()} and not "
            f"{expected[slot : slot + entry.size].tobytes().hex()}"
        ]

    def _combined(self, entry: Map, data: bytes, saved: Sequence[_Saved], warps: int) -> list[str]:
        """Sums and extremes, of the launch or of rows."""
        has_rows = entry.per.has_rows
        stride = row_stride(entry) if has_rows else copy_stride(entry.size)
        count = len(data) // stride if has_rows else copies_of(entry, warps)
        words = np.frombuffer(data, np.uint8)[: count * stride].reshape(count, stride)
        kind = entry.kind.name
        found: dict[int, tuple[int, ...]] = {}
        names = [
            (cell.name, f"<{cell.type.value[0].replace('s', 'i')}{cell.type.size}")
            for cell in entry.kind.cells(entry.fields)
        ]
        layout = np.dtype(
            {"names": [n for n, _ in names], "formats": [f for _, f in names],
             "offsets": [cell.offset for cell in entry.kind.cells(entry.fields)], "itemsize": stride}
        )  # fmt: skip
        table = np.ascontiguousarray(words).view(layout)[:, 0]
        groups = {row: table[row : row + 1] for row in range(count)} if has_rows else {0: table}
        description = {
            "kind": kind, "fields": [{"name": cell.name, "type": cell.type.value} for cell in entry.fields]
        }  # fmt: skip
        for row, copies in groups.items():
            if kind == "sum":
                totals = tuple(
                    sum(int(value) for value in copies[cell.name]) % (1 << 8 * cell.type.size) for cell in entry.fields
                )
                if any(totals):
                    found[row] = totals
            else:
                values = entry.kind.read(copies, description)  # type: ignore[attr-defined]
                if len(values):
                    found[row] = tuple(int(values[cell.name][0]) for cell in entry.fields)
        expected: dict[int, list[int]] = {}
        for one in saved:
            for lane in np.flatnonzero(one.threads):
                row = self._row(entry, one.wave, int(lane)) if has_rows else 0
                values = [int(column[lane]) for column in one.values]
                if kind == "sum":
                    old = expected.get(row, [0] * len(values))
                    expected[row] = [
                        (a + b) % (1 << 8 * cell.type.size)
                        for a, b, cell in zip(old, values, entry.fields, strict=True)
                    ]
                elif row not in expected:
                    expected[row] = values
                else:
                    better = min if kind == "min" else max
                    expected[row] = [better(a, b) for a, b in zip(expected[row], values, strict=True)]
        wanted = {row: tuple(values) for row, values in expected.items() if kind != "sum" or any(values)}
        if wanted == found:
            return []
        rows = [row for row in {*wanted, *found} if wanted.get(row) != found.get(row)]
        first = min(rows)
        return [f"map {entry.name}: row {first}: {found.get(first)} and not {wanted.get(first)}, of {len(rows)} wrong"]

    def _row(self, entry: Map, wave: _OfWave, lane: int) -> int:
        """The number of a row; the first belongs to none."""
        if entry.per is Per.SM:
            return wave.unit + 1 if wave.unit < SM_ROWS else 0
        if entry.per is Per.BLOCK:
            return wave.block + 1
        return (wave.warp * self.lanes + lane if entry.per is Per.THREAD else wave.warp) + 1


def _saves(statements: Sequence[Statement]) -> Iterator[Save]:
    for statement in statements:
        if isinstance(statement, Save):
            yield statement
        elif isinstance(statement, If):
            yield from _saves((*statement.then, *statement.otherwise))
        else:
            yield from _saves(getattr(statement, "body", ()))


__all__ = ["ProbeModel", "Ran", "Shape", "UnmodelledError", "dtype_of", "run"]
