"""Whether twins computed bit for bit what their originals did, from the digests of a GPU run.

Two controls say that the kernels
show a changed fusion: built so that nothing is fused most of them compute something else, and so do twins that were
made without a look at their machine code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.rounding_kernels import NOTHING_TO_FUSE, kernels
from bench.verdicts import PROOFS, Verdict, need, run_checks

Json = Any

RESULTS = Path(__file__).parent / "results" / "rounding_h200.json"
_FTZ = '-DFTZ=".ftz"'
BUILDS: Mapping[str, tuple[str, ...]] = {
    "usual": (),
    "fast": ("-use_fast_math", _FTZ),
    "unfused": ("-fmad=false",),
}
"""Options of nvcc beside those that all builds have."""
CASES, TRITON = "cases", "triton"
PLAIN, UNJUDGED = "plain", "unjudged:"
PROBES = (
    "rounding_out", "rounding_guard", "rounding_fields", "value_watch", "branch_divergence", "inst_count",
    "smem_bank_conflict",
)  # fmt: skip
CONTROL = f"{UNJUDGED}rounding_guard"
PROBED: Mapping[str, tuple[str, ...]] = {
    "usual": PROBES,
    "fast": PROBES,
    "unfused": (),
    CASES: ("rounding_out", "value_watch", "branch_divergence"),
    TRITON: ("rounding_out", "value_watch", "smem_bank_conflict"),
}
"""By suite, the probes that it is run under."""
LETTERS = {"counts": "c", "no-pair": "n", "pinned": "p", "lines": "l", "unassembled": "u"}
"""By what shows that a twin is right; others are written out."""
LEAST_OF_A_PROOF = 20
LEAST_CHANGED = 0.5
"""Of the kernels with something to fuse, those that compute something else where nothing is."""
MOST_REFUSED = 0.2
LEAST_UNJUDGED = 5
"""Twins that compute something else when nobody looks at their machine code: fewer, the less inserted code stands
between products and their sums. Some of them are judged good otherwise: under a register cap ptxas fuses otherwise, and
such a twin is used with its own number of registers then."""


def probes_of(suite: str, *, embedded: bool = False) -> tuple[str, ...]:
    """Return the names of the runs that a suite of kernels has: two without a probe, then one under each probe."""
    plain = (f"{PLAIN}_1", f"{PLAIN}_2")
    if embedded:
        return *plain, "rounding_out"
    return (*plain, *PROBED[suite], *((CONTROL,) if suite == "usual" else ()))


@dataclass(frozen=True)
class Run:
    """A run of a suite: digests by output, and what became of each kernel."""

    outputs: Mapping[str, str]
    became: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, row: Json, first: Json) -> Run:
        """Parse a run from its row in the results. first: the row of the suite's first run, which has what is left out
        of this one. Raises BrokenError where it did not come to its end."""
        need(row["exit"] == 0, f"exit status {row['exit']}")
        listed = row.get("names", first["names"])
        names, digests, known = listed.split(), row["digests"].split(), first["digests"].split()
        need(len(names) == len(digests) > 0, f"{len(names)} names, {len(digests)} digests")
        digests = [known[number] if digest == "." else digest for number, digest in enumerate(digests)]
        kernels, proofs = row.get("kernels", listed).split(), row["proofs"].split()
        words = {letter: word for word, letter in LETTERS.items()}
        became = [(name, words.get(proof, proof)) for name, proof in zip(kernels, proofs, strict=bool(proofs))]
        return cls(dict(zip(names, digests, strict=True)), became)


class _Runs:
    def __init__(self, results: Json) -> None:
        """Index the recorded runs by suite of kernels and probe."""
        self._rows = {(row["suite"], row["probe"]): row for row in results.get("runs", ())}

    def __call__(self, suite: str, probe: str) -> Run:
        """Return the recorded run of a suite under a probe. Raises BrokenError when it is missing or did not end well.
        """
        need((suite, probe) in self._rows, f"{suite} was not run under {probe}")
        return Run.read(self._rows[suite, probe], next(row for (of, _), row in self._rows.items() if of == suite))


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict, good or bad, on each check, in a fixed order."""
    runs = _Runs(results)
    embedded = results.get("device") == "embedded"
    suites = (CASES,) if embedded else (*BUILDS, CASES, TRITON)
    checks: list[tuple[str, Callable[[], str]]] = [("provenance", partial(_provenance, results))]
    for suite in suites:
        checks.append((f"{suite}: as it is", partial(_plain, runs, suite)))
        checks += [
            (f"{suite}: {probe}", partial(_same, runs, suite, probe))
            for probe in probes_of(suite, embedded=embedded)
            if not probe.startswith((PLAIN, UNJUDGED))
        ]
    if not embedded:
        checks += [(f"proof: {proof}", partial(_proof, runs, proof)) for proof in PROOFS]
        checks += [
            ("refused", partial(_refused, runs)),
            ("control: nothing fused", partial(_unfused, runs)),
            ("control: twins as they come", partial(_unjudged, runs)),
        ]
    return run_checks(checks)


