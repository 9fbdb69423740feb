"""Values as fields of records hold them.

lines: the instructions that convert are appended to them.
"""

from __future__ import annotations

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.instrument.private_registers import Take
from neutrino.ptx.instrument.values import FLOATING, UnsupportedError, Value, bits

# PTX ISA, "Floating-Point Constants": how the exact ones begin. They are no operands of moves of bits.
_EXACT_FLOAT = {"0f": "f32", "0d": "f64"}


def converted(value: Value, field: Field, take: Take, lines: list[str]) -> Value:
    """The value in a register of the field's width (at least that, for fields below 32 bits).

    Raises UnsupportedError for a value that no field can hold.
    """
    wanted = max(field.type.size * 8, 16)
    if value.type is None or value.text in SPECIAL_REGISTERS:
        kind = value.type or _EXACT_FLOAT.get(value.text[:2].lower(), f"b{wanted}")
        name = take(f"b{bits(kind)}")
        lines.append(f"mov.{kind} {name}, {value.text};")
        value = Value(name, kind)
    elif value.type == "pred":
        name = take("b32")
        lines.append(f"selp.u32 {name}, 1, 0, {value.text};")
        value = Value(name, "u32")
    have = bits(value.type or "")
    if have == wanted or (have == 32 and wanted == 16):
        return value
    name = take(f"b{wanted}")
    if field.type is ScalarType.F32 and value.type == "f64":
        lines.append(f"cvt.rn.f32.f64 {name}, {value.text};")
    elif field.type is ScalarType.F64 and value.type == "f32":
        lines.append(f"cvt.f64.f32 {name}, {value.text};")
    elif 0 < have <= 64:
        letter = "s" if field.type.value[0] == "s" else "u"
        lines.append(f"cvt.{letter}{wanted}.{letter}{have} {name}, {as_bits(value, take, lines)};")
    else:
        raise UnsupportedError(f"a value of type .{value.type} cannot be saved as {field.type.value}")
    return Value(name, f"b{wanted}")


def copied(value: Value, take: Take, lines: list[str]) -> Value:
    """The value in a register of its own, as bits."""
    kind = f"b{bits(value.type or '')}"
    name = take(kind)
    lines.append(f"mov.{kind} {name}, {value.text};")
    return Value(name, kind)


def as_bits(value: Value, take: Take, lines: list[str]) -> str:
    """The value in a register that integer instructions take: those for floating point are another class."""
    return copied(value, take, lines).text if value.type in FLOATING else value.text
