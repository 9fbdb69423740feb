"""Random well-formed probe files for random kernels, with their simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracle.probes import Probe
from tests.oracle.simulation import Lanes, Side, Simulation

_MEMORY = ("ld.global", "ld.global.v2", "ld.shared", "st.global", "st.shared", "red", "st.generic")
_COMPUTING = ("add.s32", "sub", "xor", "mul.lo", "setp", "selp", "min", "shl", "and")
_SIZES = {"u8": 1, "s16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8}


@dataclass(frozen=True)
class _Map:
    name: str
    kind: str
    level: str
    cap: int
    fields: tuple[str, ...]
    options: str = ""

    @property
    def text(self) -> str:
        data = ", ".join(f'f{number} = "{kind}"' for number, kind in enumerate(self.fields))
        if self.kind not in ("array", "ring", "sum"):
            head = f'[map.{self.name}]\ntype = "{self.kind}"\nlevel = "{self.level}"\n'
            return f"{head}{self.options}data = {{ {data} }}\n"
        at, widest = 0, 1
        for kind in self.fields:
            size = _SIZES[kind]
            at, widest = -(-at // size) * size + size, max(widest, size)
        room = f"cap = {self.cap}\n" if self.kind != "sum" else ""
        return (
            f'[map.{self.name}]\ntype = "{self.kind}"\nlevel = "{self.level}"\nsize = {-(-at // widest) * widest}\n'
            f"{room}data = {{ {data} }}\n"
        )


_OPTIONS = {
    "avg": ("",), "min": ("",), "max": ("",), "histogram": ('scale = "log2"\n',),
    "hash": ("", "room = 1\n", "room = 3\n"), "topk": ("n = 2\n", "n = 9\n", "n = 1\nroom = 2\n"),
}  # fmt: skip
"""Keys of types with one result a launch."""


@st.composite
def _aggregates(draw: st.DrawFn, name: str) -> _Map:
    """Maps with one result a launch, besides sums."""
    kind = draw(st.sampled_from(sorted(_OPTIONS)))
    fields = [draw(st.sampled_from(tuple(_SIZES))) for _ in range(2 if kind in ("min", "max") else 1)]
    options = draw(st.sampled_from(_OPTIONS[kind]))
    if kind in ("hash", "topk") and draw(st.booleans()):
        fields.append(draw(st.sampled_from(("u8", "u32", "u64"))))
        if kind == "hash":
            options += draw(st.sampled_from(("", 'keep = ["max"]\n', 'keep = ["min", "sum", "max"]\n')))
    level = draw(st.sampled_from(("thread", "thread", "thread", "warp", "block")))
    return _Map(name, kind, level, 1, tuple(fields), options)


@st.composite
def _maps(draw: st.DrawFn, name: str, types: tuple[str, ...]) -> _Map:
    kind = draw(st.sampled_from(types))
    kinds = ("u32", "s32", "u64", "s64") if kind == "sum" else tuple(_SIZES)
    fields = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))
    level = draw(st.sampled_from(("thread", "thread", "warp", "block")))
    cap = draw(st.sampled_from((1, 2, 3, 4)))
    return _Map(name, kind, level, cap, tuple(fields))


def _operands(position: str, field: str, *, after: bool) -> tuple[str, ...]:
    """What may be saved into a field; narrow signed ones take immediates only."""
    always = ("7", "-3", "counter") if field in {"u64", "s64"} else ("7", "-3")
    alternatives = position.split(" | ")
    if set(alternatives) <= set(_MEMORY):
        return (*always, "ADDR", "BYTES") if field in {"u64", "s64"} else always
    if set(alternatives) <= set(_COMPUTING) and field in {"u64", "u32", "u8", "s32"}:
        return (*always, "IN1", "IN2", *(["OUT"] if after else []))
    return always


def _value(operand: str, simulation: Simulation, lanes: Lanes, counter: str) -> Any:
    if operand == "counter":
        return simulation.register(counter)[lanes.threads]
    if operand == "ADDR":
        return lanes.address
    if operand == "BYTES":
        return lanes.size
    if operand == "OUT":
        return lanes.result()
    return lanes.operand(int(operand[2:])) if operand.startswith("IN") else int(operand)


def _snippet(target: _Map, words: tuple[str, ...], every: int | None) -> tuple[str, Any]:
    """A snippet that counts and saves: as TOML, in Python. Each level counts in a register of its own.

    every: a power of two; saves only where the count is no multiple of it. None: saves always.
    """
    counter = f"%n_{target.level}"
    # The bits of operands of any type.
    written = {"counter": counter, "IN1": "IN1.bits", "IN2": "IN2.bits", "OUT": "OUT.bits"}
    shown = ", ".join(written.get(word, word) for word in words)
    text = f"add.u64 {counter}, {counter}, 1;\n"
    prefix = ""
    if every is not None:
        text = f".reg .pred %p_{target.level};\n.reg .u64 %m_{target.level};\n{text}"
        text += f"and.b64 %m_{target.level}, {counter}, {every - 1};\n"
        text += f"setp.eq.u64 %p_{target.level}, %m_{target.level}, 0;\n"
        prefix = f"@!%p_{target.level} "
    text += f"{prefix}SAVE [ {target.name} ] {{ {shown} }};"

    def run(simulation: Simulation, lanes: Lanes) -> None:
        simulation.register(counter)[lanes.threads] += np.uint64(1)
        if every is not None:
            saves = simulation.register(counter)[lanes.threads] % np.uint64(every) != 0
            lanes = Lanes(lanes.execution, lanes.threads[saves], lanes.lanes[saves])
        simulation.save(target.name, lanes, *(_value(word, simulation, lanes, counter) for word in words))

    return text, run


@st.composite
def probes(
    draw: st.DrawFn, types: tuple[str, ...] = ("array", "array", "ring", "sum"), *, aggregates: bool = False
) -> Probe:
    """Up to three maps of these types, up to four tracepoints. aggregates: maps with one result a launch."""
    names = [f"M{number}" for number in range(draw(st.integers(1, 3)))]
    maps = [draw(_aggregates(name) if aggregates else _maps(name, types)) for name in names]
    text = "".join(target.text for target in maps)
    sides = []
    declared: set[str] = set()
    places = ("kernel", *_MEMORY, *_COMPUTING)
    for number in range(draw(st.integers(1, 4))):
        position = " | ".join(draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True)))
        if "kernel" in position:
            position = "kernel"
        target = draw(st.sampled_from(maps))
        chosen = draw(st.sampled_from(((False,), (True,), (False, True))))
        written = []
        for after in chosen:
            words = tuple(draw(st.sampled_from(_operands(position, field, after=after))) for field in target.fields)
            snippet, run = _snippet(target, words, draw(st.sampled_from((None, None, 2, 4))))
            if target.level not in declared:
                snippet = f".reg .u64 %n_{target.level};\n{snippet}"
                declared.add(target.level)
            written.append(f'{"after" if after else "before"} = """\n{snippet}\n"""\n')
            sides.append(Side(position, run, after=after, warp=target.level == "warp", block=target.level == "block"))
        text += f'[probe.p{number}]\nposition = "{position}"\nlevel = "{target.level}"\n{"".join(written)}'
    return Probe("random", tuple(sides), text=text, registers=True)
