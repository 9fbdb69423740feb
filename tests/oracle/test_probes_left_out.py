"""A probe that a kernel cannot take is left out there, and the others record what they record without it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.verification import load_all, read_probes
from tests.oracle.bench import Kernel, make_twins, skip_of
from tests.oracle.typed import run

TEXT = """.version 8.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 at, .param .u64 out)
{{
    .reg .b64 %a, %o, %n; .reg .b32 %i, %x, %y; .reg .b16 %h; .reg .pred %p;
    ld.param.u64 %a, [at];
    ld.param.u64 %o, [out];
    mov.u32 %i, %tid.x;
    mul.wide.u32 %n, %i, 4;
    add.u64 %a, %a, %n;
    add.u64 %o, %o, %n;
    ld.global.u32 %x, [%a];
    setp.lt.u32 %p, %i, 20;
    @%p add.u32 %x, %x, 7;
    cvt.u16.u32 %h, %x;
    shl.b32 %y, %x, 1;
    st.global.u32 [%o], %y;
    ret;
}}
"""
HEAD = "from neutrino import probe, Map\nimport neutrino.language as nl\n"


def kernel(target: str = "sm_80") -> Kernel:
    return Kernel(
        "k", TEXT.format(target=target), "k", (2, 1, 1), (33, 1, 1),
        (np.arange(33, dtype=np.uint32), np.zeros(33, np.uint32)),
    )  # fmt: skip


def counting(name: str, position: str, value: str = "1", side: str = "before") -> str:
    """A probe with a map of its own, which adds up a value."""
    return (
        f'@Map(level="thread", type="sum")\nclass M{name}:\n    total: nl.u64\n'
        f'@probe(pos="{position}", level="thread", {side}=True)\ndef {name}():\n    M{name}.save({value})\n'
    )


GOOD = {
    "loads": counting("loads", "ld.global", "nl.u64(nl.u32(nl.out)) + 3", "after"),
    "shifts": counting("shifts", "shl", "nl.u64(nl.tid.x) + 2"),
    "ends": counting("ends", "kernel", "5"),
}
BAD = {
    # Some instruction lacks it, has it in another type, or has it nowhere yet.
    "absent": counting("absent", "memory", "nl.u64(nl.u32(nl.in2))"),
    "typed": counting("typed", "ld.global | cvt", "nl.u64(nl.u32(nl.out))", "after"),
    "parameter": counting("parameter", "st.global", "nl.u64(nl.param(7))"),
}


def module(*sources: str) -> ProbeSet:
    return load_all(source=HEAD + "".join(sources))


def only_twin(probes: ProbeSet, place: Kernel) -> TwinKernel:
    twins = make_twins(place, probes)
    assert skip_of(twins) is None
    return twins.kernels[0]


def recorded(views: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {f"M{name}": views[f"M{name}"].valid().tolist() for name in names}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_the_others_record_what_they_record_without_it(bad: str, at: int) -> None:
    sources = [*GOOD.values()]
    sources.insert(at, BAD[bad])
    place = kernel()
    (left,) = only_twin(module(*sources), place).probes_left_out
    assert (left.probe, left.maps, left.reason) == (bad, (f"M{bad}",), Reason.UNSUPPORTED)
    assert left.detail
    assert left.remedy
    assert "probe '" not in left.detail
    # ``run`` holds the program's results against the original's.
    views = run(module(*sources), place)
    alone = run(module(*GOOD.values()), place)
    assert recorded(views, GOOD) == recorded(alone, GOOD)
    assert all(sum(row) for rows in recorded(alone, GOOD).values() for row in rows)
    # The same places, too: a left-out probe takes no instruction of the others away.
    assert not any(site.probe == bad for site in only_twin(module(*sources), place).sites)


def test_two_of_three_are_left_out_each_with_its_reason() -> None:
    twin = only_twin(module(BAD["absent"], GOOD["loads"], BAD["parameter"]), kernel())
    assert [(left.probe, "IN2" in left.detail, "parameters" in left.detail) for left in twin.probes_left_out] == [
        ("absent", True, False), ("parameter", False, True),
    ]  # fmt: skip


def test_where_none_can_be_placed_the_kernel_has_no_twin_and_every_reason_is_said() -> None:
    skip = skip_of(make_twins(kernel(), module(BAD["absent"], BAD["parameter"])))
    assert skip is not None
    assert "probe 'absent'" in skip.detail
    assert "probe 'parameter'" in skip.detail
    # One that matches nothing does not make it a twin.
    skip = skip_of(make_twins(kernel(), module(BAD["absent"], counting("none", "bar"))))
    assert skip is not None
    assert skip.reason is Reason.UNSUPPORTED


def test_an_older_architecture_leaves_out_what_it_lacks() -> None:
    """``redux.sync`` is there from sm_80 on."""
    most = counting("most", "st.global", "nl.u64(nl.warp.max(nl.u32(nl.tid.x)))")
    assert not only_twin(module(most, GOOD["loads"]), kernel("sm_80")).probes_left_out
    (left,) = only_twin(module(most, GOOD["loads"]), kernel("sm_75")).probes_left_out
    assert left.probe == "most"
    assert "redux.sync" in left.detail
    assert "needs sm_80, the kernel is for sm_75" in left.detail
    assert "sm_80 or newer" in left.remedy
    # As the only probe: which one, and what helps.
    skip = skip_of(make_twins(kernel("sm_75"), module(most)))
    assert skip is not None
    assert skip.detail.startswith("probe 'most': ")
    assert "what helps: the kernel compiled for sm_80 or newer" in skip.detail


SHARED = """total: nl.u64 = 0
@Map(level="thread", type="sum")
class Both:
    total: nl.u64
