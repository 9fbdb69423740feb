"""Faults of what probes insert into AMD's kernels, to see that it shows: ``python -m bench.exact_faults``.

Kernels of ``judged.hip`` in the tests get shipped probes. The twin as it is written is the control, which must be right
by the judge of ``bench.exact_amd``. Then, one at a time, each instruction that was inserted is left out: a fault is
noticed if the interpreter refuses to run the twin (a wait is missing, a register was never written, memory of nobody is
accessed), a result of the kernel differs, or a record does. Not all can be noticed, and of the others it is found out
why: ``never run``, since in this launch the wave goes around it (a trap in its place is not reached either); ``waits``
and wait states, which LLVM's recognizer judges (``tests/gcn/test_inserted_hazards.py``); and ``same value``: what it
writes is there already, such as the upper half of a small sum. ``bench.gcn_faults`` has faults of what is moved, the
descriptor, the note and waits. Writes ``bench/results/exact_faults.json``; ``--judge`` judges it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.corpus_amd import print_verdicts
from bench.exact_amd import clang_jobs
from bench.recorded import judge_files, save
from bench.tree import made_of
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from tests.gcn.exact import Judge, Written, portable_probes
from tests.gcn.twin_reader import listing_of, read_twin

Json = Any

RESULTS = Path(__file__).resolve().parent / "results" / "exact_faults.json"
BUILDS = ("gfx942", "gfx1030")
CASES = (("left_early", "block_sched"), ("left_early", "gmem_bytes"))
"""Kernels, and probes that they get."""
LEAST = 60
"""Faults that must be noticed, of each build."""
_NOP, _TRAP = "s_nop 0", "s_trap 2"
_WAITS = ("s_nop", "s_wait", "ds_nop")


def inserted(written: Written, processor: str) -> list[tuple[int, str]]:
    """The addresses and texts of the instructions that a twin has besides the original's."""
    llvm = find_llvm(processor)
    functions = {one.name: one for one in code_object_functions(written.image, "").functions}
    listed = [
        listing_of(one.name, one.address, one.code, llvm.disassemble(one.code, processor, ""))
        for one in (functions[written.twin.name], functions[written.twin.twin_name])
    ]
    original, twin = listed
    reading = read_twin(original, twin)
    texts = {row.address: row.shown for row in twin.rows}
    at, found = twin.rows[0].address, []
    for row in original.rows:
        size = len(reading.inserted.get(row.address - original.rows[0].address, b""))
        found += [(address, texts[address]) for address in range(at, at + size, 4) if address in texts]
        at += size + 4 * len(row.words)
    return found


def judged(one: Judge, written: Written, processor: str) -> Iterator[dict[str, str]]:
    """Yield a row for the control, and for each fault what has noticed it, "" if nothing has, and then why not."""
    llvm = find_llvm(processor)
    yield {"fault": "", "noticed": one.run(written).why}
    for address, text in inserted(written, processor):
        (function,) = [
            row for row in code_object_functions(written.image, "").functions if row.name == written.twin.twin_name
        ]

        def noticed(other: str, at: int = address - function.address, probed: bytes = function.code) -> str:
            """Return what notices another text at the instruction's place."""

            def disassemble(code: bytes, cpu: str, features: str) -> list[tuple[int, int, str | None]]:
                rows = llvm.disassemble(code, cpu, features)
                if code != probed:
                    return rows
                return [(offset, size, other if offset == at else text) for offset, size, text in rows]

            return one.run(written, disassemble).why[:80]

        found = {"fault": text, "noticed": noticed(_NOP)}
        if not found["noticed"]:
            is_run = noticed(_TRAP)
            found["why"] = "never run" if not is_run else "waits" if text.startswith(_WAITS) else "same value"
        yield found


def _how(noticed: str) -> str:
    """By what a fault was noticed, in a word."""
    if not noticed:
        return "not"
    known = ("other results", "written beyond the maps", "wave ")
    return {"wave ": "fault"}.get(word, word) if (word := next(filter(noticed.startswith, known), "")) else "record"


def record() -> dict[str, Json]:
    """Try all faults; return the results."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for build in BUILDS:
            kernels = {kernel for kernel, _ in CASES}
            for job in clang_jobs(Path(folder), [build], sorted(kernels)):
                one = Judge(job.data, job.kernel, job.work)
                for probe in (probe for kernel, probe in CASES if kernel == job.kernel):
                    written = one.write(probe, portable_probes()[probe])
                    assert isinstance(written, Written), written
                    found = list(judged(one, written, build))
                    rows.append(
                        {
                            "build": build, "kernel": job.kernel, "probe": probe, "control": found[0]["noticed"],
                            "faults": len(found) - 1, "noticed": sum(bool(row["noticed"]) for row in found[1:]),
                            "by": dict(Counter(_how(row["noticed"]) for row in found[1:])),
                            "not noticed": dict(Counter(row["why"] for row in found[1:] if not row["noticed"])),
                            "same value": [row["fault"] for row in found[1:] if row.get("why") == "same value"],
                        }
                    )  # fmt: skip
                    print(json.dumps(rows[-1]), flush=True)
    return {**made_of("exact_faults"), "llvm": find_llvm().identity, "rows": rows}


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    found = []
    for build in BUILDS:
        rows = [row for row in results["rows"] if row["build"] == build]
        noticed, count = sum(row["noticed"] for row in rows), sum(row["faults"] for row in rows)
        controls = [row["control"] for row in rows if row["control"]]
        found += [
            (f"{build}: {noticed} of {count} faults are noticed, at least {LEAST}", noticed >= LEAST),
            (f"{build}: {len(rows)} controls are right, of {len(CASES)}", not controls and len(rows) == len(CASES)),
            (f"{build}: all are accounted for", all(sum(row["by"].values()) == row["faults"] for row in rows)),
            (f"{build}: it is known why {count - noticed} are not",
             sum(sum(row["not noticed"].values()) for row in rows) == count - noticed),
        ]  # fmt: skip
    return found


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record and judge; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m bench.exact_faults", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    if parser.parse_args(arguments).judge:
        return judge_files([RESULTS], "python -m bench.exact_faults", ("rows",), say)
    results = record()
    save(RESULTS, results)
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
