"""What of its module a twin takes over, what it reaches by address, and what it cannot take over."""

import pytest
from machine import assemble
from ptx_text import HEAD, kernel, only, probe, skipped

from neutrino.abi.reasons import Reason
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse

TARGETS = [("sm_75", "6.5"), ("sm_80", "7.0"), ("sm_90a", "8.0"), ("sm_100a", "8.7")]


@pytest.mark.parametrize(("arch", "version"), TARGETS)
def test_shipped_probes_assemble(arch, version, block_sched, gmem_bytes, tools, tmp_path):
    body = """
        mul.wide.u32 %rd2, %r2, 8; add.u64 %rd1, %rd1, %rd2;
        @%p1 ld.global.v2.u64 {%rd3, %rd4}, [%rd1+16];
        @!%p1 st.global.u64 [%rd1], %rd3;
        ld.u32 %r3, [%rd1+-4]; st.v4.f32 [%rd1], {%f1, %f2, %f3, %f4}; atom.add.u32 %r4, [%rd1], 1;
        red.global.add.f32 [%rd1], %f1; ldu.global.u16 %h1, [%rd1];
        @%p1 exit;
        ret;
    """
    for probes in (block_sched, gmem_bytes):
        twins = probe_module(parse(kernel(body, arch=arch, version=version)), probes)
        twin = only(twins)
        assemble(twins.render(), arch, tmp_path)
        assemble(twins.render(max_registers={"k": 32}), arch, tmp_path)
        assert (twin.block_offset, twin.block_size) == (16, 40)
        assert ("redux.sync" in twin.probed_text) == (probes is gmem_bytes and arch != "sm_75")


def test_the_original_is_in_the_twin_unchanged(gmem_bytes, nvcc_ptx):
    """What was inserted names a private register or label, or is a brace around that; without it a twin reads as its
    original does."""
    seen = 0
    for twin in probe_module(parse(nvcc_ptx), gmem_bytes).kernels:
        if twin.variables:
            continue
        kept: list[str] = []
        for line in twin.probed_text[twin.header :].split("\n"):
            if line.strip() == "}" and kept[-1] == "{":
                kept.pop()
            elif line.strip() and "neutrino" not in line:
                kept.append(line.strip())
        original = twin.original_text[twin.original_text.index("{") :].split("\n")
        assert kept == [line.strip() for line in original if line.strip()]
        seen += 1
    assert seen >= 4


def test_nvcc_kernels(block_sched, gmem_bytes, nvcc_ptx, tools, tmp_path):
    module = parse(nvcc_ptx)
    for probes in (block_sched, gmem_bytes):
        twins = probe_module(module, probes)
        assert sorted((skip.reason, skip.detail) for skip in twins.skipped) == [
            (Reason.UNSUPPORTED, "it uses the function table functions"),
        ]
        variables = next(twin for twin in twins.kernels if "variables" in twin.name)
        assert variables.variables == ("coefficients", "counter", "table")
        prints = next(twin for twin in twins.kernels if "prints" in twin.name)
        assert prints.variables == ()
        assemble(twins.render(), "sm_80", tmp_path)
        for twin in twins.kernels:
            alone = twins.render([twin.name])
            assert alone.count(".entry") == 1
            assemble(alone, "sm_80", tmp_path)


VARIABLES = ".global .align 8 .u64 v; .visible .const .align 4 .f32 c[8]; .shared .align 4 .b8 s[64];\n"


def test_variables_become_addresses(gmem_bytes, tools, tmp_path):
    body = """
        ld.global.u64 %rd2, [v]; ld.global.u64 %rd3, [ v + 8 ]; mov.u64 %rd4, v; mov.u64 %rd5, v+16;
        cvta.global.u64 %rd6, v; ld.const.f32 %f1, [c+4]; mov.u64 %rd7, c; add.s64 %rd7, %rd7, 4;
        ld.const.v2.f32 {%f1, %f2}, [%rd7]; @%p1 st.global.u64 [v], %rd2; mov.u32 %r3, s; ld.shared.u32 %r4, [s+4];
        atom.global.add.u64 %rd2, [v], %rd3; st.global.f32 [%rd4], %f2; st.global.u32 [%rd5], %r4; st.u32 [%rd6], %r3;
        ret;
    """
    twins = probe_module(parse(kernel(body, before=VARIABLES)), gmem_bytes)
    twin = only(twins)
    assert twin.variables == ("c", "v")
    assert twin.block_size == 40 + 16
    text = twins.render()
    assert ".const" not in text
    assert ".u64 v;" not in text
    assert "ld.param.u64 %neutrino_v0, [__neutrino_block+40];" in text
    assert "ld.param.u64 %neutrino_v1, [__neutrino_block+48];" in text
    assert "add.s64 %rd5, %neutrino_v1, 16;" in text
    assert ".shared .align 4 .b8 s[64];" in text
    assemble(text, "sm_90", tmp_path)


