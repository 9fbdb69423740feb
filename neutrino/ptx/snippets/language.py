"""PTX as the front ends see it: words, snippets and the registers that they declare, what SAVEs read, the verifier."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import SCRATCH, Register, Special
from neutrino.ir.statements import Assembly
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.capabilities import Capabilities
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, Straight
from neutrino.probing.model import Pattern
from neutrino.probing.syntax import MAX_REGISTER_NAME, Fault, Statement, list_items, without_comments
from neutrino.probing.target import Snippets, Verified, Verifier, Words
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes
from neutrino.ptx.isa.forms import bits_of
from neutrino.ptx.isa.opcodes import OTHER_NAMES
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS, is_special, literal_fits
from neutrino.ptx.snippets.writer import assembly_text, operand_text

MAX_REGISTERS = 256
"""Registers that one ``%name<N>`` may declare: a thread has no more (PTX ISA 9.0, 11.4.3, ``.maxnreg``)."""

REGISTER_TYPES = (
    "pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f16x2", "f32", "f64",
)  # fmt: skip
"""Types that ``.reg`` takes in a probe, without the dot."""

_COMMENT_START = re.compile(r"//|/\*")
# A line that begins like a statement: the semicolon of the statement before it is missing.
_NEXT_STATEMENT = re.compile(r"\n[^\S\n]*(?=SAVE\b|\.reg\b|@!?%|[a-z][a-z0-9_]*\.[a-z])")
_REG = re.compile(r"\.reg\s+(?P<type>\.\w+)\s+(?P<declarators>.+)", re.DOTALL)
_REG_NAME = re.compile(r"(%[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?(?:\s*=\s*(.*))?", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[1-9]\d*|0+)", re.ASCII)
_MAX_INTEGER_LENGTH = 68  # 64 binary digits, the prefix and a sign
_DECIMAL = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_INITIAL_HINTS = {
    "p": "write 0 or 1", "f": "write a number such as 1.5; of halves the bits, such as 0x3c00",
    **dict.fromkeys("bus", "write an integer that fits in it"),
}  # fmt: skip

REGISTER_WORD = re.compile(r"%[A-Za-z_$][\w$]*", re.ASCII)
"""A register in a statement, also the first part of a special register such as ``%tid.x``."""

MAX_REGISTERS_OF_A_FILE = 8192
"""Names that all ``.reg`` of a file declare; a name counts each time that it is declared."""

_MOV_TYPES = {
    **dict.fromkeys(("b16", "u16", "s16", "f16"), "b16"),
    **dict.fromkeys(("b32", "u32", "s32", "f16x2"), "b32"),
    **dict.fromkeys(("b64", "u64", "s64"), "b64"),
    "f32": "f32", "f64": "f64",
}  # fmt: skip
"""Type of a register that can be saved → the type of ``mov`` for it."""


class PtxSnippets:
    """As ``probing.target.Snippets``, for a file in PTX."""

    def __init__(self, document: Document) -> None:
        """Prepare to read the PTX snippets of a probe file. document: the file, to which faults are reported."""
        self._document = document
        self._registers = Registers(document)

    def statements(self, path: KeyPath, text: str) -> tuple[list[Statement], list[Fault]]:
        """Split a snippet into statements; declare the registers of its ``.reg`` statements, and return the others, and
        faults."""
        statements, faults = split_statements(text)
        others = []
        for statement in statements:
            if not statement.text.startswith(".reg"):
                others.append(statement)
                continue
            declarations, declaration_faults = parse_declaration(statement)
            faults += declaration_faults
            for declaration in declarations:
                self._registers.declare(path, declaration)
        return others, faults

    def instruction(self, path: KeyPath, statement: Statement) -> WrittenInstruction:
        """Return a statement of a snippet as an instruction with its place in the file.

        Declares registers in it that only an off-by-one ``%name<N>`` would cover; see ``Registers.extend_range``. path:
        of the snippet, for the places of faults.
        """
        span = self._document.span(self._document.within(path, statement.start))
        for match in REGISTER_WORD.finditer(statement.text):
            offset = self._document.within(path, statement.start + match.start())
            self._registers.extend_range(match.group(), offset)
        return WrittenInstruction(" ".join(statement.text.split()), span)

    def named(self, text: str) -> Sequence[str]:
        """Return the names of registers in the text of an instruction, in order."""
        return REGISTER_WORD.findall(text)

    def registers(self, probes: Sequence[WrittenProbe]) -> tuple[Register, ...]:
        """Return all registers that the snippets declare, in the order of their declarations."""
        return self._registers.all

    def saved(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return moves of special registers into added registers, and the operands of a save with those instead.

        A SAVE cannot read special registers itself. path: of the snippet. words: offset in it and text of each operand.
        fields: those that the operands are saved to. reserved: names that added registers must not have; those added
        join it.
        """
        moves = []
        operands = []
        for (start, text), field in zip(words, fields, strict=True):
            word = " ".join(text.split())  # single spaces, also where the operand has line ends
            offset = self._document.within(path, start)
            self._registers.extend_range(word, offset)
            if word in SPECIAL_REGISTERS:
                move, word = self._read_special(word, field, offset, reserved)
                moves.append(move)
            operands.append(word)
        return moves, operands

    def _read_special(self, word: str, field: Field, offset: int, reserved: set[str]) -> tuple[WrittenInstruction, str]:
        """Return the move of a special register, an operand of SAVE, into an added register, and that one's name.

        It is extended to 64 bits if its field needs them. A warning asks for the move in the snippet itself. word: the
        special register. field: that it is saved to. offset: in the source. reserved: see ``saved``.
        """
        type_name = SPECIAL_REGISTERS[word]  # u32, b32 or u64
        # Not b32, bits that are no number: the verifier reports that they do not fit.
        is_extended = type_name == "u32" and field.type.size == 8
        message = f"{word} inside SAVE is read into a register first"
        self._document.warn(offset, "special-register-saved", message, f"write mov.{type_name} %r, {word};")
        span = self._document.span(offset)
        # %tid.x → %save_tid_x
        name = "%save_" + word.removeprefix("%").replace(".", "_") + ("_u64" if is_extended else "")
        name = self._registers.add(name, Type.U64 if is_extended else Type(type_name), span, reserved)
        text = f"cvt.u64.u32 {name}, {word}" if is_extended else f"mov.{type_name} {name}, {word}"
        return WrittenInstruction(text, span), name

    def copied(
        self, words: Sequence[str], used_later: set[str], span: Span, reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Return moves that copy operands of a SAVE which later instructions may overwrite; and all operands, the
        copied ones replaced by their copies.

        words: the operands. used_later: registers that instructions between here and the SAVE name. reserved: see
        ``saved``.
        """
        copies = []
        operands = []
        for word in words:
            register_type = self._registers.type_of(word)
            # Of other types (pred, or None of a helper or a number), nothing has to be copied or can be saved.
            if word in used_later and register_type in _MOV_TYPES:
                name = self._registers.add(f"{word}_saved", register_type, span, reserved)
                copies.append(WrittenInstruction(f"mov.{_MOV_TYPES[register_type]} {name}, {word}", span))
                operands.append(name)
            else:
                operands.append(word)
        return copies, operands


class Registers:
    """The registers of a file that are declared so far. Faults are reported to the document."""

    def __init__(self, document: Document) -> None:
        """Begin the list of registers that a probe file declares. document: the file, to which faults are reported."""
        self._document = document
        self._registers: dict[str, Register] = {}
        # Name → initial value, of the registers for which a declaration gives one.
        self._initial: dict[str, int] = {}
        # "%P" → its declaration ``%P<2>``.
        self._ranges: dict[str, Declaration] = {}
        # Names declared with two types, for which the first declaration has been reported.
        self._clashes: set[str] = set()
        # Name → type, of the registers that no snippet declares.
        self._added: dict[str, Type] = {}
        # Names declared so far, for MAX_REGISTERS_OF_A_FILE.
        self._declared = 0

    @property
    def all(self) -> tuple[Register, ...]:
        """All registers that the probe file declares, in the order of their declarations."""
        return tuple(self._registers.values())

    def type_of(self, name: str) -> Type | None:
        """Return the type of a register; None if there is none of this name."""
        register = self._registers.get(name)
        return register.type if register else None

    def declare(self, path: KeyPath, declaration: Declaration) -> None:
        """Add the registers of a ``.reg`` declaration, unless the file then declares too many. path: of its snippet.

        Faults are reported, such as for a name that is a special register's.
        """
        names = [declaration.name]
        if declaration.number is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.number)]
            self._ranges[declaration.name] = declaration
        offset = self._document.within(path, declaration.start)
        was_within_limit = self._declared <= MAX_REGISTERS_OF_A_FILE
        self._declared += len(names)
        if self._declared > MAX_REGISTERS_OF_A_FILE:
            # Reported once per file.
            if was_within_limit:
                message = f"more than {MAX_REGISTERS_OF_A_FILE} registers in one file"
                self._document.report(offset, "register-count", message, "a thread has at most 255")
            return
        for name in names:
            if is_special(name):
                message = f"{name} is a special register"
                self._document.report(offset, "special-register-declared", message, "choose another name")
            else:
                self._declare(name, declaration, offset)

    def _declare(self, name: str, declaration: Declaration, offset: int) -> None:
        """Add one register, or check that an earlier declaration of the same name agrees. offset: in the source.

        Declarations agree if they have the same type, and the same initial value or none.
        """
        span = self._document.span(offset)
        earlier = self._registers.get(name)
        if earlier and earlier.type != declaration.type:
            self._clash(earlier, Register(name, Type(declaration.type), 0, span))
            return
        initial = declaration.initial
        is_local = SCRATCH in name
        if is_local and initial:
            message = f"{name} begins with a value, but is lost after each snippet"
            self._document.report(offset, "initial-value", message, f"a name without '{SCRATCH}' keeps its value")
            return
        # setdefault: the first value that is given is kept. If it is another than this one, a declaration before this
        # one gave it.
        if initial is not None and self._initial.setdefault(name, initial) != initial and earlier:
            message = f"{name} begins with another value in line {earlier.span.line}"
            self._document.report(offset, "initial-value", message, "one register has one first value")
        # A later declaration adds nothing, unless it is the one with the value.
        elif earlier is None or initial is not None:
            self._registers[name] = Register(name, Type(declaration.type), initial or 0, span, is_local)

    def _clash(self, earlier: Register, later: Register) -> None:
        """Report that one name is declared with two types, at both declarations; at the earlier one only once, if more
        follow."""
        pairs = [(later, earlier)]  # where to report, and the other declaration
        if earlier.name not in self._clashes:
            self._clashes.add(earlier.name)
            pairs.append((earlier, later))
        for register, other in pairs:
            message = f"{register.name} is declared as .{register.type}, and as .{other.type} in line {other.span.line}"
            hint = "all registers of a file are one namespace: rename one"
            self._document.report_span(register.span, "register-clash", message, hint)

    def extend_range(self, name: str, offset: int) -> None:
        """Declare ``%P2``, used at an offset of the source, if ``%P<2>`` declares ``%P0`` and ``%P1``; warn of it.

        The older documentation counts the registers of a range that way. Nothing happens for other names.
        """
        stem = name.rstrip("0123456789")
        declaration = self._ranges.get(stem)
        if not declaration or declaration.number is None or name in self._registers:
            return
        if name == f"{stem}{declaration.number}":
            range_text = f"{declaration.name}<{declaration.number}>"
            hint = f"write {declaration.name}<{declaration.number + 1}>"
            message = f"{range_text} does not declare {name}, which is used; it is added"
            self._document.warn(offset, "register-range", message, hint)
            span = self._document.span(offset)
            self._registers[name] = Register(name, Type(declaration.type), 0, span, SCRATCH in name)

    def add(self, name: str, register_type: Type, span: Span, reserved: set[str]) -> str:
        """Add a register that no snippet declares and return its name, with a number if ``name`` is in use.

        The reader of snippets needs such registers, for example for a special register inside SAVE. One that was added
        before is reused if it has the same type and is not reserved. reserved: registers whose values are still needed;
        the new one joins it.
        """
        number = 1
        candidate = name
        while candidate in reserved or not self._can_add(candidate, register_type):
            number += 1
            candidate = f"{name}_{number}"
        reserved.add(candidate)
        self._registers.setdefault(candidate, Register(candidate, register_type, 0, span))
        self._added[candidate] = register_type
        return candidate

    def _can_add(self, name: str, register_type: Type) -> bool:
        """Return whether ``add`` may give a new register a name: nothing has it yet, or a register that ``add`` made
        with this type."""
        return name not in self._registers or self._added.get(name) == register_type


class Declaration(NamedTuple):
    """``%name``, ``%name = initial`` or ``%name<count>``. start: offset in the snippet.

    number: the count, None without one. initial: the bits of the initial value as an unsigned number, None without one.
    """

    start: int
    name: str
    type: str
    number: int | None
    initial: int | None = None


def split_statements(text: str) -> tuple[list[Statement], list[Fault]]:
    """Split a snippet in PTX into its statements, in order, and report missing semicolons and unclosed comments.

    Where a line begins like a new statement, the one before it ends, even without a semicolon.
    """
    blanked, faults = without_comments(text, _COMMENT_START)
    statements = []
    # A piece has several statements if semicolons between them are missing.
    pieces = blanked.split(";")
    start = 0  # of the piece in the snippet; each next one begins after the semicolon
    for index, piece in enumerate(pieces):
        if not piece.strip():
            start += len(piece) + 1
            continue
        # Where statements without a semicolon end, as offsets in the piece.
        indent = len(piece) - len(piece.lstrip())
        # rstrip: a line break at the end of the piece ends no statement.
        line_breaks = (match.start() for match in _NEXT_STATEMENT.finditer(piece.rstrip()))
        # A line break before the first statement ends none.
        unterminated = [position for position in line_breaks if position > indent]
        is_last = index == len(pieces) - 1
        begin = 0
        for end in (*unterminated, len(piece)):
            part = piece[begin:end]
            # Only a piece as a whole ends at a semicolon, and the last one at the end of the snippet.
            has_semicolon = end == len(piece) and not is_last
            # A line with a comment of TOML is reported once, as no instruction.
            if not has_semicolon and not part.lstrip().startswith("#"):
                place = start + begin + len(part.rstrip())
                faults.append(Fault(place, "no-semicolon", "no ';' after the statement", "end it with ';'"))
            if part.strip():
                statements.append(Statement(start + begin + len(part) - len(part.lstrip()), part.strip()))
            begin = end
        start += len(piece) + 1
    return statements, faults


def parse_declaration(statement: Statement) -> tuple[list[Declaration], list[Fault]]:
    """Parse a ``.reg`` statement, such as ``.reg .u64 %start, %count = 1;``, and return what it declares."""
    match = _REG.fullmatch(statement.text)
    if not match:
        return [], [Fault(statement.start, "declaration", "cannot read the declaration", "write '.reg .b64 %name;'")]
    type_name = match["type"].removeprefix(".")
    if type_name not in REGISTER_TYPES:
        hint = "use " + ", ".join(f".{name}" for name in REGISTER_TYPES)
        message = f"registers have no type '.{type_name}' in a probe"
        return [], [Fault(statement.start + match.start("type"), "declared-type", message, hint)]
    declarations = []
    faults = []
    for start, word in list_items(match["declarators"], statement.start + match.start("declarators")):
        declaration, declaration_faults = _parse_declarator(start, word, type_name)
        faults += declaration_faults
        if declaration is not None:
            declarations.append(declaration)
    return declarations, faults


def _parse_declarator(start: int, word: str, type_name: str) -> tuple[Declaration | None, list[Fault]]:
    """Parse one item of a ``.reg`` statement: ``%name``, ``%name<count>`` or ``%name = initial``.

    start: offset of the word in the snippet. type_name: that the statement declares. With an invalid initial value
    there are both a declaration and a fault, so that uses of the register are not reported too.
    """
    match = _REG_NAME.fullmatch(" ".join(word.split()))
    if not match:
        hint = "names begin with '%', such as %elapsed"
        return None, [Fault(start, "register-name", f"'{word}' is no register name", hint)]
    name, count_digits, initial_text = match.groups()
    if len(name) > MAX_REGISTER_NAME:
        hint = f"names have at most {MAX_REGISTER_NAME} characters"
        return None, [Fault(start, "register-name", f"a register name of {len(name)} characters", hint)]
    if count_digits and not 0 < int(count_digits) <= MAX_REGISTERS:
        message = f"'{word}' does not declare 1 to {MAX_REGISTERS} registers"
        return None, [Fault(start, "register-count", message, f"write a number from 1 on, such as {name}<4>")]
    count = int(count_digits) if count_digits else None
    initial = None
    faults = []
    if initial_text is not None:
        after_sign = word.partition("=")[2]
        place = start + len(word) - len(after_sign.lstrip())
        if count is not None:
            hint = "declare each that has a first value by its own name"
            faults.append(Fault(place, "initial-value", f"one value for {count} registers", hint))
        else:
            initial = initial_bits(type_name, initial_text)
            if initial is None:
                message = f"'{initial_text}' is no value of a .{type_name} register"
                faults.append(Fault(place, "initial-value", message, _INITIAL_HINTS[type_name[0]]))
    return Declaration(start, name, type_name, count, initial), faults


def initial_bits(type_name: str, word: str) -> int | None:
    """Return the bits of a register's initial value as an unsigned number; None if ``word`` is no value of its type.

    Integers are decimal, ``0x`` or ``0b``, with an optional sign. For ``f32`` and ``f64`` the value is decimal, or its
    bits as ``0f3F800000``. For ``f16`` and ``f16x2`` it is the bits, as an integer.
    """
    if type_name in ("f32", "f64"):
        return _float_bits(type_name, word)
    # Longer integers fit no type, and Python does not convert thousands of digits.
    if not _INTEGER.fullmatch(word) or len(word) > _MAX_INTEGER_LENGTH:
        return None
    value = int(word, 0)  # 0: with its prefix
    bits = bits_of(type_name)
    if type_name == "pred":
        return value if value in (0, 1) else None
    if not literal_fits(bits, signed=type_name.startswith("s"), text=word, value=value):
        return None
    return value % (1 << bits)  # two's complement of a negative value


def _float_bits(type_name: str, word: str) -> int | None:
    """Return the IEEE 754 bits of an ``f32`` or ``f64`` literal, decimal or ``0f3F800000``; None if it is none."""
    pack_format, digits, prefix = (">f", 8, "f") if type_name == "f32" else (">d", 16, "d")
    if re.fullmatch(rf"0[{prefix}{prefix.upper()}][0-9a-fA-F]{{{digits}}}", word):
        return int(word[2:], 16)
    if not _DECIMAL.fullmatch(word):
        return None
    try:
        return int.from_bytes(struct.pack(pack_format, float(word)), "big")
    except OverflowError:
        return None  # a number above the greatest float


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
        """Return whether a pattern's opcode is one that all lanes of a warp execute together."""
        return pattern.opcode[0] in _OF_WHOLE_WARPS

    def is_reserved(self, register: str) -> bool:
        """Return whether a name is that of a special register, which probes cannot declare."""
        return is_special(register)

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        """Return the type that a pattern says its operands have: f32 of ``ld.global.f32``; None of ``ld.global``."""
        named = [_TYPES[part] for part in pattern.opcode[1:] if part in _TYPES and not part.startswith("u")]
        # A conversion has two.
        return named[0] if len(named) == 1 and (named[0].bits >= 32 or named[0].is_float) else None

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        """Return by operand the type that a pattern says it has: s8 of ``ld.global.s8``, f32 of ``add.f32``, none of
        ``add.f16``.
        """
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
        """Verify the snippets and tracepoints of a file in TOML; return the probes, None if one is wrong, and all
        diagnostics.
        """
        from neutrino.ptx.snippets.verifier import verify

        return verify(written)

    def verify_draft(self, draft: DraftProbes) -> list[Diagnostic]:
        """Return the faults of probes in Python that only PTX decides, such as unknown opcodes; [] if there are none.
        """
        from neutrino.ptx.snippets.verifier import verify_draft

        return verify_draft(draft)

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Return the set with its typed statements written as PTX."""
        from neutrino.ptx.snippets.lowering import lower

        return lower(probes)

    def device(self, arch: str) -> PtxVerifier:
        """Return what a device can do: all that PTX has, which its driver compiles for it."""
        return self

    def device_faults(self, written: WrittenProbes, probes: ProbeSet, arch: str) -> list[Diagnostic]:
        """Return none: which PTX an architecture has depends on the kernel's own ``.target``."""
        return []


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
        """Return a reader for the snippets (probes' code) of one file in PTX."""
        return PtxSnippets(document)

    def register_note(self, registers: Sequence[Register]) -> str:
        """Return nothing: snippets declare their registers."""
        return ""

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        """Yield the text of a snippet, line by line; registers of one type that are neighbors share a ``.reg``
        statement.
        """
        for register_type, group in groupby(registers, key=lambda register: register.type):
            words = [register.name + _initial(register) for register in group]
            for start in range(0, len(words), _MAX_PER_DECLARATION):
                yield f".reg .{register_type} {', '.join(words[start : start + _MAX_PER_DECLARATION])};"
        for statement in statements:
            yield f"{assembly_text(statement) if isinstance(statement, Assembly) else _save(statement)};"


def _save(save: Save) -> str:
    """Return the text of a SAVE statement of a probe, without its semicolon."""
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
