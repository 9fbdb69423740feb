"""Twins with probe code: at the kernel's entry, and where its threads end.

The entry is the kernel's first instruction, which sets the stack's address; where threads end are all EXITs of its
section. Each becomes a branch to a trampoline with the code, as ``docs/machine-code.md`` says: after the code the
entry's has the first instruction and a branch back, an exit's the EXIT. Lanes in which an EXIT's predicate does not
hold branch back at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neutrino.elf.constants import STT_FUNC
from neutrino.errors import MachineCodeError
from neutrino.sass.attributes import ATOM16_EMUL_INSTR_REG_MAP, INDIRECT_BRANCH_TARGETS, REG_RECONFIG
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, OPCODE, REUSE, STALL, WAIT
from neutrino.sass.instruction import Flow, RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.attributes import branched_to, listed_places, read_attributes
from neutrino.sass.twin.checking import check_cubin, require
from neutrino.sass.twin.free_registers import UNCOUNTED, free_registers
from neutrino.sass.twin.growing import CODE_ALIGNMENT, Growth, code_of, grow
from neutrino.sass.twin.probe_code import Lifted, Placed, Registers, packed, place_code
from neutrino.sass.twin.trampolines import ARCHITECTURES, instruction_words

_ARCHITECTURE = 90
_STACK = 1
"""The register with the stack's address."""
_EXIT = 0x0000000003800000_000000000000094D
"""EXIT without control bits and guard, whose second predicate is PT; other forms of it have more bits."""
_ENDS_THE_LAUNCH = "__assertfail"
"""The only function of the driver that never returns: what it does to registers does not matter."""
_NEVER = ALWAYS, 1
"""The predicate PT, negated."""
BLOCK_ALIGNMENT = 8
"""Of the probe block among a kernel's parameters, in bytes."""


@dataclass(frozen=True)
class ProbedTwin:
    """A twin with probe code at its entry and its exits. data: the cubin. parameter_offset: of the probe block among
    the parameters, in bytes. registers: per thread. entry: place of the entry's trampoline in the code, in bytes.
    exits: place of an EXIT in the original's code → place of its trampoline."""

    data: bytes
    parameter_offset: int
    registers: int
    entry: int
    exits: dict[int, int]


