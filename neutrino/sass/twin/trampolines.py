"""Trampolines: at a site a branch to code after the kernel's last instruction, which has the displaced instruction, and
a branch back. Nothing else of the kernel's code moves.

Until probes have code of machine instructions, trampolines are without any: the identity twin, which must compute what
the kernel computes. ``docs/machine-code.md`` says why each step is as it is, and what was shown of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.twin import control
from neutrino.sass.twin.attributes import ATOM16_EMUL_INSTR_REG_MAP, REG_RECONFIG, listed_places, read_attributes
from neutrino.sass.twin.checking import check_cubin, require
from neutrino.sass.twin.constant_reads import INSTRUCTION_BYTES
from neutrino.sass.twin.growing import CODE_ALIGNMENT, Grown, Growth, code_of, grow

ARCHITECTURES = ("sm_90", "sm_90a")
"""Where the table below was read, and where twins ran."""
ACCESSES: Mapping[int, str] = {
    0x381: "LDG", 0x981: "LDG", 0x386: "STG", 0x986: "STG", 0x980: "LD", 0x385: "ST", 0x985: "ST",
    0x984: "LDS", 0x388: "STS", 0x988: "STS", 0x983: "LDL", 0x387: "STL", 0x83B: "LDSM", 0x844: "STSM",
    0x38A: "ATOM", 0x98A: "ATOM", 0x38B: "ATOM", 0x98B: "ATOM", 0x9A2: "ATOM", 0x38C: "ATOMS", 0x98C: "ATOMS",
    0x38D: "ATOMS", 0x9A8: "ATOMG", 0x3A8: "ATOMG", 0x3A9: "ATOMG", 0x9A6: "REDG", 0x98E: "REDG",
}  # fmt: skip
"""Loads, stores, atomics and reductions that may be displaced: opcode (bits 0 to 11) → nvdisasm's name, on sm_90."""
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
    return [int.from_bytes(code[at : at + INSTRUCTION_BYTES], "little") for at in range(0, whole, INSTRUCTION_BYTES)]


def accesses(words: list[int], listed: Mapping[int, int]) -> tuple[list[int], dict[int, str]]:
    """Return the places of accesses that may be displaced, and those that are left alone, with the reason.

    listed: places that the kernel's attributes list, with the attribute's number.
    """
    sites: list[int] = []
    left: dict[int, str] = {}
    for index, word in enumerate(words):
        place = index * INSTRUCTION_BYTES
        # ptxas fills some places with "@!PT LDS RZ, [RZ]", which is never executed, and whose place may matter.
        never = control.GUARD.get(word) == control.ALWAYS and control.NEGATED.get(word)
        if control.OPCODE.get(word) not in ACCESSES or never:
            continue
        if place in listed:
            left[place] = f"its place is listed in attribute {listed[place]:#x}"
        else:
            sites.append(place)
    return sites, left


def write_trampolines(words: list[int], sites: Collection[int]) -> tuple[bytes, tuple[Trampoline, ...]]:
    """Return a kernel's code with trampolines without probes, and where they are.

    words: all of the code. sites: places of instructions to displace, in bytes. The displaced instruction keeps its
    control bits, but ``.reuse`` is cleared there and on the instruction above: both now have a branch after them.
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
        new.append(control.REUSE.put(word, 0))
        new.append(control.branch(back, site + INSTRUCTION_BYTES))
        new[index] = control.branch(site, place, wait=control.WAIT.get(word))
        if index:
            new[index - 1] = control.REUSE.put(new[index - 1], 0)
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
    if cubin.arch not in ARCHITECTURES:
        raise MachineCodeError(kernel, f"is for {cubin.arch or 'an unknown architecture'}, not {ARCHITECTURES[0]}")
    words = instruction_words(code_of(data, kernel, file))
    if any(control.OPCODE.get(word) == _USETMAXREG for word in words):
        raise MachineCodeError(kernel, "moves registers between warps (USETMAXREG)")
    elf = open_cubin(data, file)
    section = elf.section(f".nv.info.{kernel}")
    attributes = list(read_attributes(bytes(elf.contents(section)), file)) if section is not None else []
    numbers = {attribute.number for attribute in attributes}
    if ATOM16_EMUL_INSTR_REG_MAP in numbers or REG_RECONFIG in numbers:
        raise MachineCodeError(kernel, "has an attribute that says which registers instructions use")
    sites, left = accesses(words, listed_places(attributes))
    code, trampolines = write_trampolines(words, sites if most_sites is None else sites[:most_sites])
    count = cubin.kernels[kernel].registers + registers if registers else 0
    grown: Grown = grow(data, Growth(code, registers=count, parameter=parameter), file)
    require(check_cubin(data, grown.data, kernel, file), kernel)
    return IdentityTwin(grown.data, grown.parameter_offset, trampolines, left)
