"""A fixed sample of one-instruction mutants: the references of the kernels notice them."""

from __future__ import annotations

import zlib

from tests.oracle.mutants import all_mutants, noticed, try_all
from tests.oracle.tally import TALLY

_ONE_IN = 150


def test_a_sample_of_mutants_is_noticed() -> None:
    # By their own digest, so that the sample stays when kernels come.
    sample = [mutant for mutant in all_mutants() if zlib.crc32(str(mutant).encode()) % _ONE_IN == 0]
    verdicts = list(try_all(sample))
    found, total = noticed(verdicts)
    TALLY.lines.append(f"oracle: {found} of {total} mutants noticed, of {len(sample)} tried")
    survivors = "\n".join(str(verdict.mutant) for verdict in verdicts if verdict.what == "survived")
    assert total > len(sample) * 0.7
    assert found >= 0.95 * total, f"{found} of {total} noticed; survivors:\n{survivors}"
