"""The statements of map types as PTX: those that only compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from neutrino.ir.memory import Kept, MapStatement, When
from neutrino.ir.operands import Constant, Register, SiteOperand, Value
from neutrino.ir.statements import Compare, Convert, Operation, Operator, Reinterpret, Relation, Select
from neutrino.ir.types import Type
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.snippets.writer import integer_literal


class Lowering:
    """Turns the statements of a map's type into instructions, which it appends to lines.

    take: gives a new register of a type (``Take``). kept: gives that of one that the map keeps. count: is told the
    opcodes of floating-point instructions.
    """

    def __init__(
        self, take: Take, kept: Callable[[Kept], str], lines: list[str], count: Callable[[str], None]
    ) -> None:
        self._take = take
        self._kept = kept
        self._lines = lines
        self._count_float = count
        # By the name of a statements' local register, that of PTX; "" of a predicate that is true in all threads.
        self._names: dict[str, str] = {}
        # By the name of a predicate that is not written yet, what it is.
        self._conjunctions: dict[str, Operation] = {}

    def write(self, statements: Iterable[MapStatement]) -> None:
        """Append the code of statements, in their order."""
        for statement in statements:
            self._write(statement)

    def _write(self, statement: MapStatement) -> None:
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
        elif isinstance(statement, Select):
            opcode = f"selp.b{statement.destination.type.bits}"
            self._compute(opcode, statement.destination, statement.then, statement.otherwise, statement.condition)
        elif isinstance(statement, Convert):
            to, source = statement.destination.type, statement.source
            self._compute(f"cvt.{to}.{_kind(source)}", statement.destination, source)
        elif isinstance(statement, Reinterpret):
            # Registers of PTX have a width alone.
            self._names[statement.destination.name] = self._text(statement.source)
        else:
            self._write_special(statement)

    def _write_special(self, statement: MapStatement) -> None:
        """Append the code of a statement that means something at a SAVE, or at an end, alone."""
        raise TypeError(f"{type(statement).__name__} has no meaning here")

    def _operation(self, statement: Operation, when: str | None) -> None:
        """Append an operation. when: a predicate; None for all threads."""
        first, *others = statement.sources
        if statement.operator is Operator.AND and _type_of(first) is Type.PRED:
            # Written where it is read, so that it is kept no longer than it has to.
            self._conjunctions[statement.destination.name] = statement
            return
        kind = _type_of(first)
        bits = f"b{kind.bits}" if kind is not Type.PRED else "pred"
        opcode = _OPCODES[statement.operator].format(kind=_kind(first), bits=bits)
        if kind.is_float and statement.operator in {Operator.ADD, Operator.SUB, Operator.MUL}:
            # Rounded, so that ptxas fuses it with no product of the program.
            opcode = opcode.replace(".", ".rn.", 1)
            self._count_float(opcode)
        self._compute(opcode, statement.destination, first, *others, when=when)

    def _conjoin(self, statement: Operation) -> None:
        """Append the conjunction of two predicates."""
        texts = [self._text(source) for source in statement.sources]
        if "" in texts:
            # One of them is true in all threads.
            texts.remove("")
            self._names[statement.destination.name] = texts[0]
        else:
            self._compute("and.pred", statement.destination, *statement.sources)

    def _compute(self, opcode: str, destination: Register, *sources: Value, when: str | None = None) -> None:
        """Append an instruction that computes a value."""
        texts = [self._text(source) for source in sources]
        if isinstance(destination, Kept):
            target = self._kept(destination)
        else:
            target = self._take("pred" if destination.type is Type.PRED else f"b{destination.type.bits}")
            self._names[destination.name] = target
        self._emit(opcode, target, *texts, when=when)

    def _emit(self, opcode: str, *operands: str, when: str | None = None) -> None:
        """Append an instruction. when: a predicate; None for all threads."""
        self._lines.append(Instruction.of(opcode, *operands, guard=when or None).text)

    def _text(self, value: Value) -> str:
        """An operand of an instruction."""
        if isinstance(value, Constant):
            return value.text if value.type.is_float else integer_literal(value)
        if isinstance(value, Kept):
            return self._kept(value)
        if isinstance(value, Register):
            if value.name in self._conjunctions:
                self._conjoin(self._conjunctions.pop(value.name))
            return self._names[value.name]
        raise TypeError(f"{value} is no operand of a map type")


_OPCODES = {
    Operator.MOVE: "mov.{bits}", Operator.ADD: "add.{kind}", Operator.SUB: "sub.{kind}", Operator.MUL: "mul.lo.{kind}",
    Operator.MUL_HIGH: "mul.hi.{kind}", Operator.DIV: "div.{kind}", Operator.MIN: "min.{kind}",
    Operator.MAX: "max.{kind}", Operator.AND: "and.{bits}", Operator.OR: "or.{bits}", Operator.XOR: "xor.{bits}",
    Operator.NOT: "not.{bits}", Operator.SHL: "shl.{bits}", Operator.SHR: "shr.{kind}", Operator.POPC: "popc.{bits}",
    Operator.HIGHEST: "bfind.{kind}",
}  # fmt: skip
"""Operator → its instruction. kind: the type of the first source; bits: its width, or ``pred``."""


def _type_of(value: Value) -> Type:
    if isinstance(value, SiteOperand):
        raise TypeError("a map type reads what is saved, no values of a site")
    return value.type


def _kind(value: Value) -> str:
    """The type of a value as arithmetic has it, where bits without a meaning are unsigned."""
    type_ = _type_of(value)
    return f"u{type_.bits}" if type_.is_untyped else type_.value
