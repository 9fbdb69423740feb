"""Kernels of several modules that are linked: what of the others a twin takes along, and that it computes the same.

The modules are linked here by hand, into one text, which the embedded device runs.
"""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.emulator.device import Device
from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.programs import Program, TwinProgram, normalized, normalized_with_callees, probe_program
from neutrino.ptx.text.module import Kind, Module, parse
from neutrino.verification import load_probe_file
from tests.oracle.twin_launch import Launch, LoadedTwin

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
# Alike but for what a compiler numbers through a module.
TWICE = """.weak .func (.param .b32 out) twice(.param .b32 in)
{{
.reg .f32 %f<3>; .reg .pred %p;
ld.param.f32 %f0, [in];
setp.lt.f32 %p, %f0, 0f00000000;
@%p bra $L__BB{number}_1;
add.f32 %f0, %f0, %f0;
$L__BB{number}_1:
st.param.f32 [out], %f0;
ret;
}}
"""
FIRST = HEAD + """
.visible .global .align 4 .f32 weights[4] = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};
.visible .const .align 4 .f32 bias[2] = {0f3F000000, 0f41200000};
.global .align 4 .b8 $str[4] = {1, 2, 3, 0};
.visible .func (.param .b32 out) mixed(.param .b32 a, .param .b32 b)
{
.reg .f32 %f<6>; .reg .u64 %d; .reg .u32 %r;
ld.param.f32 %f0, [a]; ld.param.f32 %f1, [b];
mul.f32 %f2, %f0, %f1;
mov.u64 %d, $str; ld.global.u8 %r, [%d+1]; cvt.rn.f32.u32 %f3, %r;
add.f32 %f4, %f2, %f3;
st.param.f32 [out], %f4;
ret;
}
.visible .func (.param .b32 out) weighing(.param .b32 in)
{
.reg .f32 %f<3>; .reg .u64 %d;
ld.param.f32 %f0, [in]; mov.u64 %d, weights; ld.global.f32 %f1, [%d]; add.f32 %f0, %f0, %f1;
st.param.f32 [out], %f0;
ret;
}
""" + TWICE.format(number=3)  # fmt: skip
SECOND = HEAD + """
.extern .global .align 4 .f32 weights[4];
.extern .const .align 4 .f32 bias[2];
.extern .func (.param .b32 out) mixed(.param .b32 a, .param .b32 b);
.extern .func (.param .b32 out) weighing(.param .b32 in);
.extern .func (.param .b32 out) nowhere(.param .b32 in);
.global .align 4 .u32 count = 5;
""" + TWICE.format(number=0) + """
.visible .entry k(.param .u64 p)
{
.reg .f32 %f<6>; .reg .u64 %d<6>; .reg .u32 %r<6>;
ld.param.u64 %d0, [p]; cvta.to.global.u64 %d0, %d0;
mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 3; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
ld.global.f32 %f0, [%d0];
mov.u64 %d2, weights; mul.wide.u32 %d3, %r1, 4; add.u64 %d2, %d2, %d3; ld.global.f32 %f1, [%d2];
{ .param .b32 a; .param .b32 b; .param .b32 got;
st.param.f32 [a], %f0; st.param.f32 [b], %f1; call (got), mixed, (a, b); ld.param.f32 %f2, [got]; }
{ .param .b32 given; .param .b32 got; st.param.f32 [given], %f2; call (got), twice, (given); ld.param.f32 %f3, [got]; }
ld.const.f32 %f4, [bias+4]; add.f32 %f3, %f3, %f4;
atom.global.add.u32 %r2, [count], 1;
st.global.f32 [%d0], %f3;
ret;
}
.visible .entry uses(.param .u64 p)
{
.reg .f32 %f; .reg .u64 %d; ld.param.u64 %d, [p];
{ .param .b32 given; .param .b32 got; st.param.f32 [given], 0f3F800000; call (got), CALLEE, (given);
ld.param.f32 %f, [got]; }
st.global.f32 [%d], %f;
ret;
}
"""  # fmt: skip


def program(*texts: str, **changes: object) -> Program:
    """Linked from these, as the image's symbols would say."""
    modules = [parse(text) for text in texts]
    bodies = [{function.name for function in module.functions if function.body} for module in modules]
    variables = [variable.name for module in modules for variable in module.variables
                 if "extern" not in variable.linkage]  # fmt: skip
    image = {"functions": set().union(*bodies), "own": bodies, "variables": variables}
    return Program(modules, **(image | changes))


