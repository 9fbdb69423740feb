"""``neutrino-probe check`` and ``list``: every file, every fault, in words and in JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import neutrino.cli.extract
import neutrino.cli.patch
import neutrino.cli.run
from neutrino.probing import named_files
from neutrino.resources import shipped_probes
from neutrino.verification import load_probes

from .conftest import EXAMPLE, ROOT, Probe

SOUND = """\
[map.Loads]
type = "array"
level = "thread"
size = 16
cap = 4
data = { address = "u64", value = "f32", clock = "u32" }

[probe.loads]
position = "ld.global.f32"
level = "thread"
after = \"\"\"
.reg .u32 %now;
mov.u32 %now, %clock;
SAVE [ Loads ] { ADDR, OUT, %now };
\"\"\"
"""
PLACE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+):(?P<column>\d+): (?P<severity>error|warning): .+?( \[[a-z-]+\])?")


def checked(probe: Probe, *names: str) -> dict[str, Any]:
    said = probe("check", *names, "--json")
    assert said.err == ""
    files = json.loads(said.out)["files"]
    assert said.status == (0 if all(file["ok"] for file in files) else 2)
    return {file["file"]: file for file in files}


def test_a_sound_file_is_told_in_words_and_json(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "loads.toml").write_text(SOUND)
    said = probe("check", "loads.toml")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        "loads.toml: valid: 1 probe, 1 map",
        "  map Loads: up to 4 records of 16 bytes per thread: address u64, value f32, clock u32",
        "  probe loads: after ld.global.f32, level thread, 1 instruction",
    ]
    assert probe("check", "-q", "loads.toml").out == ""
    (file,) = checked(probe, "loads.toml").values()
    assert file["platform"] == "cuda"
    assert [(item["name"], item["position"], item["before"], item["after"]) for item in file["probes"]] == [
        ("loads", "ld.global.f32", False, True)
    ]
    assert [(field["name"], field["offset"]) for field in file["maps"][0]["fields"]] == [
        ("address", 0), ("value", 8), ("clock", 12)
    ]  # fmt: skip


def test_python_is_read_for_the_target_that_is_named(probe: Probe, tmp_path: Path) -> None:
    """A file in TOML names its own platform."""
    text = (ROOT / "probes" / "block_sched.py").read_text()
    (tmp_path / "sched.py").write_text(text)
    (tmp_path / "loads.toml").write_text(SOUND)
    for target, platform in ((), "cuda"), (("--target", "sm_100a"), "cuda"), (("--target", "gfx942"), "hip"):
        assert "sched.py: valid: 2 probes, 1 map" in probe("check", *target, "sched.py").out
        files = json.loads(probe("check", *target, "--json", "sched.py", "loads.toml").out)["files"]
        assert [file["platform"] for file in files] == [platform, "cuda"]
    refused = probe("check", "--target", "amd", "sched.py")
    assert refused.status == 2
    assert "--target amd: not an architecture; write it as sm_90 or gfx1100" in refused.err
    # Kernels of these get no twins.
    for target, supported in (("gfx1250", "for gfx90a, gfx942"), ("gfx9999", "for gfx90a"), ("sm_35", "from sm_75 on")):
        refused = probe("check", "--target", target, "sched.py")
        assert refused.status == 2
        assert f"--target {target}: machine code is supported {supported}" in refused.err


PLACED = """\
[map.Times]
type = "array"
level = "LEVEL"
size = 8
data = { clock = "u64" }

