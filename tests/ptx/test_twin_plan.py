"""A kernel's plan says what writing its twin says, and costs less: no text is written for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from isa_examples import EXAMPLES
from ptx_text import array, kernel, probe

from neutrino.errors import PtxError
from neutrino.fatbin import read_container
from neutrino.patched_files.probeable_kernels import find_coverage
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.programs import plan_module, write_module
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file

ROOT = Path(__file__).parents[2]
KERNELS = sorted(path for path in (ROOT / "tests/fixtures/kernels").rglob("*.ptx") if path.stat().st_size < 24_000)
PROBES = [ROOT / "probes" / name for name in ("program_progress.py", "value_watch.py")]

_HEAD = ".version 8.8\n.target {arch}\n.address_size 64\n.shared .align 16 .b8 smem[64];\n"
_KERNEL = """.visible .entry k{number}(.param .u64 out)
{{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<140>; .reg .f32 %f<140>; .reg .b64 %rd<16>; .reg .f64 %d<8>;
.reg .b128 %q<4>;
{instruction};
L1: ret;
}}
"""


def _module(arch: str, instructions: list[str]) -> str:
    kernels = (_KERNEL.format(number=number, instruction=text) for number, text in enumerate(instructions))
    return _HEAD.format(arch=arch) + "".join(kernels)


@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_what_is_planned_is_written(path: Path) -> None:
    probes = load_probe_file(path)
    planned = 0
    for file in KERNELS:
        try:
            plan = plan_module(parse(file.read_bytes().decode("latin-1")), probes)
        except PtxError:
            continue
        planned += len(plan.kernels)
        twins = write_module(plan)
        assert twins.skipped == plan.skipped, file
        assert [kernel.site_count for kernel in plan.kernels] == [len(twin.sites) for twin in twins.kernels], file
    assert planned


@pytest.mark.parametrize("helper", ["OUT", "IN1", "IN2", "IN3", "ADDR", "BYTES", "OPS"])
def test_what_an_instruction_lacks_does_not_depend_on_others(
    helper: str, probe_set: Callable[[str], ProbeSet]
) -> None:
    """Each example in a module of its own, where writing is tried for it, and among all others, in both orders."""
    side = "after" if helper == "OUT" else "before"
    snippet = f".reg .b64 %x; mov.b64 %x, {helper};" if helper == "ADDR" else f"SAVE [ M ] {{ {helper} }};"
    probes = probe_set(array(["u64"], 8) + probe("*", **{side: snippet}))
    for arch in sorted({arch for arch, _, _ in EXAMPLES}):
        instructions = [instruction for at, instruction, _ in EXAMPLES if at == arch]
        alone = {
            text: [skip.detail for skip in plan_module(parse(_module(arch, [text])), probes).skipped]
            for text in instructions
        }
        for ordered in (instructions, instructions[::-1]):
            plan = plan_module(parse(_module(arch, ordered)), probes)
            assert write_module(plan).skipped == plan.skipped
            details = {skip.name: skip.detail for skip in plan.skipped}
            for number, text in enumerate(ordered):
                expected = [_without_line(detail) for detail in alone[text]]
                found = [_without_line(details[f"k{number}"])] if f"k{number}" in details else []
                assert found == expected, text


def _without_line(detail: str) -> str:
    before, _, rest = detail.partition("line ")
    return before + rest.partition(":")[2]


def _calls(work: Callable[[], object]) -> Counter[str]:
    """How often functions of each of the product's files are called."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found[Path(frame.f_code.co_filename).name] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_coverage_writes_nothing(probe_set: Callable[[str], ProbeSet]) -> None:
    """However many sites there are, and their operands with them: what is tried once for instructions that look alike
    is all that is written, and is tried once for a probe set."""
    source = array(["u64"], 8) + probe("ld.global", before="SAVE [ M ] { ADDR };")

    def covered(probes: ProbeSet, count: int) -> Counter[str]:
        text = kernel("".join(f"ld.global.u32 %r{3 + number % 9}, [%rd1+{4 * number}];\n" for number in range(count)))
        containers = [read_container(text.encode(), "text")]
        return _calls(lambda: find_coverage(containers, "sm_90", probes, Selection()))

    probes = probe_set(source)
    few, many = covered(probes, 4), covered(probe_set(source + "# another set\n"), 400)
    again = covered(probes, 400)
    plan = plan_module(parse(kernel("ld.global.u32 %r3, [%rd1]; ret;")), probes)
    written = _calls(lambda: write_module(plan))
    assert written["twin_bodies.py"]
    assert not many["twin_bodies.py"]
    assert many["site_planner.py"] > few["site_planner.py"]
    for file in ("site_values.py", "emission.py", "records.py"):
        assert few[file] == many[file], file
        assert not again[file], file
