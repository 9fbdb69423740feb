"""The tables of NVIDIA's encoding: what ``python -m bench.sass_tables`` learned of each architecture.

NVIDIA documents none of it. A table has by opcode (bits 0 to 11 of an instruction of 128 bits):

- ``fixed``: a mask of bits and their value. In every instruction seen they were so, and no other value was legal.
- ``groups``: bits of a modifier, the lowest first, with what each legal value adds to the name.
- ``ranks``: (group, addition) in the order in which they stand in the name. ``names``: where that does not give the
  name, names in full by the value of all groups' bits.
- ``fields``: register file, position, width, and 1 where the field holds 7 less the number; a fifth number is added,
  where the text names the register after another's field as well.
- ``shaped_by``, ``shapes``: the bits on which the operands depend, and by their value a row of the table's ``shapes``:
  operands in the order of the text, each as (index in fields, registers, role), where a role is ``^`` defined, ``v``
  used, ``x`` both, ``b`` a convergence barrier, ``h`` used, though not in the text; and the bytes of a memory access.
- ``target``: runs of bits that hold a branch's target relative to the next instruction: position, width, and the power
  of two of the lowest; the highest bit of the last is the sign.
- ``words``, ``write_barriers``, ``read_barriers``: different instructions of the corpus, and those that set a
  scoreboard.

What is not there is unknown, and nothing is guessed.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neutrino.errors import ArgumentError
from neutrino.sass.fields import OPCODE, Field
from neutrino.sass.instruction import Flow, Latency, Memory, RegisterFile

_SEEN_ENOUGH = 50
"""An opcode that set no scoreboard in so many different instructions never does."""
_OF_ALL = 100
"""The latency of an opcode is variable if one instruction in so many sets a scoreboard."""

_MEMORIES: Mapping[str, Memory] = {
    "LDG": Memory.GLOBAL, "STG": Memory.GLOBAL, "ATOMG": Memory.GLOBAL, "REDG": Memory.GLOBAL, "RED": Memory.GLOBAL,
    "LD": Memory.GENERIC, "ST": Memory.GENERIC, "ATOM": Memory.GENERIC,
    "LDS": Memory.SHARED, "STS": Memory.SHARED, "ATOMS": Memory.SHARED, "LDSM": Memory.SHARED, "STSM": Memory.SHARED,
    "STAS": Memory.ASYNC, "REDAS": Memory.ASYNC,
    "LDL": Memory.LOCAL, "STL": Memory.LOCAL, "LDC": Memory.CONSTANT, "ULDC": Memory.CONSTANT, "LDCU": Memory.CONSTANT,
    "LDGSTS": Memory.GLOBAL_TO_SHARED,
    "TEX": Memory.TEXTURE, "TLD": Memory.TEXTURE, "TLD4": Memory.TEXTURE, "TXD": Memory.TEXTURE,
    "SULD": Memory.SURFACE, "SUST": Memory.SURFACE, "SUATOM": Memory.SURFACE, "SURED": Memory.SURFACE,
    "UTMALDG": Memory.ASYNC, "UTMASTG": Memory.ASYNC, "UTMAREDG": Memory.ASYNC, "UTMAPF": Memory.ASYNC,
    "UBLKCP": Memory.ASYNC, "UBLKRED": Memory.ASYNC, "UBLKPF": Memory.ASYNC, "SYNCS": Memory.ASYNC,
}  # fmt: skip
_FLOWS: Mapping[str, Flow] = {
    "BRA": Flow.BRANCH, "BRX": Flow.BRANCH, "BRXU": Flow.BRANCH, "JMP": Flow.BRANCH, "JMX": Flow.BRANCH,
    "JMXU": Flow.BRANCH, "CALL": Flow.CALL, "RET": Flow.RETURN, "RTT": Flow.RETURN, "EXIT": Flow.EXIT,
    "KILL": Flow.EXIT, "BPT": Flow.EXIT,
    "BSSY": Flow.CONVERGENCE, "BSYNC": Flow.CONVERGENCE, "BREAK": Flow.CONVERGENCE, "WARPSYNC": Flow.CONVERGENCE,
    "BMOV": Flow.CONVERGENCE, "YIELD": Flow.CONVERGENCE, "ENDCOLLECTIVE": Flow.CONVERGENCE, "LEPC": Flow.CONVERGENCE,
    "BAR": Flow.BARRIER, "UCGABAR_ARV": Flow.BARRIER, "UCGABAR_WAIT": Flow.BARRIER,
    "DEPBAR": Flow.WAIT, "LDGDEPBAR": Flow.WAIT, "ARRIVES": Flow.WAIT, "WARPGROUP": Flow.WAIT,
    "WARPGROUPSET": Flow.WAIT,
}  # fmt: skip
"""What an opcode does to the flow; all others go on. KILL and BPT end a thread or stop the program."""
_TIED = re.compile(r"[A-Z]GMMA$")
"""Asynchronous matrix products: their registers and order are the program's alone."""


