"""Twins with probe code: at the kernel's entry, where its threads end, and at accesses of memory.

The entry is the kernel's first instruction, which sets the stack's address; where threads end are all EXITs of its
section. Each becomes a branch to a trampoline with the code, as ``docs/machine-code.md`` says: after the code the
entry's has the first instruction and a branch back, an exit's the EXIT. Lanes in which an EXIT's predicate does not
hold branch back at once. An access's has code that adds to sums, the access, and a branch back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neutrino.elf.constants import STT_FUNC
from neutrino.errors import MachineCodeError
from neutrino.sass.attributes import ATOM16_EMUL_INSTR_REG_MAP, INDIRECT_BRANCH_TARGETS, REG_RECONFIG
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, OPCODE, REUSE, STALL, WAIT
from neutrino.sass.instruction import Flow, RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.accesses import Counted
from neutrino.sass.twin.attributes import Attribute, branched_to, indirect_branches, listed_places, read_attributes
from neutrino.sass.twin.checking import check_cubin, require
from neutrino.sass.twin.counting import Count, Counts, additions, counting_trampoline
from neutrino.sass.twin.executed import CountedInstructions
from neutrino.sass.twin.free_registers import UNCOUNTED, Reusable, free_registers, moves_registers, reusable_registers
from neutrino.sass.twin.growing import CODE_ALIGNMENT, REGISTER_GRANULE, Growth, code_of, grow
from neutrino.sass.twin.probe_code import Lifted, Placed, Registers, Shape, packed, place_code, reads_third_index
from neutrino.sass.twin.reference import Reference
from neutrino.sass.twin.reusing import place_reusing
from neutrino.sass.twin.sums import add_to_sum, guard_of
from neutrino.sass.twin.trampolines import instruction_words, table_of

_STACK = 1
"""The register with the stack's address."""
_EXIT = 0x0000000003800000_000000000000094D
"""EXIT without control bits and guard, whose second predicate is PT; other forms of it have more bits."""
_ENDS_THE_LAUNCH = "__assertfail"
"""The only function of the driver that never returns: what it does to registers does not matter."""
_RETURN = frozenset({"vprintf"})
"""Functions of the driver that do."""
_NEVER = ALWAYS, 1
"""The predicate PT, negated."""
_BLOCK_STEP = 16
"""Code for one probe block serves others at a distance of so many bytes: loads of constants have 16 bytes at most."""
BLOCK_ALIGNMENT = 8
"""Of the probe block among a kernel's parameters, in bytes."""
Additions = Mapping[int, Mapping[int, int]]
"""Place of an access in the code, in bytes → number of a sum → the constant that the probes add to it there."""


@dataclass(frozen=True)
class ProbedTwin:
    """A twin with probe code at its entry and its exits. data: the cubin. parameter_offset: of the probe block among
    the parameters, in bytes. registers: per thread. entry: place of the entry's trampoline in the code, in bytes.
    exits: place of an EXIT in the original's code → place of its trampoline. accesses: the same of accesses. sums: of
    each sum that these add to, by its number, the first of its two registers. reference: what the checker compared
    inserted code with, None if nothing. counted: what it was told of additions at accesses."""

    data: bytes
    parameter_offset: int
    registers: int
    entry: int
    exits: dict[int, int]
    accesses: dict[int, int] = field(default_factory=dict)
    sums: Mapping[int, int] = field(default_factory=dict)
    reference: Reference | None = None
    counted: Counted | CountedInstructions | None = None


@dataclass(frozen=True)
class Places:
    """What a cubin says of places in its kernel's code, in bytes. functions: where functions begin. indirect: of
    branches by a register → where they go. fixed: of instructions that an attribute lists, which keep their place."""

    functions: frozenset[int]
    indirect: Mapping[int, Sequence[int]]
    fixed: frozenset[int]


