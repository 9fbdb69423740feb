"""Libraries with device code of a chosen form, made by the machine's C compiler and an assembler of PTX."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.toolchain.ptxas import Assembler

SCALE = """\
.version 8.0
.target {arch}
.address_size 64
.visible .entry scale(.param .u64 data, .param .u32 count)
{{
	.reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>; .reg .f32 %f<3>;
	ld.param.u64 %d1, [data];
	ld.param.u32 %r1, [count];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p, %r2, %r1;
	@%p bra DONE;
	cvta.to.global.u64 %d2, %d1;
	mul.wide.u32 %d3, %r2, 4;
	add.s64 %d2, %d2, %d3;
	ld.global.f32 %f1, [%d2];
	add.f32 %f2, %f1, 0f3F800000;
	st.global.f32 [%d2], %f2;
DONE:
	ret;
}}
.visible .entry clear(.param .u64 data)
{{
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [data];
	cvta.to.global.u64 %d2, %d1;
	st.global.u32 [%d2], 0;
	ret;
}}
"""
STORE = """\
.version 8.0
.target {arch}
.address_size 64
.visible .entry store(.param .u64 data)
{{
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [data];
	cvta.to.global.u64 %d2, %d1;
	st.global.u32 [%d2], 7;
	ret;
}}
"""


def fatbin(
    assembler: Assembler, text: str, *, cubins: Sequence[str] = (), ptx: Sequence[str] = (), options: str = ""
) -> bytes:
    """A container of text's machine code for some architectures, and of text itself for some."""
    entries = [
        build_entry(ImageKind.CUBIN, assembler.assemble(text.format(arch=arch), arch, options).cubin, arch)
        for arch in cubins
    ]
    entries += [
        build_entry(ImageKind.PTX, text.format(arch=arch).encode(), arch, version=(8, 0), options=options)
        for arch in ptx
    ]
    return build_container(entries)


def link(target: Path, containers: Sequence[bytes], *flags: str, section: str = ".nv_fatbin") -> Path:
    """A shared library that holds containers, each with a wrapper, as nvcc lays them out."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for number, container in enumerate(containers):
        blob = target.with_suffix(f".{number}.fatbin")
        blob.write_bytes(container)
        lines += [
            f'\t.section {section}, "a"', "\t.balign 8", f"fatbin{number}:", f'\t.incbin "{blob}"',
            '\t.section .nvFatBinSegment, "aw"', "\t.balign 8",
            "\t.long 0x466243b1, 1", f"\t.quad fatbin{number}, 0",
        ]  # fmt: skip
    source = target.with_suffix(".S")
    lines += ["\t.text", "\t.globl answer", "answer:", "\tret", '\t.section .note.GNU-stack, "", @progbits', ""]
    source.write_text("\n".join(lines))
    argv = [compiler, "-shared", "-fPIC", "-nostartfiles", "-o", str(target), str(source), *flags]
    subprocess.run(argv, check=True, capture_output=True)
    return target
