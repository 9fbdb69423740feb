"""Entry, ends and stores: what a twin does when a thread starts, saves and ends, also in machine code."""

import re

import pytest
from machine import assemble, machine_code
from ptx_text import array, kernel, lines, only, probe

from neutrino.ptx.instrument.module_twins import probe_module
from neutrino.ptx.text.module import parse

ENDS = [
    ("ret;", 1), ("exit;", 1), ("@%p1 ret; ret;", 2), ("@!%p1 exit; bar.sync 0;", 2), ("bar.sync 0;", 1),
    ("@%p1 bra L; trap; L: ret.uni;", 1), ("@%p1 bra L; ret; L:", 2), ("{ .reg .b32 %r; ret; }", 1),
    ("L: bar.sync 0; bra L;", 0), ("@%p1\n\tret;\n// the end\nret; // ret;", 2), ("{ { @%p1 ret; } }", 2),
    ("@%p1 bra L; bra M; L: ret; M: exit;", 2),
]  # fmt: skip


def test_every_end_is_found(block_sched, tools, tmp_path):
    """All kernels in one module, so that it is assembled once."""
    texts = [kernel(body).replace(".entry k(", f".entry k{number}(") for number, (body, _) in enumerate(ENDS)]
    text = texts[0] + "".join(other[other.index(".visible .entry") :] for other in texts[1:])
    twins = probe_module(parse(text), block_sched)
    assert not twins.skipped
    code = machine_code(twins.render(), "sm_90", tmp_path)
    for twin, (body, ends) in zip(twins.kernels, ENDS, strict=True):
        assert twin.probed_text.count("%clock64") == 1 + ends, body
        assert len(twin.sites) == 1 + ends, body
        # ptxas may merge equal ends.
        assert any("STG.E.128" in line for line in code[twin.twin_name]) == (ends > 0), body


@pytest.mark.parametrize("predicate", ["%p1", "!%p1", " ! %p1"])
def test_predicated_end(predicate, block_sched):
    found = lines(only(probe_module(parse(kernel(f"@{predicate} ret;\nbar.sync 0; ret;")), block_sched)))
    at = found.index(f"@{predicate} ret;")
    other = "%p1" if "!" in predicate else "!%p1"
    assert found[found.index(f"@{other} bra $L__neutrino_0;") + 1].endswith("%clock64;")
    assert found[at - 1].startswith("@%Ntq0 st.global.v2.b64")
    assert found[at + 1] == "$L__neutrino_0:"


def test_clocks_stay_in_order(probe_set, tools, tmp_path):
    """In the machine code the load stands between the two reads of the clock that enclose it."""
    body = "mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2;\nld.global.u32 %r3, [%rd2];\n"
    text = kernel(body + "st.global.u32 [%rd2+4096], %r3; ret;")
    sides = {
        "before": ".reg .u64 %s; mov.u64 %s, %clock64;",
        "after": ".reg .u64 %e; mov.u64 %e, %clock64; SAVE [ M ] { %s, %e };",
    }
    probes = probe_set(array(["u64", "u64"], 16) + probe("ld.global", **sides))
    code = machine_code(probe_module(parse(text), probes).render(), "sm_90", tmp_path)["k__neutrino"]
    # What the twin itself loads at its entry has a predicate.
    order = [match[0] for match in map(re.compile("^(?!.*@).*LDG|CS2R.*CLOCK|STG").search, code) if match]
    order = [found.removeprefix(found.partition("LDG")[0]) if "LDG" in found else found for found in order]
    assert [found[:3] for found in order[:3]] == ["CS2", "LDG", "CS2"]


def test_block_sched_costs_one_store(block_sched, tools, tmp_path):
    code = machine_code(probe_module(parse(kernel("ret;")), block_sched).render(), "sm_90", tmp_path)["k__neutrino"]
    assert len([line for line in code if "STG" in line]) == 1
    assert len([line for line in code if "CLOCK" in line]) == 2


def test_classes_without_sites_cost_nothing(gmem_bytes, tools, tmp_path):
    """Sums of registers that no site writes are known to be zero: no reduction, no atomic."""
    text = kernel("ld.global.u32 %r3, [%rd1]; st.shared.u32 [%r2], %r3; ret;")
    assert only(probe_module(parse(text), gmem_bytes)).probed_text.count("red.global.add") == 1
    nothing = only(probe_module(parse(kernel("bar.sync 0; ret;")), gmem_bytes))
    assert "red.global.add" not in nothing.probed_text
    assert {site.tracepoint for site in nothing.sites} == {"kernel"}


