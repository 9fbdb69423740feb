"""The values of OUT, IN1 …, ADDR and the other helpers at one instruction: the registers that hold them, and the code
that computes them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from neutrino.ptx.instrument.lanes_together import LaneMasks, leader, pieces
from neutrino.ptx.instrument.probe_block import block_number, thread_number
from neutrino.ptx.instrument.registers import Guard, Scratch, UnsupportedError, Value, bits
from neutrino.ptx.isa.forms import FLOATS, is_untyped, value_type
from neutrino.ptx.isa.instruction import (
    OF_REQUESTS,
    REGISTER,
    Address,
    Instruction,
    constant_bytes,
    constant_operations,
    matrix_depth,
    object_parts,
    opcode_value,
    read_address,
    vector_elements,
)
from neutrino.ptx.isa.opcodes import Measure, Role
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS, integer, known_integer
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.inserted import Lines, op, vector

_EVERYWHERE = frozenset({"LANES", "LEADER", "ELECTED", "THREAD", "BLOCK"})
"""Helpers that have a value wherever a probe runs."""
_OF_LEADERS = ("LEADER", "ELECTED")
_OF_LANES = ("LANES", *_OF_LEADERS, *OF_REQUESTS)
"""Those that each snippet has anew: it may be for other threads than the one before it."""


class PlaceOperands:
    """The values of helpers in a snippet at no single instruction: those that have one everywhere, and SITE and LINE
    at the beginning or end of a source line, and at places between instructions.

    Used as ``SiteOperands``. where: the place in messages, ``a source line``. number: the value of SITE; line: returns
    that of LINE; None without one. here: lines to put where the snippet goes, whose registers come from scratch.
    masks: of the place.
    """

    def __init__(
        self, where: str, number: int | None, line: Callable[[], int] | None, scratch: Scratch, masks: LaneMasks
    ) -> None:  # fmt: skip
        """Set up the values that probes' code may name at one place, as LANES. Parameters: see the class."""
        self._where = where
        self._masks = masks
        self._number = number
        self._line = line
        self._scratch = scratch
        # The values so far of those that have one everywhere.
        self._known: dict[str, Value] = {}
        self._guard: Guard | None = None
        self.here: Lines = []

    @classmethod
    def around(cls, scratch: Scratch, masks: LaneMasks) -> PlaceOperands:
        """Return what gives probes' code at a kernel's or function's entry and ends the values that it may name there.
        """
        return cls("the entry and ends of a kernel or function", None, None, scratch, masks)

    def begin_snippet(self, guard: Guard | None) -> None:
        """Begin another probe's code, in the threads of a guard, None for all: LANES are computed anew."""
        for helper in _OF_LANES:
            self._known.pop(helper, None)
        self._guard = guard

    def __call__(self, helper: str, element: str | None) -> Value:
        """Return the value of a helper (a name in a probe, such as LANES). Raises UnsupportedError if it has none."""
        if helper == "SITE" and self._number is not None:
            return Value(str(self._number), None)
        if helper == "LINE" and self._line is not None:
            return Value(str(self._line()), None)
        if helper not in _EVERYWHERE:
            raise UnsupportedError(f"{helper} has no meaning at {self._where}")
        if helper not in self._known:
            self._known[helper] = self._resolve(helper)
        return self._known[helper]

    def _resolve(self, helper: str) -> Value:
        """Return the value of one of ``_EVERYWHERE``, and append the code that computes it."""
        if helper in {"LEADER", "ELECTED"}:
            return leader(self("LANES", None), self._scratch, self.here)
        if helper != "LANES":
            return (thread_number if helper == "THREAD" else block_number)(self._scratch, self.here)
        return self._masks.of(self._guard, self._scratch, self.here)


_FLOAT = re.compile(
    r"(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|-?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+))\Z",
    re.ASCII,
)
# PTX ISA, "Constant Expressions": integers, WARP_SZ, operators and parentheses.
_CONSTANT = re.compile(r"[-+~!(\s]*(?:\d|WARP_SZ\b)[-+*/%<>=!&|^~?:()\s\w]*\Z", re.ASCII)
_ELEMENT = {"x": 0, "y": 1, "z": 2, "w": 3}
_LETTERS = "xyzw"
_EXACT = ("0f", "0F", "0d", "0D")
_PARTS = {f"b{number}": (8 * number, 8) for number in range(4)} | {"h0": (0, 16), "h1": (16, 16)}
"""Of a register, for video instructions, ``vadd.s32.u32.s32 d, a.b1, b.h0``: the first bit, and how many there are."""


