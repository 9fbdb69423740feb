"""What the front ends need of a target: the words of its tracepoints, its assembly in probe files, and its verifier.

``neutrino.targets`` has the targets, by what probe files call them in ``platform``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import Register, Special
from neutrino.ir.types import Type
from neutrino.late_dataclass import dataclass
from neutrino.probing.capabilities import Able, Capabilities
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Straight
from neutrino.probing.model import Pattern, Tracepoint
from neutrino.probing.syntax import Fault, Statement
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes


class Words(Protocol):
    """What is said in a target's assembly, in tracepoints and in hints.

    language: what messages call the assembly. load: the pattern of a load from global memory, an example. narrowed: a
    pattern that excludes a modifier, and exclusions: two excluded modifiers, both examples. saved: what is saved by a
    SAVE, of one operand and of two, examples. other_names: what CUDA C++ and machine code call an instruction, in lower
    case → the pattern that matches it. meanings: words that have a meaning in an opcode but are no modifiers → what to
    write, as they exclude nothing. call: the opcode of calls. file_ending: of files with the assembly, without the dot.

    lane_mask: type of a set of lanes of a warp, a bit for each: u32, or u64 where a warp may have more than 32.
    greatest: values that the hardware provides → the greatest one of any device.
    """

    language: ClassVar[str]
    load: ClassVar[str]
    narrowed: ClassVar[str]
    exclusions: ClassVar[str]
    saved: ClassVar[tuple[str, str]]
    other_names: ClassVar[Mapping[str, str]]
    meanings: ClassVar[Mapping[str, str]]
    call: ClassVar[str]
    file_ending: ClassVar[str]
    lane_mask: ClassVar[Type]
    greatest: ClassVar[Mapping[Special, int]]

    def is_of_whole_warps(self, pattern: Pattern) -> bool:
        """Return whether all lanes of a warp must execute the instructions that an opcode pattern matches together."""

    def is_reserved(self, register: str) -> bool:
        """Return whether a probe cannot have a register of this name, with its ``%``: it is one of the hardware's."""

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        """Return the type that a pattern names for OUT and the inputs; None without one, or if too narrow to keep."""

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        """Return the types of operands that a pattern names, by their names in probes in Python (``out``, ``in1`` …).

        Only of those that can be computed with as they are; a predicate is a u32, 1 or 0. elements: also of vectors,
        whose elements have it.
        """


class Snippets(Protocol):
    """The snippets of one file in TOML, while it is read; their registers are those of the file.

    path, as a parameter, is that of a snippet's text in the document, to which faults are reported. reserved: names of
    added registers whose values are still needed; those that are added join it.
    """

    def statements(self, path: KeyPath, text: str) -> tuple[list[Statement], list[Fault]]:
        """Split a snippet (a probe's code) into instructions and SAVEs (which add a record to a map), and return these
        and the snippet's faults. Registers that it declares become registers of the whole probe file.
        """

    def instruction(self, path: KeyPath, statement: Statement) -> WrittenInstruction:
        """Return a statement of a snippet (a probe's code) as an instruction that has not been checked yet.

        path: of the snippet in its file.
        """

    def named(self, text: str) -> Sequence[str]:
        """Return the names of the registers that occur in the text of an instruction of a probe."""

    def saved(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return the operands of a SAVE statement (it appends a record to a map), and instructions before it that it
        needs to read them.

        words: offset in the snippet and text of each operand. fields: those that they are saved to.
        """

    def copied(
        self, words: Sequence[str], used_later: set[str], span: Span, reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return instructions that copy operands of a SAVE which later ones may overwrite; and all operands, the copied
        ones replaced by their copies.

        words: the operands. used_later: registers that instructions between here and the SAVE name.
        """

    def registers(self, probes: Sequence[WrittenProbe]) -> tuple[Register, ...]:
        """Return the registers of the file in the order of their declarations. probes: all of the file."""


@dataclass(frozen=True)
class Verified:
    """The result for one file. probes: None if there are errors. diagnostics: errors and warnings in file order."""

    probes: tuple[Probe, ...] | None
    diagnostics: tuple[Diagnostic, ...]


@runtime_checkable
class NamesOperations(Protocol):
    """A device whose instructions are called otherwise than the operations that probes name."""

    def named(self, tracepoint: Tracepoint) -> tuple[list[str], list[str]]:
        """Return the device's instructions that names of operations in a tracepoint mean, and the names for which it
        has none."""


class Verifier(Protocol):
    """Checks probes as far as a target's instructions decide what is right.

    name: of the target, as in ``ProbeSet.target``. capabilities: what typed probes may ask of it, on some of its
    devices at least.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def verify(self, written: WrittenProbes) -> Verified:
        """Verify every snippet (code by hand) and tracepoint of a probe file for this kind of GPU code.

        Returns the probes and all faults found.
        """

    def verify_draft(self, draft: DraftProbes) -> list[Diagnostic]:
        """Return the faults of typed probes that only the target knows, such as those of opcodes and operands."""

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Translate the typed statements of verified probes to the target's assembly; return the probes."""

    def device(self, arch: str) -> Able:
        """Return what one of the target's devices can do. arch: its architecture, such as ``gfx1100``."""

    def device_faults(self, written: Any, probes: ProbeSet, arch: str) -> list[Diagnostic]:
        """Return a fault for each instruction of hand-written snippets that a device lacks, and for what kernels of a
        device cannot have of probes, as far as no kernel is needed to tell.

        written: the ``WrittenProbes`` or ``DraftProbes`` of one file. probes: what its snippets have become.
        """


class Language(Protocol):
    """A target as probe files see it.

    platform: what files call it, and other_platforms: what else users may. vendor, devices: whose it is, and which
    devices it is for, in words. device: an architecture of these, an example. register_types: what ``register`` of a
    probe counts; register_files: the values of its key ``type``, () where registers are declared in snippets.
    save_guard: a regular expression of the predicate before a SAVE, with the groups ``negated`` and ``guard``.
    verifier: None where nothing can verify the assembly yet.
    """

    platform: ClassVar[str]
    other_platforms: ClassVar[tuple[str, ...]]
    vendor: ClassVar[str]
    devices: ClassVar[str]
    device: ClassVar[str]
    words: ClassVar[Words]
    register_types: ClassVar[tuple[str, ...]]
    register_files: ClassVar[tuple[str, ...]]
    save_guard: ClassVar[str]
    verifier: ClassVar[Verifier | None]

    def snippets(self, document: Document) -> Snippets:
        """Return a reader for the snippets (probes' code by hand) of a probe file in this assembly language."""

    def register_note(self, registers: Sequence[Register]) -> str:
        """Return the value of the key ``register`` that declares all of a file's; "" where snippets declare them."""

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        """Yield the text of a lowered snippet, line by line. registers: those that it declares, in their order."""


Languages = Mapping[str, Language]
"""By platform."""
