"""``nl.param``: parameters of every type are what the launch passed, in kernels and in functions that they call."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.errors import ProbeError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.snippets.lowering import lower
from neutrino.ptx.text.module import parse
from neutrino.targets import written as write
from neutrino.verification import load_all, load_probes, read_probes
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.typed import run

_HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
_TEXT = _HEAD + """
.func add(.reg .b64 a)
{
    .reg .b32 y, l; .reg .pred last;
    ld.global.u32 y, [a+4];
    xor.b32 y, y, 1;
    st.global.u32 [a+4], y;
    mov.u32 l, %laneid;
    setp.eq.u32 last, l, 31;
    @last exit;
    ret;
}

.visible .entry k(.param .u64 .ptr .global .align 4 at, .param .u8 c, .param .s8 d, .param .u16 h, .param .s32 i,
    .param .f32 f, .param .f64 g, .param .b32 w, .param .align 8 .b8 s[24], .param .b64 p, .param .s64 l,
    .param .b16 q)
{
    .reg .b64 %a; .reg .b32 %x;
    ld.param.u64 %a, [at];
    ld.global.u32 %x, [%a];
    call add, (%a);
    st.global.u32 [%a], %x;
    ret;
}
"""
_STRUCTURE = bytes(range(200, 224))
_ARGUMENTS: tuple[Any, ...] = (
    np.zeros(2, np.uint32), np.uint8(200), np.int8(-3), np.uint16(60000), np.int32(-70000), np.float32(0.3),
    np.float64(-1e300), np.uint32(0xBF800001), _STRUCTURE, np.uint64(0xC000_0000_0000_0123), np.int64(-(1 << 40)),
    np.uint16(0xC500),
)  # fmt: skip
KERNEL = Kernel("k", _TEXT, "k", (2, 1, 1), (33, 1, 1), _ARGUMENTS)
_READ = struct.unpack_from
_PARTS = {
    'nl.param("at")': ("u64", None), "nl.param(1)": ("u32", 200), "nl.param(2)": ("s32", -3),
    'nl.param("h")': ("u16", 60000), "nl.param(4)": ("s64", -70000), "nl.param(5)": ("f32", _ARGUMENTS[5]),
    "nl.param(6)": ("f64", -1e300), "nl.param(7)": ("u64", 0xBF800001), 'nl.param("w")': ("s64", -0x407FFFFF),
    "nl.bits(nl.param(7))": ("f32", _READ("f", struct.pack("I", 0xBF800001))[0]),
    "nl.param(9)": ("f64", _READ("d", struct.pack("Q", 0xC000_0000_0000_0123))[0]), "nl.param(10)": ("s64", -(1 << 40)),
    "nl.param(8, dtype=nl.u8)": ("u8", 200), "nl.param(8, offset=1, dtype=nl.s8)": ("s32", 201 - 256),
    "nl.param(8, offset=2, dtype=nl.u16)": ("u16", _READ("H", _STRUCTURE, 2)[0]),
    "nl.param(8, offset=AT, dtype=nl.u32)": ("u32", _READ("I", _STRUCTURE, 4)[0]),
    'nl.param("s", offset=16, dtype=nl.f64)': ("f64", _READ("d", _STRUCTURE, 16)[0]),
    "nl.param(8, offset=12, dtype=nl.f32)": ("f32", _READ("f", _STRUCTURE, 12)[0]),
    "nl.param(11, dtype=nl.f16)": ("f32", _READ("e", struct.pack("H", 0xC500))[0]),
    "nl.param(11, dtype=nl.bf16)": ("f32", _READ("f", struct.pack("I", 0xC500 << 16))[0]),
    "nl.param(4) + 1": ("s32", -69999),
    "nl.u32(nl.bits(nl.param(5))) ^ 0": ("u32", _READ("I", struct.pack("f", 0.3))[0]),
}  # fmt: skip
"""An expression → the type of the field that it is saved in, and its value there; None for the pointer."""


def source(position: str, after: bool = False) -> str:
    fields = "\n".join(f"    f{number}: nl.{kind}" for number, (kind, _) in enumerate(_PARTS.values()))
    return f"""from neutrino import probe, Map
