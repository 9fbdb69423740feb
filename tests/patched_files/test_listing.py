"""``neutrino-extract`` of patched files, and of what ``neutrino-patch`` will find."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from neutrino.cli import extract, patch
from neutrino.toolchain.ptxas import Assembler
from tests.patched_files.libraries import SCALE, STORE, fatbin, link


@pytest.fixture(scope="module")
def library(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    containers = [fatbin(assembler, text, cubins=["sm_80"], ptx=["sm_80"]) for text in (SCALE, STORE)]
    containers.append(fatbin(assembler, STORE.replace("store", "bare"), cubins=["sm_80"]))
    return link(tmp_path_factory.mktemp("library") / "libk.so", containers)


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    capsys.readouterr()
    assert extract.main([*map(str, arguments), "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def patched(library: Path) -> Path:
    target = library.with_name("patched.so")
    assert patch.main([str(library), "-p", "block_sched", "--arch", "80", "-j", "1", "-o", str(target)]) == 0
    return target


def test_a_patched_file_says_so(library: Path, patched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = document(capsys, library), document(capsys, patched)
    said = after.pop("patched")
    assert (said["probes"], said["twins"]) == (["block_sched"], 3)
    # Twins of sm_80 code serve every device that runs it.
    assert said["archs"][:2] == ["sm_80", "sm_86"]
    assert "patched" not in before
    # The images are those of the original: the twins are no part of the program.
    assert after["containers"] == before["containers"]
    assert extract.main([str(patched)]) == 0
    assert "3 twins with block_sched, for sm_80, sm_86" in capsys.readouterr().out.splitlines()[1]


def test_twins_for_the_embedded_device_are_told_apart(
    library: Path, patched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "embedded.so"
    assert patch.main([str(library), "-p", "block_sched", "--device", "embedded", "-j", "1", "-o", str(copy)]) == 0
    for file, device, words in ((copy, "embedded", "the embedded device (sm_90)"), (patched, "gpu", "sm_80, sm_86")):
        assert document(capsys, file)["patched"]["device"] == device
        assert extract.main([str(file)]) == 0
        assert f"3 twins with block_sched, for {words}" in capsys.readouterr().out
        assert patch.main(["--check", str(file)]) == 0
        assert f"3 twins by block_sched for {words}" in capsys.readouterr().out
        assert patch.main(["--check", str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["device"] == device


def test_a_stripped_one_too(patched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which("strip"):
        pytest.skip("no strip on PATH")
    copy = tmp_path / "stripped.so"
    shutil.copy(patched, copy)
    subprocess.run(["strip", copy], check=True)
    assert document(capsys, copy)["patched"]["twins"] == 3


def test_a_damaged_section_is_named(patched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(patched.read_bytes())
    at = data.find(b"NTSECTN\0")
    data[at + 8] ^= 0x7F
    copy = tmp_path / "damaged.so"
    copy.write_bytes(data)
    assert extract.main([str(copy)]) == 2
    output = capsys.readouterr()
    assert "section version" in output.err
    assert "3 containers" in output.out


def test_coverage_is_what_patching_finds(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (coverage,) = document(capsys, library, "--coverage", "--arch", "80")["coverage"]
    assert patch.main([str(library), "-p", "block_sched", "--arch", "80", "-j", "1", "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["can_be_probed"], one["reason"], one["sites"]) for one in coverage["kernels"]] == [
        (one["name"], one["status"] == "probed", one["reason"], one["sites"]) for one in report["kernels"]
    ]