def test_addresses_of_constants_stay_addresses(block_sched, tools, tmp_path):
    body = """
        mov.u64 %rd2, c; add.s64 %rd4, %rd2, 16; cvta.const.u64 %rd5, %rd2;
        L: @%p1 ld.const.u32 %r3, [%rd2]; add.s64 %rd2, %rd2, 4; setp.ne.s64 %p2, %rd2, %rd4; @%p2 bra L;
        ld.u32 %r4, [%rd5]; st.global.v2.u32 [%rd1], {%r3, %r4}; ret;
    """
    twins = probe_module(parse(kernel(body, before=VARIABLES)), block_sched)
    assert only(twins).variables == ("c",)
    assemble(twins.render(), "sm_90", tmp_path)


def test_address_of_a_variable(probe_set, tools, tmp_path):
    twins = probe_module(
        parse(kernel("ld.global.u64 %rd2, [v+8]; st.global.u64 [%rd1], %rd2; ret;", before=VARIABLES)),
        probe_set(probe("ld.global", before=".reg .u64 %x; mov.u64 %x, ADDR;")),
    )
    assert "add.s64 %neutrino_td0, %neutrino_v0, 8;" in only(twins).probed_text
    assemble(twins.render(), "sm_90", tmp_path)


def test_names_are_resolved_by_scope(gmem_bytes, tools, tmp_path):
    body = """
        ld.global.u64 %rd2, [v];
        { .reg .b64 v; mov.u64 v, %rd1; ld.global.u64 %rd3, [v]; { ld.global.u64 %rd4, [v]; } }
        st.global.u64 [v], %rd3; ret;
    """
    twins = probe_module(parse(kernel(body, before=VARIABLES)), gmem_bytes)
    text = only(twins).probed_text
    assert "ld.global.u64 %rd2, [%neutrino_v0];" in text
    assert "ld.global.u64 %rd3, [v];" in text
    assert "ld.global.u64 %rd4, [v];" in text
    assert "st.global.u64 [%neutrino_v0], %rd3;" in text
    assemble(twins.render(), "sm_90", tmp_path)


def test_a_local_name_alone_needs_no_variable(gmem_bytes):
    body = "{ .reg .b64 v; mov.u64 v, %rd1; ld.global.u64 %rd3, [v]; } ret;"
    assert only(probe_module(parse(kernel(body, before=VARIABLES)), gmem_bytes)).variables == ()


def test_names_that_are_words_elsewhere(gmem_bytes, tools, tmp_path):
    """A variable called as a type, a function called as an opcode."""
    before = ".global .u32 u64; .func add () { ret; }"
    body = "call add; add.u32 %r3, %r2, 1; st.global.u32 [u64], %r3; ret;"
    twins = probe_module(parse(kernel(body, before=before)), gmem_bytes)
    assert only(twins).variables == ("u64",)
    assemble(twins.render(), "sm_90", tmp_path)


def test_address_registers_of_inner_scopes(probe_set, tools, tmp_path):
    """The same name is 32 bits wide inside the braces and 64 outside."""
    body = "{ .reg .b32 %rd1; mov.u32 %rd1, %r2;\nld.shared.u32 %r3, [%rd1];\n} ld.shared.u32 %r4, [%rd1];\nret;"
    twins = probe_module(parse(kernel(body)), probe_set(probe("ld.shared", before=".reg .u64 %x; mov.u64 %x, ADDR;")))
    assert only(twins).probed_text.count("cvt.u64.u32") == 1
    assemble(twins.render(), "sm_90", tmp_path)


CALL = "{ .param .b32 q; st.param.b32 [q], %r1; call f, (q); }"


