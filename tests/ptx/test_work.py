"""What planning and writing a twin costs grows with the kernel, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file

PROBES = sorted((Path(__file__).parents[2] / "probes").glob("*.py"))
# As libraries write each wait for an mbarrier: the same names again, in braces of their own.
WAIT = """{
.reg .pred P1;
LAB_WAIT:
mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r2;
@P1 bra DONE;
bra LAB_WAIT;
DONE:
}
ld.global.u32 %r3, [%rd1];
"""
# A branch by a table in each block, and a name that every block declares and the body, too.
TABLE = """{
.reg .u32 P1;
NEXT: .branchtargets LAB_WAIT, DONE;
mov.u32 P1, %r2;
brx.idx P1, NEXT;
LAB_WAIT:
add.u32 %r3, P1, %r2;
DONE:
}
st.global.u32 [%rd1], P1;
"""


def _kernel(block: str, count: int) -> str:
    return f"""
.version 8.4
.target sm_90
.address_size 64
.visible .entry waits(.param .u64 data) {{
.shared .align 8 .b64 barrier;
.reg .b32 %r<4>, P1; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [data];
mov.u32 %r1, barrier; mov.u32 %r2, 0; mov.u32 %r3, 0;
{block * count}
st.global.u32 [%rd1], %r3;
ret;
}}
"""


def _steps(function: Callable[[], object]) -> int:
    """The bytecode instructions that a call executes."""
    steps = 0

    def trace(frame, event, argument):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize(
    ("path", "block"),
    [(path, (WAIT, TABLE)[number % 2]) for number, path in enumerate(PROBES)],
    ids=[path.stem for path in PROBES],
)
def test_labels_in_many_blocks(path, block):
    """Twice the blocks take at most 2.2 times the steps; the square would take four times."""
    probes = load_probe_file(path)
    # What is made once and kept, as decoded opcodes, is made here.
    probe_module(parse(_kernel(block, 2)), probes).render()
    few, many = (
        _steps(lambda count=count: probe_module(parse(_kernel(block, count)), probes).render()) for count in (24, 48)
    )
    assert many < 2.2 * few
