"""``//`` and ``%`` of every integer type, on the embedded device, against Python's; none adds arithmetic of floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import ProbeError
from neutrino.ptx.snippets.lowering import lower
from neutrino.ptx.snippets.writer import inverse
from neutrino.targets import written as write
from neutrino.verification import load_probe_file, read_probes
from tests.oracle.assembling import arithmetic_differs
from tests.oracle.bench import make_twins
from tests.oracle.typed import BLOCK, kernel, run

_MOST = 1 << 64
_DIVISORS = (1, 2, 3, 5, 7, 10, 11, 64, 100, 641, 1000, 0x7F, 0x80, 0x7FFFFFFF)
_WIDE = (274177, 10**9, 10**18, 1 << 32, (1 << 32) + 1, (1 << 63) - 1, 1 << 62)


def _value(bits: int, width: int, *, is_signed: bool) -> int:
    bits %= 1 << width
    return bits - (1 << width) if is_signed and bits >> (width - 1) else bits


def _words(width: int) -> npt.NDArray[Any]:
    """Bits for a block of threads: edges of a width, and what is spread between them."""
    top = 1 << width
    near = [0, 1, 2, 3, 6, 7, 9, 10]
    edges = [*near, *(top - number for number in near[1:]), top // 2 - 1, top // 2, top // 2 + 1]
    random = np.random.default_rng(width)
    more = [int.from_bytes(random.bytes(8), "little") >> shift for shift in range(BLOCK - len(edges))]
    return np.array([word % top for word in (*edges, *more)], f"u{max(width, 16) // 8}")


def _probes(tmp_path: Path, kind: str, codes: list[str]) -> Path:
    path = tmp_path / "p.py"
    path.write_text(
        "import neutrino.language as nl\n"
        '@nl.probe(pos="xor", level="thread", before=True)\ndef p():\n'
        f"    x: nl.{kind} = nl.in1\n    y: nl.{kind} = nl.in2\n"
        f"    nl.save(({', '.join(codes)},), dtype=nl.{kind})\n"
    )
    return path


def _divisors(width: int, *, is_signed: bool) -> list[int]:
    numbers = [*_DIVISORS, *(_WIDE if width == 64 else ())]
    numbers += [-number for number in numbers] + [-(1 << (width - 1))] if is_signed else []
    numbers += [] if is_signed else [(1 << width) - 1, (1 << (width - 1)) + 1, 1 << (width - 1)]
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed else (0, (1 << width) - 1)
    return sorted({number for number in numbers if low <= number <= high})


@pytest.mark.parametrize("through_assembly", [False, True], ids=["typed", "assembly"])
@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"])
def test_by_constants(kind: str, through_assembly: bool, tmp_path: Path, ptxas: object) -> None:
    """Rounded as in Python, but for the lowest number by -1, which wraps around."""
    width, is_signed = int(kind[1:]), kind[0] == "s"
    words = _words(width)
    divisors = _divisors(width, is_signed=is_signed)
    for start in range(0, len(divisors), 6):
        few = divisors[start : start + 6]
        probes = load_probe_file(_probes(tmp_path, kind, [f"x {op} {number}" for number in few for op in ("//", "%")]))
        if through_assembly:
            probes = read_probes("p.toml", write(lower(probes)))
        records = run(probes, kernel(words, words))["p"].records.reshape(-1)
        for word, record in zip(words.tolist(), records, strict=True):
            number = _value(word, width, is_signed=is_signed)
            wanted = [_value(part, width, is_signed=is_signed) for by in few for part in (number // by, number % by)]
            assert list(record.item()) == wanted, (number, few)


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "s8", "s16", "s32"])
def test_by_what_is_computed(kind: str, tmp_path: Path, ptxas: object) -> None:
    width, is_signed = int(kind[1:]), kind[0] == "s"
    words = _words(width)
    for shift in (1, 5, 11):
        others = np.roll(words, shift)
        # By 0 any value comes out, and no fault.
        probes = load_probe_file(_probes(tmp_path, kind, ["x // y", "x % y", "x // (y | 1)", "x % (y | 1)"]))
        records = run(probes, kernel(words, others))["p"].records.reshape(-1)
        for word, other, record in zip(words.tolist(), others.tolist(), records, strict=True):
            number, divisor = (_value(each, width, is_signed=is_signed) for each in (word, other))
            odd = _value(other | 1, width, is_signed=is_signed)
            wanted = [number // odd, number % odd]
            got = list(record.item())
            if divisor:
                wanted = [number // divisor, number % divisor, *wanted]
            wanted = [_value(each, width, is_signed=is_signed) for each in wanted]
            assert got[-len(wanted) :] == wanted, (number, divisor)


@pytest.mark.parametrize("arch", [75, 80, 90, 100])
@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "u64", "s64"])
def test_the_machine_code_has_no_arithmetic_of_floats(kind: str, arch: int, tmp_path: Path, ptxas: object) -> None:
    """ptxas makes FMUL of div.u16: kernels with it were refused, since their own fusion could not be compared."""
    codes = ["x // 3", "x % 10", "x // 64", "x % 7"] + (["x // y", "x % y"] if kind[1:] != "64" else [])
    words = _words(int(kind[1:]))
    place = kernel(words, words, arch)
    twins = make_twins(place, load_probe_file(_probes(tmp_path, kind, codes)))
    (twin,) = twins.kernels
    assert arithmetic_differs(place.text, twin, twins.render()) == ""


def test_a_wide_one_by_what_is_computed_is_refused_at_the_divisor(tmp_path: Path) -> None:
    for kind in ("u64", "s64"):
        with pytest.raises(ProbeError) as caught:
            load_probe_file(_probes(tmp_path, kind, ["x // y", "x % (y + 1)", "x // 0"]))
        found = caught.value.diagnostics
        places = [(fault.line, fault.source[fault.column - 1 :].split(",")[0]) for fault in found]
        assert places == [(6, "y"), (6, "y + 1)"), (6, "0)")][: len(found)]
        assert "by what is computed" in found[0].message
        assert "divide by a number" in found[0].hint


def test_narrow_divisions_of_assembly_are_refused_with_what_to_write() -> None:
    text = """[map.M]
type = "sum"
level = "thread"
data = { a = "u32" }
[probe.p]
position = "ld.global.u16"
level = "thread"
after = ".reg .u16 %x; mov.u16 %x, OUT; DIVIDE %x, %x, 3; SAVE [ M ] { 1 };"
"""
    for opcode in ("div.u16", "div.s16", "rem.u16", "rem.s16"):
        with pytest.raises(ProbeError) as caught:
            read_probes("p.toml", text.replace("DIVIDE", opcode))
        (fault,) = caught.value.diagnostics
        assert opcode in fault.message
        assert f"{opcode[:-2]}32" in fault.hint


@settings(max_examples=2000, deadline=None, derandomize=True, database=None)
@given(st.integers(3, _MOST - 1), st.integers(0, _MOST - 1), st.integers(-2, 2))
def test_inverses_are_exact(divisor: int, dividend: int, near: int) -> None:
    """Also beside each multiple of the divisor, where a wrong one would show first."""
    if divisor & (divisor - 1) == 0:
        divisor += 1
    found = inverse(divisor)
    assert 0 <= found.multiplier < _MOST
    for number in (dividend, dividend // divisor * divisor + near, _MOST - 1 + min(near, 0), divisor + near):
        number %= _MOST
        shifted = number >> found.before
        high = shifted * found.multiplier >> 64
        quotient = high >> found.after
        if found.adds:
            quotient = (high + ((number - high) >> 1)) >> (found.after - 1)
        assert quotient == number // divisor, number
