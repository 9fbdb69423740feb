"""The verdicts on real libraries: recomputed from what is committed, and bad where a figure is."""

from __future__ import annotations

import copy
import json

import pytest

from bench.check_corpus import LEAST_OF_CTRANSLATE2, PACKAGES, RESULTS, CorpusError, Package, fetch, judge, table


def good_row(package: str, file: str) -> dict[str, object]:
    kernels = LEAST_OF_CTRANSLATE2
    same = {"ours": 7, "same": 7}
    return {
        "file": file, "package": package, "size": 10, "digest": "0", "containers": 3, "images": {"ptx": 3, "cubin": 4},
        "kernels": 2 * kernels, "distinct": kernels,
        "identical": {"written": {"ours": 3, "same": 3}, "extraction": {**same, "theirs": 7}, "resources": same},
        "patched": {"exit": 0, "arch": "sm_90", "seconds": 9.0, "kernels": kernels, "probed": kernels, "reasons": {},
                    "check": 0, "restored": True},
        "loads": {"original": "loads", "patched": "loads"}, "machine_code": {"original": "1", "patched": "1"},
    }  # fmt: skip


def good_result() -> dict[str, list[dict[str, object]]]:
    return {"rows": [good_row(package.requirement, f"lib{package.requirement}.so") for package in PACKAGES]}


def test_good_figures_are_good():
    assert judge(good_result()) == []
    assert "540 of 540" in table(good_result()["rows"])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("identical", "written", "same"), 2, "written: 2 of 3"),
        (("identical", "extraction", "theirs"), 8, "8 by the tool"),
        (("identical", "resources", "same"), 6, "resources: 6 of 7"),
        (("patched", "exit"), 2, "patching ended with 2"),
        (("patched", "check"), 2, "--check says 2"),
        (("patched", "restored"), False, "--restore"),
        (("patched", "probed"), 539, "539 of 540"),
        (("patched", "kernels"), 539, "of 539"),
        (("loads", "patched"), "undefined symbol", "undefined symbol"),
        (("machine_code", "patched"), "2", "cuobjdump -sass"),
    ],
)
def test_a_bad_figure_is_named(path, value, said):
    result = good_result()
    place = result["rows"][0]
    for word in path[:-1]:
        place = place[word]
    place[path[-1]] = value
    assert [fault for fault in judge(result) if said in fault]


def test_what_is_missing_is_named():
    for index, package in enumerate(PACKAGES):
        result = copy.deepcopy(good_result())
        del result["rows"][index]
        assert f"{package.requirement}: not in the results" in judge(result)


def test_a_wheel_that_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CorpusError, match="put the wheel into"):
        fetch(Package("no-such-package==1.0", "no_such-*.whl"), tmp_path)


@pytest.mark.skipif(not RESULTS.exists(), reason="make check-corpus was not run: its result is not there")
def test_the_committed_figures_are_good():
    assert judge(json.loads(RESULTS.read_text())) == []
