"""The bench of roundings: its kernels need every proof, its verdicts notice what is wrong, and the recorded run is
judged again."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import rounding_verdicts
from bench.rounding_kernels import FAMILIES, NOTHING_TO_FUSE, PRELUDE, kernels
from bench.rounding_verdicts import BUILDS, CONTROL, LETTERS, PLAIN, PROBED, PROBES, TRITON, UNJUDGED, probes_of
from neutrino.abi.reasons import Reason
from neutrino.cache.entry import read_entry
from neutrino.errors import ToolMissingError
from neutrino.patch.image import patch_image
from neutrino.probing.selection import Selection
from neutrino.toolchain.choice import find_assembler
from neutrino.verification import load_probe_file

Json = Any
Change = Callable[[Json], None]
ROOT = Path(__file__).resolve().parents[2]


def test_kernels_are_the_same_in_every_process() -> None:
    own = "".join(kernel.source for kernel in kernels() if kernel.family == "mixed")
    command = [sys.executable, "-m", "bench.rounding_kernels", "mixed"]
    again = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True,
                           check=True)  # fmt: skip
    assert again.stdout == PRELUDE + own + "\n"
    names = [kernel.name for kernel in kernels()]
    assert len(names) == len(set(names)) >= 150
    assert {kernel.family for kernel in kernels()} == FAMILIES.keys()


def test_kernels_need_every_proof(tmp_path: Path) -> None:
    try:
        assembler = find_assembler()
    except ToolMissingError as error:
        pytest.skip(str(error))
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    chosen = [kernel for kernel in kernels() if kernel.name.startswith(("divisions", "apart", "polynomial_f32"))]
    source, image = tmp_path / "some.cu", tmp_path / "some.fatbin"
    source.write_text(PRELUDE + "".join(kernel.source for kernel in chosen))
    options = ["-w", "-O3", "-std=c++17", "-fatbin", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
    subprocess.run([nvcc, *options, "-o", str(image), str(source)], check=True, capture_output=True)
    probes = load_probe_file(ROOT / "bench" / "probes" / "rounding_fields.toml")
    data = patch_image(image.read_bytes(), probes, "sm_90", selection=Selection((), ()), assembler=assembler,
                       key=bytes(32))  # fmt: skip
    made = read_entry(data, "entry").kernels
    assert {kernel.name for kernel in chosen} == {kernel.name for kernel in made}
    proofs = {
        json.loads(entry.files["manifest.json"])["numerics"]["proof"] for entry in made if entry.reason is Reason.PROBED
    }
    assert proofs == {"counts", "no-pair", "pinned", "lines"}


def _digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:10]


def good() -> Json:
    """What a run without a fault would leave."""
    runs = []
    for suite in PROBED:
        names = [kernel.name for kernel in kernels()] if suite in BUILDS else ["one", "two"]
        for probe in probes_of(suite):
            words = [LETTERS[proof] for proof in rounding_verdicts.PROOFS]
            proofs = [words[number % 4] for number in range(len(names))]
            proofs[0] = "numerics"
            changed = suite == "unfused"
            row = {"suite": suite, "probe": probe, "exit": 0, "seconds": 1, "names": " ".join(names), "proofs": "",
                   "digests": [_digest(name, *(["unfused"] if changed else [])) for name in names],
                   "details": {}}  # fmt: skip
            if probe == CONTROL:
                # Of those that were pinned.
                row["digests"][2:120:4] = [_digest("x", name) for name in names[2:120:4]]
            row["digests"] = " ".join(row["digests"])
            if not probe.startswith(PLAIN):
                row |= {"proofs": " ".join(proofs), "details": {names[0]: "FFMA 2 → 1"}}
            runs.append(row)
    return {"device": "a GPU", "driver": "1", "nvcc": "13", "tree": "0" * 64, "seconds": 1, "runs": runs}


def _row(result: Json, suite: str, probe: str) -> Json:
    return next(row for row in result["runs"] if (row["suite"], row["probe"]) == (suite, probe))


def _other_digest(suite: str, probe: str, place: int) -> Change:
    def change(result: Json) -> None:
        row = _row(result, suite, probe)
        digests = row["digests"].split()
        digests[place] = "0" * 10
        row["digests"] = " ".join(digests)

    return change


def _without(suite: str, probe: str) -> Change:
    return lambda result: result["runs"].remove(_row(result, suite, probe))


def _set(suite: str, probe: str, key: str, to: Json) -> Change:
    return lambda result: _row(result, suite, probe).__setitem__(key, to)


def _as(suite: str, probe: str, of_suite: str, of_probe: str) -> Change:
    """One run's digests as another's."""
    return lambda result: _row(result, suite, probe).update(digests=_row(result, of_suite, of_probe)["digests"])


def _other_proof(of: str, to: str) -> Change:
    """Every kernel that became one thing became another."""

    def change(result: Json) -> None:
        for row in result["runs"]:
            row["proofs"] = " ".join(to if word == of else word for word in row["proofs"].split())

    return change


def faults() -> Iterator[tuple[str, Change]]:
    """Which verdict (the begin of its name) is to see what."""
    yield "provenance", lambda result: result.update(tree="")
    yield "provenance", lambda result: result.update(interrupted=True)
    for suite in PROBED:
        yield f"{suite}: as it is", _other_digest(suite, f"{PLAIN}_2", 1)
        yield f"{suite}: as it is", _set(suite, f"{PLAIN}_1", "exit", 1)
        for probe in probes_of(suite):
            if not probe.startswith((PLAIN, UNJUDGED)):
                yield f"{suite}: {probe}", _other_digest(suite, probe, 1)
                yield f"{suite}: {probe}", _without(suite, probe)
                yield f"{suite}: {probe}", _set(suite, probe, "exit", None)
                yield f"{suite}: {probe}", _set(suite, probe, "names", "")
    yield f"usual: {PROBES[0]}", _set("usual", PROBES[0], "proofs", "c")
    yield f"usual: {PROBES[0]}", _set("usual", PROBES[0], "proofs", " ".join(["unlaunched"] * len(kernels())))
    yield f"triton: {PROBES[0]}", _set(TRITON, PROBES[0], "proofs", "numerics numerics")
    for proof in rounding_verdicts.PROOFS:
        yield f"proof: {proof}", _other_proof(LETTERS[proof], "numerics")
    yield "refused", _other_proof(LETTERS["counts"], "numerics")
    yield "control: nothing", _as("unfused", f"{PLAIN}_1", "usual", f"{PLAIN}_1")
    yield "control: twins", _as("usual", CONTROL, "usual", f"{PLAIN}_1")
    yield "control: twins", _without("usual", CONTROL)


def unnoticed(result: Json) -> list[str]:
    """Verdicts that let a fault pass that is theirs to see."""
    passed = []
    for number, (begins, change) in enumerate(faults()):
        wrong = copy.deepcopy(result)
        change(wrong)
        judged = rounding_verdicts.judge(wrong, begins)
        if not judged or all(verdict.good for verdict in judged):
            passed.append(f"{begins} ({number})")
    return passed


def test_verdicts_notice_what_is_wrong() -> None:
    result = good()
    assert [verdict for verdict in rounding_verdicts.judge(result) if not verdict.good] == []
    assert unnoticed(result) == []


def test_what_holds_nothing_to_fuse_is_told_apart() -> None:
    assert set(NOTHING_TO_FUSE) < FAMILIES.keys()


def test_the_embedded_device(tmp_path: Path) -> None:
    """The road of a run, with the kernels that this device takes."""
    command = [
        sys.executable,
        "-m",
        "bench.rounding",
        "--device",
        "embedded",
        "--budget",
        "100",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "rounding_diagnostics.txt").read_text()
    result = json.loads((tmp_path / "rounding_embedded.json").read_text())
    (probed,) = (row for row in result["runs"] if row["probe"] == "rounding_out")
    assert len(probed["names"].split()) >= 5


@pytest.mark.skipif(not rounding_verdicts.RESULTS.exists(), reason="no GPU run has been committed yet")
def test_recorded_run() -> None:
    result = json.loads(rounding_verdicts.RESULTS.read_text())
    assert "H200" in result["device"]
    assert [verdict for verdict in rounding_verdicts.judge(result) if not verdict.good] == []
    assert unnoticed(result) == []
