"""The rules on hazards: what ptxas assembles breaks none of them, and what is made from it with one fault does."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from bench.sass_latencies import ages, tables
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import NO_BARRIER, OPCODE, READ_BARRIER, STALL, WAIT, WRITE_BARRIER, Field
from neutrino.sass.instruction import Latency
from neutrino.sass.twin.hazards import hazards, kind, required
from neutrino.sass.twin.trampolines import instruction_words
from tests.sass_twin.listing import assemble

_SAMPLE = Path(__file__).parent.parent / "sass" / "sample.ptx"


@pytest.fixture(scope="module")
def kernels(whole, tmp_path_factory) -> dict[str, bytes]:
    """Kernels as ptxas assembles them, by name."""
    sample = assemble(_SAMPLE.read_text(), "sm_90a", tmp_path_factory.mktemp("sample"))
    return {
        name: kernel.code for data in (whole, sample) for name, kernel in read_cubin(data, "kernels").kernels.items()
    }  # fmt: skip


def _rules(words: list[int]) -> list[str]:
    code = b"".join(word.to_bytes(16, "little") for word in words)
    return [finding.rule for finding in hazards(decode(code, 90))]


def test_kernels_of_ptxas_break_no_rule(kernels):
    assert sum(len(code) for code in kernels.values()) > 16 * 500
    for name, code in kernels.items():
        assert hazards(decode(code, 90, name)) == [], name


def _faults(words: list[int], field: Field, value: int, where: list[int]) -> tuple[int, int]:
    """How many of these instructions have another value of a field, and how many kernels with it in one of them break a
    rule."""
    changed = [at for at in where if field.get(words[at]) != value]
    found = 0
    for at in changed:
        other = list(words)
        other[at] = field.put(words[at], value)
        found += bool(_rules(other))
    return len(changed), found


@pytest.mark.parametrize(("field", "value", "least"), [(WAIT, 0, 0.8), (WRITE_BARRIER, NO_BARRIER, 1.0)])
def test_what_is_not_waited_for(field, value, least, kernels):
    code = kernels["reversed"]
    words = instruction_words(code)
    changed, found = _faults(words, field, value, list(range(len(words))))
    # A wait may be for what another one after it waits for, too.
    assert changed >= 5
    assert found >= least * changed, (changed, found)


def test_a_read_barrier_dropped(kernels):
    words = instruction_words(kernels["switched"])
    changed, found = _faults(words, READ_BARRIER, NO_BARRIER, list(range(len(words))))
    assert changed > 0
    assert found > 0


def test_stalls_of_one_cycle(kernels):
    words = instruction_words(kernels["reversed"])
    code = decode(kernels["reversed"], 90)
    fixed = [one.offset // 16 for one in code if one.latency is Latency.FIXED and one.control.stall >= 4]
    changed, found = _faults(words, STALL, 1, fixed)
    assert changed >= 5
    assert found >= changed // 2, (changed, found)


def test_a_scoreboard_that_is_waited_for_at_once(kernels):
    words = instruction_words(kernels["reversed"])
    at = next(at for at, word in enumerate(words) if WRITE_BARRIER.get(word) < 6)
    words[at] = STALL.put(words[at], 1)
    words[at + 1] = WAIT.put(words[at + 1], 1 << WRITE_BARRIER.get(words[at]))
    assert "a scoreboard is waited for in the cycle after it was taken" in _rules(words)


def test_latencies_are_learned_from_code(kernels):
    found, lines, size = ages([(name, 90, code) for name, code in kernels.items()])
    assert lines == []
    assert size == sum(len(code) for code in kernels.values()) // 16
    assert min(found["ISETP", "P", "guard"]) == 13
    assert min(found["IADD3", "R", "IADD3"]) >= 4


def test_what_is_seldom_stands_apart():
    often, seldom = tables({
        ("MOV", "R", "FADD"): Counter({5: 900, 4: 100}), ("MOV", "R", "IMAD"): Counter({6: 1000}),
        ("MOV", "R", "SEL"): Counter({5: 9}), ("MOV", "R", "LDG"): Counter({9: 999}),
        ("MOV", "P", "SEL"): Counter({7: 1}),
    })  # fmt: skip
    assert often == {"MOV": {"R": {"*": 6, "FADD": 4, "IMAD": 6}, "P": {"*": 7}}}
    assert seldom == {"MOV": {"R": {"SEL": 5}, "P": {"SEL": 7}}}


def test_what_is_hardly_ever_left_is_no_limit():
    often, seldom = tables({
        ("MOV", "R", "FADD"): Counter({5: 990, 4: 10}), ("MOV", "R", "IMAD"): Counter({22: 9, 30: 991}),
        ("MOV", "R", "over LDG"): Counter({9: 1000}), ("MOV", "P", "guard"): Counter({13: 5000}),
    })  # fmt: skip
    assert often == {"MOV": {"R": {"*": 4, "FADD": 4, "over LDG": 4}, "P": {"*": 13, "guard": 13}}}
    assert seldom == {}


def test_what_latencies_depend_on():
    assert kind("IMAD.WIDE.U32") == "IMAD.WIDE"
    assert kind("IMAD.MOV.U32") == "IMAD"
    assert kind("HMMA.16816.F32.BF16") == "HMMA.16816.F32"
    assert kind("IMMA.16832.S8.S8.SAT") == "IMMA.16832"
    assert required(90)("IADD3", "R", "over IADD3") == 1


def test_pairs_whose_guards_exclude_each_other():
    # What lanes of P0 load, lanes of !P0 may move; and what they write while others read its old value.
    text = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 at)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [at];
	ld.global.u32 %r1, [%rd1];
	st.global.u32 [%rd1+4], %r1;
	ret;
}
"""
    with tempfile.TemporaryDirectory() as folder:
        code = read_cubin(assemble(text, "sm_90", Path(folder)), "cubin").kernels["k"].code
    words = instruction_words(code)
    assert _rules(words) == []
    load = next(at for at, word in enumerate(words) if OPCODE.get(word) == 0x981)
    guard, destination = Field(12, 4), Field(16, 8)
    words[load] = guard.put(words[load], 2)
    move = destination.put(0x000FE40000000F00_0000000500007802, destination.get(words[load]))
    # Under the opposite guard, under the same, always.
    for other, rules in ((2 | 8, 0), (2, 1), (7, 1)):
        changed = [*words[: load + 1], guard.put(move, other), *words[load + 2 :]]
        found = [rule for rule in _rules(changed) if "while a result for it is under way" in rule]
        assert len(found) == rules, (other, found)


def test_latencies():
    assert required(90)("IADD3", "R", "IADD3") == 4
    assert required(90)("ISETP", "P", "guard") == required(90)("ISETP", "P", "VOTE") == 13
    assert required(90)("IADD3", "R", "an opcode that nobody has") >= 5
    assert required(90)("NANOSLEEP", "R", "IADD3") is None
