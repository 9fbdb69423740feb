"""What probes in Python compute: against Python's own arithmetic, on the embedded device, and through assembly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import written as write
from neutrino.verification import load_probe_file, read_probes
from tests.oracle.typed import BLOCK, kernel, run


def _recorded(
    tmp_path: Path, body: str, left: list[int], right: list[int] | None = None, *, top: str = "",
    through_assembly: bool = False,
) -> list[tuple[int, ...]]:  # fmt: skip
    """What a probe saves at an ``xor`` of s32 operands.

    top: further lines at the top of the file. through_assembly: the probe is compiled to a TOML file, which is read.
    """
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    path = tmp_path / "p.py"
    path.write_text(
        "from neutrino import probe, Map\nimport neutrino.language as nl\n"
        f'@Map(level="thread")\nclass R:\n    f0: nl.s32\n    f1: nl.s32\n{top}'
        f'@probe(pos="xor", level="thread", before=True)\ndef p():\n{lines}\n'
    )
    probes = load_probe_file(path)
    if through_assembly:
        probes = read_probes("p.toml", write(lower(probes)))
    words = np.resize(np.array(left, np.int64).astype(np.uint32), BLOCK)
    others = words[::-1].copy() if right is None else np.resize(np.array(right, np.int64).astype(np.uint32), BLOCK)
    records = run(probes, kernel(words, others))["R"].records.reshape(-1)
    return [tuple(record.item()) for record in records[: len(left)]]


def test_divisions_are_pythons(tmp_path: Path) -> None:
    for divisor in (3, -3, 7, -1):
        body = f"x: nl.s32 = nl.in1()\nR.save(x // {divisor}, x % {divisor})"
        numbers = [-7, -6, -1, 0, 1, 6, 7, 100, -100, 2**31 - 1, -(2**31) + 1]
        found = _recorded(tmp_path, body, numbers)
        assert found == [(number // divisor, number % divisor) for number in numbers], divisor


def _bits(number: int) -> int:
    return number % (1 << 32)


NUMBERS = [-7, -1, 0, 1, 5, 100, -100, 2**31 - 1, -(2**31) + 1, 0x55AA]
OTHERS = [*NUMBERS[1:], NUMBERS[0]]
COMPUTED: dict[str, tuple[str, str, Callable[[int, int], tuple[int, ...]] | None]] = {
    "min max": ("R.save(nl.min(a, b, 3), nl.max(a, b))", "", lambda a, b: (min(a, b, 3), max(a, b))),
    "abs": ("R.save(nl.abs(a), nl.abs(-3))", "", lambda a, b: (abs(a), 3)),
    "popc clz": ("R.save(nl.s32(nl.popc(a)), nl.s32(nl.clz(a)))", "",
                 lambda a, b: (_bits(a).bit_count(), 32 - _bits(a).bit_length())),
    "narrow clz": ("R.save(nl.s32(nl.clz(nl.s8(a))), nl.s32(nl.popc(nl.s8(a))))", "",
                   lambda a, b: (8 - (a % 256).bit_length(), (a % 256).bit_count())),
    "wide popc": ("R.save(nl.s32(nl.popc(nl.s64(a))), nl.s32(nl.clz(nl.u64(nl.u32(a)))))", "",
                  lambda a, b: ((a % 2**64).bit_count(), 64 - _bits(a).bit_length())),
    "select": ("R.save(nl.select(a > b, a, b), nl.select(a, 1, 2))", "", lambda a, b: (max(a, b), 1 if a else 2)),
    "constants": ("R.save(a & MASK, MASK * 2)", "MASK = 0xf0\n", lambda a, b: (a & 0xF0, 0x1E0)),
    "a function": ("R.save(f(a, b), f(b, 1))", "def f(x, y):\n    z = x ^ y\n    return z - x\n",
                   lambda a, b: ((a ^ b) - a, (b ^ 1) - b)),
    "a function that assigns its parameter": (
        "c = f(a)\nR.save(c, a)", "def f(x):\n    x = x & 7\n    x += 1\n    return x\n",
        lambda a, b: ((a & 7) + 1, a)),
    "a parameter that is assigned twice": (
        "R.save(f(a + 1), f(a))", "def f(x):\n    x = x + 1\n    y = x\n    x += 2\n    return x * 2 - y\n",
        lambda a, b: ((a + 4) * 2 - (a + 2), (a + 3) * 2 - (a + 1))),
    "a parameter of a shared register": (
        "kept = a\nput(kept)\nR.save(kept, got)",
        "kept: nl.s32 = 0\ngot: nl.s32 = 0\ndef put(x):\n    kept = 5\n    got = x\n    x += 1\n    got = got + x\n",
        lambda a, b: (5, 2 * a + 1)),
    "names of caller and function": (
        "z = a & 3\ny = f(z)\nR.save(y, z)", "def f(x):\n    z = x + 1\n    y = z * 2\n    return y\n",
        lambda a, b: (((a & 3) + 1) * 2, a & 3)),
    "functions in functions": (
        "R.save(g(a), g(b))", "def f(x):\n    return x ^ 5\ndef g(x):\n    return f(f(f(x) - 1))\n",
        lambda a, b: ((a ^ 5) - 1, (b ^ 5) - 1)),
    "branches that return": (
        "R.save(f(a), f(b))",
        "def f(x: nl.s32) -> nl.s32:\n    if x < 0:\n        return -1\n    elif x == 0:\n        return 0\n"
        "    x = x & 7\n    if x > 4:\n        y = x * 2\n    else:\n        return x\n    return y + 1\n",
        lambda a, b: (_branches(a), _branches(b))),
    "a procedure": ("keep(a)\nkeep(b)\nR.save(kept, a)", "kept: nl.s32 = 0\ndef keep(x):\n    global kept\n"
                    "    if x > 0:\n        kept = kept ^ x\n    return\n",
                    lambda a, b: ((a if a > 0 else 0) ^ (b if b > 0 else 0), a)),
    "a procedure that saves": ("put(a, b)", "def put(x, y):\n    R.save(y, x)\n", lambda a, b: (b, a)),
    "an array": ("t = nl.array(nl.s32, 4)\nt[0] = a\nt[-1] = b\nR.save(t[3] - t[1], t[0])", "", lambda a, b: (b, a)),
    "an element that is changed": (
        "t = nl.array(nl.s32, 2)\nt[0] += a & 7\nt[a & 1] += 2\nR.save(t[0], t[1])", "",
        lambda a, b: ((a & 7) + 2 * (1 - a % 2), 2 * (a % 2))),
    "an array in a loop": (
        "t = nl.array(nl.s32, 4)\nfor i in range(4):\n    t[i] = (a & 0xff) * nl.s32(i)\ns = nl.s32(0)\n"
        "for i in range(1, 4):\n    s += t[i] - t[i - 1]\nR.save(s, t[2])", "",
        lambda a, b: ((a & 0xFF) * 3, (a & 0xFF) * 2)),
    "a computed index": (
        "t = nl.array(nl.s32, 4)\nt[a & 7] = b\nt[1] = t[1] + 1\nR.save(t[a & 3], t[b & 7])", "",
        lambda a, b: _indexed(a, b)),  # noqa: PLW0108 - it is defined below
    "the predicate and the lanes": ("R.save(nl.s32(nl.pred), nl.s32(nl.popc(nl.lanes)))", "", lambda a, b: (1, 32)),
    "where a thread is": (
        "R.save(nl.s32(nl.tid.x + nl.tid.y * 7 + nl.tid.z), nl.s32(nl.warpid * 32 + nl.lane()) - nl.s32(nl.tid()))",
        "", None),
    "how many there are": (
        "R.save(nl.s32(nl.ntid.x * nl.nctaid() + nl.ntid.y), nl.s32(nl.ctaid.x + nl.nctaid.z))", "",
        lambda a, b: (BLOCK + 1, 1)),
    "clusters": (
        "R.save(nl.s32(nl.clusterid.x + nl.nclusterid.x), nl.s32(nl.cluster_ctaid.x + nl.cluster_nctaid.x))", "",
        lambda a, b: (1, 1)),
    "a warp": (
        "m = nl.warp.max(nl.lane)\nR.save(nl.s32(nl.warp.sum(nl.u32(1)) + m), nl.s32(nl.warp.first(nl.lane)))", "",
        lambda a, b: (63, 0)),
    "conditions of a warp": (
        "c = nl.lane < 5\nR.save(nl.s32(nl.warp.ballot(c)), nl.s32(nl.warp.any(c)) * 2 + nl.s32(nl.warp.all(c)))", "",
        lambda a, b: (31, 2)),
    "a warp inside an if": (
        "n: nl.u32 = 0\nif nl.lane < 7:\n    n = nl.warp.sum(nl.u32(1))\nR.save(nl.s32(nl.warp.max(n)), "
        "nl.s32(nl.warp.min(nl.lane + 3)))", "", lambda a, b: (7, 3)),
    "the same in a warp": (
        "n: nl.u32 = 0\nif nl.lane < 7:\n    n = nl.warp.match(nl.lane & 3)\n"
        "R.save(nl.s32(nl.popc(nl.warp.match(a & 0))), nl.s32(nl.warp.max(n)))", "", lambda a, b: (32, 0b1000100)),
    "an if of constants": (
        "if 0 < LIMIT <= 3 and not LAST:\n    k = a\nelse:\n    k = f(b)\nif LAST or LIMIT == 4:\n    k = f(k)\n"
        "R.save(k, b)", "LIMIT = 3\nLAST = False\ndef f(x):\n    return x + 1\n", lambda a, b: (a, b)),
    "bits of a float": (
        "x = nl.f32(a & 0xff)\nR.save(nl.bits(x), nl.s32(nl.bits(x) >> 23))", "",
        lambda a, b: (_bits_of(a & 0xFF), _bits_of(a & 0xFF) >> 23)),
    "bits as a float": (
        "x: nl.f32 = nl.bits(a & 1 | 0x3f800000)\ny = nl.f32(nl.bits(b & 0 | 0x40000000))\n"
        "w = nl.bits(a)\nR.save(nl.s32(x * 1000000 + y), nl.s32(w + 1))", "",
        lambda a, b: (1000002, a + 1)),
    "bits of the instruction": (
        "x: nl.f32 = nl.bits(nl.in1)\nR.save(nl.s32(nl.bits(x)), nl.s32(nl.bits(nl.s64(b)) & 0xffff))", "",
        lambda a, b: (a, b & 0xFFFF)),
    "a loop with a bound": (
        "n = a & 15\nt: nl.s32 = 0\nwhile nl.bound(8) and n > 0 and t < 100:\n    t += n\n    n -= 2\nR.save(t, n)", "",
        lambda a, b: _loop(a & 15)),
    "as many turns": ("t = a\nwhile nl.bound(TURNS):\n    t = t ^ (t << 1)\nR.save(t, 1)", "TURNS = 3\n",
                      lambda a, b: (_shifted(a), 1)),
    "a parameter that is a number": ("R.save(f(a, 3), f(b, -1))", "def f(x, y):\n    return x & y\n",
                                     lambda a, b: (a & 3, b)),
    "a parameter that is an operand": ("R.save(f(nl.in1), f(nl.in2))", "def f(x):\n    y: nl.s32 = x\n    return y\n",
                                       lambda a, b: (a, b)),
}  # fmt: skip
"""Name → statements of a probe in which ``a`` and ``b`` are the operands, the file's top, and what they save.

