"""The verdicts on what patching costs: each broken bound is caught, of the speed and of the size."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import ahead_size, ahead_speed

Json = Any


def _case(jobs: int, cores: int) -> Json:
    return {"jobs": jobs, "cores": cores, "patching_s": 3 * [[12.0, 21.0]], "assembling_s": 3 * [[10.0, 20.0]]}


SPEED: Json = {"cases": [_case(jobs, cores) for jobs, cores in ahead_speed.WANTED.items()]}


def _runs(seconds: float) -> list[Json]:
    return [{"seconds": seconds, "cpu_seconds": seconds, "peak_bytes": 90 << 20} for _ in range(ahead_size.FEWEST)]


def _library(size: int, seconds: float) -> Json:
    return {
        "bytes": size, "restored": ahead_size.FEWEST * [True],
        **{what: _runs(seconds) for what in ("copy", "patch", "check", "restore")},
    }  # fmt: skip


SIZE: Json = {"small": _library(20_000, 0.5), "big": _library(ahead_size.SIZE, 3.0)}


def _changed(results: Json, *path: str | int, value: object) -> Json:
    changed = copy.deepcopy(results)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("judge", "results"), [(ahead_speed.judge, SPEED), (ahead_size.judge, SIZE)], ids=["speed", "size"]
)
def test_good_results(judge: Callable[[Json], list[str]], results: Json) -> None:
    assert judge(results) == []


@pytest.mark.parametrize(
    ("judge", "results"),
    [
        (ahead_speed.judge, _changed(SPEED, "cases", 2, "patching_s", value=3 * [[12.6, 21.0]])),
        (ahead_speed.judge, _changed(SPEED, "cases", 0, "assembling_s", value=3 * [[9.0, 20.0]])),
        (ahead_speed.judge, _changed(SPEED, "cases", 1, "cores", value=2)),
        (ahead_speed.judge, _changed(SPEED, "cases", 1, "patching_s", value=2 * [[11.0, 20.0]])),
        (ahead_speed.judge, _changed(SPEED, "cases", value=SPEED["cases"][:2])),
        (ahead_size.judge, _changed(SIZE, "big", "bytes", value=ahead_size.SIZE - 1)),
        (ahead_size.judge, _changed(SIZE, "big", "patch", value=_runs(5.6))),
        (ahead_size.judge, _changed(SIZE, "big", "patch", value=_runs(3.0)[1:])),
        (ahead_size.judge, _changed(SIZE, "big", "check", 1, "peak_bytes", value=ahead_size.MOST_BYTES + 1)),
        (ahead_size.judge, _changed(SIZE, "big", "restored", 2, value=False)),
    ],
)
def test_what_is_not_as_it_must_be_is_named(judge: Callable[[Json], list[str]], results: Json) -> None:
    assert len(judge(results)) == 1


def test_commands_are_written_down_and_run_again(tmp_path: Path) -> None:
    ptxas = tmp_path / "real"
    ptxas.write_text('#!/bin/sh\nsleep 0.2\nfor last; do :; done\ncat "$3" > "$last"\n')
    ptxas.chmod(0o755)
    source = tmp_path / "in.ptx"
    source.write_text("text")
    folder = tmp_path / "kept"
    folder.mkdir()
    command = ["sh", "-c", f'"$NEUTRINO_PTXAS" -arch=sm_90 -v {source} -o {tmp_path}/out.cubin']
    (argv,) = ahead_speed.recorded(command, ptxas, folder)
    assert (tmp_path / "out.cubin").read_text() == "text"
    source.unlink()
    assert argv[:3] == [str(ptxas), "-arch=sm_90", "-v"]
    seconds = ahead_speed.replay(4 * [argv], 2)
    assert len(seconds) == 4
    assert min(seconds) >= 0.2
    assert Path(argv[-1]).read_text() == "text"
    assert json.loads(json.dumps(ahead_speed.timed(lambda: None)))[0] < 1


@pytest.mark.parametrize("bench", [ahead_speed, ahead_size], ids=["speed", "size"])
def test_the_committed_samples_meet_every_bound(bench: Any) -> None:
    assert bench.judge(json.loads(bench.RESULTS.read_text())) == []
