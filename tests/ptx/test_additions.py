"""Additions of constants: once for each run of sites, and never where that would count otherwise."""

from __future__ import annotations

import re

import pytest
from machine import assemble
from ptx_text import array, kernel, lines, only, probe

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import parse

COUNTS = '[map.M]\ntype = "sum"\nlevel = "thread"\nsize = 8\ndata = { n = "u64" }\n'
ONE = "SAVE [ M ] { 1 };"


def added(twin: TwinKernel) -> list[tuple[str, int]]:
    """(predicate, constant) of each addition to the sum, in text order."""
    found = []
    for line in lines(twin):
        line = re.sub(r"^\S+:\s*", "", line)
        if sum_of := re.search(r"(@\S+ )?add\.u64 %N(?:c0|s0_0), %N(?:c0|s0_0), (\d+);", line):
            found.append(((sum_of[1] or "").strip(), int(sum_of[2])))
    return found


ADD = "add.u32 %r3, %r3, 1;"


@pytest.mark.parametrize(("body", "sums"), [
    (ADD * 5 + "ret;", [("", 5)]),
    (f"{ADD}{ADD} L: {ADD} @%p2 bra L; {ADD}{ADD}{ADD} ret;", [("", 2), ("", 1), ("", 3)]),
    (f"@%p1 {ADD} @%p1 {ADD} {ADD} @!%p1 {ADD} @%p1 {ADD} ret;", [("@%p1", 3), ("", 1), ("@!%p1", 1)]),
    (f"@%p1 {ADD} setp.lt.u32 %p1, %r1, %r2; @%p1 {ADD} ret;", [("@%p1", 1), ("@%p1", 1)]),
    (f"@%p1 {ADD} setp.lt.u32 %p2|%p1, %r1, %r2; @%p1 {ADD} ret;", [("@%p1", 1), ("@%p1", 1)]),
    (f"@%p1 {ADD} setp.lt.u32 %p11, %r1, %r2; @%p1 {ADD} ret;", [("@%p1", 2)]),
    (f"@%p1 {ADD} {{ .reg .pred %p1; setp.lt.u32 %p1, %r1, 1; @%p1 {ADD} }} @%p1 {ADD} ret;", [("@%p1", 1)] * 3),
    (f"{{ @%p1 {ADD} }} mov.b64 %rd2, {{%r1, %r2}}; @%p1 {ADD} ret;", [("@%p1", 2)]),
    (f"{ADD} @%p1 exit; {ADD} @%p1 trap; {ADD} bar.sync 0; {ADD} ret;", [("", 1), ("", 1), ("", 2)]),
    (f"{ADD} call f; {ADD} ret;", [("", 1), ("", 1)]),
    (f"{ADD} {{ call f; }} {ADD} ret;", [("", 1), ("", 1)]),
    (f"{ADD} ld.shared::cta.u32 %r4, [%r2]; {ADD} ret;", [("", 2)]),
    (f"T: .branchtargets A, B; {ADD} brx.idx %r3, T; A: {ADD} {ADD} B: {ADD} ret;", [("", 1), ("", 2), ("", 1)]),
])  # fmt: skip
def test_what_is_added_where(body, sums, probe_set, count_all, tools, tmp_path):
    text = kernel(body, before=".func f { ret; }\n").replace("%p<8>", "%p<12>")
    twin = only(twins := probe_module(parse(text), probe_set(COUNTS + probe("add.u32", before=ONE))))
    assert added(twin) == sums
    assert sum(amount for _, amount in sums) == len(twin.sites)
    assemble(twins.render(), "sm_90", tmp_path)


def test_both_sides_and_bytes(probe_set, count_all, tools, tmp_path):
    """After an instruction as before it; after a branch nothing."""
    body = "ld.global.v2.f32 {%f1, %f2}, [%rd1]; ld.global.u8 %h1, [%rd1]; ret;"
    snippet = "SAVE [ M ] { BYTES };"
    twin = only(twins := probe_module(parse(kernel(body)), probe_set(COUNTS + probe("ld.global", after=snippet))))
    assert added(twin) == [("", 9)]
    assemble(twins.render(), "sm_90", tmp_path)
    ends = probe("ret | * func:none", before=ONE).replace("probe.p", "probe.q")
    every = probe_set(COUNTS + probe("ld.global", before=ONE, after=ONE) + ends)
    both = only(probe_module(parse(kernel(body)), every))
    assert sum(amount for _, amount in added(both)) == 5


def test_all_lanes_that_come(probe_set, count_all):
    """With lanes = "reaching" the predicate does not matter; another probe's addition under it stays its own."""
    reaching = probe("add.u32", before=ONE).replace("level", 'lanes = "reaching"\nlevel')
    body = f"@%p1 {ADD} {ADD} @!%p1 {ADD} ret;"
    assert added(only(probe_module(parse(kernel(body)), probe_set(COUNTS + reaching)))) == [("", 3)]
    executing = probe("add.u32", before="SAVE [ M ] { 2 };").replace("probe.p", "probe.q")
    both = only(probe_module(parse(kernel(body)), probe_set(COUNTS + reaching + executing)))
    assert sorted(added(both)) == [("", 5), ("@!%p1", 2), ("@%p1", 2)]


def test_registers_that_are_looked_at_in_between(probe_set, count_all):
    """A register of a probe that another snippet reads is counted site by site."""
    count = probe("add.u32", before=".reg .u64 %n; add.u64 %n, %n, 1;")
    total = probe("kernel", after="SAVE [ M ] { %n };").replace("probe.p", "probe.q")
    order = probe("st.global", before="SAVE [ M ] { %n };").replace("probe.p", "probe.q")
    body = f"{ADD}{ADD} st.global.u32 [%rd1], %r1; {ADD} ret;"
    numbers = re.compile(r"add\.u64 %N(?:c0|r_n), %N(?:c0|r_n), (\d+);")

    def amounts(*probes: str) -> list[str]:
        text = array(["u64"], 8, cap=4) + "".join(probes)
        return numbers.findall("\n".join(lines(only(probe_module(parse(kernel(body)), probe_set(text))))))

    assert amounts(count, total) == ["3"]
    assert amounts(count, order) == ["1", "1", "1"]
    assert amounts(count.replace("%n, 1;", "%n, 1; add.u64 %n, %n, %n;"), total) == ["1", "1", "1"]


def test_a_warp_level_sum_looks_for_its_lane_once(probe_set, tools, tmp_path):
    text = COUNTS.replace('"thread"', '"warp"') + probe("add.u32", before=ONE, level="warp")
    body = f"{ADD * 6} L: {ADD * 3} @%p1 bra L; ret;"
    twin = only(twins := probe_module(parse(kernel(body)), probe_set(text)))
    found = lines(twin)
    loop = found.index(next(line for line in found if "L:" in line))
    assert [line for line in found if "%tid.x" in line][1:] == [line for line in found[loop:] if "%tid.x" in line]
    assert added(twin) == [("", 3)]
    assert any(line.endswith(", 6;") for line in found[loop:])
    assert "redux" not in twin.probed_text
    assemble(twins.render(), "sm_90", tmp_path)
