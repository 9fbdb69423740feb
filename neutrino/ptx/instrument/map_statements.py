"""The statements of map types as PTX: those that only compute; and what saves to a map have in common, remembered.

Kernels have many saves to a map whose statements, and whose instructions but for registers, are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TypeVar

from neutrino.ir.memory import (
    Apart,
    Below,
    Block,
    Branch,
    CompareAnd,
    Here,
    IsAbsent,
    Kept,
    Leave,
    MapStatement,
    Meet,
    OfLane,
    OverLanes,
    When,
)
from neutrino.ir.operands import Constant, Register, SiteOperand, Special, Value
from neutrino.ir.statements import Compare, Convert, Operation, Operator, Reduction, Reinterpret, Relation, Select
from neutrino.ir.types import Type
from neutrino.maps.builder import Lanes, SavedValues
from neutrino.maps.declaration import Map
from neutrino.ptx.instrument.lanes_together import LaneTree
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.instrument.templates import Template
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.snippets.writer import SPECIAL, integer_literal, operand_text
from neutrino.ptx.text.inserted import Label, Lines, Scope, op, vector


class Lowering:
    """Translates the statements of a map's type (IR) to PTX instructions, which it appends to lines.

    take: gives a new register of a type (``Take``). kept: gives that of one that the map keeps. label: begins labels.
    """

    def __init__(self, take: Take, kept: Callable[[Kept], str], lines: Lines, label: str) -> None:
        """Set up a translator of a map type's statements (IR) to PTX.

        take: gives a new register of a type. kept: gives that of a value that the map keeps. lines: to which the PTX is
        appended. label: begins labels.
        """
        self._take = take
        self._kept = kept
        self._lines = lines
        self._label = label
        self._branches = 0
        # By the name of a statements' local register, that of PTX; "" of a predicate that is true in all threads.
        self._names: dict[str, str] = {}
        # By the names of the blocks that statements are in, the labels at their ends.
        self._ends: dict[str, str] = {}
        # By the name of a predicate that is not written yet, what it is.
        self._conjunctions: dict[str, Operation] = {}

    def take_from(self, take: Take, texts: dict[str, str]) -> None:
        """Have ``take`` give new PTX registers from now on. texts: those of statements' registers that were written
        before, by name."""
        self._take = take
        self._names = texts

    @property
    def texts(self) -> Mapping[str, str]:
        """The PTX registers that the statements' registers (in the IR) have got, by the names of these."""
        return self._names

    def write(self, statements: Iterable[MapStatement]) -> None:
        """Append the PTX for statements of a map's type (IR), in their order."""
        for statement in statements:
            self._write(statement)

    def _write(self, statement: MapStatement) -> None:
        """Append the PTX for one statement of the IR; those about memory or saves are left to derived classes."""
        if isinstance(statement, Operation):
            self._operation(statement, None)
        elif isinstance(statement, When):
            for change in statement.then:
                self._operation(change, self._text(statement.condition))
        elif isinstance(statement, Compare):
            kind, relation = _type_of(statement.left), statement.relation
            # "neu" is true for a NaN, "ne" would be false.
            word = "neu" if kind.is_float and relation is Relation.NE else relation.value
            opcode = f"setp.{word}.{_kind(statement.left)}"
            self._compute(opcode, statement.destination, statement.left, statement.right)
        elif isinstance(statement, CompareAnd):
            # "" is a predicate that is true in all threads.
            operands = [self._text(value) for value in (statement.left, statement.right, statement.also)]
            joined, operands = (".and", operands) if operands[-1] else ("", operands[:-1])
            opcode = f"setp.{statement.relation.value}{joined}.{_kind(statement.left)}"
            self._set(statement.destination, opcode, *operands)
        elif isinstance(statement, Select):
            opcode = f"selp.b{_bits(statement.destination.type)}"
            self._compute(opcode, statement.destination, statement.then, statement.otherwise, statement.condition)
        elif isinstance(statement, Convert):
            to, source = statement.destination.type, statement.source
            if _type_of(source) is Type.LANES and to is Type.U32:
                self._names[statement.destination.name] = self._text(source)
            else:
                opcode = f"cvt{_rounding(to, _type_of(source))}.{to}.{_kind(source)}"
                self._compute(opcode, statement.destination, source)
        elif isinstance(statement, Reinterpret):
            # Registers of PTX have a width alone.
            self._names[statement.destination.name] = self._text(statement.source)
        elif isinstance(statement, Here):
            self._compute("activemask.b32", statement.destination)
        elif isinstance(statement, OverLanes):
            self._reduce(statement)
        elif isinstance(statement, IsAbsent):
            self._is_absent(statement)
        elif isinstance(statement, Below):
            lower = self._target(statement.destination)
            self._emit("mov.u32", lower, "%lanemask_lt")
            self._emit("and.b32", lower, lower, self._text(statement.lanes))
        elif isinstance(statement, OfLane):
            self._shuffle(statement)
        elif isinstance(statement, Block):
            self._write_block(statement)
        elif isinstance(statement, Leave):
            self._leave(statement)
        elif isinstance(statement, Meet):
            self._emit("bar.warp.sync", self._text(statement.lanes))
        elif isinstance(statement, Branch):
            self._branch(statement)
        elif isinstance(statement, Apart):
            self._apart(statement)
        else:
            self._write_special(statement)

    def _reduce(self, statement: OverLanes) -> None:
        """Append the PTX that reduces a value (sum, minimum, vote …) over a set of lanes."""
        source, lanes, target = self._text(statement.source), self._text(statement.lanes), statement.destination
        reduction, bits = statement.reduction, statement.source.type.bits
        if reduction in _VOTES:
            self._set(target, _VOTES[reduction], source, lanes)
        elif reduction is Reduction.MATCH:
            self._set(target, f"match.any.sync.b{bits}", source, lanes)
        elif bits == 32 == target.type.bits and reduction in _REDUCTIONS:
            self._set(target, f"redux.sync.{_REDUCTIONS[reduction]}.u32", source, lanes)
        elif reduction is Reduction.SUM and target.type is Type.F64:
            tree = LaneTree(lanes, lanes, self._take, self._lines)
            self._names[target.name] = tree.add_up(source)
        elif reduction is Reduction.SUM and target.type.bits == 64:
            self._names[target.name] = self._sum(source, bits, lanes)
        elif reduction in {Reduction.MIN, Reduction.MAX} and bits == 64:
            self._names[target.name] = self._extreme(_REDUCTIONS[reduction], source, lanes)
        else:
            raise TypeError(f"{reduction} of {statement.source.type} over lanes")

    def _sum(self, source: str, bits: int, lanes: str) -> str:
        """Return a register with the sum of a value over a set of lanes, modulo 2 to the 64.

        ``redux`` adds 32 bits: it adds parts of the value, whose sums over 32 lanes fit, and these are put together.
        """
        total, size = "", _PART if bits == 64 else bits // 2
        parts = []
        for shift in range(0, bits, size):
            part = self._computed(f"shr.u{bits}", bits, source, str(shift)) if shift else source
            if bits == 64:
                part = self._computed("cvt.u32.u64", 32, part)
            if shift + size < bits:
                part = self._computed("and.b32", 32, part, str((1 << size) - 1))
            parts.append((part, shift))
        for part, shift in [(self._computed("redux.sync.add.u32", 32, part, lanes), shift) for part, shift in parts]:
            if not total:
                total = self._computed("cvt.u64.u32", 64, part)
            elif shift < 32:
                total = self._computed("mad.wide.u32", 64, part, str(1 << shift), total)
            else:
                wide = self._computed("shl.b64", 64, self._computed("cvt.u64.u32", 64, part), str(shift))
                total = self._computed("add.u64", 64, total, wide)
        return total

    def _extreme(self, operation: str, source: str, lanes: str) -> str:
        """Return a register with the least or the greatest value over a set of lanes, of unsigned values of 64 bits.

        That is found for the upper halves, then for the lower halves of the lanes with that upper half. operation:
        ``min`` or ``max``.
        """
        low, high, is_upper, whole = self._take("b32"), self._take("b32"), self._take("pred"), self._take("b64")
        self._emit("mov.b64", f"{{{low}, {high}}}", source)
        upper = self._computed(f"redux.sync.{operation}.u32", 32, high, lanes)
        self._emit("setp.eq.u32", is_upper, high, upper)
        self._emit("selp.b32", low, low, "-1" if operation == "min" else "0", is_upper)
        lower = self._computed(f"redux.sync.{operation}.u32", 32, low, lanes)
        self._emit("mov.b64", whole, f"{{{lower}, {upper}}}")
        return whole

    def _computed(self, opcode: str, bits: int, *operands: str) -> str:
        """Append an instruction whose result goes to a new register, which is returned. bits: the register's width."""
        target = self._take(f"b{bits}")
        self._emit(opcode, target, *operands)
        return target

    def _is_absent(self, statement: IsAbsent) -> None:
        """Append the test whether a lane is not in a set of lanes, given as a mask."""
        lanes, bit = self._text(statement.lanes), self._take("b32")
        if isinstance(statement.lane, Constant):
            self._emit("and.b32", bit, lanes, str(1 << statement.lane.bits))
        else:
            self._emit("shr.u32", bit, lanes, self._text(statement.lane))
            self._emit("and.b32", bit, bit, "1")
        self._set(statement.destination, "setp.eq.u32", bit, "0")

    def _branch_parts(self, condition: Register) -> tuple[str, str]:
        """Return the predicate register for a forward branch, and what the names of the branch's labels begin with.

        The labels are local to braces, so that the text can be inserted again elsewhere.
        """
        # What is not written yet must not be written in one of the pieces alone.
        self.write_pending_predicates()
        self._branches += 1
        return self._text(condition), f"{self._label}_{self._branches}"

    def write_pending_predicates(self) -> None:
        """Append the code of all predicates (conjunctions) whose code was put off until they are read."""
        for name in list(self._conjunctions):
            if name in self._conjunctions:
                self._conjoin(self._conjunctions.pop(name))

    def _write_inner(self, statements: Iterable[MapStatement]) -> None:
        """Append the code of statements that not all threads reach which reach those around them."""
        self.write(statements)

    def _write_block(self, statement: Block) -> None:
        """Append code with a label after it."""
        self.write_pending_predicates()
        self._branches += 1
        end = self._ends[statement.name] = f"{self._label}_{self._branches}_{statement.name}"
        self._lines.append(Scope.OPEN)
        self._write_inner(statement.then)
        self._lines += [Label(end), Scope.CLOSE]

    def _leave(self, statement: Leave) -> None:
        """Append a branch to the end of a block."""
        self.write_pending_predicates()
        # With a predicate ``.uni`` costs registers: ptxas knows better.
        opcode = "bra.uni" if statement.when is None else "bra"
        when = None if statement.when is None else self._text(statement.when)
        self._emit(opcode, self._ends[statement.name], when=f"!{when}" if statement.is_inverted else when)

    def _shuffle(self, statement: OfLane) -> None:
        """Append what brings a value from another lane. A shuffle moves 32 bits."""
        source, lane, lanes = (self._text(value) for value in (statement.source, statement.lane, statement.lanes))
        if statement.source.type.bits == 32:
            self._set(statement.destination, "shfl.sync.idx.b32", source, lane, "31", lanes)
            return
        low, high = self._take("b32"), self._take("b32")
        self._emit("mov.b64", vector(low, high), source)
        for word in (low, high):
            self._emit("shfl.sync.idx.b32", word, word, lane, "31", lanes)
        self._set(statement.destination, "mov.b64", vector(low, high))

    def _apart(self, statement: Apart) -> None:
        """Append statements as code that only the threads run for which a predicate is true: the others branch over it.
        """
        condition, label = self._branch_parts(statement.condition)
        self._lines.append(Scope.OPEN)
        self._emit("bra", f"{label}_end", when=f"!{condition}")
        self._write_inner(statement.then)
        self._lines.append(Label(f"{label}_end"))
        if statement.lanes is not None:
            # Together again, as the program had them.
            self._emit("bar.warp.sync", self._text(statement.lanes))
        self._lines.append(Scope.CLOSE)

    def _branch(self, statement: Branch) -> None:
        """Append the PTX of an ``if``: two pieces of code, of which a predicate chooses one by a branch."""
        condition, label = self._branch_parts(statement.condition)
        self._lines.append(Scope.OPEN)
        if statement.otherwise:
            self._emit("bra", f"{label}_then", when=condition)
            self._write_inner(statement.otherwise)
            self._emit("bra", f"{label}_end")
            self._lines.append(Label(f"{label}_then"))
        else:
            self._emit("bra", f"{label}_end", when=f"!{condition}")
        self._write_inner(statement.then)
        self._lines += [Label(f"{label}_end"), Scope.CLOSE]

    def _set(self, destination: Register, opcode: str, *operands: str, when: str | None = None) -> None:
        """Append an instruction whose result goes to the PTX register of ``destination``. operands: as texts."""
        self._emit(opcode, self._target(destination), *operands, when=when)

    def _target(self, destination: Register) -> str:
        """Return the PTX register for a result: that which the IR's register has already, or that the map keeps, or a
        new one."""
        if isinstance(destination, Kept):
            return self._kept(destination)
        target = self._names.get(destination.name)
        if target is None:
            target = self._take("pred" if destination.type is Type.PRED else f"b{_bits(destination.type)}")
            self._names[destination.name] = target
        return target

    def _write_special(self, statement: MapStatement) -> None:
        """Append the PTX for a statement that derived classes know: here it is refused, since only computing ones are
        known."""
        raise TypeError(f"{type(statement).__name__} has no meaning here")

    def _operation(self, statement: Operation, when: str | None) -> None:
        """Append an operation. when: a predicate under which it runs; None for all threads."""
        first, *others = statement.sources
        if statement.operator is Operator.AND and _type_of(first) is Type.PRED:
            # Written where it is read, so that it is kept no longer than it has to.
            self._conjunctions[statement.destination.name] = statement
            return
        if statement.operator is Operator.LOWEST:
            # The highest of the bits in the reverse order, counted from the other end.
            self._set(statement.destination, "bfind.shiftamt.u32", self._computed("brev.b32", 32, self._text(first)))
            return
        kind = _type_of(first)
        bits = f"b{_bits(kind)}" if kind is not Type.PRED else "pred"
        opcode = _OPCODES[statement.operator].format(kind=_kind(first), bits=bits)
        if statement.operator is Operator.MUL_ADD:
            width = "wide" if _bits(statement.destination.type) == 64 else "lo"
            word, addend = "mad", others[1]
            if isinstance(addend, Constant) and not addend.bits:
                # ptxas takes more registers for a sum with 0 than for the product.
                word, others = "mul", others[:1]
            opcode = f"{word}.{width}.{_kind(first)}"
        if isinstance(first, Special):
            opcode = f"mov.{kind}"
        if statement.operator is Operator.NEG and (kind.is_integer or kind is Type.LANES):
            # The same bits, whatever the sign.
            opcode = f"neg.s{_bits(kind)}"
        if kind.is_float and statement.operator in _ROUNDED:
            # Rounded, so that ptxas fuses it with no product of the program.
            opcode = f"{statement.operator.value}.rn.{kind}"
        self._compute(opcode, statement.destination, first, *others, when=when)

    def _conjoin(self, statement: Operation) -> None:
        """Append the code that computes the conjunction of two predicates; none is needed where one is always true
        ("")."""
        texts = [self._text(source) for source in statement.sources]
        if "" in texts:
            # One of them is true in all threads.
            texts.remove("")
            self._names[statement.destination.name] = texts[0]
        else:
            self._compute("and.pred", statement.destination, *statement.sources)

    def _compute(self, opcode: str, destination: Register, *sources: Value, when: str | None = None) -> None:
        """Append a PTX instruction that computes a value from operands of the IR."""
        texts = [self._text(source) for source in sources]
        self._emit(opcode, self._target(destination), *texts, when=when)

    def _emit(self, opcode: str, *operands: str, when: str | None = None) -> None:
        """Append an instruction. when: a predicate; None for all threads."""
        self._lines.append(op(opcode, *operands, when=when or ""))

    def _text(self, value: Value) -> str:
        """Return the PTX operand for an operand of the IR: a constant's text, or the name of a register."""
        if isinstance(value, Constant):
            return integer_literal(value) if value.type.is_signed else operand_text(value)
        if isinstance(value, Kept):
            return self._kept(value)
        if isinstance(value, Register):
            if value.name in self._conjunctions:
                self._conjoin(self._conjunctions.pop(value.name))
            return self._names[value.name]
        if isinstance(value, Special):
            return SPECIAL[value]
        raise TypeError(f"{value} is no operand of a map type")


