"""Every form of the arithmetic instructions, and what nvdisasm says that they became: counts to hold ours against.

``neutrino/sass/arithmetic.py`` reads the words of machine code alone.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elftools.elf.elffile import ELFFile

from neutrino.sass.arithmetic import count_arithmetic
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")

_HEADER = """.version 8.8
.target {arch}
.address_size 64
.visible .entry forms(.param .u64 p, .param .f32 pf, .param .f64 pd, .param .b32 ph)
{{
.reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b32 %h<9>; .reg .b16 %s<9>; .reg .b64 %q<9>; .reg .u64 %a;
ld.param.u64 %a, [p]; ld.param.f32 %f8, [pf]; ld.param.f64 %d8, [pd]; ld.param.b32 %h8, [ph];
cvta.to.global.u64 %a, %a;
"""


@dataclass(frozen=True)
class _Type:
    """name: PTX type; register: prefix; bits: type for loads; operands: other operands than registers, as written."""

    name: str
    register: str
    bits: str
    operands: tuple[str, ...]
    modifiers: tuple[str, ...]
    first: int


_TYPES = (
    _Type("f32", "%f", "f32", ("0f40490FDB", "%f8"), ("", ".rn", ".rz", ".ftz", ".sat", ".rn.ftz.sat"), 75),
    _Type("f64", "%d", "f64", ("0d4000000000000000", "%d8"), ("", ".rn", ".rp"), 75),
    _Type("f16x2", "%h", "b32", ("%h7", "%h6", "%h8"), ("", ".rn", ".ftz", ".sat"), 75),
    _Type("f16", "%s", "b16", ("%s7", "%s6"), ("", ".rn", ".ftz", ".sat"), 75),
    _Type("bf16x2", "%h", "b32", ("%h7", "%h5", "%h8"), ("", ".rn"), 90),
    _Type("bf16", "%s", "b16", ("%s7", "%s5"), ("", ".rn"), 90),
    _Type("f32x2", "%q", "b64", (), ("", ".rn", ".ftz", ".rz"), 100),
)


def forms(arch: str) -> str:
    """PTX of one kernel that holds every form of the arithmetic instructions which arch has."""
    number = int(re.sub(r"\D", "", arch))
    lines = [_HEADER.format(arch=arch)]
    for index in range(3):
        lines += [
            f"ld.global.{bits} {register}{index}, [%a+{8 * index}];"
            for register, bits in (("%f", "f32"), ("%d", "f64"), ("%h", "b32"), ("%s", "b16"), ("%q", "b64"))
        ]
    # 1.0 and 3.0 in f16, 1.0 in bf16: one is the factor that turns a fused form into a sum.
    lines += ["mov.b32 %h7, 0x42004200; mov.b32 %h6, 0x3C003C00; mov.b32 %h5, 0x3F803F80;"]
    lines += ["mov.b16 %s7, 0x4200; mov.b16 %s6, 0x3C00; mov.b16 %s5, 0x3F80;"]
    for slot, (instruction, bits, result) in enumerate(_instructions(number)):
        lines += [instruction, f"st.global.{bits} [%a+{64 + 8 * slot}], {result};"]
    return "\n".join([*lines, "ret;", "}", ""])


def _instructions(number: int) -> Iterator[tuple[str, str, str]]:
    for kind in _TYPES:
        if number < kind.first:
            continue
        out, a, b, c = (f"{kind.register}{index}" for index in (4, 0, 1, 2))
        for modifier in kind.modifiers:
            for operation in ("add", "sub", "mul"):
                for second in (b, *kind.operands):
                    yield f"{operation}{modifier}.{kind.name} {out}, {a}, {second};", kind.bits, out
            rounding = modifier if modifier[:3] in (".rn", ".rz", ".rp") else ".rn" + modifier
            for second, third in (
                (b, c),
                *((word, c) for word in kind.operands),
                *((b, word) for word in kind.operands),
            ):
                yield f"fma{rounding}.{kind.name} {out}, {a}, {second}, {third};", kind.bits, out
        if kind.name in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"):
            yield f"neg.{kind.name} {out}, {a};", kind.bits, out
            yield f"abs.{kind.name} {out}, {a};", kind.bits, out
        # ptxas fuses these; a pair with two readers of the product it leaves alone.
        yield f"mul.{kind.name} {out}, {a}, {b}; add.{kind.name} {out}, {out}, {c};", kind.bits, out
    yield "cvt.f32.f16 %f4, %s0;", "f32", "%f4"
    yield "cvt.rn.f16.f32 %s4, %f0;", "b16", "%s4"
    yield "cvt.sat.f32.f32 %f4, %f0;", "f32", "%f4"
    yield "cvt.ftz.f32.f32 %f4, %f0;", "f32", "%f4"
    yield "neg.ftz.f32 %f4, %f0;", "f32", "%f4"
    yield "div.rn.f32 %f4, %f0, %f1;", "f32", "%f4"
    yield "sqrt.rn.f64 %d4, %d0;", "f64", "%d4"
    yield "mov.u32 %h4, 0x12345678;", "b32", "%h4"
    if number >= 90:
        yield "cvt.f32.bf16 %f4, %s0;", "f32", "%f4"
    if number >= 100:
        for kind_name in ("f16", "bf16"):
            yield f"add.f32.{kind_name} %f4, %s0, %f1;", "f32", "%f4"
            yield f"fma.rn.f32.{kind_name} %f4, %s0, %s1, %f1;", "f32", "%f4"


# What nvdisasm calls them -> what they count as.
_COUNTED = {name: name for name in (
    "FADD", "FFMA", "FMUL", "DADD", "DFMA", "DMUL", "HADD2", "HFMA2", "HMUL2", "FADD2", "FFMA2", "FMUL2"
)} | {"FHADD": "FADD", "FHFMA": "FFMA"}  # fmt: skip
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/", re.MULTILINE
)
_SECTION = re.compile(r"^//-+ \.text\.(\S+)\s+-+$", re.MULTILINE)
_ZERO = re.compile(r"-?\|?RZ\|?(\.H[01]_H[01]|\.F32)?")
_MINUS_ZERO = re.compile(r"-RZ(\.H[01]_H[01]|\.F32)?")


Listing: TypeAlias = "dict[str, list[tuple[str, list[str], int]]]"
"""Per function the instructions as (mnemonic with modifiers, operands, low 64 bits)."""


def disassemble(cubin: Path) -> Listing:
    """A cubin's functions as nvdisasm prints them."""
    text = run_tool([find_tool("nvdisasm"), "-c", "-hex", cubin], timeout=600).stdout.decode()
    parts = _SECTION.split(text)
    return {
        name: [
            (
                match[1],
                [word.strip().replace(".reuse", "") for word in match[2].split(",")],
                int(match[3], 16),
            )
            for match in _INSTRUCTION.finditer(body)
        ]
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def counted_as(mnemonic: str, operands: list[str]) -> str | None:
    """What an instruction counts as by the rules of ``neutrino/sass/arithmetic.py``, read from nvdisasm's text."""
    name, *modifiers = mnemonic.split(".")
    base = _COUNTED.get(name.removesuffix("_32I").removesuffix("32I"))
    sources = operands[1:]
    if base == "HFMA2":
        if _ZERO.fullmatch(sources[0]) and _ZERO.fullmatch(sources[1]):
            return None
        if _MINUS_ZERO.fullmatch(sources[-1]):
            return "HMUL2"
        if len(sources) == 4 and sources[1:3] == ["1", "1"]:
            return "HADD2"
    adds = base in ("FADD", "DADD", "HADD2") and not {"FTZ", "SAT"} & set(modifiers)
    if adds and any(_MINUS_ZERO.fullmatch(source) for source in sources[:2]):
        return None
    return base


def disagreements(cubin: Path, arch: str, listing: Listing) -> list[str]:
    """A line for each function of a cubin whose counts differ from those of nvdisasm's listing."""
    lines = []
    with ELFFile(io.BytesIO(cubin.read_bytes())) as elf:
        for name, instructions in listing.items():
            want = Counter(filter(None, (counted_as(mnemonic, operands) for mnemonic, operands, _ in instructions)))
            got = count_arithmetic(elf.get_section_by_name(f".text.{name}").data(), arch)
            if got != dict(want):
                lines.append(f"{cubin.name}: {name}: counted {got}, nvdisasm {dict(want)}")
    return lines
