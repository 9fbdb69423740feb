"""Where a body tests whether a log of level warp has room: seldom, and never too seldom."""

from __future__ import annotations

import re

import pytest

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.verification import read_probes

_PROBE = """platform = "cuda"
[map.M]
type = "log"
level = "warp"
data = { value = "u64", other = "u64" }
[probe.stores]
position = "POSITION"
level = "warp"
lanes = "LANES"
before = "SAVE [ M ] { 2, 1 };"
"""
_HEAD = """.version 8.0
.target ARCH
.address_size 64
.func (.param .u32 y) f(.param .u32 x)
{
.reg .u32 %x;
ACTIVEld.param.u32 %x, [x];
st.param.u32 [y], %x;
ret;
}
.visible .entry k(.param .u64 out)
{
.reg .u64 %a; .reg .u32 %r<4>; .reg .pred %p<4>;
ld.param.u64 %a, [out];
ld.global.u32 %r0, [%a];
setp.eq.u32 %p0, %r0, 0;
"""
_STORE = "st.global.u32 [%a], %r0;\n"
_CALL = """{ .param .u32 x; .param .u32 y; st.param.u32 [x], %r0; call.uni (y), f, (x); ld.param.u32 %r0, [y]; }
"""


def _twin(
    body: str, lanes: str = "reaching", architecture: str = "sm_80", *, asks: bool = False, position: str = "st.global"
) -> str:
    active = "activemask.b32 %x;\n" if asks else ""
    text = _HEAD.replace("ARCH", architecture).replace("ACTIVE", active)
    probe = _PROBE.replace("LANES", lanes).replace("POSITION", position)
    twins = probe_module(parse(f"{text}{body}ret;\n}}\n"), read_probes("p.toml", probe))
    (kernel,) = twins.kernels
    assert "(room)" not in kernel.probed_text
    return kernel.probed_text


def _tested(body: str, lanes: str = "reaching", position: str = "st.global") -> list[int]:
    """For how many saves each test is, in text order."""
    test = r"setp\.(?:lt|(eq))(?:\.and)?\.u32 %neutrino_\w+, %neutrino_\w+, (\d+)[,;].*\n\s*{\n.* bra \S*room_1_end;"
    found = re.findall(test, _twin(body, lanes, position=position))
    return [1 if eq else int(count) for eq, count in found]


_IF = f"@%p0 bra SKIP;\n{_STORE}SKIP:\n"
_LOOP = f"AGAIN:\n{_STORE}add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, %r0;\n@%p1 bra AGAIN;\n"


@pytest.mark.parametrize(
    ("body", "tests"),
    [
        (_STORE, [1]),
        (_STORE * 3, [3]),
        # One test is for seven at most, where that saves one.
        (_STORE * 7, [7]),
        (_STORE * 8, [7, 1]),
        (_STORE + _IF + _STORE, [3]),
        # Nothing is known in a block that only one way there tests for.
        (_IF + _STORE, [1, 1]),
        (_STORE + _LOOP + _STORE, [1, 2]),
        # A call may save, too.
        (_STORE + _CALL + _STORE, [1, 1]),
        # Some threads come by.
        (f"@%p0 {_STORE}" * 2, [2]),
        (f"{_STORE}bra THERE;\nELSE:\n{_STORE}THERE:\n{_STORE}@%p0 bra ELSE;\n", [1, 2]),
    ],
)
def test_tests_are_few(body: str, tests: list[int]) -> None:
    assert _tested(body) == tests


def test_code_between_two_blocks_is_for_one_way_only() -> None:
    """Threads that fall through into the head of a loop test; those that leave it before have to test again."""
    head = f"HEAD:\n{_STORE}@%p0 bra TAIL;\nbra OUT;\n"
    body = f"bra HEAD;\nTAIL:\n{_STORE * 13}@%p1 bra OUT;\n{head}OUT:\n{_STORE}"
    both = "st.global | back-edge"
    assert _tested(body, position="st.global") == [7, 7, 1]
    # In text order: in the tail, before the head, at the head, after the loop.
    assert _tested(body, position=both) == [7, 1, 7, 1]


def test_a_save_under_a_predicate_tests_for_itself() -> None:
    """A thread that does not save takes no memory."""
    assert _tested(f"@%p0 {_STORE}" + _STORE * 2, "executing") == [1, 2]
    assert _tested(_STORE + f"@%p0 {_STORE}" + _STORE, "executing") == [3]


def test_lanes_meet_where_the_program_may_see_it() -> None:
    assert "bar.warp.sync" not in _twin(_STORE)
    assert "bar.warp.sync" in _twin(_STORE + "activemask.b32 %r2;\n")
    # In what it calls, too.
    assert "bar.warp.sync" not in _twin(_STORE + _CALL)
    assert "bar.warp.sync" in _twin(_STORE + _CALL, asks=True)
    assert "bar.warp.sync" not in _twin(_STORE + "activemask.b32 %r2;\n", architecture="sm_60")
