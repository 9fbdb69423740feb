"""Entry, ends and stores: what a twin does when a thread starts, saves and ends, also in machine code."""

import re

import pytest
from machine import assemble, machine_code
from ptx_text import array, kernel, lines, only, probe, skipped

from neutrino.ptx.instrument.programs import probe_module
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
    assert "st.global.v2.b64" in found[at - 1]
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
    # Whole warps outside of graphs have code of their own.
    assert only(probe_module(parse(text), gmem_bytes)).probed_text.count("red.global.add") == 2
    nothing = only(probe_module(parse(kernel("bar.sync 0; ret;")), gmem_bytes))
    assert "red.global.add" not in nothing.probed_text
    assert {site.tracepoint for site in nothing.sites} == {"kernel"}


@pytest.mark.parametrize(("arch", "version", "warp_wide"), [("sm_75", "6.5", False), ("sm_80", "7.0", True)])
@pytest.mark.parametrize("level", ["thread", "warp"])
def test_sums(arch, version, warp_wide, level, probe_set, tools, tmp_path):
    declared = 'size = 24\ndata = { a = "u64", b = "s32", c = "u32", d = "s64" }\n'
    snippet = ".reg .u32 %w; add.u32 %w, %w, 1; SAVE [ M ] { BYTES, %w, 3, OUT.bits };"
    probes = probe_set(
        f'[map.M]\ntype = "sum"\nlevel = "{level}"\n{declared}' + probe("ld.global", level=level, after=snippet)
    )
    text = kernel("@%p1 ld.global.f32 %f1, [%rd1]; ld.global.u64 %rd3, [%rd1]; @%p1 ret; ret;", arch=arch,
    version=version)
    twins = probe_module(parse(text), probes)
    twin = only(twins)
    # Two ends, four fields; and for whole warps code of their own, where lanes add up.
    is_added_up = warp_wide and level == "thread"
    assert twin.probed_text.count("red.global.add") == (16 if is_added_up else 8)
    # Of a signed sum all 64 bits are added up over the lanes, of a small one 32; a warp's sum is in one lane.
    over_lanes = 2 * (1 + 1 + 1 + 3 + 4) if is_added_up else 0
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
    ("b16", "u64"), ("u32", "s64"), ("s32", "s64"), ("f32", "f64"), ("f64", "f32"), ("b32", "f32"), ("b64", "f64"),
    ("u64", "u8"), ("u64", "s16"), ("pred", "u32"), ("pred", "u64"), ("b16", "u8"), ("f32", "f32"),
])  # fmt: skip
def test_values_are_converted_to_their_fields(register, kind, probe_set, tools, tmp_path):
    """ptxas takes every pair of a site's register and a field's type that records take."""
    move = "setp.eq" if register == "pred" else "mov"
    instruction = "setp.eq.u32 %own, %r1, 3;" if register == "pred" else f"mov.{register} %own, %own;"
    text = kernel(f".reg .{register} %own;\n{instruction}\nret;")
    size = int(kind[1:]) // 8
    position = move if register == "pred" else f"mov.{register}"
    probes = probe_set(array([kind], size) + probe(f"{position} func:k", after="SAVE [ M ] { OUT };"))
    twins = probe_module(parse(text), probes)
    only(twins)
    assemble(twins.render(), "sm_90", tmp_path)


