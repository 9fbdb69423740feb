"""Places between instructions: what probes count there is what a trace of the original says."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings

from neutrino.verification import check_probes
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.probes import Probe
from tests.oracle.random_kernels import BEGIN, END, HEAD, WITNESS, kernels
from tests.oracle.twin_launch import LoadedTwin

_POSITIONS = {
    "blocks": "block",
    "heads": "loop-head",
    "back": "back-edge",
    "begun": "range:r*",
    "ended": "range:r*",
    "loads": "ld.global & range:r*",
    "others": "ld.global & !range:r*",
    "work": "call:work*",
    "mixed": "call & !call:work*",
}


def _probes(names: list[str]) -> Probe:
    text = ""
    for name in names:
        side = "after" if name == "ended" else "before"
        text += f'[map.{name}]\ntype = "sum"\nlevel = "thread"\ndata = {{ n = "u64" }}\n'
        text += f'[probe.at_{name}]\nposition = "{_POSITIONS[name]}"\nlevel = "thread"\n'
        text += f'{side} = "SAVE [ {name} ] {{ 1 }};"\n'
    return Probe("-".join(names), (), text=text)


_ALL = _probes(list(_POSITIONS))
_FLOW = _probes(["blocks", "heads", "back", "work", "mixed"])


def _expected(bench: Bench) -> dict[str, int]:
    """The figures, by the executions of the original's statements: those of the witnesses, and what lies between marks
    in the text, since the marks of these kernels are nested as braces are."""
    kernel = bench.kernel
    lines = kernel.text.split("\n")
    heads = {line.split(":")[0].split()[-1] for line, after in pairwise(lines) if HEAD in after}
    inside, depth = set(), 0
    for number, line in enumerate(lines, start=1):
        depth += line.strip().startswith("// neutrino begin")
        depth -= line.strip().startswith("// neutrino end")
        if depth:
            inside.add(number)
    counts = dict.fromkeys((*_POSITIONS, "calls"), 0)
    counts["blocks"] = kernel.geometry.threads * kernel.geometry.blocks
    witnesses = {WITNESS: ["blocks"], HEAD: ["blocks", "heads"], BEGIN: ["begun"], END: ["ended"]}
    for site in bench.tracer.sites:
        text = " ".join(site.text.split()).rstrip(";")
        names = next((names for witness, names in witnesses.items() if text == witness.rstrip(";")), [])
        if site.opcode.startswith("bra") and text.split()[-1] in heads:
            names = ["back"]
        elif site.opcode.startswith("ld.") and "global" in site.opcode.split("."):
            names = ["loads" if site.line in inside else "others"]
        elif site.opcode.startswith("call"):
            # The first instruction of a function begins a block.
            names = ["blocks", "work" if re.search(r"\bwork\d", text) else "mixed"]
        for name in names:
            counts[name] += site.executions
    return counts


def _leaves_a_range(text: str) -> bool:
    """Whether a thread may end, or return, between the marks of a range."""
    ranges = re.findall(r"// neutrino begin (\w+)(.*?)// neutrino end \1\n", text, re.DOTALL)
    return any(re.search(r"@!?%p\d (?:ret|exit);", body) for _, body in ranges)


def test_random_kernels_with_probes_at_places(pytestconfig: pytest.Config) -> None:
    asked = pytestconfig.getoption("--random-rewrites")
    count = asked or 24

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=not asked,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(kernels(witnesses=True))
    def check(kernel: Kernel) -> None:
        probe = _ALL
        bench = Bench(kernel, (_ALL, _FLOW), (None,))
        if _leaves_a_range(kernel.text):
            event("left")
            # The probes at ranges are left out; whether others remain depends on what they share.
            refused = bench.twins(_ALL)
            skip = skip_of(refused)
            details = [skip.detail] if skip else [left.detail for left in refused.kernels[0].probes_left_out]
            assert any("within the range" in detail for detail in details), details
            probe = _FLOW
        twins = bench.twins(probe)
        assert skip_of(twins) is None, skip_of(twins)
        (twin,) = twins.kernels
        assert not twin.left_out
        expected = _expected(bench)
        event(f"loops: {expected['back'] > 0}, ranges: {expected['begun'] > 0}")
        views, results = bench.run(probe, twin, twins.render(), None)
        assert results == bench.results(None)
        found = {name: int(view.total()["n"]) for name, view in views.items()}
        assert found == {name: expected[name] for name in found}, kernel.text

    check()


_TIMED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry timed(.param .u32 times)
{
	.reg .pred %p<2>; .reg .b32 %r<4>;
	ld.param.u32 %r1, [times];
	mov.u32 %r2, 0;
	// neutrino begin loop
L:
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra L;
	// neutrino end loop
	ret;
}
"""


def test_how_long_a_range_takes() -> None:
    """The clock of the embedded device counts steps: each time around takes as many."""
    probes = check_probes([], ["range:loop { @t = max(elapsed) } loop-head { @n = count() }"]).probe_set()
    took = []
    for times in (1, 2, 11):
        kernel = Kernel("timed", _TIMED, "timed", (2, 1, 1), (40, 1, 1), (np.uint32(times),))
        twins = make_twins(kernel, probes)
        (twin,) = twins.kernels
        place = Bench(kernel, ()).place(None)
        loaded = LoadedTwin(twin, place.device.load(twins.render()), place.module.variables)
        views = loaded.launch(place.device, place.launch())
        assert int(views["n"].total()["count"]) == 80 * times
        took.append(int(views["t"].valid()["max"][0]))
    assert took[1] - took[0] >= 3
    assert took[2] - took[1] == 9 * (took[1] - took[0])