def probed_twin(
    data: bytes, kernel: str, file: str, code_at: Callable[[int, tuple[int, ...]], Sequence[Lifted]],
    additions_of: Callable[[Code, str], Additions] | None = None,
    counted: Counted | CountedInstructions | None = None,
    counts_of: Callable[[Code, Places, str], Counts] | None = None,
) -> ProbedTwin:  # fmt: skip
    """Return a kernel's twin with probe code at its entry, its exits and its accesses.

    data: a cubin of that kernel alone, as ``Cutter.cut`` returns. file: its name in messages. code_at: returns the
    probes' code for a probe block at an offset among the parameters, in bytes, and for the numbers of the sums that are
    kept: alternatives, of which the first is taken that the kernel has registers for. additions_of: returns what the
    probes add at the accesses of a kernel, by its code and name, and raises MachineCodeError for accesses that they
    cannot be at; None without probes there. counted: what the checker is told of these. counts_of: the same as
    additions_of for probes that count instructions, whichever they are. Raises MachineCodeError for a kernel that is
    left alone, FormatError for a damaged cubin.
    """
    cubin = read_cubin(data, file)
    sm = table_of(cubin.arch, kernel)
    found = cubin.kernels[kernel]
    whole = code_of(data, kernel, file)
    code = decode(whole, sm, kernel)
    words = instruction_words(whole)
    registers = free_registers(code, found.registers, kernel, calls=calls_functions(data, file))
    exits = exits_of(code, words, kernel)
    added = additions_of(code, kernel) if additions_of is not None else {}
    counts = counts_of(code, places_of(data, kernel, file), kernel) if counts_of is not None else {}
    fixed = check_surroundings(data, kernel, file, {0, *exits, *added, *counts})
    fixed |= moves_registers(code)
    check_entry(code, kernel)
    if additions_of is not None and not added:
        raise MachineCodeError(kernel, "has no access of memory that the probes are for")
    if counts_of is not None and not counts:
        raise MachineCodeError(kernel, "has no instruction that the probes are for")

    offset = -(-found.parameter_size // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
    sums = {one for row in added.values() for one in row} | {one.number for row in counts.values() for one in row}
    alternatives = code_at(offset, tuple(sorted(sums)))
    shape = alternatives[0].shape
    # Up to sm_89, parameters of more than 4 KiB begin elsewhere. The driver's constants stay.
    further = found.parameter_base - shape.parameter_base if found.parameters else 0
    if further % _BLOCK_STEP or further < 0:
        raise MachineCodeError(kernel, f"has its parameters at {found.parameter_base:#x} of constant bank 0")
    place = offset + further

    def with_code(placed: Placed) -> ProbedTwin:
        of = _Original(data, kernel, file, code, words, exits, found.registers, counted)
        return _with_code(of, placed, added, counts, shape)

    placed, why, own = None, None, ""
    try:
        if fixed:
            raise MachineCodeError(kernel, "moves registers between warps (USETMAXREG)")
        placed = _first_placed(alternatives, registers, place, kernel, sums)
        if _granted(placed.top + 1 + UNCOUNTED) <= _granted(found.registers):
            return with_code(placed)
    except MachineCodeError as error:
        why = error
    # With more registers fewer blocks may fit on a multiprocessor, or none.
    if not (fixed and sums):
        try:
            reusable = reusable_registers(code, found.registers)
            return with_code(_first_reusing(alternatives, registers, reusable, place, kernel, sums))
        except MachineCodeError as error:
            own = f"; and {error.reason}"
    try:
        if why is not None or placed is None:
            raise why or MachineCodeError(kernel, "has no registers for the probe's code")
        return with_code(placed)
    except MachineCodeError as error:
        raise MachineCodeError(kernel, f"{error.reason}{own}") from error


def _granted(registers: int) -> int:
    """Return how many registers the hardware gives to each thread."""
    return -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE


@dataclass(frozen=True)
class _Original:
    """A kernel: its cubin, its name, the file's, its code, and that as integers of 128 bits. exits: places of its EXITs
    in the code, in bytes. registers: per thread. counted: what the checker is told of additions at accesses."""

    data: bytes
    kernel: str
    file: str
    code: Code
    words: list[int]
    exits: list[int]
    registers: int
    counted: Counted | CountedInstructions | None


def _with_code(of: _Original, placed: Placed, added: Additions, counts: Counts, shape: Shape) -> ProbedTwin:
    """Return a kernel's twin with code that has registers. Errors: of ``probed_twin``."""
    data, kernel, file = of.data, of.kernel, of.file

    def counting(site: int, rows: Sequence[Count]) -> list[int]:
        return additions(rows, placed.sums, placed.one, kernel, ends=site in of.exits)

    words = {site: counting(site, rows) for site, rows in counts.items()}
    ahead = {site: words.pop(site) for site in of.exits if site in words}
    new, entry, leaving = write_ends(of.words, of.exits, placed, of.code.sm, ahead)
    accesses = _write_accesses(new, of.code, added, placed, kernel)
    accesses |= _write_counts(new, of.words, words, of.code.sm)
    accesses |= {site: leaving[site][0] for site in ahead}
    fill_up(new)
    count = max(of.registers, placed.top + 1 + UNCOUNTED)
    moved = {site: end for site, (_, end) in leaving.items()}
    growth = Growth(
        packed(new), count, shape.block_size, BLOCK_ALIGNMENT, moved,
        reads_third_index((*placed.entry, *placed.exit), of.code.sm),
    )  # fmt: skip
    grown = grow(data, growth, file)
    block = grown.parameter_base + grown.parameter_offset
    if block != shape.parameter_base + placed.block_offset:
        raise MachineCodeError(kernel, f"would have its parameter at {block:#x} of constant bank 0")
    require(check_cubin(data, grown.data, kernel, file, of.counted, placed.reference), kernel)
    ends = {site: place for site, (place, _) in leaving.items()}
    return ProbedTwin(
        grown.data, grown.parameter_offset, count, entry, ends, accesses, placed.sums, placed.reference, of.counted
    )


def _first_placed(
    alternatives: Sequence[Lifted], registers: Registers, offset: int, kernel: str, sums: set[int]
) -> Placed:  # fmt: skip
    """Return the first of some codes for the same probes that a kernel has registers for. sums: of ``place_code``.
    Raises MachineCodeError with the reason of the last."""
    for lifted in alternatives[:-1]:
        try:
            return replace(place_code(lifted, registers, offset, kernel, sums), reference=lifted.reference)
        except MachineCodeError:
            continue
    last = alternatives[-1]
    return replace(place_code(last, registers, offset, kernel, sums), reference=last.reference)


def _first_reusing(
    alternatives: Sequence[Lifted], registers: Registers, reusable: Reusable, offset: int, kernel: str,
    sums: Collection[int],
) -> Placed:  # fmt: skip
    """Return the first of some codes for the same probes that a kernel's own registers are enough for. sums: of
    ``place_code``. Raises MachineCodeError with the reason of the last."""
    for lifted in alternatives[:-1]:
        with contextlib.suppress(MachineCodeError):
            placed = place_reusing(lifted, registers, reusable, offset, kernel, sums)
            return replace(placed, reference=lifted.reference)
    last = alternatives[-1]
    return replace(place_reusing(last, registers, reusable, offset, kernel, sums), reference=last.reference)


def exits_of(code: Code, words: list[int], kernel: str) -> list[int]:
    """Return the places of all EXITs that are ever executed. Raises MachineCodeError for what ends or moves threads in
    another way."""
    opcodes = (code.words[:, 0] & np.uint64((1 << OPCODE.bits) - 1)).astype(np.int64)
    exits = []
    for form in {form.opcode: form for form in code.forms if form is not None}.values():
        if form.flow is not Flow.EXIT or form.name.startswith("BPT"):
            continue
        for index in np.flatnonzero(opcodes == form.opcode).tolist():
            word = words[index]
            if (GUARD.get(word), NEGATED.get(word)) == _NEVER or _condition(word) == _NEVER:
                continue
            if control.guarded(_unconditional(word), 0, negated=False) & (1 << STALL.low) - 1 != _EXIT:
                raise MachineCodeError(kernel, f"ends threads by {form.name} at {index * INSTRUCTION_BYTES:#x}")
            exits.append(index * INSTRUCTION_BYTES)
    if not exits:
        raise MachineCodeError(kernel, "has no EXIT")
    return sorted(exits)


def _condition(word: int) -> tuple[int, int]:
    """Return the second predicate of an EXIT: its number, 1 if it is negated."""
    return control.CONDITION.get(word), control.CONDITION_NEGATED.get(word)


def _unconditional(word: int) -> int:
    """Return an EXIT that its guard alone decides about."""
    return control.CONDITION_NEGATED.put(control.CONDITION.put(word, ALWAYS), 0)


def check_surroundings(data: bytes, kernel: str, file: str, sites: set[int]) -> bool:
    """Return whether the cubin says something of the kernel's registers that is right for as many of them alone. Raises
    MachineCodeError where it says something of a site or of registers that would be wrong in a twin."""
    elf = open_cubin(data, file)
    section = elf.section(f".nv.info.{kernel}")
    attributes = list(read_attributes(bytes(elf.contents(section)), file)) if section is not None else []
    numbers = {attribute.number for attribute in attributes}
    if ATOM16_EMUL_INSTR_REG_MAP in numbers:
        raise MachineCodeError(kernel, "has an attribute that says which registers instructions use")
    others = [attribute for attribute in attributes if attribute.number != INDIRECT_BRANCH_TARGETS]
    listed = listed_places(others)
    for place in sorted(sites & listed.keys()):
        raise MachineCodeError(kernel, f"its instruction at {place:#x} is listed in attribute {listed[place]:#x}")
    # An EXIT may be branched to: there is a branch in its place.
    if 0 in branched_to(attributes, file):
        raise MachineCodeError(kernel, "comes back to its first instruction by a register")
    for symbol in elf.symbols():
        if symbol.name == kernel and symbol.value:
            raise MachineCodeError(kernel, f"does not begin its section but at {symbol.value:#x}")
        is_driver = symbol.type == STT_FUNC and symbol.section == 0
        if is_driver and symbol.name != _ENDS_THE_LAUNCH and symbol.name not in _RETURN:
            raise MachineCodeError(kernel, f"calls {symbol.name}, which may use registers that the probe's code keeps")
    return REG_RECONFIG in numbers


def calls_functions(data: bytes, file: str) -> bool:
    """Return whether a cubin of one kernel calls functions of the driver that return. file: its name in messages.
    Raises FormatError."""
    return any(symbol.name in _RETURN and symbol.section == 0 for symbol in open_cubin(data, file).symbols())


def calls_assertions(data: bytes, file: str) -> bool:
    """Return whether a cubin of one kernel, of which a twin can be made, calls the driver's function that ends the
    launch: then its calls by a register call nothing else. file: its name in messages. Raises FormatError."""
    symbols = open_cubin(data, file).symbols()
    return any(symbol.name == _ENDS_THE_LAUNCH and symbol.section == 0 for symbol in symbols)


def check_entry(code: Code, kernel: str) -> None:
    """Raise MachineCodeError where the first instruction is not the one that sets the stack's address, once."""
    first = code[0]
    written = {(operand.file, operand.number, operand.count) for operand in first.operands if operand.writes}
    if written != {(RegisterFile.GENERAL, _STACK, 1)} or first.guard is not None or first.flow is not Flow.NEXT:
        raise MachineCodeError(kernel, f"begins with {first.name}, not by setting the stack's address")
    for index, target in code.targets().items():
        if target == 0:
            raise MachineCodeError(kernel, f"comes back to its first instruction from {index * INSTRUCTION_BYTES:#x}")


def write_ends(
    words: list[int], exits: list[int], placed: Placed, sm: int, ahead: Mapping[int, Sequence[int]] | None = None
) -> tuple[list[int], int, dict[int, tuple[int, int]]]:  # fmt: skip
    """Return a twin's instructions, the place of the entry's trampoline, and by the place of each EXIT those of its
    trampoline and of the EXIT in it, in bytes. sm: of the architecture, as 90. ahead: by the place of an EXIT, what
    all lanes that come to it execute first."""
    new = list(words)
    per_line = CODE_ALIGNMENT // INSTRUCTION_BYTES
    new += [control.nop()] * (-len(new) % per_line)
    entry = len(new) * INSTRUCTION_BYTES
    new += [*placed.entry, REUSE.put(words[0], 0)]
    new.append(control.branch(len(new) * INSTRUCTION_BYTES, INSTRUCTION_BYTES, sm))
    new[0] = control.branch(0, entry, sm, wait=WAIT.get(words[0]))
    leaving = {}
    for site in exits:
        index, place = site // INSTRUCTION_BYTES, len(new) * INSTRUCTION_BYTES
        word = words[index]
        new += (ahead or {}).get(site, ())
        new += _staying(word, len(new) * INSTRUCTION_BYTES, site + INSTRUCTION_BYTES, sm)
        new += placed.exit
        leaving[site] = place, len(new) * INSTRUCTION_BYTES
        new.append(control.guarded(_unconditional(REUSE.put(word, 0)), ALWAYS, negated=False))
        new[index] = control.branch(site, place, sm, wait=WAIT.get(word))
        if index:
            new[index - 1] = REUSE.put(new[index - 1], 0)
    return new, entry, leaving


def _write_accesses(
    new: list[int], code: Code, additions: Additions, placed: Placed, kernel: str
) -> dict[int, int]:  # fmt: skip
    """Append trampolines at accesses to a twin's instructions; return their places by those of the accesses."""
    places = {}
    for site in sorted(additions):
        index, place = site // INSTRUCTION_BYTES, len(new) * INSTRUCTION_BYTES
        form, word = code.form(index), new[index]
        assert form is not None
        guard = guard_of(form, word, site, kernel)
        new += [
            add_to_sum(placed.sums[number], placed.one, amount, guard, kernel)
            for number, amount in sorted(additions[site].items())
        ]
        new.append(REUSE.put(word, 0))
        new.append(control.branch(len(new) * INSTRUCTION_BYTES, site + INSTRUCTION_BYTES, code.sm))
        new[index] = control.branch(site, place, code.sm, wait=WAIT.get(word))
        new[index - 1] = REUSE.put(new[index - 1], 0)
        places[site] = place
    return places


def _write_counts(
    new: list[int], words: Sequence[int], added: Mapping[int, Sequence[int]], sm: int
) -> dict[int, int]:  # fmt: skip
    """Append trampolines that count to a twin's instructions; return their places by those of the sites. words: the
    original's. added: by the place of a site, the instructions that count. sm: of the architecture, as 90."""
    places = {}
    for site in sorted(added):
        index, place = site // INSTRUCTION_BYTES, len(new) * INSTRUCTION_BYTES
        trampoline, new[index] = counting_trampoline(words[index], site, place, added[site], sm)
        new += trampoline
        new[index - 1] = REUSE.put(new[index - 1], 0)
        places[site] = place
    return places


def places_of(data: bytes, kernel: str, file: str) -> Places:
    """Return what a cubin of one kernel says of places in its code. kernel: its mangled name. file: for errors. Raises
    FormatError for a damaged cubin."""
    elf = open_cubin(data, file)
    attributes = _attributes_of(data, kernel, file)
    others = [attribute for attribute in attributes if attribute.number != INDIRECT_BRANCH_TARGETS]
    text = elf.section(f".text.{kernel}")
    functions = {
        symbol.value for symbol in elf.symbols(kinds=(STT_FUNC,)) if text is not None and symbol.section == text.index
    }  # fmt: skip
    indirect = indirect_branches(attributes, file)
    return Places(frozenset(functions), indirect, frozenset({*listed_places(others), *indirect}))


def _attributes_of(data: bytes, kernel: str, file: str) -> list[Attribute]:
    elf = open_cubin(data, file)
    section = elf.section(f".nv.info.{kernel}")
    return list(read_attributes(bytes(elf.contents(section)), file)) if section is not None else []


def fill_up(new: list[int]) -> None:
    """Fill a twin's code up as ptxas does: code is fetched ahead of what is executed."""
    per_line = CODE_ALIGNMENT // INSTRUCTION_BYTES
    new += [control.nop()] * (-len(new) % per_line or per_line)


def _staying(word: int, place: int, back: int, sm: int) -> list[int]:
    """Return the instructions by which lanes that an EXIT does not end go back, all of them together: none where it
    ends all. word: the EXIT. place: of the first one. back: of the instruction after the EXIT. Both in bytes. sm: of
    the architecture."""
    predicate, negated = GUARD.get(word), NEGATED.get(word)
    number, inverted = _condition(word)
    if (number, inverted) != (ALWAYS, 0):
        # Two branches, one for each predicate, would part lanes that stay: those that leave branch.
        body = place + 2 * INSTRUCTION_BYTES
        leaving = control.guarded(control.branch(place, body, sm), predicate, negated=bool(negated))
        leaving = control.CONDITION_NEGATED.put(control.CONDITION.put(leaving, number), inverted)
        return [leaving, control.branch(place + INSTRUCTION_BYTES, back, sm)]
    if predicate == ALWAYS:
        return []
    return [control.guarded(control.branch(place, back, sm), predicate, negated=not negated)]