_PART = 27
"""Bits of a part of 64 whose sum over 32 lanes fits in 32."""
_VOTES = {Reduction.BALLOT: "vote.sync.ballot.b32", Reduction.ANY: "vote.sync.any.pred",
          Reduction.ALL: "vote.sync.all.pred"}  # fmt: skip
_REDUCTIONS = {Reduction.SUM: "add", Reduction.MIN: "min", Reduction.MAX: "max"}
_OPCODES = {
    Operator.MOVE: "mov.{bits}", Operator.ADD: "add.{kind}", Operator.SUB: "sub.{kind}", Operator.MUL: "mul.lo.{kind}",
    Operator.MUL_HIGH: "mul.hi.{kind}", Operator.MUL_ADD: "mad", Operator.DIV: "div.{kind}",
    Operator.MIN: "min.{kind}",
    Operator.MAX: "max.{kind}", Operator.AND: "and.{bits}", Operator.OR: "or.{bits}", Operator.XOR: "xor.{bits}",
    Operator.NOT: "not.{bits}", Operator.SHL: "shl.{bits}", Operator.SHR: "shr.{kind}", Operator.POPC: "popc.{bits}",
    Operator.HIGHEST: "bfind.{kind}", Operator.NEG: "neg.{kind}", Operator.FMA: "fma.{kind}",
}  # fmt: skip
"""Operator → its instruction. kind: the type of the first source; bits: its width, or ``pred``."""
_ROUNDED = frozenset({Operator.ADD, Operator.SUB, Operator.MUL, Operator.FMA})


