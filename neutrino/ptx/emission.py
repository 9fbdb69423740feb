"""What probes turn into: instructions on private registers, stores into records, sums over a warp.

Inserted code never branches. It reads the probe block from the kernel's last parameter, and takes slot
numbers anew from the special registers at each save, so that no register but the probes' own lives through
the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.probing.layout import (
    BLOCK_DYNAMIC_CAP,
    BLOCK_HEADER,
    BLOCK_PER_MAP,
    BLOCK_PER_VARIABLE,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
    LANES,
    has_counts,
)
from neutrino.probing.model import DYNAMIC_CAP, Field, Level, Map, MapKind, ProbeSet, Save, ScalarType, Snippet
from neutrino.probing.registers import REGISTER_WORD
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.end_sums import EndSums, Word, value_of
from neutrino.ptx.instruction import split_operands
from neutrino.ptx.module import TYPE_BYTES
from neutrino.ptx.snippet_forms import hidden_arithmetic, misfit, need, reads_special
from neutrino.ptx.snippet_helpers import HELPER_WORD
from neutrino.ptx.tallies import Fork, Form, Part, Row, Tallies, plan_tallies

_DECIMAL = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_GUARDED = re.compile(r"\s*@\s*(?P<negated>!)?\s*(?P<register>%[\w$]+)\s+", re.ASCII)
_OPCODE = re.compile(r"\s*(?:@\s*!?\s*%[\w$]+\s+)?(?P<opcode>[a-z]\w*(?:\.[\w:]+)*)\s*", re.ASCII)
_SCRATCH_LETTER = {"b16": "h", "b32": "w", "b64": "d", "pred": "q"}

_FLOATING = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64", "f32x2"})

# PTX ISA, "Floating-Point Constants": how the exact ones begin. They are no operands of moves of bits.
_EXACT_FLOAT = {"0f": "f32", "0d": "f64"}

# The machine instruction that an arithmetic PTX instruction becomes, by its opcode and type.
_MACHINE_VERB = {"add": "ADD", "sub": "ADD", "mul": "MUL", "fma": "FMA", "mad": "FMA"}
_MACHINE_TYPE = {
    "f32": ("F", ""),
    "f64": ("D", ""),
    "f16": ("H", "2"),
    "f16x2": ("H", "2"),
    "bf16": ("H", "2"),
    "bf16x2": ("H", "2"),
    "f32x2": ("F", "2"),
}


def machine_arithmetic(opcode: str) -> tuple[str, ...]:
    """The floating-point sums, products and fused forms (``FMUL``, ``HADD2`` …) that ptxas makes of an instruction."""
    parts = opcode.split(".")
    verb = _MACHINE_VERB.get(parts[0])
    kind = _MACHINE_TYPE.get(parts[-1])
    return (kind[0] + verb + kind[1],) if verb and kind else hidden_arithmetic(opcode)


def bits(register_type: str) -> int:
    """Bits of a register type without its dot; 0 for ``pred`` and for what is no scalar."""
    return TYPE_BYTES.get(register_type, 0) * 8


class UnsupportedError(Exception):
    """A twin cannot do what a probe asks for in this kernel; the message says what."""


@dataclass(frozen=True)
class Value:
    """An operand as PTX text. type: its register type, None for an immediate."""

    text: str
    type: str | None


@dataclass(frozen=True)
class Guard:
    """The predicate register under which inserted code counts, and whether it is negated."""

    register: str
    negated: bool

    @property
    def prefix(self) -> str:
        """``@%p `` or ``@!%p ``."""
        return f"@{'!' if self.negated else ''}{self.register} "


Resolver = Callable[[str, str | None], Value]
"""(helper, element x/y/z/w or None) → its value at the site; raises UnsupportedError where it has none."""


def _no_helpers(helper: str, element: str | None) -> Value:
    raise UnsupportedError(f"{helper} has no meaning at the kernel's entry and ends")


@dataclass(frozen=True)
class Kept:
    """A register that lives through the kernel. type: without its dot; initial: its first value, as an operand.

    move: the type that ``mov`` takes for it.
    """

    name: str
    type: str
    initial: str
    move: str

    @property
    def declaration(self) -> str:
        """Its ``.reg`` directive."""
        return f".reg .{self.type} {self.name};"


class Scratch:
    """Names of private registers. What is taken is handed out again after ``release(mark)``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._next = dict.fromkeys(_SCRATCH_LETTER, 0)
        self._most = dict.fromkeys(_SCRATCH_LETTER, 0)

    def take(self, kind: str) -> str:
        """A register of type b16, b32, b64 or pred."""
        if kind not in self._next:
            raise UnsupportedError(f"a .{kind} register cannot be copied")
        number = self._next[kind]
        self._next[kind] = number + 1
        self._most[kind] = max(self._most[kind], number + 1)
        return f"{self._prefix}{_SCRATCH_LETTER[kind]}{number}"

    def mark(self) -> dict[str, int]:
        """What is taken now."""
        return dict(self._next)

    def release(self, mark: dict[str, int]) -> None:
        """Hand out again what was taken since the mark."""
        self._next = dict(mark)

    def declarations(self) -> list[str]:
        """``.reg`` directives for all that was ever taken."""
        return [
            f".reg .{kind} {self._prefix}{_SCRATCH_LETTER[kind]}<{most}>;"
            for kind, most in self._most.items()
            if most
        ]


