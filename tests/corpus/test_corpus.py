"""A bounded part of the corpus on every run, and the verdicts on the figures of the last whole run."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from neutrino.errors import ToolError, ToolMissingError
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.tool_choice import find_assembler
from tests.corpus.all_kernels import RESULTS, ROOT, examine, image_faults, summarize, verdicts
from tests.corpus.collect import collect_clang, collect_nvcc, nvcc_sources
from tests.corpus.unknown_opcodes import count_images

pytestmark = pytest.mark.corpus

# Of what the whole corpus has, the oldest, the newest and the middle one, every level and way of fusing.
ARCHITECTURES = ("75", "90a", "120")
VARIANTS = (("sm_75", "-O0", "on"), ("sm_80", "-O1", "off"), ("sm_90a", "-O2", "fast"))
SAMPLE = 48
LARGEST = 1_500_000


@pytest.fixture(scope="module", autouse=True)
def _assembler():
    try:
        find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


def test_what_nvcc_makes(tmp_path):
    least = tmp_path / "least.cu"
    least.write_text("#include <cuda_fp16.h>\n__global__ void least() {}\n")
    try:
        run_tool([find_tool("nvcc"), "-cubin", "-arch=sm_90", least, "-o", tmp_path / "least.cubin"], timeout=600)
    except ToolError as error:
        # A wheel's nvcc may lack headers, or have a front end newer than its assembler.
        pytest.skip(f"no nvcc that works: {error}")
    collect_nvcc(tmp_path, nvcc_sources()[:1], ARCHITECTURES)
    images = [examine(path, "nvcc", only=1) for path in sorted(tmp_path.glob("*.fatbin"))]
    assert [fault for image in images for fault in image_faults(image)] == []
    assert sum(row["reasons"].get("probed", 0) for image in images for row in image["rows"]) >= 130
    assert count_images(tmp_path.glob("*.fatbin"), "nvcc")["unknown"] == {}


def test_what_clang_makes(tmp_path):
    try:
        collect_clang(tmp_path, VARIANTS)
    except ToolMissingError as error:
        pytest.skip(str(error))
    images = [examine(path, "clang", only=1) for path in sorted(tmp_path.glob("*.ptx"))]
    assert [fault for image in images for fault in image_faults(image)] == []
    assert sum(row["reasons"].get("probed", 0) for image in images for row in image["rows"]) >= 1200
    assert count_images(tmp_path.glob("*.ptx"), "clang")["unknown"] == {}


def _collected() -> list[Path]:
    """Some of what ``make corpus`` left here: the same ones as long as the corpus is the same."""
    found = [
        path
        for source in ("triton", "ctranslate2")
        for path in (ROOT / ".corpus" / source).glob("*")
        if path.suffix in (".fatbin", ".cubin", ".ptx") and path.stat().st_size < LARGEST
    ]
    return sorted(found, key=lambda path: hashlib.sha256(path.name.encode()).digest())[:SAMPLE]


def test_a_sample_of_what_was_collected():
    paths = _collected()
    if not paths:
        pytest.skip("no .corpus here: make corpus collects it")
    images = [examine(path, path.parent.name, only=1) for path in paths]
    assert count_images(paths, "sample")["unknown"] == {}
    assert [fault for image in images for fault in image_faults(image)] == []


@pytest.fixture(scope="module")
def results():
    return json.loads(RESULTS.read_text())


def test_the_last_whole_run_meets_every_bound(results):
    assert verdicts(results) == []


@pytest.fixture(scope="module")
def image() -> dict[str, Any]:
    """What is recorded of an image, in which one kernel of three is left out."""
    reasons = {"probed": 2, "unsupported": 1}
    row = {"device": "sm_90", "arch": ["sm_90"], "probe": "gmem_bytes", "kernels": 3, "reasons": reasons,
           "same_arithmetic": 2, "changed_arithmetic": [], "skipped": [["k", "unsupported", "a texture"]]}  # fmt: skip
    text = {"bytes": 10, "seconds": 1e-6, "entries": 3, "read": "1" * 16, "printed": "1" * 16}
    return {"source": "triton", "file": "k.ptx", "texts": [text], "rows": [row]}


_FFMA = ["k", {"FFMA": 2}, {"FFMA": 1, "FMUL": 1, "FADD": 1}, {"FMUL": 1}]
_PINNED = ["k", {"FFMA": 2}, {"FFMA": 2, "FMUL": 1, "FADD": 1}, {"FMUL": 1}, "pinned"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reasons": {"probed": 2, "assembler": 1}, "skipped": [["k", "assembler", "ptxas: line 3: error"]]},
         "its twin does not"),
        ({"kernels": 4}, "accounted for"),
        ({"skipped": []}, "are not all listed"),
        ({"same_arithmetic": 1, "changed_arithmetic": [_FFMA]}, "FFMA 2 → 1"),
        ({"same_arithmetic": 1, "changed_arithmetic": [_PINNED]}, "FADD 0 → 1"),
        ({"same_arithmetic": 1}, "arithmetic was compared"),
    ],
)  # fmt: skip
def test_every_fault_of_an_image_is_recorded(image, results, change, words):
    assert image_faults(image) == []
    (found,) = summarize([{**image, "rows": [image["rows"][0] | change]}])
    assert len(found["faults"]) == 1
    assert words in found["faults"][0]
    results = {**results, "sources": [*results["sources"][:-1], results["sources"][-1] | {"faults": found["faults"]}]}
    assert verdicts(results) == found["faults"]


def test_text_that_is_printed_otherwise_is_a_fault(image):
    changed = {**image, "texts": [image["texts"][0] | {"printed": "0" * 16}]}
    assert image_faults(changed) == ["triton/k.ptx: printed text differs"]


def test_images_are_summed_by_source_device_and_probe(image):
    other = {**image, "rows": [image["rows"][0] | {"device": "sm_100", "arch": ["sm_100"]}, *image["rows"]]}
    (found,) = summarize([image, other])
    assert (found["images"], found["entries"], found["distinct"]) == (2, 6, {"block_sched": 0, "gmem_bytes": 4})
    assert [(row["device"], row["kernels"], row["reasons"]["probed"]) for row in found["rows"]] == [
        ("sm_90", 6, 4), ("sm_100", 3, 2),
    ]  # fmt: skip


def _drop_source(results):
    results["sources"] = [source for source in results["sources"] if source["source"] != "clang"]


def _drop_architecture(results):
    for source in results["sources"]:
        for row in source["rows"]:
            row["arch"] = [arch for arch in row["arch"] if arch != "sm_100a"]


def _go_slowly(results):
    for source in results["sources"]:
        source["seconds"] *= 4


def _lose_a_container(results):
    results["sources"][-1]["entries"] -= 100


def _meet_an_unknown_instruction(results):
    results["opcodes"][0]["unknown"]["memry.u32"] = 1


def _look_fewer_up(results):
    results["opcodes"] = results["opcodes"][:1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop_source, "source clang"), (_drop_architecture, "sm_100a"), (_go_slowly, "MB/s"),
        (_lose_a_container, "540 wanted"), (_meet_an_unknown_instruction, "table of opcodes lacks"),
        (_look_fewer_up, "looked up"),
    ],
)  # fmt: skip
def test_every_bound_is_judged(results, change, words):
    changed = copy.deepcopy(results)
    change(changed)
    assert any(words in fault for fault in verdicts(changed)), verdicts(changed)
