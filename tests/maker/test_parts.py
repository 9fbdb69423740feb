"""The twins of a big module in several images: which goes where, and that each image is whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.reasons import Reason
from neutrino.backend import ptx_parts as parts
from neutrino.backend.ptx_parts import split
from neutrino.errors import ToolError
from neutrino.fatbin import build_container, build_entry
from neutrino.fatbin.image import ImageKind
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import Entry, read_entry
from neutrino.verification import load_probes

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
SHARED = """.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 $str[6] = {104, 97, 108, 108, 111, 0};
.visible .global .align 8 .u64 tally;
.func (.param .f32 result) half(.param .f32 value)
{
.reg .f32 %f<3>;
ld.param.f32 %f0, [value];
mul.f32 %f1, %f0, 0f3F000000;
st.param.f32 [result], %f1;
ret;
}
"""


def kernel(name: str, statements: int = 1, body: str = "") -> str:
    lines = "\n".join(f"add.u32 %r0, %r0, {number + 1};" for number in range(statements))
    return (
        f".visible .entry {name}(.param .u64 out)\n{{\n.reg .u32 %r<2>; .reg .u64 %d<4>; .reg .f32 %f<4>;\n"
        f"ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x;\n{lines}\n{body}st.global.u32 [%d0], %r0;\nret;\n}}\n"
    )


CALLS = """cvt.rn.f32.u32 %f0, %r0;
{ .param .f32 value; .param .f32 result; st.param.f32 [value], %f0;
call (result), half, (value); ld.param.f32 %f1, [result]; }
cvt.rzi.u32.f32 %r0, %f1;
"""
PRINTS = """mov.u64 %d1, $str; cvta.global.u64 %d2, %d1; mov.u64 %d3, 0;
{ .param .b64 format; .param .b64 arguments; .param .b32 status;
st.param.b64 [format], %d2; st.param.b64 [arguments], %d3;
call (status), vprintf, (format, arguments); ld.param.b32 %r1, [status]; }
"""
COUNTS = "mov.u64 %d1, tally; atom.global.add.u64 %d2, [%d1], 1;\n"
MODULE = HEAD + SHARED + "".join(
    kernel(f"k{number}", 40, body) for number, body in enumerate(2 * ["", CALLS, PRINTS, COUNTS, CALLS + PRINTS])
)  # fmt: skip


def small(part: int = 1, common: int = 0) -> object:
    return mock.patch.multiple(parts, PART_SIZE=part, _TIMES_COMMON=common)


def twins(text: str) -> TwinModule:
    return probe_module(parse(text), load_probes(["block_sched"]))


def patched(text: str, assembler: Assembler, folder: Path | None = None, *, is_compiled: bool = True) -> Entry:
    """is_compiled: whether the image has machine code. Else originals are assembled in any case."""
    code = [build_entry(ImageKind.CUBIN, assembler.assemble(text, "sm_80").cubin, "sm_80")] if is_compiled else []
    image = build_container([*code, build_entry(ImageKind.PTX, text.encode(), "sm_80", version=(8, 0))])
    data = patch_image(
        image, load_probes(["block_sched"]), "sm_80", selection=Selection(), assembler=assembler, key=bytes(32),
        save_temps=folder,
    )  # fmt: skip
    return read_entry(data, "entry")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=25), st.integers(1, 30_000), st.integers(0, 8))
def test_every_kernel_is_in_one_part(sizes: list[int], part: int, common: int) -> None:
    module = twins(HEAD + "".join(kernel(f"k{number}", size) for number, size in enumerate(sizes)))
    with small(part, common):
        found = split(module.module, module.kernels)
    assert [twin for one in found for twin in one] == list(module.kernels)
    assert all(found)
    total = sum(len(twin.probed_text) for twin in module.kernels)
    assert len(found) <= max(1, total // part)
    largest = max(len(twin.probed_text) for twin in module.kernels)
    if len(found) > 1:
        # No part is larger than its share and the kernels that stick out of it.
        share = total / (total // max(part, 1))
        assert max(sum(len(twin.probed_text) for twin in one) for one in found) <= max(share, part) * 2 + largest * 2


def test_a_small_module_has_one_part() -> None:
    module = twins(MODULE)
    assert split(module.module, module.kernels) == [module.kernels]


def test_a_module_with_debug_sections_is_not_cut() -> None:
    module = twins(MODULE + ".section .debug_info { .b8 1 }\n")
    with small():
        assert split(module.module, module.kernels) == [module.kernels]


def test_what_parts_share_bounds_their_number() -> None:
    module = twins(MODULE)
    with small(1, 2):
        found = split(module.module, module.kernels)
    common = len(MODULE) - sum(len(module.module.source(twin.statement)) for twin in module.kernels)
    assert 1 < len(found) <= sum(len(twin.probed_text) for twin in module.kernels) // (2 * common)


def test_twins_are_the_same_in_parts(assembler: Assembler, tmp_path: Path) -> None:
    whole = patched(MODULE, assembler)
    with small():
        cut = patched(MODULE, assembler, tmp_path)
    assert len(whole.images) == 1
    assert len(cut.images) >= 10
    assert [replace(entry, image=0, capped=0) for entry in cut.kernels] == [
        replace(entry, capped=0) for entry in whole.kernels
    ]
    cubins = [read_cubin(image, "twins") for image in cut.images]
    for entry in cut.kernels:
        assert entry.reason is Reason.PROBED
        holders = [index for index, cubin in enumerate(cubins) if entry.twin in cubin.kernels]
        assert holders == sorted({entry.image, entry.capped or entry.image})
        manifest = json.loads(entry.files["manifest.json"])
        assert manifest["registers"]["twin"] == cubins[entry.image].kernels[entry.twin].registers
    stages = {path.name for path in tmp_path.glob("*/*")}
    assert {"probed-0.ptx", "probed-9.cubin", "original-3.cubin", "kernels.txt"} <= stages


def test_a_kernel_that_is_named_elsewhere_is_not_cut_off(assembler: Assembler) -> None:
    text = MODULE + ".visible .global .align 8 .u64 table[1] = {k3};\n"
    whole = patched(text, assembler, is_compiled=False)
    with small():
        assert patched(text, assembler, is_compiled=False) == whole
    assert {entry.reason for entry in whole.kernels} == {Reason.PROBED}


class Ended(Assembler):
    """An assembler that is ended by somebody, from the third text on."""

    asked: list[str] = []  # noqa: RUF012

    def assemble(self, text: str | bytes, arch: str, options: Sequence[str] | str = (), **more: float) -> Assembled:
        with self.slots:
            self.asked.append(str(text))
            if len(self.asked) > 3:
                raise ToolError(["ptxas"], -15, "ended")
        return Assembler(self.path, self.version, self.identity).assemble(text, arch, options, **more)


def test_nothing_begins_after_a_part_that_failed(assembler: Assembler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    ended = Ended(assembler.path, assembler.version, assembler.identity)
    Ended.asked.clear()
    with small(), pytest.raises(ToolError, match="ended"):
        patched(MODULE, ended)
    assert len(Ended.asked) < 20
