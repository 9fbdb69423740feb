"""--no-wait, --when launch, --hot: launches run originals until their twins are ready, and nobody waits for those."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.launches import REASON_SLOTS
from neutrino.abi.reasons import Reason
from neutrino.loader import build as loader_build
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from tests.loader.conftest import (
    HERE,
    IMAGE,
    POOL_LEAST,
    RUN_KEY,
    Bench,
    Reference,
    check_sanitizers,
    compile_c,
    entry_of,
    in_turn,
)  # fmt: skip
from tests.loader.listeners import MAKE, MAKE_AHEAD, MAY_BE_CACHED, Listener, listener
from tests.loader.trace_files import Files
from tests.once import SANITIZERS, kept

NO_WAIT, WHEN_LAUNCH = {"NEUTRINO_NO_WAIT": "1"}, {"NEUTRINO_HOT": "1"}
BOTH = pytest.mark.parametrize("mode", [NO_WAIT, WHEN_LAUNCH], ids=["no-wait", "launch"])
PATIENCE = 20000
"""Launches until a twin must be ready: so many take far longer than that ever takes."""


class Told:
    """``told.c``, line by line."""

    def __init__(self, home: Path, program: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self.answers: list[str] = []
        self.stderr = ""

    def __call__(self, *lines: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        for line in lines:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
            assert answer, (line, self.end())
            self.lines.append(line)
            self.answers.append(answer)

    def end(self) -> str:
        rest, self.stderr = self.process.communicate(timeout=600)
        assert not rest
        check_sanitizers(self.home, self.stderr)
        assert self.process.returncode == 0, self.stderr
        return self.stderr

    @property
    def launches(self) -> int:
        """Of count_p2, so far, those of replays left out."""
        words = [line.split() for line in self.lines]
        return sum(int(times) for word, _, times in (w for w in words if len(w) == 3) if word == "launch")


@pytest.fixture(scope="module")
def programs() -> Callable[[Bench], Path]:
    def build(bench: Bench) -> Path:
        def compile_into(folder: Path) -> None:
            sources = [str(HERE / "programs" / name) for name in ("told.c", "program.c")]
            compile_c(folder / "told", *SANITIZERS[bench.sanitizer], *sources)

        options, sources = SANITIZERS[bench.sanitizer], (HERE / "programs").glob("*.[ch]")
        return kept(f"told-{bench.sanitizer}", loader_build.compiler(), options, sources, compile_into) / "told"

    return build


class Scene:
    """A program under the hook in home, and the listener that it asks."""

    def __init__(self, bench: Bench, home: Path, program: Path, asked: Listener, mode: Mapping[str, str]) -> None:
        self.bench, self.home, self.program, self.asked = bench, home, program, asked
        (home / "image").write_bytes(IMAGE)
        self.plain = bench.environment(home)
        hooked = bench.hooked(bench.environment(home, {"count": home / "counts.json"}), home)
        self.told = Told(home, program, hooked | {"NEUTRINO_SOCKET": str(home / "socket"), **mode})

    def row(self) -> Counter[str]:
        """Launches by what became of them, as the trace has them now."""
        (path,) = (self.home / "trace").iterdir()
        rows = np.fromfile(path / "counters.bin", "<u8")
        sums = rows[: rows.size // REASON_SLOTS * REASON_SLOTS].reshape(-1, REASON_SLOTS).sum(axis=0)
        return Counter({reason.word: int(sums[reason]) for reason in Reason if sums[reason]})

    def launch_until_probed(self, number: int) -> None:
        before = self.row()["probed"]
        for _ in range(PATIENCE):
            self.told(f"launch {number} 1")
            if self.row()["probed"] > before:
                return
        raise AssertionError("its twin never became ready")

    def until_known(self, count: int, name: str = "count_p2") -> None:
        """Until the hook has twins of that name of so many images, which need not be loaded yet."""
        (path,) = (self.home / "trace").iterdir()
        for _ in range(PATIENCE):
            lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
            events = [json.loads(line) for line in lines if line.endswith("\n")]
            if sum((e.get("name"), e.get("reason")) == (name, "probed") for e in events) == count:
                return
            time.sleep(0.01)
        raise AssertionError("its twin never came")

    def end(self) -> Files:
        """The trace. The program's answers are those that it gives without the hook."""
        self.told.end()
        result = subprocess.run(
            [self.program], env=self.plain, input="".join(f"{line}\n" for line in self.told.lines),
            capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
        assert "".join(self.told.answers) == result.stdout
        return Files(self.home / "trace")

    def hook_calls(self, thread: str = "hook") -> Counter[str]:
        """In the program's threads; or in ours, "hook-thread"."""
        return Counter(json.loads((self.home / "counts.json").read_text()).get(thread))


@contextmanager
def scene(
    bench: Bench, home: Path, program: Path, mode: Mapping[str, str], status: int | None = None
) -> Iterator[Scene]:
    with listener(home, status) as asked:
        played = Scene(bench, home, program, asked, mode)
        try:
            yield played
        finally:
            played.told.process.kill()
            played.told.process.wait()


def requests(asked: Listener) -> int:
    return asked.asked[MAKE] + asked.asked[MAKE_AHEAD]


@BOTH
@pytest.mark.parametrize("kind", ["load", "library"])
def test_originals_run_until_the_twin_is_ready(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str], kind: str
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        play.told(f"{kind} 0", "obtain 0", "launch 0 7")
        # Nobody has got an answer yet.
        with play.asked.lock:
            assert play.asked.kept or not requests(play.asked)
        play.asked.answer_kept()
        play.launch_until_probed(0)
        play.told("launch 0 5")
        files = play.end()
    counted = files.counted("count_p2")
    assert set(counted) == {"not-ready", "probed"}
    assert counted["not-ready"] >= 7
    assert counted["probed"] >= 6
    assert sum(counted.values()) == play.told.launches
    assert len(files.written()) == counted["probed"]
    files.check_tickets(any_bench.maps)


@BOTH
def test_what_takes_long_keeps_nothing_else_waiting(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        play.told("load 0", "obtain 0", "launch 0 1", "load 1", "obtain 1", "launch 1 1")
        for _ in range(PATIENCE):
            if len(play.asked.kept) == 2:
                break
            time.sleep(0.01)
        play.asked.answer_kept(b"// 1\n")
        play.launch_until_probed(1)
        assert len(play.asked.kept) == 1
        play.asked.answer_kept()
        play.launch_until_probed(0)
        files = play.end()
    assert sum(files.counted("count_p2").values()) == play.told.launches


def test_what_is_cached_is_not_waited_for_either_way(
    bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path]
) -> None:
    with scene(bench, tmp_path, programs(bench), {}, MAY_BE_CACHED) as play:
        play.told("load 0", "obtain 0", "launch 0 3")
        assert play.end().counted("count_p2") == {"probed": 3}
    for path in (tmp_path / "trace").iterdir():
        path.rename(tmp_path / "first")
    (tmp_path / "socket").unlink()
    with scene(bench, tmp_path, programs(bench), NO_WAIT) as play:
        play.told("load 0", "obtain 0", "launch 0 3")
        assert play.end().counted("count_p2") == {"probed": 3}
        assert not requests(play.asked)


def test_a_twin_is_requested_at_the_launch(bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path]) -> None:
    with scene(bench, tmp_path, programs(bench), {"NEUTRINO_HOT": "4"}, MAY_BE_CACHED) as play:
        play.told("load 0", "load 1", "obtain 0", "obtain 1", "launch 0 3", "launch 1 2")
        assert not requests(play.asked)
        assert not list((tmp_path / "cache" / "twins").glob("*/*"))
        play.launch_until_probed(0)
        files = play.end()
    # Of the first image only: the kernel of the other was launched twice.
    assert requests(play.asked) == 1
    counted = files.counted("count_p2")
    assert counted["not-ready"] >= 3 + 2
    assert counted["probed"] + counted["not-ready"] == play.told.launches
    files.check_tickets(bench.maps)


