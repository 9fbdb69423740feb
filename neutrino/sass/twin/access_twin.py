"""Twins whose probes have code at accesses of memory that is more than additions to sums (``access_code.py``): before
them, and on both sides of loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import Form
from neutrino.sass.fields import INSTRUCTION_BYTES, NO_BARRIER, REUSE, WAIT, WRITE_BARRIER, Field
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.access_code import Parts, PlacedParts, place_parts
from neutrino.sass.twin.checking import check_cubin, require
from neutrino.sass.twin.free_registers import UNCOUNTED, free_registers, moves_registers
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.placeholders import ADDRESS, Access
from neutrino.sass.twin.probe_code import Placed, Registers, packed, reads_third_index
from neutrino.sass.twin.probed import (
    BLOCK_ALIGNMENT,
    ProbedTwin,
    calls_functions,
    check_entry,
    check_surroundings,
    exits_of,
    fill_up,
    write_ends,
)
from neutrino.sass.twin.reference import Reference
from neutrino.sass.twin.sums import guard_of
from neutrino.sass.twin.trampolines import instruction_words, table_of

_ADDRESS, _OFFSET, _OFFSET_OF_COPY = 24, Field(40, 24), Field(32, 12)
"""Of LDGSTS the field with the constant of the global address; above is that of the shared one."""
_ZERO, _ZERO_UNIFORM = 255, 63
Kind = tuple[str, int]
"""First part of an access's name, and its bytes."""