import neutrino.language as nl
AT = 4
@Map(level="thread", cap=2)
class Seen:
{fields}
@probe(pos="{position}", level="thread", {"after" if after else "before"}=True)
def seen():
    Seen.save({", ".join(_PARTS)})
"""


def values(probes: ProbeSet) -> list[dict[str, Any]]:
    """The different records of a run, in which the program's results are its own."""
    records: npt.NDArray[Any] = run(probes, KERNEL)["Seen"].valid()
    assert len(records) >= 2
    return [dict(zip(records.dtype.names or (), row.item(), strict=True)) for row in np.unique(records)]


@pytest.mark.parametrize(("position", "after"), [
    ("kernel", False), ("kernel", True), ("ld.global", True), ("st.global | xor", False), ("func:add", True),
])  # fmt: skip
def test_parameters_are_what_the_launch_passed(position: str, after: bool) -> None:
    probes = load_all(source=source(position, after))
    launch = Bench(KERNEL, ()).place(None).launch()
    # The first of the parameters is the pointer.
    passed = [value for _, value in _PARTS.values()]
    passed[0] = int.from_bytes(launch.parameters[:8], "little")
    (found,) = values(probes)
    assert list(found.values()) == passed
    assembly = read_probes("p.toml", write(lower(probes)))
    assert values(assembly) == [found]
    for probe_set in (probes, assembly):
        assert assemble(make_twins(KERNEL, probe_set).render())[1] == ""


def why_not(saved: str, text: str = _TEXT, kind: str = "u32") -> str:
    """Why a kernel gets no twin with a probe that saves this."""
    probe = f"""platform = "cuda"
[map.M]
type = "array"
level = "thread"
cap = 1
data = {{ value = "{kind}" }}
[probe.p]
position = "ld.global"
level = "thread"
before = "{saved if "SAVE" in saved else f"SAVE [ M ] {{ {saved} }};"}"
"""
    skipped = skip_of(make_twins(Kernel("k", text, "k", (1, 1, 1), (1, 1, 1), ()), read_probes("p.toml", probe)))
    assert skipped is not None
    return skipped.detail


@pytest.mark.parametrize(("saved", "reason"), [
    ("PARAM.12", "probe 'p': PARAM.12: k has 12 parameters"),
    ("PARAM.n", "PARAM.n: k has 12 parameters, at, c, d, h, i, f, g, w, s, p, l, q"),
    ("PARAM.s", "PARAM.s: s has 24 bytes and no type; write PARAM.s+OFFSET.TYPE"),
    ("PARAM.8+24.u8", "PARAM.8+24.u8 is beyond s, which has 24 bytes"),
    ("PARAM.8+2.u32", "PARAM.8+2.u32 is not aligned to its 4 bytes in s"),
    (".reg .u32 %x$; mov.b32 %x$, PARAM.f; SAVE [ M ] { %x$ };",
     "PARAM.f is .f32, and goes into no register of u32; PARAM.f.bits has its bits"),
    (".reg .f32 %x$; .reg .u32 %y$; mov.b32 %x$, PARAM.8+4.u32; mov.b32 %y$, %x$; SAVE [ M ] { %y$ };",
     "PARAM.8+4.u32 is .u32, and goes into no register of f32"),
    ("PARAM.f", "PARAM.f is .f32, but field 'value' is u32: make the field f32, or save PARAM.f.bits"),
    (".reg .u32 %x$; mov.b32 %x$, PARAM.p; SAVE [ M ] { %x$ };", "PARAM.p is .b64, but 'mov.b32' takes .b32"),
])  # fmt: skip
def test_a_kernel_without_such_a_parameter_is_not_probed(saved: str, reason: str) -> None:
    assert reason in why_not(saved)


