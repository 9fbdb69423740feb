"""Typed statements as GCN code in one wave of the emulator, beside what NumPy makes of them (``typed_model``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.checks import Checks
from neutrino.emulator.gcn.compiler import END
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.numbering import EXEC, SGPRS, UPPER_HALVES, VGPRS
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.wave import Group, Wave, mask_number
from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.compute import Computing, varying
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.processors import PROCESSORS
from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import Save, Statement
from tests.oracle import typed_model
from tests.oracle.typed import same

Lanes = npt.NDArray[Any]
MACHINES = (
    ("gfx90a", 64), ("gfx942", 64), ("gfx950", 64), ("gfx1030", 32), ("gfx1030", 64), ("gfx1100", 32), ("gfx1100", 64),
    ("gfx1201", 32), ("gfx1201", 64),
)  # fmt: skip
"""Processors and waves that probes are computed on."""
_INPUTS, _HOMES, _TEMPORARIES, _RESULTS = 0, 8, range(64, 160), 160
"""VGPRs: the site's values; shared registers; what snippets may use; what they save."""
_SCALARS = range(8, 60)
_SHARED_MASKS = 60
_MODE = 0xF0
"""Nearest, even; denormal numbers everywhere."""


@cache
def machine_of(processor: str, wave: int) -> Machine:
    """The machine of a processor."""
    return Machine(PROCESSORS[processor], wave)


def features_of(machine: Machine) -> str:
    """LLVM's features for the size of its waves."""
    other = 96 - machine.wave
    return f"+wavefrontsize{machine.wave},-wavefrontsize{other}" if machine.generation > 9 else ""


class _Here:
    """The place of a snippet: its site's values are in registers."""

    def __init__(self, code: Code, operands: Mapping[str, Value], homes: Mapping[str, Place]) -> None:
        self.code = code
        self.site = 0
        self.is_exec_known = True
        self._operands, self._homes = operands, homes

    def home(self, register: Register) -> Place:
        """Where a shared register is."""
        return self._homes[register.name]

    def special(self, special: Special) -> Value:
        """A value of the hardware: the lane, or the clock."""
        if special is Special.LANE:
            lane = self.code.vector()
            self.code.emit(*self.code.machine.lane(lane.text))
            return lane
        assert special is Special.CLOCK, special
        clock, scratch = self.code.scalar(2), self.code.scalar()
        self.code.emit(*self.code.machine.clock(clock.word(0), clock.word(1), clock.text, scratch.text))
        return clock

    def operand(self, operand: SiteOperand) -> Value:
        """A value of the site's instruction."""
        return self._operands[operand.text]

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        """None here."""
        raise NotImplementedError

    def grid_blocks(self, axis: int) -> Value:
        """None here."""
        raise NotImplementedError


class _Saving(Computing):
    """Saves go to VGPRs, one after the other."""

    def __init__(self, here: _Here, vectors: Iterable[str]) -> None:
        super().__init__(here, vectors)
        self.saved: list[Vector] = []

    def save(self, statement: Save) -> None:
        """Bring what is saved into VGPRs of the lanes that save."""
        first = _RESULTS
        for operand in statement.operands:
            assert isinstance(operand, Register)
            words = self.words(operand.type)
            first += words > 1 and first % 2
            place = Vector(first, words)
            first += words
            self.move(place, self.value(operand), operand.type)
            self.saved.append(place)


@dataclass
class Lowered:
    """A snippet as code. saved: where its results are. homes: of shared registers. text: the assembly."""

    machine: Machine
    program: Program
    text: str
    saved: Sequence[Vector]
    homes: Mapping[str, Place]
    used_vectors: frozenset[int]
    used_scalars: frozenset[int]


