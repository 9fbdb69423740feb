"""Unlikely code, which runs after the last of several sites, records what it records at each site."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import sampled_from

from neutrino.abi.reasons import Reason
from neutrino.emulator.tracer import Tracer
from neutrino.resources import shipped_probes
from neutrino.verification import load_probes
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.library import patterns
from tests.oracle.random_kernels import kernels
from tests.oracle.simulation import operands_of
from tests.oracle.test_matrix import ALL
from tests.oracle.twin_launch import LoadedTwin

PATTERNS = patterns()
_HEAD = """import neutrino.language as nl
from neutrino import Map, probe

"""
_WORDS = 'pos="(add | sub | and | or | xor | shl | mad | mul) & (b32 | u32 | s32) & !wide", level="thread"'
PROBES = {
    "each": f"""
@Map(level="thread", type="array", cap=64)
class Seen:
    site: nl.u32
    value: nl.u32

@probe({_WORDS}, after=True)
def each():
    value: nl.u32 = nl.out
    if nl.unlikely(value % 8 == 3):
        Seen.save(nl.site, value)
""",
    "first": f"""
found: nl.u32 = 0

@Map(level="thread", type="hash")
class First:
    site: nl.u32

@probe({_WORDS}, after=True)
def first():
    value: nl.u32 = nl.out
    if nl.unlikely(found == 0 and (value & 3 == 1 or value > 1000)):
        found = 1
        First.save(nl.site)
""",
    "rising": f"""
greatest: nl.u32 = 5

@Map(level="thread", type="array", cap=64)
class Steps:
    site: nl.u32
    value: nl.u32
    before: nl.u32

@probe({_WORDS}, after=True)
def rising():
    value: nl.u32 = nl.out
    if nl.unlikely(value > greatest):
        Steps.save(nl.site, value, greatest)
        greatest = value
""",
    "sources": f"""
@Map(level="thread", type="array", cap=64)
class Sources:
    site: nl.u32
    value: nl.u32

@Map(level="thread", type="sum")
class Sites:
    number: nl.u64

@probe({_WORDS}, before=True)
def sources():
    Sites.save(1)
    value: nl.u32 = nl.in1
    if nl.unlikely(value % 4 == 2):
        Sources.save(nl.site, value)
""",
    "clock": f"""
turn: nl.u32 = 0

@Map(level="thread", type="hash", keep=["sum", "min", "max"])
class Timed:
    site: nl.u32
    value: nl.u32

@probe({_WORDS}, after=True)
def clock():
    turn = turn * 747796405 + nl.tid.x % 5
    if nl.unlikely(turn > 0x3FFFFFFF):
        value: nl.u32 = nl.out
        Timed.save(nl.site, value | nl.min(nl.u32(nl.clock(after=nl.u64(value))), 1) * nl.popc(nl.lanes))
""",
}
# What stays at the site reads what the rest changes, so that this has a branch of its own there.
PROBES["changes"] = f"""
latest: nl.u32 = 0

@Map(level="thread", type="array", cap=64)
class Changes:
    site: nl.u32
    value: nl.u32
    before: nl.u32

@Map(level="thread", type="histogram", scale="linear", low=0, high=9, step=1)
class Steps:
    by: nl.u32

@probe({_WORDS}, after=True)
def changes():
    value: nl.u32 = nl.out
    changed = value % 4 > latest
    if not changed:
        Steps.save(0)
    if nl.unlikely(changed):
        own: nl.u32 = nl.out
        Changes.save(nl.site, own, latest)
        Steps.save(own % 4 - latest)
        if own % 16 == 3:
            latest = 0
        else:
            latest = own % 4
