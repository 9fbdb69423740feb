"""What commands print for what somebody tries who has read the README alone."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import neutrino
from neutrino.backend import registry
from neutrino.cli import extract, patch, probe, report, run
from neutrino.cli.command_hints import hint_of_command, options_after
from neutrino.errors import NeutrinoError, ProbeError
from neutrino.loader.driver import find_driver
from neutrino.verification import check_probes
from tests.tracing.trace_writer import TraceWriter, fill_regions, make_map


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of one launch, in the current folder."""
    monkeypatch.chdir(tmp_path)
    times = make_map("Times", "array", "warp", {"start": "u64", "elapsed": "u32"})
    writer = TraceWriter(tmp_path / "trace" / "Nov20_131500_1")
    writer.kernel(1, "saxpy", maps=[times])
    writer.launch(1, (1, 1, 1), (64, 1, 1), fill_regions([times], 2, {"Times": [(4, 1), (8, 2)]}))
    return writer.write().relative_to(tmp_path)


@pytest.mark.parametrize("option", ["--html", "--perfetto", "--iket"])
@pytest.mark.parametrize("text", ["import os\n", "\n" + "x = 1  # @\n" * 9, '{"a": 1}', "<!doctype html><title>mine"])
def test_a_file_of_somebody_else_is_not_overwritten(
    option: str, text: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("copy.py")
    file.write_text(text)
    assert report.main([str(trace), option, "copy.py"]) == 2
    assert "copy.py: exists, and is not a " in capsys.readouterr().err
    assert file.read_text() == text
    # Its own are replaced, and empty ones.
    file.write_text("")
    for _ in range(2):
        assert report.main([str(trace), option, "copy.py"]) == 0
    assert file.stat().st_size > 100


def test_a_picture_of_somebody_else_is_not_overwritten(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for form in ("png", "svg"):
        for _ in range(2):
            assert report.main([str(trace), f"--{form}", form]) == 0
        file = next(Path(form).iterdir())
        file.write_text("mine")
        capsys.readouterr()
        assert report.main([str(trace), f"--{form}", form]) == 2
        assert f"{file}: exists, and is not a picture of neutrino-report" in capsys.readouterr().err
        assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["traces"], "traces: no such folder; did you mean trace?"),
        (["nothing"], "nothing: no such folder; 'neutrino -p PROBE COMMAND' makes a trace in ./trace"),
        (["--perfetto", "x.pftrace", "tracce"], "tracce: no such folder; did you mean trace?"),
        (["--html", "trace"], "--html takes a file, and trace is a folder: neutrino-report trace --html page.html"),
        (["--html", "trace/", "p.html"], "and trace is a folder: neutrino-report trace --html page.html"),
        (["trace", "--perfetto", "trace"], "trace: a folder, where the name of a file is needed"),
    ],
)
@pytest.mark.usefixtures("trace")
def test_paths_of_reports(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_open_takes_no_file(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main([str(trace), "--open", "page.html"])
    assert "--open takes no file, --html does: --html page.html" in capsys.readouterr().err


def test_a_trace_without_its_launches_is_not_reported_as_if_it_had_them(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trace / "launches.bin"
    whole = file.read_bytes()
    for size in (0, 1000):
        file.write_bytes(whole[:size])
        assert report.main([str(trace)]) == 2
        out, err = capsys.readouterr()
        assert "launches.bin" in err.splitlines()[0]
        assert "nothing is known of the launches without it: run the program again" in err
        assert "1970" not in out
        assert "launch" not in out


PLAIN = "import os\n\n\ndef hello():\n    print(os.getcwd())\n\n\nhello()\n"
LOADS = """from neutrino import Map, probe
import neutrino.language as nl


@Map(level="thread", type="log")
class Loads:
    value: nl.u64


@probe(pos="ld.global", level="thread")
def loads():
    Load.save(nl.bytes)
"""


@pytest.mark.parametrize(
    ("name", "text", "faults", "said"),
    [
        ("plain.py", PLAIN, 1, "is it the program? neutrino -p PROBE python "),
        ("script.py", "import neutrino\n\nwith neutrino.trace('x') as t:\n    pass\n", 1, "no probe in the file"),
        ("map.py", LOADS, 1, "there is no map Load; did you mean Loads?"),
        ("open.toml", '[probe.loads]\nlevel = "thread\nposition = "ld"\n', 1, 'write " at the end of the text'),
        ("guess.toml", '[probe]\nname = "x"\nlevel = "thread"\n[map.loads]\n', 1, "write [probe.NAME], as"),
    ],
)
def test_probe_files(name: str, text: str, faults: int, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ProbeError) as raised:
        neutrino.load_probes([str(tmp_path / name)])
    assert (len(raised.value.diagnostics), said in str(raised.value)) == (faults, True), str(raised.value)


@pytest.mark.parametrize("text", ["1us", "10 / 2.5ms", "4KiB"])
def test_numbers_have_no_units(text: str) -> None:
    with pytest.raises(ProbeError, match="numbers have no units"):
        check_probes([], [f"kernel {{ @x = max(elapsed + {text}) }}"]).probe_set()


def test_a_one_liner_that_the_shell_has_split(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["kernel", "{", "@x", "=", "max", "}"], ["ld.global", "/tid", "==", "0/", "{@x=count()}"]):
        with pytest.raises(SystemExit):
            run.main(["--device", "embedded", "-e", *words, "./program"])
        assert f"-e {words[0]}: the shell split it at its spaces: write it in quotes" in capsys.readouterr().err


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with program, which has no GPU code, and libvector.so, which has."""
    folder = tmp_path_factory.mktemp("built")
    source = Path(__file__).parents[2] / "examples" / "embedded"
    make = ["make", "-s", "-C", str(source), f"OUT={folder}", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True)
    return folder


def test_commands_at_paths_where_there_is_none(built: Path, tmp_path: Path) -> None:
    assert hint_of_command([str(built / "progam")]) == f"did you mean {built / 'program'}?"
    assert hint_of_command([str(built / "xyzzy")]) == f"there is no such file in {built}"
    assert hint_of_command([str(tmp_path / "none" / "program")]) == f"there is no folder {tmp_path / 'none'}"
    (tmp_path / "Makefile").touch()
    assert hint_of_command([str(tmp_path / "none" / "program")]).endswith(f"; make -C {tmp_path} may build it")
    (tmp_path / "x.ipynb").write_text("{}")
    assert "its cells use neutrino.trace()" in hint_of_command([str(tmp_path / "x.ipynb")])


def test_options_that_choose_after_a_program_without_options(built: Path, tmp_path: Path) -> None:
    program = str(built / "program")
    assert options_after([program, "-k", "saxpy"]).startswith("-k saxpy stands after COMMAND")
    assert options_after([program, "--launches", "1:2"]).startswith("--launches 1:2 stands after COMMAND")
    own = tmp_path / "own"
    for word in (b"getopt_long", b"-k"):
        own.write_bytes(Path(program).read_bytes() + word)
        assert not options_after([str(own), "-k", "saxpy"])
    assert not options_after([program, "-k", "5"])
    assert not options_after(["pytest", "-k", "saxpy"])


def test_files_without_gpu_code(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert patch.main([str(built / "program"), "-p", "gmem_bytes"]) == 3
    assert f"it loads {built / 'libvector.so'}, which has GPU code: patch that" in capsys.readouterr().err
    assert extract.main(["/bin/ls"]) == 3
    assert "no device code found" in capsys.readouterr().err
    assert extract.main([str(built / "libvector.so")]) == 0
    source = tmp_path / "saxpy.cu"
    source.write_text("// y = a x + y\n__global__ void saxpy() {}\n")
    for command in (["sites", "gmem_bytes", str(source)], None):
        assert (probe.main(command) if command else extract.main([str(source)])) == 2
        assert f"{source}: a source: compile it first" in capsys.readouterr().err


def test_a_process_without_a_driver_says_it_once(capfd: pytest.CaptureFixture[str]) -> None:
    if find_driver({}) is not None:
        pytest.skip("this machine has a driver")
    code = "import neutrino\nneutrino.install('gmem_bytes')\n"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "COMMAND" not in said
    *_, last = said.splitlines()
    assert last.endswith("no CUDA driver (libcuda.so.1) on this machine; device='embedded' needs none")
    assert said.startswith("Traceback")


def test_probes_come_without_a_name() -> None:
    for function in (neutrino.trace, neutrino.install):
        with pytest.raises(NeutrinoError, match=r"probes come first, without a name"):
            function(probes=["gmem_bytes"])
    with pytest.raises(NeutrinoError, match=r"probes come first"):
        neutrino.load_probes(probes=["gmem_bytes"])  # type: ignore[call-arg]


def test_a_second_install_says_what_it_replaces(tmp_path: Path) -> None:
    code = "import neutrino\nfor name in ('gmem_bytes', 'block_sched', 'block_sched'):\n" \
        "    neutrino.install(name, device='embedded'{})\n"  # fmt: skip
    for option, count in (("", 1), (", quiet=True", 0)):
        command = [sys.executable, "-c", code.format(option)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stderr
        assert said.count("install() puts block_sched in place of the probes before") == count, said


def test_other_outputs_overwrite_no_text(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    for _ in range(2):
        file.write_text("import os\n")
        arguments = [str(built / "libvector.so"), "-p", "gmem_bytes", "-o", str(file)]
        assert patch.main(arguments) == 2
        assert f"{file}: exists, and is a text: it is not overwritten" in capsys.readouterr().err
        assert probe.main(["compile", "gmem_bytes", "-o", str(file)]) == 2
        assert f"{file}: exists, and is not a probe file in TOML" in capsys.readouterr().err
        assert file.read_text() == "import os\n"
        # Its own are replaced.
        assert probe.main(["compile", "gmem_bytes", "-o", str(tmp_path / "own.toml")]) == 0


@pytest.mark.parametrize("options", [["-p", "block_sched"], ["-p", "block_sched", "-n"], ["--restore"], ["--check"]])
@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_a_folder_is_no_file_to_patch(options: list[str], folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*options, folder] if len(options) == 1 else [folder, *options]
    assert patch.main(argv) == 2
    assert capsys.readouterr().err == f"neutrino-patch: {folder}: Is a directory\n"


def test_a_folder_is_refused_before_it_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_inputs", lambda *_: pytest.fail("searched"))
    assert patch.main([str(tmp_path), "-p", "block_sched"]) == 2


@pytest.mark.parametrize(
    ("main", "argv", "status"),
    [
        (patch.main, ["", "-p", "block_sched"], 2),
        (patch.main, ["--restore", ""], 2),
        (patch.main, ["--check", ""], 2),
        (patch.main, ["libk.so", "-p", "block_sched", "-o", ""], 2),
        (patch.main, ["libk.so", "-p", "block_sched", "--save-temps", ""], 2),
        (extract.main, [""], 2),
        (extract.main, ["libk.so", "-o", ""], 2),
        (report.main, [""], 2),
        (report.main, ["--html", ""], 2),
        (report.main, ["--png", ""], 2),
        (report.main, ["--svg", ""], 2),
        (report.main, ["--perfetto", ""], 2),
        (report.main, ["--iket", ""], 2),
        (report.main, ["--diff", ""], 2),
        (probe.main, ["new", ""], 2),
        (probe.main, ["show", "block_sched", ""], 2),
        (probe.main, ["compile", "block_sched", "-o", ""], 2),
        (run.main, ["--tracedir", "", "true"], 125),
        (run.main, ["--save-temps", "", "true"], 125),
        (run.main, ["--driver", "", "true"], 125),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    main: Callable[[list[str]], int], argv: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == status
    assert "the path is empty" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_new_probe_that_finds_no_space_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit of a file's size stands in for a full disk: write(2) fails too.
    done = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.probe", "new", "mine.toml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "neutrino-probe: mine.toml: File too large\n")
    assert not (tmp_path / "mine.toml").exists()
