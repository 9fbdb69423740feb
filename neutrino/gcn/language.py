"""AMD's assembly as the front ends see it: words of tracepoints, snippets and their registers, the verifier."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Assembly, Operator, Reduction
from neutrino.ir.types import Type
from neutrino.probing.capabilities import Able, Capabilities
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Straight
from neutrino.probing.model import CLASSES, Pattern, Tracepoint
from neutrino.probing.syntax import NO_GUARD, Fault, Statement, without_comments
from neutrino.probing.target import Snippets, Verified, Verifier, Words
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes

REGISTER_TYPES = (
    "pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f16x2", "f32", "f64",
)  # fmt: skip
"""Types that a probe's ``register`` counts."""

_NAME = re.compile(r"PD?\d{1,4}", re.ASCII)
_COMMENT_START = re.compile(r"//|;|/\*")


_TYPED = re.compile(r"v_(?:add|sub|mul|fma|mac|fmac|min|max|rcp|rsq|sqrt|exp|log)\w*?_([fui]\d{2})")


_TYPES = frozenset({"f32", "f64", "u32", "s32"})
_COMPUTING = frozenset(
    {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "min", "max"}
)
"""First parts of names of operations whose operands are all of the type that they name."""


def _type_of(pattern: Pattern) -> Type | None:
    """Return the type that a mnemonic of arithmetic has for all of its operands; None of any other."""
    match = _TYPED.fullmatch(pattern.opcode[0]) if pattern.opcode else None
    if match is None:
        named = [part for part in pattern.opcode[1:] if part in _TYPES]
        is_computed = bool(pattern.opcode) and pattern.opcode[0] in _COMPUTING
        return Type(named[0]) if is_computed and len(named) == 1 else None
    letter, bits = match[1][0], match[1][1:]
    return Type(f"{'s' if letter == 'i' else letter}{bits}") if bits in ("32", "64") else None


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
        """Return whether all lanes of a wave must execute such instructions together: False, since that is not known
        yet."""
        return False

    def is_reserved(self, register: str) -> bool:
        """Return whether a probe cannot have a register of this name: False, since AMD's registers have no ``%``."""
        return False

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        """Return the type that a pattern says its operands have: f32 of ``v_add_f32``; None of loads."""
        return _type_of(pattern)

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        """Return by operand the type that a pattern says it has: that of arithmetic on numbers of 32 and 64 bits."""
        kind = _type_of(pattern)
        return {} if kind is None else dict.fromkeys(("out", "in1", "in2", "in3"), kind)


