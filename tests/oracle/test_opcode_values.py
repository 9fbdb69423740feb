"""``nl.has`` and ``nl.elements``: what they leave out is not in the twin, and the rest records what the kernel does."""

from __future__ import annotations

import numpy as np

from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import written as write
from neutrino.verification import load_all, read_probes
from tests.oracle.assembling import assemble
from tests.oracle.bench import Kernel, make_twins
from tests.oracle.typed import run

_TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b64 %a<3>; .reg .f32 %f<8>; .reg .b32 %r<8>; .reg .pred %q;
    ld.param.u64 %a1, [p];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %a1, %r1, 16, %a1;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%a1];
    ld.global.v2.u32 {%r2, %r3}, [%a1];
    ld.global.f32 %f5, [%a1+4];
    setp.gt.u32 %q, %r1, 20;
    @%q ld.global.u32 %r4, [%a1+8];
    st.global.f32 [%a1], %f5;
    @%q st.global.v2.u32 [%a1+8], {%r3, %r2};
    ret;
}
"""
_VALUES = (np.arange(4 * 33, dtype=np.float32) * np.float32(1.25)).reshape(33, 4)
_THREADS, _LATE = 33, 33 - 21
KERNEL = Kernel("k", _TEXT, "k", (1, 1, 1), (33, 1, 1), (_VALUES,))
_HEAD = """from neutrino import probe, Map
import neutrino.language as nl
@Map(level="thread", cap=8)
class Seen:
    address: nl.u64
    value: nl.f32
@Map(level="thread", type="sum")
class Sums:
    total: nl.u64
    vectors: nl.u64
both: nl.u32 = 0
"""


def probes(position: str, body: str, after: bool = False) -> ProbeSet:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    side = "after" if after else "before"
    return load_all(source=f'{_HEAD}@probe(pos="{position}", level="thread", {side}=True)\ndef at():\n{lines}\n')


def test_what_is_left_out_is_not_there() -> None:
    """A condition on the opcode is the same text as a position that says it; collectives and reads of operands too."""
    for body in (
        "x: nl.f32 = nl.out.y\nSeen.save(nl.addr, x)",
        "both += nl.warp.sum(nl.u32(1))\nSums.save(both, 1)",
        "both = nl.max(both, nl.lane)\nif both > 3: Sums.save(both, nl.elements)",
    ):
        inner = "\n".join(f"    {line}" for line in body.splitlines())
        conditional = make_twins(KERNEL, probes("ld.global", f'if nl.has("v4") and nl.has(nl.f32):\n{inner}', True))
        direct = make_twins(KERNEL, probes("ld.global.v4.f32", body, True))
        names = [line for line in direct.render().splitlines() if "site" not in line]
        assert [line for line in conditional.render().splitlines() if "site" not in line] == names
        assert assemble(conditional.render())[1] == ""


def test_values_are_those_of_the_kernel() -> None:
    typed = probes("ld.global | st.global", """
many: nl.u64 = nl.elements
if nl.has("load") and nl.elements > 1:
    Sums.save(many, 1)
elif not nl.has("store"):
    Sums.save(nl.u64(1000) * nl.elements, 0)
else:
    Sums.save(1000000 if nl.has(nl.f32) else 5000000, 1 if nl.has("v2") else 0)
""".strip())  # fmt: skip
    assembly = read_probes("p.toml", write(lower(typed)))
    for probe_set in (typed, assembly):
        (record,) = run(probe_set, KERNEL)["Sums"].valid()
        total = 6 * _THREADS + 1000 * (_THREADS + _LATE) + 1_000_000 * _THREADS + 5_000_000 * _LATE
        assert record.item() == (total, 2 * _THREADS + _LATE)
    # Constants of the opcode are counted where no code of their own is needed, and read where a guard is.
    counted = probes("ld.global | st.global", "Sums.save(nl.elements, 1 if nl.has('v4') else 0)")
    (record,) = run(counted, KERNEL)["Sums"].valid()
    assert record.item() == ((4 + 2 + 1 + 1) * _THREADS + (1 + 2) * _LATE, _THREADS)
    loaded = run(probes("ld.global", "x: nl.f32 = nl.out\nif nl.has(nl.f32): Seen.save(nl.addr, x)", True), KERNEL)
    values = loaded["Seen"].valid()["value"]
    assert sorted(values) == sorted([*_VALUES[:, 0], *_VALUES[:, 1]])