def probed_twin(data: bytes, kernel: str, file: str, code_at: Callable[[int], Sequence[Lifted]]) -> ProbedTwin:
    """Return a kernel's twin with probe code at its entry and at its exits.

    data: a cubin of that kernel alone, as ``Cutter.cut`` returns. file: its name in messages. code_at: returns the
    probes' code for a probe block at an offset among the parameters, in bytes: alternatives, of which the first is
    taken that the kernel has registers for. Raises MachineCodeError for a kernel that is left alone, FormatError for a
    damaged cubin.
    """
    cubin = read_cubin(data, file)
    if cubin.arch not in ARCHITECTURES:
        raise MachineCodeError(kernel, f"is for {cubin.arch or 'an unknown architecture'}, not {ARCHITECTURES[0]}")
    found = cubin.kernels[kernel]
    whole = code_of(data, kernel, file)
    code = decode(whole, _ARCHITECTURE, kernel)
    words = instruction_words(whole)
    registers = free_registers(code, found.registers, kernel)
    exits = _exits(code, words, kernel)
    _check_surroundings(data, kernel, file, {0, *exits})
    _check_entry(code, kernel)

    offset = -(-found.parameter_size // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
    alternatives = code_at(offset)
    shape = alternatives[0].shape
    if found.parameter_base != shape.parameter_base:
        raise MachineCodeError(kernel, f"has its parameters at {found.parameter_base:#x} of constant bank 0")
    placed = _first_placed(alternatives, registers, offset, kernel)
    new, entry, leaving = _write(words, exits, placed)
    count = max(found.registers, placed.top + 1 + UNCOUNTED)
    moved = {site: end for site, (_, end) in leaving.items()}
    growth = Growth(packed(new), count, shape.block_size, BLOCK_ALIGNMENT, moved)
    grown = grow(data, growth, file)
    if grown.parameter_offset != offset:
        raise MachineCodeError(kernel, f"has its parameters up to another place than {offset}")
    require(check_cubin(data, grown.data, kernel, file), kernel)
    return ProbedTwin(grown.data, offset, count, entry, {site: place for site, (place, _) in leaving.items()})


def _first_placed(alternatives: Sequence[Lifted], registers: Registers, offset: int, kernel: str) -> Placed:
    """Return the first of some codes for the same probes that a kernel has registers for. Raises MachineCodeError with
    the reason of the last."""
    for lifted in alternatives[:-1]:
        try:
            return place_code(lifted, registers, offset, kernel)
        except MachineCodeError:
            continue
    return place_code(alternatives[-1], registers, offset, kernel)


def _exits(code: Code, words: list[int], kernel: str) -> list[int]:
    """Return the places of all EXITs that are ever executed. Raises MachineCodeError for what ends or moves threads in
    another way."""
    opcodes = (code.words[:, 0] & np.uint64((1 << OPCODE.bits) - 1)).astype(np.int64)
    exits = []
    for form in {form.opcode: form for form in code.forms if form is not None}.values():
        if form.name.startswith("USETMAXREG"):
            raise MachineCodeError(kernel, "moves registers between warps (USETMAXREG)")
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


def _check_surroundings(data: bytes, kernel: str, file: str, sites: set[int]) -> None:
    """Raise MachineCodeError where the cubin says something of a site or of registers that would be wrong in a twin."""
    elf = open_cubin(data, file)
    section = elf.section(f".nv.info.{kernel}")
    attributes = list(read_attributes(bytes(elf.contents(section)), file)) if section is not None else []
    if {attribute.number for attribute in attributes} & {ATOM16_EMUL_INSTR_REG_MAP, REG_RECONFIG}:
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
        if symbol.type == STT_FUNC and symbol.section == 0 and symbol.name != _ENDS_THE_LAUNCH:
            raise MachineCodeError(kernel, f"calls {symbol.name}, which may use registers that the probe's code keeps")


def _check_entry(code: Code, kernel: str) -> None:
    """Raise MachineCodeError where the first instruction is not the one that sets the stack's address, once."""
    first = code[0]
    written = {(operand.file, operand.number, operand.count) for operand in first.operands if operand.writes}
    if written != {(RegisterFile.GENERAL, _STACK, 1)} or first.guard is not None or first.flow is not Flow.NEXT:
        raise MachineCodeError(kernel, f"begins with {first.name}, not by setting the stack's address")
    for index in range(len(code)):
        form: Form | None = code.form(index)
        if form is not None and form.target and code[index].target == 0:
            raise MachineCodeError(kernel, f"comes back to its first instruction from {index * INSTRUCTION_BYTES:#x}")


def _write(
    words: list[int], exits: list[int], placed: Placed
) -> tuple[list[int], int, dict[int, tuple[int, int]]]:  # fmt: skip
    """Return a twin's instructions, the place of the entry's trampoline, and by the place of each EXIT those of its
    trampoline and of the EXIT in it, in bytes."""
    new = list(words)
    per_line = CODE_ALIGNMENT // INSTRUCTION_BYTES
    new += [control.nop()] * (-len(new) % per_line)
    entry = len(new) * INSTRUCTION_BYTES
    new += [*placed.entry, REUSE.put(words[0], 0)]
    new.append(control.branch(len(new) * INSTRUCTION_BYTES, INSTRUCTION_BYTES))
    new[0] = control.branch(0, entry, wait=WAIT.get(words[0]))
    leaving = {}
    for site in exits:
        index, place = site // INSTRUCTION_BYTES, len(new) * INSTRUCTION_BYTES
        word = words[index]
        new += _staying(word, place, site + INSTRUCTION_BYTES)
        new += placed.exit
        leaving[site] = place, len(new) * INSTRUCTION_BYTES
        new.append(control.guarded(_unconditional(REUSE.put(word, 0)), ALWAYS, negated=False))
        new[index] = control.branch(site, place, wait=WAIT.get(word))
        if index:
            new[index - 1] = REUSE.put(new[index - 1], 0)
    # As ptxas does: code is fetched ahead of what is executed.
    new += [control.nop()] * (-len(new) % per_line or per_line)
    return new, entry, leaving


def _staying(word: int, place: int, back: int) -> list[int]:
    """Return the instructions by which lanes that an EXIT does not end go back, all of them together: none where it
    ends all. word: the EXIT. place: of the first one. back: of the instruction after the EXIT. Both in bytes."""
    predicate, negated = GUARD.get(word), NEGATED.get(word)
    number, inverted = _condition(word)
    if (number, inverted) != (ALWAYS, 0):
        # Two branches, one for each predicate, would part lanes that stay: those that leave branch.
        body = place + 2 * INSTRUCTION_BYTES
        leaving = control.guarded(control.branch(place, body), predicate, negated=bool(negated))
        leaving = control.CONDITION_NEGATED.put(control.CONDITION.put(leaving, number), inverted)
        return [leaving, control.branch(place + INSTRUCTION_BYTES, back)]
    if predicate == ALWAYS:
        return []
    return [control.guarded(control.branch(place, back), predicate, negated=not negated)]
