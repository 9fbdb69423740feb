"""What machine code without loops computes, as expressions of what it loads, read from nvdisasm's listing.

Instructions are followed in the order in which they lie there. Branches are passed by: those of probes go around code
that leaves the program's registers alone.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from neutrino.toolchain.location import find_tool

Value = tuple[object, ...]

_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$]+)")
_CODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(.*?);")
_INSTRUCTION = re.compile(r"(?P<guard>@!?U?P\d\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*)")
_REGISTER = re.compile(r"(?P<negative>-)?(?P<size>\|)?(?P<name>R\d+|RZ)\b")
_ADDRESS = re.compile(r"\[U?R[\w.]*(?:\+U?R\w+)?(?:\+(-?0x[0-9a-f]+))?\](?!\[)")
_ZERO: Value = ("0",)


def expressions(cubin: bytes, folder: Path) -> dict[str, dict[int, Value]]:
    """By kernel, what is stored at each offset from a pointer."""
    path = folder / "values.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([find_tool("nvdisasm"), "-c", path], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[int, Value]] = {}
    registers: dict[str, Value] = {}
    stored: dict[int, Value] = {}
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            registers, stored = {}, found.setdefault(section[1], {})
        elif code := _CODE.search(line):
            _step(code[1].replace(".reuse", "").strip(), registers, stored)
    return found


def _step(text: str, registers: dict[str, Value], stored: dict[int, Value]) -> None:
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        return
    opcode, *modifiers = match["opcode"].split(".")
    operands = [operand.strip() for operand in match["operands"].split(",")]
    kept = [modifier for modifier in modifiers if modifier in ("FTZ", "SAT")]
    if opcode == "STG":
        address = _ADDRESS.search(operands[0])
        stored[int(address[1] or "0", 16) if address else 0] = _value(operands[-1], registers)
        return
    target = re.match(r"R\d+\b", operands[0])
    if target is None:
        return
    values = [_value(operand, registers) for operand in operands[1:]]
    if opcode == "LDG":
        address = _ADDRESS.search(operands[1])
        value: Value = ("load", address[1] if address else None)
    elif opcode in ("FMUL", "FFMA"):
        negative = sum(factor[0] == "-" for factor in values[:2]) % 2
        factors = sorted((factor[1] if factor[0] == "-" else factor for factor in values[:2]), key=repr)
        value = (opcode, *kept, "-" if negative else "+", *factors, *values[2:])
        if opcode == "FFMA" and values[2] == ("-", _ZERO):
            value = ("FMUL", *value[1:-1])
    elif opcode == "FADD":
        terms = [term for term in values[:2] if term != ("-", _ZERO)] if not kept else values[:2]
        value = terms[0] if len(terms) == 1 else ("FADD", *kept, *sorted(terms, key=repr))
    elif opcode == "MOV":
        value = values[0]
    elif opcode == "FSEL":
        value = _chosen(values[0], values[1])
    else:
        value = (match["opcode"], *values)
    if match["guard"]:
        value = _chosen(value, registers.get(target[0], _ZERO))
    registers[target[0]] = value


def _chosen(one: Value, other: Value) -> Value:
    """One of two values. Scaling by a power of two, as before a reciprocal, is left out: ptxas selects what to scale
    by predicates or by FSEL, and spares itself what it knows to be needless."""
    for scaled, plain in ((one, other), (other, one)):
        if scaled[:2] == ("FMUL", "+") and plain in scaled[2:] and {("0.25",), ("16777216",)} & set(scaled[2:]):
            return plain
    return ("if", *sorted((one, other), key=repr))


def _value(operand: str, registers: dict[str, Value]) -> Value:
    match = _REGISTER.match(operand)
    if match is None:
        return (operand,)
    value = _ZERO if match["name"] == "RZ" else registers.get(match["name"], ("unset",))
    if match["size"]:
        value = ("abs", value)
    if match["negative"]:
        value = value[1] if value[0] == "-" else ("-", value)
    return value
