"""What cubins use, judged by ``cuobjdump -res-usage``: every figure of every function, and the order."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from fatbin_inputs import run
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.resource_usage import FunctionUsage, resource_usage

Figures = list[tuple[str, int]]

TEXTURES = """\
.version 8.6
.target {arch}, texmode_independent
.address_size 64
.visible .entry bound(.param .u64 out, .param .texref one, .param .texref two, .param .samplerref s, .param .surfref f)
{{
\t.reg .f32 %f<20>;
\t.reg .b64 %rd<4>;
\t.reg .b32 %r<10>;
\tld.param.u64 %rd1, [out];
\tmov.f32 %f1, 0f00000000;
\tmov.u32 %r1, 0;
\ttex.1d.v4.f32.f32 {{%f2, %f3, %f4, %f5}}, [one, s, {{%f1}}];
\ttex.1d.v4.f32.f32 {{%f6, %f7, %f8, %f9}}, [two, s, {{%f2}}];
\ttex.1d.v4.f32.f32 {{%f2, %f3, %f4, %f5}}, [one, s, {{%f6}}];
\tsuld.b.1d.b32.clamp %r2, [f, {{%r1}}];
\tst.global.f32 [%rd1], %f2;
\tst.global.u32 [%rd1 + 4], %r2;
\tret;
}}
.visible .entry unbound(.param .u64 out)
{{
\tret;
}}
"""
EVERYTHING = """\
.version 8.0
.target {arch}
.address_size 64
.global .align 4 .b8 table[1000];
.global .align 4 .u32 answer = 42;
.const .align 4 .b8 factors[400];
.func (.param .b32 result) nested(.param .b32 value)
{{
\t.local .align 4 .b8 room[96];
\t.reg .b32 %r<6>;
\t.reg .b64 %rd<4>;
\tld.param.u32 %r1, [value];
\tmov.u64 %rd1, room;
\tcvt.u64.u32 %rd2, %r1;
\tadd.u64 %rd3, %rd1, %rd2;
\tst.local.u32 [%rd1 + 8], %r1;
\tld.local.u32 %r2, [%rd3];
\tst.param.b32 [result], %r2;
\tret;
}}
.visible .entry uses_all(.param .u64 out)
{{
\t.shared .align 4 .b8 tile[512];
\t.reg .b32 %r<8>;
\t.reg .b64 %rd<8>;
\tld.param.u64 %rd1, [out];
\tmov.u32 %r1, %tid.x;
\tmov.u64 %rd2, tile;
\tst.shared.u32 [tile], %r1;
\tbar.sync 0;
\tld.shared.u32 %r2, [tile + 4];
\tld.const.u32 %r3, [factors + 40];
\tmov.u64 %rd3, table;
\tld.global.u32 %r4, [%rd3];
\tmov.u64 %rd4, answer;
\tld.global.u32 %r6, [%rd4];
\tadd.u32 %r2, %r2, %r3;
\tadd.u32 %r2, %r2, %r4;
\tadd.u32 %r2, %r2, %r6;
\t{{
\t.param .b32 given;
\t.param .b32 got;
\tst.param.b32 [given], %r2;
\tcall (got), nested, (given);
\tld.param.b32 %r5, [got];
\t}}
\tst.global.u32 [%rd1], %r5;
\tret;
}}
"""


def reported(cuobjdump: str, file: Path) -> tuple[Figures, list[tuple[str, Figures]]]:
    """What all functions have in common, and each function's figures, in the tool's order."""
    lines = run(cuobjdump, "-res-usage", file).splitlines()
    common: Figures = []
    functions = []
    for line, following in pairwise(lines):
        figures = [(key, int(value)) for key, value in re.findall(r"(\S+?):(\d+)", following)]
        if line.strip() == "Common:":
            common = figures
        elif named := re.fullmatch(r" *Function (\S+):", line):
            functions.append((named[1], figures))
    return common, functions


def figures(one: FunctionUsage) -> Figures:
    banks = [(f"CONSTANT[{bank}]", size) for bank, size in one.constants.items()]
    head = [("REG", one.registers), ("STACK", one.stack), ("SHARED", one.shared), ("LOCAL", one.local)]
    return [*head, *banks, ("TEXTURE", one.textures), ("SURFACE", one.surfaces), ("SAMPLER", one.samplers)]


def check(data: bytes, cuobjdump: str, file: Path) -> list[FunctionUsage]:
    file.write_bytes(data)
    common, functions = reported(cuobjdump, file)
    ours = resource_usage(data, str(file))
    banks = [(f"CONSTANT[{bank}]", size) for bank, size in ours.constants.items()]
    assert [("GLOBAL", ours.global_size), *banks] == common
    assert [one.name for one in ours.functions] == [name for name, _ in functions]
    for one, (name, theirs) in zip(ours.functions, functions, strict=True):
        if not one.kernel and theirs[0] == ("REG", 0):
            # It looks for a function's registers where toolkits before sm_90 put them.
            theirs = [("REG", one.registers), *theirs[1:]]
        assert figures(one) == theirs, name
    return list(ours.functions)


@pytest.mark.parametrize("build", ["default", "lineinfo", "debug", "relocatable", "whole-program"])
def test_all_that_cuobjdump_reports(build, fatbins, cuobjdump, tmp_path):
    checked: list[FunctionUsage] = []
    for image in read_file(fatbins[build])[0].images:
        if image.kind is ImageKind.CUBIN:
            checked += check(image.data, cuobjdump, tmp_path / "k.cubin")
    assert sum(one.kernel for one in checked) >= 9
    assert any(not one.kernel and one.registers for one in checked) == (build in ("relocatable", "debug"))


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("relocatable", [False, True])
def test_every_figure(relocatable, arch, ptxas, cuobjdump, tmp_path):
    text = EVERYTHING.format(arch=arch)
    (tmp_path / "k.ptx").write_text(text.replace(".version 8.0", ".version 8.8"))
    mode = ["-c"] if relocatable else []
    run(ptxas, f"-arch={arch}", *mode, tmp_path / "k.ptx", "-o", tmp_path / "made.cubin")
    functions = {
        one.name: one for one in check((tmp_path / "made.cubin").read_bytes(), cuobjdump, tmp_path / "k.cubin")
    }
    kernel = functions["uses_all"]
    assert kernel.kernel
    assert kernel.registers >= 8
    assert kernel.shared % 1024 == 512
    assert (kernel.stack >= 96) != relocatable
    assert kernel.constants[0] > 8
    if relocatable:
        assert not functions["nested"].kernel
        assert functions["nested"].registers > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_references(arch, ptxas, cuobjdump, tmp_path):
    """Textures and their like by name. cuobjdump stops counting at sm_90, 13.5 stops altogether."""
    (tmp_path / "t.ptx").write_text(TEXTURES.format(arch=arch))
    run(ptxas, f"-arch={arch}", tmp_path / "t.ptx", "-o", tmp_path / "t.cubin")
    usage = resource_usage((tmp_path / "t.cubin").read_bytes(), "t.cubin")
    counts = {one.name: (one.textures, one.surfaces, one.samplers) for one in usage.functions}
    assert counts == {"bound": (2, 1, 1), "unbound": (0, 0, 0)}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_cubins_raise_nothing_but_format_errors(cubins, data):
    content = bytearray(cubins[data.draw(st.sampled_from(sorted(cubins)))])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.sampled_from([len(content)]) | st.integers(0, len(content))) :]
    try:
        resource_usage(bytes(content), "damaged")
    except FormatError as error:
        if error.file != "damaged":
            raise AssertionError(error.file) from error