@pytest.mark.parametrize(("before", "body", "detail"), [
    (".func f () { exit; }", "mov.u64 %rd2, f; P: .callprototype _ (); call %rd2, P;",
     "line 4: exit in the called function f, whose address is taken"),
    (".extern .func f (.param .b32 x);", CALL, "external function f"),
    (".extern .global .u32 v;", "ld.global.u32 %r3, [v];", "external variable v"),
    (".global .texref t;", "tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}];", "texref t"),
    (".func f () { ret; } .global .u64 table[1] = {f};", "ld.global.u64 %rd2, [table];", "function table table"),
    (".func f () { ret; }", "mov.u64 %rd2, f; st.global.u64 [%rd1], %rd2;", "takes the address of the function f"),
    (".func f () { ret; }", "P: .callprototype _ (); ld.global.u64 %rd2, [%rd1]; call %rd2, P;",
     "pointers that come from"),
    (".func f () { ret; }", ".reg .b64 p; P: .callprototype _ (); ld.global.u64 p, [%rd1]; call p, P;",
     "pointers that come from"),
    ("", ".global .u32 v; ld.global.u32 %r3, [v]; st.global.u32 [v], 1;", "declares the global variable v"),
    ("", ".global .u32 v; { .global .u32 v; } atom.global.add.u32 %r3, [v], 1;", "declares the global variable v"),
    ("", ".const .u32 v; mov.u64 %rd3, v;", "declares the const variable v"),
    (".global .u32 g;", ".global .u64 w = g; ld.global.u64 %rd3, [w];", "declares the global variable w"),
    (".const .u32 v; ", "mov.u64 %rd2, v; isspacep.const %p1, %rd2;", "isspacep.const"),
    (".const .u32 v; ", "cvta.const.u64 %rd2, v; ld.u32 %r3, [%rd2];", "may read a constant"),
    (".const .u32 v; ", "mov.u64 %rd2, v; add.s64 %rd3, %rd2, 8; st.global.u64 [%rd1], %rd3;",
     "'st.global.u64 [%rd1], %rd3' depends on the address of a constant"),
    (".const .u32 v; ", "mov.u64 %rd2, v; cvt.u32.u64 %r3, %rd2;", "depends on the address of a constant"),
    (".alias a;", "bar.sync 0;", "line 4: '.alias a;' at module level"),
    (".strange thing;", "bar.sync 0;", "line 4: '.strange thing;' at module level"),
])  # fmt: skip
def test_what_a_twin_cannot_take_over_is_named(before, body, detail, gmem_bytes):
    reason, text = skipped(probe_module(parse(kernel(body + " ret;", before=before)), gmem_bytes))
    assert reason is Reason.UNSUPPORTED
    assert detail in text


def test_function_pointers_that_stay_inside(block_sched, tools, tmp_path):
    before = ".func f () { ret; } .func g () { ret; }"
    pointers = "mov.u64 %rd2, f; mov.u64 %rd3, g; selp.b64 %rd2, %rd2, %rd3, %p1; call %rd2, P; ret;"
    twins = probe_module(parse(kernel("P: .callprototype _ (); " + pointers, before=before)), block_sched)
    assert only(twins)
    assert ".func g ()" in twins.render()
    assemble(twins.render(), "sm_90", tmp_path)


def test_parameter_room(block_sched):
    def module(size):
        return parse(f"{HEAD.format(version='8.0', arch='sm_90')}.entry k(.param .b8 p[{size}]) {{ ret; }}")

    fits = only(probe_module(module(4352 - 40), block_sched))
    assert (fits.block_offset, fits.version) == (4312, (8, 0))
    reason, detail = skipped(probe_module(module(4352 - 39), block_sched))
    assert (reason, detail) == (Reason.PARAMETERS, "4360 bytes of parameters with the probe block, 4352 fit")
    raised = probe_module(module(4352 - 39), block_sched, version=(9, 0))
    assert only(raised).version == (8, 1)
    assert raised.render().startswith(".version 8.1\n")
    assert skipped(probe_module(module(32764), block_sched, version=(9, 0)))[0] is Reason.PARAMETERS


