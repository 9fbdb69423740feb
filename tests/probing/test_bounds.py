"""Loops whose bound is found: what it is, that the code is that of the stated one, and that they compute what Python
computes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from neutrino.errors import ProbeError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import While, walk
from neutrino.ptx.snippets.lowering import lower
from neutrino.verification import load_all
from tests.oracle.typed import BLOCK, kernel, run

_U32 = 0xFFFFFFFF


def probes(body: str) -> ProbeSet:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    function = "def half(v):\n    return v >> 1\n" * ("half(" in body)
    return load_all(source=f"""from neutrino import probe, Map
import neutrino.language as nl
@Map(level="thread")
class R:
    f0: nl.u32
    f1: nl.u32
{function}@probe(pos="xor", level="thread", before=True)
def p():
    x: nl.u32 = nl.in1
    y: nl.u32 = nl.in2
{lines}
    R.save(x, y)
""")  # fmt: skip


def bounds(probe_set: ProbeSet) -> list[int]:
    (probe,) = probe_set.probes
    assert probe.before is not None
    return [statement.bound for statement in walk(probe.before.statements) if isinstance(statement, While)]


FOUND = {
    "a counter": ("i: nl.u32 = 0\nwhile i < 10:\n    i += 3", [4]),
    "down to 0": ("i: nl.s32 = 12\nwhile i >= 0:\n    i -= 5", [3]),
    "to another number": ("i: nl.u8 = 6\nwhile i != 0:\n    i -= 2", [3]),
    "from a range": ("i = x & 15\nwhile i:\n    i -= 1", [15]),
    "to a range": ("i: nl.u32 = 0\nwhile i < nl.lane // 4:\n    i += 1", [7]),
    "steps by branches": (
        "i: nl.s32 = 0\nwhile i < 20:\n    if y > x:\n        i += 4\n    else:\n        i += 7", [5]),
    "the least of two": ("i: nl.u32 = 0\nwhile i < 200 and x > 3:\n    i += 20\n    x += 1", [10]),
    "a shift": ("while x > 255:\n    x >>= 1", [24]),
    "64 bits": ("z = nl.u64(x) << 16\nwhile z:\n    z >>= 4", [12]),
    "by a function": ("x &= 0xFFFF\nwhile x != 0:\n    x = half(x)", [16]),
    "a quotient": ("while x > 0:\n    x //= 10", [10]),
    "lowest bits": ("x &= 0x1F0\nwhile x:\n    x &= x - 1", [5]),
    "bits from above": ("y = nl.popc(x)\nwhile y > 0:\n    y -= 1", [32]),
    "one in another": (
        "i: nl.u32 = 0\nwhile i < 3:\n    j: nl.u32 = i\n    while j < 5:\n        j += 2\n    i += 1", [3, 3]),
    "in a loop over a range": ("for k in range(4):\n    i = nl.u32(k)\n    while i < 3:\n        i += 1", [3]),
    "after a stated bound": ("while nl.bound(4) and x > y:\n    x -= 1\ni = x & 3\nwhile i < 6:\n    i += 1", [4, 6]),
    "never": ("while nl.lane > 31:\n    x = 0\ny += 1", []),
    "a value of the site": ("i: nl.u32 = 0\nwhile i < nl.elements:\n    i += 1", [8]),
}
NOT_FOUND = {
    "no change": "i: nl.u32 = 1\nwhile i < 2:\n    y += 1",
    "a step of 0 by a branch": "i: nl.u32 = 0\nwhile i < 4:\n    if x > y:\n        i += 1",
    "a number that is passed": "i: nl.u32 = 0\nwhile i != 5:\n    i += 2",
    "a shift of a signed number": "s: nl.s32 = nl.in1\nwhile s != 0:\n    s >>= 1",
    "too many": "i: nl.u32 = 0\nwhile i < 257:\n    i += 1",
    "it wraps around": "i: nl.u8 = 0\nwhile i < 255:\n    i += 2",
    "any number": "while x > 0:\n    x -= 1",
    "lowest bits of another": "while x:\n    x &= y - 1",
    "a fraction": "z: nl.f32 = 4.0\nwhile z > 0.0:\n    z -= 1.0",
    "for ever": "while True:\n    x += 1",
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name: str) -> None:
    body, wanted = FOUND[name]
    found = probes(body)
    assert bounds(found) == wanted
    # With a bound stated of that size the code is the same.
    stated, numbers = [], iter(wanted)
    for line in body.splitlines():
        before, word, condition = line.partition("while ")
        stated.append(line if not word or "bound" in line or not wanted else
                      f"{before}while nl.bound({next(numbers)}) and ({condition[:-1]}):")  # fmt: skip
        if "nl.bound(4)" in line:
            next(numbers)
    if wanted:
        assert lower(found).probes == lower(probes("\n".join(stated))).probes


def test_what_is_not_found() -> None:
    for name, body in NOT_FOUND.items():
        with pytest.raises(ProbeError) as caught:
            probes(body)
        (fault,) = caught.value.diagnostics
        line = next(number for number, text in enumerate(body.splitlines(), 11) if "while" in text)
        assert (fault.code, fault.line) == ("python-statement", line), name
        assert "a bound, and none is found" in fault.message
        assert "nl.bound(8)" in fault.hint


def _loop(choice: random.Random, depth: int = 0) -> list[str]:
    """A random loop on u32, most of which end: the statements of Python."""
    name = f"i{depth}"
    low, high, step = choice.randrange(4), choice.randrange(1, 12), choice.randrange(1, 4)
    lines, condition, steps = choice.choice((
        ([f"{name} = u32({low})"], f"{name} < {high}", [f"{name} += {step}"]),
        ([f"{name} = x & {high}"], f"{name}", [f"{name} >>= {step}"]),
        ([f"{name} = y & {high * 5}"], f"{name} != 0", [f"{name} &= {name} - 1"]),
        ([f"{name} = u32({high})"], f"{name} > 0", [f"{name} -= 1"]),
        ([f"{name} = u32({low})"], f"{name} < (x & 7) and y != 3", [f"{name} += {step}"]),
        ([f"{name} = x % 9"], f"{name} <= {high}", ["if y & 1:", f"    {name} += 1", "else:", f"    {name} += {step}"]),
        ([f"{name} = x >> 20"], f"not {name} < {high}", [f"{name} //= 2"]),
    ))  # fmt: skip
    work = choice.choice((f"y = y * 3 + {name}", f"x ^= {name} << 3", "x, y = y, x", f"if {name} > 1: y += x"))
    inner = [f"t = {work.split(' = ')[1][:1]}", "x = y", "y = t"] if work.startswith("x, y") else [work]
    if depth == 0 and choice.random() < 0.3:
        inner += _loop(choice, 1)
    body = [*inner, *steps] if choice.random() < 0.5 else [*steps, *inner]
    return [*lines, f"while {condition}:", *(f"    {line}" for line in body)]


class _Word(int):
    """A u32 of Python."""

    def __new__(cls, value: int) -> _Word:
        return super().__new__(cls, value & _U32)


for _name in ("add", "sub", "mul", "and", "xor", "lshift", "rshift", "floordiv", "mod"):
    _operation = getattr(int, f"__{_name}__")
    setattr(_Word, f"__{_name}__", lambda self, other, compute=_operation: _Word(compute(int(self), int(other))))


def test_random_loops_compute_what_python_computes() -> None:
    choice = random.Random(5)
    edges = [0, 1, 2, 3, 7, 0xFF, 0x80000000, _U32]
    left = np.array([*edges, *(choice.getrandbits(32) for _ in range(BLOCK - len(edges)))], np.uint32)
    right = left[::-1].copy()
    found = 0
    for _ in range(30):
        lines = _loop(choice)
        body = "\n".join(lines)
        try:
            probe_set = probes(body.replace("u32(", "nl.u32("))
        except ProbeError:
            continue  # more than 256 turns, or statements
        found += 1
        if found > 14:
            break
        records = run(probe_set, kernel(left, right))["R"].records.reshape(-1)[:BLOCK]
        code = compile(body, "<loop>", "exec")
        for a, b, record in zip(left.tolist(), right.tolist(), records, strict=True):
            values = {"x": _Word(a), "y": _Word(b), "u32": _Word}
            exec(code, values)
            assert record.item() == (values["x"], values["y"]), (body, a, b)
    assert found > 10
