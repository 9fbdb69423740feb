"""Which instructions are sites, and what is inserted around them."""

import re

import pytest
from machine import assemble
from ptx_text import FIRST_LINE, array, kernel, lines, only, probe, skipped

from neutrino.abi.reasons import Reason
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse


def test_only_instructions_match(probe_set):
    text = kernel("""// ld.global.u32 %r3, [%rd1];
/* ; ld.global.u32 %r3, [%rd1]; */ .pragma "used_bytes_mask 0xf; ld.global.u32";
ld_global: ld.volatile.global.u32 %r3, [%rd1]; ld.shared.u32 %r3, [%r2]; ld.param.u32 %r3, [n];
@%p1
  ld.relaxed.gpu.global.v2.f32
  {%f1, /* ; */ %f2}, [%rd1];
L1: L2: @ ! %p1 ld.global.nc.f32 %f1, [%rd1]; mov.b64 %rd2, {%r1, %r2}; { ld.global.u8 %h1, [%rd1]; }
.loc 1 2 3
ld.global.u8 %h1, [%rd1];
bra ld_global;
""")
    probes = probe_set(array(["u64"], 8) + probe("ld.global", before="SAVE [ M ] { BYTES };"))
    twin = only(probe_module(parse(text), probes))
    assert [(site.line - FIRST_LINE, site.instruction) for site in twin.sites] == [
        (2, "ld.volatile.global.u32 %r3, [%rd1]"),
        (3, "@%p1 ld.relaxed.gpu.global.v2.f32 {%f1, %f2}, [%rd1]"),
        (6, "@ ! %p1 ld.global.nc.f32 %f1, [%rd1]"),
        (6, "ld.global.u8 %h1, [%rd1]"),
        (8, "ld.global.u8 %h1, [%rd1]"),
    ]


@pytest.mark.parametrize(("body", "sites"), [
    ("st.global.u32[%rd1],%r1; ld.global.v2.u32{%r3,%r4},[%rd1]; ld.global.u32%r3,[%rd1]; ret;", 3),
    ("ld: ld.global.u32 %r3, [%rd1]; st:st.global.u32 [%rd1], %r3; ld2 : @%p1 bra ld; ret:ret;", 2),
    ("bra exit; exit : st.global.u32 [%rd1], %r1; @%p1 bra exit; ret;", 1),
])  # fmt: skip
def test_spellings_that_ptxas_takes(body, sites, gmem_bytes, block_sched, tools, tmp_path):
    """Operands right after the opcode; labels called as opcodes are."""
    assemble(kernel(body), "sm_90", tmp_path)
    twins = probe_module(parse(kernel(body)), gmem_bytes)
    assert [site.tracepoint for site in only(twins).sites].count("kernel") == 1
    assert len(only(twins).sites) == sites + 1
    assemble(twins.render(), "sm_90", tmp_path)
    assert len(only(probe_module(parse(kernel(body)), block_sched)).sites) == 2


@pytest.mark.parametrize(("body", "detail"), [
    ("ld .global.u32 %r3, [%rd1]; ret;", "white space within an opcode"),
    ("ld.global\n.u32 %r3, [%rd1]; ret;", "white space within an opcode"),
    (".reg .b32 %x, %smid; mov.u32 %smid, 5; ret;", "a register of its own is called %smid"),
    ("{ .reg .b32 %tid; } ret;", "a register of its own is called %tid"),
])  # fmt: skip
def test_spellings_that_are_refused(body, detail, gmem_bytes, tools, tmp_path):
    assemble(kernel(body), "sm_90", tmp_path)
    reason, text = skipped(probe_module(parse(kernel(body)), gmem_bytes))
    assert reason is Reason.UNSUPPORTED
    assert text == f"line {FIRST_LINE}: {detail}"


def test_asynchronous_accesses_of_global_memory(gmem_bytes, tools, tmp_path):
    """Those of memory-mapped registers need not name the space."""
    body = (
        "st.async.mmio.release.sys.u32 [%rd1], %r1; red.async.mmio.release.sys.add.u32 [%rd1], %r1;"
        "st.async.mmio.release.sys.global.u32 [%rd1], %r1; ret;"
    )
    twins = probe_module(parse(kernel(body, arch="sm_100a", version="8.7")), gmem_bytes)
    assert [site.probe for site in only(twins).sites] == ["store_generic", "atomic_generic", "store_global", "total"]
    assemble(twins.render(), "sm_100a", tmp_path)


