"""Operands that are predicates, as truth values and as the numbers 1 and 0; and numbers as truth values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.errors import ProbeError
from neutrino.probing.ir.probe_set import ProbeSet, verified
from neutrino.probing.ir.verifier import verify
from neutrino.ptx.snippets.lowering import lower
from neutrino.ptx.snippets.verifier import verify_draft
from neutrino.targets import written as write
from neutrino.verification import load_probe_file, read_probes
from tests.fronts import read_one_liner
from tests.oracle.assembling import arithmetic_differs
from tests.oracle.bench import Kernel, make_twins, skip_of
from tests.oracle.typed import BLOCK, run

_TEXT = """.version 8.0
.target sm_90
.address_size 64

.visible .entry site(.param .u64 left, .param .u64 right, .param .u64 out)
{
    .reg .pred %p, %q, %r;
    .reg .b16 %h, %k;
    .reg .b32 %n, %x, %y, %z, %v;
    .reg .f32 %f;
    .reg .f64 %d;
    .reg .b64 %a, %b, %c;
    ld.param.u64 %a, [left];
    ld.param.u64 %b, [right];
    ld.param.u64 %c, [out];
    mov.u32 %n, %tid.x;
    mad.wide.u32 %a, %n, 4, %a;
    mad.wide.u32 %b, %n, 4, %b;
    mad.wide.u32 %c, %n, 4, %c;
    ld.global.b32 %x, [%a];
    ld.global.b32 %y, [%b];
    setp.gt.u32 %p, %x, %y;
    setp.ne.and.u32 %q|%r, %y, 3, %p;
    and.pred %r, %p, %q;
    selp.b32 %z, %x, %y, %r;
    and.b32 %v, %x, 7;
    cvt.u16.u32 %h, %x;
    neg.s16 %k, %h;
    mov.b32 %f, %x;
    neg.f32 %f, %f;
    cvt.f64.f32 %d, %f;
    abs.f64 %d, %d;
    st.global.u8 [%c], %x;
    st.global.b32 [%c], %z;
    ret;
}
"""
LEFT = np.array(([0, 1, 2, 3, 4, 7, 8, 9, 0x100, 0x8000_0000, 0x7FC0_0000, 0xFFFF_0000, 0xFFFF_FFFF] * 5)[:BLOCK], "u4")
RIGHT = np.array(([3, 0, 2, 9, 3, 1, 1, 3] * 8)[:BLOCK], "u4")
GREATER = LEFT > RIGHT
SECOND = GREATER & (RIGHT != 3)
# As a float −0 is 0, and NaNs are not.
FLOAT = LEFT.view("f4")


def place() -> Kernel:
    return Kernel("predicates", _TEXT, "site", (1, 1, 1), (BLOCK, 1, 1), (LEFT, RIGHT, np.zeros_like(LEFT)))


def saved(probes: ProbeSet, name: str) -> list[int]:
    return [int(record.item()[0]) for record in run(probes, place())[name].records.reshape(-1)]


VALUES: dict[str, tuple[str, str, npt.NDArray[np.bool_]]] = {
    "a result": ("setp.gt", "nl.out", GREATER),
    "of a joined one": ("setp.ne", "nl.out", SECOND),
    "its input": ("setp.ne", "nl.in3", GREATER),
    "what chooses": ("selp", "nl.in3", SECOND),
    "of logic": ("and.pred", "nl.out", SECOND),
    "of logic, an input": ("and.pred", "nl.in1", GREATER),
    "an integer": ("and.b32", "nl.out", LEFT & 7 != 0),
    "a short one": ("neg.s16", "nl.out", LEFT & 0xFFFF != 0),
    "bits in a register": ("ld.global", "nl.out", np.array([True] * BLOCK)),
    "a float": ("neg.f32", "nl.out", FLOAT != 0),
    "a double": ("abs.f64", "nl.in1", FLOAT != 0),
    "a stored byte": ("st.global.u8", "nl.in2", LEFT & 0xFF != 0),
    "an immediate": ("and.b32", "nl.in2", np.array([True] * BLOCK)),
    "a parameter": ("neg.f32", "nl.param(2)", np.array([True] * BLOCK)),
}


@pytest.mark.parametrize("through_assembly", [False, True], ids=["typed", "assembly"])
@pytest.mark.parametrize("name", VALUES)
def test_as_a_truth_value(name: str, through_assembly: bool, tmp_path: Path, ptxas: object) -> None:
    """In an if, in logic, in a choice and among lanes; each is counted by itself."""
    position, value, wanted = VALUES[name]
    if name == "bits in a register":
        wanted = RIGHT != 0
    path = tmp_path / "p.py"
    path.write_text(
        "import neutrino.language as nl\nn: nl.u32 = 0\n"
        f'@nl.probe(pos="{position}", level="thread", after=True)\ndef p():\n    n = 0\n'
        f"    if {value}: n += 1\n    if not {value}: n += 10\n    if {value} and nl.lane >= 0: n += 100\n"
        f"    n += 1000 if {value} else 2000\n    n += 10000 * nl.u32(nl.warp.any({value}))\n"
        '@nl.probe(pos="kernel", level="thread", after=True)\ndef e():\n    nl.save(n, dtype=nl.u32)\n'
    )
    probes = load_probe_file(path)
    if through_assembly:
        probes = read_probes("p.toml", write(lower(probes)))
    some = np.repeat([part.any() for part in wanted.reshape(-1, 32)], 32)
    expected = np.where(wanted, 1 + 100 + 1000, 10 + 2000) + 10000 * some
    assert saved(probes, "e") == expected.tolist()
    twins = make_twins(place(), probes)
    (twin,) = twins.kernels
    assert arithmetic_differs(_TEXT, twin, twins.render()) == ""


@pytest.mark.parametrize("kind", ["u8", "s16", "u32", "s32", "u64"])
@pytest.mark.parametrize("name", ["a result", "of a joined one", "its input", "what chooses", "of logic"])
def test_as_a_number(name: str, kind: str, tmp_path: Path, ptxas: object) -> None:
    position, value, wanted = VALUES[name]
    path = tmp_path / "p.py"
    path.write_text(
        f'import neutrino.language as nl\n@nl.probe(pos="{position}", level="thread", after=True)\ndef p():\n'
        f"    k: nl.{kind} = {value}\n    k = k * 3 + nl.{kind}({value}) + 1\n    nl.save(k, dtype=nl.{kind})\n"
    )
    assert saved(load_probe_file(path), "p") == (wanted * 4 + 1).tolist()


def test_in_assembly() -> None:
    text = """[map.M]
