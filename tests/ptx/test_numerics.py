"""Twins fuse what their originals fuse: every kind of product, with every kind of code put in its way."""

import pytest
from machine import arithmetic

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import compare

# type, register type, width in bytes, architecture, version
KINDS = [
    ("f32", "f32", 4, "sm_80", "7.0"),
    ("f32", "f32", 4, "sm_90a", "8.0"),
    ("f64", "f64", 8, "sm_90a", "8.0"),
    ("f16", "b16", 2, "sm_75", "6.5"),
    ("f16x2", "b32", 4, "sm_90a", "8.0"),
    ("bf16", "b16", 2, "sm_90a", "8.0"),
    ("bf16x2", "b32", 4, "sm_90a", "8.0"),
    ("f32x2", "b64", 8, "sm_100a", "8.8"),
]
SUMS = {
    "add": "add.{t} %f4, %f3, %f2;",
    "add_reversed": "add.{t} %f4, %f2, %f3;",
    "sub": "sub.{t} %f4, %f3, %f2;",
    "sub_reversed": "sub.{t} %f4, %f2, %f3;",
}
BETWEEN = {
    "nothing": "",
    "load": "ld.global.u32 %r4, [%rd2+512]; st.global.u32 [%rd2+1024], %r4;",
    "predicated": "@%p1 add.u32 %r2, %r2, 7; st.global.u32 [%rd2+1024], %r2;",
    "twice": "ld.global.u32 %r4, [%rd2+512]; ld.global.u32 %r5, [%rd2+516]; add.u32 %r4, %r4, %r5;"
    " st.global.u32 [%rd2+1024], %r4;",
}


def sums_of(kind: str) -> dict[str, str]:
    """f32x2 has no sub."""
    return {name: text for name, text in SUMS.items() if kind != "f32x2" or name.startswith("add")}


def module_text(kind: str, register: str, width: int, arch: str, version: str) -> str:
    """A kernel for each sum and each thing between product and sum."""
    kernels = []
    for sum_name, total in sums_of(kind).items():
        for between_name, between in BETWEEN.items():
            kernels.append(f"""
.visible .entry {sum_name}_{between_name}(.param .u64 a, .param .u64 b, .param .u32 n)
{{
    .reg .{register} %f<8>; .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, %r1; mul.wide.u32 %rd3, %r2, {width}; add.u64 %rd1, %rd1, %rd3;
    ld.global.b{8 * width} %f0, [%rd1]; ld.global.b{8 * width} %f1, [%rd1+4096]; ld.global.b{8 * width} %f2, [%rd1+8192];
    mul.{kind} %f3, %f0, %f1;
    {between}
    {total.format(t=kind)}
    st.global.b{8 * width} [%rd1+16384], %f4;
    ret;
}}
""")  # noqa: E501
    return f".version {version}\n.target {arch}\n.address_size 64\n" + "".join(kernels)


def record(width: int) -> str:
    return {2: "u16", 4: "u32", 8: "u64"}[width]


PROBES = {
    # Reads the product where it is made: a second reader, unless it gets a copy of its own.
    "out_of_product": """
[map.M]
type = "array"
level = "thread"
size = {size}
cap = 4
data = {{ v = "{field}" }}
[probe.p]
position = "mul.{kind}"
level = "thread"
after = "SAVE [ M ] {{ OUT.bits }};"
""",
    # Reads the product where it is used.
    "in_of_sum": """
[map.M]
type = "array"
level = "thread"
size = {size}
cap = 4
data = {{ a = "{field}", b = "{field}" }}
[probe.p]
position = "{sum}.{kind}"
level = "thread"
before = "SAVE [ M ] {{ IN1.bits, IN2.bits }};"
""",
    # Stores a record for every load, also for the one between product and sum.
    "store_between": """
[map.M]
type = "array"
level = "thread"
size = 16
cap = 4
data = {{ a = "u64", b = "u64" }}
[probe.p]
position = "ld.global"
level = "thread"
after = '''
.reg .u64 %c;
mov.u64 %c, %clock64;
SAVE [ M ] {{ ADDR, %c }};
mov.u64 %c, 5;
'''
""",
    # The same at a predicated instruction.
    "store_at_predicated": """
[map.M]
type = "array"
level = "warp"
size = 8
cap = 1
data = {{ a = "u64" }}
[probe.p]
position = "add.u32"
level = "warp"
before = '''
.reg .u64 %c;
add.u64 %c, %c, 1;
SAVE [ M ] {{ %c }};
'''
""",
}