@dataclass
class Code:
    """Inserted instructions. lines: free of predicated memory accesses; stores: the predicated stores behind
    them."""

    lines: list[str]
    stores: list[str]

    @property
    def all(self) -> list[str]:
        """Everything, in order."""
        return self.lines + self.stores


# Levels from few threads to all.
_WIDER = {Level.BLOCK: (Level.WARP, Level.THREAD), Level.WARP: (Level.THREAD,), Level.THREAD: ()}


@dataclass(frozen=True)
class _Slot:
    """index, lane: 32-bit registers; inside: predicate, this thread has a slot in the launch's regions.

    index: of the warp in the grid, at block level of the block.
    """

    index: str
    lane: str
    inside: str


@dataclass(frozen=True)
class _Context:
    """One snippet at one site: its code so far, slots already computed for it, its guard, whether stores
    wait, whether the thread ends and what is added can wait for that."""

    code: Code
    slots: dict[Level, _Slot]
    guard: Guard | None
    waits: bool
    ending: bool


class Emission:
    """Writes the inserted code of one kernel.

    prefix: starts every private register and occurs nowhere in the module. block: name of the probe block's
    parameter. Raises UnsupportedError for what cannot be written.

    kernel: for the body of a function that a kernel calls, the kernel's own emission; block is then the register
    that holds the address of its state, which begins as the probe block does (``functions.py``).
    """

    def __init__(
        self, probes: ProbeSet, prefix: str, block: str, architecture: int, kernel: Emission | None = None
    ) -> None:
        self._probes = probes
        self._prefix = prefix
        self._block = block
        self._space = "param" if kernel is None else "local"
        self._architecture = architecture
        self._index = {entry.name: index for index, entry in enumerate(probes.maps)}
        self._types = {register.name: register.type for register in probes.registers}
        self._used: set[str] = set()
        self._written: dict[Level, set[str]] = kernel._written if kernel else {level: set() for level in Level}
        self._named: dict[Level, set[str]] = kernel._named if kernel else {level: set() for level in Level}
        self._sums: dict[tuple[int, int], str] = {}
        self._counters: dict[int, str] = {}
        # Of the kernel and all its functions.
        self._all_sums: dict[tuple[int, int], str] = kernel._all_sums if kernel else {}
        self._all_counters: dict[int, str] = kernel._all_counters if kernel else {}
        # What runs of sites add to, in place of registers and sums; None where each adds for itself.
        self._tallies: Tallies | None = None
        # What snippets at the ends add to sums, where it is told by tallies, and which registers hold theirs already.
        self._ending: dict[tuple[int, int], list[Form]] = {}
        self._settled: set[str] = set()
        self._variables: set[int] = set()
        self._for_functions: list[Kept] = []
        self.changed: set[str] = set()
        self.block_reads: dict[int, str] = {}
        self._products: list[tuple[str, str]] = []
        self.scratch = Scratch(f"{prefix}t")
        self.arithmetic: dict[str, int] = {}
        # The ``.version`` that the snippets need.
        self.version = (0, 0)

    def note_snippet(self, snippet: Snippet, level: Level) -> None:
        """Tell, before any code is written, that the kernel will hold this snippet.

        A register that no snippet of the kernel writes keeps its initial value, so that a sum over it is
        known. One that a snippet at warp or block level writes and one at a wider level names has to stay what
        it is in the other lanes. Raises UnsupportedError where the kernel's architecture lacks an instruction.
        """
        self._written[level] |= _written_by(snippet)
        for statement in snippet.statements:
            if isinstance(statement, Save):
                self._named[level].update(statement.operands)
            else:
                self._named[level].update(REGISTER_WORD.findall(statement.text))
                needed = need(statement.text)
                if needed is not None:
                    version, architecture = needed
                    if self._architecture < architecture:
                        raise UnsupportedError(
                            f"{statement.text!r} of a probe needs sm_{architecture}, the kernel is for "
                            f"sm_{self._architecture}"
                        )
                    self.version = max(self.version, version)

    def variable(self, index: int) -> str:
        """The register that holds the address of the index-th module variable, from entry on."""
        self._variables.add(index)
        return f"{self._prefix}v{index}"

    def product_copy(self, kind: str) -> str:
        """A register of its own for a copy of a product of that type."""
        name = f"{self._prefix}m{len(self._products)}"
        self._products.append((name, f"b{bits(kind)}"))
        return name

    def count_arithmetic(self, opcode: str) -> None:
        """Count one floating-point instruction of ours for the comparison of machine code."""
        for mnemonic in machine_arithmetic(opcode):
            self.arithmetic[mnemonic] = self.arithmetic.get(mnemonic, 0) + 1

    def snippet(
        self,
        snippet: Snippet,
        resolve: Resolver = _no_helpers,
        guard: Guard | None = None,
        *,
        level: Level,
        waits: bool = False,
        ending: bool = False,
    ) -> Code:
        """One side of one probe at one site, for the threads for which the guard holds.

        waits: the stores will be put further down, so that what they read is copied. ending: it is at an end of the
        thread, where ``settle`` came first and ``end`` follows.
        """
        code = Code([], [])
        self.changed |= {self._register(name) for name in _written_by(snippet) if name in self._types}
        slots: dict[Level, _Slot] = {}
        written = _written_by(snippet) if level is not Level.THREAD else set()
        if not all(self._named[wider].isdisjoint(written) for wider in _WIDER[level]):
            slot = self._slot(level, code.lines, slots)
            guard = Guard(self._guarded(slot.inside, guard, code.lines), False)
        context = _Context(code, slots, guard, waits, ending and self._tallies is not None)
        for statement in snippet.statements:
            if isinstance(statement, Save):
                if statement.map.kind is MapKind.SUM:
                    self._add(statement, resolve, context)
                else:
                    values = [self._operand(operand, resolve) for operand in statement.operands]
                    self._store(statement.map, values, context)
            else:
                if not waits:
                    code.lines += code.stores
                    code.stores.clear()
                self._instruction(statement.text, resolve, guard, code.lines)
        return code

    def entry(self) -> tuple[list[str], list[str]]:
        """Declarations, and the instructions that give a kernel's registers their first values. Call it last."""
        declarations = self._declarations()
        first = []
        for kept in (*self.kept, *self._for_functions):
            declarations.append(kept.declaration)
            first.append(f"mov.{kept.move} {kept.name}, {kept.initial};")
        for index in sorted(self._variables):
            declarations.append(f".reg .u64 {self.variable(index)};")
            first.append(self._from_block("u64", self.variable(index), self._variable_offset(index)))
        return declarations, first

    def function_entry(self) -> tuple[list[str], list[str]]:
        """Declarations of a called function, without loads of what is kept, and loads of variables' addresses.

        Call it last.
        """
        declarations = self._declarations() + [kept.declaration for kept in self.kept]
        first = []
        for index in sorted(self._variables):
            declarations.append(f".reg .u64 {self.variable(index)};")
            first.append(self._from_block("u64", self.variable(index), self._variable_offset(index)))
        return declarations, first

    def keep(self, kept: Kept) -> None:
        """Give a register that functions name alone its first value."""
        self._for_functions.append(kept)

    def copy_block(self, words: Mapping[int, str], state: str) -> list[str]:
        """Copies of words of the probe block, by their offsets, to the same offsets of the state."""
        lines = []
        for offset, kind in sorted(words.items()):
            word = self.scratch.take(f"b{bits(kind)}")
            lines += [self._from_block(kind, word, offset), f"st.local.{kind} [{state}+{offset}], {word};"]
        return lines

    def _declarations(self) -> list[str]:
        return self.scratch.declarations() + [f".reg .{kind} {name};" for name, kind in self._products]

    def _variable_offset(self, index: int) -> int:
        return BLOCK_HEADER + BLOCK_PER_MAP * len(self._probes.maps) + BLOCK_PER_VARIABLE * index

    @property
    def kept(self) -> list[Kept]:
        """Registers that the code names and that live from the kernel's entry to its exit."""
        found = [
            Kept(self._register(entry.name), entry.type, _initial(entry.type, entry.initial), _move_type(entry.type))
            for entry in self._probes.registers
            if entry.name in self._used
        ]
        for (index, number), name in self._sums.items():
            kind = _unsigned(self._probes.maps[index].fields[number])
            found.append(Kept(name, kind, "0", kind))
        found += [Kept(name, "u32", "0", "u32") for name in self._counters.values()]
        for index, counter in enumerate(self._tallies.counters if self._tallies else ()):
            found.append(Kept(self._tally_name(index), f"u{counter.bits}", "0", f"u{counter.bits}"))
        return found

    @property
    def has_end(self) -> bool:
        """Sums or counts have to be stored when a thread ends."""
        tallied = self._tallies is not None and any(isinstance(key, tuple) for key in self._tallies.forms)
        return bool(self._all_sums or self._all_counters or self._ending or tallied)

    @property
    def numbers(self) -> Mapping[str, int]:
        """Of the maps, by name."""
        return self._index

    def may_tally(self, names: Iterable[Hashable], level: Level) -> bool:
        """Whether what is added to these at a level may be tallied: not where others look at lanes that add nothing."""
        wider = [self._named[other] for other in _WIDER[level]]
        return not any(name in found for name in names for found in wider)

    def tally(self, rows: Sequence[Row], forks: Sequence[Fork]) -> None:
        """Keep what these rows come to, once the code at sites is written.

        Their sums are registers of the probes and, by map and number, fields.
        """
        widths: dict[Hashable, int] = {name: bits(kind) for name, kind in self._types.items()}
        for index, entry in enumerate(self._probes.maps):
            widths.update(((index, number), field.type.size * 8) for number, field in enumerate(entry.fields))
        self._tallies = plan_tallies(rows, widths, forks)

    def add_row(self, number: int, guard: Guard | None) -> list[str]:
        """The code of one of the rows, where its run of sites begins."""
        if self._tallies is None:
            return []
        prefix = guard.prefix if guard else ""
        lines = []
        for index, amount in self._tallies.adds[number]:
            name = self._tally_name(index)
            lines.append(f"{prefix}add.u{self._tallies.counters[index].bits} {name}, {name}, {amount};")
        return lines

    def settle(self, snippets: Iterable[Snippet]) -> list[str]:
        """Give the registers that snippets at the ends look at what was added to them; others' sums stay numbers."""
        if self._tallies is None:
            return []
        snippets = tuple(snippets)
        looked_at: set[str] = set()
        for statement in (statement for snippet in snippets for statement in snippet.statements):
            if not isinstance(statement, Save):
                looked_at.update(REGISTER_WORD.findall(statement.text))
                continue
            for field, operand in zip(statement.map.fields, statement.operands, strict=True):
                name = operand.strip()
                if statement.map.kind is not MapKind.SUM or not self._fits(name, field):
                    looked_at.add(name)
        lines: list[str] = []
        for name in sorted(looked_at.intersection(key for key in self._tallies.forms if isinstance(key, str))):
            width = bits(self._types[name])
            value = self._own_value(self._tallies.forms[name], width, lines)
            own = self._rename(name)
            lines.append(f"add.u{width} {own}, {own}, {value};")
            self.changed.add(own)
            self._settled.add(name)
        return lines

    def _fits(self, name: str, field: Field) -> bool:
        """A field takes what was added to a register as it is: neither may wrap where the other does not."""
        form = self._tallies.forms.get(name) if self._tallies else None
        if form is None or bits(self._types[name]) == field.type.size * 8:
            return True
        if form.most is None or self._register(name) in self.changed:
            return False
        initial = self._initial_of(name)
        return initial >= 0 and initial + form.most < 1 << 31

    def _initial_of(self, name: str) -> int:
        return next(entry.initial for entry in self._probes.registers if entry.name == name)

    def _tally_name(self, index: int) -> str:
        return f"{self._prefix}c{index}"

    def _own_value(self, form: Form, width: int, lines: list[str]) -> str:
        counters = self._tallies.counters if self._tallies else ()
        words = [Word(self._tally_name(index), counter.bits) for index, counter in enumerate(counters)]
        return value_of(form, width, words, None, self.scratch.take, lines)

    def end(self) -> list[str]:
        """Counts and sums, to be stored where a thread ends: those of the kernel and its functions so far."""
        self._sums = dict(self._all_sums)
        self._counters = dict(self._all_counters)
        lines: list[str] = []
        slots: dict[Level, _Slot] = {}
        for index, counter in self._counters.items():
            self._store_count(index, counter, lines, slots)
        sums = EndSums(self._probes.maps, self.scratch.take, self._from_block, self._architecture)
        tallies = self._tallies or Tallies((), (), {})
        for index, kept in enumerate(tallies.counters):
            sums.keep(Word(self._tally_name(index), kept.bits))
        for key, forms in self._ending.items():
            for form in forms:
                sums.add(key, form)
        for told, form in tallies.forms.items():
            if isinstance(told, tuple):
                sums.add(told, form)
        for key, name in self._sums.items():
            kind = self._probes.maps[key[0]].fields[key[1]].type
            number = sums.keep(Word(name, kind.size * 8, kind is ScalarType.S64))
            sums.add(key, Form(0, (Part(number, 0, 0, 1, None),)))
        return lines + sums.write()

    def _register(self, name: str) -> str:
        return f"{self._prefix}r_{name[1:]}"

    def _rename(self, text: str) -> str:
        def renamed(match: re.Match[str]) -> str:
            if match[0] not in self._types:
                return match[0]
            self._used.add(match[0])
            return self._register(match[0])

        return REGISTER_WORD.sub(renamed, text)

    def _instruction(self, text: str, resolve: Resolver, guard: Guard | None, lines: list[str]) -> None:
        # Helpers are put in after the renaming: their registers are the program's, whatever they are called.
        pieces = []
        at = 0
        for match in HELPER_WORD.finditer(text):
            value = resolve(match["name"], match["element"])
            fault = misfit(text, match[0], value.type)
            if fault is not None:
                raise UnsupportedError(fault)
            if value.text in SPECIAL_REGISTERS and not reads_special(text):
                name = self.scratch.take(f"b{bits(value.type or '')}")
                lines.append(f"mov.{value.type} {name}, {value.text};")
                value = Value(name, value.type)
            pieces += [self._rename(text[at : match.start()]), value.text]
            at = match.end()
        pieces.append(self._rename(text[at:]))
        line = "".join(pieces).strip()
        if guard is not None:
            own = _GUARDED.match(line)
            if own is None:
                line = guard.prefix + line
            else:
                both = self._both(own["register"], own["negated"] is not None, guard, lines)
                line = f"@{both} " + line[own.end() :]
        opcode = _OPCODE.match(line)
        if opcode is not None:
            self.count_arithmetic(opcode["opcode"])
        lines.append(line + ";")

    def _both(self, register: str, negated: bool, guard: Guard, lines: list[str]) -> str:
        both = self.scratch.take("pred")
        other = self._positive(guard, lines)
        if negated:
            lines.append(f"not.pred {both}, {register};")
            register = both
        lines.append(f"and.pred {both}, {register}, {other};")
        return both

    def _positive(self, guard: Guard, lines: list[str]) -> str:
        if not guard.negated:
            return guard.register
        name = self.scratch.take("pred")
        lines.append(f"not.pred {name}, {guard.register};")
        return name

    def _operand(self, operand: str, resolve: Resolver) -> Value:
        operand = operand.strip()
        helper = HELPER_WORD.fullmatch(operand)
        if helper is not None:
            return resolve(helper["name"], helper["element"])
        if operand in self._types:
            return Value(self._rename(operand), self._types[operand])
        if operand in SPECIAL_REGISTERS:
            return Value(operand, SPECIAL_REGISTERS[operand])
        return Value(operand, None)

    def _converted(self, value: Value, field: Field, lines: list[str]) -> Value:
        """The value in a register of the field's width (at least that, for fields below 32 bits)."""
        wanted = max(field.type.size * 8, 16)
        if value.type is None or value.text in SPECIAL_REGISTERS:
            kind = value.type or _EXACT_FLOAT.get(value.text[:2].lower(), f"b{wanted}")
            name = self.scratch.take(f"b{bits(kind)}")
            lines.append(f"mov.{kind} {name}, {value.text};")
            value = Value(name, kind)
        elif value.type == "pred":
            name = self.scratch.take("b32")
            lines.append(f"selp.u32 {name}, 1, 0, {value.text};")
            value = Value(name, "u32")
        have = bits(value.type or "")
        if have == wanted or (have == 32 and wanted == 16):
            return value
        name = self.scratch.take(f"b{wanted}")
        if field.type is ScalarType.F32 and value.type == "f64":
            lines.append(f"cvt.rn.f32.f64 {name}, {value.text};")
        elif field.type is ScalarType.F64 and value.type == "f32":
            lines.append(f"cvt.f64.f32 {name}, {value.text};")
        elif 0 < have <= 64:
            letter = "s" if field.type.value[0] == "s" else "u"
            lines.append(f"cvt.{letter}{wanted}.{letter}{have} {name}, {self._as_bits(value, lines)};")
        else:
            raise UnsupportedError(f"a value of type .{value.type} cannot be saved as {field.type.value}")
        return Value(name, f"b{wanted}")

    def _copied(self, value: Value, lines: list[str]) -> Value:
        kind = f"b{bits(value.type or '')}"
        name = self.scratch.take(kind)
        lines.append(f"mov.{kind} {name}, {value.text};")
        return Value(name, kind)

    def _as_bits(self, value: Value, lines: list[str]) -> str:
        """The value in a register that integer instructions take: those for floating point are another
        class."""
        return self._copied(value, lines).text if value.type in _FLOATING else value.text

    def _slot(self, level: Level, lines: list[str], slots: dict[Level, _Slot]) -> _Slot:
        """The slot of this thread at the level, and whether it owns one and the launch has room for it."""
        if level not in slots:
            slots[level] = self._block_slot(lines) if level is Level.BLOCK else self._warp_slot(level, lines)
        return slots[level]

    def _warp_slot(self, level: Level, lines: list[str]) -> _Slot:
        warp, lane, a, b, c = (self.scratch.take("b32") for _ in range(5))
        inside = self.scratch.take("pred")
        lines += [
            f"mov.u32 {a}, %tid.z;",
            f"mov.u32 {b}, %ntid.y;",
            f"mov.u32 {c}, %tid.y;",
            f"mad.lo.u32 {a}, {a}, {b}, {c};",
            f"mov.u32 {b}, %ntid.x;",
            f"mov.u32 {c}, %tid.x;",
            f"mad.lo.u32 {lane}, {a}, {b}, {c};",
            *_block_index(a, b, c),
            self._from_block("u32", b, BLOCK_WARPS_PER_BLOCK),
            f"shr.u32 {c}, {lane}, 5;",
            f"mad.lo.u32 {warp}, {a}, {b}, {c};",
            f"and.b32 {lane}, {lane}, {LANES - 1};",
            self._from_block("u32", b, BLOCK_WARP_CAPACITY),
            f"setp.lt.u32 {inside}, {warp}, {b};",
        ]
        if level is Level.WARP:
            lines.append(f"setp.eq.and.u32 {inside}, {lane}, 0, {inside};")
        return _Slot(warp, lane, inside)

    def _block_slot(self, lines: list[str]) -> _Slot:
        block, lane, a, b = (self.scratch.take("b32") for _ in range(4))
        inside = self.scratch.take("pred")
        lines += [
            *_block_index(block, a, b),
            self._from_block("u32", a, BLOCK_WARPS_PER_BLOCK),
            f"mul.lo.u32 {a}, {block}, {a};",
            self._from_block("u32", b, BLOCK_WARP_CAPACITY),
            f"setp.lt.u32 {inside}, {a}, {b};",
            f"mov.u32 {lane}, %tid.x;",
            f"mov.u32 {a}, %tid.y;",
            f"or.b32 {lane}, {lane}, {a};",
            f"mov.u32 {a}, %tid.z;",
            f"or.b32 {lane}, {lane}, {a};",
            f"setp.eq.and.u32 {inside}, {lane}, 0, {inside};",
        ]
        return _Slot(block, lane, inside)

    def _from_block(self, kind: str, register: str, offset: int) -> str:
        """A load from the probe block."""
        self.block_reads[offset] = kind
        return f"ld.{self._space}.{kind} {register}, [{self._block}{f'+{offset}' if offset else ''}];"

    def _guarded(self, inside: str, guard: Guard | None, lines: list[str]) -> str:
        if guard is None:
            return inside
        both = self.scratch.take("pred")
        lines.append(f"and.pred {both}, {inside}, {self._positive(guard, lines)};")
        return both

    def _scaled(self, base: str, index: str, scale: int, lines: list[str]) -> None:
        """base += index · scale in 64 bits."""
        if scale < 1 << 32:
            lines.append(f"mad.wide.u32 {base}, {index}, {scale}, {base};")
            return
        wide = self.scratch.take("b64")
        lines += [f"cvt.u64.u32 {wide}, {index};", f"mad.lo.u64 {base}, {wide}, {scale}, {base};"]

    def _store(self, target: Map, values: list[Value], context: _Context) -> None:
        lines = context.code.lines
        index = self._index[target.name]
        slot = self._slot(target.level, lines, context.slots)
        takes_part = self._guarded(slot.inside, context.guard, lines)
        lanes = LANES if target.level is Level.THREAD else 1
        base = self.scratch.take("b64")
        lines.append(self._from_block("u64", base, BLOCK_HEADER + BLOCK_PER_MAP * index))
        cap = str(target.cap)
        if target.cap == DYNAMIC_CAP:
            cap, first = self.scratch.take("b32"), self.scratch.take("b64")
            lines += [
                self._from_block("u32", cap, BLOCK_DYNAMIC_CAP),
                f"mul.wide.u32 {first}, {slot.index}, {cap};",
                f"mad.lo.u64 {base}, {first}, {lanes * target.size}, {base};",
            ]
        else:
            self._scaled(base, slot.index, target.cap * lanes * target.size, lines)
        if lanes > 1:
            self._scaled(base, slot.lane, target.size, lines)
        stores = takes_part
        if has_counts(target):
            counter = self._all_counters.setdefault(index, f"{self._prefix}k{index}")
            self._counters[index] = counter
            self.changed.add(counter)
            stores = self.scratch.take("pred")
            lines.append(f"setp.lt.and.u32 {stores}, {counter}, {cap}, {takes_part};")
            self._scaled(base, counter, lanes * target.size, lines)
            lines.append(f"@{takes_part} add.u32 {counter}, {counter}, 1;")
        for where, kind, text in self._packed(target, values, lines, context.waits):
            at = f"[{base}+{where}]" if where else f"[{base}]"
            context.code.stores.append(f"@{stores} st.global.{kind} {at}, {text};")

    def _packed(
        self, target: Map, values: list[Value], lines: list[str], waits: bool
    ) -> list[tuple[int, str, str]]:
        """The record as few stores: (offset, type, operand), 32-bit fields paired to 64 bits, those to
        128."""
        single: list[tuple[int, str, str]] = []
        for field, value in zip(target.fields, values, strict=True):
            converted = self._converted(value, field, lines)
            # A vector's elements are of one class: floating-point registers do not mix with others.
            if waits or converted.type in _FLOATING:
                converted = self._copied(converted, lines)
            single.append((field.offset, f"b{field.type.size * 8}", converted.text))
        paired: list[tuple[int, str, str]] = []
        for offset, kind, text in single:
            if (
                kind == "b32"
                and offset % 8 == 4
                and target.size % 8 == 0
                and paired
                and paired[-1][:2] == (offset - 4, "b32")
            ):
                wide = self.scratch.take("b64")
                lines.append(f"mov.b64 {wide}, {{{paired[-1][2]}, {text}}};")
                paired[-1] = (offset - 4, "b64", wide)
            else:
                paired.append((offset, kind, text))
        stores: list[tuple[int, str, str]] = []
        for offset, kind, text in paired:
            if (
                kind == "b64"
                and offset % 16 == 8
                and target.size % 16 == 0
                and stores
                and stores[-1][:2] == (offset - 8, "b64")
            ):
                stores[-1] = (offset - 8, "v2.b64", f"{{{stores[-1][2]}, {text}}}")
            else:
                stores.append((offset, kind, text))
        return stores

    def _add(self, save: Save, resolve: Resolver, context: _Context) -> None:
        target = save.map
        lines = context.code.lines
        index = self._index[target.name]
        prefix = None
        for number, (field, operand) in enumerate(zip(target.fields, save.operands, strict=True)):
            if self._is_zero(operand.strip()):
                continue
            if context.ending:
                form = self._told(operand.strip())
                if form is not None:
                    self._ending.setdefault((index, number), []).append(form)
                    if self._register(operand.strip()) not in self.changed:
                        continue
            if prefix is None:
                prefix = context.guard.prefix if context.guard else ""
                if target.level is not Level.THREAD:
                    slot = self._slot(target.level, lines, context.slots)
                    prefix = f"@{self._guarded(slot.inside, context.guard, lines)} "
            value = self._operand(operand, resolve)
            name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
            self._sums[index, number] = name
            self.changed.add(name)
            # Constants need no register.
            plain = value.type is None and _DECIMAL.fullmatch(value.text)
            text = value.text if plain else self._as_bits(self._converted(value, field, lines), lines)
            kind = _unsigned(field)
            lines.append(f"{prefix}add.{kind} {name}, {name}, {text};")

    def _told(self, operand: str) -> Form | None:
        """What of an operand tallies tell; all of it if nothing else changes the register."""
        if _DECIMAL.fullmatch(operand):
            return Form(int(operand))
        form = self._tallies.forms.get(operand) if self._tallies else None
        if form is None or operand in self._settled:
            return None
        if self._register(operand) in self.changed:
            return form
        return replace(form, constant=(form.constant + self._initial_of(operand)) % (1 << 64))

    def _is_zero(self, operand: str) -> bool:
        if operand == "0":
            return True
        register = next((entry for entry in self._probes.registers if entry.name == operand), None)
        written = any(operand in names for names in self._written.values())
        return register is not None and not written and register.initial == 0

    def _store_count(self, index: int, counter: str, lines: list[str], slots: dict[Level, _Slot]) -> None:
        target = self._probes.maps[index]
        slot = self._slot(target.level, lines, slots)
        base = self.scratch.take("b64")
        lines.append(self._from_block("u64", base, BLOCK_HEADER + BLOCK_PER_MAP * index + 8))
        lanes = LANES if target.level is Level.THREAD else 1
        self._scaled(base, slot.index, 4 * lanes, lines)
        if lanes > 1:
            self._scaled(base, slot.lane, 4, lines)
        lines.append(f"@{slot.inside} st.global.u32 [{base}], {counter};")