@pytest.mark.parametrize(("instruction", "helper", "field", "fault"), [
    # Compilers leave out registers' types: only the instruction says what a value is.
    ("add.rn.f32 %r1, %r2, %r3;", "OUT", "u32", "OUT of add.rn.f32 is .f32, but field 'f0' is u32: make the field f32"),
    ("ld.global.f32 %r1, [%rd1];", "OUT", "u64", "OUT of ld.global.f32 is .f32, but field 'f0' is u64: make the field"),
    ("st.global.f64 [%rd1], %d1;", "IN2", "s64", "IN2 of st.global.f64 is .f64, but field 'f0' is s64: make the field"),
    ("cvt.rn.f16.f32 %h1, %f1;", "OUT", "u16",
     "OUT of cvt.rn.f16.f32 is .f16, but field 'f0' is u16: make the field f32"),
    ("cvt.rn.f32.s32 %f1, %r1;", "IN1", "f32",
     "IN1 of cvt.rn.f32.s32 is .s32, but field 'f0' is f32: make the field s32"),
    ("add.s32 %r1, %r2, 5;", "IN2", "f32", "IN2 of add.s32 is .s32, but field 'f0' is f32: make the field s32"),
    ("setp.lt.u32 %p1, %r1, %r2;", "OUT", "f64",
     "OUT of setp.lt.u32 is .pred, but field 'f0' is f64: make the field u32"),
    ("mov.b32 %r1, %r2;", "OUT", "f64", "OUT of mov.b32 has 32 bits without a type, but field 'f0' is f64: make the"),
    ("mov.b64 %rd1, %rd2;", "OUT.bits", "f32",
     "OUT of mov.b64 has 64 bits without a type, but field 'f0' is f32: make"),
    ("mov.b32 %f1, %f2;", "OUT", "u32",
     "OUT of mov.b32 is .f32, but field 'f0' is u32: make the field f32, or save OUT.bits"),
])  # fmt: skip
def test_values_that_a_field_cannot_hold_are_refused(instruction, helper, field, fault, probe_set):
    # Classes and short patterns do not say which type the value has: it is known in the kernel only.
    opcode = instruction.split()[0]
    position = {"ld": "load", "st": "store", "mo": opcode}.get(opcode[:2], opcode.partition(".")[0])
    side = "after" if helper.startswith("OUT") else "before"
    probes = probe_set(array([field], int(field[1:]) // 8) + probe(position, **{side: f"SAVE [ M ] {{ {helper} }};"}))
    _, detail = skipped(probe_module(parse(kernel(f"{instruction} ret;")), probes))
    assert fault in detail


@pytest.mark.parametrize(("instruction", "helper", "field", "code"), [
    ("add.rn.f32 %r1, %r2, %r3;", "OUT", "f32", []),
    ("add.rn.f32 %r1, %r2, %r3;", "OUT", "f64", ["cvt.f64.f32 %Ntd, %r1;"]),
    ("add.rn.f32 %r1, %r2, %r3;", "OUT.bits", "u32", []),
    ("add.rn.f64 %d1, %d2, %d3;", "OUT", "f32", ["cvt.rn.f32.f64 %Ntw, %d1;"]),
    ("cvt.rn.f16.f32 %h1, %f1;", "OUT", "f32", ["cvt.f32.f16 %Ntw, %h1;"]),
    ("cvt.rn.f16.f32 %h1, %f1;", "OUT", "f64", ["cvt.f32.f16 %Ntw, %h1;", "cvt.f64.f32 %Ntd, %Ntw;"]),
    ("cvt.rn.bf16.f32 %h1, %f1;", "OUT", "f32", ["mov.b16 %Nth, 0;", "mov.b32 %Ntw, {%Nth, %h1};"]),
    ("cvt.rn.f16.f32 %h1, %f1;", "OUT.bits", "u16", []),
    ("mov.b32 %r1, %r2;", "OUT", "f32", []),
    ("add.s32 %r1, %r2, %r3;", "OUT", "u64", ["cvt.u64.u32 %Ntd, %r1;"]),
    ("add.u32 %r1, %r2, %r3;", "OUT", "s64", ["cvt.s64.s32 %Ntd, %r1;"]),
])  # fmt: skip
def test_floats_convert_to_floats_and_bits_stay(instruction, helper, field, code, probe_set, tools, tmp_path):
    position = ".".join(instruction.split()[0].split(".")[:2])
    text = kernel(f"{instruction}\nret;")
    probes = probe_set(array([field], int(field[1:]) // 8) + probe(position, after=f"SAVE [ M ] {{ {helper} }};"))
    twins = probe_module(parse(text), probes)
    found = [re.sub(r"(%Nt[hwd])\d+", r"\1", line) for line in lines(only(twins))]
    inserted = found[found.index(instruction) + 1 :]
    assert [line for line in inserted if line.startswith("cvt.f") or line in code or "cvt.rn.f" in line] == code
    assemble(twins.render(), "sm_90", tmp_path)


def test_registers_start_with_their_values(probe_set, tools, tmp_path):
    kinds = ["b16", "u16", "b32", "s32", "u64", "f32", "f64", "pred"]
    declared = " ".join(f".reg .{kind} %x{number};" for number, kind in enumerate(kinds))
    used = "".join(f"mov.{kind} %x{number}, %x{number};" for number, kind in enumerate(kinds))
    twins = probe_module(parse(kernel("ret;")), probe_set(probe("kernel", before=declared + used)))
    only(twins)
    assemble(twins.render(), "sm_90", tmp_path)
