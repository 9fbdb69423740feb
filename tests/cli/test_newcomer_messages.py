"""What somebody types on the first day, and what is said: each message names what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import neutrino
from neutrino.cli import ctl, extract, patch, probe, report
from neutrino.cli.command_hints import hint_of_command, options_after
from neutrino.cli.one_liner_results import one_remedy
from neutrino.cli.run import main
from neutrino.errors import NeutrinoError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.tracing.expression import Expression
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
    # Of kinds that were found by trying.
    "ld.global { @ = mean(BYTES) }": "did you mean avg?",
    "ld.global { @ = quantize(BYTES) }": "did you mean hist?",
    "ld.global { record(BYTES) }": "did you mean save?",
    "kernel { @ = max(cycles) }": "did you mean elapsed?",
    "kernel { @ = max(Duration) }": "did you mean elapsed?",
    "ld.global { @[kernel] = count() }": "results are shown for each kernel anyway",
    "ld.global { @[pid] = count() }": "each process has a trace of its own",
    "kernel:saxpy { @ = count() }": "the option -k saxpy selects kernels",
    "entry { @ = count() }": "did you mean 'kernel'?",
    "ld.global { @[blockIdx.x] = count() }": "did you mean ctaid?",
    "ld.global /tid == 0 && warpid == 1/ { @ = count() }": "write 'and' and 'or'",
    "ld.global { @ = avg(BYTES * 0.5) }": "convert the other value, as in f32(…) * 0.5",
    'ld.global /line == "a.cu:3"/ { @ = count() }': "a source line is a position, as in saxpy.cu:42",
    "ld.global /BYTES in (4, 8)/ { @ = count() }": "compare one by one: x == 4 or x == 8",
    "ld.global /BYTES > 4 and/ { @ = count() }": "the condition ends too early",
    "ld.global { @ = count() if BYTES > 4 }": "or a filter: POSITION /CONDITION/ {",
    "ld.global { @x = sum(@y) }": "@y is a map, which a probe cannot read",
    "ld.global { clear(@x) }": "results are printed when COMMAND ends",
    "ld.global { @ = max(tid.w) }": "places have x, y and z",
    "": "-e has an empty text",
    'ld.global { print("%d", BYTES) }': "write {} instead of %d",
    "ld.global { @ = count( }": "write a ) before the }",
    "ld.global { n = count() }": "write @n = count()",
    "kernel { @ = median(elapsed) }": "did you mean hist?",
    "ld.global { @ = avg(latency) }": "-p latency (loads)",
    "st.global { @ = max(VALUE) }": "IN1, IN2 … what it takes",
    "ld.global { @[file] = count() }": "line is the source line",
    "ld.global { @x[line][smid] = count() }": "a map has one key: join several",
    "line:35 { @ = count() }": "does not say of which file",
    "gmem_bytes": "for the shipped probe: -p gmem_bytes",
    "ld.global /tid.x < 32 & ctaid.x == 0/ { @ = count() }": "& and | bind tighter",
    "ld.global { @my-map = count() }": "letters, digits and underscores",
    'ld.global { @"name" = count() }': "letters, digits and underscores",
    "ld.global { @x = count(), @y = count() }": "statements have a ; between them",
    "kernel:end { @ = max(elapsed) }": "with elapsed, or after=True, the probe runs where they end",
    "global { @ = count() }": 'write "memory & global"',
    "memory && global { @ = count() }": 'with one "&"',
    "for i in range(4): { @ = count() }": "a position comes first",
}


IN_PYTHON = {
    "S.save(nl.clock)": "call it: nl.clock()",
    "S.save(nl.min)": "call it: nl.min(…, …)",
    "S.append(nl.addr)": "write S.save(nl.addr)",
    "S.save((nl.addr, nl.bytes))": "write S.save(nl.addr, nl.bytes)",
    "S.save(nl.address)": "did you mean nl.addr?",
    "S.save(nl.program_id)": "did you mean nl.block?",
    "x.save(1)": "there is no map x here",
    "S.value += 1": "as a whole record: S.save(…)",
    "S[nl.lane] = 1": "as a whole record: S.save(…)",
    "S.save(S.value)": "a map is saved to, and not read",
    "S.save(nl.bytes ** 2)": "write x * x",
    "S.save(time.time())": "did you mean nl.time()?",
    "S.save(nl.address())": "did you mean nl.addr?",
    "S.save(nl.size)": "did you mean nl.bytes?",
    "S.save(NL.bytes)": "the language is called nl here",
    "S.save([nl.bytes])": "records go into a map",
    "S.save(nl.threadIdx.x)": "did you mean nl.tid.x?",
    "if nl.lane == 0 && nl.warpid == 0: S.save(1)": "write 'and' and 'or'",
    "pass": "save a value to a map: NAME.save(…)",
}
HEAD = """from neutrino import Map, probe
import neutrino.language as nl