"""
COUNTED = '@probe(pos="{pos}", level="thread", before=True)\ndef {name}():\n    total += {value}\n'
SAVED = '@probe(pos="kernel", level="thread", after=True)\ndef {name}():\n    Both.save(total)\n'


def test_what_reads_a_register_of_a_probe_that_is_left_out_goes_with_it() -> None:
    """The sum at the end would lack what the refused probe adds; so does the other that adds to it say nothing."""
    adding = (
        SHARED + COUNTED.format(pos="memory", name="stores", value="nl.u64(nl.u32(nl.in2))")
        + COUNTED.format(pos="ld.global", name="reads", value=1) + SAVED.format(name="end")
    )  # fmt: skip
    twin = only_twin(module(adding, GOOD["shifts"]), kernel())
    assert {left.probe: left.detail for left in twin.probes_left_out}.keys() == {"stores", "reads", "end"}
    details = {left.probe: left.detail for left in twin.probes_left_out}
    assert "IN2" in details["stores"]
    assert "it reads what probe 'stores' computes" in details["end"]
    assert "'end'" in details["reads"] or "'stores'" in details["reads"]
    assert {site.probe for site in twin.sites} == {"shifts"}
    assert recorded(run(module(adding, GOOD["shifts"]), kernel()), ["shifts"]) == recorded(
        run(module(GOOD["shifts"]), kernel()), ["shifts"]
    )
    # Nothing else records anything: a twin would be for nothing.
    assert skip_of(make_twins(kernel(), module(adding))) is not None


def test_registers_that_a_probe_writes_before_it_reads_are_its_own() -> None:
    """Both keep a time in one register between their two sides; the refused one takes nothing from the other."""
    text = """platform = "cuda"
[map.A]
type = "sum"
level = "thread"
data = { value = "u64" }
[map.B]
type = "sum"
level = "thread"
data = { value = "u64" }
[probe.a]
position = "shl"
level = "thread"
before = ".reg .b64 %t; mov.u64 %t, 4;"
after = "add.u64 %t, %t, 1; SAVE [ A ] { %t };"
[probe.b]
position = "st.global"
level = "thread"
before = "mov.u64 %t, 9;"
after = ".reg .b32 %z$; mov.b32 %z$, IN2.y; SAVE [ B ] { %t };"
"""
    probes = read_probes("p.toml", text)
    (left,) = only_twin(probes, kernel()).probes_left_out
    assert left.probe == "b"


def test_probes_that_save_to_one_map_go_together() -> None:
    both = SHARED + "".join(
        f'@probe(pos="{pos}", level="thread", before=True)\ndef {name}():\n    Both.save({value})\n'
        for name, pos, value in (("one", "memory", "nl.u64(nl.u32(nl.in2))"), ("two", "ld.global", "1"))
    )
    twin = only_twin(module(both, GOOD["loads"]), kernel())
    assert [(left.probe, left.maps) for left in twin.probes_left_out] == [("one", ("Both",)), ("two", ("Both",))]
    assert "it saves to the map Both, as probe 'one' does" in twin.probes_left_out[1].detail
