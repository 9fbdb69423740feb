"""One instruction taken apart: predicate, opcode, operands, and what each operand is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from neutrino.probing.model import STATE_SPACES
from neutrino.ptx.module import TYPE_BYTES

_HEAD = re.compile(
    r"\s*(?:@\s*(?P<negated>!)?\s*(?P<predicate>[A-Za-z_$%][\w$]*)\s+)?(?P<opcode>[a-z_]\w*(?:\.[\w:]+)*)\s*",
    re.ASCII,
)
_SPLIT = re.compile(r"[\[\](){},]")
REGISTER = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzwrgba])?", re.ASCII)
_MEMORY = re.compile(r"\[\s*(?P<base>[^\[\]+,{}]*?)\s*(?:\+\s*(?P<offset>-?\s*\w+)\s*)?\]\Z")

# First opcode parts whose instructions write no register (PTX ISA, chapter 9, the syntax line of each).
_NO_DESTINATION = frozenset(
    {
        "applypriority",
        "bra",
        "brkpt",
        "brx",
        "call",
        "clusterlaunchcontrol",
        "cp",
        "discard",
        "exit",
        "fence",
        "griddepcontrol",
        "membar",
        "nanosleep",
        "pmevent",
        "prefetch",
        "prefetchu",
        "red",
        "ret",
        "setmaxnreg",
        "st",
        "stackrestore",
        "stmatrix",
        "sust",
        "sured",
        "tensormap",
        "trap",
    }
)
_NO_DESTINATION_PREFIX = (
    ("bar", "sync"),
    ("bar", "arrive"),
    ("bar", "warp"),
    ("bar", "cta", "sync"),
    ("bar", "cta", "arrive"),
    ("barrier", "sync"),
    ("barrier", "arrive"),
    ("barrier", "cta", "sync"),
    ("barrier", "cta", "arrive"),
    ("barrier", "cluster"),
    ("mbarrier", "init"),
    ("mbarrier", "inval"),
    ("mbarrier", "expect_tx"),
    ("mbarrier", "complete_tx"),
    ("multimem", "st"),
    ("multimem", "red"),
    ("multimem", "cp"),
    ("wmma", "store"),
    ("wgmma", "fence"),
    ("wgmma", "commit_group"),
    ("wgmma", "wait_group"),
)
# Their results arrive later than the instruction ends; reading them early would be wrong, or serialise the
# pipeline.
_ASYNCHRONOUS = (("wgmma", "mma_async"), ("tcgen05",), ("cp",), ("clusterlaunchcontrol",))


@dataclass(frozen=True)
class Instruction:
    """predicate: the guard's register or None; negated: ``@!``. operands: their texts, split at top-level
    commas."""

    predicate: str | None
    negated: bool
    opcode: str
    operands: tuple[str, ...]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The dotted parts of the opcode."""
        return tuple(self.opcode.split("."))

    @cached_property
    def state_space(self) -> str | None:
        """The state space among the modifiers, without its sub-qualifier; None for a generic access."""
        return next(
            (part.partition("::")[0] for part in self.parts if part.partition("::")[0] in STATE_SPACES), None
        )

    @cached_property
    def has_destination(self) -> bool:
        """The first operand is written."""
        parts = self.parts
        return not (
            not self.operands
            or parts[0] in _NO_DESTINATION
            or any(parts[: len(prefix)] == prefix for prefix in _NO_DESTINATION_PREFIX)
        )

    @cached_property
    def is_asynchronous(self) -> bool:
        """What it writes is there only after a later wait."""
        return any(self.parts[: len(prefix)] == prefix for prefix in _ASYNCHRONOUS)

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the registers in the destination operand, or in a call's results."""
        results = self.parts[0] == "call" and self.operands[0].startswith("(")
        written = self.has_destination or results
        return frozenset(REGISTER.findall(self.operands[0])) if written else frozenset()

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The operands that are read, in order."""
        return self.operands[1:] if self.has_destination else self.operands

    @cached_property
    def type(self) -> str | None:
        """The last type among the modifiers (``f32`` of ``ld.global.v4.f32``)."""
        return next((part for part in reversed(self.parts) if part in TYPE_BYTES), None)

    @cached_property
    def elements(self) -> int:
        """Elements of the vector modifier, 1 without one."""
        return next((int(part[1:]) for part in self.parts if part in {"v2", "v4", "v8"}), 1)


@dataclass(frozen=True)
class Address:
    """``[base+offset]``. base: a register, a variable or an integer. offset: integer text, ``0`` without
    one."""

    base: str
    offset: str


def read_instruction(code: str) -> Instruction | None:
    """Take one statement apart, given without comments, label and semicolon; None if it is no instruction."""
    head = _HEAD.match(code)
    if head is None:
        return None
    return Instruction(
        head["predicate"],
        head["negated"] is not None,
        head["opcode"],
        tuple(split_operands(code[head.end() :])),
    )


def split_operands(text: str) -> list[str]:
    """Split at the commas outside all brackets; white space around each piece is dropped."""
    pieces = []
    depth = 0
    start = 0
    for mark in _SPLIT.finditer(text):
        if mark[0] in "[({":
            depth += 1
        elif mark[0] in "])}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : mark.start()].strip())
            start = mark.end()
    pieces.append(text[start:].strip())
    return pieces if pieces != [""] else []


def read_address(operand: str) -> Address | None:
    """The address of a memory operand, None when the operand is none or of a form with several parts
    inside."""
    match = _MEMORY.match(operand)
    if match is None or not match["base"]:
        return None
    return Address(match["base"], "".join((match["offset"] or "0").split()))


def vector_elements(operand: str) -> tuple[str, ...]:
    """The elements of ``{a, b}``; of any other operand the operand itself."""
    if operand.startswith("{") and operand.endswith("}"):
        return tuple(split_operands(operand[1:-1]))
    return (operand,)
