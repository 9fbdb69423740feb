"""PTX as the front ends see it: words, snippets, declarations, and the verifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar

from neutrino.errors import Diagnostic
from neutrino.ir.operands import Register, Special
from neutrino.ir.statements import Assembly
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.capabilities import Capabilities
from neutrino.probing.document import Document
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, Straight
from neutrino.probing.model import Pattern
from neutrino.probing.target import Snippets, Verified, Verifier, Words
from neutrino.probing.written import WrittenProbes
from neutrino.ptx.isa.opcodes import OTHER_NAMES
from neutrino.ptx.isa.scalars import is_special
from neutrino.ptx.snippets.reading import REGISTER_TYPES, PtxSnippets
from neutrino.ptx.snippets.writer import assembly_text, operand_text

_MAX_PER_DECLARATION = 8
"""Registers of one type in one ``.reg``."""

_TYPES: Mapping[str, Type] = {
    kind.value: kind for kind in PROBE_TYPES if not kind.is_untyped and kind not in {Type.PRED, Type.F16X2}
}
"""Modifiers that are the type of a value that probes compute with."""

_OF_WHOLE_WARPS = frozenset({"mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"})
"""First parts of opcodes that all lanes of a warp must execute together."""

_OF_MEMORY = frozenset({"ld", "ldu", "st", "atom", "red"})
_OF_ONE_TYPE = _OF_MEMORY | {
    "add", "sub", "mul", "mad", "min", "max", "abs", "neg", "div", "rem", "fma", "rcp", "sqrt", "rsqrt", "sin", "cos",
    "lg2", "ex2", "tanh", "copysign",
}  # fmt: skip
"""Opcodes whose operands, but for addresses, have the type that is named."""
_VECTORS = frozenset({"v2", "v4", "v8"})
_PREDICATES: Mapping[str, tuple[str, ...]] = {
    "setp": ("out",), "testp": ("out",), "isspacep": ("out",), "selp": ("in3",), "vote": ("in1",),
}  # fmt: skip
"""Opcodes → their operands that are predicates, whatever type is named."""
_OF_BITS = frozenset({"and", "or", "xor", "not", "mov"})
"""Opcodes whose operands are all predicates if the type is."""
_JOINING = frozenset({"and", "or", "xor"})
"""Parts of opcodes of comparisons whose result is joined with a predicate."""


class PtxWords:
    """As ``probing.target.Words``."""

    language: ClassVar[str] = "PTX"
    load: ClassVar[str] = "ld.global"
    narrowed: ClassVar[str] = "cp.async.bulk !tensor"
    exclusions: ClassVar[str] = "!tensor !prefetch"
    saved: ClassVar[tuple[str, str]] = ("{ %a };", "{ %a, %b };")
    other_names: ClassVar[Mapping[str, str]] = OTHER_NAMES
    # No modifier is called so: in an opcode it stands for an access without a state space.
    meanings: ClassVar[Mapping[str, str]] = {"generic": "name the state space: ld.global"}
    call: ClassVar[str] = "call"
    file_ending: ClassVar[str] = "ptx"
    lane_mask: ClassVar[Type] = Type.U32
    # The CUDA programming guide, "Technical Specifications": threads and blocks of any architecture.
    greatest: ClassVar[Mapping[Special, int]] = {
        Special.LANE: 31, Special.LANEMASK_LT: (1 << 32) - 1, Special.WARP: 31, Special.TID_X: 1023,
        Special.TID_Y: 1023, Special.TID_Z: 63, Special.NTID_X: 1024, Special.NTID_Y: 1024, Special.NTID_Z: 64,
    }  # fmt: skip

    def is_of_whole_warps(self, pattern: Pattern) -> bool:
        """As ``Words``."""
        return pattern.opcode[0] in _OF_WHOLE_WARPS

    def is_reserved(self, register: str) -> bool:
        """As ``Words``."""
        return is_special(register)

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        """As ``Words``: f32 of ``ld.global.f32``; None of ``ld.global``."""
        named = [_TYPES[part] for part in pattern.opcode[1:] if part in _TYPES and not part.startswith("u")]
        # A conversion has two.
        return named[0] if len(named) == 1 and (named[0].bits >= 32 or named[0].is_float) else None

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        """As ``Words``: s8 of ``ld.global.s8``, f32 of ``add.f32``, none of ``add.f16``."""
        opcode = pattern.opcode
        if not opcode:
            return {}
        first = opcode[0]
        predicates = set(_PREDICATES.get(first, ()))
        if first in {"set", "setp"} and _JOINING.intersection(opcode):
            predicates.add("in3")
        if "pred" in opcode:
            predicates |= {"out", "in1", "in2"} if first in _OF_BITS else {"out"}
        kinds = dict.fromkeys(predicates, Type.U32)
        named = [_TYPES[part] for part in opcode[1:] if part in _TYPES]
        if first == "cvt" and len(named) == 2:
            both = {"out": named[0], "in1": named[1]}
            return {name: kind for name, kind in both.items() if not kind.is_float or kind.bits >= 32}
        if len(named) != 1 or (named[0].is_float and named[0].bits < 32):
            return kinds
        if "wide" in opcode:
            wide = Type(f"{named[0].value[0]}{2 * named[0].bits}")
            return {"out": wide, "in1": named[0], "in2": named[0], "in3": wide}
        if first == "setp":
            return {"in1": named[0], "in2": named[0], **kinds}
        if first in _OF_ONE_TYPE and (elements or not _VECTORS.intersection(opcode)):
            # The first operand of those of memory is the address.
            others = ("in2", "in3") if first in _OF_MEMORY else tuple(f"in{number}" for number in range(1, 10))
            kinds |= dict.fromkeys(("out", *others), named[0])
        return kinds


class PtxVerifier:
    """As ``probing.target.Verifier``. What verifies is imported when it is used: traces are read without it."""

    name: ClassVar[str] = "ptx"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def verify(self, written: WrittenProbes) -> Verified:
        """As ``Verifier``."""
        from neutrino.ptx.snippets.verifier import verify

        return verify(written)

    def verify_draft(self, draft: DraftProbes) -> list[Diagnostic]:
        """As ``Verifier``."""
        from neutrino.ptx.snippets.verifier import verify_draft

        return verify_draft(draft)

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """As ``Verifier``."""
        from neutrino.ptx.snippets.lowering import lower

        return lower(probes)


class Ptx:
    """As ``probing.target.Language``."""

    platform: ClassVar[str] = "cuda"
    other_platforms: ClassVar[tuple[str, ...]] = ()
    vendor: ClassVar[str] = "NVIDIA"
    devices: ClassVar[str] = "NVIDIA GPUs and the embedded device"
    device: ClassVar[str] = "sm_90"
    words: ClassVar[Words] = PtxWords()
    register_types: ClassVar[tuple[str, ...]] = REGISTER_TYPES
    register_files: ClassVar[tuple[str, ...]] = ()
    save_guard: ClassVar[str] = r"@\s*(?P<negated>!?)\s*(?P<guard>%[^\s@!]+)"
    verifier: ClassVar[Verifier | None] = PtxVerifier()

    def snippets(self, document: Document) -> Snippets:
        """As ``Language``."""
        return PtxSnippets(document)

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        """As ``Language``; registers of one type that are neighbors share a ``.reg`` statement."""
        for register_type, group in groupby(registers, key=lambda register: register.type):
            words = [register.name + _initial(register) for register in group]
            for start in range(0, len(words), _MAX_PER_DECLARATION):
                yield f".reg .{register_type} {', '.join(words[start : start + _MAX_PER_DECLARATION])};"
        for statement in statements:
            yield f"{assembly_text(statement) if isinstance(statement, Assembly) else _save(statement)};"


def _save(save: Save) -> str:
    """Return a SAVE, without its semicolon."""
    operands = ", ".join(map(operand_text, save.operands))
    prefix = "" if save.guard is None else f"@{'!' if save.is_inverted else ''}{save.guard.text} "
    return f"{prefix}SAVE [ {save.map.name} ] {{ {operands} }}"


def _initial(register: Register) -> str:
    """Return the initial value of a register as ``.reg`` takes it (`` = -1``); ``""`` for 0, the default."""
    value, register_type = register.initial, register.type  # the value as bits
    if not value:
        return ""
    if register_type == "f32":
        return f" = 0f{value:08X}"
    if register_type == "f64":
        return f" = 0d{value:016X}"
    sign_bit = 1 << (register_type.bits - 1)
    if register_type.is_signed and value & sign_bit:
        value -= 1 << register_type.bits
    return f" = {value}"


PTX = Ptx()
