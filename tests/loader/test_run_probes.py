"""What the cache keeps of probes, so that a run whose twins are cached verifies none; and when it does not."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from neutrino.cli import loading, run
from neutrino.maker import keys
from neutrino.maker.source_stamp import package_stamp
from neutrino.run.probes import ProbeSources, RunProbes, kept_probes
from neutrino.verification import load_probes

from .conftest import IMAGE, TICKETS, Bench
from .test_command import EMBEDDED, environment, neutrino
from .trace_files import Files

_VERIFIER = "neutrino.probing.ir.verifier"
_STARTED = """
import os, sys
def execve(*arguments):
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)
os.execve = execve
from neutrino.cli.run import main
main(sys.argv[1:])
"""
_NOTHING = "neutrino: nothing was recorded by the end of COMMAND: no process of it was seen loading GPU code\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "image").write_bytes(IMAGE)
    shutil.copy(TICKETS, tmp_path / "tickets.toml")
    return tmp_path


def started(home: Path, *arguments: str) -> tuple[set[str], str]:
    """The modules of ``neutrino`` when it becomes COMMAND, and what it has printed on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, *EMBEDDED, *arguments, "true"],
        env=environment(home), cwd=home, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return set(done.stdout.split()), done.stderr


@pytest.mark.parametrize("probe", [("-p", "tickets.toml"), ("-p", "block_sched", "-e", "ld.global { @ = count() }")])
def test_the_second_start_verifies_nothing(home: Path, probe: tuple[str, ...]) -> None:
    for is_kept in (False, True):
        modules, said = started(home, *probe)
        # With -e neutrino stays COMMAND's parent, for its results.
        assert said == (_NOTHING if "-e" in probe else "")
        assert (_VERIFIER in modules) == (not is_kept)
    assert not {"neutrino.maps.declaration", "neutrino.language", "neutrino.ptx", "numpy", "rich"} & modules


def test_a_file_that_has_changed_is_verified_again(home: Path) -> None:
    started(home, "-p", "tickets.toml")
    file = home / "tickets.toml"
    file.write_text(file.read_text() + "\n# A comment.\n")
    assert _VERIFIER in started(home, "-p", "tickets.toml")[0]
    assert _VERIFIER not in started(home, "-p", "tickets.toml")[0]


_UNUSED = '[map.unused]\ntype = "array"\nlevel = "thread"\nsize = 8\ncap = 1\ndata = { x = "u64" }\n'
_EARLY_CLOCK = """
[map.Clocks]
type = "array"
level = "thread"
size = 8
cap = 1
data = { cycles = "u64" }

[probe.clock]
position = "ld.global"
level = "thread"
before = ".reg .u64 %start, %end; mov.u64 %start, %clock64;"
after = "mov.u64 %end, %clock64; sub.u64 %end, %end, %start; SAVE [ Clocks ] { %end };"
"""


@pytest.mark.parametrize("added", [_UNUSED, _EARLY_CLOCK], ids=["of the file", "of a snippet"])
def test_warnings_are_printed_at_each_start(added: str, home: Path) -> None:
    file = home / "tickets.toml"
    file.write_text(file.read_text() + added)
    said = [started(home, "-p", "tickets.toml")[1] for _ in range(2)]
    assert "warning" in said[0]
    assert said[0] == said[1]


def sources(
    names: Sequence[str], expressions: Sequence[str] = (), defines: Sequence[tuple[str, int | float]] = ()
) -> ProbeSources:
    found = ProbeSources.read(names, expressions, defines)
    assert found is not None
    return found


def test_what_is_kept_is_what_was_verified(tmp_path: Path) -> None:
    names, expressions = ("block_sched", "gmem_bytes"), ("kernel { @t = max(elapsed) }",)
    given = sources(names, expressions)
    read = RunProbes.of(load_probes(names, expressions), given.digest)
    read.keep(tmp_path)
    kept = kept_probes(tmp_path, given)
    assert kept is not None
    assert (kept.digest, kept.text) == (read.digest, read.text)
    assert (kept.probe_set.digest, kept.probe_set.maps) == (read.digest, read.probe_set.maps)
    for other in (sources(names[::-1], expressions), sources(names), sources(names, expressions, [("LIMIT", 1)])):
        assert other.digest != given.digest
        assert kept_probes(tmp_path, other) is None


