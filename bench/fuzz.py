"""Coverage-guided fuzzing of everything that reads bytes which others made.

    python -m bench.fuzz --seconds 480 --jobs 14 --out OUT

Time is dealt out in slices, each a process of its own on one target, with the inputs that earlier slices found
interesting. Two engines: Atheris (``pip install neutrino-gpu[fuzz]``), or where it is not installed one of our own,
guided by the branches that ``sys.monitoring`` reports (Python 3.12 on; before, by lines, slowly). OUT gets
``fuzz.json``, the inputs that failed under ``crashes/``, and the corpus; ``--ledger FILE`` adds the run to FILE's.

A failure is an exception other than FormatError, a reading that contradicts itself, more than a second of CPU time, or
memory beyond what an input declares and its size allows.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOW = 1.0
"""Seconds of CPU time that one input may take."""
MEMORY = 24 << 20
"""Bytes that any input may allocate."""
MEMORY_PER_BYTE = 64
"""Bytes more for each byte of the input: a Python object for each field."""
MEMORY_PER_CLAIM = 3
"""Bytes more for each byte that the input declares to decode to, within the cap: the decoder's, ours, PTX's copy."""
LEAST_SECONDS = 7200
"""CPU time that all runs of a ledger must reach."""
SLICE = 60
"""Seconds of a slice."""
_GROWTH = 4 << 20
"""An input after which the process's peak grew by as many bytes is run again with every allocation counted."""
_ADDRESS_SPACE = 8 << 30


@dataclass
class Failure:
    """What an input did. kind: exception, unsound, slow or memory."""

    kind: str
    what: str
    data: bytes = field(repr=False)

    @property
    def signature(self) -> str:
        """The same for failures in the same place."""
        return hashlib.sha256(f"{self.kind} {self.what.splitlines()[0]}".encode()).hexdigest()[:12]


class _SlowError(Exception):
    pass


class Judge:
    """Runs inputs and keeps what fails: once per place."""

    def __init__(self, run: Callable[[bytes], int]) -> None:
        self.executions = 0
        self.failures: dict[str, Failure] = {}
        self._run = run
        self._peak = _peak()
        signal.signal(signal.SIGVTALRM, _stop)

    def __call__(self, data: bytes) -> bool:
        """Run an input; whether it kept to the rules."""
        self.executions += 1
        failure = self._judge(data)
        if failure is None:
            return True
        self.failures.setdefault(failure.signature, failure)
        return False

    def _judge(self, data: bytes) -> Failure | None:
        from bench.fuzz_targets import UnsoundError
        from neutrino.errors import FormatError

        begin = time.process_time()
        claimed = 0
        try:
            # Twice the limit, so that what is slow without being endless is told apart by the clock.
            signal.setitimer(signal.ITIMER_VIRTUAL, 2 * SLOW)
            claimed = self._run(data)
        except FormatError:
            pass
        except _SlowError:
            return Failure("slow", _place(sys.exc_info()[1]), data)
        except UnsoundError as error:
            return Failure("unsound", _place(error), data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return Failure("exception", _place(error), data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seconds = time.process_time() - begin
        if seconds > SLOW:
            return Failure("slow", f"{seconds:.1f} s", data)
        peak = _peak()
        if peak > self._peak + _GROWTH:
            self._peak = peak
            used = allocated(self._run, data)
            allowed = MEMORY + MEMORY_PER_BYTE * len(data) + MEMORY_PER_CLAIM * claimed
            if used > allowed:
                return Failure("memory", f"{used >> 20} MiB allocated, {allowed >> 20} MiB allowed", data)
        return None


def allocated(run: Callable[[bytes], int], data: bytes) -> int:
    """Bytes that Python allocates at most at a time while running an input."""
    from neutrino.errors import FormatError

    tracemalloc.start()
    try:
        run(data)
    except FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def _stop(_signal: int, _frame: object) -> None:
    raise _SlowError


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _place(error: BaseException | None) -> str:
    """The exception's type and the last lines of ours that it went through; then the whole traceback."""
    if error is None:
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
    lines = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-2:])
    return f"{type(error).__name__} in {lines}\n" + "".join(traceback.format_exception(error))


