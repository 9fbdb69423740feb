"""Copies of called functions: which get one, what of the state reaches them, and that ptxas takes every form."""

from __future__ import annotations

import re

import pytest
from machine import arithmetic, assemble
from ptx_text import HEAD, array, kernel, only, probe

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import compare

LOADS = '[map.M]\ntype = "sum"\nlevel = "thread"\nsize = 8\ndata = { loads = "u64" }\n' + (
    '[probe.load]\nposition = "ld.global"\nlevel = "thread"\nbefore = ".reg .u64 %n; add.u64 %n, %n, 1;"\n'
    '[probe.end]\nposition = "kernel"\nlevel = "thread"\nafter = "SAVE [ M ] { %n };"\n'
)
TOUCH = ".reg .b64 %d; .reg .b32 %v; mov.u64 %d, 8; ld.global.u32 %v, [%d];"

FORMS = [
    (f".func f {{ {TOUCH} }}", "call f;"),
    (f".func f () {{ {TOUCH} ret; }}", "call f, ();"),
    (f".func f() {{ {TOUCH} ret; }}", "call.uni f;"),
    (f".func (.reg .b32 o) f (.reg .b32 i) {{ {TOUCH} mov.b32 o, i; ret; }}", "call (%r3), f, (%r1);"),
    (f".func (.param .b32 o) f (.param .b32 i) {{ {TOUCH} st.param.b32 [o], %v; ret; }}", "call (%r3), f, (%r1);"),
    (f".func (.param .b32 o) f () {{ {TOUCH} st.param.b32 [o], %v; ret; }}", "call (%r3), f;"),
    (f".func (.param .align 8 .b8 o[24]) f (.param .align 8 .b8 i[16] // last\n) {{ {TOUCH} st.param.b32 [o+8], %v; }}",
     "{ .param .align 8 .b8 x[16]; .param .align 8 .b8 y[24]; st.param.b32 [x], 3; call.uni (y), f, (x); "
     "ld.param.b32 %r3, [y+8]; }"),
    (f".weak .func f (.param .b64 i) {{ {TOUCH} ret; }}", "@%p1 call f, (%rd1);"),
    (f".visible .func f (.param .b64 i)\n.noreturn\n{{ {TOUCH} trap; }}", "@!%p1 call f, (%rd1);"),
    (f".visible .func f (.param .b64 i);\n.visible .func f (.param .b64 i) {{ {TOUCH} ret; }}", "call f, (%rd1);"),
    (f".func g {{ {TOUCH} ret; }} .func f {{ call g; @%p ret; {{ .reg .b32 g; }} call g; }}"
     .replace("{ call g", "{ .reg .pred %p; setp.eq.u32 %p, 1, 2; call g"), "call f; call g;"),
    (f".func f (.reg .b32 n);\n.func g (.reg .b32 n) {{ call f, (n); ret; }} "
     f".func f (.reg .b32 n) {{ .reg .pred %p; {TOUCH} setp.eq.u32 %p, n, 0; @%p ret; call g, (%v); ret; }}",
     "call g, (%r1);"),
    (f".func f {{ .reg .pred %p; {TOUCH} setp.eq.u32 %p, %v, 2; @%p exit; @!%p ret; exit; }}", "call f;"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "version"), [("sm_75", "6.5"), ("sm_90a", "8.0")])
def test_ptxas_takes_every_form(arch, version, probe_set, tools, tmp_path):
    """All in one module, in which functions are called f1, f2 …"""
    functions, entries = [], []
    for number, (before, body) in enumerate(FORMS):
        if ".noreturn" in before and version < "6.4":
            continue
        names = {"f": f"f{number}", "g": f"g{number}"}
        text = [re.sub(r"(?<![\w.%])[fg](?=[\s(,;])", lambda name, names=names: names[name[0]], part)
                for part in (before, body)]  # fmt: skip
        functions.append(text[0])
        whole = kernel(text[1] + " ret;", arch=arch, version=version).replace(".entry k(", f".entry k{number}(")
        entries.append(whole[whole.index(".visible .entry") :])
    source = HEAD.format(version=version, arch=arch) + "\n".join([*functions, *entries])
    twins = probe_module(parse(source), probe_set(LOADS))
    assert not twins.skipped
    assert all(twin.copies for twin in twins.kernels)
    assert len(twins.kernels) == len(FORMS)
    text = twins.render()
    assert not re.search(r"\bcall\b[^;]*\b[fg]\d+\b(?!__)", text)
    assemble(source, arch, tmp_path)
    assemble(text, arch, tmp_path)
    assemble(twins.render(["k3"]), arch, tmp_path)


