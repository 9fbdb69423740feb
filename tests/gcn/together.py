"""Several probes in one twin of AMD's, verified by the models of all of them, from a trace that knows no twin.

``python -m tests.gcn.together [BUILD ...]`` takes every pair of shipped probes, and some triples, in kernels that clang
compiles for these builds of ``tests/gcn/exact_corpus.py`` (an hour each); prints what is wrong; exit status 1 if
something is.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.verification import load_probes
from tests.gcn.exact import Judge, Outcome, portable_probes
from tests.gcn.exact_corpus import clang_jobs
from tests.gcn.executed import Event, Ran
from tests.gcn.trace_models import MODELS, Launch, Model

BUILDS = ("gfx942", "gfx1030", "gfx90a", "gfx1100 wave64")
KERNELS = (
    "binned", "turned", "left_early", "half_arithmetic", "bytes_shared", "float_quotients", "calling", "switched",
    "sorted_in_scratch", "exchanged", "double_fused",
)  # fmt: skip
_TRIPLES = 40


def judge_together(one: Judge, names: Sequence[str], probes: ProbeSet | None = None) -> Outcome:
    """Write a kernel's twin with these shipped probes, run it and compare. probes: in place of theirs."""
    joined = " ".join(names)
    with patch.dict(MODELS, {joined: _all_of([MODELS.get(name) for name in names])}):
        return one.judge(joined, probes or load_probes(list(names), platform="hip"))


def _all_of(models: Sequence[Model | None]) -> Model:
    """What is known of probes together. Where they are is known if it is of each of them."""
    known = [model for model in models if model is not None]
    places = [model.matches for model in known if model.matches is not None]

    def judge(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
        return chain.from_iterable(model.judge(launch, views) for model in known)

    def matches(event: Event, ran: Ran) -> bool:
        return any(chosen(event, ran) for chosen in places)

    are_known = len(places) == len(models)
    return Model(judge, matches if are_known else None, any(model.clocks for model in known))


def main(builds: Sequence[str]) -> int:
    """The command line. builds: none for all."""
    names = sorted(portable_probes())
    states: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for job in clang_jobs(Path(folder), builds or BUILDS, KERNELS):
            one, drawn = Judge(job.data, job.kernel, job.work), random.Random(job.kernel)
            rows = [*combinations(names, 2), *(tuple(drawn.sample(names, 3)) for _ in range(_TRIPLES))]
            for row in rows:
                outcome = judge_together(one, row)
                states[outcome.state] += 1
                if outcome.state == "wrong":
                    print(f"{job.build} {job.kernel}: {' '.join(row)}: {outcome.why}", flush=True)
            print(f"{job.build} {job.kernel}: {dict(states)} so far", file=sys.stderr, flush=True)
    print(dict(states))
    return bool(states["wrong"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