class Slice:
    """One process's work on one target: its corpus, and the engine's loop."""

    def __init__(self, target: str, seconds: float, out: Path, seed: int) -> None:
        self.target, self.seconds, self.out, self.seed = target, seconds, out, seed
        self.corpus = out / "corpus" / target
        self.corpus.mkdir(parents=True, exist_ok=True)

    def inputs(self) -> list[bytes]:
        """The seeds and what earlier slices kept."""
        from bench.fuzz_targets import TARGETS

        # What begins with a dot is being written by another slice of this target.
        whole = sorted(path for path in self.corpus.iterdir() if not path.name.startswith("."))
        return TARGETS[self.target].seeds() + [path.read_bytes() for path in whole]

    def keep(self, data: bytes) -> None:
        """Put an input into the corpus that later slices begin with."""
        name = self.corpus / hashlib.sha256(data).hexdigest()[:20]
        if not name.exists():
            partial = name.with_name(f".{name.name}.{os.getpid()}")
            partial.write_bytes(data)
            partial.rename(name)

    def own(self) -> dict[str, Any]:
        """The engine of our own."""
        from bench.fuzz_coverage import Coverage
        from bench.fuzz_mutate import mutate
        from bench.fuzz_seeds import LIMIT
        from bench.fuzz_targets import INSTRUMENTED, TARGETS

        judge = Judge(TARGETS[self.target].run)
        random_ = random.Random(self.seed)
        coverage = Coverage(INSTRUMENTED)
        coverage.start()
        pool: list[bytes] = []
        for data in self.inputs():
            before = len(coverage.seen)
            judge(data)
            if len(coverage.seen) > before or not pool:
                pool.append(data)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            # Half of the time the newest tenth, which leads furthest in.
            recent = max(1, len(pool) // 10)
            parent = random_.choice(pool[-recent:]) if random_.random() < 0.5 else random_.choice(pool)
            data = mutate(parent, random_.choice(pool), random_, LIMIT)
            before = len(coverage.seen)
            judge(data)
            if len(coverage.seen) > before:
                pool.append(data)
                self.keep(data)
        return self._result(judge, len(coverage.seen), len(pool))

    def atheris(self) -> None:
        """Atheris, which ends the process: the result is written as it goes."""
        import atheris

        with atheris.instrument_imports(include=["neutrino"]):
            from bench.fuzz_targets import TARGETS
        from bench.fuzz_mutate import mutate
        from bench.fuzz_seeds import LIMIT

        judge = Judge(TARGETS[self.target].run)
        random_ = random.Random(self.seed)
        pool = self.inputs()
        for data in TARGETS[self.target].seeds():
            self.keep(data)
        written = time.monotonic()

        def one(data: bytes) -> None:
            nonlocal written
            judge(data)
            if time.monotonic() > written + 1:
                written = time.monotonic()
                self.write(self._result(judge, 0, 0))

        def own_mutation(data: bytes, limit: int, seed: int) -> bytes:
            if seed % 4 == 0:
                return bytes(atheris.Mutate(data, limit))
            random_.seed(seed)
            return mutate(data, random_.choice(pool), random_, limit)

        arguments = [
            sys.argv[0], str(self.corpus), f"-max_total_time={int(self.seconds)}", f"-max_len={LIMIT}", "-timeout=30",
            f"-seed={self.seed}", "-use_value_profile=1", "-rss_limit_mb=6000", "-print_final_stats=1",
        ]  # fmt: skip
        atheris.Setup(arguments, one, custom_mutator=own_mutation)
        atheris.Fuzz()

    def write(self, result: dict[str, Any]) -> None:
        """Hand the result to the process that deals out the slices."""
        path = self.out / f"slice-{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(result))
        path.with_suffix(".new").rename(path)

    def _result(self, judge: Judge, coverage: int, corpus: int) -> dict[str, Any]:
        crashes = self.out / "crashes"
        crashes.mkdir(exist_ok=True)
        for signature, failure in judge.failures.items():
            base = crashes / f"{self.target}-{failure.kind}-{signature}"
            base.with_suffix(".bin").write_bytes(failure.data)
            base.with_suffix(".txt").write_text(failure.what)
        return {
            "executions": judge.executions,
            "coverage": coverage,
            "corpus": corpus,
            "failures": {signature: {"kind": failure.kind, "what": failure.what.splitlines()[0]}
                         for signature, failure in judge.failures.items()},
        }  # fmt: skip


def _slice(arguments: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    work = Slice(arguments.slice, arguments.seconds, arguments.out, arguments.seed)
    if arguments.engine == "atheris":
        work.atheris()
    else:
        work.write(work.own())


def _run_slice(target: str, seconds: float, out: Path, engine: str, seed: int) -> dict[str, Any]:
    """A slice in a process of its own: what it wrote, its CPU time, and whether it died."""
    argv = [sys.executable, "-m", "bench.fuzz", "--slice", target, "--seconds", str(seconds), "--out", str(out),
            "--engine", engine, "--seed", str(seed)]  # fmt: skip
    path = os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    log = out / f"log-{target}-{seed}.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=stream, env=environment, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    path = out / f"slice-{process.pid}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"failures": {}}
    path.unlink(missing_ok=True)
    text = log.read_text(errors="replace")
    if engine == "atheris":
        _read_statistics(text, result)
    if process.returncode:
        what = f"the process ended with status {process.returncode}"
        result["failures"][f"died-{target}"] = {"kind": "died", "what": what, "log": text[-2000:]}
    else:
        log.unlink()
    return {"target": target, "cpu_seconds": usage.ru_utime + usage.ru_stime, **result}


def _read_statistics(text: str, result: dict[str, Any]) -> None:
    """Coverage and corpus as libFuzzer prints them: ``#123 REDUCE cov: 45 ft: 67 corp: 8/9b``."""
    for line in text.splitlines():
        words = line.split()
        if "cov:" in words:
            result["coverage"] = int(words[words.index("cov:") + 1])
        if "corp:" in words:
            result["corpus"] = int(words[words.index("corp:") + 1].partition("/")[0])
        if line.startswith("stat::number_of_executed_units:"):
            result["executions"] = int(words[1])


def deal(targets: Sequence[str], seconds: float, jobs: int, weights: dict[str, int]) -> list[tuple[str, float]]:
    """Slices (target, seconds) in the order in which they start: each round goes through all targets by weight."""
    total = seconds * jobs
    round_ = [target for target in targets for _ in range(weights[target])]
    count = max(jobs, -(-len(round_) // jobs) * jobs, round(total / SLICE / jobs) * jobs)
    order = random.Random(0)
    slices: list[str] = []
    while len(slices) < count:
        slices += order.sample(round_, len(round_))
    return [(target, total / count) for target in slices[:count]]


def source_digest() -> str:
    """SHA-256, in hex, of the sources that are fuzzed."""
    from bench.fuzz_targets import source_files

    digest = hashlib.sha256()
    for path in source_files(ROOT):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Slices' results by target: times and executions added up, the best coverage."""
    targets: dict[str, dict[str, Any]] = {}
    for result in results:
        row = targets.setdefault(
            result["target"], {"cpu_seconds": 0.0, "executions": 0, "coverage": 0, "corpus": 0, "failures": {}}
        )
        row["cpu_seconds"] = round(row["cpu_seconds"] + result["cpu_seconds"], 1)
        row["executions"] += result.get("executions", 0)
        row["coverage"] = max(row["coverage"], result.get("coverage", 0))
        row["corpus"] = max(row["corpus"], result.get("corpus", 0))
        row["failures"].update(result["failures"])
    return targets


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz, print a table, write ``fuzz.json``. Exit status 1 when an input failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description="Fuzz the parsers.")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of the whole run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", choices=("atheris", "own"), default="atheris" if find_spec("atheris") else "own")
    parser.add_argument("--only", action="append", metavar="TARGET", help="repeatable")
    parser.add_argument("--ledger", type=Path, help="a file that the run is added to")
    parser.add_argument("--seed", type=int, default=0, help="0: another one in each run")
    parser.add_argument("--slice", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    if arguments.slice:
        _slice(arguments)
        return 0

    from bench.fuzz_targets import TARGETS

    digest = source_digest()
    weights = {name: target.weight for name, target in TARGETS.items()}
    slices = deal(arguments.only or list(TARGETS), arguments.seconds, arguments.jobs, weights)
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 24)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(_run_slice, target, seconds, arguments.out, arguments.engine, seed + index)
                   for index, (target, seconds) in enumerate(slices)]  # fmt: skip
        results = [entry.result() for entry in running]
    run = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "engine": arguments.engine,
        "python": platform.python_version(),
        "jobs": arguments.jobs,
        "seed": seed,
        "source": digest,
        "unchanged": source_digest() == digest,
        "targets": summary(results),
    }
    (arguments.out / "fuzz.json").write_text(json.dumps(run, indent=1) + "\n")
    if arguments.ledger:
        add(arguments.ledger, run)
    failed = False
    for name, row in run["targets"].items():
        print(f"{name:12} {row['cpu_seconds']:9.1f} s CPU {row['executions']:12,} runs "
              f"{row['coverage']:6} branches {row['corpus']:6} inputs {len(row['failures'])} failures")  # fmt: skip
        for signature, failure in row["failures"].items():
            failed = True
            print(f"    {failure['kind']} {failure['what']} ({signature}) {failure.get('log', '').strip()[-200:]}")
    return int(failed)