[probe.times]
position = "POSITION"
level = "LEVEL"
SIDE = \"\"\"
.reg .u64 %now;
mov.u64 %now, %clock64;
SAVE [ Times ] { %now };
\"\"\"
"""


@pytest.mark.parametrize(("level", "position", "side", "words"), [
    ("warp", "ld.global", "before", "the warp's first lane: nothing where it does not take part"),
    ("warp", "kernel | bar.sync", "before", "the warp's first lane: nothing where it does not take part"),
    ("warp", "loop-head", "before", "the warp's first lane: nothing where it does not take part"),
    ("block", "mma", "before", "the block's thread 0: nothing where it does not take part"),
    ("warp", "kernel", "after", "where the warp's first lane ends: others may go on"),
    ("block", "kernel", "after", "where the block's thread 0 ends: others may go on"),
    ("warp", "kernel", "before", ""), ("block", "kernel", "before", ""),  # where all are there
    ("warp", "mma | wgmma.mma_async", "before", ""),
    ("thread", "ld.global", "before", ""), ("thread", "kernel", "after", ""),
])  # fmt: skip
def test_probes_of_first_threads_are_warned_of(
    probe: Probe, tmp_path: Path, level: str, position: str, side: str, words: str
) -> None:
    text = PLACED.replace("LEVEL", level).replace("POSITION", position).replace("SIDE", side)
    (tmp_path / "times.toml").write_text(text)
    said = probe("check", "times.toml")
    (file,) = checked(probe, "times.toml").values()
    found = [(item["code"], item["line"]) for item in file["diagnostics"]]
    assert found == ([("first-lane", 7)] if words else [])
    assert words in said.err if words else said.err == ""
    assert said.status == 0
    # Those that load probes have no such warning: the report says it of what was recorded.
    assert not load_probes([str(tmp_path / "times.toml")]).warnings


def test_probes_that_describe_all_lanes_are_not_warned_of(probe: Probe, tmp_path: Path) -> None:
    """Shipped ones say what their records stand for; a copy of one that follows first lanes does not."""
    said = probe("check", "-q", *shipped_probes())
    assert (said.status, said.err) == (0, "")
    for name, warned in (("block_sched", 0), ("work_per_warp", 0), ("program_progress", 2)):
        (tmp_path / f"{name}.py").write_text(shipped_probes()[name].read_text())
        (file,) = checked(probe, f"{name}.py").values()
        assert [item["code"] for item in file["diagnostics"]] == ["first-lane"] * warned


def test_all_faults_of_all_files_are_said_at_once(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(SOUND.replace("%clock;", "%clok;").replace("ADDR, OUT", "ADRR, OUT"))
    (tmp_path / "two.toml").write_text(SOUND.replace("size = 16", "size = 12").replace('"thread"', '"wrap"', 1))
    (tmp_path / "three.toml").write_text(SOUND)
    said = probe("check", "one.toml", "two.toml", "three.toml", "nope.toml")
    assert said.status == 2
    places = [match for line in said.err.splitlines() if (match := PLACE.fullmatch(line))]
    found = {(place["file"], int(place["line"])) for place in places if place["severity"] == "error"}
    assert found == {("one.toml", 13), ("one.toml", 14), ("two.toml", 3), ("two.toml", 4)}
    for place in places:
        source = (tmp_path / place["file"]).read_text().splitlines()[int(place["line"]) - 1]
        assert f"{place['line']:>5} | {source}" in said.err
    assert "nope.toml: error: cannot read the probe file: No such file or directory" in said.err
    assert "three.toml: valid" in said.out
    files = checked(probe, "one.toml", "two.toml", "three.toml", "nope.toml")
    assert [file["ok"] for file in files.values()] == [False, False, True, False]
    from_json = {(name, item["line"]) for name, file in files.items() for item in file["diagnostics"] if item["line"]}
    assert from_json == found
    assert all(
        item["source"][item["column"] - 1 :].strip() for name in ("one.toml", "two.toml")
        for item in files[name]["diagnostics"]
    )  # fmt: skip


def test_faults_of_keys_hide_no_faults_of_snippets(probe: Probe, tmp_path: Path) -> None:
    """A map and a probe without their levels, a position that is none: what is saved and done is judged too."""
    text = SOUND.replace('level = "thread"\n', "").replace('"ld.global.f32"', '"no pattern"').replace("size = 16", "")
    text = text.replace("%clock;", "%clok;\nst.global.u32 [ADDR], 1;\nbar.sync 0\nmov.u32 IN1, 3;")
    text = text.replace("{ ADDR, OUT, %now }", "{ OUT }").replace("after =", "before =")
    (tmp_path / "many.toml").write_text(text)
    (file,) = checked(probe, "many.toml").values()
    assert [item["code"] for item in file["diagnostics"]] == [
        "missing-key", "missing-key", "position", "undeclared-register", "writes-memory", "synchronises",
        "no-semicolon", "write-refused", "save-operands", "out-in-before",
    ]  # fmt: skip


def test_a_save_that_is_none_does_not_leave_its_map_unused(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "save.toml").write_text(SOUND.replace("SAVE [", "save ["))
    (file,) = checked(probe, "save.toml").values()
    assert [item["code"] for item in file["diagnostics"]] == ["not-an-instruction"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[probe.x", "not TOML"),
        (b"\xff\xfe\0", "is not UTF-8"),
        (b"", "no [probe.NAME] in the file"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"x = 1\n" * 3, ""),
    ],
)
def test_what_is_no_probe_file_is_said(probe: Probe, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "p.toml").write_bytes(content)
    result = probe("check", "p.toml")
    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["./", "nope", "/dev/null/x.toml", "./nope.py"])
def test_what_cannot_be_read_is_said_of_the_file(probe: Probe, name: str) -> None:
    result = probe("check", name)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"{name}: error: ")
    assert len(result.err.splitlines()) == 1
    assert checked(probe, name)[name]["diagnostics"][0]["code"] == "unreadable-file"


def test_named_pipes_and_devices_are_refused_at_once(probe: Probe, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    for name, what in (("./fifo.toml", "a named pipe"), ("/dev/zero", "a device")):
        said = probe("check", name)
        assert said.status == 2
        words = f"cannot read the probe file: it is {what}, expected a file"
        assert said.err == f"{name}: error: {words} [unreadable-file]\n"
        assert f"it is {what}" in probe("sites", name, EXAMPLE).err


def test_pipes_of_the_shell_are_read() -> None:
    check = f"{sys.executable} -m neutrino.cli.probe check"
    script = f"printf %s \"$1\" | {check} /dev/stdin; {check} -q <(printf %s \"$1\"; sleep 0.2; echo 'x = 1')"
    done = subprocess.run(
        ["bash", "-c", script, "bash", SOUND], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("/dev/stdin: valid: 1 probe, 1 map\n")
    assert "unknown key 'x'" in done.stderr


def test_a_pipe_that_stays_silent_is_given_up(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "_PIPE_TIMEOUT", 0.1)
    reader, writer = os.pipe()
    try:
        said = probe("check", f"/dev/fd/{reader}")
    finally:
        os.close(reader)
        os.close(writer)
    assert said.status == 2
    assert "nothing came through the pipe for 0.1 s" in said.err


def test_warnings_are_no_faults(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SOUND.replace("position", "pos").replace("size = 16", 'size = "16"'))
    said = probe("check", "p.toml")
    assert said.status == 0
    assert said.err.count("warning: ") == 2
    assert said.out.startswith("p.toml: valid, with 2 warnings: ")
    (file,) = checked(probe, "p.toml").values()
    assert [item["severity"] for item in file["diagnostics"]] == ["warning", "warning"]


def test_every_command_refuses_a_wrong_probe_in_the_same_words(
    probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text(SOUND.replace("%clock;", "%clok;").replace("size = 16", "size = 12"))
    words = probe("check", "p.toml").err
    assert words.count("error: ") == 2
    assert [probe(command, "p.toml", EXAMPLE).err for command in ("sites", "show", "try")] == [words] * 3
    assert neutrino.cli.patch.main([str(EXAMPLE), "-p", "p.toml"]) == 2
    assert capsys.readouterr() == ("", words)
    assert neutrino.cli.extract.main([str(EXAMPLE), "--coverage", "-p", "p.toml"]) == 2
    assert capsys.readouterr() == ("", words)
    with pytest.raises(SystemExit) as ended:
        neutrino.cli.run.main(["-p", "p.toml", "true"])
    assert ended.value.code == 125
    assert capsys.readouterr() == ("", words)


def test_a_name_that_is_not_utf8_is_shown_with_escapes(probe: Probe, tmp_path: Path) -> None:
    name = os.fsdecode(b"p\xff.toml")
    (tmp_path / name).write_text(SOUND)
    said = probe("check", name)
    assert said.status == 0
    assert said.out.startswith("p\\udcff.toml: valid")
    assert checked(probe, name)[name]["ok"]


def test_the_list_names_every_shipped_probe_with_what_its_file_says(probe: Probe) -> None:
    said = probe("list")
    assert (said.status, said.err) == (0, "")
    document = {entry["name"]: entry for entry in json.loads(probe("list", "--json").out)["probes"]}
    assert set(document) == set(shipped_probes())
    for name, path in shipped_probes().items():
        first = path.read_text().splitlines()[0]
        assert first == f"# {document[name]['summary']}"
        assert document[name]["summary"] in said.out
        assert document[name]["file"] == str(path)
    assert max(map(len, said.out.splitlines())) <= 120


_STARTING = """
import contextlib, io, json, sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
import neutrino.cli.probe
at_start = list(sys.modules)
from tests.work import counted
with counted() as work, contextlib.redirect_stdout(io.StringIO()):
    assert neutrino.cli.probe.main(["list"]) == 0
