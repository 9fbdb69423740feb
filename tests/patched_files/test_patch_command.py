"""``neutrino-patch`` as users call it: what it prints, writes and answers, and the road to a trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neutrino.cli.patch import _parser, main
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.toolchain.ptxas import Assembler
from tests.patched_files.libraries import SCALE, STORE, fatbin, link

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def original(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    texts = (SCALE, STORE)
    containers = [fatbin(assembler, text, cubins=["sm_80"], ptx=["sm_80"]) for text in texts]
    containers.append(fatbin(assembler, STORE.replace("store", "bare"), cubins=["sm_80"]))
    return link(tmp_path_factory.mktemp("original") / "libk.so", containers).read_bytes()


@pytest.fixture
def library(original: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("libk.so")
    path.write_bytes(original)
    path.chmod(0o755)
    return path


BLOCK_SCHED = ("-p", "block_sched", "--arch", "80", "-j", "1")


def test_the_table_and_the_file(library: Path, original: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED]) == 0
    printed = capsys.readouterr()
    assert "libk.so → libk.neutrino.so\n4 kernels for sm_80: 3 of 4 probed\n" in printed.out
    assert len(re.findall(r"^(?:scale|clear|store) +[01]\.0 +sm_80 +2 +\d+ → \d+$", printed.out, re.MULTILINE)) == 3
    assert re.search(r"^ +1  no-ptx  sm_80 machine code without PTX: bare *$", printed.out, re.MULTILINE)
    assert printed.err == ""
    patched = Path("libk.neutrino.so")
    assert (patched.stat().st_mode & 0o777, library.read_bytes() == original) == (0o755, True)
    assert main(["--check", str(patched)]) == 0
    assert "libk.neutrino.so: valid: 3 twins by block_sched for sm_80, sm_86, " in capsys.readouterr().out
    assert main(["--restore", str(patched), "-o", "back.so"]) == 0
    assert Path("back.so").read_bytes() == original


def test_scripts_stay_where_they_are_which_is_said(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").touch()
    shipped = (Path(__file__).parents[1] / "fixtures/probes/hand/block_sched.toml").read_text()
    Path("probes.toml").write_text(f'analyze_hook = "script.py"\n{shipped}')
    assert main([str(library), "-p", "probes.toml", *BLOCK_SCHED[2:], "--json"]) == 0
    path = Path("script.py").absolute()
    note = f"scripts are not stored in the copy; neutrino-report TRACE --analyze runs {path} if it exists then"
    assert note in json.loads(capsys.readouterr().out)["notes"]


def test_json_has_every_kernel(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED, "--json", "-o", "new/"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["input"], document["output"]) == ("libk.so", "new/libk.so")
    assert Path("new/libk.so").is_file()
    rows = {row["name"]: row for row in document["kernels"]}
    assert set(rows) == {"scale", "clear", "store", "bare"}
    for name, container in (("scale", 0), ("clear", 0), ("store", 1)):
        row = rows[name]
        registers = row.pop("registers")
        assert registers["twin"] >= registers["original"] > 0
        assert row == {
            "name": name, "demangled": name, "container": container, "image": 0, "arch": "sm_80",
            "devices": ["sm_80", "sm_86", "sm_87", "sm_88", "sm_89"], "status": "probed", "reason": None, "detail": "",
            "sites": 2, "retargeted": None, "probes_left_out": [],
        }  # fmt: skip
    bare = rows["bare"]
    assert (bare["status"], bare["reason"], bare["registers"]) == ("skipped", "no-ptx", None)
    assert document["totals"] == {"kernels": 4, "probed": 3, "skipped": 1, "reasons": {"no-ptx": 1}}


def test_kernels_that_are_not_chosen_name_options_that_there_are(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(library), *BLOCK_SCHED, "-n", "-k", "nothing"]) == 3
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "not-selected" in line)
    assert "not chosen by -k or --filter: " in row
    named = re.findall(r"--?[a-z][\w-]*\b", row.partition("not chosen")[2])
    assert named == ["-k", "--filter"]
    assert set(named) <= set(_parser()._option_string_actions)


def test_a_dry_run_writes_nothing_and_says_the_same(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED, "--json", "-n"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in Path().iterdir()) == ["libk.so"]
    assert (dry["output"], dry["totals"]["probed"]) == (None, 3)


def test_a_kernel_counts_once_for_each_architecture(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED, "--arch", "90", "-n"]) == 0
    counted = "4 kernels for sm_80, sm_90: 6 of 7 probed, counted once per architecture that they have code for"
    assert counted in capsys.readouterr().out


@pytest.fixture(scope="module")
def compiled_for_others(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code beside PTX of another architecture: one that gives this code, and one that does not."""
    containers = []
    for text, code in ((SCALE, SCALE), (STORE, STORE.replace(", 7", ", 8"))):
        cubin = assembler.assemble(code.format(arch="sm_90"), "sm_90").cubin
        entries = [
            build_entry(ImageKind.CUBIN, cubin, "sm_90"),
            build_entry(ImageKind.PTX, text.format(arch="sm_120").encode(), "sm_120", version=(8, 7), options=""),
        ]
        containers.append(build_container(entries))
    return link(tmp_path_factory.mktemp("others") / "libo.so", containers)


