"""Several shipped probes in one twin of AMD's: what each records is what an independent trace of the launch says."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.resources import shipped_probes
from neutrino.verification import load_probes
from tests.emulator.gcn import judge
from tests.gcn.exact import Judge, Work
from tests.gcn.objects import need_clang, need_llvm
from tests.gcn.together import judge_together

_BUILDS = {"gfx942": (), "gfx1030": (), "gfx1100 wave64": ("-mwavefrontsize64",)}
_ROWS = (
    ("gfx942", "binned", ("dmat", "atomic_contention", "inst_count")),
    ("gfx942", "binned", ("latency", "smem_bank_conflict", "warp_timeline")),
    ("gfx942", "half_arithmetic", ("nan_finder", "value_watch", "dmat")),
    ("gfx1030", "turned", ("coalescing", "dmat", "barrier_wait", "opcode_mix")),
    ("gfx1030", "left_early", ("branch_divergence", "program_progress", "work_per_warp")),
    ("gfx1100 wave64", "turned", ("hot_lines", "reuse_distance", "gmem_bytes")),
    ("gfx1100 wave64", "left_early", ("launch_skew", "block_sched", "latency", "tensorop")),
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    need_clang()
    need_llvm()
    folder = tmp_path_factory.mktemp("together")
    return {
        build: judge.compile_for_gpu(folder, build.split()[0], ("-O2", *options)) for build, options in _BUILDS.items()
    }


def judged(data: bytes, kernel: str) -> Judge:
    return Judge(data, kernel, Work((2, 1, 1), (judge.BLOCK, 1, 1), judge.inputs(5)))


@pytest.mark.parametrize(("build", "kernel", "names"), _ROWS)
def test_probes_together_record_what_was_executed(
    objects: dict[str, bytes], build: str, kernel: str, names: tuple[str, ...]
) -> None:
    outcome = judge_together(judged(objects[build], kernel), names)
    assert outcome.state in ("equal", "facts"), outcome.why
    assert outcome.records


def test_a_wrong_count_beside_another_probe_is_noticed(objects: dict[str, bytes], tmp_path: Path) -> None:
    """With the file for NVIDIA's GPUs, which takes lanes from 32 on for the first of their own."""
    path = tmp_path / "atomic_contention.py"
    path.write_text(shipped_probes()["atomic_contention"].read_text())
    one, names = judged(objects["gfx942"], "binned"), ("gmem_bytes", "atomic_contention")
    outcome = judge_together(one, names, load_probes(["gmem_bytes", str(path)], platform="hip"))
    assert outcome.state == "wrong"
    assert "Atomics" in outcome.why
    assert judge_together(one, names).state == "equal"