def test_functions_without_sites_stay_as_they_are(probe_set, block_sched):
    before = f".func f {{ ret; }} .func g {{ {TOUCH} ret; }}"
    twin = only(probe_module(parse(kernel("call f; call g; ret;", before=before)), probe_set(LOADS)))
    assert [copy.name for copy in twin.copies] == ["g"]
    assert "call f;" in twin.probed_text
    assert "call g__neutrino_k, (%neutrino_state);" in twin.probed_text
    untouched = only(probe_module(parse(kernel("call f; call g; ret;", before=before)), block_sched))
    assert untouched.copies == ()
    assert "state" not in untouched.probed_text


def test_a_module_keeps_what_it_needs(probe_set, tools, tmp_path):
    """The function itself is left out, what it calls and what it names of the block's memory is not."""
    before = (
        ".shared .b32 tile[32]; .global .b8 $str[2] = {65, 0}; .func h { ret; }\n"
        f".func f {{ .reg .b32 %a; mov.u32 %a, tile; .reg .b64 %b; mov.u64 %b, $str; {TOUCH} call h; ret; }}"
    )
    twins = probe_module(parse(kernel("call f; ret;", before=before)), probe_set(LOADS))
    text = twins.render()
    assert re.findall(r"\.func (\w+)\s*(?:\([^)]*\))?\s*\{", text) == ["h", "f__neutrino_k"]
    assert not only(twins).self_contained
    assemble(text, "sm_90", tmp_path)


def test_two_kernels_have_copies_of_their_own(probe_set, tools, tmp_path):
    before = f".func f {{ {TOUCH} ret; }}"
    text = kernel("call f; ret;", before=before) + ".visible .entry other { call f; ret; }\n"
    twins = probe_module(parse(text), probe_set(LOADS))
    assert [copy.copy_name for twin in twins.kernels for copy in twin.copies] == ["f__neutrino_k", "f__neutrino_other"]
    assemble(twins.render(), "sm_90", tmp_path)
    assert "f__neutrino_k" not in twins.render(["other"])


def test_arguments_without_number_are_refused(probe_set):
    before = f".func f (.param .align 8 .b8 many[]) {{ {TOUCH} ret; }}"
    call = "{ .param .align 8 .b8 x[8]; call f, (x); }"
    (skip,) = probe_module(parse(kernel(call + " ret;", before=before)), probe_set(LOADS)).skipped
    assert skip.detail == "the called function f takes any number of arguments"


def test_what_only_ends_need_is_loaded_there(probe_set, tools, tmp_path):
    before = ".func f (.reg .pred p) {\n@p exit;\nret; }"
    text = "ld.global.u32 %r3, [%rd1]; call f, (%p1); ret;"
    twin = only(probe_module(parse(kernel(text, before=before)), probe_set(LOADS)))
    lines = [line.strip() for line in twin.copies[0].text.split("\n")]
    loads = [number for number, line in enumerate(lines) if line.startswith("ld.local.b64 %neutrino_")]
    assert loads
    assert min(loads) > lines.index("@!p bra $L__neutrino_0;")
    assert not any(line.startswith("st.local") for line in lines)


@pytest.mark.parametrize("probed", [True, False])
def test_aliases(probed, probe_set, block_sched, tools, tmp_path):
    """A name that stands for another function: it is taken along, or calls of it go to the copy."""
    before = f".visible .func g() {{ {TOUCH} ret; }} .visible .func f();\n.alias f, g;"
    text = kernel("call f; call g; ret;", before=before)
    twins = probe_module(parse(text), probe_set(LOADS) if probed else block_sched)
    made = twins.render()
    assert (".alias f, g;" in made) == (not probed)
    assert len(re.findall(r"call g__neutrino_k, \(", made)) == (2 if probed else 0)
    assemble(text, "sm_90", tmp_path)
    assemble(made, "sm_90", tmp_path)


def test_names_of_copies_clash_with_nothing(probe_set):
    before = f".func f {{ {TOUCH} ret; }} .func f__neutrino_k {{ ret; }}"
    (skip,) = probe_module(parse(kernel("call f; ret;", before=before)), probe_set(LOADS)).skipped
    assert skip.detail == "the module has a f__neutrino_k already"


def test_operands_in_registers_that_were_given(probe_set, tools, tmp_path):
    before = ".func (.reg .b32 out) f (.reg .b64 from, .reg .f32 scale) { ld.global.u32 out, [from+4]; ret; }"
    probes = probe_set(
        array(["u64", "u32"], 16, cap=2) + probe("ld.global", after="SAVE [ M ] { ADDR, OUT };", level="thread")
    )
    twins = probe_module(parse(kernel("call (%r3), f, (%rd1, %f1); ret;", before=before)), probes)
    assert "add.s64 %neutrino_td0, from, 4;" in only(twins).copies[0].text
    assemble(twins.render(), "sm_90", tmp_path)