def test_what_retargeted_twins_stand_for(
    compiled_for_others: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    command = [str(compiled_for_others), "-p", "block_sched", "--arch", "90", "-j", "1", "-n"]
    assert main([*command, "--retarget"]) == 0
    proven = capsys.readouterr().out
    assert re.search(r"^scale .* sm_120 → sm_90, same code *$", proven, re.MULTILINE)
    assert re.search(r"^ +1  variant  .*not proven to be the program that runs.*: store *$", proven, re.MULTILINE)
    assert "unproven" not in proven
    assert main([*command, "--retarget-unproven"]) == 0
    asked = capsys.readouterr().out
    assert re.search(r"^scale .* sm_120 → sm_90, same code *$", asked, re.MULTILINE)
    assert re.search(r"^store .* sm_120 → sm_90, unproven *$", asked, re.MULTILINE)
    assert "\n1 twin unproven: the PTX is not proven to be the program that runs" in asked
    assert main([*command, "--retarget", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["kernels"]}
    assert rows["scale"]["retargeted"] == {"target": "sm_120 → sm_90", "same_code": True, "own_text": False}
    assert rows["store"]["retargeted"] == {"target": "sm_120 → sm_90"}


def test_patching_again_says_what_becomes_of_the_twins(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED, "-k", "scale", "-o", "first.so"]) == 0
    assert "patched already" not in capsys.readouterr().out
    assert main(["first.so", *BLOCK_SCHED, "-o", "second.so"]) == 0
    words = "note: the input is patched already (1 twin with block_sched); its twins are replaced"
    assert words in capsys.readouterr().out


def test_what_is_of_no_use_is_noted(
    library: Path, compiled_for_others: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(compiled_for_others), "-p", "block_sched", "-j", "1", "--retarget", "-k", "scale"]
    assert main([*command, "--arch", "90", "--arch", "75", "-n"]) == 0
    assert "\nnote: nothing in the file runs on sm_75, so there are no twins for it\n" in capsys.readouterr().out
    for stub, words in (
        ("/nowhere/stub.so", "the stub is not on this machine: /nowhere/stub.so; "),
        ("$ORIGIN/stub.so", "the stub is not on this machine: $ORIGIN/stub.so; "),
        (f"{library.absolute()}/stub.so", "the stub is not on this machine: "),
        ("/etc/passwd", "the stub is not a library: /etc/passwd; "),
        (str(library.absolute()), ""),
    ):
        assert main([*command, "--arch", "90", "--stub", stub, "-o", "copy.so"]) == 0
        notes = re.findall(r"^note: (the stub .*)$", capsys.readouterr().out, re.MULTILINE)
        assert [note.startswith(words) for note in notes] == ([True] if words else [])
    assert main([*command, "--arch", "90", "--stub", ""]) == 2
    assert "--stub: needs the path of a library" in capsys.readouterr().err


def test_stages_are_kept(library: Path) -> None:
    assert main([str(library), *BLOCK_SCHED, "--save-temps", "temps", "-k", "scale"]) == 0
    kept = {str(path.relative_to("temps")) for path in Path("temps").glob("*/*")}
    assert {"0.sm_80/original.ptx", "0.sm_80/probed.ptx", "0.sm_80/probed.cubin", "0.sm_80/image.bin"} <= kept


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-k", "nothing"], 3, "libk.so: no kernel matched; there are bare, clear, scale, store; no file was written"),
        (["-k", "bare"], 3, "libk.so: no kernel could be probed; no file was written"),
        (["-o", "libk.so"], 2, "libk.so: is the input itself; name another output with -o"),
        (["-o", "absent/out.so"], 2, "patch: absent/out.so: No such file or directory\n"),
        (["-o", "libk.so/"], 2, "patch: libk.so/libk.so: Not a directory\n"),
        (["--arch", "hopper"], 2, "--arch hopper: not an architecture; write it as sm_90"),
        (["-k", "/(/"], 2, "not a regular expression"),
        (["-p", "no_such_probe"], 2, "no_such_probe"),
        (["--device", "imagined"], 2, "there is no device of that name"),
        (["--device", "embedded"], 2, "the embedded device is an sm_90; leave --arch out"),
    ],
)
def test_exit_status_and_words(
    library: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    assert main([str(library), *BLOCK_SCHED, *arguments]) == status
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["libk.so"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no FILE to patch"),
        (["libk.so"], "name at least one with -p"),
        (["libk.so", "-p", "block_sched", "-j", "0"], "number of processes"),
        (["libk.so", "--check", "libk.so"], "take one FILE"),
        (["--check", "a", "--restore", "b"], "not allowed with"),
        (["--check", "a", "-o", "b"], "--output cannot be used with --check"),
        (["--restore", "a", "-o", "b", "--arch", "90"], "--arch cannot be used with --restore"),
        (["--check", "a", "-n"], "--dry-run cannot be used with --check"),
    ],
)
def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for arguments in ([str(fifo), *BLOCK_SCHED], ["--check", str(fifo)], ["--restore", str(fifo)]):
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"neutrino-patch: {fifo}: is not a regular file\n"
        assert main([str(tmp_path) if word == str(fifo) else word for word in arguments]) == 2
        assert capsys.readouterr().err == f"neutrino-patch: {tmp_path}: Is a directory\n"