def test_damaged_files_are_as_none(tmp_path: Path) -> None:
    given = sources(["block_sched"])
    RunProbes.of(load_probes(["block_sched"]), given.digest).keep(tmp_path)
    (file,) = (tmp_path / "verified").iterdir()
    whole = file.read_bytes()
    for data in (b"", whole[:20], whole[:-1], whole[:-2] + b"x}", b"x" * len(whole)):
        file.write_bytes(data)
        assert kept_probes(tmp_path, given) is None
    # What is verified again takes its place.
    RunProbes.of(load_probes(["block_sched"]), given.digest).keep(tmp_path)
    assert file.read_bytes() == whole
    assert kept_probes(tmp_path, given)
    file.unlink()
    os.mkfifo(file)
    assert kept_probes(tmp_path, given) is None


def test_what_is_no_usual_file_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "large.toml").write_bytes(bytes(2 << 20))
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("large.toml", "binary.toml", "missing.toml", "pipe.toml", ""):
        assert ProbeSources.read([f"{tmp_path}/{name}"], (), ()) is None
    for name in ("/dev/null", "no_such_probe", "block_sched\0.toml", ""):
        assert ProbeSources.read([name], (), ()) is None


def test_twins_that_are_missing_are_made_of_kept_probes(bench: Bench, home: Path) -> None:
    for number in range(2):
        result = neutrino(home, "-p", "tickets.toml", "--tracedir", str(number), str(bench.host), "plain")
        assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
        assert Files(home / str(number)).counted("count_p2") == {"probed": 20}
        shutil.rmtree(home / "cache" / "neutrino" / "twins")


@pytest.mark.parametrize("change", ["cp other.toml tickets.toml", "rm tickets.toml"])
def test_twins_are_made_of_what_was_read_at_the_start(change: str, bench: Bench, home: Path) -> None:
    started(home, "-p", "tickets.toml")
    other = (home / "tickets.toml").read_text().replace("%block, 7 }", "%block, 8 }")
    (home / "other.toml").write_text(other)
    result = neutrino(home, "-p", "tickets.toml", "sh", "-c", f"{change}; exec {bench.host} plain")
    assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
    files = Files(home / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    # It looks for the 7.
    assert list(files.check_tickets(bench.maps)) == list(range(120))


def test_the_stamp_changes_with_any_source(tmp_path: Path) -> None:
    package = tmp_path / "neutrino"
    (package / "ptx").mkdir(parents=True)
    sources = [package / "__init__.py", package / "ptx" / "text.py"]
    for source in sources:
        source.write_text("x = 1\n")
    stamps = {package_stamp(package)}
    for source in sources:
        source.write_text("x = 2\n")
        package_stamp.cache_clear()
        stamps.add(package_stamp(package))
    (package / "ptx" / "new.py").touch()
    package_stamp.cache_clear()
    stamps.add(package_stamp(package))
    assert len(stamps) == 4


def test_the_patchers_identity_is_kept_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys.kept_identity(tmp_path) == keys.patcher_identity()
    monkeypatch.setattr(keys, "patcher_identity", lambda: "0" * 64)
    assert keys.kept_identity(tmp_path) != "0" * 64
    (tmp_path / "patcher").write_bytes(b"damaged")
    assert keys.kept_identity(tmp_path) == "0" * 64
    monkeypatch.setattr(keys, "package_stamp", lambda: "1" * 64)
    monkeypatch.setattr(keys, "patcher_identity", lambda: "2" * 64)
    assert keys.kept_identity(tmp_path) == "2" * 64


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tickets.toml"
    shutil.copy(TICKETS, file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = argparse.Namespace(probe=[str(file)], expression=[], define=[], callback=[])
    assert run._run_probes(options).kept_as is not None
    verify = loading.check_probes

    def check(*arguments: object, **options: object) -> object:
        file.write_text(file.read_text().replace("%ctaid.x", "%ctaid.y"))
        return verify(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "check_probes", check)
    assert run._run_probes(options).kept_as is None