@pytest.mark.parametrize(("kind", "register", "width", "arch", "version"), KINDS)
def test_products_stay_fused(kind, register, width, arch, version, probe_set, tools, tmp_path):
    text = module_text(kind, register, width, arch, version)
    original = arithmetic(text, arch, tmp_path)
    assert any(key.endswith(("FMA", "FMA2")) for counts in original.values() for key in counts)
    for name, probe in PROBES.items():
        for total in sorted({key[:3] for key in sums_of(kind)}) if name == "in_of_sum" else ["add"]:
            size = 2 * width if name == "in_of_sum" else width
            probes = probe_set(probe.format(kind=kind, size=size, field=record(width), sum=total))
            twins = probe_module(parse(text), probes)
            made = arithmetic(twins.render(), arch, tmp_path)
            assert twins.kernels
            for kernel in twins.kernels:
                counts = original[kernel.name], made[kernel.twin_name], kernel.own_arithmetic
                assert compare(*counts) is None, (name, kernel.probed_text)


def test_without_care_ptxas_unfuses(tools, tmp_path):
    """What the rest of this file guards against is real with this ptxas."""
    text = module_text("f32", "f32", 4, "sm_90a", "8.0")
    careless = text.replace("%f3, %f0, %f1;", "%f3, %f0, %f1; @%p1 st.global.u64 [%rd2], %rd1;")
    before = arithmetic(text, "sm_90a", tmp_path)["add_nothing"]
    after = arithmetic(careless, "sm_90a", tmp_path)["add_nothing"]
    assert before == {"FFMA": 1}
    assert after == {"FMUL": 1, "FADD": 1}


def test_contractible(gmem_bytes):
    head = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a) {\n.reg .f32 %f<9>;"
    loop = "L: mul.f32 %f1, %f2, %f3; neg.f32 %f4, %f1; bra L2; L2: add.f32 %f5, %f4, %f2; ret; }"
    rounded = "mul.rn.f32 %f1, %f2, %f3; add.f32 %f5, %f1, %f2; ret; }"
    apart = "mul.f32 %f1, %f2, %f3; add.f32 %f5, %f3, %f2; ret; }"
    results = [probe_module(parse(head + tail), gmem_bytes).kernels[0].contractible for tail in (loop, rounded, apart)]
    assert results == [True, False, False]


CLUSTERS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a) CLUSTER
{
.reg .b32 %r<4>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [a];
mov.u32 %r1, WORD;
st.global.u32 [%rd1], %r1;
ret;
}
"""
READING = """
[map.M]
type = "array"
level = "thread"
size = 8
cap = 1
data = { f0 = "u32", f1 = "u32" }
[probe.p]
position = "POSITION"
level = "thread"
before = '''
.reg .u32 %c;
mov.u32 %c, %clusterid.y;
SAVE [ M ] { VALUE, %c };
'''
"""


@pytest.mark.parametrize("word", ["%clusterid.x", "%cluster_ctaid.z", "5"])
@pytest.mark.parametrize("value", ["%clusterid.z", "%cluster_ctaid.x", "IN1"])
def test_places_in_clusters_multiply_nothing(word, value, probe_set, tools, tmp_path):
    """Where the kernel does not state the size of its clusters, ptxas finds them with a multiplication of floats."""
    probes = probe_set(READING.replace("POSITION", "mov").replace("VALUE", value))
    text = CLUSTERS.replace("CLUSTER", "").replace("WORD", word)
    twins = probe_module(parse(text), probes)
    (kernel,) = twins.kernels
    original, made = arithmetic(text, "sm_90", tmp_path)["k"], arithmetic(twins.render(), "sm_90", tmp_path)
    assert (original == {"FMUL": 1}) == word.startswith("%")
    assert compare(original, made[kernel.twin_name], kernel.own_arithmetic) is None, kernel.probed_text


def test_stated_cluster_sizes_are_left_to_the_assembler(probe_set):
    probes = probe_set(READING.replace("POSITION", "mov").replace("VALUE", "%cluster_ctaid.x"))
    text = CLUSTERS.replace("CLUSTER", ".reqnctapercluster 2").replace("WORD", "5")
    (kernel,) = probe_module(parse(text), probes).kernels
    assert "%cluster_nctaid" not in kernel.probed_text
