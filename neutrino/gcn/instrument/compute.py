"""Typed statements that compute values, as scalar and vector instructions.

A value that is the same in all lanes is in SGPRs and computed there. Others are in VGPRs; what such an instruction
reads besides is first brought into VGPRs, so that no limit on scalar operands of vector instructions matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.operands import Constant, Register, SiteOperand, Special
from neutrino.ir.statements import Compare, Convert, Load, Operation, Operator, Reinterpret, Relation, Select
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import For, If, Save, Statement

_INLINE = range(-16, 65)
_WORD = (1 << 32) - 1
_SIGN = 1 << 31
_BITWISE = {Operator.AND: "and", Operator.OR: "or", Operator.XOR: "xor"}
_SWAPPED = {Relation.GT: Relation.LT, Relation.LE: Relation.GE}
"""Relations of two numbers → the same of these in the other order."""
_VECTOR_NAMES = {Relation.EQ: "eq", Relation.NE: "ne", Relation.LT: "lt", Relation.LE: "le", Relation.GT: "gt",
                 Relation.GE: "ge"}  # fmt: skip
_SCALAR_NAMES = {**_VECTOR_NAMES, Relation.NE: "lg"}
OPERATORS = frozenset({
    Operator.MOVE, Operator.ADD, Operator.SUB, Operator.MUL, Operator.MIN, Operator.MAX, Operator.AND, Operator.OR,
    Operator.XOR, Operator.NOT, Operator.NEG, Operator.ABS, Operator.SHL, Operator.SHR, Operator.POPC, Operator.CLZ,
    Operator.MUL_ADD,
})  # fmt: skip


class CannotError(Exception):
    """What a probe asks for is not done here; the message says what."""


def why_not(statement: Statement) -> str:
    """Return what of a statement cannot be computed, "" if all of it can be."""
    if isinstance(statement, Operation):
        if statement.operator not in OPERATORS:
            return f"{statement.operator.value} cannot be computed in AMD's kernels yet"
        if statement.destination.type.is_float and statement.operator is not Operator.MOVE:
            return "arithmetic of floats is not possible in AMD's kernels yet"
    elif isinstance(statement, Convert):
        types = (statement.destination.type, _type_of(statement.source))
        if any(type_.is_float for type_ in types) and types[0] is not types[1]:
            return "conversions of floats are not possible in AMD's kernels yet"
    elif isinstance(statement, Compare):
        if _type_of(statement.left).is_float:
            return "comparisons of floats are not possible in AMD's kernels yet"
    elif isinstance(statement, If):
        return next(filter(None, map(why_not, (*statement.then, *statement.otherwise))), "")
    elif isinstance(statement, For):
        return next(filter(None, map(why_not, statement.body)), "")
    elif not isinstance(statement, (Select, Reinterpret, Load, Save)):
        return f"{type(statement).__name__} is not possible in AMD's kernels yet"
    return ""


def varying(statements: Iterable[Statement], vectors: Iterable[str], *, is_varying_operand: bool = True) -> set[str]:
    """Return the names of the registers that may differ between lanes, of those that statements assign.

    vectors: those of which it is known. is_varying_operand: whether values of the site's instruction may.
    """
    found = set(vectors)

    def differs(value: object) -> bool:
        """Whether a value may differ between lanes, as far as it is known."""
        if isinstance(value, Register):
            return value.name in found
        if isinstance(value, Special):
            return value in VARYING
        return isinstance(value, SiteOperand) and is_varying_operand and value.name not in UNIFORM_OPERANDS

    def visit(rows: Iterable[Statement], *, apart: bool) -> None:
        """Add to ``found`` the registers to which statements assign what may differ between lanes.

        apart: whether only some lanes may run the statements, so that whatever they assign differs.
        """
        for row in rows:
            if isinstance(row, If):
                visit((*row.then, *row.otherwise), apart=apart or differs(row.condition))
            elif isinstance(row, For):
                visit(row.body, apart=apart)
            elif not isinstance(row, Save):
                destination = getattr(row, "destination", None)
                if destination is None:
                    continue
                reads: list[object] = []
                for name in ("sources", "source", "left", "right", "condition", "then", "otherwise", "operand"):
                    value = getattr(row, name, ())
                    reads += value if isinstance(value, tuple) else [value]
                if apart or any(map(differs, reads)):
                    found.add(destination.name)

    rows = tuple(statements)
    while True:
        before = len(found)
        visit(rows, apart=False)
        if len(found) == before:
            return found


VARYING = frozenset({
    Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.LANEMASK_LT,
})  # fmt: skip
"""Values of the hardware that differ between the lanes of a wave."""
UNIFORM_OPERANDS = frozenset({"BYTES", "LANES", "SITE", "BLOCK", "HAS", "OPCODE", "PARAM"})
"""Values of a site that are the same in all lanes."""


class Computing:
    """Lowers the statements of one snippet.

    here: where it stands. vectors: names of its registers that differ between lanes, as ``varying`` returns them.
    """

    def __init__(self, here: Surroundings, vectors: Iterable[str] = ()) -> None:
        """Begin a snippet."""
        self.here = here
        self.code: Code = here.code
        self._vectors = set(vectors)
        self._places: dict[str, Place] = {}
        self._constants: Mapping[str, Constant] = {}
        self._machine = self.code.machine
        self._new_add = self._machine.generation >= 10

    # Registers and values

    def place(self, register: Register) -> Place:
        """Return where a register is; a local one gets a place when it is first asked for."""
        if not register.is_local:
            return self.here.home(register)
        found = self._places.get(register.name)
        if found is None:
            if register.type is Type.PRED:
                found = self.code.mask()
            else:
                words = self.words(register.type)
                found = self.code.vector(words) if register.name in self._vectors else self.code.scalar(words)
            self._places[register.name] = found
            self.code.pin(found)
        return found

    def bind(self, register: Register, place: Place) -> None:
        """Let a probe's local register be in these registers, before it is used for the first time."""
        self._places[register.name] = place

    def words(self, type_: Type) -> int:
        """Return how many registers a value of a type takes."""
        if type_ in (Type.PRED, Type.LANES):
            return self._machine.mask_words
        return 2 if type_.bits == 64 else 1

    def value(self, operand: object) -> Value:
        """Return the registers that have an operand's value, or the constant that it is; code that reads it is
        appended."""
        if isinstance(operand, Constant):
            return operand
        if isinstance(operand, Register):
            return self.place(operand)
        if isinstance(operand, Special):
            return self.here.special(operand)
        if isinstance(operand, SiteOperand):
            return self.here.operand(operand)
        raise CannotError(f"{operand} is no operand of typed statements")

    # Statements

    def lower(self, statements: Iterable[Statement]) -> None:
        """Append the instructions for typed statements.

        Registers of local variables are given back after the last statement that names them.
        """
        rows = tuple(statements)
        last: dict[str, int] = {}
        for number, row in enumerate(rows):
            for name in _locals_in(row):
                last[name] = number
        outer = set(self._places)
        for number, row in enumerate(rows):
            with self.code.scope():
                self._lower(row)
            for name in [name for name, end in last.items() if end == number and name not in outer]:
                if name in self._places:
                    self.code.release(self._places.pop(name))

    def _lower(self, statement: Statement) -> None:
        """Append the instructions for one typed statement. Raises CannotError for one that is not possible."""
        if isinstance(statement, Operation):
            self.operation(statement)
        elif isinstance(statement, Convert):
            self.convert(statement)
        elif isinstance(statement, Compare):
            self.compare(statement)
        elif isinstance(statement, Select):
            self.select(statement)
        elif isinstance(statement, Reinterpret):
            self.move(self.place(statement.destination), self.value(statement.source), statement.destination.type)
        elif isinstance(statement, Load):
            self._load(statement)
        elif isinstance(statement, If):
            self._branch(statement)
        elif isinstance(statement, For):
            for value in statement.values:
                constant = Constant(statement.variable.type, value % (1 << statement.variable.type.bits))
                self.move(self.place(statement.variable), constant, statement.variable.type)
                self.lower(statement.body)
        elif isinstance(statement, Save):
            self.save(statement)
        else:
            raise CannotError(why_not(statement))

    def save(self, statement: Save) -> None:
        """Refuse to save values to a map. A class for probes that may save has its own."""
        raise CannotError("saves are not possible here")

    def _load(self, statement: Load) -> None:
        """Append code that reads a value of the probed instruction into a register of the probe.

        Bits are taken as they are; into a predicate goes whether they are not 0, and of a predicate 1 or 0.
        """
        value, destination = self.value(statement.operand), self.place(statement.destination)
        type_ = statement.destination.type
        if isinstance(value, Mask) and type_ is not Type.PRED:
            self.from_mask(destination, value, type_)
        elif type_ is Type.PRED and not isinstance(value, Mask):
            words = value.words if not isinstance(value, Constant) else self.words(value.type)
            kind = Type.U64 if words == 2 else Type.U32
            self.compare_into(destination, Relation.NE, value, Constant(kind, 0), kind)
        else:
            self.move(destination, value, type_)

    def _branch(self, statement: If) -> None:
        """Append code that runs one of two lists of statements, by a predicate.

        Where lanes differ, each list runs with those lanes alone that it is for.
        """
        code, machine = self.code, self._machine
        condition = self.place(statement.condition)
        if statement.condition.name not in self._vectors:
            otherwise, end = code.label(), code.label()
            code.emit(f"s_cmp_lg_{self._unsigned()} {condition.text}, 0", f"s_cbranch_scc0 {otherwise}")
            self.lower(statement.then)
            if statement.otherwise:
                code.emit(f"s_branch {end}")
            code.emit(f"{otherwise}:")
            self.lower(statement.otherwise)
            code.emit(f"{end}:")
            return
        outer, mask = code.mask(), machine.mask
        code.emit(f"s_mov_{mask} {outer.text}, {machine.exec}")
        if statement.otherwise:
            inner = code.mask()
            code.emit(f"s_mov_{mask} {inner.text}, {condition.text}")
            condition = inner
        for rows, narrowed in (
            (statement.then, f"s_and_{mask} {machine.exec}, {outer.text}, {condition.text}"),
            (statement.otherwise, f"{machine.and_not} {machine.exec}, {outer.text}, {condition.text}"),
        ):
            if rows:
                end = code.label()
                code.emit(narrowed, f"s_cbranch_execz {end}")
                self.lower(rows)
                code.emit(f"{end}:")
        code.emit(f"s_mov_{mask} {machine.exec}, {outer.text}")

    # Moves

    def word(self, value: Value, number: int) -> str:
        """Return a 32-bit word of a value as an operand; beyond a value's words 0."""
        if isinstance(value, Constant):
            bits = value.bits >> 32 * number & _WORD
            return str(bits - (1 << 32) if bits >= (1 << 32) - 16 else bits) if _is_inline(bits) else f"{bits:#x}"
        return value.word(number) if number < value.words else "0"

    def move(self, destination: Place, value: Value, type_: Type) -> None:
        """Append code that copies a value into registers. type_: of the value."""
        code = self.code
        if isinstance(destination, Mask):
            source = value.text if not isinstance(value, Constant) else (self._machine.exec if value.bits else "0")
            code.emit(f"s_mov_{self._machine.mask} {destination.text}, {source}")
            return
        if isinstance(value, (Scalar, Vector)) and value == destination:
            return
        is_vector = isinstance(destination, Vector)
        if not is_vector and isinstance(value, Vector):
            raise CannotError("a value that differs between lanes is not one of the wave")
        if not is_vector and isinstance(value, Scalar) and value.words == destination.words == 2:
            code.emit(f"s_mov_b64 {destination.text}, {value.text}")
            return
        mnemonic = "v_mov_b32_e32" if is_vector else "s_mov_b32"
        for number in range(destination.words):
            code.emit(f"{mnemonic} {destination.word(number)}, {self.word(value, number)}")

    def in_vector(self, value: Value, words: int) -> Vector:
        """Return a value in VGPRs, the same ones if it is there. words: how many."""
        if isinstance(value, Vector) and value.words == words:
            return value
        place = self.code.vector(words)
        for number in range(words):
            self.code.emit(f"v_mov_b32_e32 {place.word(number)}, {self.word(value, number)}")
        return place

    def from_mask(self, destination: Place, mask: Mask, type_: Type) -> None:
        """Write 1 where a predicate is true, 0 elsewhere."""
        if isinstance(destination, Scalar):
            self.code.emit(f"s_cmp_lg_{self._unsigned()} {mask.text}, 0", f"s_cselect_b32 {destination.word(0)}, 1, 0")
        else:
            self.code.emit(f"v_cndmask_b32_e64 {destination.word(0)}, 0, 1, {mask.text}")
        if destination.words == 2:
            self.code.emit(f"{'s' if isinstance(destination, Scalar) else 'v'}_mov_b32{self._e32(destination)} "
                           f"{destination.word(1)}, 0")  # fmt: skip

    def _e32(self, place: Place) -> str:
        """Return the suffix that a move's mnemonic has if it writes a VGPR, "" for an SGPR."""
        return "_e32" if isinstance(place, Vector) else ""

    def _unsigned(self) -> str:
        """Return the type, as mnemonics have it, with which a scalar instruction compares a whole lane mask: u32 or
        u64."""
        return f"u{self._machine.wave}"

    # Operations

    def operation(self, statement: Operation) -> None:
        """Append code for an arithmetic or logic operation. Raises CannotError for one that is not possible."""
        type_, destination = statement.destination.type, self.place(statement.destination)
        if statement.operator is Operator.MOVE:
            self.move(destination, self.value(statement.sources[0]), type_)
            return
        if reason := why_not(statement):
            raise CannotError(reason)
        values = [self.value(source) for source in statement.sources]
        if type_ is Type.PRED:
            self._combine(destination, statement.operator, values)
        elif isinstance(destination, Vector):
            self._vector(destination, statement, values)
        else:
            self._scalar(destination, statement, values)

    def _combine(self, destination: Place, operator: Operator, values: list[Value]) -> None:
        """Append code for a logic operation on predicates, kept as lane masks. Bits of lanes that are not active stay
        0."""
        code, machine, texts = self.code, self._machine, []
        for value in values:
            texts.append(value.text if not isinstance(value, Constant) else machine.exec if value.bits else "0")
        if operator is Operator.NOT:
            code.emit(f"{machine.and_not} {destination.text}, {machine.exec}, {texts[0]}")
        else:
            code.emit(f"s_{_BITWISE[operator]}_{machine.mask} {destination.text}, {', '.join(texts)}")
            code.emit(f"s_and_{machine.mask} {destination.text}, {destination.text}, {machine.exec}")

    def _narrow(self, destination: Place, type_: Type) -> None:
        """Append code that extends a result of 8 or 16 bits to its 32-bit register, by the type's sign."""
        if type_.bits not in (8, 16):
            return
        text, code = destination.text, self.code
        if isinstance(destination, Vector):
            kind = "i32" if type_.is_signed else "u32"
            code.emit(f"v_bfe_{kind} {text}, {text}, 0, {type_.bits}")
        elif type_.is_signed:
            code.emit(f"s_sext_i32_i{type_.bits} {text}, {text}")
        else:
            code.emit(f"s_and_b32 {text}, {text}, {(1 << type_.bits) - 1:#x}")

    def _scalar(self, destination: Place, statement: Operation, values: list[Value]) -> None:
        """Append code that computes an operation on SGPRs, for values that are the same in all lanes."""
        code, machine, operator = self.code, self._machine, statement.operator
        type_ = statement.destination.type
        is_wide = destination.words == 2
        word = self.word
        if operator in (Operator.ADD, Operator.SUB, Operator.NEG):
            first, second = (Constant(type_, 0), values[0]) if operator is Operator.NEG else (values[0], values[1])
            is_sum = operator is Operator.ADD
            low, high = (machine.add, machine.add_carry) if is_sum else (machine.subtract, machine.subtract_borrow)
            code.emit(f"{low} {destination.word(0)}, {word(first, 0)}, {word(second, 0)}")
            if is_wide:
                code.emit(f"{high} {destination.word(1)}, {word(first, 1)}, {word(second, 1)}")
        elif operator in (Operator.MUL, Operator.MUL_ADD):
            self.scalar_product(destination, statement, values)
        elif operator in _BITWISE:
            for number in range(destination.words):
                pair = ", ".join(word(value, number) for value in values)
                code.emit(f"s_{_BITWISE[operator]}_b32 {destination.word(number)}, {pair}")
        elif operator is Operator.NOT:
            for number in range(destination.words):
                code.emit(f"s_not_b32 {destination.word(number)}, {word(values[0], number)}")
        elif operator in (Operator.SHL, Operator.SHR):
            self._scalar_shift(destination, operator, type_, values)
        elif operator in (Operator.MIN, Operator.MAX):
            kind = "i32" if type_.is_signed else "u32"
            if not is_wide:
                pair = ", ".join(word(value, 0) for value in values)
                code.emit(f"s_{operator.value}_{kind} {destination.text}, {pair}")
            else:
                relation = Relation.LT if operator is Operator.MIN else Relation.GT
                with code.scope():
                    self._scalar_test(relation, values[0], values[1], type_)
                for number in range(2):
                    pair = ", ".join(word(value, number) for value in values)
                    code.emit(f"s_cselect_b32 {destination.word(number)}, {pair}")
        elif operator is Operator.ABS:
            negative = code.scalar(destination.words)
            self._scalar(negative, Operation(Operator.NEG, statement.destination, (), statement.span), values)
            self._scalar(
                destination, Operation(Operator.MAX, statement.destination, (), statement.span), [values[0], negative]
            )
        elif operator is Operator.POPC:
            source = self._whole(values[0], statement.sources[0])
            code.emit(f"s_bcnt1_i32_b{32 * source.words} {destination.text}, {source.text}")
        elif operator is Operator.CLZ:
            source = self._whole(values[0], statement.sources[0])
            name = "s_clz_i32_u" if machine.generation >= 11 else "s_flbit_i32_b"
            code.emit(f"{name}{32 * source.words} {destination.text}, {source.text}")
            code.emit(f"s_min_u32 {destination.text}, {destination.text}, {32 * source.words}")
        self._narrow(destination, type_)

    def _whole(self, value: Value, source: object) -> Scalar:
        """Return an operand of a scalar operation in SGPRs, all of its words."""
        if isinstance(value, Scalar):
            return value
        place = self.code.scalar(self.words(_type_of(source)))
        self.move(place, value, _type_of(source))
        return place

    def scalar_product(self, destination: Place, statement: Operation, values: list[Value]) -> None:
        """Append code that multiplies numbers in SGPRs, and adds a third if the operation has one."""
        code, machine, word = self.code, self._machine, self.word
        if destination.words == 1:
            if statement.operator is Operator.MUL:
                code.emit(f"s_mul_i32 {destination.text}, {word(values[0], 0)}, {word(values[1], 0)}")
                return
            product = code.scalar()
            code.emit(f"s_mul_i32 {product.text}, {word(values[0], 0)}, {word(values[1], 0)}")
            code.emit(f"{machine.add} {destination.text}, {product.text}, {word(values[2], 0)}")
            return
        left, right = values[0], values[1]
        is_signed = statement.operator is Operator.MUL_ADD and _type_of(statement.sources[0]).is_signed
        result, part = code.scalar(2), code.scalar()
        kind = "i32" if is_signed else "u32"
        code.emit(f"s_mul_i32 {result.word(0)}, {word(left, 0)}, {word(right, 0)}")
        code.emit(f"s_mul_hi_{kind} {result.word(1)}, {word(left, 0)}, {word(right, 0)}")
        if statement.operator is Operator.MUL:
            for one, other in ((0, 1), (1, 0)):
                code.emit(f"s_mul_i32 {part.text}, {word(left, one)}, {word(right, other)}")
                code.emit(f"{machine.add} {result.word(1)}, {result.word(1)}, {part.text}")
        else:
            code.emit(f"{machine.add} {result.word(0)}, {result.word(0)}, {word(values[2], 0)}")
            code.emit(f"{machine.add_carry} {result.word(1)}, {result.word(1)}, {word(values[2], 1)}")
        code.emit(f"s_mov_b64 {destination.text}, {result.text}")

    def _scalar_shift(self, destination: Place, operator: Operator, type_: Type, values: list[Value]) -> None:
        """Shift in SGPRs: an amount of the width or more gives 0, or all signs."""
        code = self.code
        value, amount = values
        width = max(type_.bits, 32)
        is_arithmetic = operator is Operator.SHR and type_.is_signed
        kind = "i" if is_arithmetic else "b"
        name = f"s_{'lshl' if operator is Operator.SHL else 'ashr' if is_arithmetic else 'lshr'}_{kind}{width}"
        if isinstance(amount, Constant):
            if amount.bits >= type_.bits and not is_arithmetic:
                self.move(destination, Constant(type_, 0), type_)
                return
            by = str(min(amount.bits, width - 1))
            source = self._whole(value, Constant(type_, 0)) if width == 64 else None
            code.emit(f"{name} {destination.text}, {source.text if source else self.word(value, 0)}, {by}")
            return
        source = self._whole(value, Constant(type_, 0))
        clamped = code.scalar()
        code.emit(f"s_min_u32 {clamped.text}, {self.word(amount, 0)}, {width - 1}")
        result = code.scalar(destination.words)
        code.emit(f"{name} {result.text}, {source.text}, {clamped.text}")
        if is_arithmetic:
            self.move(destination, result, type_)
            return
        code.emit(f"s_cmp_lt_u32 {self.word(amount, 0)}, {width}")
        for number in range(destination.words):
            code.emit(f"s_cselect_b32 {destination.word(number)}, {result.word(number)}, 0")

    def _vector(self, destination: Vector, statement: Operation, values: list[Value]) -> None:
        """Append code that computes an operation on VGPRs, for values that may differ between lanes."""
        operator, type_ = statement.operator, statement.destination.type
        is_shift = operator in (Operator.SHL, Operator.SHR)
        if operator is Operator.MUL_ADD:
            self._vector_product_sum(destination, statement, values)
        else:
            wide = [
                self.in_vector(value, self.words(_type_of(source)) if not (is_shift and number) else 1)
                for number, (value, source) in enumerate(zip(values, statement.sources, strict=True))
            ]
            if destination.words == 1 or operator in (Operator.POPC, Operator.CLZ):
                self._vector_word(destination, operator, type_, wide)
            else:
                self._vector_pair(destination, operator, type_, wide)
        self._narrow(destination, type_)

    def _vector_word(self, destination: Vector, operator: Operator, type_: Type, values: list[Vector]) -> None:
        """Append code that computes an operation of up to 32 bits on VGPRs."""
        code, to, machine = self.code, destination.text, self._machine
        texts = [value.text for value in values]
        kind = "i32" if type_.is_signed else "u32"
        no_carry = "_nc" if self._new_add else ""
        if operator in (Operator.ADD, Operator.SUB):
            code.emit(f"v_{operator.value}{no_carry}_u32_e32 {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.MUL:
            code.emit(f"v_mul_lo_u32 {to}, {texts[0]}, {texts[1]}")
        elif operator in _BITWISE:
            code.emit(f"v_{_BITWISE[operator]}_b32_e32 {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.NOT:
            code.emit(f"v_not_b32_e32 {to}, {texts[0]}")
        elif operator is Operator.NEG:
            code.emit(f"v_sub{no_carry}_u32_e32 {to}, 0, {texts[0]}")
        elif operator in (Operator.MIN, Operator.MAX):
            code.emit(f"v_{operator.value}_{kind}_e32 {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.ABS:
            part = code.vector()
            code.emit(f"v_sub{no_carry}_u32_e32 {part.text}, 0, {texts[0]}")
            code.emit(f"v_max_i32_e32 {to}, {texts[0]}, {part.text}")
        elif operator in (Operator.SHL, Operator.SHR):
            is_arithmetic = operator is Operator.SHR and type_.is_signed
            name = "lshlrev_b32" if operator is Operator.SHL else "ashrrev_i32" if is_arithmetic else "lshrrev_b32"
            part = code.vector()
            code.emit(f"v_min_u32_e32 {part.text}, 31, {texts[1]}")
            if is_arithmetic:
                code.emit(f"v_{name}_e32 {to}, {part.text}, {texts[0]}")
                return
            is_inside = code.mask()
            code.emit(f"v_cmp_gt_u32_e64 {is_inside.text}, 32, {texts[1]}")
            code.emit(f"v_{name}_e32 {part.text}, {part.text}, {texts[0]}")
            code.emit(f"v_cndmask_b32_e64 {to}, 0, {part.text}, {is_inside.text}")
        elif operator is Operator.POPC:
            counted = code.vector()
            code.emit(f"v_bcnt_u32_b32 {counted.text}, {values[0].word(0)}, 0")
            if values[0].words == 2:
                code.emit(f"v_bcnt_u32_b32 {counted.text}, {values[0].word(1)}, {counted.text}")
            code.emit(f"v_mov_b32_e32 {to}, {counted.text}")
        elif operator is Operator.CLZ:
            name = "v_clz_i32_u32_e32" if machine.generation >= 11 else "v_ffbh_u32_e32"
            source = values[0]
            parts = [code.vector() for _ in range(source.words)]
            for number, part in enumerate(parts):
                code.emit(f"{name} {part.text}, {source.word(number)}", f"v_min_u32_e32 {part.text}, 32, {part.text}")
            if source.words == 2:
                # Those of the lower word count where the upper one has 32.
                low, high = parts
                has_high = code.mask()
                code.emit(f"v_cmp_gt_u32_e64 {has_high.text}, 32, {high.text}")
                code.emit(f"v_add{no_carry}_u32_e32 {low.text}, {low.text}, {high.text}")
                code.emit(f"v_cndmask_b32_e64 {to}, {low.text}, {high.text}, {has_high.text}")
            else:
                code.emit(f"v_mov_b32_e32 {to}, {parts[0].text}")

    def add_pair(self, destination: Vector, left: Vector, right: Vector, *, is_sum: bool = True) -> None:
        """Append code that adds or subtracts 64 bits in pairs of VGPRs; it overwrites VCC with the carry."""
        vcc = "vcc" if self._machine.wave == 64 else "vcc_lo"
        name = "add" if is_sum else "sub"
        if self._new_add:
            low, high = f"v_{name}_co_u32", f"v_{name}_co_ci_u32_e32"
        else:
            low, high = f"v_{name}_co_u32_e32", "v_addc_co_u32_e32" if is_sum else "v_subb_co_u32_e32"
        result = destination
        if destination.first + 0 in (left.first + 1, right.first + 1):
            result = self.code.vector(2)
        self.code.emit(
            f"{low} {result.word(0)}, {vcc}, {left.word(0)}, {right.word(0)}",
            f"{high} {result.word(1)}, {vcc}, {left.word(1)}, {right.word(1)}, {vcc}",
        )
        self.move(destination, result, Type.U64)

    def _vector_pair(self, destination: Vector, operator: Operator, type_: Type, values: list[Vector]) -> None:
        """Append code that computes an operation of 64 bits on pairs of VGPRs."""
        code, left = self.code, values[0]
        if operator in (Operator.ADD, Operator.SUB):
            self.add_pair(destination, left, values[1], is_sum=operator is Operator.ADD)
        elif operator is Operator.NEG:
            self.add_pair(destination, self.in_vector(Constant(type_, 0), 2), left, is_sum=False)
        elif operator is Operator.MUL:
            right, result, part = values[1], code.vector(2), code.vector()
            code.emit(f"v_mul_lo_u32 {result.word(0)}, {left.word(0)}, {right.word(0)}")
            code.emit(f"v_mul_hi_u32 {result.word(1)}, {left.word(0)}, {right.word(0)}")
            no_carry = "_nc" if self._new_add else ""
            for one, other in ((0, 1), (1, 0)):
                code.emit(f"v_mul_lo_u32 {part.text}, {left.word(one)}, {right.word(other)}")
                code.emit(f"v_add{no_carry}_u32_e32 {result.word(1)}, {result.word(1)}, {part.text}")
            self.move(destination, result, type_)
        elif operator in _BITWISE or operator is Operator.NOT:
            for number in range(2):
                words = [value.word(number) for value in values]
                name = _BITWISE.get(operator, "not")
                code.emit(f"v_{name}_b32_e32 {destination.word(number)}, {', '.join(words)}")
        elif operator in (Operator.MIN, Operator.MAX):
            takes = code.mask()
            relation = Relation.LT if operator is Operator.MIN else Relation.GT
            self.compare_into(takes, relation, left, values[1], type_)
            self._choose(destination, takes, left, values[1])
        elif operator is Operator.ABS:
            negative, is_negative = code.vector(2), code.mask()
            self.add_pair(negative, self.in_vector(Constant(type_, 0), 2), left, is_sum=False)
            self.compare_into(is_negative, Relation.LT, left, Constant(type_, 0), type_)
            self._choose(destination, is_negative, negative, left)
        else:
            self._shift_pair(destination, operator, type_, left, values[1])

    def _shift_pair(self, destination: Vector, operator: Operator, type_: Type, left: Vector, amount: Vector) -> None:
        """Append code that shifts 64 bits in a pair of VGPRs."""
        code = self.code
        is_arithmetic = operator is Operator.SHR and type_.is_signed
        name = "lshlrev_b64" if operator is Operator.SHL else "ashrrev_i64" if is_arithmetic else "lshrrev_b64"
        if self._machine.generation == 12 and operator is Operator.SHL:
            name = "lshlrev_b64_e64"
        by, result = code.vector(), code.vector(2)
        code.emit(f"v_min_u32_e32 {by.text}, 63, {amount.text}", f"v_{name} {result.text}, {by.text}, {left.text}")
        if is_arithmetic:
            self.move(destination, result, type_)
            return
        is_inside = code.mask()
        code.emit(f"v_cmp_gt_u32_e64 {is_inside.text}, 64, {amount.text}")
        for number in range(2):
            code.emit(f"v_cndmask_b32_e64 {destination.word(number)}, 0, {result.word(number)}, {is_inside.text}")

    def _vector_product_sum(self, destination: Vector, statement: Operation, values: list[Value]) -> None:
        """Add a product of 32-bit numbers to a number."""
        code = self.code
        left, right = (self.in_vector(value, 1) for value in values[:2])
        addend = self.in_vector(values[2], destination.words)
        result = code.vector(destination.words)
        code.emit(f"v_mul_lo_u32 {result.word(0)}, {left.text}, {right.text}")
        if destination.words == 1:
            no_carry = "_nc" if self._new_add else ""
            code.emit(f"v_add{no_carry}_u32_e32 {destination.text}, {result.text}, {addend.text}")
            return
        kind = "i32" if _type_of(statement.sources[0]).is_signed else "u32"
        code.emit(f"v_mul_hi_{kind} {result.word(1)}, {left.text}, {right.text}")
        self.add_pair(destination, result, addend)

    def _choose(self, destination: Vector, condition: Mask, then: Value, otherwise: Value) -> None:
        """Append code that takes one of two values in each lane, by a predicate. Neither may be partly in the
        destination."""
        words = destination.words
        first, second = self.in_vector(then, words), self.in_vector(otherwise, words)
        for number in range(words):
            self.code.emit(
                f"v_cndmask_b32_e64 {destination.word(number)}, {second.word(number)}, {first.word(number)},"
                f" {condition.text}"
            )

    # Conversions, comparisons

    def convert(self, statement: Convert) -> None:
        """Append code that converts a value between types of integers, or from and to predicates."""
        if reason := why_not(statement):
            raise CannotError(reason)
        to, source = statement.destination.type, _type_of(statement.source)
        value, destination = self.value(statement.source), self.place(statement.destination)
        if to is Type.PRED and source is not Type.PRED:
            self.compare_into(destination, Relation.NE, value, Constant(source, 0), source)
        elif source is Type.PRED and to is not Type.PRED:
            if isinstance(value, Mask):
                self.from_mask(destination, value, to)
            else:
                self.move(destination, Constant(to, value.bits if isinstance(value, Constant) else 0), to)
        else:
            self.integer(destination, to, value, source)

    def integer(self, destination: Place, to: Type, value: Value, source: Type) -> None:
        """Append code that extends an integer by its sign, or cuts it, to another type."""
        code = self.code
        prefix = "v" if isinstance(destination, Vector) else "s"
        if isinstance(value, Constant):
            self.move(destination, _converted(value, to), to)
            return
        if isinstance(value, Vector) and isinstance(destination, Scalar):
            raise CannotError("a value that differs between lanes is not one of the wave")
        if destination.words == 2 and value.words == 2:
            self.move(destination, value, to)
        elif destination.words == 2:
            code.emit(f"{prefix}_mov_b32{self._e32(destination)} {destination.word(0)}, {value.word(0)}")
            if not source.is_signed:
                code.emit(f"{prefix}_mov_b32{self._e32(destination)} {destination.word(1)}, 0")
            elif prefix == "v":
                code.emit(f"v_ashrrev_i32_e32 {destination.word(1)}, 31, {destination.word(0)}")
            else:
                code.emit(f"s_ashr_i32 {destination.word(1)}, {destination.word(0)}, 31")
        else:
            code.emit(f"{prefix}_mov_b32{self._e32(destination)} {destination.word(0)}, {value.word(0)}")
            if to.bits < source.bits or (to.bits < 32 and to.is_signed != source.is_signed):
                self._narrow(destination, to)

    def compare(self, statement: Compare) -> None:
        """Append code that compares two values and writes a predicate."""
        if reason := why_not(statement):
            raise CannotError(reason)
        left, right = self.value(statement.left), self.value(statement.right)
        self.compare_into(
            self.place(statement.destination), statement.relation, left, right, _type_of(statement.left)
        )

    def compare_into(self, destination: Place, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Append code that compares two integers into a predicate, which is 0 in lanes that are not active."""
        code, machine = self.code, self._machine
        if not isinstance(left, Vector) and not isinstance(right, Vector):
            self._scalar_test(relation, left, right, type_)
            code.emit(f"s_cselect_{machine.mask} {destination.text}, {machine.exec}, 0")
            return
        words = self.words(type_)
        kind = f"{'i' if type_.is_signed else 'u'}{32 * words}"
        one, other = self.in_vector(left, words), self.in_vector(right, words)
        code.emit(f"v_cmp_{_VECTOR_NAMES[relation]}_{kind}_e64 {destination.text}, {one.text}, {other.text}")

    def _scalar_test(self, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Set SCC to whether a relation holds of two integers in SGPRs."""
        code, machine, word = self.code, self._machine, self.word
        if self.words(type_) == 1:
            if isinstance(left, Constant) and isinstance(right, Constant):
                left = self._whole(left, left)
            kind = "i32" if type_.is_signed else "u32"
            code.emit(f"s_cmp_{_SCALAR_NAMES[relation]}_{kind} {word(left, 0)}, {word(right, 0)}")
            return
        first, second = self._whole(left, Constant(type_, 0)), self._whole(right, Constant(type_, 0))
        if relation in (Relation.EQ, Relation.NE):
            code.emit(f"s_cmp_{_SCALAR_NAMES[relation]}_u64 {first.text}, {second.text}")
            return
        if relation in _SWAPPED:
            relation, first, second = _SWAPPED[relation], second, first
            # a > b is b < a, and a <= b is b >= a.
        highs = [first.word(1), second.word(1)]
        if type_.is_signed:
            for number in range(2):
                flipped = code.scalar()
                code.emit(f"s_xor_b32 {flipped.text}, {highs[number]}, {_SIGN:#x}")
                highs[number] = flipped.text
        part = code.scalar()
        code.emit(f"{machine.subtract} {part.text}, {first.word(0)}, {second.word(0)}")
        code.emit(f"{machine.subtract_borrow} {part.text}, {highs[0]}, {highs[1]}")
        if relation is Relation.GE:
            # Not less: SCC is inverted.
            code.emit(f"s_cselect_b32 {part.text}, 0, 1", f"s_cmp_lg_u32 {part.text}, 0")

    def select(self, statement: Select) -> None:
        """Append code that takes one of two values, by a predicate."""
        condition = self.value(statement.condition)
        then, otherwise = self.value(statement.then), self.value(statement.otherwise)
        destination = self.place(statement.destination)
        self.select_into(destination, condition, then, otherwise)

    def select_into(self, destination: Place, condition: Value, then: Value, otherwise: Value) -> None:
        """Append code that takes one of two values, by a predicate, given the registers that have them."""
        code, machine = self.code, self._machine
        if not isinstance(condition, Mask):
            raise CannotError("a condition that is no predicate")
        if isinstance(destination, Mask):
            part = code.mask()
            texts = [
                value.text if not isinstance(value, Constant) else machine.exec if value.bits else "0"
                for value in (then, otherwise)
            ]
            code.emit(f"{machine.and_not} {part.text}, {texts[1]}, {condition.text}" if texts[1] != "0"
                      else f"s_mov_{machine.mask} {part.text}, 0")  # fmt: skip
            other = code.mask()
            code.emit(f"s_and_{machine.mask} {other.text}, {texts[0]}, {condition.text}")
            code.emit(f"s_or_{machine.mask} {destination.text}, {part.text}, {other.text}")
            code.emit(f"s_and_{machine.mask} {destination.text}, {destination.text}, {machine.exec}")
        elif isinstance(destination, Vector):
            self._choose(destination, condition, then, otherwise)
        else:
            code.emit(f"s_cmp_lg_{self._unsigned()} {condition.text}, 0")
            for number in range(destination.words):
                pair = f"{self.word(then, number)}, {self.word(otherwise, number)}"
                code.emit(f"s_cselect_b32 {destination.word(number)}, {pair}")


def _is_inline(bits: int) -> bool:
    """Return whether a 32-bit number is an inline constant of instructions."""
    return bits <= _INLINE.stop - 1 or bits >= (1 << 32) + _INLINE.start


def _type_of(value: object) -> Type:
    """Return the type of an operand."""
    if isinstance(value, (Register, Constant, Special)):
        return value.type
    raise CannotError(f"{value} has no type of its own")


def _converted(value: Constant, to: Type) -> Constant:
    """Return an integer constant in another type."""
    bits = value.bits
    if value.type.is_signed and bits >> value.type.bits - 1:
        bits -= 1 << value.type.bits
    return Constant(to, bits % (1 << to.bits))


def _locals_in(statement: Statement) -> set[str]:
    """Return the names of the local registers that a statement names, in those inside it, too."""
    found: set[str] = set()
    waiting: list[object] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Register):
            if node.is_local:
                found.add(node.name)
        elif isinstance(node, (tuple, list)):
            waiting += node
        elif hasattr(node, "__dataclass_fields__") and not isinstance(node, (Constant, SiteOperand)):
            waiting += [getattr(node, name) for name in node.__dataclass_fields__]
    return found