@pytest.mark.parametrize(("position", "instruction", "matches"), [
    ("ld.global", "ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];", True),
    ("ld.global", "ld.shared::cta.f32 %f1, [%r1];", False),
    ("ld.shared", "ld.shared::cta.f32 %f1, [%r1];", True),
    ("ld.generic", "ld.f32 %f1, [%rd1];", True),
    ("ld.generic", "ld.global.f32 %f1, [%rd1];", False),
    ("ld.f32.global", "ld.global.f32 %f1, [%rd1];", False),
    ("cp.async.cg", "cp.async.cg.shared.global [%r1], [%rd1], 16;", True),
    ("cp.async.ca", "cp.async.cg.shared.global [%r1], [%rd1], 16;", False),
    ("st", "tcgen05.wait::st.sync.aligned;", False),
    ("add", "mov.b64 %rd2, {add.x, add.y};", False),
])  # fmt: skip
def test_patterns(position, instruction, matches, probe_set):
    probes = probe_set('[map.M]\ntype = "sum"\nlevel = "thread"\nsize = 8\ndata = { n = "u64" }\n'
                       + probe(position, before="SAVE [ M ] { 1 };"))  # fmt: skip
    twins = probe_module(parse(kernel(instruction + " ret;")), probes)
    assert bool(twins.kernels) == matches
    if not matches:
        assert skipped(twins)[0] is Reason.NO_SITE


MOVED = ["mov.b64 %Nr_x, %Ntd0;"]
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], %r4, [%r5];"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r3], 64;"


@pytest.mark.parametrize(("position", "instruction", "helper", "expected"), [
    ("ld.global", "ld.global.u32 %r3, [%rd2];", "ADDR", ["mov.b64 %Nr_x, %rd2;"]),
    ("ld.global", "ld.global.u32 %r3, [%rd2+-8];", "ADDR", ["add.s64 %Ntd0, %rd2, -8;", *MOVED]),
    ("ld.global", "ld.global.u32 %r3, [ %rd2 + 0x10 ];", "ADDR", ["add.s64 %Ntd0, %rd2, 0x10;", *MOVED]),
    ("ld.shared", "ld.shared.u32 %r3, [%r4];", "ADDR", ["cvt.u64.u32 %Ntd0, %r4;", *MOVED]),
    ("ld.shared", "ld.shared.u32 %r3, [buffer+4];", "ADDR",
     ["mov.u64 %Ntd0, buffer;", "add.s64 %Ntd1, %Ntd0, 4;", "mov.b64 %Nr_x, %Ntd1;"]),
    ("ld.local", "ld.local.u32 %r3, [16];", "ADDR", ["mov.b64 %Nr_x, 16;"]),
    ("ld.local", "ld.local.u32 %r3, [010+0x4];", "ADDR", ["mov.b64 %Nr_x, 12;"]),
    ("ld.param", "ld.param.u32 %r3, [n];", "ADDR", ["mov.u64 %Ntd0, n;", *MOVED]),
    ("ld.global", "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd2];", "BYTES", ["mov.b64 %Nr_x, 16;"]),
    ("st.global", "st.global.v2.b64 [%rd2], {%rd3, %rd4};", "BYTES", ["mov.b64 %Nr_x, 16;"]),
    ("st.global.v2", "st.global.v2.b64 [%rd2], {%rd3, %rd4};", "IN2.y", ["mov.b64 %Nr_x, %rd4;"]),
    ("st.global", "st.global.u64 [%rd2+8], %rd3;", "IN1", ["add.s64 %Ntd0, %rd2, 8;", *MOVED]),
    ("atom.global", "atom.global.cas.b64 %rd3, [%rd2], %rd4, 7;", "IN3", ["mov.b64 %Nr_x, 7;"]),
    ("atom.global", "atom.global.add.noftz.f16x2 %r3, [%rd2], %r4;", "BYTES", ["mov.b64 %Nr_x, 4;"]),
    ("red.global", "red.global.v4.f32.add [%rd2], {%f1,%f2,%f3,%f4};", "BYTES", ["mov.b64 %Nr_x, 16;"]),
    ("cp.async", "cp.async.cg.shared.global [%r3], [%rd2], 16;", "BYTES", ["mov.b64 %Nr_x, 16;"]),
    ("cp.async", "cp.async.ca.shared.global [%r3], [%rd2], 8, %r4;", "BYTES", ["cvt.u64.u32 %Ntd0, %r4;", *MOVED]),
    ("cp.async", "cp.async.cg.shared.global.L2::cache_hint [%r3], [%rd2], 16, %rd5;", "BYTES", ["mov.b64 %Nr_x, 16;"]),
    ("cp.async", "cp.async.ca.shared.global [%r3], [%rd2], 4, %p1;", "BYTES", ["selp.b64 %Ntd0, 0, 4, %p1;", *MOVED]),
    ("cp.async", "cp.async.cg.shared.global [%r3], [%rd2+4], 16;", "ADDR", ["add.s64 %Ntd0, %rd2, 4;", *MOVED]),
    ("cp.async.bulk", BULK, "BYTES", ["cvt.u64.u32 %Ntd0, %r4;", *MOVED]),
    ("cp.async.bulk", BULK, "ADDR", ["mov.b64 %Nr_x, %rd2;"]),
    ("cp.async.bulk", BULK_STORE, "ADDR", ["mov.b64 %Nr_x, %rd2;"]),
    ("cp.async.bulk", BULK_STORE, "BYTES", ["mov.b64 %Nr_x, 64;"]),
    ("add.s64", "add.s64 %rd3, %rd2, -4;", "IN2", ["mov.b64 %Nr_x, -4;"]),
    ("mov.b64", "mov.b64 %rd3, buffer;", "IN1", ["mov.u64 %Ntd0, buffer;", *MOVED]),
    ("mov.b64", "mov.b64 %rd3, %clock64;", "IN1", ["mov.b64 %Nr_x, %clock64;"]),
])  # fmt: skip
def test_operands_before(position, instruction, helper, expected, probe_set, tools, tmp_path):
    body = ".shared .align 16 .b8 buffer[64]; mov.u64 %rd2, 0; mov.u32 %r3, 0; mov.u32 %r4, %tid.x; mov.u32 %r5, 0;\n"
    text = kernel(f"{body}{instruction}\nst.global.u32 [%rd1], %r3; ret;", arch="sm_90a", version="8.1")
    probes = probe_set(probe(position, before=f".reg .b64 %x; mov.b64 %x, {helper};"))
    twins = probe_module(parse(text), probes)
    found = lines(only(twins))
    at = found.index(instruction)
    assert found[at - len(expected) : at] == expected
    assert found[at - len(expected) - 1].startswith(".shared"), "nothing else is inserted"
    assemble(twins.render(), "sm_90a", tmp_path)