def access_twin(
    data: bytes, kernel: str, file: str, parts_at: Callable[[int], Sequence[Parts]],
    kinds_of: Callable[[Code, str], Mapping[int, Kind]],
) -> ProbedTwin:  # fmt: skip
    """Return a kernel's twin with probe code at its accesses, its entry and its exits.

    data, kernel, file: as of ``probed_twin``. parts_at: returns the probes' code for a probe block at an offset among
    the parameters, in bytes: alternatives, of which the first is taken that the kernel has registers for. kinds_of:
    returns the accesses that probes are at, by the number of the instruction. Raises MachineCodeError for a kernel that
    is left alone, FormatError for a damaged cubin.
    """
    cubin = read_cubin(data, file)
    sm = table_of(cubin.arch, kernel)
    found = cubin.kernels[kernel]
    whole = code_of(data, kernel, file)
    code = decode(whole, sm, kernel)
    words = instruction_words(whole)
    registers = free_registers(code, found.registers, kernel, calls=calls_functions(data, file))
    exits = exits_of(code, words, kernel)
    kinds = kinds_of(code, kernel)
    sites_of = {0, *exits, *(index * INSTRUCTION_BYTES for index in kinds)}
    if check_surroundings(data, kernel, file, sites_of) or moves_registers(code):
        raise MachineCodeError(kernel, "moves registers between warps (USETMAXREG)")
    check_entry(code, kernel)
    offset = -(-found.parameter_size // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
    alternatives = parts_at(offset)
    sites = {
        index: (kind, access_at(code, words, index, number, kernel, alternatives[0], kind))
        for number, (index, kind) in enumerate(sorted(kinds.items()))
    }  # fmt: skip
    shape = alternatives[0].shape
    if not kinds and (alternatives[0].accesses or alternatives[0].after):
        raise MachineCodeError(kernel, "has no access of memory that the probes are for")
    if found.parameter_base != shape.parameter_base:
        raise MachineCodeError(kernel, f"has its parameters at {found.parameter_base:#x} of constant bank 0")
    parts, placed = _first_placed(alternatives, registers, offset, sites, kernel)
    new, entry, leaving = write_ends(words, exits, Placed(placed.entry, placed.exit, placed.top, offset), sm)
    accesses = {}
    for index, (before, after) in sorted(placed.accesses.items()):
        place, site, word = len(new) * INSTRUCTION_BYTES, index * INSTRUCTION_BYTES, new[index]
        new += [*before, REUSE.put(word, 0), *after]
        new.append(control.branch(len(new) * INSTRUCTION_BYTES, site + INSTRUCTION_BYTES, sm))
        new[index] = control.branch(site, place, sm, wait=WAIT.get(word))
        new[index - 1] = REUSE.put(new[index - 1], 0)
        accesses[site] = place
    fill_up(new)
    count = max(found.registers, placed.top + 1 + UNCOUNTED)
    moved = {site: end for site, (_, end) in leaving.items()}
    third_index = reads_third_index((*placed.entry, *placed.exit, *chain(*chain(*placed.accesses.values()))), sm)
    grown = grow(data, Growth(packed(new), count, shape.block_size, BLOCK_ALIGNMENT, moved, third_index), file)
    if grown.parameter_offset != offset:
        raise MachineCodeError(kernel, f"has its parameters up to another place than {offset}")
    require(check_cubin(data, grown.data, kernel, file, reference=reference_of(parts)), kernel)
    ends = {site: place for site, (place, _) in leaving.items()}
    return ProbedTwin(grown.data, offset, count, entry, ends, accesses, reference=reference_of(parts))


def reference_of(parts: Parts) -> Reference:
    """Return what the checker compares inserted code with."""
    accesses, after = (
        {kind: part.words for kind, part in of_kind.items()} for of_kind in (parts.accesses, parts.after)
    )
    block = parts.shape.parameter_base + parts.shape.block_offset
    return Reference(parts.entry.words, parts.exit.words, accesses, block, parts.unnamed, parts.shape.sm, after)


def _first_placed(
    alternatives: Sequence[Parts], registers: Registers, offset: int, sites: Mapping[int, tuple[Kind, Access]],
    kernel: str,
) -> tuple[Parts, PlacedParts]:  # fmt: skip
    """Return the first of some codes for the same probes that a kernel has registers for, and that code placed. Raises
    MachineCodeError with the reason of the last."""
    for parts in alternatives[:-1]:
        try:
            return parts, place_parts(parts, registers, offset, sites, kernel)
        except MachineCodeError:
            continue
    return alternatives[-1], place_parts(alternatives[-1], registers, offset, sites, kernel)


def access_at(
    code: Code, words: Sequence[int], index: int, number: int, kernel: str, parts: Parts, kind: Kind
) -> Access:  # fmt: skip
    """Return what code at an access is told.

    code, words: of the kernel's section. index: of the instruction. number: of the site. parts, kind: the probes' code,
    and which of it. Raises MachineCodeError for an access whose address is not two registers of the lane's own and a
    constant, if it is asked for, and for one whose result nothing says to be there, if code is after it.
    """
    form = code.form(index)
    place, word = index * INSTRUCTION_BYTES, words[index]
    if form is None:
        raise MachineCodeError(kernel, f"has an instruction at {place:#x} that the table of sm_{code.sm} lacks")
    field = _OFFSET_OF_COPY if form.name.partition(".")[0] == "LDGSTS" else _OFFSET
    offset = field.get(word)
    # With a sign.
    offset -= offset >> field.bits - 1 << field.bits
    address = _address(form, word, place, kernel) if parts.asks(kind, ADDRESS) else _ZERO
    access = Access(address, offset, guard_of(form, word, place, kernel), number)
    if kind not in parts.after:
        return access
    writes = [one for one in form.places if one.writes and one.field.file is RegisterFile.GENERAL]
    if len(writes) != 1 or writes[0].field.get(word) == _ZERO or WRITE_BARRIER.get(word) == NO_BARRIER:
        raise MachineCodeError(kernel, f"has {form.name} at {place:#x}, of which nothing says that its result is there")
    return replace(access, result=(writes[0].field.get(word), writes[0].count), barrier=WRITE_BARRIER.get(word))


def _address(form: Form, word: int, place: int, kernel: str) -> int:
    """Return the first of the two registers with the address of an access."""
    at = next((
        number for number, one in enumerate(form.places)
        if one.reads and one.field.low == _ADDRESS and one.field.file is RegisterFile.GENERAL
    ), -1)  # fmt: skip
    uniform = {
        number: one for number, one in enumerate(form.places)
        if one.reads and one.field.file is RegisterFile.UNIFORM and one.field.get(word) != _ZERO_UNIFORM
    }  # fmt: skip
    general = form.places[at]
    # In NVIDIA's text the descriptor stands before the address; after it is what is added to that.
    is_own = at >= 0 and general.count == 2 and general.field.get(word) != _ZERO
    if not is_own or [number < at and one.count == 2 for number, one in uniform.items()] not in ([], [True]):
        raise MachineCodeError(kernel, f"has {form.name} at {place:#x}, whose address is no pair of a lane's registers")
    return general.field.get(word)