def _rounding(to: Type, source: Type) -> str:
    """Return the rounding modifier that a conversion needs in its opcode, such as ".rn"; "" if it is exact."""
    if source.is_float and not to.is_float:
        return ".rzi"
    return ".rn" if to.is_float and (not source.is_float or to.bits < source.bits) else ""


def _type_of(value: Value) -> Type:
    """Return the type of an operand. Raises TypeError for a value of the site, which map types never read."""
    if isinstance(value, SiteOperand):
        raise TypeError("a map type reads what is saved, no values of a site")
    return value.type


def _kind(value: Value) -> str:
    """Return the PTX type, such as "u32", by which arithmetic on a value of the IR is named; untyped bits are unsigned.
    """
    type_ = _type_of(value)
    return f"u{_bits(type_)}" if type_.is_untyped or type_ is Type.LANES else type_.value


def _bits(type_: Type) -> int:
    """The width in bits of the registers of a type of the IR."""
    return WARP_LANES if type_ is Type.LANES else type_.bits


_Question = tuple[str, int]
_Answer = TypeVar("_Answer")


class Part:
    """Some statements of a save (a probe's statement that records values), one after the other, with what is known of
    their code.

    of_place: their code depends on the place; templates: else it is known, by where the body finds its maps. is_store:
    it may not stand between a product and its sum. adds_floats: it adds floats, whose sum goes to memory somewhere.
    """

    __slots__ = ("adds_floats", "is_store", "names", "of_place", "statements", "templates")

    def __init__(self, statements: Sequence[MapStatement], *, of_place: bool, is_store: bool) -> None:
        """Group consecutive statements of a save (a probe's statement that records values), whose code is looked up
        together.

        of_place: their code depends on the probed place. is_store: it may not stand between a product and its sum.
        """
        self.statements = tuple(statements)
        self.of_place = of_place
        self.is_store = is_store
        self.names = frozenset(register.name for register in registers_in(self.statements))
        self.adds_floats = any(map(_adds_floats, _nodes_in(self.statements)))
        self.templates: dict[Hashable, Template] = {}