def test_only_named_kernels(block_sched):
    text = kernel("ret;") + ".entry other { ret; }\n"
    assert [twin.name for twin in probe_module(parse(text), block_sched).kernels] == ["k", "other"]
    assert [twin.name for twin in probe_module(parse(text), block_sched, names={"other"}).kernels] == ["other"]


@pytest.mark.parametrize("header", [
    ".entry k", ".entry k()", ".visible .entry k ( ) ", ".weak .entry k(.param .u64 a // last\n)",
    ".entry k\n.maxntid 64",
    ".entry k() .maxntid 128,1,1 .minnctapersm 2 .maxnreg 64", '.entry k() .reqntid 32 .pragma "nounroll";',
    ".entry k() .maxntid 64 .explicitcluster .reqnctapercluster 2,1,1",
])  # fmt: skip
def test_headers(header, block_sched, tools, tmp_path):
    twins = probe_module(parse(HEAD.format(version="8.0", arch="sm_90") + header + "\n{ ret; }\n"), block_sched)
    assert only(twins).twin_name == "k__neutrino"
    for caps in ({}, {"k": 40}):
        text = twins.render(max_registers=caps)
        assert (".maxnreg 40" in text) == bool(caps)
        assemble(text, "sm_90", tmp_path)


def test_private_names_clash_with_nothing(block_sched, tools, tmp_path):
    body = ".reg .b32 %neutrino_tw0; .reg .b64 %neutrino_r_start; mov.u32 %neutrino_tw0, 1; $L__neutrino_0: ret;"
    twins = probe_module(parse(kernel(body)), block_sched)
    only(twins)
    assemble(twins.render(), "sm_90", tmp_path)


def test_a_module_that_has_the_twin_already(block_sched):
    twins = probe_module(parse(kernel("ret;") + ".entry k__neutrino { ret; }\n"), block_sched)
    assert [skip.name for skip in twins.skipped] == ["k"]


def test_line_information(block_sched, tools, tmp_path):
    inlined = ".loc 1 5 6, function_name $L__info_string0, inlined_at 1 3 4"
    text = kernel(f".loc 1 3 4\nbar.sync 0;\n{inlined}\nret;")
    debug = text.replace(".target sm_90", ".target sm_90, debug")
    debug += '.file 1 "a.cu"\n.section .debug_str { $L__info_string0: .b8 0 }\n'
    for source, kept in ((text, False), (debug, True)):
        rendered = probe_module(parse(source), block_sched).render()
        assert (".loc 1 5 6" in rendered) == kept
        assert "function_name" not in rendered
        assert "debug" not in rendered
        assemble(rendered, "sm_90", tmp_path)


def test_variables_of_bodies_that_are_only_loaded(gmem_bytes, tools, tmp_path):
    """The twin has a copy, which ptxas takes beside one of another scope and one of the module."""
    body = """.global .align 4 .u32 v[2] = {5, 6}; .const .u32 c = 7;
ld.global.u32 %r3, [v+4]; ld.const.u32 %r2, [c];
{ .global .align 4 .u32 v[2] = {8, 9}; ld.global.u32 %r4, [v]; }
st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4}; ret;"""
    twins = probe_module(parse(kernel(body, before=".global .align 4 .u32 v[2];")), gmem_bytes)
    assert not twins.skipped
    (twin,) = twins.kernels
    assert twin.variables == ()
    text = twins.render()
    assert text.count("{5, 6}") == text.count("{8, 9}") == 1
    assemble(text, "sm_90", tmp_path)


@pytest.mark.parametrize("declared", [
    ".visible .entry add() { ret; }", ".func add() { ret; }", ".global .u32 add;", ".global .texref add;",
    ".visible .entry trap() { ret; }", ".func trap() { ret; }",
])  # fmt: skip
def test_names_of_instructions(declared, gmem_bytes, tools, tmp_path):
    """Kernels, functions and variables may be named like instructions, also those first in a body or in braces."""
    body = "{add.f16 %h1,%h2,%h3;\n}\n{\nadd.u32 %r1, %r1, 1; }\n{ @%p1 trap; } { trap; } ret;"
    twins = probe_module(parse(kernel(body, before=declared)), gmem_bytes)
    assert not twins.skipped, twins.skipped
    assert all(twin.variables == () and not twin.copies for twin in twins.kernels)
    assemble(twins.render(["k"]), "sm_90", tmp_path)