class GcnSnippets:
    """As ``probing.target.Snippets``: one statement a line, without declarations."""

    def __init__(self, document: Document) -> None:
        """Prepare to read the snippets of one probe file. document: the file."""
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
        """Return a statement of a snippet as an instruction that has not been checked yet."""
        span = self._document.span(self._document.within(path, statement.start))
        return WrittenInstruction(" ".join(statement.text.split()), span)

    def named(self, text: str) -> Sequence[str]:
        """Return the registers in the text of an instruction: none, since which words are registers is not known yet.
        """
        return ()

    def saved(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return the instructions that a SAVE statement (it appends a record to a map) needs before it, here none, and
        its operands as they are written."""
        return [], [" ".join(text.split()) for _, text in words]

    def copied(
        self, words: Sequence[str], used_later: set[str], span: Span, reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return the instructions that copy operands of a SAVE statement, so that later code cannot change them: here
        none, and the operands as they are."""
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


_CLUSTERS = frozenset(word.value for word in Special if word.value.startswith(("cluster", "ncluster")))
_OTHER_HELPERS = frozenset({"shuffle", "clock(after)", "is_global"})

CAPABILITIES = Capabilities(
    tracepoints=frozenset({"kernel", "opcode", "class", "any", "functions", "predicates", *CLASSES}),
    operands=frozenset(
        {"OUT", "IN", "ADDR", "BYTES", "OPS", "SITE", "THREAD", "BLOCK", "LANES", "LEADER", "ELECTED", "PRED"}
    ),
    helpers=frozenset(
        {
            *(word.value for word in Operator), *(word.value for word in Reduction),
            *(word.value for word in Special), *_OTHER_HELPERS,
        }
    ) - _CLUSTERS,
    levels=frozenset({"thread", "warp", "block", "group", "reaching"}),
    lane_sets=frozenset({"64"}),
)  # fmt: skip
"""What some processor can do. Of AMD's instructions conditional branches alone have what is like a predicate."""


@dataclass(frozen=True)
class Processor:
    """A processor, for what it can do: ``Able``. name: as ``gfx1100``."""

    name: str
    capabilities: Capabilities

    def named(self, tracepoint: Tracepoint) -> tuple[list[str], list[str]]:
        """As ``probing.target.NamesOperations``."""
        from neutrino.gcn.snippets.opcodes import named_on

        return named_on(tracepoint, self.name)


def capabilities_of(processor: str) -> Capabilities:
    """Return which tracepoints, operands, helpers and maps probes may use on a processor."""
    return CAPABILITIES


class GcnVerifier:
    """As ``probing.target.Verifier``. What verifies is imported when it is used."""

    name: ClassVar[str] = "gcn"
    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def verify(self, written: WrittenProbes) -> Verified:
        """Verify every snippet and tracepoint of a file with hand-written snippets."""
        from neutrino.gcn.snippets.verifier import verify

        return verify(written)

    def verify_draft(self, draft: DraftProbes) -> list[Diagnostic]:
        """Return the faults of typed probes that only this target knows."""
        from neutrino.gcn.snippets.verifier import verify_draft

        return verify_draft(draft)

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Return the set with its typed statements as lines for people: what they become differs between processors."""
        from neutrino.gcn.snippets.verifier import noted

        return noted(probes)

    def device(self, arch: str) -> Able:
        """Return what probes may ask of the devices of an architecture. arch: a target id, such as ``gfx942:sramecc+``.
        """
        processor = arch.partition(":")[0]
        return Processor(processor, capabilities_of(processor))

    def device_faults(
        self, written: WrittenProbes | DraftProbes, probes: ProbeSet, arch: str
    ) -> list[Diagnostic]:
        """Return what hand-written snippets use and a device lacks; else what is not possible in its kernels yet."""
        from neutrino.gcn.snippets.verifier import clock_warnings, processor_faults
        from neutrino.gcn.trial import impossible

        processor = arch.partition(":")[0]
        faults = [] if isinstance(written, DraftProbes) else processor_faults(written, probes.probes, processor)
        return faults or [*impossible(written, probes, processor), *clock_warnings(written, probes.probes, processor)]


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
    verifier: ClassVar[Verifier | None] = GcnVerifier()

    def snippets(self, document: Document) -> Snippets:
        """Return the reader of the snippets (hand-written code of probes) of a probe file."""
        return GcnSnippets(document)

    def register_note(self, registers: Sequence[Register]) -> str:
        """Return how many registers of each type there are, as the key ``register`` has it; "" without any."""
        counts = {str(one.type): int(one.name.lstrip("PD")) + 1 for one in registers if _NAME.fullmatch(one.name)}
        return f"{{ {', '.join(f'{kind} = {count}' for kind, count in counts.items())} }}" if counts else ""

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        """Yield the lines of a snippet. registers: those that the key ``register`` does not count are in comments."""
        for register in registers:
            if not _NAME.fullmatch(register.name):
                yield f"// {register.type} {register.name}"
        for statement in statements:
            words = ", ".join(
                str(operand.bits) if isinstance(operand, Constant) else operand.text for operand in statement.operands
            )
            if isinstance(statement, Assembly):
                yield f"{statement.opcode} {words}".rstrip()
            else:
                yield f"SAVE [ {statement.map.name} ] {{ {words} }}"


GCN = Gcn()