"""
PROBES["several"] = PROBES["first"] + PROBES["each"] + PROBES["rising"] + PROBES["sources"]
PROBES |= {
    name: (shipped_probes()[name]).read_text().partition("import Map, probe")[2] for name in ("value_watch",)
}
OF_WORDS = ("each", "first", "rising", "sources", "clock", "changes", "several")
OF_FLOATS = (
    "floats", "half_arithmetic", "half_pairs", "bf16_scale", "doubles", "odd_values", "roundings_f32",
    "convert", "mandelbrot", "triton_softmax", "triton_attention_bf16_sm_90", "triton_layernorm_bf16",
)  # fmt: skip
KERNELS = (
    "random", "memory", "matmul_mma_f16", "branches", "calls", "crc32", "early_returns", "formatting", "votes",
    "counting_barriers", "triton_sort",
)  # fmt: skip
_FEW = 12


@cache
def bench(name: str) -> Bench:
    return Bench(PATTERNS.get(name) or ALL[name], ())


def recorded(source: Path, text: str, one: Bench) -> tuple[str, dict[str, Any]] | None:
    """The twin's text, and the records of each map; None of a kernel without a site."""
    source.write_text(_HEAD + text)
    twins = make_twins(one.kernel, load_probes([str(source)]))
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason is Reason.NO_SITE, skip
        return None
    (twin,) = twins.kernels
    place = one.place(None)
    loaded = LoadedTwin(twin, place.device.load(twins.render()), place.module.variables)
    views = loaded.launch(place.device, place.launch())
    assert place.results() == one.results(None)
    records = {key: sorted(view.valid().reshape(-1).tolist()) if key == "First" else view.valid().tolist()
               for key, view in views.items()}  # fmt: skip
    return twins.render(), {key: (rows, views[key].dropped) for key, rows in records.items()}


def compare(source: Path, probe: str, one: Bench) -> int:
    """Compare with what the probe records without the hint; return how many pieces of code were deferred."""
    plain = recorded(source, PROBES[probe].replace("nl.unlikely(", "("), one)
    hinted = recorded(source, PROBES[probe], one)
    if plain is None or hinted is None:
        assert plain is hinted
        return 0
    assert "likely:" not in plain[0]
    assert hinted[1] == plain[1]
    return hinted[0].count("likely:")


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("probe", OF_WORDS)
def test_it_records_the_same_as_at_each_site(probe: str, name: str, tmp_path: Path) -> None:
    assert compare(tmp_path / "probe.py", probe, bench(name)) > 0


@pytest.mark.parametrize("name", OF_FLOATS)
def test_it_watches_the_same_values(name: str, tmp_path: Path) -> None:
    assert compare(tmp_path / "probe.py", "value_watch", bench(name)) > 0