@dataclass
class _Node:
    """A node of a tree of questions: which one a map's type asked next, and the node for each answer; at a leaf the
    statements."""

    question: _Question | None = None
    answers: dict[object, _Node] = field(default_factory=dict)
    parts: tuple[Part, ...] | None = None


class _NotedAnswers:
    """Passes the questions of a map's type about a save on, and notes them with the answers: implements
    ``SavedValues``."""

    def __init__(self, saved: SavedValues) -> None:
        """Prepare to pass a map type's questions about a save on to ``saved``, and to note the answers."""
        self._saved = saved
        self.asked: list[tuple[_Question, object]] = []

    @property
    def lanes(self) -> Lanes:
        """What the lanes of a warp can do together; not noted as a question, since statements are looked up by it
        anyway."""
        return self._saved.lanes

    @property
    def may_branch(self) -> bool:
        """Whether the code of the save may contain branches; not noted as a question, since statements are looked up by
        it."""
        return self._saved.may_branch

    @property
    def is_conditional(self) -> bool:
        """Whether some threads may come here without saving; not noted as a question, since statements are looked up by
        it."""
        return self._saved.is_conditional

    @property
    def has_condition(self) -> bool:
        """Whether the save is under a condition of its own; not remembered as a question, like ``lanes``."""
        return self._saved.has_condition

    @property
    def is_elected(self) -> bool:
        """Whether one lane, whichever, saves for those here; not remembered as a question, like ``lanes``."""
        return self._saved.is_elected

    @property
    def is_rare(self) -> bool:
        """Whether the code is nearly never run; not remembered as a question, like ``lanes``."""
        return self._saved.is_rare

    @property
    def is_whole(self) -> bool:
        """Whether the whole warp comes here once; not remembered as a question, like ``lanes``."""
        return self._saved.is_whole

    def constant(self, number: int) -> int | None:
        """Return the constant that an operand is, else None; question and answer are noted."""
        return self._ask("constant", number, self._saved.constant)

    def choices(self, number: int) -> tuple[int, ...]:
        """Return the two constants of which an operand has one, else (); question and answer are noted."""
        return self._ask("choices", number, self._saved.choices)

    def is_same(self, number: int) -> bool:
        """Return whether an operand is the same in all lanes; question and answer are noted."""
        return self._ask("is_same", number, self._saved.is_same)

    def is_read_together(self, number: int) -> bool:
        """Return whether an operand is the same since lanes read it together; question and answer are noted."""
        return self._ask("is_read_together", number, self._saved.is_read_together)

    def own_sites(self) -> tuple[int, ...]:
        """Return the sites, if each lane saves for its own; question and answer are noted."""
        return self._ask("own_sites", 0, lambda _: self._saved.own_sites())

    def site_key(self) -> int | None:
        """Return the number by which the save's key is known, else None; question and answer are noted."""
        return self._ask("site_key", 0, lambda _: self._saved.site_key())

    def _ask(self, kind: str, number: int, ask: Callable[[int], _Answer]) -> _Answer:
        """Return the answer to a question, as ``ask`` gives it for a number, and note both."""
        answer = ask(number)
        self.asked.append(((kind, number), answer))
        return answer


