"""Judges values of sites: snippets that compute them stand in a kernel, which the interpreter runs and watches.

Nothing is stored: where a snippet has its values, the interpreter's registers are read, and compared with what the
instruction itself then accesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.kernel import Descriptor
from neutrino.emulator.gcn.memory import BASE
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.trace import Trace
from neutrino.emulator.gcn.wave import Wave
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.analysis.scratch_buffers import scratch_accesses
from neutrino.gcn.code import Function, Instruction, Module, wave_features
from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.site_values import SiteValues
from neutrino.gcn.isa.memory import Access, Kind, Space, access_of, gives_result
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.splice import Insertion, splice
from neutrino.ir.operands import Constant, Register, SiteOperand, Special

Array = npt.NDArray[Any]
ADDR, OUT, DATA = SiteOperand("ADDR"), SiteOperand("OUT"), SiteOperand("IN2")
_ELEMENTS = tuple(SiteOperand("OUT", str(number)) for number in range(4))
_OF_LANES = (SiteOperand("LANES"), SiteOperand("LEADER"))
_SIGNED = ("sbyte", "sshort", "_i8", "_i16")
_APERTURES = (0x1_0000 << 32, 0x2_0000 << 32)


class TooFewError(Exception):
    """A kernel leaves too few registers for the snippets."""


class Noted(NamedTuple):
    """A place where values are read. values: by what they are; after: whether it is behind the instruction."""

    site: Instruction
    values: dict[SiteOperand, Value]
    after: bool


@dataclass
class Judged:
    """What a judgement found. compared: how many values of each kind were equal. wrong: the others, as text. refused:
    messages."""

    compared: Counter[str]
    wrong: list[str]
    refused: Counter[str]


class Anywhere:
    """A site in a kernel, without what a frame keeps."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.site = 0
        self.is_exec_known = False

    def home(self, register: Register) -> Place:
        raise NotImplementedError

    def special(self, special: Special) -> Value:
        raise NotImplementedError

    def operand(self, operand: SiteOperand) -> Value:
        raise NotImplementedError

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        raise NotImplementedError

    def grid_blocks(self, axis: int) -> Value:
        raise NotImplementedError