def test_of_random_kernels(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW
    deferred = Counter[str]()

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(kernels(), sampled_from(OF_WORDS))
    def check(kernel: Kernel, probe: str) -> None:
        deferred[probe] += compare(tmp_path / "probe.py", probe, Bench(kernel, ()))

    check()
    assert sum(deferred.values()) > 0


_NUMBERS = range(1, 13)
PRODUCTS = "\n".join([
    ".version 7.8", ".target sm_80", ".address_size 64", ".visible .entry products(.param .u64 x, .param .u64 y)", "{",
    ".reg .f32 %a, %p<13>, %s<13>;", ".reg .b32 %t;", ".reg .b64 %x, %y, %at;",
    "ld.param.u64 %x, [x];", "ld.param.u64 %y, [y];", "mov.u32 %t, %tid.x;", "mul.wide.u32 %at, %t, 4;",
    "add.u64 %x, %x, %at;", "ld.global.f32 %a, [%x];",
    *(f"mul.f32 %p{n}, %a, 0f{np.float32(n).view(np.uint32):08X};" for n in _NUMBERS),
    *(f"add.f32 %s{n}, %p{n}, %a;" for n in _NUMBERS),
    "mul.wide.u32 %at, %t, 48;", "add.u64 %y, %y, %at;",
    *(f"st.global.f32 [%y+{4 * n - 4}], %s{n};" for n in _NUMBERS), "ret;", "}", "",
])  # fmt: skip
"""Every product is read by a sum after all of them, so that code with a branch has no place before that."""


@pytest.mark.parametrize("probe", ["each", "first", "rising", "several", "value_watch"])
def test_products_that_wait_for_their_sums(probe: str, tmp_path: Path) -> None:
    values = np.array([0.3, 1e38, np.inf, np.nan, -2.5, -1e38, 7, 0] * 8, np.float32)
    kernel = Kernel("products", PRODUCTS, "products", (1, 1, 1), (64, 1, 1), (values, np.zeros(64 * 12, np.float32)))
    source = tmp_path / "probe.py"
    text = PROBES[probe].replace(_WORDS, 'pos="mul.f32 | add.f32", level="thread"')
    text = re.sub(r"value: nl.u32 = (nl\.\w+)", r"single: nl.f32 = \1\n    value: nl.u32 = nl.bits(single)", text)
    plain, hinted = (
        recorded(source, each, Bench(kernel, ())) for each in (text.replace("nl.unlikely(", "("), text)
    )
    assert plain is not None
    assert hinted is not None
    assert hinted[1] == plain[1]
    assert hinted[0].count("likely:") > 0


_STEPS = (
    "mul.f32 %y1, %x, 0f3FB8AA3B", "ex2.approx.f32 %e1, %y1", "mul.f32 %y2, %x, 0f3F000000", "sub.f32 %d1, %x, %z",
    "mul.f32 %d2, %d1, 0f40000000", "ex2.approx.f32 %e2, %d2", "add.f32 %s1, %e1, %e2", "abs.f32 %a, %z",
    "add.f32 %s2, %s1, %a", "mul.f32 %q, %z, %z", "fma.rn.f32 %f1, %x, %x, %q", "fma.rn.f32 %f2, %z, %z, %f1",
    "mul.ftz.f32 %t1, %a, 0f3F800000", "add.ftz.f32 %t2, %a, %a", "mul.f32 %n1, %x, 0fBFC00000",
    "mul.f32 %n2, %n1, 0f3F800000", "sqrt.rn.f32 %r, %q", "add.f32 %s3, %s2, %r", "cvt.rn.f16x2.f32 %h, %s1, %e1",
    "cvt.rn.f16x2.f32 %h, %x, %z", "add.f32 %s4, %s3, %f2", "mul.f32 %y3, %y2, 0f3E800000", "div.rn.f32 %g, %e1, %s4",
)  # fmt: skip
"""Results that lie between 0 and others, by instructions whose results have one sign and by such as only may."""
_BLOCKS = (
    _STEPS,
    ("sub.f32 %d1, %x, %z", "mul.f32 %d2, %d1, 0f3F000000", "mul.f32 %d3, 0f3E800000, %d2"),
    ("sub.f32 %d1, %x, %z", "mul.f32 %d2, %d1, 0f3F000000", "mul.f32 %n, %d2, 0fBF000000"),
    ("sub.f32 %d1, %x, %z", "mul.f32 %d2, %d1, 0f40000000"),
    ("mul.f32 %a, %x, 0f3F800000", "mul.ftz.f32 %b, %a, 0f40000000"),
    ("ex2.approx.f32 %e, %x", "add.f32 %s, %e, %e", "cvt.rn.f16x2.f32 %h, %s, %e"),
    ("mul.f32 %q, %x, %x", "fma.rn.f32 %s, %z, %z, %q", "add.f32 %f, %s, %q", "sub.f32 %d, %q, %s"),
    ("cvt.rn.bf16x2.f32 %h, %x, %z", "fma.rn.bf16x2 %i, %h, %h, %h", "mul.f32 %m, %z, 0fBF800000"),
)  # fmt: skip
"""Basic blocks, of which a thread does one: in some each of the results can be the least or the greatest."""
_TINY = float(np.float32(1e-41))
VALUES = (
    (1.0, 2.0), (-1.0, -2.0), (9.5, -3.0), (-9.5, 3.0), (0.0, 0.0), (-0.0, -0.0), (_TINY, _TINY), (-_TINY, 3.0),
    (-3e38, 3e38), (np.inf, 1.0), (-np.inf, 1.0), (np.nan, -1.0), (2.5, np.nan), (-200.0, 90.0), (3e38, -np.inf),
)  # fmt: skip


def steps(values: tuple[float, float]) -> Kernel:
    """A kernel of one thread that does one of the blocks with two values: the first."""
    blocks = [
        [re.sub(r"%([a-wyz]\w*|y\d)\b(?<!%z)", rf"%\1_{number}", step) for step in block]
        for number, block in enumerate(_BLOCKS)
    ]
    names = {name for block in blocks for step in block for name in re.findall(r"%\w+", step)}
    text = "\n".join([
        ".version 8.0", ".target sm_80", ".address_size 64", ".visible .entry steps(.param .u64 x, .param .u64 y)", "{",
        f".reg .b32 {', '.join(sorted(names))}, %which;", ".reg .b64 %in, %out; .reg .pred %p;",
        "ld.param.u64 %in, [x];", "ld.param.u64 %out, [y];", "ld.global.f32 %x, [%in];", "ld.global.f32 %z, [%in+4];",
        "ld.global.u32 %which, [%in+8];",
        *("\n".join([
            f"setp.ne.u32 %p, %which, {number};", f"@%p bra $next{number};", *(f"{step};" for step in block),
            f"st.global.b32 [%out], {block[-1].split()[1].rstrip(',')};", f"$next{number}:",
        ]) for number, block in enumerate(blocks)), "ret;", "}", "",
    ])  # fmt: skip
    arguments = np.array((*values, 0), np.float32), np.zeros(1, np.float32)
    return Kernel("steps", text, "steps", (1, 1, 1), (1, 1, 1), arguments)


def test_extremes_of_each_thread(tmp_path: Path) -> None:
    """One launch for each block and pair of values, since the extremes of one thread hide those of others."""
    kernel = steps((0, 0))
    records: list[list[str]] = []
    folded: list[int] = []
    for probe in (PROBES["value_watch"].replace("nl.unlikely(", "("), PROBES["value_watch"]):
        (tmp_path / "probe.py").write_text(_HEAD + probe)
        twins = make_twins(kernel, load_probes([str(tmp_path / "probe.py")]))
        place = Bench(kernel, ()).place(None)
        loaded = LoadedTwin(twins.kernels[0], place.device.load(twins.render()), place.module.variables)
        folded.append(len(re.findall(r"min\.\w+ %neutrino_\w+, %neutrino_o_", twins.render())))
        records.append([])
        for which, values in product(range(len(_BLOCKS)), VALUES):
            launch = place.launch()
            words = np.array((*values, 0), np.float32).view(np.uint32)
            words[2] = which
            place.device.write(struct.unpack("<Q", launch.parameters[:8])[0], words)
            views = loaded.launch(place.device, launch)
            found = {key: view.valid().tolist() for key, view in views.items()}
            records[-1].append(f"block {which} of {values}: {found}")
    plain, hinted = records
    assert plain == hinted
    assert 0 < folded[1] < sum(map(len, _BLOCKS)) // 2


_AGAIN = """
found: nl.u32 = 0

@Map(level="thread", type="hash")
class First:
    site: nl.u32

@probe(pos="add.f32 | mul.f32 | fma.f32 | ex2.f32", level="thread", after=True)
def first():
    value: nl.f32 = nl.out
    if nl.unlikely(found == 0 and value != value):
        found = 1
        First.save(nl.site)

@probe(pos="mul.f32", level="thread", after=True)
def again():
    value: nl.f32 = nl.out
    if nl.unlikely(value != value):
        found = 0
"""


@pytest.mark.parametrize("probe", [_AGAIN, _AGAIN.partition('@probe(pos="mul.f32",')[0]], ids=["again", "once"])
def test_a_nan_is_first_again_where_another_probe_says_so(probe: str, tmp_path: Path) -> None:
    one = Bench(steps((float("nan"), 2.5)), ())
    plain, hinted = (
        recorded(tmp_path / "probe.py", text, one) for text in (probe.replace("nl.unlikely(", "("), probe)
    )
    assert plain is not None
    assert hinted is not None
    assert hinted[1] == plain[1]
    assert (hinted[0].count("setp.nan") in range(1, 14)) == (probe is not _AGAIN)


_CHANGING = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q)
{
    .reg .u64 %a<9>; .reg .u32 %r<9>; .reg .f32 %f<20>;
    ld.param.u64 %a0, [p];
    ld.param.u64 %a1, [q];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a2, %r0, 4;
    add.u64 %a0, %a0, %a2;
    add.u64 %a1, %a1, %a2;
    ld.global.f32 %f1, [%a0];
    xor.b64 %a0, %a0, 4;
    ld.global.f32 %f3, [%a0];
    mul.lo.u64 %a0, %a0, 3;
    sub.f32 %f2, %f1, %f3;
    div.full.f32 %f4, %f2, %f2;
    sqrt.approx.f32 %f5, %f1;
    st.global.f32 [%a1], %f4;
    xor.b64 %a1, %a1, 8;
    st.global.f32 [%a1], %f5;
    mul.lo.u64 %a1, %a1, 5;
    bar.sync 0;
    ret;
}
"""
"""Each address is changed after its access, so that a save that waits has it in a register."""


@pytest.mark.parametrize("other", ["nan_finder", "value_watch", "coalescing"])
def test_code_that_waits_leaves_saves_that_wait_alone(other: str) -> None:
    kernel = Kernel("k", _CHANGING, "k", (1, 1, 1), (32, 1, 1), (np.zeros(64, np.float32), np.zeros(64, np.float32)))
    found = []
    for probes in (["dmat"], ["dmat", other]):
        twins = make_twins(kernel, load_probes(probes))
        place = Bench(kernel, ()).place(None)
        loaded = LoadedTwin(twins.kernels[0], place.device.load(twins.render()), place.module.variables)
        launch = place.launch()
        first, second = struct.unpack("<2Q", launch.parameters[:16])
        rows = loaded.launch(place.device, launch)["GlobalAccesses"].valid()
        found.append(Counter(
            (min(int(row["address"]) - first, int(row["address"]) - second, key=abs), row["bytes"], row["kind"])
            for row in rows
        ))  # fmt: skip
    assert found[0] == found[1]
    assert found[0].total() == 4 * 32


_BETWEEN = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q)
{
    .reg .u64 %a<3>; .reg .u32 %t; .reg .f32 %f<9>; .reg .f64 %d<6>;
    ld.param.u64 %a0, [p];
    ld.param.u64 %a1, [q];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %a2, %t, 16;
    add.u64 %a0, %a0, %a2;
    add.u64 %a1, %a1, %a2;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%a0];
    cvt.f64.f32 %d1, %f1;
    cvt.f64.f32 %d2, %f2;
    cvt.f64.f32 %d3, %f3;
    mul.f32 %f5, %f2, %f4;
    add.f64 %d4, %d1, %d2;
    sub.f32 %f6, %f1, %f3;
    add.f64 %d5, %d3, %d3;
    add.f32 %f7, %f5, %f4;
    st.global.v2.f32 [%a1], {%f6, %f7};
    st.global.f64 [%a1+8], %d4;
    st.global.f64 [%a1], %d5;
    ret;
}
"""
"""Results of several types between a product and its sum, after which all code goes that waits for them."""