def test_kernels_that_are_not_launched_cost_nothing(
    bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path]
) -> None:
    with scene(bench, tmp_path, programs(bench), WHEN_LAUNCH, MAY_BE_CACHED) as play:
        play.told(*(f"load {number}" for number in range(20)), *(f"obtain {number}" for number in range(20)))
        play.end()
    assert not requests(play.asked)
    assert play.hook_calls()["cuModuleLoadData"] == 20
    assert play.hook_calls("hook-thread").keys() <= {"cuThreadExchangeStreamCaptureMode"}


@BOTH
def test_the_process_ends_while_a_twin_is_being_made(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        play.told("load 0", "obtain 0", "launch 0 3")
        files = play.end()
    assert files.counted("count_p2") == {"not-ready": 3}
    (kernel,) = (e for e in files.events if e["event"] == "kernel" and e["name"] == "count_p2")
    assert kernel["reason"] == "not-ready"
    assert "nothing was probed: 0 of 3 launches, 0 of 1 kernels\n" in play.told.stderr
    assert "3 not-ready (launched before its twin was ready" in play.told.stderr
    assert "run again without these options: twins that were made are cached now" in play.told.stderr


@BOTH
def test_modules_come_and_go(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        for number in range(6):
            kind = "library" if number % 2 else "load"
            play.told(f"{kind} {number}", f"obtain {number}", f"launch {number} 2", f"unload {number}")
        play.asked.answer_kept()
        # While the thread works: the same images again, and others.
        for number in range(24):
            kind = "library" if number % 3 else "load"
            play.told(f"{kind} {number}", f"obtain {number}", f"launch {number} 3", f"unload {number}")
        play.told("load 30", "obtain 30")
        play.launch_until_probed(30)
        files = play.end()
    counted = files.counted("count_p2")
    assert set(counted) == {"not-ready", "probed"}
    assert sum(counted.values()) == play.told.launches
    files.check_tickets(any_bench.maps)


@BOTH
def test_contexts_come_and_go(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        for number in range(4):
            play.told(f"load {number}", f"obtain {number}", f"launch {number} 2", "reset")
        play.asked.answer_kept()
        for number in range(12):
            play.told(f"load {number}", f"obtain {number}", f"launch {number} 2", "reset")
        play.told("load 30", "obtain 30")
        play.launch_until_probed(30)
        files = play.end()
    counted = files.counted("count_p2")
    assert set(counted) == {"not-ready", "probed"}
    assert sum(counted.values()) == play.told.launches


@BOTH
def test_graphs_get_twins_when_they_are_instantiated(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        play.told("load 0", "obtain 0", "capture", "enqueue 0 5", "captured", "replay 0 4")
        play.asked.answer_kept()
        play.launch_until_probed(0)
        # The old one keeps its originals.
        play.told("replay 0 2", "instantiate", "replay 0 3", "launch 0 1")
        files = play.end()
    counted = files.counted("count_p2")
    assert counted["not-ready"] >= 5 * 6
    assert counted["not-ready"] + counted["probed"] == 5 * 9 + play.told.launches
    assert (files.written()["graph"] != 0).sum() == 5 * 3
    files.check_tickets(any_bench.maps)


@BOTH
def test_nothing_is_loaded_while_the_program_captures(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        for number in range(10):
            play.told(f"load {number}", f"obtain {number}", "capture", f"enqueue {number} 3")
            play.asked.answer_kept()
            play.until_known(number + 1)
            # The capture is as it would be without the hook: end() compares.
            play.told(f"enqueue {number} 2", "captured", "replay 0 2")
        play.launch_until_probed(9)
        files = play.end()
    counted = files.counted("count_p2")
    assert set(counted) <= {"not-ready", "probed"}
    assert sum(counted.values()) == 10 * 5 * 2 + play.told.launches
    files.check_tickets(any_bench.maps)


@BOTH
def test_nothing_is_loaded_while_a_kernel_runs_that_waits(
    any_bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    """A GPU's driver would wait for it, and let no launch go on meanwhile: it would wait for ever."""
    with scene(any_bench, tmp_path, programs(any_bench), mode) as play:
        play.told("load 0", "obtain 0", "launch 0 1", "spin 0")
        play.asked.answer_kept()
        # It is the second to be requested: the thread has tried to load the other.
        play.until_known(1, "spin_p1")
        play.told("launch 0 200")
        before = play.told.launches
        play.told("raise 0")
        play.launch_until_probed(0)
        files = play.end()
    counted = files.counted("count_p2")
    assert counted["not-ready"] >= before
    assert sum(counted.values()) == play.told.launches


# Threads that race under ThreadSanitizer, what comes and goes under AddressSanitizer; two under both.
@in_turn(
    "scenario",
    [
        ("churn",), ("threads",), ("contexts-and-libraries",), ("contexts-and-libraries",), ("reload",),
        ("parts-at-once",), ("destroy",), ("fork-amid",), ("exit-amid",), ("capture-amid",), ("capture-amid",),
        ("forbidden",), ("graph-changes",), ("graph-threads",), ("graph-sizes",),
    ],
)  # fmt: skip
def test_programs_compute_what_they_do_without_the_hook(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str
) -> None:
    result = any_bench.run(scenario, tmp_path, extra=WHEN_LAUNCH | {"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference(scenario), result.stderr
    for path in (tmp_path / "trace").iterdir():
        files = Files.of(path)
        assert files.counted("count_p2", "count_p6")
        files.check_tickets(any_bench.maps)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_program_of_random_calls(any_bench: Bench, tmp_path: Path, reference: Reference, seed: int) -> None:
    arguments, device = (str(seed), "3", "120"), {"seed": seed, "delay": 200}
    extra = WHEN_LAUNCH | {"NEUTRINO_POOL": str(POOL_LEAST)}
    result = any_bench.run("random", tmp_path, *arguments, device=device, extra=extra)
    assert (result.stdout, result.returncode) == reference("random", *arguments, device=device)
    files = Files(tmp_path / "trace")
    assert int(files.counters[:, Reason.NOT_READY].sum()) > 0
    files.check_tickets(any_bench.maps)


def run_held_up(bench: Bench, home: Path, name: str, *arguments: str, extra: Mapping[str, str]) -> str:
    """What a program prints in which a function of glibc holds a thread up, also for the hook."""
    sources = [str(HERE / "programs" / source) for source in (f"{name}.c", "program.c", "watched.c")]
    compile_c(home / name, "-rdynamic", *sources)
    (home / "image").write_bytes(IMAGE)
    environment = bench.hooked(bench.environment(home), home) | extra
    result = subprocess.run(
        [home / name, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_what_is_logged_of_a_kernel_last_is_what_it_became(bench: Bench, tmp_path: Path) -> None:
    """Also where the thread that obtained it first was held up before it had logged it: it was not ready then."""
    Cache(tmp_path / "cache").write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
    assert run_held_up(bench, tmp_path, "logged", extra=WHEN_LAUNCH) == "all\n"
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2")["probed"] > 0
    events = [event for event in files.events if event["event"] == "kernel" and event["name"] == "count_p2"]
    assert [event["reason"] for event in events] == ["not-ready", "probed"]


@pytest.mark.parametrize(
    ("mode", "launches", "is_requested"),
    [
        pytest.param(NO_WAIT, 0, True, id="no-wait"),
        pytest.param(WHEN_LAUNCH, 1, True, id="launch"),
        pytest.param({"NEUTRINO_HOT": "20"}, 20, True, id="hot"),
        pytest.param({"NEUTRINO_HOT": "21"}, 20, False, id="not-hot"),
    ],
)
def test_the_last_launch_requests_its_twin(
    bench: Bench, tmp_path: Path, mode: dict[str, str], launches: int, is_requested: bool
) -> None:
    """For later runs: though the program ends before the thread that asks for it has begun."""
    with listener(tmp_path, None) as asked:
        extra = mode | {"NEUTRINO_SOCKET": str(tmp_path / "socket")}
        assert run_held_up(bench, tmp_path, "hurried", str(launches), extra=extra) == f"{launches}\n"
        # What was sent waits in the socket: the listener's thread may come to it later.
        for _ in range(3000 if is_requested else 0):
            if requests(asked):
                break
            time.sleep(0.01)
        assert requests(asked) == is_requested
    assert sum(Files(tmp_path / "trace").counted("count_p2").values()) == launches


def test_the_program_neither_sees_nor_closes_what_is_open(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    with listener(tmp_path, None) as asked:
        extra = WHEN_LAUNCH | {"NEUTRINO_SOCKET": str(tmp_path / "socket")}
        result = bench.run("closes-all", tmp_path, twins=False, extra=extra)
        assert (result.stdout, result.returncode) == reference("closes-all")
        assert requests(asked) >= 1


def test_attributes_that_were_set_before(bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path]) -> None:
    with scene(bench, tmp_path, programs(bench), NO_WAIT) as play:
        play.told("load 0", "obtain 0", "shared 0 1024", "shared 0 2048", "launch 0 1")
        play.asked.answer_kept()
        play.launch_until_probed(0)
        assert play.asked.asked[MAKE_AHEAD] == 1
        play.told("shared 0 4096")
        play.end()
    # Of the program itself 3, and of its twin as many: what was set before it was ready by the thread that loaded it.
    assert play.hook_calls()["cuFuncSetAttribute"] == 3 + 1
    assert play.hook_calls("hook-thread")["cuFuncSetAttribute"] == 2


@BOTH
def test_a_child_goes_its_own_way(
    bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path], mode: dict[str, str]
) -> None:
    with scene(bench, tmp_path, programs(bench), mode) as play:
        play.told("load 0", "obtain 0", "launch 0 2", "fork")
        play.asked.answer_kept()
        play.told("fork", "load 1", "obtain 1", "launch 1 2", "fork")
        play.launch_until_probed(0)
        play.told("fork")
        files = play.end()
    assert sum(files.counted("count_p2").values()) == play.told.launches


def test_a_launch_that_is_not_ready_is_one_call(
    bench: Bench, tmp_path: Path, programs: Callable[[Bench], Path]
) -> None:
    calls = []
    for number, launches in enumerate((64, 1088)):
        with scene(bench, tmp_path / str(number), programs(bench), NO_WAIT) as play:
            play.told("load 0", "obtain 0", f"enqueue 0 {launches}", "launch 0 1")
            assert play.end().counted("count_p2") == {"not-ready": launches + 1}
            calls.append(play.hook_calls())
    assert calls[1] - calls[0] == {"cuLaunchKernel": 1024}
