"""Trampolines: at a site a branch to code after the kernel's last instruction, which has the displaced instruction, and
a branch back. Nothing else of the kernel's code moves.

Those at accesses have no code yet: the identity twin, which must compute what the kernel computes. ``probed`` has those
with a probe's code. ``docs/machine-code.md`` says why each step is as it is, and what was shown of it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neutrino.errors import MachineCodeError
from neutrino.sass.attributes import ATOM16_EMUL_INSTR_REG_MAP, REG_RECONFIG
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import not_displaced
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, OPCODE, REUSE, WAIT
from neutrino.sass.instruction import Memory
from neutrino.sass.twin import control
from neutrino.sass.twin.attributes import listed_places, read_attributes
from neutrino.sass.twin.checking import check_cubin, require
from neutrino.sass.twin.growing import CODE_ALIGNMENT, Grown, Growth, code_of, grow

ARCHITECTURES: Mapping[str, int] = {"sm_80": 80, "sm_90": 90, "sm_90a": 90}
"""For which twins can be written → the number of that whose table of instructions the decoder uses."""
_DISPLACED = frozenset({Memory.GLOBAL, Memory.GENERIC, Memory.SHARED, Memory.LOCAL})
"""Loads, stores, atomics and reductions of these may be displaced."""
_USETMAXREG = 0x9C8


@dataclass(frozen=True)
class Trampoline:
    """One trampoline. site: place of the displaced instruction in the kernel's code, in bytes. place: of the
    trampoline's first instruction. displaced: of that instruction within it. back: of the branch back."""

    site: int
    place: int
    displaced: int
    back: int


@dataclass(frozen=True)
class IdentityTwin:
    """A twin without probes. data: the cubin. parameter_offset: as of ``Grown``. trampolines: in the order of sites.
    left: places of accesses that were left alone → why."""

    data: bytes
    parameter_offset: int
    trampolines: tuple[Trampoline, ...]
    left: dict[int, str]


def instruction_words(code: bytes) -> list[int]:
    """Return the instructions of code as integers of 128 bits; an incomplete last one is left out."""
    whole = len(code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES
    return [low | high << 64 for low, high in struct.iter_unpack("<QQ", code[:whole])]


def table_of(arch: str, kernel: str) -> int:
    """Return the number of the architecture whose table of instructions a kernel's have. arch: as the cubin names it,
    "" if it does not. Raises MachineCodeError where no twins are written for it."""
    if arch not in ARCHITECTURES:
        raise MachineCodeError(kernel, f"is for {arch or 'an unknown architecture'}, not {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[arch]


def accesses(code: Code, listed: Mapping[int, int]) -> tuple[list[int], dict[int, str]]:
    """Return the places of accesses that may be displaced, and those that are left alone, with the reason. Instructions
    that the decoder's table does not have may be accesses: they are left alone.

    listed: places that the kernel's attributes list, with the attribute's number.
    """
    sites: list[int] = []
    left: dict[int, str] = {}
    for index in range(len(code)):
        form, place = code.form(index), index * INSTRUCTION_BYTES
        if form is None:
            left[place] = "its encoding is not in the table of known instructions"
            continue
        # ptxas fills some places with "@!PT LDS RZ, [RZ]", which is never executed, and whose place may matter.
        low = int(code.words[index, 0])
        never = GUARD.get(low) == ALWAYS and NEGATED.get(low)
        if form.memory not in _DISPLACED or never:
            continue
        reason = not_displaced(form)
        if place in listed:
            reason = f"its place is listed in attribute {listed[place]:#x}"
        if reason is None:
            sites.append(place)
        else:
            left[place] = reason
    return sites, left


def write_trampolines(words: list[int], sites: Collection[int], sm: int) -> tuple[bytes, tuple[Trampoline, ...]]:
    """Return a kernel's code with trampolines without probes, and where they are.

    words: all of the code. sites: places of instructions to displace, in bytes. sm: of the architecture, as 90. The
    displaced instruction keeps its control bits, but ``.reuse`` is cleared there and on the instruction above: both now
    have a branch after them.
    """
    new = list(words)
    end = -(-len(words) * INSTRUCTION_BYTES // CODE_ALIGNMENT) * CODE_ALIGNMENT
    new += [control.nop()] * (end // INSTRUCTION_BYTES - len(words))
    trampolines = []
    for site in sorted(sites):
        index = site // INSTRUCTION_BYTES
        word = words[index]
        place = len(new) * INSTRUCTION_BYTES
        back = place + INSTRUCTION_BYTES
        new.append(REUSE.put(word, 0))
        new.append(control.branch(back, site + INSTRUCTION_BYTES, sm))
        new[index] = control.branch(site, place, sm, wait=WAIT.get(word))
        if index:
            new[index - 1] = REUSE.put(new[index - 1], 0)
        trampolines.append(Trampoline(site, place, place, back))
    # As ptxas does: code is fetched ahead of what is executed.
    per_line = CODE_ALIGNMENT // INSTRUCTION_BYTES
    new += [control.nop()] * (-len(new) % per_line or per_line)
    return b"".join(word.to_bytes(INSTRUCTION_BYTES, "little") for word in new), tuple(trampolines)


def identity_twin(
    data: bytes, kernel: str, file: str, *, registers: int = 0, parameter: int = 0, most_sites: int | None = None
) -> IdentityTwin:
    """Return a kernel's twin with a trampoline at each access of memory, and no code in it.

    data: a cubin of that kernel alone. file: its name in messages. registers: more registers per thread than the kernel
    has, for none of them to be used. parameter: bytes of a parameter more, which is not read. most_sites: only the
    first of them; None: all. Every twin has passed the checker. Raises MachineCodeError for a kernel that is left
    alone, FormatError for a damaged cubin.
    """
    cubin = read_cubin(data, file)
    sm = table_of(cubin.arch, kernel)
    old = code_of(data, kernel, file)
    words = instruction_words(old)
    if any(OPCODE.get(word) == _USETMAXREG for word in words):
        raise MachineCodeError(kernel, "moves registers between warps (USETMAXREG)")
    elf = open_cubin(data, file)
    section = elf.section(f".nv.info.{kernel}")
    attributes = list(read_attributes(bytes(elf.contents(section)), file)) if section is not None else []
    numbers = {attribute.number for attribute in attributes}
    if ATOM16_EMUL_INSTR_REG_MAP in numbers or REG_RECONFIG in numbers:
        raise MachineCodeError(kernel, "has an attribute that says which registers instructions use")
    sites, left = accesses(decode(old, sm, kernel), listed_places(attributes))
    code, trampolines = write_trampolines(words, sites if most_sites is None else sites[:most_sites], sm)
    count = cubin.kernels[kernel].registers + registers if registers else 0
    grown: Grown = grow(data, Growth(code, registers=count, parameter=parameter), file)
    require(check_cubin(data, grown.data, kernel, file), kernel)
    return IdentityTwin(grown.data, grown.parameter_offset, trampolines, left)