@pytest.mark.parametrize("probes", [("value_watch",), ("nan_finder", "value_watch"), ("value_watch", "nan_finder")])
def test_groups_that_overlap_between_a_product_and_its_sum(probes: tuple[str, ...]) -> None:
    values = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    values.reshape(-1)[::7], values.reshape(-1)[3::11] = np.inf, np.nan
    kernel = Kernel("k", _BETWEEN, "k", (1, 1, 1), (64, 1, 1), (values, np.zeros(256, np.float32)))
    twins = make_twins(kernel, load_probes(probes))
    place = Bench(kernel, ()).place(None)
    loaded = LoadedTwin(twins.kernels[0], place.device.load(twins.render()), place.module.variables)
    views = loaded.launch(place.device, place.launch())
    first, second, third, fourth = values.T
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64).T
        product = second * fourth
        results = (product, wide[0] + wide[1], first - third, wide[2] + wide[2], product + fourth)
    assert views["ValueCounts"].total() == {
        "results": 5 * 64,
        "nan": sum(int(np.isnan(one).sum()) for one in results),
        "infinite": sum(int(np.isinf(one).sum()) for one in results),
    }
    if "nan_finder" in probes:
        has_nan = np.isnan(np.array(results, np.float64))
        expected = Counter(np.argmax(has_nan, axis=0)[has_nan.any(axis=0)].tolist())
        line_of = {site.number: site.line for site in twins.kernels[0].sites if site.number is not None}
        of_site = {number: sorted({*line_of.values()}).index(line) for number, line in line_of.items()}
        assert {of_site[row["key"]]: row["count"] for row in views["FirstNaN"].valid()} == expected