@pytest.mark.parametrize(("instruction", "helper", "before", "after"), [
    # The address register is overwritten: its value from before is kept.
    ("ld.global.u64 %rd2, [%rd2];", "ADDR", ["mov.b64 %Ntd0, %rd2;"], MOVED),
    ("ld.global.u64 %rd3, [%rd2];", "ADDR", [], ["mov.b64 %Nr_x, %rd2;"]),
    ("ld.global.u64 %rd2, [%rd2+8];", "IN1", ["mov.b64 %Ntd0, %rd2;"],
     ["add.s64 %Ntd1, %Ntd0, 8;", "mov.b64 %Nr_x, %Ntd1;"]),
    ("ld.global.v2.u64 {%rd3, %rd2}, [%rd2];", "OUT.y", [], ["mov.b64 %Nr_x, %rd2;"]),
    ("ld.global.v2.u64 {%rd3, %rd2}, [%rd2];", "ADDR", ["mov.b64 %Ntd0, %rd2;"], MOVED),
    ("@%p1 ld.global.u64 %rd3, [%rd2];", "OUT", [], ["@%p1 mov.b64 %Nr_x, %rd3;"]),
])  # fmt: skip
def test_operands_after(instruction, helper, before, after, probe_set, tools, tmp_path):
    text = kernel(f"mov.u64 %rd2, %rd1;\n{instruction}\nst.global.u64 [%rd1], %rd2; ret;")
    probes = probe_set(probe("ld.global", after=f".reg .b64 %x; mov.b64 %x, {helper};"))
    twins = probe_module(parse(text), probes)
    found = lines(only(twins))
    at = found.index(instruction)
    assert found[at - len(before) - 1 : at] == ["mov.u64 %rd2, %rd1;", *before]
    assert found[at + 1 : at + 2 + len(after)] == [*after, "st.global.u64 [%rd1], %rd2; ret;"]
    assemble(twins.render(), "sm_90", tmp_path)