def add(ledger: Path, run: dict[str, Any]) -> None:
    """Append a run to the ledger: runs, and answers: what became of each failure, by its signature."""
    kept = json.loads(ledger.read_text()) if ledger.exists() else {"runs": [], "answers": {}}
    kept["runs"].append(run)
    ledger.write_text(json.dumps(kept, indent=1) + "\n")


def faults(ledger: dict[str, Any]) -> list[str]:
    """What a ledger lacks: time, targets, answers to failures, and a last run of each target without any."""
    from bench.fuzz_targets import TARGETS

    wrong = []
    seconds = sum(row["cpu_seconds"] for run in ledger["runs"] for row in run["targets"].values())
    if seconds < LEAST_SECONDS:
        wrong.append(f"{seconds:.0f} s of CPU time, {LEAST_SECONDS} are asked for")
    last = {name: row for run in ledger["runs"] for name, row in run["targets"].items()}
    wrong += [f"{name}: never run" for name in TARGETS if not last.get(name, {}).get("executions")]
    wrong += [f"{name}: fails in its last run" for name, row in last.items() if row["failures"]]
    failures = {signature: failure for run in ledger["runs"] for row in run["targets"].values()
                for signature, failure in row["failures"].items()}  # fmt: skip
    wrong += [f"{failure['kind']} {failure['what']} ({signature}): without an answer"
              for signature, failure in failures.items() if not ledger["answers"].get(signature)]  # fmt: skip
    return wrong


if __name__ == "__main__":
    sys.exit(main())
