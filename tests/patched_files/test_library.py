"""Whole files patched: what is written, that it does not depend on the processes, and that a failure leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.elf.reader import Elf
from neutrino.errors import Diagnostic, FormatError, NeutrinoError, PatchError, ProbeError, ToolError, ToolMissingError
from neutrino.fatbin import read_container
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.patched_files.check import check_file
from neutrino.patched_files.image_twins import Settings
from neutrino.patched_files.patching import output_path, patch_file
from neutrino.patched_files.place import find_section
from neutrino.patched_files.section import Section, read_section
from neutrino.patched_files.vendor import vendor_library
from neutrino.patched_files.workers import share
from neutrino.probing.selection import Selection
from neutrino.ptx.snippets.lowering import lower
from neutrino.sass.cubin import read_cubin
from neutrino.targets import trace_text
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.patched_files.libraries import SCALE, STORE, fatbin, link

PROBES = load_probes(["block_sched"])
SETTINGS = Settings(PROBES)
NAMES = ["block_sched"]


@pytest.fixture(scope="session")
def assembler() -> Assembler:
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


@pytest.fixture(scope="session")
def containers(assembler: Assembler) -> list[bytes]:
    """Two programs, and the second once more."""
    store = fatbin(assembler, STORE, ptx=["sm_80"])
    return [fatbin(assembler, SCALE, cubins=["sm_80", "sm_90a"], ptx=["sm_90a", "sm_80"]), store, store]


@pytest.fixture(scope="session")
def library(containers: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(tmp_path_factory.mktemp("library") / "libk.so", containers)


@pytest.fixture(scope="session")
def patched(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("patched") / "libk.so"
    patch_file(library, target, SETTINGS, names=NAMES, archs=["sm_86", "sm_90"], jobs=1)
    return target


def section_of(path: Path) -> Section:
    data = memoryview(path.read_bytes())
    place = find_section(Elf(data, str(path)))
    assert place is not None
    return read_section(data[place.offset : place.offset + place.size], str(path), place.offset)


def test_every_row_leads_to_twins_of_an_image_of_the_file(patched: Path, containers: list[bytes]) -> None:
    section = section_of(patched)
    known = {(hashlib.sha256(data).digest(), len(data)): number for number, data in enumerate(containers)}
    found = {
        (known[row.image_digest, row.image_size], row.arch): sorted(
            (kernel.name, kernel.reason) for kernel in read_entry(bytes(section.entries[row.entry]), "entry").kernels
        )
        for row in section.rows
    }
    scale = [("clear", Reason.PROBED), ("scale", Reason.PROBED)]
    # The second container is the third as well, and known's last place counts.
    assert found == {
        **{(0, f"sm_{number}"): scale for number in (80, 86, 87, 88, 89, 90)},
        (2, "sm_86"): [("store", Reason.PROBED)],
        (2, "sm_90"): [("store", Reason.PROBED)],
    }
    assert (section.names, section.probes.decode()) == ("block_sched", trace_text(lower(PROBES)))
    assert b"def parse" in section.reader


def test_the_report_is_in_the_file_without_its_maker_s_folders(library: Path, patched: Path, tmp_path: Path) -> None:
    inside = json.loads(section_of(patched).report)
    report = patch_file(library, None, SETTINGS, names=NAMES, archs=["sm_86", "sm_90"], jobs=1)
    document = report.document()
    assert (document.pop("input"), document.pop("output")) == (str(library), None)
    assert inside == document
    assert str(library.parent).encode() not in patched.read_bytes()[library.stat().st_size :]
    # Copies are reported where they are, although twins are made once.
    places = [(kernel.container, kernel.arch, kernel.name) for kernel in report.kernels]
    # Within an image the kernels have its own order.
    assert [place[:2] for place in places] == sorted(place[:2] for place in places)
    assert sorted(places) == [
        (0, "sm_80", "clear"), (0, "sm_80", "scale"), (0, "sm_90a", "clear"), (0, "sm_90a", "scale"),
        (1, "sm_86", "store"), (1, "sm_90", "store"), (2, "sm_86", "store"), (2, "sm_90", "store"),
    ]  # fmt: skip


def test_registers_and_sites_are_those_of_the_twins(patched: Path, assembler: Assembler) -> None:
    section = section_of(patched)
    rows = {row.arch: row for row in section.rows if row.image_size == section.rows[0].image_size}
    report = json.loads(section.report)
    for arch, device in (("sm_80", "sm_86"), ("sm_90a", "sm_90")):
        cubin = read_cubin(read_entry(bytes(section.entries[rows[device].entry]), "entry").images[0], "twins")
        assert cubin.arch == arch
        original = read_cubin(assembler.assemble(SCALE.format(arch=arch), arch).cubin, "original")
        for row in (row for row in report["kernels"] if row["arch"] == arch and row["container"] == 0):
            name = row["name"]
            assert row["registers"] == {
                "original": original.kernels[name].registers, "twin": cubin.kernels[f"{name}__neutrino"].registers,
            }  # fmt: skip
            assert (row["status"], row["reason"], row["sites"]) == ("probed", None, 2)


def test_the_file_does_not_depend_on_the_processes(library: Path, patched: Path, tmp_path: Path) -> None:
    several = tmp_path / "libk.so"
    seen = []
    patch_file(
        library, several, SETTINGS, names=NAMES, archs=["sm_86", "sm_90"], jobs=3,
        progress=lambda done, total, _: seen.append((done, total)),
    )  # fmt: skip
    assert several.read_bytes() == patched.read_bytes()
    assert seen == [(number, 4) for number in range(1, 5)]
    assert list(tmp_path.iterdir()) == [several]


def test_patched_again_is_patched_once(library: Path, patched: Path, tmp_path: Path) -> None:
    other = replace(SETTINGS, probes=load_probes(["gmem_bytes"]), selection=Selection(("store",), ()))
    for source, name in ((library, "once.so"), (patched, "twice.so")):
        patch_file(source, tmp_path / name, other, names=["gmem_bytes"], archs=["sm_80"], jobs=1)
    assert (tmp_path / "once.so").read_bytes() == (tmp_path / "twice.so").read_bytes()


@pytest.mark.parametrize("emit", [Emit.TEXT, Emit.BOTH])
def test_text_is_valid_and_serves_later_devices(library: Path, tmp_path: Path, emit: Emit) -> None:
    target = tmp_path / "libk.so"
    patch_file(library, target, replace(SETTINGS, emit=emit), names=NAMES, archs=["sm_80"], jobs=1)
    assert check_file(target).faults == []
    section = section_of(target)
    archs = {row.arch for row in section.rows if row.image_size == min(row.image_size for row in section.rows)}
    assert {"sm_80", "sm_90", "sm_100", "sm_121"} <= archs
    for entry in section.entries:
        kinds = [image.kind.value for image in read_container(read_entry(bytes(entry), "entry").images[0], "x").images]
        assert kinds == (["ptx"] if emit is Emit.TEXT else ["ptx", "cubin"])


def test_without_archs_the_machine_s_own_are_taken(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not stand_in().is_file():
        pytest.skip("the stand-in driver is not built")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in().parent))
    for name, value in EmbeddedDevice().environment({}).items():
        monkeypatch.setenv(name, value)
    none = replace(SETTINGS, selection=Selection(("no such kernel",), ()))
    assert patch_file(library, None, none, names=NAMES, jobs=1).archs == ("sm_90",)
    monkeypatch.setattr("neutrino.patched_files.patching.machine_archs", lambda: ())
    assert patch_file(library, None, none, names=NAMES, jobs=1).archs == ("sm_80", "sm_90")


def test_nothing_selected_writes_nothing(library: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, selection=Selection(("no such kernel",), ()))
    report = patch_file(library, tmp_path / "out.so", settings, names=NAMES, archs=["sm_80"], jobs=1)
    assert (report.probed, report.output, list(tmp_path.iterdir())) == (0, None, [])
    assert report.skipped == [(Reason.NOT_SELECTED, len(report.kernels))]


def test_an_older_assembler_is_wanted_and_its_absence_said(
    library: Path, assembler: Assembler, tmp_path: Path
) -> None:
    report = patch_file(library, None, SETTINGS, names=NAMES, archs=["sm_80"], jobs=1)
    # The text is of PTX 8.0, which CUDA 12.0 made.
    wanted = [f"{assembler.name} is newer than CUDA 12.0" in note for note in report.notes]
    assert any(wanted) == (assembler.version[:2] > (12, 0))


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_tool_that_is_killed_leaves_nothing(
    library: Path, assembler: Assembler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec {assembler.path} "$@";; esac\nkill -9 $$\n')
    tool.chmod(0o755)
    monkeypatch.setenv("NEUTRINO_PTXAS", str(tool))
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ToolError, match="exit status -9"):
        patch_file(library, folder / "out.so", SETTINGS, names=NAMES, archs=["sm_80", "sm_90"], jobs=jobs)
    assert list(folder.iterdir()) == []


def test_without_an_assembler_nothing_is_patched(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUTRINO_PTXAS", str(tmp_path / "absent"))
    with pytest.raises(ToolMissingError):
        patch_file(library, tmp_path / "out.so", SETTINGS, names=NAMES, jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(library: Path, tmp_path: Path) -> None:
    size = library.stat().st_size
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from neutrino.cli.patch import main\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 512}, {size + 512}))\n"
        f"sys.exit(main([{str(library)!r}, '-p', 'block_sched', '--arch', '80', '-j', '1', '-o', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [os.sys.executable, "-c", script, str(tmp_path / "out.so")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "File too large" in done.stderr


@pytest.mark.parametrize("name", ["libcublas.so.12", "libcudnn_ops.so.9", "libnvrtc.so"])
def test_vendor_libraries_are_known_by_name_link_and_soname(library: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / name
    copy.write_bytes(library.read_bytes())
    link_to = tmp_path / "harmless.so"
    link_to.symlink_to(copy)
    told = link(tmp_path / "told.so", [b""], f"-Wl,-soname,{name}")
    for path in (copy, link_to, told):
        assert vendor_library(path, memoryview(path.read_bytes())) == name
        report = patch_file(path, tmp_path / "out.so", SETTINGS, names=NAMES, jobs=1)
        assert report.refused == f"vendor: {name} is a vendor-licensed library, never rewritten"
        assert (report.kernels, report.output, (tmp_path / "out.so").exists()) == ((), None, False)
    assert vendor_library(library, memoryview(library.read_bytes())) is None


def test_what_cannot_carry_twins_is_refused_with_what_to_do(library: Path, tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.so", tmp_path / "text.so"
    empty.write_bytes(b"")
    text.write_text("no ELF")
    for path in (empty, text, library.with_suffix(".0.fatbin")):
        with pytest.raises(PatchError, match=path.name):
            patch_file(path, tmp_path / "out.so", SETTINGS, names=NAMES, jobs=1)
    with pytest.raises(FileNotFoundError):
        patch_file(tmp_path / "absent.so", None, SETTINGS, names=NAMES)


def test_a_damaged_container_is_an_error(containers: list[bytes], tmp_path: Path) -> None:
    damaged = link(tmp_path / "damaged.so", [containers[1][:-8] + b"\xff" * 8, containers[0][:200]])
    with pytest.raises(FormatError, match=r"damaged\.so"):
        patch_file(damaged, tmp_path / "out.so", SETTINGS, names=NAMES, archs=["sm_80"], jobs=1)


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("a/libk.so", None, "a/libk.neutrino.so"),
        ("a/libk.so.1.2", None, "a/libk.neutrino.so.1.2"),
        ("a/_ext.cpython-311.so", None, "a/_ext.cpython-311.neutrino.so"),
        ("a/program", None, "a/program.neutrino"),
        ("a/my.sound.bin", None, "a/my.sound.neutrino.bin"),
        ("a/libk.so", "b/", "b/libk.so"),
        ("a/libk.so", "c.so", "c.so"),
    ],
)
def test_where_the_output_goes(source: str, output: str | None, expected: str) -> None:
    assert output_path(Path(source), output) == Path(expected)


def test_devices_pipes_and_folders_are_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out" / "libk.so").mkdir(parents=True)
    for output in ("/dev/null", str(tmp_path / "pipe"), f"{tmp_path}/out"):
        with pytest.raises(PatchError, match="is not a regular file"):
            output_path(Path("libk.so"), output)


def test_the_input_is_no_output(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.so").symlink_to(library)
    monkeypatch.chdir(library.parent)
    for output in (str(library), "./", str(tmp_path / "other.so")):
        with pytest.raises(PatchError, match="is the input itself"):
            output_path(Path("libk.so"), output)


def _square(task: int) -> int:
    if task == 13:
        raise FormatError("file", 3, "field", "found", "expected")
    if task == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 15:
        time.sleep(60)
    if task == 16:
        raise ProbeError([Diagnostic("p.toml", 1, 2, "source", "message")])
    return task * task


def _prepared(_: None):
    return _square


@pytest.mark.parametrize("workers", [1, 3])
def test_tasks_are_shared_and_told_apart(workers: int) -> None:
    assert sorted(share(_prepared, None, list(range(10)), workers)) == [(n, n * n) for n in range(10)]
    assert list(share(_prepared, None, [], workers)) == []


class _Knot:
    """An object that refers to itself, so that only the collector of cycles frees it. alive: how many there are."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        _Knot.alive += 1

    def __del__(self) -> None:
        _Knot.alive -= 1