class SiteJudge:
    """A kernel with snippets at its accesses.

    code, rows: the kernel's, and its instructions as the interpreter takes them. descriptor: with all registers.
    """

    def __init__(
        self, module: Module, function: Function, llvm: Llvm, descriptor: Descriptor, address: int, *, stride: int = 1
    ) -> None:
        """Put snippets at every access of a kernel, or at every ``stride``-th. address: where the copy goes."""
        self._function, self._llvm = function, llvm
        self._processor = module.processor
        self._machine = Machine(PROCESSORS[module.processor], function.wave)
        self._features = wave_features(module.processor, module.features, function.wave)
        self._placement = Placement(function)
        generation = self._machine.generation
        self._scratch = scratch_accesses(FlowGraph(function), module.processor, generation, descriptor.properties)
        registers = KernelRegisters(module, function, PROCESSORS[module.processor])
        assert not registers.refused, registers.refused
        self._scalars = registers.free_scalars()
        self._first_vector = registers.vector_count + registers.vector_count % 2
        self._turn = 0
        self.refused: Counter[str] = Counter()
        self.descriptor = _with_registers(descriptor)
        header = 256 if descriptor.preload_length else 0
        notes: list[tuple[int, bytes, bytes, Noted]] = []
        sites = [row for row in function.instructions if row.offset >= header and access_of(row) is not None]
        for row in sites[::stride]:
            notes += self._snippets(row)
        insertions = [Insertion(before, first + last) for before, first, last, _ in notes]
        spliced = splice(function, insertions, address, header=header)
        self.rows = [
            (address + offset, size, text)
            for offset, size, text in llvm.disassemble(spliced.code, module.processor, self._features)
        ]
        self.noted: dict[int, Noted] = {}
        total = Counter[int]()
        for before, first, last, _ in notes:
            total[before] += len(first) + len(last)
        at = Counter[int]()
        for before, first, last, noted in notes:
            begin = address + spliced.moved[before] - total[before] + at[before]
            self.noted[begin + len(first)] = noted
            at[before] += len(first) + len(last)
        self.sites = {address + spliced.moved[row.offset]: row for row in sites[::stride]}

    def run(self, others: Iterable[tuple[int, int, str | None]], launch: Callable[[Program, Watch], object]) -> Judged:
        """Run the kernel and compare. others: instructions of the functions that it calls. launch: runs a program."""
        program = Program([*others, *self.rows], self._processor, self._function.wave)
        watch = Watch(program, self)
        launch(program, watch)
        return Judged(watch.compared, watch.wrong, self.refused)

    def _snippets(self, row: Instruction) -> list[tuple[int, bytes, bytes, Noted]]:
        """Return where the two snippets of a site go, each in two parts, between which the values are read."""
        access = access_of(row)
        assert access is not None
        values = SiteValues(
            self._function, row, self._machine, placement=self._placement, site=7,
            is_scratch=row.offset in self._scratch,
        )  # fmt: skip
        if len(self._scalars) < 24:
            raise TooFewError
        saved, *scalars = self._scalars
        pair = next(number for number in scalars if number % 2 == 0 and number + 1 in scalars)
        scalars = [number for number in scalars if number not in (pair, pair + 1)]
        start = [f"s_cselect_b32 s{saved}, 1, 0", f"s_mov_b64 s[{pair}:{pair + 1}], vcc"]
        end = [f"s_mov_b64 vcc, s[{pair}:{pair + 1}]", f"s_cmp_lg_u32 s{saved}, 0"]
        vectors = list(range(self._first_vector, self._first_vector + 32))

        wanted = [ADDR, SiteOperand("BYTES"), SiteOperand("SITE"), *_OF_LANES]
        if access.kind is Kind.STORE and access.space is not Space.SCALAR:
            wanted.append(DATA)
        before = self._having(values, wanted, after=False)
        wanted = [ADDR, *_OF_LANES]
        if gives_result(row, access):
            wanted += [OUT, *(each for each in _ELEMENTS if not values.problem(each, after=True))]
        after = self._having(values, wanted, after=True)

        code = Code(self._machine, scalars[8:24], vectors)
        found = values.prepare(before, Anywhere(code), after=False)
        # Snippets of a clause stand in front of it and behind it, all together.
        turns = min(24, (256 - 32 - self._first_vector) // 4)
        if turns < 8:
            raise TooFewError
        self._turn = (self._turn + 1) % turns
        own = range(self._first_vector + 32 + 4 * self._turn, self._first_vector + 36 + 4 * self._turn)
        groups = max(1, (len(scalars) - 24) // 8)
        first = 24 + 8 * (self._turn % groups) if len(scalars) >= 32 else 0
        keeping = Code(self._machine, scalars[first : first + 8], own)
        kept = values.keep(values.kept(after), Anywhere(keeping))
        behind = Code(self._machine, scalars[8:24], vectors)
        late = values.prepare(after, Anywhere(behind), after=True, kept=kept)
        suffix = self._assembled(end)
        return [
            (self._placement.before(row.offset), self._assembled([*start, *keeping.lines, *code.lines]), suffix,
             Noted(row, found, after=False)),
            (self._placement.after(row.offset), self._assembled([*start, *behind.lines]), suffix,
             Noted(row, late, after=True)),
        ]  # fmt: skip

    def _having(self, values: SiteValues, wanted: list[SiteOperand], *, after: bool) -> list[SiteOperand]:
        """Return the values that there are; the others are noted."""
        found = []
        for operand in wanted:
            problem = values.problem(operand, after=after)
            if problem:
                self.refused[problem] += 1
            else:
                found.append(operand)
        return found

    def _assembled(self, lines: list[str]) -> bytes:
        """Return the machine code of a part."""
        return self._llvm.assemble("\n".join(lines), self._processor, self._features)


def _with_registers(descriptor: Descriptor) -> Descriptor:
    """Return a descriptor that gives a wave all registers that there are."""
    return replace(descriptor, rsrc1=descriptor.rsrc1 | 0x3FF, rsrc3=descriptor.rsrc3 | 0x3F)


class Watch(Trace):
    """Compares, while a kernel runs, what snippets have with what instructions access."""

    def __init__(self, program: Program, judge: SiteJudge) -> None:
        super().__init__(program)
        self._judge = judge
        self.compared: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._early: dict[tuple[Any, int], dict[SiteOperand, Any]] = {}
        """By wave and site: values in front of the instruction."""
        self._done: dict[tuple[Any, int], list[tuple[str, Array, Array, Array, Array, int]]] = {}
        """By wave and site: what it has accessed: space, lanes, addresses, bytes, memory, and size."""
        self._active: dict[int, bool] = {}
        """Whether a site was reached with lanes, at last."""

    def observe(self, wave: Wave, place: int) -> None:
        super().observe(wave, place)
        address = self.program.instructions[place].address
        noted = self._judge.noted.get(address)
        if noted is None:
            return
        values = {operand: _numbers(wave, value) for operand, value in noted.values.items()}
        key = (wave.group.index, wave.number), noted.site.offset
        self._compare_lanes(wave, noted, values)
        if noted.after:
            if key in self._early:
                self._compare(noted, self._early.pop(key), values, self._done.pop(key, []))
        else:
            self._early[key] = values
            self._done[key] = []

    def _watch(self, wave: Wave, what: str, lanes: Any, memory: Array, places: Array, size: int) -> None:
        super()._watch(wave, what, lanes, memory, places, size)
        row = self._judge.sites.get(self._address)
        access = self.accesses[-1]
        key = access.wave, row.offset if row is not None else -1
        if key in self._done:
            at = (
                (access.addresses.astype(np.int64) - BASE) if access.space == "global" else np.asarray(places, np.int64)
            )
            taken = memory[at[:, None] + np.arange(size)] if at.size else np.zeros((0, size), np.uint8)
            self._done[key].append((access.space, access.lanes, access.addresses, taken, at, size))
            self._memory = memory

    def _compare_lanes(self, wave: Wave, noted: Noted, values: dict[SiteOperand, Any]) -> None:
        """Compare what does not depend on the instruction."""
        execute = wave.execute()
        self._active[noted.site.offset] = execute != 0
        expected = {"LANES": execute, "LEADER": execute & -execute, "SITE": 7}
        for operand, value in values.items():
            if operand.name in expected:
                self._same(noted, operand, np.uint64(expected[operand.name]), value)

    def _compare(
        self, noted: Noted, early: dict[SiteOperand, Any], late: dict[SiteOperand, Any], done: list[Any]
    ) -> None:
        """Compare what was computed in front of an instruction, and behind it, with what it has done."""
        access = access_of(noted.site)
        assert access is not None
        first: dict[str, None] = {}
        for place, (space, lanes, addresses, taken, at, size) in enumerate(done):
            if access.addresses == 2 and place == 1:
                continue
            first[space] = None
            is_scalar = access.space is Space.SCALAR
            for values in (early, late):
                if ADDR in values:
                    value = values[ADDR] if is_scalar else np.broadcast_to(values[ADDR], 64)[lanes]
                    if space != "global":
                        value = value & np.uint64(0xFFFF_FFFF)
                    self._same(noted, ADDR, addresses.astype(np.uint64), value)
            if SiteOperand("BYTES") in early:
                value = early[SiteOperand("BYTES")]
                # Of one lane, where the wave accesses memory once.
                found = value.sum() if is_scalar else value
                expected = size * access.addresses if not is_scalar or self._active[noted.site.offset] else 0
                self._same(noted, SiteOperand("BYTES"), np.uint64(expected), found)
            if DATA in early and np.unique(at).size == at.size:
                mask = np.uint64((1 << 8 * min(size, 8)) - 1)
                stored = self._memory[at[:, None] + np.arange(min(size, 8 if size == 8 else 4))]
                self._same(noted, DATA, _little(stored), np.broadcast_to(early[DATA], 64)[lanes] & mask)
            if "_tr_" in noted.site.mnemonic:
                # Lanes exchange what they load.
                continue
            is_old = access.kind is Kind.ATOMIC and np.unique(at).size != at.size
            if access.kind is not Kind.COPY and not is_old:
                self._compare_results(noted, access, late, lanes, taken, is_scalar=is_scalar)

    def _compare_results(
        self, noted: Noted, access: Access, late: dict[SiteOperand, Any], lanes: Array, taken: Array, *, is_scalar: bool
    ) -> None:
        """Compare elements of the result with what was in memory."""
        for operand in (OUT, *_ELEMENTS):
            if operand not in late:
                continue
            found = late[operand] if is_scalar else np.broadcast_to(late[operand], 64)[lanes]
            number = int(operand.element or 0)
            if access.addresses == 2:
                if number:
                    continue
                part = taken
            elif operand.element is None and access.size == 8:
                part = taken
            else:
                part = taken[:, 4 * number : 4 * (number + 1)]
            expected = _little(part)
            if access.size < 4 and any(word in noted.site.mnemonic for word in _SIGNED):
                bits = 8 * access.size
                wide = 16 if access.keeps_half else 32
                sign = expected >> np.uint64(bits - 1) != 0
                expected = np.where(sign, expected | np.uint64((1 << wide) - (1 << bits)), expected)
            self._same(noted, operand, expected, found)

    def _same(self, noted: Noted, operand: SiteOperand, expected: Any, found: Any) -> None:
        """Count a comparison."""
        kind = f"{operand.text} {'after' if noted.after else 'before'}"
        if np.array_equal(np.broadcast_to(expected, np.shape(found)) if np.ndim(expected) == 0 else expected,
                          np.broadcast_to(found, np.shape(expected)) if np.ndim(found) == 0 else found):  # fmt: skip
            self.compared[kind] += 1
        else:
            self.wrong.append(f"{kind} of {noted.site.text}: {found} instead of {expected}")


def _little(rows: Array) -> Array:
    """Return numbers from their bytes, a row each."""
    padded = np.zeros((rows.shape[0], 8), np.uint8)
    padded[:, : rows.shape[1]] = rows[:, :8]
    return padded.view(np.uint64)[:, 0]


def _numbers(wave: Wave, value: Value) -> Any:
    """Return a value of a wave: one number, or one for each lane (64 of them)."""
    if isinstance(value, Constant):
        return np.uint64(value.bits)
    if isinstance(value, Vector):
        rows = [wave.v[value.first + word].astype(np.uint64) for word in range(value.words)]
        total = rows[0] if value.words == 1 else rows[0] | rows[1] << np.uint64(32)
        total = np.where(wave.mask, total, np.uint64(0))
        return np.concatenate([total, np.zeros(64 - total.size, np.uint64)])
    assert isinstance(value, (Scalar, Mask))
    return np.uint64(sum(wave.s[value.first + word] << 32 * word for word in range(value.words)))
