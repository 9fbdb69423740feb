"""Whether a twin is its original with trampolines, and nothing else: asked of every twin before anybody may load it.

The checker shares nothing with the writer: it decodes what it needs itself, takes no list of sites, and follows each
branch that the twin has in place of an instruction. The rules are those of ``docs/machine-code.md``; each finding names
the place and the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import open_cubin, read_cubin

_BYTES = 16
_LINE = 128
_ADDED_WORD = 0x000FC00000000000_0000000000007918
"""The NOP with which ``ptxas`` fills code."""
_REUSE = 0xF << 122
_MOVABLE = frozenset({
    0x381, 0x981, 0x386, 0x986, 0x980, 0x385, 0x985, 0x984, 0x388, 0x988, 0x983, 0x387, 0x83B, 0x844, 0x38A, 0x98A,
    0x38B, 0x98B, 0x9A2, 0x38C, 0x98C, 0x38D, 0x9A8, 0x3A8, 0x3A9, 0x9A6, 0x98E, 0x987, 0x9A3, 0xF8C,
})  # fmt: skip
"""Opcodes that mean the same in any place, as far as the checker knows: loads, stores, atomics, reductions of sm_90."""
_EXIT, _BRANCH = 0x94D, 0x947
_ENDS = frozenset({_EXIT, _BRANCH, 0x950, 0x949, 0x94A})
"""What no instruction after is reached from, if it is always executed: EXIT, BRA, RET, BRX, JMP."""
_BRANCH_CONTROL = 0x0FEA00
"""Bits 96 to 127 of a branch as ``ptxas`` writes it, without waits: five cycles, no scoreboard taken, nothing kept."""
_WAITS = 0x3F << 20
"""In these bits: the scoreboards that are waited for, which may be more."""
_CONTROL_LOW = 9
"""In these bits: how many are not of the control."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a twin. place: in its code, in bytes; -1 for the file. rule: what does not hold, in words."""

    place: int
    rule: str


@dataclass(frozen=True)
class _Word:
    """One instruction, with the fields that the checker reads."""

    bits: int

    @property
    def opcode(self) -> int:
        return self.bits & 0xFFF

    @property
    def is_always(self) -> bool:
        return self.bits >> 12 & 0xF == 7

    @property
    def is_never(self) -> bool:
        return self.bits >> 12 & 0xF == 0xF

    @property
    def stall(self) -> int:
        return self.bits >> 105 & 0xF

    @property
    def barriers(self) -> frozenset[int]:
        return frozenset({self.bits >> 110 & 7, self.bits >> 113 & 7}) - {7}

    @property
    def waits(self) -> frozenset[int]:
        return frozenset(bit for bit in range(6) if self.bits >> 116 + bit & 1)

    @property
    def is_plain_branch(self) -> bool:
        """Whether the control is that of a branch, but for what it waits for."""
        return (self.bits >> 96 & ~_WAITS) >> _CONTROL_LOW == _BRANCH_CONTROL >> _CONTROL_LOW

    @property
    def without_reuse(self) -> int:
        return self.bits & ~_REUSE

    def goes_to(self, place: int) -> int | None:
        """Where an always taken branch at a place goes; None for any other instruction, and other forms of branches."""
        if self.opcode != _BRANCH or not self.is_always:
            return None
        # Bits 24 to 33 and 82 to 104 are of other forms of branches, but for the predicate PT in bits 87 to 89.
        if self.bits >> 24 & 0x3FF or self.bits >> 82 & 0x7FFFFF != 0xE0:
            return None
        distance = (self.bits >> 16 & 0xFF | (self.bits >> 34 & (1 << 48) - 1) << 8) * 4
        if distance >> 57:
            distance -= 1 << 58
        return place + _BYTES + distance


def _words(code: bytes) -> list[_Word]:
    return [_Word(int.from_bytes(code[at : at + _BYTES], "little")) for at in range(0, len(code), _BYTES)]


def check_code(original: bytes, twin: bytes) -> list[Finding]:
    """Return what is wrong with a twin's code: nothing if it is its original with trampolines that have no code.

    original, twin: all of ``.text.NAME``.
    """
    if len(twin) % _LINE or len(twin) < len(original) or len(original) % _BYTES:
        return [Finding(-1, f"the code is {len(twin)} bytes long, not a longer multiple of {_LINE}")]
    old, new = _words(original), _words(twin)
    found: list[Finding] = []
    sites: list[int] = []
    cleared: list[int] = []
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        if before == after:
            continue
        # Without ``.reuse``, an instruction does the same; cleared it may be only where a branch follows.
        if after.bits == before.without_reuse:
            cleared.append(index)
        else:
            sites.append(index)
    for index in set(cleared) - {index - 1 for index in sites}:
        found.append(Finding(index * _BYTES, ".reuse is cleared although no site follows"))
    taken: dict[int, int] = {}
    for index in sites:
        found += _check_site(old, new, index, taken)
    end = len(old)
    for index in range(end, len(new)):
        if index not in taken and new[index].bits != _ADDED_WORD:
            found.append(Finding(index * _BYTES, "an instruction that no site leads to"))
    last = next((word for word in reversed(old) if word.bits != _ADDED_WORD), None)
    if taken and (last is None or last.opcode not in _ENDS or not last.is_always):
        found.append(Finding(end * _BYTES, "the old code may run on into the trampolines"))
    return found