def _answer(saved: SavedValues, question: _Question) -> object:
    """Answer a question that a map's type has about a save: its kind, and the number of an operand."""
    kind, number = question
    if kind == "own_sites":
        return saved.own_sites()
    return saved.site_key() if kind == "site_key" else getattr(saved, kind)(number)


class SaveCache:
    """The statements (IR) that save to a map, remembered by what is known of the saves: many saves are alike."""

    def __init__(self, entry: Map, divided: Callable[[Sequence[MapStatement]], tuple[Part, ...]]) -> None:
        """Set up an empty cache of the statements that save to a map. entry: the map. divided: divides statements into
        parts."""
        self._entry = entry
        self._divided = divided
        self._roots: dict[tuple[bool | Lanes, ...], _Node] = {}
        self._at_ends: dict[tuple[bool, tuple[str, ...], Lanes], Sequence[MapStatement]] = {}
        self.templates: dict[Hashable, tuple[Template, int]] = {}
        """Other code, by what is known of it, with the bytes of local memory that it needs."""

    def statements_at_ends(self, kept: Sequence[Kept], lanes: Lanes, *, ending: bool) -> Sequence[MapStatement]:
        """Return the statements (IR) of the map's type for a kernel's start, or, with ending, for a thread's end.

        kept: the registers that saves to the map keep.
        """
        key = (ending, tuple(register.name for register in kept), lanes)
        found = self._at_ends.get(key)
        if found is None:
            kind = self._entry.kind
            write = kind.settle if ending else kind.begin
            found = self._at_ends[key] = write(self._entry, kept, lanes)
        return found

    def parts(self, saved: SavedValues) -> tuple[Part, ...]:
        """Return the statements of a save to the map, in parts; the same objects for saves of which the same is known.

        What the map's type asked about an earlier save is asked again, and the answers lead to the parts in a tree.
        """
        key = (
            saved.is_conditional, saved.has_condition, saved.is_elected, saved.is_whole, saved.is_rare,
            saved.may_branch, saved.lanes,
        )  # fmt: skip
        node = self._roots.setdefault(key, _Node())
        known: list[tuple[_Question, object]] = []
        while node.question is not None:
            answer = _answer(saved, node.question)
            known.append((node.question, answer))
            node = node.answers.setdefault(answer, _Node())
        if node.parts is None:
            asking = _Known(saved, known)
            made = _Node(parts=self._divided(self._entry.kind.save(self._entry, asking)))
            parts = made.parts
            # What was asked besides comes before.
            for question, answer in reversed(asking.asked):
                made = _Node(question, {answer: made})
            node.parts, node.answers = made.parts, made.answers
            # Last: other threads may be here, too.
            node.question = made.question
            return parts or ()
        return node.parts