type = "array"
level = "thread"
data = { value = "u32", other = "u32", truth = "u32" }
[probe.p]
position = "setp.ne"
level = "thread"
after = \"\"\"
.reg .u32 %x, %y; .reg .pred %p;
mov.u32 %x, OUT; mov.b32 %y, IN3; mov.pred %p, IN1;
add.u32 %x, %x, 5;
SAVE [ M ] { %x, %y, 0 };
@%p SAVE [ M ] { %x, %y, 1 };\"\"\"
"""
    records = run(read_probes("p.toml", text), place())["M"].records.reshape(-1)
    assert records["value"].tolist() == (SECOND + 5).tolist()
    assert records["other"].tolist() == GREATER.astype(int).tolist()
    assert records["truth"].tolist() == (RIGHT != 0).astype(int).tolist()


def test_a_predicate_is_no_fraction(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        'import neutrino.language as nl\n@nl.probe(pos="setp", level="thread", after=True)\ndef p():\n'
        "    x: nl.f32 = nl.out\n    nl.save(x, dtype=nl.f32)\n"
    )
    said = skip_of(make_twins(place(), load_probe_file(path)))
    assert "OUT of setp.gt.u32 is a predicate, and goes into no register of f32" in str(said)


def _of_one_line(text: str) -> ProbeSet:
    draft = read_one_liner(text)
    faults = verify(draft) or verify_draft(draft)
    assert faults == []
    return verified(draft.file, draft.source, False, "", draft.maps, draft.registers, draft.probes)


ONE_LINERS: dict[str, tuple[str, int]] = {
    "a filter": ("setp.gt /OUT/ { @ = count() }", int(GREATER.sum())),
    "a filter of the opposite": ("setp.gt.u32 /not OUT/ { @ = count() }", int((~GREATER).sum())),
    "an input in logic": ("selp /IN3 and IN1 > 7/ { @ = count() }", int((SECOND & (LEFT > 7)).sum())),
    "a sum": ("setp.ne { @ = sum(OUT) }", int(SECOND.sum())),
    "arithmetic": ("setp.ne { @ = sum(OUT * 3 + 1) }", int((SECOND * 3 + 1).sum())),
    "a choice": ("and.pred { @ = sum(7 if OUT else 1) }", int(np.where(SECOND, 7, 1).sum())),
    "a statement": ("setp.gt { x = u32(0); if OUT: x = 5; @ = sum(x) }", int(GREATER.sum() * 5)),
    "an input of it": ("setp.gt.u32 { @ = sum(IN1 & 3) }", int((LEFT & 3).sum())),
    "a number": ("neg.s16 /OUT/ { @ = count() }", int((LEFT & 0xFFFF != 0).sum())),
    # Conversions of what has a type by the position: of the value, not of its bits.
    "a rounded fraction": ("abs.f64 { @ = sum(u32(OUT)) }", int(np.nan_to_num(
        np.minimum(np.abs(FLOAT.astype(float)), 2.0**32 - 1)).astype(np.uint64).sum())),
    "a wider integer": ("and.b32 { @ = sum(u64(u32(OUT))) }", int((LEFT & 7).astype(np.uint64).sum())),
    "a wider one by the position": (
        "neg.s16 { @ = sum(u64(s32(OUT) & 0xffff)) }", int((-LEFT.astype(np.int64) & 0xFFFF).sum()),
    ),
    "a product's factor": (
        "mad.wide.u32 { @ = sum(IN1 & 3 | u32(OUT) * 0) }", 3 * sum(lane & 3 for lane in range(BLOCK)),
    ),
    "from a conversion": ("cvt.f64.f32 { @ = max(IN1 * 0 + 2) }", 2),
    "a page": ("st.global.b32 { @ = sum(ADDR // 4 % 1000 - (ADDR >> 2) % 1000 + 7) }", 7 * BLOCK),
    "a fraction of an integer": ("setp.gt.u32 { @ = sum(u32(f32(IN2) * 2)) }", int((RIGHT * 2).sum())),
    "its bits": ("neg.f32 { @ = sum(u32(bits(IN1)) >> 31) }", int((LEFT >> 31).sum())),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_LINERS)
def test_one_liners(name: str, ptxas: object) -> None:
    text, wanted = ONE_LINERS[name]
    probes = _of_one_line(text if "IN1 > 7" not in text else text.replace("IN1 > 7", "u32(IN1) > 7"))
    (view,) = run(probes, place()).values()
    assert int(view.valid().reshape(-1)[0].item()[0]) == wanted


def test_what_has_no_type_is_refused_with_what_to_write() -> None:
    with pytest.raises(ProbeError) as caught:
        read_one_liner("and { @ = sum(OUT + 1) }")
    assert "u32(OUT)" in caught.value.diagnostics[0].hint
