"""The rules for code that a twin has at accesses of global memory: constants that are added to sums in registers.

A sum is right only if every access of its kind adds to it, in just the lanes that execute the access, what the access
is worth; and if nothing else writes it. That every end of a thread adds it to memory, once, follows from the code that
``ptxas`` assembled for it (``reference.py``). What a site is worth the checker knows by itself: the bytes are in the
name that the decoder gives to the instruction.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, NO_BARRIER, Field
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin.addresses import Value
from neutrino.sass.twin.hazards import Columns

KINDS: Mapping[str, str] = {
    "LDG": "load", "STG": "store", "ATOMG": "atomic", "REDG": "atomic", "RED": "atomic", "LDGSTS": "copy",
}  # fmt: skip
"""Accesses of global memory that can be counted → what a probe calls them."""
OTHERS: Mapping[str, str] = {
    "LD": "load", "ST": "store", "ATOM": "atomic",
    **dict.fromkeys(("UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"), "copy"),
    **dict.fromkeys((
        "LDGMC", "STGMC", "REDGMC", "ATOMGMC", "TEX", "TLD", "TLD4", "TXD", "TMML", "SULD", "SUST", "SUATOM", "SURED",
    ), "other"),
}  # fmt: skip
"""Accesses of which no constant says how many bytes of global memory they move."""
_SIZES: Mapping[str, int] = {
    "U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "S64": 8, "U64": 8, "F64": 8, "128": 16,
    "F32x2": 8, "F32x4": 16, "F16x4": 8, "F16x8": 16, "BF16x4": 8, "BF16x8": 16,
}  # fmt: skip
_PLAIN_BYTES = 4
_ZEROES = "ZFILL"
_GUARD = Field(12, 4)
_NEVER = 0xF
_CONTROL = 105
_SUM, _ONE, _AMOUNT, _ADDED = Field(16, 8), Field(24, 8), Field(32, 32), Field(64, 8)
_PRODUCT = 0x00000000078E0000_0000000000000825
"""IMAD.WIDE.U32 of a register, a constant and two registers: as ``ptxas`` writes it, without guard and registers."""
_SHORT = 0x0000000007FFE0FF_0000000000000810
"""IADD3 of a register, a constant and RZ, the same."""
_PREDICATES = (RegisterFile.PREDICATE, RegisterFile.UNIFORM_PREDICATE)


@dataclass(frozen=True)
class Counted:
    """What the probes count in every kernel, which a twin must do.

    added: first part of an access's name → number of a sum, and the constant that is added to it there, None for the
    bytes of the access; an access of several rows for one sum adds all of them. Nothing for accesses that have no code;
    None in the place of the rows for those that no kernel may have. Names that are not there have no code.
    """

    added: Mapping[str, tuple[tuple[int, int | None], ...] | None]

    def at(self, name: str, size: int) -> dict[int, int]:
        """Return what an access adds, by the number of the sum. name: the first part of its own. size: its bytes."""
        row: dict[int, int] = {}
        for number, amount in self.added.get(name) or ():
            row[number] = row.get(number, 0) + (size if amount is None else amount)
        return row


@dataclass(frozen=True)
class Addition:
    """One instruction at an access. first: number of the sum's first register. registers: how many it has. one: number
    of the register that holds 1, -1 for none. amount: what is added."""

    first: int
    registers: int
    one: int
    amount: int

    @property
    def mask(self) -> int:
        """The registers of the sum."""
        return (1 << self.registers) - 1 << self.first


@dataclass
class Sums:
    """What the code at accesses adds. of_kinds: kind → first register of a sum → amounts, each with the bytes of the
    access. sums: first register → an addition to it. added: number of an access → what its code adds, by the first
    register. ones: registers that are added instead of 1."""

    of_kinds: dict[str, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    sums: dict[int, Addition] = field(default_factory=dict)
    added: dict[int, dict[int, int]] = field(default_factory=dict)
    ones: set[int] = field(default_factory=set)

    @property
    def mask(self) -> int:
        """All registers of sums."""
        found = 0
        for addition in self.sums.values():
            found |= addition.mask
        return found


def access_bytes(form: Form) -> int:
    """Return how many bytes of global memory a lane of an access moves, by its name."""
    sizes = [_SIZES[part] for part in form.name.split(".")[1:] if part in _SIZES]
    return sizes[-1] if sizes else _PLAIN_BYTES


def addition(word: int) -> Addition | None:
    """Return what an instruction adds, if it is one of the two that may be at an access; else None. word: 128 bits."""
    bits = _GUARD.put(word & (1 << _CONTROL) - 1, 0)
    first, one, amount = _SUM.get(bits), _ONE.get(bits), _AMOUNT.get(bits)
    bits = _AMOUNT.put(_ONE.put(_SUM.put(bits, 0), 0), 0)
    if bits == _ADDED.put(_PRODUCT, first) and not first % 2 and one not in (first, first + 1):
        return Addition(first, 2, one, amount)
    if bits == _SHORT and one == first:
        return Addition(first, 1, -1, amount)
    return None


def check_site(form: Form | None, word: int, kinds: Container[str] = frozenset(KINDS)) -> Iterable[str]:
    """Yield why an access cannot have code that counts its lanes. word: of the access. kinds: opcodes that may."""
    if form is None or form.name.partition(".")[0] not in kinds:
        yield "there is code at what is no access that may have it"
        return
    if form.guard is not RegisterFile.PREDICATE and _GUARD.get(word) != ALWAYS:
        yield "there is code at an access under a uniform predicate"
    for place in form.places:
        if place.field.file in _PREDICATES and place.reads:
            number = place.field.get(word)
            # The bit above a predicate that is read negates it.
            if (ALWAYS - number if place.field.inverted else number) != ALWAYS or word >> place.field.low + 3 & 1:
                yield "there is code at an access under a second predicate"
    if _ZEROES in form.name.split("."):
        yield "there is code at a copy of which its address says how many bytes it moves"


def check_body(
    words: Sequence[int], index: int, site: int, form: Form, sums: Sums
) -> Iterable[tuple[int, str]]:  # fmt: skip
    """Yield what is wrong with the code at an access: number in the code, and the rule; and note in sums what it adds.

    words: the code's. index, site, form: the access, its number, its word and what it is.
    """
    own = access_bytes(form)
    added: set[int] = set()
    for number, word in enumerate(words):
        one = addition(word)
        if one is None:
            yield number, "what is at an access is not an addition of a constant to a sum"
            continue
        if _GUARD.get(word) != _GUARD.get(site):
            yield number, "the code at an access is of other lanes than the access"
        if one.first in added:
            yield number, f"R{one.first} is added to twice at one access"
        added.add(one.first)
        for rule in note_addition(one, sums):
            yield number, rule
        of_kind = sums.of_kinds.setdefault(KINDS[form.name.partition(".")[0]], {})
        of_kind.setdefault(one.first, []).append((one.amount, own))
        sums.added.setdefault(index, {})[one.first] = one.amount


def note_addition(one: Addition, sums: Sums) -> Iterable[str]:
    """Note in sums what an instruction adds to; yield what is wrong with it."""
    known = sums.sums.setdefault(one.first, one)
    if known.registers != one.registers or any(
        other.first != one.first and other.mask & one.mask for other in sums.sums.values()
    ):
        yield f"R{one.first} is a part of two sums"
    if one.one >= 0:
        sums.ones.add(one.one)


def check_sums(original: Columns, sites: Mapping[int, set[int]], sums: Sums) -> Iterable[tuple[int, str]]:
    """Yield accesses of the kernel that add nothing, or something else than their bytes, or to other sums than others.

    It is asked where the bytes of all accesses of global memory are counted. sites: number of the access → the sums
    that its code adds to. Yields number of the instruction, and the rule.
    """
    of_kinds: dict[str, set[int]] = {}
    for index, added in sites.items():
        of_kinds.setdefault(KINDS[original.names[index] or ""], set()).update(added)
    for index, name in enumerate(original.names):
        kind = KINDS.get(name or "") or OTHERS.get(name or "")
        if kind is None or _GUARD.get(original.low[index]) == _NEVER:
            continue
        if name not in KINDS:
            yield index, f"{name} is an access that should be counted, and no constant says its bytes"
        elif index not in sites:
            yield index, f"{name} has no code, although accesses are counted"
        elif sites[index] != of_kinds[kind]:
            yield index, f"{name} adds to other sums than others of its kind"
    for kind, rows in sums.of_kinds.items():
        for first, amounts in rows.items():
            wrong = ", ".join(sorted({f"{amount} for {own} bytes" for amount, own in amounts if amount != own}))
            if wrong:
                yield -1, f"R{first} gets another number than the access has bytes, {wrong} ({kind})"


def check_counted(
    original: Columns, sums: Sums, counted: Counted, registers: Sequence[int]
) -> Iterable[tuple[int, str]]:  # fmt: skip
    """Yield accesses of the kernel that add other than what is counted there, or to another sum.

    registers: the first one of each sum that threads end with, in the order of the sums' numbers. Yields number of the
    instruction, and the rule.
    """
    names = {
        index: name for index, name in enumerate(original.names)
        if name in {*KINDS, *OTHERS} and _GUARD.get(original.low[index]) != _NEVER
    }  # fmt: skip
    kept = sorted({number for name in names.values() for number, _ in counted.added.get(name) or ()})
    if len(kept) != len(registers):
        yield 0, f"threads end with {len(registers)} sums, accesses add to {len(kept)}"
        return
    of_sum = dict(zip(kept, registers, strict=True))
    for index, name in names.items():
        form = original.forms[index]
        rows = counted.added.get(name, ())
        if form is None or rows is None or (rows and name not in KINDS):
            yield index, f"{name} is an access that should be counted, and no constant says what it counts"
            continue
        expected = {of_sum[number]: amount for number, amount in counted.at(name, access_bytes(form)).items()}
        added = sums.added.get(index, {})
        if added != expected:
            what = "has no code, although it is counted" if not added else "has code, which the probes do not count"
            differ = sorted(expected.items() ^ added.items())
            yield index, f"{name} {what}" if not (added and expected) else f"{name} adds other than counted: {differ}"


def check_initial(sums: Sums, made: Mapping[int, Value]) -> Iterable[str]:
    """Yield registers that the entry's code leaves with a wrong value. made: what is in registers after it."""
    for register in registers_in(sums.mask):
        value = made.get(register)
        if value is None or value.constant != 0:
            yield f"R{register} is part of a sum, and not 0 after the entry's code"
    for register in sorted(sums.ones):
        value = made.get(register)
        if value is None or value.constant != 1:
            yield f"R{register} is added instead of 1, and not 1 after the entry's code"
        if sums.mask >> register & 1:
            yield f"R{register} is part of a sum, and added instead of 1"


def takes_scoreboard(columns: Columns, index: int) -> bool:
    """Whether an instruction takes a scoreboard."""
    return columns.write_barrier[index] != NO_BARRIER or columns.read_barrier[index] != NO_BARRIER


def registers_in(mask: int) -> Iterable[int]:
    """Yield the numbers of the general registers in a mask."""
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)