def one_text(modules: list[Module]) -> str:
    """Modules linked by hand: of each name one definition, no declarations."""
    pieces: dict[str, str] = {}
    for module in modules:
        named = {statement: name for name, symbol in module.symbols.items() for statement in [symbol.statement]}
        for statement in module.statements:
            text = module.source(statement)
            if statement in named and not text.startswith(".extern"):
                pieces.setdefault(named[statement], text)
            else:
                assert statement.kind in {Kind.BLANK, Kind.VERSION, Kind.TARGET, Kind.ADDRESS_SIZE} or (
                    text.startswith((".extern", "//")) or text.endswith(")\n;")
                ), text
    return HEAD + "\n".join(pieces.values())


def skipped(twins: TwinProgram) -> dict[str, str]:
    assert {skip.reason for skip in twins.skipped} <= {Reason.UNSUPPORTED}
    return {skip.name: skip.detail for skip in twins.skipped}


READS = """
platform = "cuda"
[map.Reads]
type = "sum"
level = "thread"
size = 8
data = { reads = "u64" }
[probe.end]
position = "kernel"
level = "thread"
after = ".reg .u64 %seen; SAVE [ Reads ] { %seen };"
[probe.each]
position = "ld.global"
level = "thread"
before = "add.u64 %seen, %seen, 1;"
"""


@pytest.mark.parametrize("reads", ["nowhere", "in the kernel", "in both"])
def test_a_twin_computes_what_the_linked_original_computes(reads, block_sched, tmp_path):
    """reads: counts loads, in the kernel alone or in the other module's function too."""
    (tmp_path / "reads.toml").write_text(READS)
    probes = load_probe_file(tmp_path / "reads.toml") if reads != "nowhere" else block_sched
    first = FIRST.replace("ld.global.u8 %r, [%d+1];", "mov.u32 %r, 2;") if reads == "in the kernel" else FIRST
    whole = program(first, SECOND.replace("CALLEE", "twice"))
    twins = probe_program(whole, probes, kernels={"k": 1})
    assert [twin.name for twin in twins.kernels] == ["k"]
    (twin,) = twins.kernels
    assert twin.variables == ("bias", "count", "weights")
    assert sorted(twin.calls) == ["mixed", "twice"]
    texts = twins.render()
    assert list(texts) == [0, 1]
    assert "mixed" in texts[0]
    assert "weighing" not in texts[0]
    assert "weights" not in texts[0]
    assert "$str" in texts[0]

    def run(twinned: bool) -> tuple[bytes, bytes, dict]:
        device = Device()
        original = device.load(one_text(list(whole.modules)))
        place = device.allocate(64 * 4)
        device.write(place, np.linspace(-3, 5, 64, dtype=np.float32))
        launch = Launch((1, 1, 1), (64, 1, 1), struct.pack("<Q", place))
        views = {}
        if twinned:
            module = device.load(one_text([parse(text) for text in texts.values()]))
            views = LoadedTwin(twin, module, original.variables).launch(device, launch)
        else:
            device.launch(original.functions["k"], launch.grid, launch.block, launch.parameters)
        return device.read(place, 64 * 4), device.read(original.variables["count"][0], 4), views

    results, count, _ = run(False)
    twin_results, twin_count, views = run(True)
    assert twin_results == results
    assert twin_count == count == struct.pack("<I", 5 + 64)
    given = np.linspace(-3, 5, 64, dtype=np.float32)
    mixed = given * np.tile(np.array([1, 2, 3, 4], np.float32), 16) + np.float32(2)
    expected = np.where(mixed < 0, mixed, mixed + mixed) + np.float32(10)
    assert np.array_equal(np.frombuffer(results, np.float32), expected)
    if reads == "in both":
        assert ".visible .func (.param .b32 out) mixed__neutrino_k__0(" in texts[0]
        assert ".extern .func (.param .b32 out) mixed__neutrino_k__0(" in texts[1]
    if reads != "nowhere":
        assert views["Reads"].total() == {"reads": (2 if reads == "in the kernel" else 3) * 64}


def test_what_cannot_be_taken_along(block_sched):
    whole = program(FIRST, SECOND.replace("CALLEE", "nowhere"))
    assert skipped(probe_program(whole, block_sched, kernels={"uses": 1})) == {
        "uses": "it calls the external function nowhere"
    }