@pytest.mark.parametrize("field", ["u32", "u64", "f32", "f64"])
@pytest.mark.parametrize(("instruction", "move"), [
    ("add.rn.f32 %f1, %f2, 0f3F800000", "mov.f32 %NtW, 0f3F800000;"),
    ("setp.lt.f32 %p2, %f1, -1.5", "mov.f32 %NtW, 0fBFC00000;"),
    ("fma.rn.f64 %d1, %d2, 0.1, %d2", "mov.f64 %NtW, 0d3FB999999999999A;"),
    ("fma.rn.f64 %d1, %d2, 0D3FF0000000000000, %d2", "mov.f64 %NtW, 0D3FF0000000000000;"),
])  # fmt: skip
def test_fractions_among_the_operands(instruction, move, field, probe_set, tools, tmp_path):
    """The bits that the instruction takes, whatever the field; the assembler takes them as floats only."""
    size = int(field[1:]) // 8
    saved = "IN2" if field[0] == "f" else "IN2.bits"
    probes = probe_set(array([field], size) + probe(instruction.split()[0], before=f"SAVE [ M ] {{ {saved} }};"))
    twins = probe_module(parse(kernel(f"{instruction}; ret;")), probes)
    assert move in [re.sub(r"%Nt[wd]\d+", "%NtW", line) for line in lines(only(twins))]
    assemble(twins.render(), "sm_90", tmp_path)


def test_predicate_overwritten_by_its_instruction(probe_set, tools, tmp_path):
    text = kernel("@!%p1 setp.lt.u32 %p1|%p2, %r1, %r2;\nst.global.u64 [%rd1], %rd1; ret;")
    snippet = ".reg .u64 %x; add.u64 %x, %x, 1; SAVE [ M ] { %x };"
    twins = probe_module(parse(text), probe_set(array(["u64"], 8) + probe("setp.lt", after=snippet)))
    found = lines(only(twins))
    at = found.index("@!%p1 setp.lt.u32 %p1|%p2, %r1, %r2;")
    assert found[at - 1] == "mov.pred %Ntq0, %p1;"
    assert found[at + 1].startswith("@!%Ntq0 add.u64")
    assemble(twins.render(), "sm_90", tmp_path)


def test_predicated_snippet_at_a_predicated_site(probe_set, tools, tmp_path):
    snippet = ".reg .pred %q; .reg .u32 %x; setp.eq.u32 %q, %x, 3; @!%q add.u32 %x, %x, 1; @%q add.u32 %x, %x, 2;"
    text = kernel("@!%p1 ld.global.u32 %r3, [%rd1];\nst.global.u32 [%rd1], %r3; ret;")
    twins = probe_module(parse(text), probe_set(probe("ld.global", before=snippet)))
    found = lines(only(twins))
    at = found.index("@!%p1 ld.global.u32 %r3, [%rd1];")
    assert found[at - 8 : at] == [
        "@!%p1 setp.eq.u32 %Nr_q, %Nr_x, 3;",
        "not.pred %Ntq1, %p1;", "not.pred %Ntq0, %Nr_q;", "and.pred %Ntq0, %Ntq0, %Ntq1;",
        "@%Ntq0 add.u32 %Nr_x, %Nr_x, 1;",
        "not.pred %Ntq3, %p1;", "and.pred %Ntq2, %Nr_q, %Ntq3;", "@%Ntq2 add.u32 %Nr_x, %Nr_x, 2;",
    ]  # fmt: skip
    assemble(twins.render(), "sm_90", tmp_path)


TENSOR = (
    "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r4}], [%r5];"
)


@pytest.mark.parametrize(("position", "instruction", "side", "helper", "detail"), [
    ("load !param", "ld.global.u32 %r3, [%rd1];", "after", "IN2", "ld.global.u32 has no IN2"),
    ("ld.global", "ld.global.u32 %r3, [%rd1];", "after", "OUT.y", "ld.global.u32 has no OUT.y"),
    ("bar", "bar.sync 0;", "after", "OUT", "bar.sync has no OUT"),
    ("cp.async.bulk.tensor", TENSOR, "before", "ADDR", "an object and coordinates name the memory"),
    ("cp.async.bulk.tensor", TENSOR, "before", "IN2.z", "has no IN2.z"),
    ("atom.global", "atom.global.add.u32 _, [%rd1], 1;", "after", "OUT", "thrown away"),
])  # fmt: skip
def test_what_an_instruction_lacks_is_named(position, instruction, side, helper, detail, probe_set):
    probes = probe_set(probe(position, **{side: f".reg .b64 %x; mov.b64 %x, {helper};"}))
    reason, text = skipped(probe_module(parse(kernel(instruction + " ret;")), probes))
    assert reason is Reason.UNSUPPORTED
    assert text.startswith(f"probe 'p' at line {FIRST_LINE}: {instruction.rstrip(';')!r}: ")
    assert detail in text


