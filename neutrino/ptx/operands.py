"""OUT, IN1 …, ADDR and BYTES of one instruction: which registers hold them, and what is needed to get at
them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.body import Body
from neutrino.ptx.emission import Scratch, UnsupportedError, Value, bits
from neutrino.ptx.instruction import (
    REGISTER,
    Address,
    Instruction,
    read_address,
    vector_elements,
)
from neutrino.ptx.module import TYPE_BYTES

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?\Z", re.ASCII)
_OCTAL = re.compile(r"-?0\d+\Z", re.ASCII)
_IMMEDIATE = re.compile(r"-?(?:\d\w*|\d*\.\d+(?:[eE][-+]?\d+)?|WARP_SZ)\Z", re.ASCII)
_FRACTION = re.compile(r"-?\d*\.\d+(?:[eE][-+]?\d+)?\Z", re.ASCII)
_ELEMENT = {"x": 0, "y": 1, "z": 2, "w": 3}

# Instructions that move TYPE × vector bytes for each thread (PTX ISA, 9.7.9 and 9.7.13).
_ACCESSES = frozenset({"ld", "ldu", "st", "atom", "red"})
_MULTIMEM_ACCESSES = frozenset({"ld_reduce", "st", "red"})


class SiteOperands:
    """Answers for the helpers at one side of one site.

    here: lines to put where the snippet goes. early: lines to put before the instruction, filled on the
    ``after`` side for values that the instruction overwrites. reads_operands: an answer depended on more than
    the opcode. product: gives a private copy of a product that may be fused, or None. module_addresses: the
    registers that hold module variables' addresses. All registers come from scratch.
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
    ) -> None:
        self._instruction = instruction
        self._body = body
        self._position = position
        self._scratch = scratch
        self._after = after
        self._module_addresses = module_addresses
        self._product = product
        self._known: dict[tuple[str, str | None], Value] = {}
        self.reads_operands = False
        self.here: list[str] = []
        self.early: list[str] = []

    def __call__(self, helper: str, element: str | None) -> Value:
        """The value of a helper. Raises UnsupportedError naming the instruction and what it lacks."""
        key = (helper, element)
        width = self._access_width() if helper == "BYTES" else None
        if width is not None:
            return Value(str(width), None)
        self.reads_operands = True
        if key not in self._known:
            self._known[key] = self._resolve(helper, element)
        return self._known[key]

    def _resolve(self, helper: str, element: str | None) -> Value:
        if helper == "OUT":
            return self._out(element)
        if helper == "ADDR":
            return self._address(self._memory_operand())
        if helper == "BYTES":
            return self._bytes()
        number = int(helper[2:])
        if number > len(self._instruction.sources):
            raise self._lacks(helper)
        return self._source(self._instruction.sources[number - 1], helper, element)

    def _lacks(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self._instruction.opcode} has no {what}")

    def _out(self, element: str | None) -> Value:
        instruction = self._instruction
        if not self._after:
            raise UnsupportedError(f"OUT of {instruction.opcode} does not exist before it")
        if instruction.is_asynchronous:
            raise UnsupportedError(
                f"{instruction.opcode} is asynchronous: its OUT is not there yet behind it"
            )
        if not instruction.has_destination:
            raise self._lacks("OUT")
        name = self._element(instruction.operands[0].split("|")[0].strip(), "OUT", element)
        if name == "_":
            raise UnsupportedError(f"OUT of {instruction.opcode} is thrown away (_)")
        kind = self._register_type(name, "OUT")
        return Value(self._product(name, True) or name, kind)

    def _source(self, operand: str, helper: str, element: str | None) -> Value:
        if operand.startswith("["):
            return self._address(operand)
        name = self._element(operand, helper, element)
        if _IMMEDIATE.match(name):
            return Value(self._exact(name), None)
        if name in SPECIAL_REGISTERS:
            return Value(name, SPECIAL_REGISTERS[name])
        declaration = self._body.declaration(name, self._position)
        if declaration is not None and declaration.space == "reg":
            product = self._product(name, False)
            if product is not None:
                return Value(product, declaration.type)
            return self._preserved(name, declaration.type)
        parts = read_address(f"[{name}]")
        if parts is None or not REGISTER.fullmatch(parts.base):
            raise UnsupportedError(
                f"{helper} of {self._instruction.opcode} is {name!r}, which a probe cannot read"
            )
        return self._sum(parts)

    def _exact(self, number: str) -> str:
        """A decimal fraction as the bits that the instruction takes for it; any other number as it is."""
        if not _FRACTION.match(number):
            return number
        letter, code = ("f", ">f") if self._instruction.type == "f32" else ("d", ">d")
        try:
            return f"0{letter}" + struct.pack(code, float(number)).hex().upper()
        except OverflowError:
            raise UnsupportedError(f"{number} does not fit into {self._instruction.opcode}'s type") from None

    def _element(self, operand: str, helper: str, element: str | None) -> str:
        elements = vector_elements(operand)
        index = _ELEMENT[element] if element else 0
        if index >= len(elements):
            raise self._lacks(f"{helper}.{element}")
        return elements[index]

    def _register_type(self, name: str, helper: str) -> str:
        declaration = self._body.declaration(name, self._position)
        if declaration is None or declaration.space != "reg":
            raise UnsupportedError(
                f"{helper} of {self._instruction.opcode} is {name!r}, which is no register"
            )
        return declaration.type

    def _preserved(self, name: str, kind: str) -> Value:
        """The register, or where the instruction overwrites it a copy from before."""
        if not (self._after and name in self._instruction.written):
            return Value(name, kind)
        wide = bits(kind)
        copy = self._scratch.take(f"b{wide}" if wide else "pred")
        self.early.append(f"mov.{f'b{wide}' if wide else 'pred'} {copy}, {name};")
        return Value(copy, kind)

    def _memory_operand(self) -> str:
        """The operand whose address ADDR is: of a copy between two spaces, the side in global memory."""
        found = [operand for operand in self._instruction.operands if operand.startswith("[")]
        if not found:
            raise self._lacks("ADDR")
        if self._instruction.parts[0] == "cp" and len(found) > 1:
            spaces = [part.partition("::")[0] for part in self._instruction.parts]
            places = [part for part in spaces if part in {"global", "shared"}]
            if places[:2] == ["shared", "global"]:
                return found[1]
        return found[0]

    def _address(self, operand: str) -> Value:
        address = read_address(operand)
        if address is None:
            raise UnsupportedError(f"the address {operand!r} of {self._instruction.opcode} is no plain one")
        return self._sum(address)

    def _sum(self, address: Address) -> Value:
        base, offset = address.base, address.offset
        if _INTEGER.match(base):
            if offset == "0":
                return Value(base, None)
            return Value(str(_integer(base) + _integer(offset)), None)
        declaration = self._body.declaration(base, self._position)
        register = None
        if declaration is not None and declaration.space == "reg":
            value = self._preserved(base, declaration.type)
            if bits(declaration.type) == 64:
                register = value.text
            elif bits(declaration.type) == 32:
                register = self._scratch.take("b64")
                self.here.append(f"cvt.u64.u32 {register}, {value.text};")
        elif declaration is None and base in self._module_addresses:
            register = self._module_addresses[base]
        else:
            register = self._scratch.take("b64")
            self.here.append(f"mov.u64 {register}, {base};")
        if register is None:
            raise UnsupportedError(
                f"the address register {base} of {self._instruction.opcode} has an unknown width"
            )
        if offset == "0":
            return Value(register, "b64")
        total = self._scratch.take("b64")
        self.here.append(f"add.s64 {total}, {register}, {offset};")
        return Value(total, "b64")

    def _access_width(self) -> int | None:
        """Bytes that one thread's load, store or atomic moves, None for other instructions."""
        instruction = self._instruction
        parts = instruction.parts
        plain = parts[0] in _ACCESSES and parts[1:2] != ("bulk",)
        multimem = parts[0] == "multimem" and parts[1:2] and parts[1] in _MULTIMEM_ACCESSES
        if not (plain or multimem) or instruction.type is None:
            return None
        return TYPE_BYTES[instruction.type] * instruction.elements

    def _bytes(self) -> Value:
        parts = self._instruction.parts
        if parts[:2] == ("st", "bulk"):
            return self._size(1)
        if parts[:2] == ("cp", "async") and len(parts) > 2 and parts[2] in {"ca", "cg"}:
            return self._async_copy_bytes()
        if "tensor" not in parts and parts[:3] == ("cp", "async", "bulk") and len(parts) > 3:
            if parts[3] == "prefetch":
                return self._size(1)
            if parts[3].partition("::")[0] in {"shared", "global"}:
                return self._size(2)
        if "tensor" not in parts and parts[:4] == ("cp", "reduce", "async", "bulk"):
            return self._size(2)
        raise self._lacks("BYTES")

    def _size(self, index: int) -> Value:
        if index >= len(self._instruction.operands):
            raise self._lacks("BYTES")
        return self._widened(self._instruction.operands[index])

    def _widened(self, operand: str) -> Value:
        value = self._source(operand, "BYTES", None)
        if value.type is None or bits(value.type) == 64:
            return value
        wide = self._scratch.take("b64")
        self.here.append(f"cvt.u64.u32 {wide}, {value.text};")
        return Value(wide, "b64")

    def _async_copy_bytes(self) -> Value:
        """``cp.async [dst], [src], cp-size{, src-size | ignore-src}{, cache-policy};`` reads src-size bytes,
        or none."""
        operands = list(self._instruction.operands)
        if "L2::cache_hint" in self._instruction.parts:
            operands = operands[:-1]
        if len(operands) < 3:
            raise self._lacks("BYTES")
        if len(operands) == 3:
            return self._widened(operands[2])
        choice = operands[3]
        declaration = self._body.declaration(choice.lstrip("! "), self._position)
        if declaration is None or declaration.type != "pred":
            return self._widened(choice)
        size = self._scratch.take("b64")
        whole, none = (operands[2], "0") if not choice.startswith("!") else ("0", operands[2])
        self.here.append(f"selp.b64 {size}, {none}, {whole}, {choice.lstrip('! ')};")
        return Value(size, "b64")


def _integer(text: str) -> int:
    digits = text.rstrip("uU")
    try:
        return int(digits, 8 if _OCTAL.match(digits) else 0)
    except ValueError:
        raise UnsupportedError(f"the address holds {text!r}, which is no integer") from None