def test_variables_of_functions(block_sched):
    """A function of another module names a variable, which reaches it by the state."""
    twins = probe_program(program(FIRST, SECOND.replace("CALLEE", "weighing")), block_sched, kernels={"uses": 1})
    (twin,) = twins.kernels
    assert twin.variables == ("weights",)
    texts = twins.render()
    assert "weighing__neutrino_uses" in texts[1]
    assert not any(re.search(r"\bweights\b", text) for text in texts.values())


def test_templates_must_be_alike(block_sched):
    text = SECOND.replace("CALLEE", "twice")
    assert probe_program(program(FIRST, text), block_sched, kernels={"uses": 1}).kernels
    different = FIRST.replace("add.f32 %f0, %f0, %f0", "mul.f32 %f0, %f0, %f0")
    assert skipped(probe_program(program(different, text), block_sched, kernels={"uses": 1})) == {
        "uses": "it calls the function twice, which translation units define differently"
    }
    none_own = program(FIRST, text, own=[{"mixed"}, set()])
    assert skipped(probe_program(none_own, block_sched, kernels={"uses": 1})) == {
        "uses": "it calls the function twice, and what was linked is another of that name"
    }


def test_a_function_of_another_module_must_be_in_the_image(block_sched):
    whole = program(FIRST, SECOND, functions={"twice"})
    assert skipped(probe_program(whole, block_sched, kernels={"k": 1})) == {
        "k": "it calls the function mixed, which the linked code does not have"
    }


def test_pointers_to_functions_need_all_modules(block_sched):
    pointer = """
.visible .entry points(.param .u64 p)
{
.reg .u64 %d<3>; .reg .f32 %f; ld.param.u64 %d0, [p];
mov.u64 %d1, mixed;
{ .param .b32 a; .param .b32 b; .param .b32 got; st.param.f32 [a], 0f3F800000; st.param.f32 [b], 0f3F800000;
prototype: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
call (got), %d1, (a, b), prototype; ld.param.f32 %f, [got]; }
st.global.f32 [%d0], %f;
ret;
}
"""
    text = SECOND + pointer
    assert probe_program(program(FIRST, text), block_sched, kernels={"points": 1}).kernels
    missing = "no unit in the file has the PTX that defines other"
    partly = program(FIRST, text, missing=missing)
    assert skipped(probe_program(partly, block_sched, kernels={"points": 1})) == {
        "points": f"it calls functions by pointers, and {missing}"
    }
    taken = FIRST + ".visible .global .u64 table[1] = {twice};\n"
    assert skipped(probe_program(program(taken, text), block_sched, kernels={"points": 1})) == {
        "points": "it calls functions by pointers that come from outside the kernel (twice may be one)"
    }


def test_a_damaged_module_costs_its_own_kernels_only(block_sched):
    broken = FIRST.replace(".target sm_80\n", "") + ".visible .entry other(.param .u64 p) { ret; }\n"
    twins = probe_program(program(broken, SECOND), block_sched, kernels={"other": 0, "k": 1})
    assert set(skipped(twins)) == {"other"}
    assert "no .target" in skipped(twins)["other"]
    assert [twin.name for twin in twins.kernels] == ["k"]


def test_shape_is_what_is_computed():
    def of(text: str) -> str:
        module = parse(HEAD + text)
        return normalized(module, module.functions[0])

    plain = TWICE.format(number=1)
    assert of(plain) == of(TWICE.format(number=17))
    assert of(plain) == of(plain.replace("ret;", "// done\n\t.loc 1 7 3\n\tret;"))
    assert of(plain) != of(plain.replace("%f0, %f0, %f0", "%f0, %f0, %f1"))
    assert of(plain) != of(plain.replace("twice", "thrice"))


@pytest.mark.parametrize(("linkage", "alike"), [("", False), (".visible ", True)])
def test_functions_are_compared_with_what_only_their_module_reaches(linkage: str, alike: bool) -> None:
    """A helper of each module's own, and one that the device linker looks up by its name."""
    texts = [
        HEAD
        + f"{linkage}.func helper() {{ .reg .b32 %r; mov.b32 %r, {value}; ret; }}\n"
        + ".func between() { call helper; ret; }\n.weak .func both() { call between; ret; }\n"
        for value in (5, 7)
    ]
    found = set()
    for text in texts:
        module = parse(text)
        (both,) = [function for function in module.functions if function.name == "both"]
        found.add(normalized_with_callees(Linkage(module), both))
    assert (len(found) == 1) is alike