None: the number of the thread, and 0.
"""


def _bits_of(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


def _loop(n: int) -> tuple[int, int]:
    t = turns = 0
    while turns < 8 and n > 0 and t < 100:
        t, n, turns = t + n, n - 2, turns + 1
    return t, n


def _shifted(number: int) -> int:
    for _ in range(3):
        number = _bits(number ^ (number << 1))
    return number


def _branches(number: int) -> int:
    if number <= 0:
        return -1 if number < 0 else 0
    low = number & 7
    return low * 2 + 1 if low > 4 else low


def _indexed(a: int, b: int) -> tuple[int, int]:
    array = [0, 0, 0, 0]
    if a & 7 < 4:
        array[a & 7] = b
    array[1] += 1
    # What is beyond the array reads 0.
    return array[a & 3], array[b & 7] if b & 7 < 4 else 0


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_is_right(name: str, tmp_path: Path) -> None:
    body, top, wanted = COMPUTED[name]
    found = _recorded(tmp_path, f"a: nl.s32 = nl.in1\nb: nl.s32 = nl.in2()\n{body}", NUMBERS, OTHERS, top=top)
    # Without a function it is the number of the thread, and 0.
    pairs = zip(NUMBERS, OTHERS, strict=True)
    rows = [wanted(a, b) if wanted else (thread, 0) for thread, (a, b) in enumerate(pairs)]
    as_s32 = [tuple((_bits(word) ^ 2**31) - 2**31 for word in row) for row in rows]
    assert found == as_s32


@pytest.mark.parametrize("name", COMPUTED)
def test_its_assembly_computes_the_same(name: str, tmp_path: Path) -> None:
    """That of ``neutrino-probe compile``, which is read again."""
    body, top, _ = COMPUTED[name]
    text = f"a: nl.s32 = nl.in1\nb: nl.s32 = nl.in2()\n{body}"
    typed = _recorded(tmp_path, text, NUMBERS, OTHERS, top=top)
    assert _recorded(tmp_path, text, NUMBERS, OTHERS, top=top, through_assembly=True) == typed
