"""Shipped probes in kernels of AMD's record what an independent trace of the launch says; and the trace notices."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import pytest

from neutrino.resources import shipped_probes
from tests.emulator.gcn import judge
from tests.gcn.exact import Judge, Outcome, Work, portable_probes
from tests.gcn.executed import access_of
from tests.gcn.objects import need_clang, need_llvm

BUILDS = {"gfx942": (), "gfx1100 wave64": ("-mwavefrontsize64",), "gfx1030": ()}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    need_clang()
    need_llvm()
    folder = tmp_path_factory.mktemp("traced")
    return {
        build: judge.compile_for_gpu(folder, build.split()[0], ("-O2", *options)) for build, options in BUILDS.items()
    }


def judged(data: bytes, kernel: str, *probes: str) -> dict[str, Outcome]:
    one = Judge(data, kernel, Work((2, 1, 1), (judge.BLOCK, 1, 1), judge.inputs(5), racing=True))
    return {probe: one.judge(probe, portable_probes()[probe]) for probe in probes}


@pytest.mark.parametrize(
    ("build", "kernel", "probes"),
    [
        ("gfx942", "binned", ("atomic_contention", "smem_bank_conflict")),
        ("gfx942", "turned", ("coalescing", "smem_bank_conflict")),
        ("gfx1100 wave64", "counted_together", ("atomic_contention", "gmem_bytes", "dmat")),
        ("gfx1100 wave64", "bytes_shared", ("coalescing", "smem_bank_conflict")),
        ("gfx1030", "binned", ("atomic_contention", "hot_lines", "reuse_distance")),
        ("gfx1030", "left_early", ("work_per_warp", "inst_count", "block_sched", "launch_skew", "warp_timeline")),
    ],
)
def test_probes_record_what_was_executed(
    objects: dict[str, bytes], build: str, kernel: str, probes: tuple[str, ...]
) -> None:
    for probe, outcome in judged(objects[build], kernel, *probes).items():
        assert outcome.state in ("equal", "facts"), (probe, outcome.why)
        assert outcome.records


def test_files_for_amd_differ_in_what_their_head_says() -> None:
    """Where sets of lanes had 32 bits, half of a wave's lanes were taken for leaders of their own."""
    shipped, for_amd = shipped_probes(), shipped_probes("hip")
    assert shipped.keys() == for_amd.keys()
    own = {name for name in shipped if shipped[name] != for_amd[name]}
    assert own == {"atomic_contention", "coalescing", "latency", "smem_bank_conflict"}
    lines = [probes["atomic_contention"].read_text().splitlines() for probes in (shipped, for_amd)]
    changed = [line for line in difflib.ndiff(*lines) if line[0] in "+-"]
    assert sorted(changed) == [
        "+     return lanes & nl.lanemask_lt == 0", "+ def is_first(lanes):",
        "-     return (lanes & ((nl.u32(1) << nl.lane) - 1)) == 0", "- def is_first(lanes: nl.u32):",
    ]  # fmt: skip
    # coalescing matches all lanes there, in each of them: shuffles are no cheaper. Its maps and probes are the same.
    texts = [probes["coalescing"].read_text().replace('"group"', '"thread"') for probes in (shipped, for_amd)]
    heads = [re.findall(r"^@.*|^class .*|^    \w+: nl\.\w+|^PER_SITE.*", text, re.MULTILINE) for text in texts]
    assert heads[0] == heads[1]
    assert len(heads[0]) > 20


def test_the_trace_notices_a_wrong_count(objects: dict[str, bytes], tmp_path: Path) -> None:
    """The file for NVIDIA's GPUs, which takes lanes from 32 on for the first of their own, in a wave of 64 lanes."""
    from neutrino.verification import load_probes

    one = Judge(objects["gfx942"], "binned", Work((1, 1, 1), (judge.BLOCK, 1, 1), judge.inputs(5)))
    path = tmp_path / "atomic_contention.py"
    path.write_text(shipped_probes()["atomic_contention"].read_text())
    wrong = one.judge("atomic_contention", load_probes([str(path)], platform="hip"))
    assert wrong.state == "wrong"
    assert "Atomics" in wrong.why
    assert one.judge("atomic_contention", portable_probes()["atomic_contention"]).state == "equal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("global_load_dwordx2 v[0:1], v[2:3], off", ("load", "global", 8, False)),
        ("ds_read2st64_b64 v[0:3], v4 offset1:1", ("load", "shared", 16, False)),
        ("ds_add_rtn_u32 v0, v1, v2", ("atomic", "shared", 4, True)),
        ("global_atomic_cmpswap_x2 v[0:1], v2, v[4:7], s[0:1] glc", ("atomic", "global", 8, True)),
        ("global_load_lds_dwordx4 v[0:1], off", ("copy", "global", 16, False)),
        ("ds_write_b8_d16_hi v0, v1", ("store", "shared", 1, False)),
        ("s_load_b512 s[0:15], s[0:1], 0x0", ("load", "scalar", 64, False)),
        ("ds_bpermute_b32 v0, v1, v2", None),
        ("buffer_gl0_inv ", None),
        ("s_waitcnt vmcnt(0)", None),
    ],
)
def test_accesses_by_their_text(text: str, expected: Any) -> None:
    assert access_of(text) == expected