# nan_finder


_PLANTED = re.compile(r"(add|sub|mul|fma)\.(rn\.)?(ftz\.)?f32$")
_TYPES = ("f32", "f16", "bf16", "f16x2", "bf16x2")


def is_nan(opcode: str, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether results of an instruction hold a NaN, by the first type that its opcode names."""
    kind = next(part for part in opcode.split(".") if part in _TYPES)
    if kind == "f32":
        return (words & 0x7FFFFFFF) > 0x7F800000
    infinity = 0x7F80 if kind.startswith("b") else 0x7C00
    found = (words & 0x7FFF) > infinity
    return found | ((words >> 16 & 0x7FFF) > infinity) if kind.endswith("x2") else found


def first_nans(one: Bench) -> tuple[Counter[int], Counter[int], set[int]]:
    """By line, in how many threads the first NaN comes from it: as the probe records it, and as the tracer saw it; and
    the lines that were executed."""
    twins = make_twins(one.kernel, load_probes(["nan_finder"]))
    (twin,) = twins.kernels
    place = one.place(None)
    loaded = LoadedTwin(twin, place.device.load(twins.render()), place.module.variables)
    view = loaded.launch(place.device, place.launch())["FirstNaN"]
    assert view.dropped == 0
    lines = {site.number: site.line for site in twin.sites if site.number is not None}
    rows = view.valid().reshape(-1)
    recorded = Counter(dict(zip(map(lines.get, rows["key"].tolist()), rows["count"].tolist(), strict=True)))
    tracer = Tracer(lambda _: True, registers=True)
    place = one.place(None)
    launch = place.launch()
    place.device.launch(
        place.function, launch.grid, launch.block, launch.parameters, shared=launch.shared, observer=tracer
    )
    first: dict[int, int] = {}
    for execution in tracer.executions:
        if execution.site.line in set(lines.values()):
            words = execution.after[operands_of(execution.site.text)[0]].view(np.uint32)
            for thread in execution.threads[is_nan(execution.site.opcode, words)].tolist():
                first.setdefault(thread, execution.site.line)
    return recorded, Counter(first.values()), {execution.site.line for execution in tracer.executions}


@pytest.mark.parametrize("name", ["triton_softmax_sm_90", "triton_attention_bf16_sm_90", "mandelbrot", "layernorm"])
def test_a_nan_is_found_where_it_begins(name: str) -> None:
    """One operand is a NaN, at each of five instructions by chance."""
    kernel = ALL[name]
    recorded, seen, executed = first_nans(Bench(kernel, ()))
    assert recorded == seen
    lines = kernel.text.split("\n")
    found = re.compile(r"\s*(?:@!?%\w+ )?(\S+)\s[^;]*,([^,;]*);")
    places = [number - 1 for number in sorted(executed)
              if (match := found.match(lines[number - 1])) and _PLANTED.match(match[1])]  # fmt: skip
    for number in random.Random(name).sample(places, 5):
        head, _, _ = lines[number].rpartition(",")
        changed = "\n".join([*lines[:number], f"{head}, 0f7FC00000;", *lines[number + 1 :]])
        recorded, seen, _ = first_nans(Bench(replace(kernel, text=changed), ()))
        assert recorded == seen
        assert seen[number + 1] > 0