@dataclass(frozen=True)
class RegisterField(Field):
    """A register's number in an instruction. inverted: holds 7 less the number. plus: to be added to it."""

    file: RegisterFile
    inverted: bool
    plus: int = 0


@dataclass(frozen=True, eq=False)
class Place:
    """An operand of a form: where its first register's number is, how many registers, and its role. printed: whether
    NVIDIA's text has it. Of a table there is one of each, which its forms share: they are equal if they are the same.
    """

    field: RegisterField
    count: int
    reads: bool
    writes: bool
    printed: bool


@dataclass(frozen=True)
class Form:
    """What all instructions have in common that differ only in registers, immediates, signs and control fields."""

    opcode: int
    name: str
    guard: RegisterFile | None
    places: tuple[Place, ...]
    memory_bytes: int
    latency: Latency
    memory: Memory
    flow: Flow
    target: tuple[tuple[int, int, int], ...]


@dataclass
class Opcode:
    """One opcode's row of a table; see the module. forms: those that were asked for, by the bits of ``mask``."""

    number: int
    row: Mapping[str, Any]
    mask: int
    forms: dict[int, Form | None] = field(default_factory=dict)

    @functools.cached_property
    def ranks(self) -> dict[tuple[int, str], int]:
        """The place in the name of each addition of a group."""
        return {(group, addition): index for index, (group, addition) in enumerate(self.row["ranks"])}