def test_what_cannot_be_written_is_named(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), *BLOCK_SCHED, "-k", "scale"]) == 0
    capsys.readouterr()
    patched = "libk.neutrino.so"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    again, back = [str(library), *BLOCK_SCHED, "-k", "scale", "-o"], ["--restore", patched, "-o"]
    for arguments, target in ((again, "a.so"), (back, "b.so")):
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
        try:
            assert main([*arguments, target]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert capsys.readouterr().err == f"neutrino-patch: {target}: File too large\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["libk.neutrino.so", "libk.so"]
    command = f"'{sys.executable}' -m neutrino.cli.patch --check {patched} >/dev/full"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "neutrino-patch: standard output: No space left on device\n")


def test_files_that_are_not_for_patching(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("text")
    vendor = Path("libcublas.so.12")
    vendor.write_bytes(library.read_bytes())
    assert main(["text", *BLOCK_SCHED, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refused"].startswith("is not an ELF file; ")
    assert main(["text", *BLOCK_SCHED]) == 2
    assert main(["absent.so", *BLOCK_SCHED]) == 2
    assert main([str(vendor), *BLOCK_SCHED]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("neutrino-patch: text: is not an ELF file; patch the shared library or program")
    assert lines[1:] == [
        "neutrino-patch: absent.so: No such file or directory",
        "neutrino-patch: libcublas.so.12: vendor: libcublas.so.12 is a vendor-licensed library, never rewritten",
    ]
    for mode in ("--check", "--restore"):
        assert main([mode, str(library)]) == 2
    printed = capsys.readouterr()
    assert "libk.so: fault: there is no .neutrino section: the file is not patched" in printed.out
    assert "libk.so" in printed.err


@contextlib.contextmanager
def stuck(assembler: Assembler, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """A run whose assemblers do not end; their process ids, a line each; and where its temporary files go."""
    tool = tmp_path / "tools" / "ptxas"
    tool.parent.mkdir()
    begun = tmp_path / "tools" / "begun"
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exec {assembler.path} "$@";; esac\necho $$ >> {begun}\nexec sleep 60\n'
    )
    tool.chmod(0o755)
    scratch = tmp_path / "tools" / "scratch"
    scratch.mkdir()
    environment = os.environ | {"NEUTRINO_PTXAS": str(tool), "TMPDIR": str(scratch)}
    argv = [sys.executable, "-m", "neutrino.cli.patch", "libk.so", *BLOCK_SCHED, "-j", "2"]
    with subprocess.Popen(argv, env=environment) as process:
        until = time.monotonic() + 600
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield process, begun, scratch


def test_a_terminated_run_leaves_nothing(library: Path, assembler: Assembler, tmp_path: Path) -> None:
    with stuck(assembler, tmp_path) as (process, begun, scratch):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libk.so", "tools"]
    assert list(scratch.iterdir()) == []
    for line in begun.read_text().split():
        assert not Path(f"/proc/{line}").exists() or "Z" in Path(f"/proc/{line}/stat").read_text().split()[2]


def test_the_next_run_removes_what_a_killed_one_left(
    library: Path, assembler: Assembler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stuck(assembler, tmp_path) as (process, begun, _):
        (left,) = tmp_path.glob(".libk.neutrino.so.*.neutrino-part")
        # Somebody's who patches into the same folder meanwhile.
        assert main([str(library), *BLOCK_SCHED, "-o", "other.so"]) == 0
        assert left.exists()
        process.kill()
    capsys.readouterr()
    # Its workers wait for their assemblers still.
    assert main([str(library), *BLOCK_SCHED]) == 0
    assert capsys.readouterr().err == f"neutrino-patch: removed {left.name}, left by a run that was killed\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libk.neutrino.so", "libk.so", "other.so", "tools"]
    for line in begun.read_text().split():
        os.kill(int(line), signal.SIGKILL)


@pytest.mark.parametrize("recording", [True, False])
def test_a_patched_library_is_recorded_or_runs_as_it_was(tmp_path: Path, recording: bool) -> None:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make or no C compiler")
    make = ["make", "-s", "-C", str(ROOT / "examples" / "embedded"), f"OUT={tmp_path}", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEUTRINO_")}
    plain = environment | EmbeddedDevice().environment(environment) | {"LD_LIBRARY_PATH": str(stand_in().parent)}
    expected = subprocess.run([tmp_path / "program"], env=plain, capture_output=True, check=True).stdout
    library = tmp_path / "libvector.so"
    # A stub that is not there: what is recorded is recorded by the command.
    arguments = ["-p", "block_sched", "-p", "gmem_bytes", "--device", "embedded", "--stub", "$ORIGIN/absent.so"]
    assert main([str(library), *arguments, "-o", f"{tmp_path}/patched/"]) == 0
    assert main(["--check", f"{tmp_path}/patched/libvector.so"]) == 0
    (tmp_path / "patched" / "libvector.so").replace(library)
    if not recording:
        done = subprocess.run([tmp_path / "program"], env=plain, capture_output=True, check=True)
        assert done.stdout == expected
        return
    command = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "--tracedir", str(tmp_path / "trace")]
    done = subprocess.run([*command, tmp_path / "program"], env=environment, capture_output=True, check=True)
    assert done.stdout == expected
    report = [sys.executable, "-m", "neutrino.cli.report", str(tmp_path / "trace"), "--json"]
    (trace,) = json.loads(subprocess.run(report, capture_output=True, check=True).stdout)["traces"]
    found = {kernel["name"]: {entry["name"]: entry for entry in kernel["maps"]} for kernel in trace["kernels"]}
    assert set(found) == {"saxpy", "sum"}
    # 4096 elements: saxpy, run three times, reads x and y and writes y, 4 bytes each.
    fields = {field["name"]: field["total"] for field in found["saxpy"]["GmemBytes"]["fields"]}
    assert (fields["load"], fields["store"]) == (3 * 4096 * 8, 3 * 4096 * 4)
    assert found["saxpy"]["BlockSched"]["records"] == 3 * 4096 // 32


WIDE = "\n".join(
    [
        ".visible .entry wide(.param .u64 p)",
        "{{ .reg .u64 %a; .reg .f32 %f<36>; ld.param.u64 %a, [p];",
        *(f"ld.global.f32 %f{index}, [%a+{4 * index}];" for index in range(36)),
        "bar.sync 0;",
        *(f"st.global.f32 [%a+{4 * index}], %f{35 - index};" for index in range(36)),
        "ret; }}\n",
    ]
)
"""It holds 36 values at once."""


def test_a_fall_of_occupancy_is_named_and_a_cap_prevents_it(
    assembler: Assembler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = SCALE.split(".visible")[0]
    link(Path("libwide.so"), [fatbin(assembler, head + WIDE, cubins=["sm_80"], ptx=["sm_80"])])

    def patched(*options: str) -> tuple[str, dict[str, object]]:
        assert main(["libwide.so", "-p", "coalescing", "--arch", "80", "-j", "1", "-n", *options]) == 0
        text = capsys.readouterr().out
        assert main(["libwide.so", "-p", "coalescing", "--arch", "80", "-j", "1", "-n", "--json", *options]) == 0
        (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
        return text, kernel

    text, kernel = patched()
    # A quarter of a multiprocessor has 16,384 registers, and a warp gets a multiple of 8 for each lane.
    assert kernel["registers"]["original"] == 48
    warps = 4 * (16_384 // (-(-kernel["registers"]["twin"] // 8) * 8 * 32))
    assert warps < 40
    assert kernel["warps_by_registers"] == {"original": 40, "twin": warps}
    said = f"wide may run with fewer blocks at a time: by registers alone {warps} of 40 warps fit on a multiprocessor"
    assert said in text
    assert "max_registers" not in kernel
    text, kernel = patched("--max-registers", "48")
    assert (kernel["registers"], kernel["max_registers"]) == ({"original": 48, "twin": 48}, 48)
    assert "warps_by_registers" not in kernel
    assert "fewer blocks" not in text