def _knotting(_: None) -> Callable[[int], int]:
    def run(_: int) -> int:
        before = _Knot.alive
        _Knot()
        return before

    return run


def test_what_a_task_leaves_is_freed_before_the_next() -> None:
    assert [left for _, left in share(_knotting, None, list(range(8)), 2)] == [0] * 8


def test_errors_of_workers_arrive_whole_and_end_the_others() -> None:
    with pytest.raises(FormatError) as caught:
        list(share(_prepared, None, [15, 13, 15], 3))
    assert (caught.value.offset, caught.value.expected) == (3, "expected")
    with pytest.raises(ProbeError) as failed:
        list(share(_prepared, None, [15, 16], 2))
    assert failed.value.diagnostics[0].line == 1
    with pytest.raises(NeutrinoError, match="ended by signal 9; out of memory"):
        list(share(_prepared, None, [15, 14], 2))


def test_a_signal_that_meets_a_worker_at_its_start_ends_the_worker_alone() -> None:
    # The handler is that of the commands; in a worker it would unwind into its starter's code, twice run from there on.
    script = (
        "import os, signal, sys\n"
        "from neutrino.patched_files.workers import share\n"
        "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
        "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "try: list(share(lambda _: abs, None, [1, 2], 2))\n"
        "except BaseException as error: os.write(1, f'{error}\\n'.encode())\n"
    )
    run = subprocess.run([os.sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert (run.stdout, run.stderr) == ("a worker process ended with exit status 0\n", "")


def test_workers_end_with_who_started_them() -> None:
    script = (
        "import os\n"
        "from neutrino.patched_files.workers import share\n"
        "for _ in share(lambda _: abs, None, [1, 2, 3, 4], 2): os.kill(os.getpid(), 9)\n"
    )
    # Both ends of the pipe are held by whatever lives.
    process = subprocess.Popen([os.sys.executable, "-c", script], stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=600)
    assert (process.returncode, output) == (-9, b"")