class Encoding:
    """The table of one architecture. sm: its number, as 90."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """table: as stored."""
        self.arch: str = table["arch"]
        self.sm = int(self.arch.removeprefix("sm_").rstrip("af"))
        self.zero_uniform: int = table["zero_uniform"]
        self.opcodes: dict[int, Opcode] = {}
        self._shapes = table["shapes"]
        self._places: dict[tuple[object, ...], Place] = {}
        for number, row in table["opcodes"].items():
            mask = int(row["fixed"][0], 16) | OPCODE.put(0, -1)
            for bits, _ in row["groups"]:
                for bit in bits:
                    mask |= 1 << bit
            self.opcodes[int(number, 16)] = Opcode(int(number, 16), row, mask)

    def form(self, word: int) -> Form | None:
        """The form of an instruction (128 bits); None when the table does not have it."""
        opcode = self.opcodes.get(OPCODE.get(word))
        if opcode is None:
            return None
        key = word & opcode.mask
        if key not in opcode.forms:
            opcode.forms[key] = self._form(opcode, key)
        return opcode.forms[key]

    def _place(self, row: Sequence[Any], count: int, role: str) -> Place:
        """Return an operand. row: of its field, as stored. count: of registers. role: as stored."""
        key = *row, count, role
        if key not in self._places:
            file, at, width, inverted, *plus = row
            where = RegisterField(at, width, RegisterFile(file), bool(inverted), sum(plus))
            self._places[key] = Place(where, count, role in "vxh", role in "^x", role != "h")
        return self._places[key]

    def _form(self, opcode: Opcode, key: int) -> Form | None:
        """Look a form up. key: the bits of the opcode's mask."""
        row = opcode.row
        fixed, expected = (int(text, 16) for text in row["fixed"])
        if key & fixed != expected:
            return None
        found: list[tuple[int, str]] = []
        for index, (bits, values) in enumerate(row["groups"]):
            additions = values.get(str(_value(key, bits)))
            if additions is None:
                return None
            found += [(index, addition) for addition in additions]
        number = row["shapes"].get(str(_value(key, row["shaped_by"])))
        if number is None:
            return None
        shape = self._shapes[number]
        if row["names"]:
            name = row["names"].get(str(_value(key, [bit for bits, _ in row["groups"] for bit in bits])))
            if name is None:
                return None
        else:
            ranks = opcode.ranks
            name = ".".join([row["name"], *(addition for _, addition in sorted(found, key=lambda one: ranks[one]))])
        places = [self._place(row["fields"][index], count, role) for index, count, role in shape["operands"]]
        base = row["name"]
        return Form(
            opcode.number, name, RegisterFile(row["guard"]) if row["guard"] else None, tuple(places), shape["bytes"],
            _latency(row), _MEMORIES.get(base, Memory.NONE), _FLOWS.get(base, Flow.NEXT),
            # WARPSYNC has a mask alone, unless it is collective.
            tuple((at, width, power) for at, width, power in row.get("target", ()))
            if base != "WARPSYNC" or "COLLECTIVE" in name else (),
        )  # fmt: skip


def not_displaced(form: Form) -> str | None:
    """Why an instruction must stay where it is, in words; None when it may run elsewhere, as in a trampoline."""
    base = form.name.partition(".")[0]
    if form.flow in {Flow.BRANCH, Flow.CALL, Flow.RETURN}:
        return f"{base} goes to an address that counts from its own"
    if form.flow is Flow.CONVERGENCE:
        return f"{base} joins or parts the lanes of a warp"
    if form.flow is Flow.WAIT:
        return f"{base} waits for what was started before it"
    if _TIED.fullmatch(base):
        return f"{base} is part of an asynchronous group"
    if base == "USETMAXREG":
        return f"{base} changes how many registers the warp has"
    return None


def _value(word: int, bits: list[int]) -> int:
    """The number in these bits, the first the lowest."""
    return sum((word >> bit & 1) << index for index, bit in enumerate(bits))


def _latency(row: Mapping[str, Any]) -> Latency:
    """What the corpus says of an opcode's results."""
    # An old ptxas had one of 450 HMMAs of sm_80 set a scoreboard; all others are waited for by cycles.
    if (row["write_barriers"] + row["read_barriers"]) * _OF_ALL > row["words"]:
        return Latency.VARIABLE
    return Latency.FIXED if row["words"] >= _SEEN_ENOUGH else Latency.UNKNOWN


def architectures() -> tuple[int, ...]:
    """The numbers of the architectures that have tables, as 90."""
    names = (entry.name for entry in importlib.resources.files("neutrino.sass").joinpath("tables").iterdir())
    return tuple(sorted(int(name[3:-5]) for name in names if re.fullmatch(r"sm_\d+\.json", name)))


@functools.cache
def encoding(sm: int) -> Encoding:
    """The table of an architecture. sm: its number, as 90. Raises ArgumentError where there is none."""
    if sm not in architectures():
        known = ", ".join(f"sm_{one}" for one in architectures())
        raise ArgumentError(f"no table of machine code for sm_{sm}; there are {known}")
    text = importlib.resources.files("neutrino.sass").joinpath("tables").joinpath(f"sm_{sm}.json").read_text()
    return Encoding(json.loads(text))