@Map(level="thread", type="log")
class S:
    value: nl.u64


"""


@pytest.mark.parametrize("text", IN_PYTHON)
def test_probes_in_python(text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(f'{HEAD}@probe(pos="ld.global", level="thread")\ndef p():\n    {text}\n')
    with pytest.raises(NeutrinoError) as raised:
        load_probes([str(file)])
    assert IN_PYTHON[text] in str(raised.value)


def test_a_probe_takes_no_arguments_and_a_map_is_saved_at_its_level(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(f'{HEAD}@probe(pos="ld.global", level="thread")\ndef p(address):\n    S.save(address)\n')
    with pytest.raises(NeutrinoError, match=r"its values are those of the instruction, such as nl\.addr"):
        load_probes([str(file)])
    file.write_text(f'{HEAD}@probe(pos="kernel", level="warp")\ndef p():\n    S.save(nl.clock())\n')
    with pytest.raises(NeutrinoError, match='give both the same level: level = "thread"'):
        load_probes([str(file)])


# What tools are given, by their first word, and what they say.
GIVEN = [
    (ctl, ["off"], "comes first: neutrino-ctl PID COMMAND"),
    (ctl, ["1", "of"], "did you mean off?"),
    (ctl, ["1", "stop"], "did you mean off?"),
    (probe, ["validate", "x.py"], "did you mean check?"),
    (patch, ["x.so", "-P", "block_sched"], "did you mean -p?"),
    (probe, ["lst"], "did you mean list?"),
    (patch, ["x.so", "-p", "block_sched", "--emit", "pttx"], "did you mean ptx?"),
    (report, ["--rows", "x"], "'x' is not a number of rows"),
    (report, ["--csv", "--json"], "--csv without --json"),
    (report, ["trace", "--csv", "out.csv"], "print on stdout: write > out.csv"),
    (report, ["trace", "--html"], "write --html FILE"),
    (report, ["--trace", "x"], "it is given without --trace"),
    (report, ["x", "--format", "json"], "did you mean --json?"),
    (report, ["x", "-o", "x.html"], "did you mean --html?"),
    (extract, ["x.so", "--ptx"], "did you mean --output?"),
]


COMMANDS = {
    ("block_sched", "./program"): "before each probe stands -p: -p block_sched",
    ("list",): "neutrino probe list is meant",
    ("check", "mine.py"): "neutrino probe check … is meant",
    ("status", "1234"): "neutrino ctl PID status is meant",
    ("record", "./program"): "without it: neutrino [-p PROBE] COMMAND",
    ("python -c 'print(1)'",): "neutrino … python -c 'print(1)'",
    ("sleep 1 | cat",): "for a shell: neutrino … sh -c 'sleep 1 | cat'",
    ("folder",): "it is a folder",
    ("traces",): "to read a trace: neutrino report traces",
    ("mine.py", "x"): "a probe stands after -p: -p ./mine.py",
    ("script.py",): "a script: neutrino … python script.py",
    ("mine.toml",): "a probe stands after -p: -p ./mine.toml",
    ("program",): "of this folder: ./program",
    ("kernel.cu",): "a source is compiled first",
    ("nothing-like-it",): "",
    ("sh", "-c", "true"): "",
}
"""What stands where COMMAND is, in a folder with such files → what is meant."""
AFTER = {
    ("./program", "-p", "gmem_bytes"): "-p gmem_bytes stands after COMMAND",
    ("./program", "x", "--device", "embedded:seed=1"): "--device embedded:seed=1 stands after COMMAND",
    ("./program", "-e", "ld.global { @n = count() }"): "stands after COMMAND",
    ("./program", "-p", "mine.py"): "-p mine.py stands after COMMAND",
    # Options of COMMAND's own.
    ("ssh", "-p", "22"): "", ("python", "train.py", "--device", "cuda"): "", ("perl", "-e", "print {1}"): "",
    ("./program", "-p"): "", ("./program",): "",
}


@pytest.fixture
def with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "traces" / "one").mkdir(parents=True)
    (tmp_path / "traces" / "one" / "events.jsonl").touch()
    texts = {"mine.py": "@nl.probe(pos='ld')\n", "script.py": "print('@probe(')\n", "mine.toml": "", "kernel.cu": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "program").touch(0o755)


@pytest.mark.usefixtures("with_files")
def test_what_is_meant_by_a_command_that_there_is_not() -> None:
    for command, said in COMMANDS.items():
        hint = hint_of_command(command)
        assert (said in hint) if said else not hint, (command, hint)


@pytest.mark.usefixtures("with_files")
def test_options_after_the_command_are_said_to_be_its_own() -> None:
    for command, said in AFTER.items():
        after = options_after(command)
        assert (said in after) if said else not after, (command, after)


@pytest.mark.usefixtures("with_files")
def test_a_command_that_there_is_not_ends_with_what_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--device", "embedded", "-p", "gmem_bytes", "block_sched", "./program"])
    said = "neutrino: block_sched: command not found; before each probe stands -p: -p block_sched\n"
    assert (ended.value.code, capsys.readouterr().err) == (127, said)


@pytest.mark.parametrize(("command", "arguments", "hint"), GIVEN)
def test_tools_say_it_in_a_line(
    command: object, arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)  # type: ignore[attr-defined]
    text = capsys.readouterr().err
    assert (ended.value.code, hint in text, text.count("\n")) == (2, True, 1), text


def test_what_reports_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(b"x")
    for arguments, hint in {
        (str(file),): "a file, and traces are folders",
        ("--fail-if", "nan_count => 0"): "write it as in nan_count > 0",
    }.items():
        assert report.main(arguments) == 2
        assert hint in capsys.readouterr().err
    with pytest.raises(NeutrinoError) as raised:
        Expression.read("elapsed > 10k", {"elapsed": False})
    assert raised.value.hint == "write the number in digits alone, as 10000"  # type: ignore[attr-defined]
    for text, hint in {
        "elapsed = 4": "write == to compare", "elapsed > 4 && elapsed < 9": "write 'and' and 'or'",
        "elapsed >": "it ends where a value is missing", "!elapsed": "write 'not'", "elapsed, elapsed": "join two",
    }.items():  # fmt: skip
        with pytest.raises(NeutrinoError) as raised:
            Expression.read(text, {"elapsed": False})
        assert hint in raised.value.hint  # type: ignore[attr-defined]


def test_an_option_without_its_value_has_taken_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --device?" in said(["-device", "embedded", "-p", "block_sched", "true"], capsys)
    assert "neutrino probe list lists the probes" in said(["--list"], capsys)
    assert "goes after -e" in said(["--device", "embedded", "-p", "ld { @n = count() }", "true"], capsys)
    assert "no COMMAND to run: -k needs a value, and took true" in said(["-p", "block_sched", "-k", "true"], capsys)
    assert "no COMMAND to run; see neutrino --help" in said(["-p", "block_sched", "-k", "nosuch"], capsys)


LIBRARY = Path(__file__).parents[2] / "examples" / "amd" / "libvector.so"


def test_what_a_file_has_that_was_not_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    extract.main([str(LIBRARY), "--kernels", "-k", "nosuch"])
    assert "no image or kernel matches; its kernels are saxpy, sum" in capsys.readouterr().err
    extract.main([str(LIBRARY), "--arch", "gfx90a"])
    assert "no image or kernel matches; its images are for gfx1100, gfx942" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            "probe 'e1' at line 27: 'ld.param.u64 %x': OUT is .b64, but 'mov.b32' takes .b32: take it as one of 64",
            "OUT is .b64: write 'POSITION & u64 { … u64(OUT) … }', and a clause for each other type",
        ),
        (
            "probe 'e1' at line 9: '@%p ld.global.f32 %v, [%x]': OUT of ld.global.f32 is .f32, but field 'sum' is u64: "
            "write f32(OUT)",
            "but field 'sum' is u64: write f32(OUT)",
        ),
        ("probe 'e1' at line 39: 'st.global.f32 [%y], %r': st.global.f32 has no OUT", "instructions that have OUT, as"),
        ("the kernel refers to a texture", "the kernel refers to a texture"),
    ],
)
def test_operands_of_several_types_have_one_remedy(detail: str, said: str) -> None:
    assert said in one_remedy(detail)


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
        ("-p", "examples/embedded/kernels.ptx"): "GPU code or a program, and no probe",
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
    monkeypatch.setattr("neutrino.cli.run.start", lambda request, _: commands.append(request.command))
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
        (("--device", "7"),
         "none of 4 launches was chosen (--device 7 or neutrino-ctl); the program has device 0 only"),
        # These have left out some, too.
        (("-k", "saxpy", "--filter", "saxpy"),
         "none of 4 launches was chosen (-k saxpy, --filter saxpy or neutrino-ctl)"),
        (("-k", "saxpy", "--launches", "90:", "--every", "2"),
         "none of 4 launches was chosen (-k saxpy, --launches 90:, --every 2 or neutrino-ctl)"),
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
    if "was chosen" in text:
        path = folder.path / done.stderr.splitlines()[-2].removeprefix("neutrino: trace in ")
        assert neutrino.open_trace(path).coverage.sentence == f"nothing was probed: {text.partition(';')[0]}"