def _provenance(results: Json) -> str:
    """Check that the results say what they were made with. Returns that; raises BrokenError (by ``need``)."""
    need(results["device"] != "", "no device")
    need(len(results["tree"]) == 64, "the sources are not named")
    return f"{results['device']}, driver {results['driver']}, {results['nvcc']}, {results['seconds']} s"


def _plain(runs: _Runs, suite: str) -> str:
    """Check that two runs of a suite without probes computed the same, so that differences are telling.

    Returns a line for the verdict; raises BrokenError.
    """
    first, second = (runs(suite, f"{PLAIN}_{number}") for number in (1, 2))
    need(first.outputs == second.outputs, f"two runs differ in {_differing(first, second)}")
    if suite in BUILDS:
        need(list(first.outputs) == [kernel.name for kernel in kernels()], "other kernels than the generator's")
        least = len(first.outputs) * 0.95
        need(len(set(first.outputs.values())) >= least, "many kernels compute the same")
    return f"{len(first.outputs)} outputs, the same twice"


def _differing(one: Run, other: Run) -> list[str]:
    """Return the names of the kernels whose output differs between two runs."""
    return [name for name, digest in one.outputs.items() if other.outputs.get(name) != digest]


def _same(runs: _Runs, suite: str, probe: str) -> str:
    """Check that every kernel computed the same bits under a probe as without.

    Returns a line that says how that is known; raises BrokenError.
    """
    plain, probed = runs(suite, f"{PLAIN}_1"), runs(suite, probe)
    became = dict(probed.became)
    wrong = [f"{name} ({became.get(name, '?')})" for name in _differing(plain, probed)]
    need(not wrong, f"{len(wrong)} of {len(plain.outputs)} computed something else: {', '.join(wrong[:8])}")
    need(list(plain.outputs) == list(probed.outputs), "other outputs")
    if suite in BUILDS:
        need(list(became) == list(plain.outputs), f"{len(became)} of {len(plain.outputs)} kernels in the trace")
    known = {*LETTERS, "numerics", "no-site"} if suite in BUILDS else None
    counts = Counter(word for _, word in probed.became)
    need(known is None or counts.keys() <= known, f"kernels became {dict(counts)}")
    need(suite != TRITON or counts.total() > counts["numerics"], "no kernel was probed")
    return f"{len(probed.outputs)} outputs the same: " + ", ".join(f"{counts[word]} {word}" for word in sorted(counts))


def _proof(runs: _Runs, proof: str) -> str:
    """Check that each way of showing that a twin (the copy with the probe) is right occurs often enough, and say how
    many of those kernels would compute something else if nothing were fused. Raises BrokenError.
    """
    plain, unfused = (runs(build, f"{PLAIN}_1") for build in ("usual", "unfused"))
    changed = set(_differing(plain, unfused))
    pairs = [
        (build, probe, name)
        for build in BUILDS
        for probe in PROBED[build]
        for name, word in runs(build, probe).became
        if word == proof
    ]
    need(len(pairs) >= LEAST_OF_A_PROOF, f"{len(pairs)} pairs of kernel and probe, {LEAST_OF_A_PROOF} are wanted")
    telling = sum(name in changed for _, _, name in pairs)
    names = {(build, name) for build, _, name in pairs}
    return f"{len(pairs)} pairs of kernel and probe, {len(names)} kernels; {telling} pairs compute otherwise unfused"


def _refused(runs: _Runs) -> str:
    """Check that not too many kernels were left without a probe for doubts about their arithmetic.

    Returns a line for the verdict; raises BrokenError.
    """
    words = Counter(word for build in BUILDS for probe in PROBED[build] for _, word in runs(build, probe).became)
    share = words["numerics"] / words.total()
    need(share <= MOST_REFUSED, f"{words['numerics']} of {words.total()} have no twin")
    return f"{words['numerics']} of {words.total()} pairs of kernel and probe have no twin: {100 * share:.1f} %"


def _unfused(runs: _Runs) -> str:
    """Check that the kernels are telling: most compute something else when nothing is fused.

    Returns a line for the verdict; raises BrokenError.
    """
    plain, unfused = (runs(build, f"{PLAIN}_1") for build in ("usual", "unfused"))
    fusible = [name for name in plain.outputs if not name.startswith(NOTHING_TO_FUSE)]
    changed = sum(plain.outputs[name] != unfused.outputs[name] for name in fusible)
    need(changed >= LEAST_CHANGED * len(fusible), f"{changed} of {len(fusible)} compute something else")
    return f"{changed} of {len(fusible)} kernels compute something else built with -fmad=false"


def _unjudged(runs: _Runs) -> str:
    """Check that the comparison of machine code is needed: without it some twins (copies with probes) compute something
    else.

    Returns a line for the verdict; raises BrokenError.
    """
    plain, unjudged = runs("usual", f"{PLAIN}_1"), runs("usual", CONTROL)
    became = dict(runs("usual", CONTROL.removeprefix(UNJUDGED)).became)
    changed = Counter(became[name] for name in _differing(plain, unjudged))
    need(changed.total() >= LEAST_UNJUDGED, f"{changed.total()} compute something else")
    said = ", ".join(f"{count} {word}" for word, count in sorted(changed.items()))
    return f"{changed.total()} twins compute something else when nobody judges them; judged they are: {said}"