@pytest.mark.parametrize("kind", ["pred", "b16", "u32", "s64", "f32", "f64"])
def test_registers_of_every_type_reach_functions(kind, probe_set, tools, tmp_path):
    change = "not.pred %x, %x" if kind == "pred" else f"mov.{kind} %x, %x"
    snippet = f".reg .{kind} %x; {change};"
    before = f".func f {{ {TOUCH} ret; }} .func g {{ call f; ret; }}"
    twins = probe_module(parse(kernel("call g; ret;", before=before)), probe_set(probe("ld.global", before=snippet)))
    store = "u32" if kind == "pred" else f"b{kind[1:]}"
    text = only(twins).copies[1].text + only(twins).copies[0].text
    assert len(re.findall(rf"\tld\.local\.{store} |st\.local\.{store} ", text)) >= 2
    assemble(twins.render(), "sm_90", tmp_path)


def test_tracepoints_of_functions(probe_set, tools, tmp_path):
    sides = {
        "before": ".reg .u64 %start; mov.u64 %start, %clock64;",
        "after": ".reg .u64 %took; mov.u64 %took, %clock64; sub.u64 %took, %took, %start; SAVE [ M ] { %took };",
    }
    probes = probe_set(array(["u64"], 8, cap=4) + probe("func:f", **sides))
    before = ".func f (.reg .b32 n) { .reg .pred %p; setp.eq.u32 %p, n, 1; @%p ret; bar.sync 0; } .func g { ret; }"
    twins = probe_module(parse(kernel("call f, (%r1); call g; ret;", before=before)), probes)
    twin = only(twins)
    assert twin.copies[0].text.count("%clock64") == 3
    assert [(site.function, site.instruction) for site in twin.sites] == [
        ("f", ".func f"), ("f", "@%p ret"), ("f", "}"),
    ]  # fmt: skip
    assert "%clock64" not in twin.probed_text
    assemble(twins.render(), "sm_90", tmp_path)


def test_arithmetic_of_functions(probe_set, tools, tmp_path):
    """Products and sums in a called function stay fused, beside private copies that are counted."""
    before = (
        ".func (.param .b32 o) f (.param .b32 i) { .reg .f32 %a<4>; ld.param.f32 %a0, [i]; mul.f32 %a1, %a0, %a0; "
        "add.f32 %a2, %a1, %a0; st.param.f32 [o], %a2; ret; }"
    )
    text = kernel("ld.global.f32 %f1, [%rd1]; call (%f2), f, (%f1); st.global.f32 [%rd1], %f2; ret;", before=before)
    probes = probe_set(array(["f32"], 4, cap=2) + probe("mul.f32", after="SAVE [ M ] { OUT };"))
    twins = probe_module(parse(text), probes)
    twin = only(twins)
    assert twin.own_arithmetic == twin.copies[0].own_arithmetic == {"FMUL": 1}
    original = arithmetic(text, "sm_90", tmp_path)["k"]
    made = arithmetic(twins.render(), "sm_90", tmp_path)["k__neutrino"]
    assert original == {"FFMA": 1}
    assert compare(original, made, twin.own_arithmetic) is None


@pytest.mark.parametrize(("function", "call", "shown"), [
    (".func (.reg .b64 o) f { mov.u64 o, c; ret; }", "call (%rd5), f; ld.const.u32 %r5, [%rd5];",
     "'ld.const.u32 %r5, [%rd5]' in k"),
    (".func (.reg .b32 o) f (.reg .b64 a) { .reg .b64 t; cvta.to.const.u64 t, a; ld.const.u32 o, [t]; ret; }",
     "mov.u64 %rd5, c; cvta.const.u64 %rd6, %rd5; call (%r5), f, (%rd6);", "'ld.const.u32 o, [t]' in f"),
    (".func (.reg .pred o) f (.reg .b64 a) { isspacep.const o, a; ret; }",
     "mov.u64 %rd5, c; cvta.const.u64 %rd6, %rd5; call (%p5), f, (%rd6);", "'isspacep.const o, a' in f"),
])  # fmt: skip
def test_addresses_of_constants_that_cross_a_call_are_refused(function, call, shown, probe_set):
    text = kernel(f"{call} ld.global.u32 %r3, [%rd1]; ret;", before=f".const .align 4 .u32 c[4];\n{function}")
    (skip,) = probe_module(parse(text), probe_set(LOADS)).skipped
    assert f"{shown} may be about a constant variable" in skip.detail
