"""AMD's assembly in probe files: it is read and kept, and neither verified nor put into kernels yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.ir.operands import Register, Special
from neutrino.ir.types import Type
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.structured import Straight
from neutrino.probing.model import Pattern
from neutrino.probing.syntax import NO_GUARD, Fault, Statement, without_comments
from neutrino.probing.target import Snippets, Verifier, Words
from neutrino.probing.written import WrittenInstruction, WrittenProbe

REGISTER_TYPES = (
    "pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f16x2", "f32", "f64",
)  # fmt: skip
"""Types that a probe's ``register`` counts."""

_COMMENT_START = re.compile(r"//|;|/\*")


class GcnWords:
    """As ``probing.target.Words``."""

    language: ClassVar[str] = "GCN"
    load: ClassVar[str] = "global_load_dword"
    narrowed: ClassVar[str] = "memory !buffer_load_dword"
    exclusions: ClassVar[str] = "!load !store"
    saved: ClassVar[tuple[str, str]] = ("{ P0 }", "{ P0, P1 }")
    other_names: ClassVar[Mapping[str, str]] = {}
    meanings: ClassVar[Mapping[str, str]] = {}
    call: ClassVar[str] = "s_swappc_b64"
    file_ending: ClassVar[str] = "s"
    # Waves of 32 and of 64 lanes: which a kernel has is known of the kernel alone.
    lane_mask: ClassVar[Type] = Type.U64
    greatest: ClassVar[Mapping[Special, int]] = {
        Special.LANE: 63, Special.WARP: 31, Special.TID_X: 1023, Special.TID_Y: 1023, Special.TID_Z: 1023,
        Special.NTID_X: 1024, Special.NTID_Y: 1024, Special.NTID_Z: 1024,
    }  # fmt: skip

    def is_of_whole_warps(self, pattern: Pattern) -> bool:
        """As ``Words``: what lanes of a wave do together is not known yet."""
        return False

    def is_reserved(self, register: str) -> bool:
        """As ``Words``: AMD's registers have no ``%``."""
        return False

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        """As ``Words``: typed probes are not put into AMD's kernels yet."""
        return None

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        """As ``Words``: typed probes are not put into AMD's kernels yet."""
        return {}


class GcnSnippets:
    """As ``probing.target.Snippets``: one statement a line, without declarations."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def statements(self, path: KeyPath, text: str) -> tuple[list[Statement], list[Fault]]:
        """Split a snippet into statements, one per line; comments may begin with ``;`` too."""
        blanked, faults = without_comments(text, _COMMENT_START)
        statements = []
        start = 0  # of the line in the snippet
        for line in blanked.split("\n"):
            indent = len(line) - len(line.lstrip())
            if line.strip():
                statements.append(Statement(start + indent, line.strip()))
            start += len(line) + 1  # and the line end
        return statements, faults

    def instruction(self, path: KeyPath, statement: Statement) -> WrittenInstruction:
        """Return an instruction, before verification."""
        span = self._document.span(self._document.within(path, statement.start))
        return WrittenInstruction(" ".join(statement.text.split()), span)

    def named(self, text: str) -> Sequence[str]:
        """As ``Snippets``: which words are registers is not known yet."""
        return ()

    def saved(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """As ``Snippets``: operands as they are written."""
        return [], [" ".join(text.split()) for _, text in words]

    def copied(
        self, words: Sequence[str], used_later: set[str], span: Span, reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """As ``Snippets``: nothing is copied."""
        return [], list(words)

    def registers(self, probes: Sequence[WrittenProbe]) -> tuple[Register, ...]:
        """Return the registers that ``register = { u32 = 2 }`` of probes declares.

        They are called ``P0``, ``P1`` …, those of 64 bits ``PD0``, ``PD1`` …, and all probes share them.
        """
        registers: dict[str, Register] = {}
        for probe in probes:
            for type_name, count in probe.registers:
                # Not the item "type", nor one with a fault.
                if isinstance(count, int) and type_name in REGISTER_TYPES:
                    stem = "PD" if type_name.endswith("64") else "P"
                    for name in (f"{stem}{index}" for index in range(count)):
                        # setdefault: the first probe that counts it declares it.
                        registers.setdefault(name, Register(name, Type(type_name), 0, probe.span))
        return tuple(registers.values())


class Gcn:
    """As ``probing.target.Language``."""

    platform: ClassVar[str] = "hip"
    other_platforms: ClassVar[tuple[str, ...]] = ("rocm", "amd")
    vendor: ClassVar[str] = "AMD"
    devices: ClassVar[str] = "AMD GPUs"
    device: ClassVar[str] = "gfx1100"
    words: ClassVar[Words] = GcnWords()
    register_types: ClassVar[tuple[str, ...]] = REGISTER_TYPES
    register_files: ClassVar[tuple[str, ...]] = ("sgpr", "vgpr")
    save_guard: ClassVar[str] = NO_GUARD
    verifier: ClassVar[Verifier | None] = None

    def snippets(self, document: Document) -> Snippets:
        """Return what reads the snippets of a file."""
        return GcnSnippets(document)

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        """As ``Language``: there are no lowered snippets yet."""
        return iter(())


GCN = Gcn()
