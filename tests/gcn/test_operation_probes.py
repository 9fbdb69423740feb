"""Shipped probes of results, barriers and matrix instructions in AMD's kernels: records are what a trace of the same
instructions says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator.gcn import judge
from tests.gcn.objects import compiled, need_clang, need_llvm
from tests.gcn.operation_trace import Probed, probed
from tests.gcn.probe_model import Shape

ARCHS = ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
FLAT = Shape((2, 1, 1), (128, 1, 1))

WRITTEN = """
typedef unsigned u32; typedef float f32; typedef double f64;
typedef float pair __attribute__((ext_vector_type(2)));
__attribute__((global)) void written(const u32 *in, f32 *out) {
  u32 i = __builtin_amdgcn_workitem_id_x() + __builtin_amdgcn_workgroup_id_x() * 128;
  u32 a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], d = a ^ b;
  pair p = {__builtin_bit_cast(f32, a), __builtin_bit_cast(f32, b)}, q = {__builtin_bit_cast(f32, c), 2.5f}, r = q;
#define DO(text) asm volatile(text : "+v"(d) : "v"(a), "v"(b), "v"(c));
#define PACKED(text) asm volatile(text : "+v"(r) : "v"(p), "v"(q)); d ^= (u32)r.x ^ (u32)r.y;
INSTRUCTIONS
  ((u32 *)out)[i] = d;
}
"""
COMMON = (
    "v_add_f16 %0, %1, %2", "v_fma_f16 %0, %1, %2, %3 op_sel:[0,1,0,1]", "v_fma_f16 %0, |%1|, -%2, %3",
    "v_fma_mixlo_f16 %0, %1, %2, %3 op_sel:[0,0,1] op_sel_hi:[1,0,1]",
    "v_fma_mixhi_f16 %0, %1, %2, %3 op_sel_hi:[0,1,0]", "v_fma_mix_f32 %0, %1, %2, %3 op_sel:[1,0,0] op_sel_hi:[1,1,0]",
    "v_pk_add_f16 %0, %1, %2", "v_pk_fma_f16 %0, %1, %2, %3 op_sel:[1,0,0] neg_lo:[0,1,0]", "v_cvt_f16_f32 %0, %1",
    "v_mul_f32 %0, %1, %2 clamp", "v_fma_f32 %0, %1, %2, %3 mul:4", "v_mul_legacy_f32 %0, %1, %2", "v_exp_f16 %0, %1",
    "v_add_f32_dpp %0, %1, %2 row_shr:3 row_mask:0xf bank_mask:0xf bound_ctrl:1", "v_sub_f16 %0, %1, %2",
    "v_mul_f16 %0, %1, %2", "v_subrev_f32 %0, %1, %2", "v_fmac_f32 %0, %1, %2",
)
OTHERS = {
    "gfx90a": ("v_mad_f32 %0, %1, %2, %3", "v_mac_f32 %0, %1, %2", "v_madmk_f32 %0, %1, 0x40490fdb, %2",
               "v_cvt_pkrtz_f16_f32 %0, %1, %2",
               "v_add_f16_sdwa %0, %1, %2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:WORD_1",
               "v_mul_f16_sdwa %0, %1, %2 dst_sel:WORD_0 dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_1"),
    "gfx942": ("v_fmamk_f32 %0, %1, 0x40490fdb, %2", "v_fmaak_f32 %0, %1, %2, 0x40490fdb"),
    "gfx1030": ("v_fmac_f16 %0, %1, %2", "v_fmaak_f16 %0, %1, %2, 0x4249", "v_cvt_pkrtz_f16_f32 %0, %1, %2"),
    "gfx1100": ("v_fmac_f16 %0, %1, %2", "v_cvt_pk_rtz_f16_f32 %0, %1, %2"),
    "gfx1201": ("v_fmac_f16 %0, %1, %2",),
}  # fmt: skip
PACKED = ("v_pk_add_f32 %0, %1, %2", "v_pk_fma_f32 %0, %1, %2, %0", "v_pk_mul_f32 %0, %1, %2 op_sel:[1,0]")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    need_clang()
    need_llvm()
    folder = tmp_path_factory.mktemp("judged")
    return {arch: judge.compile_for_gpu(folder, arch, ("-O2",)) for arch in ARCHS}


def floats(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Words of which most are floats near 1, and some are NaN, infinite or 0, as f32 and as f16."""
    random = np.random.default_rng(seed)
    words = random.integers(0x3E000000, 0x41800000, count, np.uint32) | random.integers(0, 2, count, np.uint32) << 31
    special = np.array(
        [0, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7C007C00, 0x7E003C00, 0xFC00FE00, 0x80000000], np.uint32
    )  # fmt: skip
    return np.where(random.random(count) < 0.1, special[random.integers(0, special.size, count)], words)


