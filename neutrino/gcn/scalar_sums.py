"""Code of probes that count: sums of constants and sizes, in scalar registers that the kernel never names.

What a probe adds for each lane is added for the wave at once: the constant times the lanes of EXEC. No vector register
and no mask of the program is touched, and SCC is kept. Where a wave ends, it adds its sums to the record: then all
vector registers are free. A probe that asks for more is refused, with what it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import BLOCK_CELL, BLOCK_COPY_MASK, BLOCK_HEADER, BLOCK_PER_MAP
from neutrino.gcn.analysis.exec_regions import ExecRegions
from neutrino.gcn.code import Function, Instruction, wave_features
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.processors import PROCESSORS as KNOWN
from neutrino.gcn.snippets.opcodes import names_of
from neutrino.gcn.splice import Insertion
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.statements import Load, Operation, Operator
from neutrino.ir.types import Type
from neutrino.maps.regions import copy_stride
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save

PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100")
"""Those whose scalar unit waits by itself for what the vector unit writes to EXEC."""
PRELOAD_HEADER = 256
"""Bytes at the beginning of a kernel with preloaded arguments, behind which its code begins."""
_MOST = {"gfx9": 96, "gfx1": 104}
"""Beginning of a processor's name → scalar registers that a kernel can name without running in fewer waves."""
_REGISTER = re.compile(r"\bs(?:(\d+)|\[(\d+):(\d+)\])")
_WORDS = {"byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4}
_SIZED = re.compile(r"(?:global|buffer)_(?:load|store)_(?:d16_)?(?:hi_)?(?:([a-z]+)(?:x(\d))?|[biu](\d+))")
_ATOMIC = re.compile(r"(?:global|buffer)_atomic_\w+?(_x2|_[a-z]+64|_[a-z]+32)?")
_SCALAR = re.compile(r"s_(?:buffer_)?load_(?:dword(?:x(\d+))?|b(\d+))")


class CannotError(Exception):
    """What a probe asks for is not done here; the message says what."""


@dataclass(frozen=True)
class Sums:
    """Code for one kernel and what it calls. insertions: of each function. sgprs, vgprs: how many registers the twin
    names. header: bytes that keep their place."""

    insertions: tuple[tuple[Insertion, ...], ...]
    sgprs: int
    vgprs: int
    header: int


@dataclass
class _Plan:
    """What is added where. registers: scalar pairs of the probes' sums, by name. at: of each function and instruction
    the sums that grow, with what each lane adds; None for lanes: once a wave. saves: at the end."""

    registers: dict[str, str] = field(default_factory=dict)
    at: list[dict[int, list[tuple[str, int, bool]]]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


def sums(
    functions: Sequence[tuple[Function, Mapping[int, Sequence[Probe]]]], named: Iterable[Function], probes: ProbeSet, *,
    processor: str, features: str, descriptor: bytes, block_offset: int, llvm: Llvm,
) -> Sums:  # fmt: skip
    """Return the code of counting probes in a kernel and the functions that it calls.

    functions: the kernel first, with the probes at each instruction, by its offset. named: all functions whose
    registers the code leaves alone. descriptor: the kernel's. block_offset: where the probe block is among its
    arguments.

    Raises CannotError.
    """
    if processor not in PROCESSORS:
        raise CannotError(f"counting in kernels for {processor} is not possible yet")
    plan = _Plan()
    for probe in probes.probes:
        if probe.tracepoint.is_kernel:
            _plan_end(plan, probe)
    for function, at in functions:
        instructions = {one.offset: one for one in function.instructions}
        plan.at.append({})
        for offset, matched in at.items():
            for probe in matched:
                if not probe.tracepoint.is_kernel:
                    _plan_site(plan, probe, instructions[offset])
    group = [function for function, _ in functions]
    return _Writer(group, named, plan, probes, processor, features, descriptor, block_offset, llvm).written()


def _plan_end(plan: _Plan, probe: Probe) -> None:
    """Plan what a probe saves at the kernel's end."""
    if probe.level is not Level.THREAD:
        raise CannotError(f"probe '{probe.name}': level {probe.level.value} is not put into kernels yet")
    if probe.before is not None:
        raise CannotError(f"probe '{probe.name}': code at a kernel's entry is not put into kernels yet")
    for statement in probe.after.statements if probe.after is not None else ():
        if not isinstance(statement, Save):
            raise CannotError(f"probe '{probe.name}': it computes at the kernel's end, which is not possible yet")
        entry = statement.map
        if entry.kind.name != "sum" or entry.per is not Per.LAUNCH or statement.guard is not None:
            raise CannotError(f"map '{entry.name}': only sums of a launch are possible yet")
        for operand in statement.operands:
            if not isinstance(operand, Register) or operand.is_local or operand.initial or operand.type is not Type.U64:
                raise CannotError(f"probe '{probe.name}': it saves something else than sums of u64")
        if any(cell.type.value != "u64" for cell in entry.fields):
            raise CannotError(f"map '{entry.name}': only fields of u64 are possible yet")
        plan.saves.append(statement)


def _plan_site(plan: _Plan, probe: Probe, instruction: Instruction) -> None:
    """Plan what a probe adds at an instruction."""
    if probe.level is not Level.THREAD:
        raise CannotError(f"probe '{probe.name}': level {probe.level.value} is not put into kernels yet")
    if probe.after is not None or probe.before is None:
        raise CannotError(f"probe '{probe.name}': code behind an instruction is not put into kernels yet")
    for name, amount, lanes in _added(probe, probe.before, instruction):
        plan.registers.setdefault(name, "")
        plan.at[-1].setdefault(instruction.offset, []).append((name, amount, lanes))


def _added(probe: Probe, snippet: Snippet, instruction: Instruction) -> Iterator[tuple[str, int, bool]]:
    """Yield which sums a snippet adds to, how much, and whether for each lane."""
    values: dict[str, tuple[int, bool]] = {}
    for statement in snippet.statements:
        if isinstance(statement, Load) and statement.operand == SiteOperand("BYTES"):
            values[statement.destination.name] = bytes_of(instruction)
            continue
        if isinstance(statement, Operation) and statement.operator is Operator.ADD:
            target, (left, right) = statement.destination, statement.sources
            is_sum = left == target and not target.is_local and target.type is Type.U64
            if is_sum and isinstance(right, Constant):
                yield target.name, right.bits, True
                continue
            if is_sum and isinstance(right, Register) and right.name in values:
                yield target.name, *values[right.name]
                continue
        raise CannotError(f"probe '{probe.name}': it computes more than sums of constants and sizes")


def bytes_of(instruction: Instruction) -> tuple[int, bool]:
    """Return how many bytes an access moves, and whether each lane does, rather than the wave. Raises CannotError."""
    mnemonic = instruction.mnemonic
    if (match := _SCALAR.fullmatch(mnemonic)) is not None:
        return (int(match[2]) // 8 if match[2] else 4 * int(match[1] or 1)), False
    if (match := _SIZED.fullmatch(mnemonic)) is not None:
        if match[3]:
            return int(match[3]) // 8, True
        if match[1] in _WORDS:
            return _WORDS[match[1]] * int(match[2] or 1), True
    if "atomic" in names_of(mnemonic, instruction.modifiers).classes and (match := _ATOMIC.fullmatch(mnemonic)):
        suffix = match[1] or ""
        return (8 if suffix == "_x2" or suffix.endswith("64") else 4), True
    raise CannotError(f"how many bytes {mnemonic} moves is not known")


class _Writer:
    """Writes the code of one kernel's sums."""

    def __init__(
        self, functions: Sequence[Function], named: Iterable[Function], plan: _Plan, probes: ProbeSet, processor: str,
        features: str, descriptor: bytes, block_offset: int, llvm: Llvm,
    ) -> None:  # fmt: skip
        """Parameters: as for ``sums``."""
        self._functions, self._plan, self._probes, self._llvm = functions, plan, probes, llvm
        self._processor, self._block = processor, block_offset
        self._wave = functions[0].wave
        self._features = wave_features(processor, features, self._wave)
        self._is_new = processor.startswith("gfx11")
        self._pointer = _argument_pointer(int.from_bytes(descriptor[56:58], "little"))
        self._header = PRELOAD_HEADER if int.from_bytes(descriptor[58:60], "little") & 0x7F else 0
        free = self._free(named)
        names = [*plan.registers]
        if len(free) < len(names) + 5:
            raise CannotError(f"{len(names)} sums and what they take do not fit into its free scalar registers")
        for name in names:
            plan.registers[name] = free.pop()
        self._arguments, self._time, self._end, self._map, self._other = (free.pop() for _ in range(5))
        self._used = [*plan.registers.values(), self._arguments, self._time, self._end, self._map, self._other]

    def _free(self, functions: Iterable[Function]) -> list[str]:
        """Return pairs of scalar registers that no function names, those with low numbers last."""
        named: set[int] = set()
        for text in {instruction.text for function in functions for instruction in function.instructions}:
            for one, first, last in _REGISTER.findall(text):
                named |= set(range(int(one or first), int(one or last) + 1))
        # The launch puts values into the first ones (at most 16 for the user, and then those of the work-group).
        named |= set(range(24))
        most = next(most for beginning, most in _MOST.items() if self._processor.startswith(beginning))
        free = [first for first in range(0, most, 2) if not {first, first + 1} & named]
        return [f"s[{first}:{first + 1}]" for first in reversed(free)]

    def written(self) -> Sums:
        """Return the code."""
        insertions: list[tuple[Insertion, ...]] = []
        end = self._assembled(self._save()) if self._plan.saves else b""
        snippets: dict[str, bytes] = {}
        for function, at in zip(self._functions, self._plan.at, strict=True):
            ends = dict(_ends(function))
            found = []
            if function.is_kernel:
                found.append(Insertion(self._header, self._assembled(self._entry()), ahead_of_label=False))
            for offset, added in self._joined(function, at, ends).items():
                text = "\n".join(self._site(added))
                if text not in snippets:
                    snippets[text] = self._assembled([text])
                found.append(Insertion(offset, snippets[text]))
            if end:
                found += [Insertion(offset, end) for offset in ends]
            insertions.append(tuple(found))
        highest = max(int(pair[2:-1].split(":")[1]) for pair in self._used)
        return Sums(tuple(insertions), highest + 1, 4, self._header)

    def _assembled(self, lines: Iterable[str]) -> bytes:
        return self._llvm.assemble("\n".join(lines), self._processor, self._features)

    def _joined(
        self, function: Function, at: Mapping[int, Sequence[tuple[str, int, bool]]], ends: Mapping[int, int]
    ) -> dict[int, list[tuple[str, int, bool]]]:
        """Return what is added at each place, for all instructions that the same lanes execute at once. ends: as
        ``_ends`` has them."""
        regions = ExecRegions(function, KNOWN[self._processor].generation, self._header if function.is_kernel else 0)
        found: dict[int, dict[tuple[str, bool], int]] = {}
        for offset, added in at.items():
            sums = found.setdefault(_outside(function, regions.head(offset), ends), {})
            for name, amount, lanes in added:
                sums[name, lanes] = sums.get((name, lanes), 0) + amount
        return {
            place: [(name, amount, lanes) for (name, lanes), amount in sums.items()] for place, sums in found.items()
        }

    def _entry(self) -> Iterator[str]:
        """Yield the code at the entry: the address of the arguments is kept, and sums begin with 0."""
        yield f"s_mov_b64 {self._arguments}, {self._pointer}"
        for pair in self._plan.registers.values():
            yield f"s_mov_b64 {pair}, 0"

    def _site(self, added: Sequence[tuple[str, int, bool]]) -> Iterator[str]:
        """Yield the code at an instruction. added: sums, and what each lane or the wave adds."""
        scc, count = _halves(self._time)
        product, _ = _halves(self._end)
        yield f"s_cselect_b32 {scc}, 1, 0"
        yield f"s_bcnt1_i32_b{self._wave} {count}, {'exec' if self._wave == 64 else 'exec_lo'}"
        for name, amount, lanes in added:
            low, high = _halves(self._plan.registers[name])
            if not 0 <= amount < 1 << 25:
                raise CannotError(f"{amount} for each lane is too much")
            source = str(amount)
            if lanes:
                source = count
                if amount != 1:
                    yield f"s_mul_i32 {product}, {count}, {amount:#x}"
                    source = product
            else:
                # A scalar access of a wave without lanes is one, too.
                yield f"s_mov_b32 {product}, {amount:#x}"
                source = product
            yield f"s_add_u32 {low}, {low}, {source}"
            yield f"s_addc_u32 {high}, {high}, 0"
        yield f"s_cmp_lg_u32 {scc}, 0"

    def _save(self) -> Iterator[str]:
        """Yield the code where a wave ends. Nothing of the program's is needed any more."""
        # Loads under way could still write to vector registers.
        yield "s_waitcnt vmcnt(0) lgkmcnt(0)"
        is_wide = self._wave == 64
        yield "s_mov_b64 exec, 1" if is_wide else "s_mov_b32 exec_lo, 1"
        load, load_pair = ("s_load_b32", "s_load_b64") if self._is_new else ("s_load_dword", "s_load_dwordx2")
        atomic = "global_atomic_add_u64" if self._is_new else "global_atomic_add_x2"
        index, mask = _halves(self._time)
        cell_low, cell_high = _halves(self._end)
        low, high = _halves(self._map)
        offset, _ = _halves(self._other)
        yield f"{load_pair} {self._end}, {self._arguments}, {self._block + BLOCK_CELL:#x}"
        yield f"{load} {mask}, {self._arguments}, {self._block + BLOCK_COPY_MASK:#x}"
        # Any copy is right; compute units take different ones.
        hardware = "HW_REG_HW_ID" if self._processor.startswith("gfx9") else "HW_REG_HW_ID1"
        yield f"s_getreg_b32 {index}, hwreg({hardware}, 4, 12)"
        yield "s_waitcnt lgkmcnt(0)"
        yield f"s_and_b32 {index}, {index}, {mask}"
        # What the cell holds is added to all addresses; without a cell nothing is.
        yield f"s_or_b32 {mask}, {cell_low}, {cell_high}"
        yield f"s_cmp_lg_u32 {mask}, 0"
        yield "s_cbranch_scc0 .Lno_cell"
        yield f"{load_pair} {self._end}, {self._end}, 0x0"
        yield ".Lno_cell:"
        yield "s_waitcnt lgkmcnt(0)"
        yield "v_mov_b32_e32 v2, 0"
        for save in self._plan.saves:
            number = self._probes.maps.index(save.map)
            place = self._block + BLOCK_HEADER + number * BLOCK_PER_MAP
            yield f"{load_pair} {self._map}, {self._arguments}, {place:#x}"
            yield f"s_mul_i32 {offset}, {index}, {copy_stride(save.map.size):#x}"
            yield "s_waitcnt lgkmcnt(0)"
            yield f"s_add_u32 {low}, {low}, {offset}"
            yield f"s_addc_u32 {high}, {high}, 0"
            yield f"s_add_u32 {low}, {low}, {cell_low}"
            yield f"s_addc_u32 {high}, {high}, {cell_high}"
            for operand, cell in zip(save.operands, save.map.fields, strict=True):
                if not isinstance(operand, Register) or operand.name not in self._plan.registers:
                    # Nothing in this kernel adds to it.
                    continue
                one, other = _halves(self._plan.registers[operand.name])
                yield f"v_mov_b32_e32 v0, {one}"
                yield f"v_mov_b32_e32 v1, {other}"
                yield f"{atomic} v2, v[0:1], {self._map}{f' offset:{cell.offset}' if cell.offset else ''}"


def _outside(function: Function, offset: int, ends: Mapping[int, int]) -> int:
    """Return where code for an instruction goes: before it, or before the clause that it is in, or where sums are
    saved before it, as EXEC is the same there. ends: as ``_ends`` has them."""
    saved = next((place for place, end in ends.items() if place <= offset <= end), None)
    if saved is not None:
        return saved
    head, left = offset, 0
    for one in function.instructions:
        if one.offset == offset:
            return head if left else offset
        if one.mnemonic == "s_clause":
            first = int.from_bytes(function.code[one.offset : one.offset + 2], "little")
            head, left = one.offset, (first & 0x3F) + 1
        elif left:
            left -= 1
    return offset


def _ends(function: Function) -> Iterator[tuple[int, int]]:
    """Yield before which instructions a wave's sums are saved, its end or the release of its vector registers; and
    where that end is."""
    targets = {one.target for one in function.instructions}
    for index, one in enumerate(function.instructions):
        if one.mnemonic == "s_endpgm_saved":
            raise CannotError("it ends by s_endpgm_saved")
        if one.mnemonic != "s_endpgm":
            continue
        place = one.offset
        for before in reversed(function.instructions[max(index - 3, 0) : index]):
            if "DEALLOC_VGPRS" in before.text:
                place = before.offset
            elif before.mnemonic != "s_nop":
                break
        between = range(place + 1, one.offset + 1)
        if any(target in between for target in targets if target is not None):
            raise CannotError("something leads between the release of its vector registers and its end")
        yield place, one.offset


def _halves(pair: str) -> tuple[str, str]:
    """Return the two registers of a pair: ``s30`` and ``s31`` of ``s[30:31]``."""
    low, high = pair[2:-1].split(":")
    return f"s{low}", f"s{high}"


def _argument_pointer(properties: int) -> str:
    """Return the pair with the address of the arguments at a kernel's entry. properties: ``kernel_code_properties``."""
    if not properties >> 3 & 1:
        raise CannotError("it has no arguments, so that it gets no address of the probe block")
    first = (4 if properties & 1 else 0) + 2 * (properties >> 1 & 1) + 2 * (properties >> 2 & 1)
    return f"s[{first}:{first + 1}]"