def test_names_that_the_body_declares_and_kernels_without_parameters() -> None:
    hidden = _TEXT.replace(".reg .b32 %x;", ".reg .b32 %x; { .reg .b32 h; mov.b32 h, 1; }")
    assert "PARAM.h: the kernel's body declares another h" in why_not("PARAM.h", hidden)
    none = f"{_HEAD}.visible .entry k\n{{\n.reg .b32 x; ld.global.u32 x, [64]; ret;\n}}\n"
    assert "PARAM.0: k has no parameters" in why_not("PARAM.0", none)
    wide = none.replace(".entry k", ".entry k(.param .b128 t)")
    assert "PARAM.0: t is .b128, which no register of a probe holds" in why_not("PARAM.0", wide)


def test_one_probe_at_kernels_whose_parameters_differ() -> None:
    # What was found out for one kernel is not taken for known of the next, whose code is the same.
    kernel = ".visible .entry k{0}(.param .u64 a, .param .{0} n)\n{{\n.reg .b32 x; ld.global.u32 x, [64]; ret;\n}}\n"
    text = _HEAD + "".join(map(kernel.format, ("u32", "u64", "s32", "f32")))
    for position in ("ld.global", "kernel"):
        probes = load_all(source=f"""import neutrino.language as nl
@nl.probe(pos="{position}", level="thread")
def p():
    n: nl.u32 = nl.param("n")
    nl.save((n + 1, nl.param(1, offset=0, dtype=nl.u32)), dtype=nl.u32)
""")
        module = probe_module(parse(text), probes)
        assert [twin.name for twin in module.kernels] == ["ku32", "ks32"]
        why = {kernel.name: kernel.detail for kernel in module.skipped}
        assert list(why) == ["ku64", "kf32"]
        assert "PARAM.n is .u64" in why["ku64"]
        assert "PARAM.n is .f32" in why["kf32"]
        assert [field.name for field in probes.maps[0].fields] == ["value", "param_1_0"]


@pytest.mark.parametrize(("expression", "message"), [
    ("nl.param()", "a parameter is named by its number or its name"),
    ("nl.param(0, 8)", "a parameter is named by its number or its name"),
    ("nl.param(0, at=8)", "a parameter is named by its number or its name"),
    ("nl.param(-1)", "no parameter is called \"-1\""),
    ('nl.param("a b")', "no parameter is called \"a b\""),
    ("nl.param(nl.lane)", "'nl.lane' is not a whole number that is known here"),
    ("nl.param(0, offset=8)", "an offset without the type of what is there"),
    ("nl.param(0, offset=-8, dtype=nl.u32)", "an offset of -8 bytes"),
    ("nl.param(0, dtype=u32)", "'u32' is no type"),
])  # fmt: skip
def test_what_is_no_parameter_in_python(expression: str, message: str) -> None:
    with pytest.raises(ProbeError) as error:
        load_all(source=f"""import neutrino.language as nl
@nl.probe(pos="kernel", level="thread")
def p():
    nl.save({expression}, dtype=nl.u32)
""")
    assert message in [diagnostic.message for diagnostic in error.value.diagnostics]


@pytest.mark.parametrize("saved", ["PARAM", "PARAM.0.x", "PARAM.0+8", "PARAM.0+8.bits", "PARAM[0]"])
def test_what_is_no_parameter_in_assembly(saved: str) -> None:
    with pytest.raises(ProbeError) as error:
        why_not(saved)
    assert {diagnostic.code for diagnostic in error.value.diagnostics} <= {"not-an-operand", "save-form"}


def test_in_one_line() -> None:
    probes = load_probes([], ["ld.global /u32(param(\"w\")) > 5/ { @n[param(4)] = count(); @w = sum(PARAM(7)) }"])
    maps = run(probes, KERNEL)
    (key,) = np.unique(maps["n"].valid()["key"])
    assert key == 2**32 - 70000
    assert sum(maps["w"].total().values()) == 2 * 2 * 33 * 0xBF800001
