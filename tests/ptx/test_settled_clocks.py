"""Clocks that probes read after barriers: no warp is still on its way to one."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import machine_code
from ptx_text import array, kernel, lines, only, probe

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file

LOAD = "ld.global.u32 %r3, [%rd1];"
CLOCK = ".reg .u64 %s; mov.u64 %s, %clock64; SAVE [ M ] { %s };"
PARTS = ["bar.sync 0;", LOAD, "add.u32 %r1, %r1, 1;", "jump", "skip"]
AT_LOADS = array(["u64"], 8) + probe("ld.global", before=CLOCK)


def twin_of(body, probes, **options):
    return only(probe_module(parse(kernel(body, **options)), probes))


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (f"{LOAD} ret;", 0), (f"{LOAD} bar.sync 0; {LOAD} ret;", 1), (f"bar.sync 0; {LOAD} {LOAD} ret;", 1),
        (f"bar.sync 0; {LOAD} barrier.sync 1; {LOAD} ret;", 2), (f"L: {LOAD} bar.sync 0; @%p1 bra L; ret;", 1),
        (f"@%p1 bra L; bar.sync 1, 64; L: {LOAD} ret;", 1), (f"bar.sync 0; @%p1 bra L; {LOAD} L: {LOAD} ret;", 2),
        (f"bar.warp.sync 0xffffffff; {LOAD} ret;", 0), (f"bar.arrive 0, 64; {LOAD} ret;", 0),
        (f"barrier.cluster.arrive; {LOAD} barrier.cluster.wait; {LOAD} ret;", 1),
        (f"bar.red.popc.u32 %r1, 0, %p1; {LOAD} ret;", 1), (f"{LOAD} bar.sync 0; ret;", 0),
    ],
)  # fmt: skip
def test_clocks_wait_where_a_barrier_may_be_pending(body, waits, probe_set):
    assert twin_of(body, probe_set(AT_LOADS)).probed_text.count("pmevent") == waits


def test_what_reads_no_clock_waits_for_nothing(gmem_bytes):
    assert "pmevent" not in twin_of(f"bar.sync 0; {LOAD} ret;", gmem_bytes).probed_text


def test_the_end_of_the_thread_waits(block_sched):
    assert twin_of("bar.sync 0; ret;", block_sched).probed_text.count("pmevent") == 1
    assert twin_of("@%p1 ret; bar.sync 0; ret;", block_sched).probed_text.count("pmevent") == 1


@pytest.mark.parametrize("clock", ["%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"])
def test_all_clocks_wait(clock, probe_set):
    kind = "u64" if clock in {"%clock64", "%globaltimer"} else "u32"
    code = f".reg .{kind} %s; mov.{kind} %s, {clock}; SAVE [ M ] {{ %s }};"
    probes = probe_set(array([kind], 8 if kind == "u64" else 4) + probe("ld.global", before=code))
    found = lines(twin_of(f"bar.sync 0;\n{LOAD} ret;", probes))
    (at,) = [number for number, line in enumerate(found) if f"{clock};" in line]
    assert found.index("pmevent 0;") < at


def test_called_functions_and_calls(probe_set):
    function = f".func f(.reg .b64 %rd1)\n{{\n.reg .b32 %r3; {LOAD} ret;\n}}\n"
    twin = twin_of(f"{LOAD} call f, (%rd1); {LOAD} ret;", probe_set(AT_LOADS), before=function)
    assert twin.probed_text.count("pmevent") == 1
    (copy,) = twin.copies
    assert copy.text.count("pmevent") == 1


def test_products_and_their_sums_are_fused_as_before(probe_set, tools, tmp_path):
    """The clock stands between both, what waits for the barrier above them."""
    body = "bar.sync 0;\nmul.f32 %f1, %f2, %f3;\nadd.u32 %r1, %r1, 1;\nadd.f32 %f1, %f1, %f2;\n"
    probes = probe_set(array(["u64"], 8) + probe("add.u32", before=CLOCK))
    text = kernel("ld.global.f32 %f2, [%rd1]; ld.global.f32 %f3, [%rd1+4];\n" + body
                  + "st.global.f32 [%rd1], %f1; st.global.u32 [%rd1+8], %r1; ret;")  # fmt: skip
    twins = probe_module(parse(text), probes)
    found = lines(only(twins))
    assert found.index("bar.sync 0;") < found.index("pmevent 0;") < found.index("mul.f32 %f1, %f2, %f3;")
    assert "FFMA" in " ".join(machine_code(twins.render(), "sm_90", tmp_path)["k__neutrino"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync %r2;", "bar.sync %r2, %r1;"])
def test_ptxas_keeps_their_order(arch, barrier, probe_set, tools, tmp_path):
    """The barrier, what waits for it, and the clock, with arithmetic after the barrier."""
    body = f"{barrier}\n" + "mad.lo.u32 %r1, %r1, %r1, 7;\n" * 5 + f"{LOAD} st.global.u32 [%rd1+4], %r1; ret;"
    text = kernel(body, arch=arch, version="6.3" if arch == "sm_75" else "8.7")
    code = machine_code(probe_module(parse(text), probe_set(AT_LOADS)).render(), arch, tmp_path)["k__neutrino"]
    found = [match[0] for match in map(re.compile(r"BAR\.SYNC|PMTRIG|CLOCK").search, code) if match]
    assert found == ["BAR.SYNC", "PMTRIG", "CLOCK"]


@pytest.fixture(scope="module")
def at_loads(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "probe.toml"
    path.write_text('platform = "cuda"\n' + AT_LOADS)
    return load_probe_file(path)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=3, max_size=12), st.integers(0, 1 << 30))
def test_on_every_way_through_a_kernel(at_loads, parts, seed):
    """Threads take branches at random; whenever one reads a clock, it has waited since its last barrier."""
    draw = random.Random(seed)
    places = len(parts)
    code = "".join(
        f"L{number}: " + (f"@%p1 bra L{draw.randrange(places)};" if part == "jump" else
                          f"bra L{draw.randrange(number, places)};" if part == "skip" else part) + "\n"
        for number, part in enumerate(parts)
    )  # fmt: skip
    found = lines(twin_of(code + LOAD + "\nret;", at_loads))
    labels = {line.split(":")[0]: number for number, line in enumerate(found) if re.match(r"L\d+:", line)}
    for _ in range(8):
        at = found.index("{")
        pending = False
        for _ in range(300):
            at += 1
            line = found[at].partition(": ")[2] or found[at]
            if line.startswith("ret"):
                break
            if line.startswith("bar.sync"):
                pending = True
            elif line.startswith("pmevent"):
                pending = False
            elif "%clock64;" in line:
                assert not pending
            elif (jump := re.match(r"(@%p1 )?bra (L\d+);", line)) and (not jump[1] or draw.random() < 0.5):
                at = labels[jump[2]] - 1