def _check_site(old: list[_Word], new: list[_Word], index: int, taken: dict[int, int]) -> list[Finding]:
    """Return what is wrong with the site at an instruction.

    old, new: the original's instructions and the twin's. index: of the site. taken: instruction of a trampoline → its
    site, to which this one's are added.
    """
    place = index * _BYTES
    before, branch = old[index], new[index]
    target = branch.goes_to(place)
    if target is None:
        return [Finding(place, "an instruction was changed into another, not into a branch")]
    found = []
    if before.opcode not in _MOVABLE:
        found.append(Finding(place, f"an instruction was displaced that may not move, {before.opcode:#x}"))
    if before.is_never:
        found.append(Finding(place, "an instruction was displaced that is never executed"))
    if not branch.is_plain_branch:
        found.append(Finding(place, "the branch takes a scoreboard, or has other cycles than ptxas' own"))
    if not before.waits <= branch.waits:
        found.append(Finding(place, "the branch does not wait for what its instruction waited for"))
    if index and new[index - 1].bits & _REUSE:
        found.append(Finding(place - _BYTES, "an operand is kept for an instruction that has a branch in its place"))
    first = target // _BYTES
    if target % _BYTES or not len(old) <= first < len(new) - 1:
        return [*found, Finding(place, f"the branch goes to {target:#x}, where no trampoline is")]
    for part in (first, first + 1):
        if part in taken:
            other = taken[part] * _BYTES
            found.append(Finding(part * _BYTES, f"two sites share an instruction, {other:#x} is the other"))
        taken[part] = index
    displaced, back = new[first], new[first + 1]
    if displaced.bits != before.without_reuse:
        found.append(Finding(target, "the displaced instruction is another than the site's"))
    if back.goes_to(target + _BYTES) != place + _BYTES:
        found.append(Finding(target + _BYTES, f"no branch back to {place + _BYTES:#x}"))
    elif not back.is_plain_branch:
        found.append(
            Finding(target + _BYTES, "the branch back takes a scoreboard, or has other cycles than ptxas' own")
        )
    elif displaced.barriers & back.waits and displaced.stall < 2:
        found.append(Finding(target, "a scoreboard is waited for in the cycle after it was taken"))
    return found


def check_cubin(original: bytes, twin: bytes, kernel: str, file: str) -> list[Finding]:
    """Return what is wrong with a twin's cubin, its code included.

    original, twin: cubins of one kernel. kernel: its mangled name. file: for the errors of damaged cubins. Raises
    FormatError for a damaged cubin.
    """
    old, new = read_cubin(original, file), read_cubin(twin, file)
    found: list[Finding] = []
    if (old.arch, old.toolkit, old.virtual) != (new.arch, new.toolkit, new.virtual):
        found.append(Finding(-1, f"the twin is for {new.arch}, the original for {old.arch}"))
    if set(old.kernels) != {kernel} or set(new.kernels) != {kernel}:
        return [*found, Finding(-1, "the twin has other kernels than the original")]
    if set(old.functions) != set(new.functions) or any(new.functions[name] == b"" for name in new.functions):
        found.append(Finding(-1, "the twin has other functions than the original"))
    before, after = old.kernels[kernel], new.kernels[kernel]
    for field in ("frame", "stack", "shared", "max_threads", "required_threads", "barriers", "parameter_base"):
        if getattr(before, field) != getattr(after, field):
            found.append(Finding(-1, f"{field} is {getattr(after, field)}, of the original {getattr(before, field)}"))
    if after.registers < before.registers:
        found.append(Finding(-1, f"{after.registers} registers, of the original {before.registers}"))
    more = after.parameters[len(before.parameters) :]
    if after.parameters[: len(before.parameters)] != before.parameters or len(more) > 1:
        found.append(Finding(-1, "the parameters are not the original's with one more at most"))
    for _, offset, size in more:
        if offset < before.parameter_size or offset + size != after.parameter_size:
            found.append(Finding(-1, f"the new parameter is at {offset}, not after the original's"))
    if not more and after.parameter_size != before.parameter_size:
        found.append(Finding(-1, "the parameters have another size than the original's"))
    found += _check_sections(original, twin, kernel, file, after.parameter_base + after.parameter_size)
    return found + check_code(before.code, after.code)


def _check_sections(original: bytes, twin: bytes, kernel: str, file: str, parameters_end: int) -> list[Finding]:
    """Return sections that differ and may not. parameters_end: bytes of constant bank 0 that a launch fills."""
    may_differ = {f".text.{kernel}", ".nv.info", f".nv.info.{kernel}", ".symtab", f".nv.constant0.{kernel}"}
    old, new = open_cubin(original, file), open_cubin(twin, file)
    found = []
    if [section.name for section in old.sections] != [section.name for section in new.sections]:
        return [Finding(-1, "the twin has other sections than the original")]
    for before, after in zip(old.sections, new.sections, strict=True):
        same = before.name in may_differ or bytes(old.contents(before)) == bytes(new.contents(after))
        if not same or (before.type, before.flags, before.link) != (after.type, after.flags, after.link):
            found.append(Finding(-1, f"the section {before.name} differs"))
        if before.name == f".nv.constant0.{kernel}" and after.size < parameters_end:
            found.append(Finding(-1, f"constant bank 0 has {after.size} bytes, for parameters up to {parameters_end}"))
    sizes = {symbol.name: symbol.size for symbol in new.symbols()}
    text = new.section(f".text.{kernel}")
    if text is None or sizes.get(kernel) != text.size:
        found.append(Finding(-1, "the kernel's symbol has another size than its code"))
    return found


def require(found: list[Finding], kernel: str) -> None:
    """Raise MachineCodeError for the first finding, if there is one. kernel: the mangled name."""
    if found:
        at = f" at {found[0].place:#x}" if found[0].place >= 0 else ""
        raise MachineCodeError(kernel, f"its twin failed the check{at}: {found[0].rule}")
