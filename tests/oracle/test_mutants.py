"""A seeded sample of one-instruction mutants: the references of the kernels notice them."""

from __future__ import annotations

import random

from tests.oracle.mutants import all_mutants, noticed, try_all
from tests.oracle.tally import TALLY

_SAMPLE = 200


def test_a_sample_of_mutants_is_noticed() -> None:
    sample = random.Random(2026).sample(list(all_mutants()), _SAMPLE)
    verdicts = list(try_all(sample))
    found, total = noticed(verdicts)
    TALLY.lines.append(f"oracle: {found} of {total} mutants noticed, of {_SAMPLE} tried")
    survivors = "\n".join(str(verdict.mutant) for verdict in verdicts if verdict.what == "survived")
    assert total > _SAMPLE * 0.8
    assert found >= 0.95 * total, f"{found} of {total} noticed; survivors:\n{survivors}"