def test_snippets_run_in_file_order_on_both_sides(probe_set):
    text = kernel("ld.global.u32 %r3, [%rd1];\nst.global.u64 [%rd1], %rd1; ret;")
    first = probe("ld.global", before=".reg .u64 %x; mov.u64 %x, 1;", after="mov.u64 %x, 3;")
    second = probe("ld.global", before="mov.u64 %x, 2;", after="mov.u64 %x, 4;").replace("probe.p", "probe.q")
    found = lines(only(probe_module(parse(text), probe_set(first + second))))
    at = found.index("ld.global.u32 %r3, [%rd1];")
    assert [found[at + step].rpartition(" ")[2] for step in (-2, -1, 1, 2)] == ["1;", "2;", "3;", "4;"]


def test_code_that_stands_again_leaves_waiting_stores_alone(probe_set, tools, tmp_path):
    """The guarded load between product and sum has the same code before it as the first one."""
    text = kernel("""@%p1 ld.global.f32 %f1, [%rd1];
mul.f32 %f3, %f1, %f2;
@%p1 ld.global.f32 %f5, [%rd1+4];
add.f32 %f4, %f3, %f1;
st.global.f32 [%rd1+8], %f4; ret;""")
    probes = probe_set(
        array(["f32"], 4)
        + probe("ld.global", before=".reg .pred %q; .reg .u64 %x; @%q add.u64 %x, %x, 1;")
        + probe("mul.f32", after="SAVE [ M ] { OUT };").replace("probe.p", "probe.r")
    )
    twins = probe_module(parse(text), probes)
    found = lines(only(twins))
    product, total = found.index("mul.f32 %f3, %f1, %f2;"), found.index("add.f32 %f4, %f3, %f1;")
    guard = re.match(r"@(%Ntq\d+) st\.global", found[total + 1])[1]
    between = found[product:total]
    assert len([line for line in between if line.startswith((f"setp.lt.u32 {guard},", f"and.pred {guard},"))]) == 1
    assemble(twins.render(), "sm_90", tmp_path)


@pytest.mark.parametrize(("reader", "masked"), [("warp", False), ("thread", True)])
def test_what_warp_level_writes_and_thread_level_reads(reader, masked, probe_set, tools, tmp_path):
    """The other lanes keep their register, since somebody looks at it."""
    text = kernel("ld.global.u32 %r3, [%rd1];\nst.global.u32 [%rd1], %r3; ret;")
    probes = probe_set(
        array(["u32"], 4, level=reader)
        + probe("ld.global", level="warp", before=".reg .u32 %n; add.u32 %n, %n, 1;")
        + probe("st.global", level=reader, before="SAVE [ M ] { %n };").replace("probe.p", "probe.r")
    )
    twins = probe_module(parse(text), probes)
    (step,) = [line for line in lines(only(twins)) if line.endswith("add.u32 %Nr_n, %Nr_n, 1;")]
    assert step.startswith("@") is masked
    assemble(twins.render(), "sm_90", tmp_path)


def test_equal_sites_with_different_sizes(probe_set):
    """What one site's code depends on is not taken from another with the same opcode."""
    text = kernel("".join(f"cp.async.ca.shared.global [%r3], [%rd1], {size};\n" for size in (4, 8, 16)) + "ret;")
    found = lines(only(probe_module(parse(text), probe_set(probe("cp", before=".reg .b64 %x; mov.b64 %x, BYTES;")))))
    assert [line for line in found if line.startswith("mov.b64 %Nr_x") and not line.endswith(" 0;")] == [
        f"mov.b64 %Nr_x, {size};" for size in (4, 8, 16)
    ]


CALL = """{ // callseq 0, 0
    .param .b32 param0;
    st.param.b32 [param0], %r2;
    call.uni helper, (param0);
    }"""
POINTER_CALL = """{
    .reg .b64 pointer; .param .b32 param0;
    st.param.b32 [param0], %r2;
    prototype: .callprototype _ (.param .b32 _);
    call %rd2, (param0), prototype;
    }"""
