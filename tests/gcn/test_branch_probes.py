"""Shipped probes of branches in AMD's kernels: which lanes reach a branch, and which of them take it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neutrino.gcn.analysis.branch_decisions import By, NoDecisionError, decision_of, is_conditional
from neutrino.gcn.code import Function, decode
from tests.emulator.gcn import judge
from tests.gcn.branch_trace import BranchTrace
from tests.gcn.objects import need_clang, need_llvm
from tests.gcn.operation_trace import Probed, probed
from tests.gcn.probe_model import Shape

FLAT = Shape((2, 1, 1), (128, 1, 1))
BUILDS = {
    "gfx90a": ("-O2",), "gfx942": ("-O2",), "gfx1030": ("-O2",), "gfx1100": ("-O0",), "gfx1201": ("-O2",),
    "gfx1100-wave64": ("-O2", "-mwavefrontsize64"),
}  # fmt: skip
WAVE64, WAVE32 = "gfx942", "gfx1100"


def _run(build: str, name: str, probe: str, folder: Path) -> Probed:
    need_clang()
    need_llvm()
    arch = build.partition("-")[0]
    data = judge.compile_for_gpu(folder, arch, BUILDS[build])
    found = probed(data, arch, name, probe, FLAT, judge.inputs(5), folder / "run", follow=BranchTrace)
    assert found.same
    return found


@pytest.mark.parametrize(("build", "name"), zip(BUILDS, ["common_divisor", "switched"] * 3, strict=True))
def test_branches_that_lanes_reach(build: str, name: str, tmp_path: Path) -> None:
    found = _run(build, name, "branch_divergence", tmp_path)
    (row,) = found.views["BranchDivergence"].valid()
    recorded = tuple(int(row[field]) for field in ("branches", "diverged", "taken", "passed"))
    assert recorded == found.trace.counted()
    assert all(recorded)


@pytest.mark.parametrize("build", ["gfx942", "gfx1201"])
def test_what_the_first_lane_of_each_wave_has_reached(build: str, tmp_path: Path) -> None:
    found = _run(build, "scanned", "program_progress", tmp_path)
    view = found.views["ProgramProgress"]
    places, sites = view.places(), view.valid()["site"]
    recorded: dict[tuple[int, int], list[int]] = {}
    for index in np.lexsort((places["order"], places["warp"], places["block"])):
        if int(sites[index]) in found.sites:
            key = int(places["block"][index]), int(places["warp"][index])
            recorded.setdefault(key, []).append(found.sites[int(sites[index])])
    assert recorded == {(group[0], wave): steps for (group, wave), steps in found.trace.steps.items()}
    assert sum(map(len, recorded.values())) > 60


def _decoded(lines: str, processor: str) -> Function:
    llvm = need_llvm()
    code = b"".join(llvm.assemble(line.strip(), processor) for line in lines.strip().split(";"))
    return decode([("k", 0, code, True, 64 if processor == WAVE64 else 32)], processor, "", llvm).functions[0]


@pytest.mark.parametrize(
    ("processor", "lines", "by", "place", "lanes", "is_inverted", "is_taken"),
    [
        (WAVE64, "s_cbranch_scc1 0", By.SCC, 0, "", False, True),
        (WAVE64, "s_cbranch_vccz 0", By.VCC, 0, "", False, False),
        (WAVE64, "s_and_saveexec_b64 s[0:1], vcc; s_xor_b64 s[0:1], exec, s[0:1]; s_cbranch_execz 0", By.LANES, 0,
         "vcc", False, False),
        (WAVE32, "s_and_not1_b32 exec_lo, exec_lo, s4; s_cbranch_execnz 0", By.LANES, 0, "s4", True, True),
        (WAVE32, "s_and_b32 exec_lo, s4, exec_lo; s_nop 0; s_cbranch_execz 0", By.LANES, 0, "s4", False, False),
        (WAVE32, "s_mov_b32 s1, exec_lo; v_cmpx_gt_u32 v0, v1; s_cbranch_execz 0", By.COMPARISON, 1, "", False, False),
        (WAVE32, "s_mov_b32 s1, exec_lo; s_and_b32 s2, s1, s0; s_mov_b32 exec_lo, s2; s_cbranch_execz 0", By.LANES, 2,
         "s2", False, False),
        # All lanes meanwhile, and back.
        (WAVE32, "s_and_b32 s2, exec_lo, s0; s_or_saveexec_b32 s3, -1; s_mov_b32 exec_lo, s3; s_mov_b32 exec_lo, s2;"
         " s_or_saveexec_b32 s3, -1; s_mov_b32 exec_lo, s3; s_cbranch_execz 0", By.LANES, 3, "s2", False, False),
        # No lane leaves.
        (WAVE64, "s_nop 0; s_cbranch_execnz 0", By.ALL, 1, "", False, True),
        (WAVE64, "s_or_b64 exec, exec, s[2:3]; s_cbranch_execz 0", By.ALL, 1, "", False, False),
    ],
)  # fmt: skip
def test_where_lanes_part(
    processor: str, lines: str, by: By, place: int, lanes: str, is_inverted: bool, is_taken: bool
) -> None:
    rows = (function := _decoded(lines, processor)).instructions
    (branch,) = [row for row in rows if is_conditional(row.mnemonic)]
    found = decision_of(function, branch, 9 if processor == WAVE64 else 11)
    assert (found.by, found.place.offset, found.lanes, found.is_inverted, found.is_taken) == (
        by, rows[place].offset, lanes, is_inverted, is_taken,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("s_andn2_saveexec_b64 s[0:1], s[2:3]; s_cbranch_execz 0",
         "s_andn2_saveexec_b64 s[0:1], s[2:3] begins the other side of a branch before it"),
        ("s_or_saveexec_b64 s[0:1], s[2:3]; s_xor_b64 exec, exec, s[0:1]; s_cbranch_execz 0",
         "s_xor_b64 exec, exec, s[0:1] begins the other side of a branch before it"),
        ("s_mov_b64 exec, s[2:3]; s_cbranch_execz 0", "which lanes s_mov_b64 exec, s[2:3] takes out is not known"),
        # What was narrowed is of other lanes than those that are here now.
        ("s_and_b64 s[2:3], exec, s[4:5]; s_and_saveexec_b64 s[6:7], vcc; s_mov_b64 exec, s[2:3]; s_cbranch_execz 0",
         "which lanes s_and_b64 s[2:3], exec, s[4:5] takes out is not known"),
        ("s_and_b64 s[2:3], exec, s[4:5]; s_add_u32 s3, s3, 1; s_mov_b64 exec, s[2:3]; s_cbranch_execz 0",
         "which lanes s_mov_b64 exec, s[2:3] takes out is not known"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_told(lines: str, why: str) -> None:
    function = _decoded(lines, WAVE64)
    with pytest.raises(NoDecisionError) as error:
        decision_of(function, function.instructions[-1], 9)
    assert str(error.value) == why