def written(arch: str, folder: Path) -> Path:
    """A kernel of instructions that compilers rarely write."""
    lines = [f'  DO("{text}")' for text in (*COMMON, *OTHERS[arch])]
    if arch.startswith("gfx9"):
        lines += [f'  PACKED("{text}")' for text in PACKED]
    source = WRITTEN.replace("INSTRUCTIONS", "\n".join(lines))
    return compiled(source, folder, f"--offload-arch={arch}", "-O1")


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("probe", ["value_watch", "nan_finder"])
def test_results_in_every_form(arch: str, probe: str, tmp_path: Path) -> None:
    need_llvm()
    data = written(arch, tmp_path).read_bytes()
    arguments = (floats(7, 3 * 256), np.zeros(256, np.float32))
    found = probed(data, arch, "_Z7writtenPKjPf", probe, FLAT, arguments, tmp_path / "run")
    assert found.same
    expected = found.trace.watched()
    assert expected[0] >= 256 * (len(COMMON) - 1)
    assert expected[1]
    if probe == "value_watch":
        assert found.watched() == expected
    else:
        assert found.first() == {offset: count for offset, count in found.trace.first.items() if count}


@pytest.mark.parametrize(
    ("arch", "probe", "name"),
    [
        ("gfx90a", "nan_finder", "float_quotients"), ("gfx1030", "nan_finder", "float_quotients"),
        ("gfx942", "nan_finder", "double_quotients"), ("gfx1201", "nan_finder", "double_quotients"),
        ("gfx942", "value_watch", "half_arithmetic"), ("gfx1100", "value_watch", "half_arithmetic"),
    ],
)  # fmt: skip
def test_results_of_compiled_kernels(
    objects: dict[str, bytes], arch: str, probe: str, name: str, tmp_path: Path
) -> None:
    found = probed(objects[arch], arch, name, probe, FLAT, judge.inputs(5), tmp_path)
    assert found.same
    assert found.trace.results
    if probe == "value_watch":
        assert found.watched() == found.trace.watched()
    else:
        assert found.first() == {offset: count for offset, count in found.trace.first.items() if count}


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_the_first_nan_is_where_it_comes_from(arch: str, tmp_path: Path) -> None:
    data = written(arch, tmp_path).read_bytes()
    lanes = 64 if arch.startswith("gfx9") else 32
    words = np.full(3 * lanes, 0x3F800000, np.uint32)
    place = int(np.random.default_rng(11).integers(0, words.size))
    words[place] = 0x7FC00000
    one_wave = Shape((1, 1, 1), (lanes, 1, 1))
    arguments = (words, np.zeros(lanes, np.float32))
    found = probed(data, arch, "_Z7writtenPKjPf", "nan_finder", one_wave, arguments, tmp_path / "run")
    rows = found.views["FirstNaN"].valid()
    earliest = rows[np.argmin(rows["min"])]
    assert found.sites[int(earliest["key"])] == found.trace.order[0]
    assert found.first() == {offset: count for offset, count in found.trace.first.items() if count}


def _barriers(found: Probed) -> int:
    assert found.same
    assert found.waits() == found.expected_waits()
    return sum(count for count, *_ in found.waits().values())


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_at_barriers(objects: dict[str, bytes], arch: str, tmp_path: Path) -> None:
    assert _barriers(probed(objects[arch], arch, "scanned", "barrier_wait", FLAT, judge.inputs(5), tmp_path))
