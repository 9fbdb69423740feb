"""How sure findings are: of how many launches they are, and what of the process is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.findings_json import findings_document
from neutrino.tracing import Trace, summarize
from neutrino.tracing.analyses.condition import ConditionError, read_condition
from neutrino.tracing.analyses.run import findings_of
from tests.tracing.analyses.test_findings import DIVERGENCE, found_in, of_sums, only


@pytest.mark.parametrize(
    ("left_out", "refused", "texts"),
    [
        (0, 0, ["from all 3 launches of the kernel"]),
        (981, 0, ["from all 3 launches of the kernel that were chosen; not chosen: 981 more"]),
        (5, 7, ["from 3 of 10 launches of the kernel that were chosen; not chosen: 5 more",
                "30 % of the process's launches that were chosen were probed"]),
        (0, 7004, ["from 3 of 7,007 launches of the kernel", "under 1 % of the process's launches were probed"]),
    ],
)  # fmt: skip
def test_launches_that_were_not_chosen_are_said(left_out: int, refused: int, texts: list[str], tmp_path: Path) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, *[(100, 10, 0, 0)] * 3)
    writer.count(1, Reason.NOT_SELECTED, left_out)
    writer.count(1, Reason.POOL_FULL, refused)
    certainty = only(found_in(writer.write()), "divergence").certainty
    assert certainty.sentences()[: len(texts)] == texts
    assert ("process's" in str(certainty.sentences())) == bool(refused)
    assert certainty.word == ("low" if refused else "high")


@pytest.mark.parametrize(("left_out", "text"), [
    (0, "from its only launch"), (1, "from the only launch of the kernel that was chosen; not chosen: 1 more"),
])  # fmt: skip
def test_a_single_launch(left_out: int, text: str, tmp_path: Path) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, (100, 10, 0, 0))
    writer.count(1, Reason.NOT_SELECTED, left_out)
    assert only(found_in(writer.write()), "divergence").certainty.sentences()[0] == text


def test_of_damaged_counters_no_share_is_said(tmp_path: Path) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, *[(100, 10, 0, 0)] * 3)
    path = writer.write()
    counters = path / "counters.bin"
    counters.write_bytes(bytes(counters.stat().st_size))
    trace = Trace(path, is_tolerant=True)
    assert not trace.coverage.is_known
    finding = only(findings_of(summarize(trace)), "divergence")
    assert finding.certainty.word == "medium"
    assert finding.certainty.sentences()[:2] == [
        "from 3 launches of the kernel", "how many launches there were is not known: counts are missing"
    ]  # fmt: skip
    (document,) = (row for row in findings_document(findings_of(summarize(trace)))["findings"])
    assert document["sure"]["coverage"] is None
    for condition in ("coverage < 0.5", "launches > 10 and divergence.share > 0"):
        with pytest.raises(ConditionError, match="is not known: counts are missing"):
            read_condition(condition).hits(trace.coverage, findings_of(summarize(trace)))
    assert read_condition("divergence.share > 0").hits(trace.coverage, findings_of(summarize(trace)))
