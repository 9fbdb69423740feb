"""What somebody types on the first day, and what is said: each message names what to write instead."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from pathlib import Path

import pytest

import neutrino
from neutrino.cli import ctl, extract, patch, probe, report
from neutrino.cli.run import main
from neutrino.errors import NeutrinoError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.verification import load_probes
from tests.cli.pages import ROOT, Folder

ONE_LINERS = {
    "ld.global { @ = hist(SIZE) }": "did you mean BYTES?",
    "ld.global { @ = sum(width) }": "did you mean BYTES?",
    "ld.global { @[address] = count() }": "did you mean ADDR?",
    "ld.global { @ = hist(BYTS) }": "did you mean BYTES?",
    "BEGIN { @ = count() }": "there is no BEGIN",
    "END { @ = count() }": "there is no END",
    "kprobe { @ = count() }": "func:NAME functions",
    "ld.global /tid = 0/ { @ = count() }": "write == to compare",
    "ld.global { $x = BYTES; @ = sum($x) }": "variables are written without a $",
    "ld.global/tid == 0/{ @ = count() }": "a filter has a space before it: ld.global /…/",
    "ld.global { @[ctaid, tid] = count() }": "join them, as in ctaid * 1024 + tid",
    "LD.GLOBAL { @ = count() }": 'writes opcodes in lower case: "ld.global"',
}


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 125
    return capsys.readouterr().err


@pytest.mark.parametrize("text", ONE_LINERS)
def test_one_liners(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ONE_LINERS[text] in said(["--device", "embedded", "-e", text, "true"], capsys)


def test_options_and_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_liner = tmp_path / "one.nt"
    one_liner.write_text("ld.global /tid == 0/ { @ = count() }\n")
    for arguments, hint in {
        ("--devcie", "embedded"): "did you mean --device?",
        ("--probe", "a", "--lunches", "0:1"): "did you mean --launches?",
        ("-p", "block_sched,dmat"): "-p block_sched -p dmat",
        ("-p", "block_shed"): "did you mean block_sched?",
        ("-p", "nonesuch"): "neutrino-probe list has them all",
        ("-p", str(one_liner)): f'neutrino -e "$(cat {one_liner})"',
        ("-e", str(one_liner)): f'-e "$(cat {one_liner})"',
    }.items():
        text = said([*arguments, "true"], capsys)
        assert hint in text
        assert max(map(len, text.splitlines())) < 250, "one reads it"


@pytest.mark.parametrize("command", [ctl, extract, patch, report])
def test_unknown_options_of_the_others(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--verison", "1", "status"] if command is ctl else ["--verison", "x"])  # type: ignore[attr-defined]
    assert ended.value.code == 2
    assert "did you mean --version?" in capsys.readouterr().err


def test_unknown_options_of_probe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        probe.main(["try", "--girdd", "3", "block_sched", "x.ptx"])
    assert "did you mean --grid?" in capsys.readouterr().err


def test_a_first_word_is_the_command_of_that_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["neutrino"])
    for name in ("report", "ctl", "probe", "extract", "patch"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith("neutrino")
    # After --, and anywhere else, it is COMMAND.
    monkeypatch.setattr("neutrino.cli.run.start", lambda request: commands.append(request.command))
    commands: list[list[str]] = []
    for arguments in (["--", "patch"], ["patch", "x"]):
        main(["-p", "block_sched", "--device", "embedded", *arguments])
    assert commands == [["patch"], ["patch", "x"]]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    text = 'platform = "cuda"\n[map.M]\ntype = "sum"\nlevel = "thread"\ndata = { n = "u64" }\n[probe.p]\n' \
        'position = "kernel"\nlevel = "thread"\nafter = "SAVE [ M ] { 1 };"\n'  # fmt: skip
    (tmp_path / "plain.toml").write_text(text)
    (tmp_path / "marked.toml").write_text("\ufeff" + text)
    plain, marked = (load_probes([str(tmp_path / f"{name}.toml")]) for name in ("plain", "marked"))
    assert plain.digest == marked.digest


def test_lists_of_probes_are_taken() -> None:
    one = neutrino.load_probes([["block_sched"], "gmem_bytes"])
    assert isinstance(one, ProbeSet)
    assert one.digest == neutrino.load_probes(["block_sched", "gmem_bytes"]).digest
    with pytest.raises(NeutrinoError, match="3 is no probe"):
        neutrino.load_probes([["block_sched", 3]])  # type: ignore[list-item]


def test_a_map_of_another_cell_is_said_to_belong_to_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for number, text in enumerate((
        'import neutrino.language as nl\n@nl.Map(type="sum", level="thread")\nclass Loaded:\n    n: nl.u64\n',
        '@nl.probe(pos="ld.global", level="thread", before=True)\ndef loads():\n    Loaded.save(1)\n',
    )):  # fmt: skip
        file = f"<cell {number}>"
        monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
        exec(compile(text, file, "exec"), names)
    loads = names["loads"]
    assert callable(loads)
    with pytest.raises(NeutrinoError, match="put it into the file, or the notebook's cell, that has the probe"):
        neutrino.load_probes(loads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("newcomer"), tmp_path_factory.getbasetemp() / "cache")
    folder.build()
    return folder


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("-k", "softmax"), "no kernel has softmax in its name; launched: saxpy, sum"),
        (("-k", "soft*", "-k", "re/lu"), "no kernel matches soft* or re/lu; launched: saxpy, sum"),
        (("--device", "7"), "the program has device 0 only"),
        # These have left out some, too.
        (("-k", "saxpy", "--filter", "saxpy"), "none of 4 launches was chosen (-k, "),
        (("-k", "saxpy", "--launches", "90:91"), "none of 4 launches was chosen (-k, "),
    ],
)
def test_what_chooses_nothing_says_what_there_is(folder: Folder, options: tuple[str, ...], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-p", "gmem_bytes", *options, "./program"],
        cwd=folder.path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith(f"neutrino: nothing was probed: {text}")