PLAIN_CALL = "st.param.b32 [param0], %r2; call helper, (param0);"


@pytest.mark.parametrize(("call", "declared"), [
    (CALL, ""), (PLAIN_CALL, ".param .b32 param0;"), (POINTER_CALL, "mov.u64 %rd2, helper;"),
])  # fmt: skip
def test_nothing_goes_into_a_call_sequence(call, declared, probe_set, tools, tmp_path):
    helper = ".func helper (.param .b32 x) { ret; }"
    text = kernel(f"{declared} bar.sync 0;\n{call}\nst.global.u64 [%rd1], %rd1; ret;", before=helper)
    snippet = "add.u64 %x, %x, 1; SAVE [ M ] { %x };"
    sides = {"before": ".reg .u64 %x; " + snippet, "after": snippet}
    twins = probe_module(parse(text), probe_set(array(["u64"], 8, cap=2) + probe("call", **sides)))
    assert call in only(twins).probed_text
    assert only(twins).probed_text.count("add.u64 %neutrino_r_x") == 2
    assemble(twins.render(), "sm_90", tmp_path)
    around = CALL.replace("st.param", "@%p1 bra L; st.param").replace("(param0);", "(param0); L:")
    astray = parse(kernel(around + " ret;", before=helper))
    twins = probe_module(astray, probe_set(probe("call", before=".reg .u64 %x; mov.u64 %x, 1;")))
    assert "@%p1 bra L; mov.u64 %neutrino_r_x, 1;\n\tst.param.b32 [param0], %r2;\n" in only(twins).probed_text
    assemble(twins.render(), "sm_90", tmp_path)
    around = probe_module(parse(text), probe_set(probe("st.param | ld.param", before=".reg .u64 %x; mov.u64 %x, 1;")))
    assert call in only(around).probed_text
    assert not only(around).left_out
    reading = probe_set(probe("st.param | bar", before=".reg .u32 %x; mov.u32 %x, IN1;"))
    twin = only(probe_module(parse(text), reading))
    assert [(site.instruction, site.number) for site in twin.sites] == [("bar.sync 0", 0)]
    for left in twin.left_out:
        assert left.instruction.startswith("st.param")
        assert left.reason == "it is part of a call, around which its operands are not known"
    alone = probe_set(probe("st.param", before=".reg .u32 %x; mov.u32 %x, IN1;"))
    assert skipped(probe_module(parse(text), alone))[0] is Reason.NO_SITE


def test_registers_too_wide_for_a_record(probe_set):
    body = ".reg .b128 %q<3>; atom.global.cas.b128 %q1, [%rd1], %q1, %q2; ret;"
    for helper in ("IN2", "OUT"):
        probes = probe_set(array(["u64"], 8) + probe("atom.global", after=f"SAVE [ M ] {{ {helper} }};"))
        detail = f"{helper} of atom.global.cas.b128 is a .b128 register, and a probe's hold at most 64 bits"
        assert detail in skipped(probe_module(parse(kernel(body)), probes))[1]


PRODUCT = "mul.f32 %f3, %f1, %f2;\nadd.f32 %f4, %f3, %f1;"


@pytest.mark.parametrize("body", [
    PRODUCT + " ld.global.v2.f32 {%f3, %f5}, [%rd1];",
    f"{{ .reg .f32 %f3; {PRODUCT} }}",
    PRODUCT + " call (%f3), f, (%f1);",
])  # fmt: skip
def test_a_register_that_no_longer_holds_the_product(body, probe_set, tools, tmp_path):
    """What reads it gets the register, not the product's private copy."""
    before = ".func (.reg .f32 o) f (.reg .f32 x) { mov.f32 o, x; ret; }\n"
    text = kernel(body + "\nadd.f32 %f6, %f3, %f2;\nst.global.f32 [%rd1], %f6; ret;", before=before)
    snippet = ".reg .f32 %x; mov.f32 %x, IN1;"
    twins = probe_module(parse(text), probe_set(probe("add.f32", before=snippet)))
    found = lines(only(twins))
    assert found[found.index("add.f32 %f6, %f3, %f2;") - 1] == "mov.f32 %Nr_x, %f3;"
    assert found[found.index("mov.f32 %Nr_x, %Nm0;") + 1].startswith("add.f32 %f4, %f3, %f1;")
    assemble(twins.render(), "sm_90", tmp_path)