def _without_parts(name: str) -> tuple[str, str]:
    """Split a register with a selection of bytes or halves, ``%r1.b1``, into its name and the selection; "" without
    one."""
    register, _, parts = name.rpartition(".")
    is_choice = parts[:1] in {"b", "h"} and parts[1:].isdecimal() and len(parts) <= 5
    return (register, parts) if is_choice else (name, "")


class SiteOperands:
    """The values of helpers (OUT, IN1, ADDR, BYTES …) in the snippets on one side, before or after, of one site: an
    instruction that probes match.

    Call it for a value. here: lines to put where the snippet goes. early: lines to put before the instruction, filled
    on the ``after`` side for values that the instruction overwrites. reads_operands: whether a value depended on more
    than the opcode. body, position: where the instruction is, in the module's text. after: the side. product: returns a
    register with a private copy of the product that a register holds, if ptxas may fuse it with a sum (see
    ``site_writer.Products.copy_of``), else None. module_addresses: by module variable, the register with its address.
    site: the value of SITE; line: returns that of LINE. choices: ``PossibleValues.of`` of the body. All new registers
    come from scratch. masks: of the place where the snippets go.
    """

    def __init__(
        self,
        instruction: Instruction,
        body: Body,
        position: int,
        scratch: Scratch,
        *,
        after: bool,
        module_addresses: Mapping[str, str],
        product: Callable[[str, bool], str | None],
        site: int = 0,
        line: Callable[[], int] = int,
        choices: Callable[[str, int], tuple[int, ...]] = lambda operand, position: (),
        masks: LaneMasks | None = None,
    ) -> None:
        """Set up the values that probes' code may name before or after an instruction. Parameters: see the class."""
        self._instruction = instruction
        self._body = body
        self._position = position
        self._scratch = scratch
        self._after = after
        self._module_addresses = module_addresses
        self._product = product
        self._site = site
        self._line = line
        self._choices = choices
        self._masks = masks or LaneMasks([])
        # The values so far, by helper and element.
        self._known: dict[tuple[str, str | None], Value] = {}
        # The predicate for LANES, None without one; and whether `begin_snippet` has set it.
        self._guard: Guard | None = None
        self._guard_known = False
        self.reads_operands = False
        self.here: Lines = []
        self.early: Lines = []

    @property
    def instruction(self) -> Instruction:
        """The instruction that the probes match here."""
        return self._instruction

    def begin_snippet(self, guard: Guard | None) -> None:
        """Begin another probe's code, for the threads for which the guard holds, None for all. LANES are computed anew;
        where this is never called, they are those of the instruction's own predicate."""
        self._guard, self._guard_known = guard, True
        for helper in _OF_LANES:
            self._known.pop((helper, None), None)

    def __call__(self, helper: str, element: str | None) -> Value:
        """Return the value of a helper (OUT, IN1, ADDR …). Raises UnsupportedError naming the instruction and what it
        lacks.

        element: of a vector operand, ``x`` to ``w`` or a number; None for the first or only one. With ``bits`` at its
        end (``bits``, ``y.bits``) the value has no type.
        """
        of_opcode = opcode_value(self._instruction, helper, element)
        if of_opcode is not None:
            return Value(str(of_opcode), None)
        if self._instruction.facts is None and helper not in {"PRED", "SITE", "LINE", *_EVERYWHERE}:
            raise UnsupportedError(f"{self._instruction.opcode} is no instruction of PTX ISA 9.0: it has no {helper}")
        # Only operands have elements.
        if element is not None and helper != "OUT" and not helper.startswith("IN"):
            raise self._lacks(f"{helper}.{element}")
        # BYTES and OPS often follow from the opcode alone.
        constant = None
        if helper == "BYTES":
            constant = constant_bytes(self._instruction)
        elif helper == "OPS":
            constant = constant_operations(self._instruction)
        if constant is not None:
            return Value(str(constant), None)
        self.reads_operands = True
        is_bits = element is not None and element.endswith("bits")
        if element is not None and is_bits:
            element = element.removesuffix("bits").rstrip(".") or None
        key = (helper, element)
        if key not in self._known:
            self._known[key] = self._resolve(helper, element)
        value = self._known[key]
        # The register stays: its bits are stored whatever its type.
        return replace(value, used_as="bits") if is_bits else value

    def _resolve(self, helper: str, element: str | None) -> Value:
        """Return the value of a name of a probe's, as ADDR, that takes more than the opcode. Raises UnsupportedError
        without one."""
        without_element: dict[str, Callable[[], Value]] = {
            "ADDR": self._own_address,
            "BYTES": self._bytes,
            "OPS": self._operations,
            "PRED": self._predicate,
            "LANES": self._lanes,
            **dict.fromkeys(_OF_LEADERS, lambda: leader(self("LANES", None), self._scratch, self.here)),
            "SECTORS": lambda: self._pieces(5),
            "DISTINCT": self._distinct,
            "THREAD": lambda: thread_number(self._scratch, self.here),
            "BLOCK": lambda: block_number(self._scratch, self.here),
            "SITE": lambda: Value(str(self._site), None),
            "LINE": lambda: Value(str(self._line()), None),
        }
        if helper in without_element:
            return without_element[helper]()
        if helper == "OUT":
            value, number = self._out(element), 0
        else:
            number = int(helper[2:])  # IN1 is the first source
            if number > len(self._instruction.sources):
                raise self._lacks(helper)
            value = self._source(self._instruction.sources[number - 1], helper, element)
        used_as = value_type(self._instruction.opcode, number)
        is_loaded = helper == "OUT" and used_as is not None and self._instruction.parts[0] in {"ld", "ldu"}
        loaded = bits(used_as) if is_loaded and used_as is not None else None
        # Untyped bits say less than the register. Of another width is what has parts, or is extended.
        if used_as is not None and (
            is_untyped(used_as) or (used_as in FLOATS and bits(used_as) != bits(value.type or used_as))
        ):
            used_as = None
        word = helper if element is None else f"{helper}.{element}"
        return replace(value, used_as=used_as, name=f"{word} of {self._instruction.opcode}", loaded=loaded)

    def _lacks(self, what: str, why: str = "") -> UnsupportedError:
        """Return the error for an instruction that lacks what a probe asks for. what: for instance an operand."""
        return UnsupportedError(f"{self._instruction.opcode} has no {what}" + (f": {why}" if why else ""))

    # OUT and IN

    def _out(self, element: str | None) -> Value:
        """Return OUT, as probes name it: the register that the instruction has written, or an element. Raises
        UnsupportedError."""
        instruction = self._instruction
        if not self._after:
            raise UnsupportedError(f"OUT of {instruction.opcode} does not exist before it")
        if instruction.is_asynchronous:
            raise UnsupportedError(
                f"{instruction.opcode} is asynchronous: its OUT is not there yet after it",
                "OUT of an instruction that waits for it, or no OUT here",
            )
        if not instruction.destinations:
            raise self._lacks("OUT")
        # Of two destinations, as "setp p|q" and "shfl d|p" have, the first.
        destination = instruction.destinations[0].partition("|")[0].strip()
        name = self._element(destination, "OUT", element)
        if name == "_" and element is None:
            # Any element shows that the result is there: the first that is not thrown away.
            name = next((each for each in vector_elements(destination) if each != "_"), name)
        if name == "_":
            raise UnsupportedError(f"OUT of {instruction.opcode} is thrown away (_)")
        # The destination of a video instruction on several parts at once has a mask of these.
        name = _without_parts(name)[0]
        register_type = self._register_type(name)
        if register_type is None:
            raise UnsupportedError(f"OUT of {instruction.opcode} is {name!r}, which is no register")
        self._check_width(register_type, "OUT")
        # A copy of the product, if ptxas may fuse it with a sum. True: it is this instruction's result.
        return Value(self._product(name, True) or name, register_type)

    def _source(self, operand: str, helper: str, element: str | None) -> Value:
        """Return the value of a source operand of the instruction, as written, also negated or in brackets, or of an
        element of it.

        helper, element: what the probe names, such as ``IN2`` and ``x``; element is that of ``__call__``.
        """
        if operand.startswith("["):
            # Either an object and coordinates, "[tex, {x, y}]", whose parts are the elements; or an address, which is
            # its own only element.
            parts = object_parts(operand)
            if not parts:
                if element not in {None, "x", "0"}:
                    raise self._lacks(f"{helper}.{element}")
                return self._address(operand)
            operand = vector(*parts)
        name = self._element(operand, helper, element)
        if name == "_":
            # An element that a store leaves out. Without a choice of the probe's, the first one that is stored.
            name = next((each for each in vector_elements(operand) if each != "_" and element is None), name)
            if name == "_":
                raise UnsupportedError(f"{helper}.{element or 0} of {self._instruction.opcode} is not stored (_)")
        negated = name.startswith("!")
        if negated:
            name = name[1:].strip()
        value = self._read(name, helper)
        if not negated:
            return value
        if value.type != "pred":
            raise self._unreadable("!" + name, helper)
        opposite = self._scratch.take("pred")
        self.here.append(op("not.pred", opposite, value.text))
        return Value(opposite, "pred")

    def _read(self, operand: str, helper: str) -> Value:
        """Return the value of a scalar operand of the instruction: a constant, a register or a part of one, or an
        address.

        helper: what the probe calls it. Raises UnsupportedError for anything else.
        """
        if _FLOAT.match(operand):
            return self._float(operand, helper)
        if _CONSTANT.match(operand):
            # An expression ("4+WARP_SZ") goes in parentheses, so that it is one operand wherever it is inserted.
            is_single = operand.lstrip("-").isalnum() or operand == "WARP_SZ"
            return Value(operand if is_single else f"({operand})", None)
        if operand in SPECIAL_REGISTERS and self._body.declaration(operand, self._position) is None:
            return Value(operand, SPECIAL_REGISTERS[operand])
        register_type = self._register_type(operand)
        if register_type is not None:
            self._check_width(register_type, helper)
            # A copy of the product that it holds, if ptxas may fuse that. False: of an earlier instruction.
            product = self._product(operand, False)
            return Value(product, register_type) if product is not None else self._preserved(operand, register_type)
        register, part = _without_parts(operand)
        if part and self._register_type(register) is not None:
            return self._register_part(register, part, helper)
        # Video instructions take "-a.b1".
        if operand.startswith("-") and self._register_type(operand[1:].partition(".")[0]) is not None:
            return self._negated(self._read(operand[1:], helper))
        address = read_address(f"[{operand}]")
        # What is left is the address of a variable, with or without an offset.
        if address is None or not REGISTER.fullmatch(address.base) or self._is_label(address.base):
            raise self._unreadable(operand, helper)
        return self._sum(address)

    def _unreadable(self, name: str, helper: str) -> UnsupportedError:
        """Return the error for an operand that a probe cannot read. helper: what names it in probes (``IN1``)."""
        return UnsupportedError(f"{helper} of {self._instruction.opcode} is {name!r}, which a probe cannot read")

    def _is_label(self, name: str) -> bool:
        """Return whether an operand is a label, function, texture or surface, which has no value that could be moved.

        This is judged by what operands the instruction takes.
        """
        roles = self._instruction.facts.operands if self._instruction.facts else ()
        if Role.LABEL in roles:
            return True
        # The object of "cp.async.bulk.tensor" is a tensor map: a variable, which has an address.
        is_object = Role.OBJECT in roles and self._instruction.parts[0] != "cp"
        return is_object and self._body.declaration(name, self._position) is None

    def _element(self, operand: str, helper: str, element: str | None) -> str:
        """Return the text of an element of an operand: of ``{a, b}`` or a vector register, or the operand itself.

        element: ``x`` to ``w`` or a number, None for the first. Raises UnsupportedError where the operand has too few.
        """
        elements = vector_elements(operand)
        # An instruction on vectors also takes one vector register, whose elements have names of their own.
        count = self._instruction.elements
        if len(elements) == 1 and count > 1 and self._is_vector_register(operand):
            elements = tuple(f"{operand}.{letter}" for letter in _LETTERS[:count])
        index = 0
        if element is not None:
            index = _ELEMENT[element] if element in _ELEMENT else int(element)
        if index >= len(elements):
            raise self._lacks(f"{helper}.{element}")
        return elements[index]

    def _is_vector_register(self, name: str) -> bool:
        """Whether a name is that of a vector register, declared as ``.reg .v4 .f32``."""
        declaration = self._body.declaration(name, self._position)
        return declaration is not None and declaration.space == "reg" and declaration.is_vector

    def _float(self, number: str, helper: str) -> Value:
        """Return a floating-point constant in a register, since moves of untyped bits take no such constants.

        number: as written, ``0f3F800000``, ``0d…`` or a decimal fraction, whose type is that of the instruction.
        helper: which operand it is.
        """
        if number[:2] in _EXACT:
            is_double = number[1] in "dD"
        else:
            types = [part for part in self._instruction.parts if part in {"f32", "f64"}]
            # Of several types the last is that of the sources, but "slct.f64.f32 d, a, b, c" has it for c alone.
            is_first_type = self._instruction.parts[0] == "slct" and helper != "IN3"
            is_double = types[:1] == ["f64"] if is_first_type else types[-1:] == ["f64"]
            # The exact form of PTX: the bits as big-endian hexadecimal digits.
            letter, code = ("d", ">d") if is_double else ("f", ">f")
            try:
                number = f"0{letter}" + struct.pack(code, float(number)).hex().upper()
            except OverflowError:
                message = f"{number} does not fit into {self._instruction.opcode}'s type"
                raise UnsupportedError(message) from None
        float_type = "f64" if is_double else "f32"
        name = self._scratch.take("b64" if is_double else "b32")
        self.here.append(op(f"mov.{float_type}", name, number))
        return Value(name, float_type)

    def _register_part(self, register: str, part: str, helper: str) -> Value:
        """Return the byte or half of a register that an instruction reads, extended to 32 bits as the instruction
        itself does.

        part: ``b`` or ``h`` and its number. Raises UnsupportedError for another instruction or operand.
        """
        # The types of "vadd.s32.u32.s32 d, a.b1, b.h0": of the destination, of the first and of the second source. So
        # IN1 and IN2 have those at 1 and 2.
        types = [modifier for modifier in self._instruction.parts[1:] if modifier in {"s32", "u32"}]
        source = int(helper[2:]) if helper.startswith("IN") else 0
        if source not in {1, 2} or len(types) < 3 or part not in _PARTS:
            raise self._unreadable(f"{register}.{part}", helper)
        whole = self._preserved(register, "b32")
        first, width = _PARTS[part]
        name = self._scratch.take("b32")
        self.here.append(op(f"bfe.{types[source]}", name, whole.text, str(first), str(width)))
        return Value(name, types[source])

    def _negated(self, value: Value) -> Value:
        """Return the negated value of a register of 32 bits, in a new register."""
        name = self._scratch.take("b32")
        self.here.append(op("neg.s32", name, value.text))
        return Value(name, "s32")

    def _register_type(self, name: str) -> str | None:
        """The type of a register, or of an element of a vector register (``%v.x``); None if the name is neither."""
        declaration = self._body.declaration(name, self._position)
        if declaration is None and name[-2:] in {".x", ".y", ".z", ".w"}:
            declaration = self._body.declaration(name[:-2], self._position)
        return declaration.type if declaration is not None and declaration.space == "reg" else None

    def _check_width(self, kind: str, helper: str) -> None:
        """Raise UnsupportedError if a register of the program is wider than any that probes have. helper: what reads
        it."""
        if bits(kind) > 64:
            raise UnsupportedError(
                f"{helper} of {self._instruction.opcode} is a .{kind} register, and a probe's hold at most 64 bits"
            )

    def _preserved(self, name: str, kind: str) -> Value:
        """Return the value of a register before the instruction: the register, or a copy made before if it is
        overwritten.

        A copy is needed for a snippet after the instruction. name: the register's, or ``%v.x`` for an element of a
        vector register. kind: its type.
        """
        written = self._instruction.written
        if not (self._after and (name in written or name.partition(".")[0] in written)):
            return Value(name, kind)
        wide = bits(kind)
        copy = self._scratch.take(f"b{wide}" if wide else "pred")
        self.early.append(op(f"mov.{f'b{wide}' if wide else 'pred'}", copy, name))
        return Value(copy, kind)

    # PRED and LANES

    def _predicate(self) -> Value:
        """Return PRED, as probes name it: whether the thread executes the instruction; true for one without a
        predicate."""
        instruction = self._instruction
        if instruction.predicate is None:
            always = self._scratch.take("pred")
            self.here.append(op("mov.pred", always, "1"))
            return Value(always, "pred")
        value = self._preserved(instruction.predicate, "pred")
        if not instruction.negated:
            return value
        opposite = self._scratch.take("pred")
        self.here.append(op("not.pred", opposite, value.text))
        return Value(opposite, "pred")

    def _lanes(self) -> Value:
        """Return LANES, as probes name it: the mask of the active lanes for which the guard or the instruction's
        predicate holds."""
        return self._masks.of(self._executing(), self._scratch, self.here)

    def _executing(self) -> Guard | None:
        """Return the guard of the threads that a snippet is for."""
        # `begin_snippet` was not called.
        if not self._guard_known and self._instruction.predicate is not None:
            return Guard(self._preserved(self._instruction.predicate, "pred").text, self._instruction.negated)
        return self._guard

    def _pieces(self, shift: int) -> Value:
        """Return how many different aligned pieces of ``1 << shift`` bytes the lanes here access."""
        lanes, address = self("LANES", None), self("ADDR", None)
        return pieces(address, lanes, self._executing(), shift, self._scratch.take, self.here)

    def _distinct(self) -> Value:
        """Return DISTINCT, as probes name it: how many different bytes the lanes here access."""
        size, value = self("BYTES", None), self._pieces(0)
        if size.type is not None:
            raise self._lacks("DISTINCT", "how many bytes it accesses does not stand in it")
        self.here.append(op("mul.lo.u32", value.text, value.text, size.text))
        return value

    # ADDR

    def _own_address(self) -> Value:
        """Return ADDR, as probes name it: the address that the instruction accesses; of a copy the one in global
        memory."""
        instruction = self._instruction
        roles = instruction.facts.operands if instruction.facts else ()
        # strict=False: operands at the end may be left out.
        addresses = [
            operand
            for operand, role in zip(instruction.operands, roles, strict=False)
            if role is Role.ADDRESS and operand.startswith("[")
        ]
        if not addresses:
            has_object = Role.OBJECT in roles
            raise self._lacks("ADDR", "an object and coordinates name the memory" if has_object else "")
        if len(addresses) > 1:
            # A copy, "cp.async.ca.shared.global [dst], [src]": the spaces stand in the order of the addresses.
            modifiers = [part.partition("::")[0] for part in instruction.parts]
            spaces = [modifier for modifier in modifiers if modifier in {"global", "shared"}]
            if spaces[:2] == ["shared", "global"]:
                return self._address(addresses[1])
        return self._address(addresses[0])

    def _address(self, operand: str) -> Value:
        """Return the value of an operand that is an address in brackets. Raises UnsupportedError for one of an unknown
        form.
        """
        address = read_address(operand)
        if address is None:
            raise UnsupportedError(f"the address {operand!r} of {self._instruction.opcode} is no plain one")
        return self._sum(address)

    def _sum(self, address: Address) -> Value:
        """Return the value of an address operand, base plus offset, in a register of 64 bits or as an integer.

        The base is an integer, a register, a module variable, or another variable (shared, local or a parameter).
        Raises UnsupportedError for an offset that is no integer and for a register of another width than 32 or 64 bits.
        """
        base, offset = address.base, address.offset
        if offset[0].isalpha() or offset[0] in "_$%":
            raise UnsupportedError(f"the address holds {offset!r}, which is no integer")
        if base[0].isdigit() or base[0] == "-":
            if offset == "0":
                return Value(base, None)
            return Value(str(_integer(base) + _integer(offset)), None)
        kind = self._register_type(base)
        register = program = None
        if kind is not None:
            value = self._preserved(base, kind)
            if bits(kind) == 64:
                register = value.text
                constant = known_integer(offset)
                program = (base, constant) if constant is not None else None
            elif bits(kind) == 32:
                # Addresses of 32 bits are summed in 32 bits, where they wrap around: a negative base and an offset may
                # give a valid address.
                low = value.text
                if offset != "0":
                    low = self._scratch.take("b32")
                    self.here.append(op("add.u32", low, value.text, offset))
                register = self._scratch.take("b64")
                self.here.append(op("cvt.u64.u32", register, low))
                return Value(register, "b64")
        # A local declaration of the same name hides the module's.
        elif base in self._module_addresses and self._body.declaration(base, self._position) is None:
            register = self._module_addresses[base]
        else:
            register = self._scratch.take("b64")
            self.here.append(op("mov.u64", register, base))
        if register is None:
            raise UnsupportedError(f"the address register {base} of {self._instruction.opcode} has an unknown width")
        if offset == "0":
            return Value(register, "b64", address=program)
        total = self._scratch.take("b64")
        self.here.append(op("add.s64", total, register, offset))
        return Value(total, "b64", address=program)

    # BYTES and OPS that depend on operands

    def _bytes(self) -> Value:
        """Return BYTES, as probes name it, of an instruction with an operand for the size. Raises UnsupportedError for
        others."""
        facts = self._instruction.facts
        if facts is not None and facts.measure is Measure.COPY:
            return self._async_copy_bytes()
        if facts is not None and Role.SIZE in facts.operands:
            index = facts.operands.index(Role.SIZE)
            if index < len(self._instruction.operands):
                return self._widened(self._instruction.operands[index])
        has_object = facts is not None and Role.OBJECT in facts.operands
        raise self._lacks("BYTES", "an object and coordinates name the memory" if has_object else "")

    def _widened(self, operand: str) -> Value:
        """Return the value of a size operand, mostly of 32 bits, in a register of 64 bits or as an integer: BYTES is a
        u64."""
        value = self._source(operand, "BYTES", None)
        if value.type is None:
            return value
        choices = self._choices(operand, self._position)
        if len(choices) == 1:
            return Value(str(choices[0]), None)
        if bits(value.type) == 64:
            return replace(value, choices=choices)
        wide = self._scratch.take("b64")
        self.here.append(op("cvt.u64.u32", wide, value.text))
        return Value(wide, "b64", choices=choices)

    def _async_copy_bytes(self) -> Value:
        """Return BYTES of ``cp.async [dst], [src], cp-size{, src-size | ignore-src}{, cache-policy};``: what it reads.

        That is src-size bytes if given, none if the predicate ignore-src holds, else cp-size.
        """
        operands = list(self._instruction.operands)
        # Without the cache policy, which is the last operand.
        if "L2::cache_hint" in self._instruction.parts:
            operands = operands[:-1]
        if len(operands) < 3:
            raise self._lacks("BYTES")
        if len(operands) == 3:
            return self._widened(operands[2])
        copy_size, last = operands[2:4]
        # The last one is a predicate, maybe negated, or a size.
        declaration = self._body.declaration(last.lstrip("! "), self._position)
        if declaration is None or declaration.type != "pred":
            return self._widened(last)
        size = self._scratch.take("b64")
        if_false, if_true = (copy_size, "0") if not last.startswith("!") else ("0", copy_size)
        self.here.append(op("selp.b64", size, if_true, if_false, last.lstrip("! ")))
        choices = {value for part in ("0", copy_size) for value in self._choices(part, self._position) or (-1,)}
        return Value(size, "b64", choices=() if -1 in choices else tuple(sorted(choices)))

    def _operations(self) -> Value:
        """Return OPS of ``tcgen05.mma``, 2 * M * N * K for a product of matrices of M x K and K x N.

        M and N are in its instruction descriptor, a register: N/8 in bits 17 to 22, M/16 in bits 24 to 28 (PTX ISA,
        "tcgen05 Instruction descriptor"). K follows from the opcode, for some with a choice of two in bit 31.
        """
        instruction = self._instruction
        facts = instruction.facts
        if facts is None or facts.measure is not Measure.DESCRIPTOR:
            raise self._lacks("OPS")
        index = facts.operands.index(Role.DESCRIPTOR)
        depth = matrix_depth(instruction)
        if depth is None or index >= len(instruction.operands):
            raise self._lacks("OPS", "its kind has no known depth")
        descriptor = self._source(instruction.operands[index], "OPS", None).text
        rows, columns = self._scratch.take("b32"), self._scratch.take("b32")
        wide = self._scratch.take("b64")
        self.here += [
            op("bfe.u32", rows, descriptor, "24", "5"),
            op("bfe.u32", columns, descriptor, "17", "6"),
            op("mul.lo.u32", rows, rows, columns),
        ]
        k, longer = depth
        # Two operations per multiplication and addition; the descriptor holds M / 16 and N / 8.
        factor = 2 * 16 * 8
        if longer:
            # Bit 31 chooses between the two K of a four-bit kind: the factor for k, or that for the longer one.
            self.here += [
                op("bfe.u32", columns, descriptor, "31", "1"),
                op("mad.lo.u32", columns, columns, str(factor * (longer - k)), str(factor * k)),
                op("mul.wide.u32", wide, rows, columns),
            ]
        else:
            self.here.append(op("mul.wide.u32", wide, rows, str(factor * k)))
        return Value(wide, "b64")


def _integer(text: str) -> int:
    """The value of an integer as PTX writes it. Raises UnsupportedError if it is none."""
    try:
        return integer(text)
    except ValueError:
        raise UnsupportedError(f"the address holds {text!r}, which is no integer") from None