@pytest.mark.parametrize(("arch", "version", "warp_wide"), [("sm_75", "6.5", False), ("sm_80", "7.0", True)])
@pytest.mark.parametrize("level", ["thread", "warp"])
def test_sums(arch, version, warp_wide, level, probe_set, tools, tmp_path):
    declared = 'size = 24\ndata = { a = "u64", b = "s32", c = "u32", d = "s64" }\n'
    snippet = ".reg .u32 %w; add.u32 %w, %w, 1; SAVE [ M ] { BYTES, %w, 3, OUT };"
    probes = probe_set(
        f'[map.M]\ntype = "sum"\nlevel = "{level}"\n{declared}' + probe("ld.global", level=level, after=snippet)
    )
    text = kernel("@%p1 ld.global.f32 %f1, [%rd1]; ld.global.u64 %rd3, [%rd1]; @%p1 ret; ret;", arch=arch,
    version=version)
    twins = probe_module(parse(text), probes)
    twin = only(twins)
    # Two ends, four fields.
    assert twin.probed_text.count("red.global.add") == 8
    # Of a signed sum all 64 bits are added up over the lanes; of a warp's sum one lane has all of it.
    over_lanes = 2 * (1 + 1 + 1 + 3) if warp_wide and level == "thread" else 0
    assert twin.probed_text.count("redux.sync.add.u32") == over_lanes
    assemble(twins.render(), arch, tmp_path)


def test_large_maps_are_addressed_in_64_bits(probe_set, tools, tmp_path):
    operands = ", ".join(["%d"] * 24)
    snippet = f".reg .u64 %d; mov.u64 %d, ADDR; SAVE [ M ] {{ {operands} }};"
    twins = probe_module(
        parse(kernel(SITES)), probe_set(array(["u64"] * 24, 192, cap=1 << 20) + probe("ld.global", before=snippet))
    )
    assert f", {(1 << 20) * 32 * 192}, " in only(twins).probed_text
    assemble(twins.render(), "sm_90", tmp_path)


SITES = "@%p1 ld.global.u32 %r3, [%rd1];\nld.global.u32 %r3, [%rd1];\nst.global.u32 [%rd1], %r3;\n@%p1 ret; ret;"


@pytest.mark.parametrize("level", ["thread", "warp"])
@pytest.mark.parametrize("cap", [1, 16])
@pytest.mark.parametrize(("fields", "size", "stores"), [
    (["u64", "u32", "u32"], 16, ["v2.b64"]), (["u32"] * 4, 16, ["v2.b64"]), (["u32", "u32"], 8, ["b64"]),
    (["u32"], 4, ["b32"]), (["u64", "u64", "u64"], 24, ["b64"] * 3),
    (["u8", "s16", "u32", "f64"], 16, ["b8", "b16", "b32", "b64"]), (["f32", "s64"], 16, ["b32", "b64"]), (["s8"], 1,
     ["b8"]),
])  # fmt: skip
def test_records(level, cap, fields, size, stores, probe_set, tools, tmp_path):
    registers = {"u64": "%d", "s64": "%d", "f32": "%f", "f64": "%g"}
    operands = ", ".join(registers.get(field, "%w") for field in fields)
    declared = (
        ".reg .u32 %w; .reg .u64 %d; .reg .f32 %f; .reg .f64 %g;"
        "add.u32 %w, %w, 1; add.u64 %d, %d, 1; abs.f32 %f, %f; abs.f64 %g, %g;"
    )
    probes = probe_set(
        array(fields, size, cap=cap, level=level)
        + probe("ld.global", level=level, after=f"{declared} SAVE [ M ] {{ {operands} }};")
    )
    twins = probe_module(parse(kernel(SITES)), probes)
    made = re.findall(r"@%neutrino_tq\d+ st\.global\.(\S+) \[%neutrino_td", only(twins).probed_text)
    assert made == stores * 2 + (["u32"] * 2 if cap > 1 else [])
    assemble(twins.render(), "sm_90", tmp_path)


@pytest.mark.parametrize(("register", "kind"), [
    ("b16", "u64"), ("u32", "s64"), ("s32", "s64"), ("f32", "f64"), ("f64", "f32"), ("f32", "u32"), ("f32", "s64"),
    ("u64", "u8"), ("u64", "s16"), ("pred", "u32"), ("pred", "u64"), ("f64", "u64"), ("b16", "u8"),
])  # fmt: skip
def test_values_are_converted_to_their_fields(register, kind, probe_set, tools, tmp_path):
    """ptxas takes every pair of a site's register and a field's type."""
    move = "setp.eq" if register == "pred" else "mov"
    instruction = "setp.eq.u32 %own, %r1, 3;" if register == "pred" else f"mov.{register} %own, %own;"
    text = kernel(f".reg .{register} %own;\n{instruction}\nret;")
    size = int(kind[1:]) // 8
    position = move if register == "pred" else f"mov.{register}"
    probes = probe_set(array([kind], size) + probe(f"{position} func:k", after="SAVE [ M ] { OUT };"))
    twins = probe_module(parse(text), probes)
    only(twins)
    assemble(twins.render(), "sm_90", tmp_path)


def test_registers_start_with_their_values(probe_set, tools, tmp_path):
    kinds = ["b16", "u16", "b32", "s32", "u64", "f32", "f64", "pred"]
    declared = " ".join(f".reg .{kind} %x{number};" for number, kind in enumerate(kinds))
    used = "".join(f"mov.{kind} %x{number}, %x{number};" for number, kind in enumerate(kinds))
    twins = probe_module(parse(kernel("ret;")), probe_set(probe("kernel", before=declared + used)))
    only(twins)
    assemble(twins.render(), "sm_90", tmp_path)
