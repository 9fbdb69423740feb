"""The verdicts on the committed times of parsing, and that each broken bound is caught."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.parsing import MOST_TIMES, RESULTS, judge, parsing, probe_sets, times, writing

Json = Any


@pytest.fixture
def results() -> Json:
    return json.loads(RESULTS.read_text())


def test_committed_results_meet_every_bound(results: Json) -> None:
    assert judge(results) == []


def _slow(results: Json) -> None:
    row = results["sources"][1]
    factor = 1.05 * MOST_TIMES / times(row, "parsing")
    row["sets"]["all"]["parsing"] = [factor * seconds for seconds in row["sets"]["all"]["parsing"]]


def _few_rounds(results: Json) -> None:
    results["sources"][0]["sets"]["loads"]["whole"].pop()


def _another_probe(results: Json) -> None:
    row = results["sources"][2]["sets"]
    row["others"] = row.pop("stores")


def _no_source(results: Json) -> None:
    del results["sources"][0]


def _small(results: Json) -> None:
    results["sources"][0]["bytes"] //= 10


def _no_sites(results: Json) -> None:
    for row in results["sources"]:
        row["sets"]["tensors"]["sites"] = 0


def _fewer_hits(results: Json) -> None:
    results["sources"][0]["sets"]["all"]["hits"] = 1


@pytest.mark.parametrize(
    "damage", [_slow, _few_rounds, _another_probe, _no_source, _small, _no_sites, _fewer_hits]
)
def test_what_is_not_as_it_must_be_is_named(results: Json, damage: Callable[[Json], None]) -> None:
    broken = copy.deepcopy(results)
    damage(broken)
    assert len(judge(broken)) == 1


def test_the_ten_probes_have_ten_tracepoints() -> None:
    sets = probe_sets()
    assert len({probe.tracepoint.text for probe in sets["all"].probes}) == 10
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a) { .reg .b32 %r<3>;"
        ".reg .b64 %rd<3>; ld.global.u32 %r1, [%rd1]; bar.sync 0; st.global.u32 [%rd1], %r1; ret; }"
    )
    assert parsing(sets["all"], [text]) == {"hits": 3}
    assert writing(sets["loads"], [text])["sites"] == 1