def lowered(
    machine: Machine, llvm: Llvm, body: Sequence[Statement], bits: int, shared: Sequence[Register] = (),
    uniform: Sequence[str] = (), temporaries: range = _TEMPORARIES,
) -> Lowered:  # fmt: skip
    """A snippet's code. bits: of the site's values. uniform: those of them that are in SGPRs. temporaries: VGPRs."""
    words = max(bits // 32, 1)
    operands: dict[str, Value] = {
        name: Scalar(2 * index, words) if name in uniform else Vector(_INPUTS + 2 * index, words)
        for index, name in enumerate(("IN1", "IN2"))
    }
    homes: dict[str, Place] = {}
    vector, mask = _HOMES, _SHARED_MASKS
    for register in shared:
        if register.type is Type.PRED:
            homes[register.name] = Mask(mask, machine.mask_words)
            mask += 2
        else:
            count = 2 if register.type.bits == 64 else 1
            vector += vector % 2
            homes[register.name] = Vector(vector, count)
            vector += count
    code = Code(machine, _SCALARS, temporaries)
    here = _Here(code, operands, homes)
    vectors = varying(body, {register.name for register in shared}, is_varying_operand=not uniform)
    computing = _Saving(here, vectors)
    computing.lower(body)
    return assembled(machine, llvm, code, computing.saved, homes)


def assembled(
    machine: Machine, llvm: Llvm, code: Code, saved: Sequence[Vector] = (), homes: Mapping[str, Place] | None = None
) -> Lowered:
    """Code as a program that ends behind it."""
    text = "\n".join([*code.lines, "s_endpgm"])
    features = features_of(machine)
    rows = llvm.disassemble(llvm.assemble(text, machine.processor, features), machine.processor, features)
    program = Program(rows, machine.processor, machine.wave)
    return Lowered(machine, program, text, saved, homes or {}, code.vectors_used, code.scalars_used)


def wave_of(snippet: Lowered, left: Lanes, right: Lanes, shared: Sequence[Register], active: Lanes, seed: int,
            uniform: Sequence[str] = ()) -> Wave:  # fmt: skip
    """A wave before the snippet: all registers hold something."""
    random = np.random.default_rng(seed)
    lanes = snippet.machine.wave
    wave = Wave(lanes, 0, Group((0, 0, 0), 0, 0), Memory(), 0, 0)
    wave.v[:] = random.integers(0, 1 << 32, (VGPRS, lanes), np.uint32)
    wave.s = random.integers(0, 1 << 32, SGPRS).tolist()
    wave.mode = _MODE
    value = mask_number(active)
    wave.s[EXEC], wave.s[EXEC + 1] = value & 0xFFFFFFFF, value >> 32
    wave.set_exec()
    defined = (1 << SGPRS) - 1 >> 100 << 100 << VGPRS
    owned = (1 << UPPER_HALVES + VGPRS) - 1

    def put(place: Place, values: Lanes) -> None:
        nonlocal defined
        for word in range(place.words):
            row = (values >> np.uint64(32 * word) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            if isinstance(place, Vector):
                wave.v[place.first + word] = row
                defined |= (1 | 1 << UPPER_HALVES) << place.first + word
            else:
                wave.s[place.first + word] = int(row[0])
                defined |= 1 << VGPRS + place.first + word

    for index, (name, values) in enumerate((("IN1", left), ("IN2", right))):
        words = max(values.itemsize // 4, 1)
        kind: type[Vector | Scalar] = Scalar if name in uniform else Vector
        put(kind(2 * index if name in uniform else _INPUTS + 2 * index, words), values.astype(np.uint64))
    for register in shared:
        place = snippet.homes[register.name]
        if isinstance(place, Mask):
            number = (1 << lanes) - 1 if register.initial else 0
            for word in range(place.words):
                wave.s[place.first + word] = number >> 32 * word & 0xFFFFFFFF
                defined |= 1 << VGPRS + place.first + word
            continue
        initial = register.initial
        if register.type.is_signed and register.type.bits < 32 and initial >> register.type.bits - 1:
            initial += (1 << 32) - (1 << register.type.bits)
        put(place, np.full(lanes, initial, np.uint64))
    wave.checks = Checks(snippet.machine.generation, defined, owned)
    return wave


def execute(snippet: Lowered, wave: Wave, limit: int = 200_000) -> None:
    """Run it to its end."""
    steps = snippet.program.steps(wave.mode, 0, True, False)
    place = count = 0
    with np.errstate(all="ignore"):
        while True:
            to = steps[place](wave)
            count += 1
            assert count < limit, "it does not end"
            if to == END:
                return
            assert to is None or to >= 0, "an event"
            place = place + 1 if to is None else to


def differences(
    machine: Machine, llvm: Llvm, body: Sequence[Statement], left: Lanes, right: Lanes,
    shared: Sequence[Register] = (), seed: int = 0, uniform: Sequence[str] = (), masks: Sequence[Lanes] = (),
) -> list[str]:  # fmt: skip
    """Where a snippet's code does something else than NumPy, in waves over all elements of the site's values."""
    snippet = lowered(machine, llvm, body, 8 * left.itemsize, shared, uniform)
    found: list[str] = []
    random = np.random.default_rng(seed)
    lanes = machine.wave
    size = -(-left.size // lanes)
    for number in range(size):
        part = np.arange(number * lanes, (number + 1) * lanes) % left.size
        first, second = left[part], right[part]
        if uniform:
            first, second = np.full_like(first, first[0]), np.full_like(second, second[0])
        active = masks[number % len(masks)][:lanes] if len(masks) else random.random(lanes) < (0.9 if number % 3 else 2)
        if not active.any():
            active = np.ones(lanes, np.bool_)
        found += _wave_differences(snippet, body, first, second, shared, active, seed + number, uniform)
        if len(found) > 5:
            break
    return found


def _wave_differences(
    snippet: Lowered, body: Sequence[Statement], first: Lanes, second: Lanes, shared: Sequence[Register],
    active: Lanes, seed: int, uniform: Sequence[str],
) -> list[str]:  # fmt: skip
    machine = snippet.machine
    lanes = machine.wave
    model = typed_model.Machine(lanes, {"IN1": first, "IN2": second}, shared, lanes)
    model.run(body, active)
    wave = wave_of(snippet, first, second, shared, active, seed, uniform)
    vectors, scalars = wave.v.copy(), list(wave.s)
    execute(snippet, wave)
    assert wave.checks is not None
    found = [f"{snippet.program.instructions[place].text} reads what nothing wrote"
             for place in wave.checks.undefined]  # fmt: skip
    if wave.execute() != mask_number(active):
        found.append("EXEC is another one")
    if wave.mode != _MODE:
        found.append("MODE is another one")
    ours = set(snippet.used_vectors) | set(range(_RESULTS, 256))
    of_homes = {number for place in snippet.homes.values() if isinstance(place, Vector)
                for number in range(place.first, place.first + place.words)}  # fmt: skip
    changed = (wave.v != vectors)
    if changed[:, ~active].any():
        found.append(f"registers of inactive lanes: v{np.flatnonzero(changed[:, ~active].any(axis=1)).tolist()}")
    others = [number for number in np.flatnonzero(changed.any(axis=1)) if number not in ours and number not in of_homes]
    if others:
        found.append(f"registers of others: v{others}")
    masks = {number for place in snippet.homes.values() if isinstance(place, Mask)
             for number in range(place.first, place.first + place.words)}  # fmt: skip
    mine = set(snippet.used_scalars) | masks | {106, 107}
    strange = [number for number in range(SGPRS) if wave.s[number] != scalars[number] and number not in mine]
    if strange:
        found.append(f"registers of others: s{strange}")
    for register in shared:
        found += _compared(register.text, wave, snippet.homes[register.name], model.value(register), register.type,
                           np.ones(lanes, np.bool_), first, second)  # fmt: skip
    for (name, values, threads), save in zip(model.saved, _saves(body), strict=True):
        del name
        for operand, place, wanted in zip(save.operands, snippet.saved, values, strict=True):
            assert isinstance(operand, Register)
            found += _compared(operand.text, wave, place, wanted, operand.type, threads, first, second)
    return found


def _compared(name: str, wave: Wave, place: Place, wanted: Lanes, kind: Type, threads: Lanes, first: Lanes,
              second: Lanes) -> list[str]:  # fmt: skip
    if isinstance(place, Mask):
        word = sum(wave.s[place.first + number] << 32 * number for number in range(place.words))
        got = np.array([word >> lane & 1 for lane in range(wave.lanes)], np.bool_)
        equal = got == wanted
    else:
        assert isinstance(place, Vector)
        bits = wave.v[place.first].astype(np.uint64)
        if place.words == 2:
            bits |= wave.v[place.first + 1].astype(np.uint64) << np.uint64(32)
        extended = np.ones(wave.lanes, np.bool_)
        if kind.bits < 32:
            width = 1 if kind is Type.PRED else kind.bits
            rest = bits >> np.uint64(width)
            sign = bits >> np.uint64(width - 1) & np.uint64(1) if kind.is_signed else np.zeros_like(bits)
            extended = rest == sign * np.uint64((1 << 32 - width) - 1)
            bits &= np.uint64((1 << width) - 1)
        got = typed_model.from_bits(bits, kind)
        equal = same(got, wanted) & extended
    return [
        f"{name}: {got[lane]!r} in place of {wanted[lane]!r} in lane {lane}, of {first[lane]:#x}, {second[lane]:#x}"
        for lane in np.flatnonzero(threads & ~equal)[:2]
    ]


def _saves(body: Iterable[Statement]) -> list[Save]:
    from neutrino.probing.ir.structured import walk

    return [statement for statement in walk(body) if isinstance(statement, Save)]