def _block_index(index: str, a: str, b: str) -> list[str]:
    """The block's linear index in the grid; a and b are for other numbers meanwhile."""
    return [
        f"mov.u32 {index}, %ctaid.z;",
        f"mov.u32 {a}, %nctaid.y;",
        f"mov.u32 {b}, %ctaid.y;",
        f"mad.lo.u32 {index}, {index}, {a}, {b};",
        f"mov.u32 {a}, %nctaid.x;",
        f"mov.u32 {b}, %ctaid.x;",
        f"mad.lo.u32 {index}, {index}, {a}, {b};",
    ]


def _written_by(snippet: Snippet) -> set[str]:
    """Names in the destinations of a snippet's instructions."""
    written: set[str] = set()
    for statement in snippet.statements:
        if not isinstance(statement, Save):
            operands = split_operands(_OPCODE.sub("", statement.text, count=1))
            written.update(REGISTER_WORD.findall(operands[0]) if operands else ())
    return written


def _unsigned(field: Field) -> str:
    return f"u{field.type.size * 8}"


def _move_type(register_type: str) -> str:
    """The type that ``mov`` takes for a register: it has none for 16-bit floats and packed pairs."""
    if register_type in {"pred", "f32", "f64"}:
        return register_type
    return f"b{bits(register_type)}"


def _initial(register_type: str, value: int) -> str:
    if register_type == "f32":
        return f"0f{value:08X}"
    if register_type == "f64":
        return f"0d{value:016X}"
    return str(value)