print(json.dumps([at_start, list(sys.modules), work.calls, opened]))
"""


def test_starting_it_needs_little() -> None:
    """Modules, calls and files: 1.1 million calls are usual, of which the 20 files need the most."""
    said = subprocess.run(
        [sys.executable, "-c", _STARTING], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    at_start, later, calls, opened = json.loads(said)
    slow = {"rich", "numpy", "neutrino.maker.patcher", "difflib"}
    assert not (slow | {"neutrino.probing.model"}) & set(at_start)
    assert not slow & set(later)
    assert len(later) < 350
    assert calls < 2_200_000
    read = Counter(name for name in opened if Path(name) in shipped_probes().values())
    assert read == dict.fromkeys(map(str, shipped_probes().values()), 1)


@pytest.mark.parametrize(
    "arguments", [("list", "extra"), ("check", "p.toml", "--nope"), ("sites", "p.toml", "k.ptx", "--nope")]
)
def test_what_a_command_does_not_take_is_said_in_a_line(
    probe: Probe, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        probe(*arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    words = f"neutrino-probe {arguments[0]}"
    assert said == f"{words}: unrecognized arguments: {arguments[-1]}; see {words} --help\n"


@pytest.mark.parametrize("command", ["check", "list", "sites", "show", "try"])
def test_every_command_explains_itself(
    probe: Probe, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        probe(command, "--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: neutrino-probe {command} ")
    assert "--json" in said
