"""Random probe files that the verifier must accept, with every instruction, helper, level and map that there is.

What they record is not predicted; that they leave the program alone is checked.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

from neutrino.abi.levels import Level
from neutrino.errors import Span
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import CLASSES
from neutrino.ptx.isa.forms import (
    NO_IMMEDIATES,
    TYPES,
    Form,
    bits_of,
    fits,
    forms,
    is_collective,
    operand_type,
)
from neutrino.ptx.isa.opcodes import NO_AFTER
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS
from neutrino.ptx.snippets.language import REGISTER_TYPES
from neutrino.ptx.snippets.sites import HELPER_TYPES, SnippetSide, misplaced
from tests.fronts import parse_tracepoint

REGISTERS = {kind: (f"%{kind}_0", f"%{kind}_1") for kind in REGISTER_TYPES}
_DECLARED = "".join(f".reg .{kind} {', '.join(names)};\n" for kind, names in REGISTERS.items())
_FORMS = tuple(itertools.chain.from_iterable(forms().values()))
_BETWEEN_LANES = tuple(form for form in _FORMS if is_collective(form.opcode))
_OTHERS = tuple(form for form in _FORMS if not is_collective(form.opcode) and (form.need is None or form.need[1] <= 80))
_NEWER = tuple(form for form in _FORMS if form.need and form.need[1] > 80)
_OPERANDS = ("OUT", "OUT.y", "IN1", "IN2", "IN1.1")
_FIELDS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64")
_SUMMED = ("u32", "s32", "u64", "s64")
# What the launch or the machine decides, and what the embedded device does not have.
_SPECIAL = tuple(name for name in SPECIAL_REGISTERS if not name.startswith(("%pm", "%envreg", "%current", "%cluster")))
_OPCODES = (
    "ld.global", "ld", "st", "st.global", "ld.shared", "st.shared", "ld.param", "add", "mul", "mad", "fma", "setp",
    "selp", "mov", "shl", "and", "xor", "cvt", "bar", "bra", "red", "atom", "call", "shfl", "ret", "exit", "mma",
    "ld.global !v2", "ld.generic", "add !f32", "sub", "min", "max", "ld.const", "ld.local",
)  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """Where a snippet goes. helpers: those that its instructions may have."""

    level: str
    helpers: frozenset[str]


@st.composite
def _instruction(draw: st.DrawFn, place: _Place) -> str:
    """One instruction on registers of the file."""
    lanes = "LANES" in place.helpers and place.level == "thread"
    group = draw(st.integers(0, 29))
    form = draw(st.sampled_from(_BETWEEN_LANES if lanes and group < 8 else _NEWER if group == 29 else _OTHERS))
    modifiers = []
    for slot in form.modifiers.split():
        words = slot.rstrip("?").split("|")
        if not slot.endswith("?") or draw(st.booleans()):
            modifiers.append(draw(st.sampled_from(words)))
    types = tuple(word for word in modifiers if word in TYPES)
    words = [draw(_operand(form, kind, types, place)) for kind in form.operands]
    guard = "" if is_collective(form.opcode) else draw(st.sampled_from(("", "", "@%pred_0 ", "@!%pred_1 ")))
    if "PRED" in place.helpers and guard and draw(st.booleans()):
        guard = "@!PRED " if "!" in guard else "@PRED "
    return f"{guard}{'.'.join([form.opcode, *modifiers])} {', '.join(words)};"


@st.composite
def _operand(draw: st.DrawFn, form: Form, kind: str, types: tuple[str, ...], place: _Place) -> str:
    if kind.startswith("="):
        first, *second = kind[1:].rstrip("?").split("|")
        if kind.endswith("?") and draw(st.booleans()):
            second = []
        return "|".join(
            draw(st.sampled_from(_names(operand_type(part, types), relaxed=part == "T"))) for part in (first, *second)
        )
    wanted = operand_type(kind, types)
    if kind == "lanes":
        return "LANES"
    if kind == "i":
        return str(draw(st.integers(0, 255)))
    choices = [*_names(wanted, relaxed=kind == "S")]
    if kind == "p":
        choices += ["!%pred_0", "1", "0", *(["PRED", "!PRED"] if "PRED" in place.helpers else [])]
        return draw(st.sampled_from(choices))
    if wanted != "pred" and wanted not in NO_IMMEDIATES:
        choices.append(
            str(draw(st.integers(0, 255))) if kind == "byte" else _number(draw, wanted, is_bits="tf32" in types)
        )
    if kind == "m":
        choices += [name for name in _SPECIAL if SPECIAL_REGISTERS[name] == wanted]
    typed = [name for name, own in HELPER_TYPES.items() if name in place.helpers and fits(own, wanted)]
    choices += [name for name in typed if kind != "byte" or name not in {"SITE", "LINE", "ELEMENTS"}]
    # Of what type they are, only the kernel knows; mostly 32 or 64 bits.
    if wanted in {"b32", "b64"}:
        choices += sorted(place.helpers.intersection(_OPERANDS))
    return draw(st.sampled_from(choices))


def _names(wanted: str, *, relaxed: bool) -> list[str]:
    return [name for kind, names in REGISTERS.items() if fits(kind, wanted, relaxed) for name in names]


def _number(draw: st.DrawFn, wanted: str, *, is_bits: bool) -> str:
    """A literal. is_bits: of floats only their bits, since ptxas takes no others in a conversion to tf32."""
    if wanted.startswith("f"):
        bits = ("0f3FC00000", "0fBE800000", "0f7F800000", "0f00000000") if wanted == "f32" else ()
        if is_bits:
            return draw(st.sampled_from(bits))
        return draw(st.sampled_from(("1.5", "-0.25", "0d7FF8000000000000", "0.0", *bits)))
    bits = bits_of(wanted)
    return str(draw(st.integers(-(1 << bits - 1), (1 << bits) - 1)))


@st.composite
def _map(draw: st.DrawFn, name: str, level: str) -> tuple[str, tuple[str, ...]]:
    """A map in TOML, and the types of its fields."""
    kind = draw(st.sampled_from(("array", "array", "sum")))
    fields = tuple(draw(st.lists(st.sampled_from(_SUMMED if kind == "sum" else _FIELDS), min_size=1, max_size=4)))
    cap = "" if kind == "sum" else f"cap = {draw(st.sampled_from((1, 2, 5)))}\n"
    data = ", ".join(f'f{number} = "{field}"' for number, field in enumerate(fields))
    return f'[map.{name}]\ntype = "{kind}"\nlevel = "{level}"\n{cap}data = {{ {data} }}\n', fields


def _saved(draw: st.DrawFn, field: str, place: _Place) -> str:
    bits = int(field[1:])
    choices = [
        name
        for kind, names in REGISTERS.items()
        if kind != "pred" and (fits(kind, field) if bits >= 32 else kind[0] != "f" and bits_of(kind) in {16, 32})
        for name in names
    ]
    if not field.startswith("f"):
        choices.append(str(draw(st.integers(-(1 << bits - 1), (1 << bits) - 1))))
        known = ["PRED", *(["LANES", "SITE", "LINE"] if bits >= 32 else [])]
        known += ["ADDR", "BYTES", "OPS"] if bits == 64 else []
        choices += [name for name in known if name in place.helpers]
        # Of which types they are, only the kernel knows.
        choices += [f"{name}.bits" for name in _OPERANDS if bits >= 32 and name in place.helpers]
    return draw(st.sampled_from(choices))


@st.composite
def _position(draw: st.DrawFn) -> str:
    one = st.one_of(
        st.sampled_from(_OPCODES), st.sampled_from(_OPCODES), st.sampled_from(("*", "* !global", *CLASSES)),
    )  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        return "kernel"
    return " | ".join(draw(st.lists(one, min_size=1, max_size=3, unique=True)))


def _place(position: str, level: str, *, after: bool) -> _Place:
    tracepoint, faults = parse_tracepoint(position)
    assert tracepoint, faults
    side = SnippetSide(Probe("p", tracepoint, Level(level), None, None, Span(1, 1)), after)
    return _Place(level, frozenset(name for name in (*HELPER_TYPES, *_OPERANDS) if misplaced(name, side) is None))


@st.composite
def probe_files(draw: st.DrawFn) -> str:
    """A probe file, right by construction."""
    text = ""
    probes = ""
    for number in range(draw(st.integers(1, 3))):
        position = draw(_position())
        level = draw(st.sampled_from(("thread", "thread", "warp", "block")))
        block, fields = draw(_map(f"M{number}", level))
        text += block
        first = {alternative.split()[0].partition(".")[0] for alternative in position.split("|")}
        sides = draw(st.sampled_from((("before",), ("after",), ("before", "after"))))
        if first & NO_AFTER:
            sides = ("before",)
        lanes = draw(st.sampled_from(("", 'lanes = "executing"\n', 'lanes = "reaching"\n')))
        probes += f'[probe.p{number}]\nposition = "{position}"\nlevel = "{level}"\n{lanes}'
        for side in sides:
            place = _place(position, level, after=side == "after")
            lines = draw(st.lists(_instruction(place), max_size=5))
            saved = ", ".join(_saved(draw, field, place) for field in fields)
            lines.insert(draw(st.integers(0, len(lines))), f"SAVE [ M{number} ] {{ {saved} }};")
            declared = _DECLARED if number == 0 and side == sides[0] else ""
            probes += f'{side} = """\n{declared}' + "\n".join(lines) + '\n"""\n'
    return text + probes