_MOST_MAPS = 64
_CACHES: dict[Map, SaveCache] = {}
_BY_IDENTITY: dict[int, tuple[Map, SaveCache]] = {}
"""The same by the identity of maps, which is faster; with each map, so that no other one gets its identity."""


def save_cache(entry: Map, divided: Callable[[Sequence[MapStatement]], tuple[Part, ...]]) -> SaveCache:
    """Return the cache of statements that save to a map, shared by equal maps, in this and earlier kernels."""
    known = _BY_IDENTITY.get(id(entry))
    if known is not None:
        return known[1]
    found = _CACHES.get(entry)
    if found is None:
        if len(_CACHES) >= _MOST_MAPS:
            _CACHES.clear()
        found = _CACHES[entry] = SaveCache(entry, divided)
    if len(_BY_IDENTITY) >= _MOST_MAPS:
        _BY_IDENTITY.clear()
    _BY_IDENTITY[id(entry)] = entry, found
    return found


class _Known(_NotedAnswers):
    """Answers the questions of a map's type from answers that are known already, since to ask again may write code
    again."""

    def __init__(self, saved: SavedValues, known: Sequence[tuple[_Question, object]]) -> None:
        """Prepare to answer a map type's questions about a save from answers that are known already. known: (question,
        answer) pairs."""
        super().__init__(saved)
        self._answers = dict(known)

    def _ask(self, kind: str, number: int, ask: Callable[[int], _Answer]) -> _Answer:
        """Return what was answered before to this question; else ask."""
        answer = self._answers.get((kind, number), self)
        return super()._ask(kind, number, ask) if answer is self else answer  # type: ignore[return-value]


def registers_in(statements: Iterable[MapStatement]) -> Iterator[Register]:
    """Yield the registers that statements of the IR read or write, in order and maybe several times."""
    return (node for node in _nodes_in(statements) if isinstance(node, Register))


def _nodes_in(node: object) -> Iterator[object]:
    """Yield statements of the IR with their operands and nested statements, depth first."""
    if isinstance(node, (tuple, list)):
        for item in node:
            yield from _nodes_in(item)
    elif is_dataclass(node):
        yield node
        for member in fields(node) if not isinstance(node, Register) else ():
            yield from _nodes_in(getattr(node, member.name))


def _adds_floats(node: object) -> bool:
    """Return whether a statement adds floating-point numbers, which not every architecture can do in memory."""
    if isinstance(node, Operation):
        return _type_of(node.sources[0]).is_float and node.operator in _ROUNDED
    return isinstance(node, OverLanes) and node.reduction is Reduction.SUM and node.destination.type is Type.F64
