"""A section attached to hosts of every form: they run as before, tools treat them as before, the original comes back.

Judges: the dynamic loader and the kernel, readelf, nm, addr2line, gdb, strip, llvm-strip, objcopy, patchelf,
the linkers.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.abi.sections import SECTION_HEADER, SECTION_MAGIC
from neutrino.abi.versions import SECTION_VERSION
from neutrino.elf.constants import DF_1_NODELETE, DT_FLAGS_1, DT_NULL, PT_DYNAMIC
from neutrino.elf.reader import Elf
from neutrino.elf.rows import DYNAMIC_LAYOUT
from neutrino.errors import PatchError
from neutrino.patched_files.appended import Attachment
from neutrino.patched_files.attach import attach
from neutrino.patched_files.place import find_section
from neutrino.patched_files.restore import restore
from tests.patched_files.hosts import HEADERLESS, HOSTS, Workshop, is_program, must, need, run

DT_DEBUG = 21
NOWHERE = "/nowhere/libneutrino-stub.so"


def section(payload: bytes = b"twins" * 5000) -> list[bytes | memoryview]:
    head = SECTION_MAGIC + SECTION_VERSION.to_bytes(4, "little")
    return [head, bytes(SECTION_HEADER.size - len(head)), memoryview(payload)]


def section_of(path: Path) -> bytes | None:
    """The section's bytes in a file; also shows that it is at the start of a PT_LOAD."""
    elf = Elf(memoryview(path.read_bytes()), str(path))
    place = find_section(elf)
    if place is None:
        return None
    starts = {segment.address: segment.offset for segment in elf.segments if segment.type == 1}
    assert starts[place.address] == place.offset
    return bytes(elf.data[place.offset : place.offset + place.size])


@pytest.fixture(scope="module")
def attached(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory):
    """A host and its patched copy, by the host's name; the stub is not there."""
    folder = tmp_path_factory.mktemp("attached")
    made: dict[str, tuple[Path, Path, Attachment]] = {}

    def get(name: str) -> tuple[Path, Path, Attachment]:
        if name not in made:
            host = workshop.host(name)
            target = folder / name
            made[name] = host, target, attach(host, target, section(), NOWHERE)
        return made[name]

    return get


def check_runs(workshop: Workshop, path: Path, folder: Path, sections: int = 1) -> None:
    """It runs as before, and the section in memory is the one in the file."""
    memory = folder / "memory"
    done = workshop.run(path, memory)
    assert (done.stdout, done.returncode, done.stderr) == (f"42 {sections}\n", 3, "")
    assert memory.read_bytes() == section_of(path)


@pytest.mark.parametrize("name", HOSTS)
def test_runs_as_before_and_comes_back(name, attached, workshop, tmp_path):
    host, target, attachment = attached(name)
    check_runs(workshop, target, tmp_path)
    data = target.read_bytes()
    found = data[attachment.offset : attachment.offset + attachment.size]
    assert found == section_of(target)
    assert found[SECTION_HEADER.size :].startswith(b"twins" * 5000)
    restore(target, tmp_path / "original")
    assert (tmp_path / "original").read_bytes() == host.read_bytes()
    assert (tmp_path / "original").stat().st_mode == target.stat().st_mode == host.stat().st_mode
    assert any("is a program" in remark for remark in attachment.remarks) == is_program(host)
    assert len(attachment.remarks) == is_program(host)


SET_RPATH = ["patchelf", "--set-rpath", "/a/folder:$ORIGIN"]
ADD_NEEDED = ["patchelf", "--add-needed", "libm.so.6"]
TOOLS: dict[str, list[list[str]]] = {
    "strip": [["strip"]],
    "strip-debug": [["strip", "-g"]],
    "llvm-strip": [["llvm-strip-19|llvm-strip"]],
    "patchelf": [SET_RPATH],
    "patchelf-strip": [SET_RPATH, ["strip"]],
    "strip-patchelf": [["strip"], ["patchelf", "--force-rpath", "--set-rpath", "/a"], ADD_NEEDED],
    "objcopy": [["objcopy", "--remove-section=.comment"]],
    "debuglink": [
        ["objcopy", "--only-keep-debug", "{file}", "{file}.debug"],
        ["objcopy", "--strip-debug", "--add-gnu-debuglink={file}.debug"],
    ],
}
"""Commands, by what they do; the file is put at the end where it is not named."""


def apply(commands: list[list[str]], file: Path) -> bool:
    """Run tools on a file in place; whether all of them succeeded."""
    for command in commands:
        argv = [need(*command[0].split("|")), *(part.format(file=file) for part in command[1:])]
        if str(file) not in argv:
            argv.append(str(file))
        if run(*argv).returncode:
            return False
    return True


ON_ALL = ("strip", "patchelf")
ON_SOME = ("so", "so-patchelf", "so-lld", "exe-lld")
TREATMENTS = [(name, tool) for name in HOSTS for tool in TOOLS if tool in ON_ALL or name in ON_SOME]


@pytest.mark.parametrize(("name", "tool"), TREATMENTS)
def test_survives(name, tool, attached, workshop, tmp_path):
    host, target, _ = attached(name)
    plain, changed = tmp_path / host.name, tmp_path / f"{host.name}-patched"
    shutil.copy(host, plain)
    shutil.copy(target, changed)
    survives = apply(TOOLS[tool], plain) and workshop.run(plain).returncode == 3
    done = apply(TOOLS[tool], changed)
    if not survives:
        # No tool works on these; what it left of the patched file still runs.
        assert name in HEADERLESS
        check_runs(workshop, changed, tmp_path)
        return
    assert done
    assert section_of(changed) == section_of(target)
    check_runs(workshop, changed, tmp_path)
    if changed.read_bytes() != target.read_bytes() and name in ON_SOME:
        if not restores(changed, tmp_path / "original"):
            assert not (tmp_path / "original").exists()
        else:
            # Only what was appended has changed.
            assert (tmp_path / "original").read_bytes() == host.read_bytes()
        # Patched once more, it is the changed file that comes back.
        again = tmp_path / f"{host.name}-again"
        attach(changed, again, section(b"more" * 9000), NOWHERE)
        check_runs(workshop, again, tmp_path)
        restore(again, tmp_path / "before")
        assert (tmp_path / "before").read_bytes() == changed.read_bytes()
        third = tmp_path / f"{host.name}-third"
        attach(again, third, section(b"other"), NOWHERE)
        attach(changed, again, section(b"other"), NOWHERE)
        assert third.read_bytes() == again.read_bytes()


def restores(path: Path, target: Path) -> bool:
    try:
        restore(path, target)
    except PatchError:
        return False
    return True


def messages(path: Path) -> set[str]:
    done = run(need("readelf"), "-aW", path)
    return {line.replace(str(path), "FILE") for line in done.stderr.splitlines()}


LAYOUTS = (*ON_SOME, "so-no-notes", "pie", "so-gold", "so-relr", *HEADERLESS)


@pytest.mark.parametrize("name", [*LAYOUTS, "so-2mib", "so-behind-bss"])
def test_tools_tell_the_same(name, attached):
    host, target, _ = attached(name)
    assert messages(target) <= messages(host)
    views = [["nm"], ["nm", "-D"]]
    if name != "pie-no-headers":
        # There readelf does not look at PT_GNU_PROPERTY, which repeats the note that is gone.
        views.append(["readelf", "-nW"])
    for argv in views:
        before, after = (run(need(argv[0]), *argv[1:], path) for path in (host, target))
        assert after.stdout.replace(str(target), "") == before.stdout.replace(str(host), "")
        assert after.returncode == before.returncode
    symbols = run(need("nm"), host).stdout.splitlines()
    address = next((line.split()[0] for line in symbols if line.endswith(" answer")), "0")
    lines = [must(need("addr2line"), "-f", "-e", path, address) for path in (host, target)]
    assert lines[0] == lines[1]
    assert address == "0" or "host.c" in lines[0]


def test_gdb_stops_in_it(attached, workshop):
    gdb = need("gdb")
    host, target, _ = attached("so-lld")
    texts = []
    for path in (host, target):
        orders = ["set breakpoint pending on", "break answer", "run", "bt 1"]
        argv = [gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off"]
        argv += [f"--eval-command={order}" for order in orders]
        texts.append(run(*argv, "--args", workshop.loader(), path).stdout)
    hits = [re.findall(r"answer \(\) at .*host.c:\d+", text) for text in texts]
    if not hits[0]:
        pytest.skip(f"gdb cannot run programs here: {texts[0][-200:]}")
    assert hits[0] == hits[1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_stub_is_loaded_with_libraries_only(name, workshop, tmp_path):
    host = workshop.host(name)
    target = tmp_path / host.name
    attach(host, target, section(), str(workshop.stub()))
    done = workshop.run(target, tmp_path / "memory")
    assert (done.stdout, done.returncode) == ("42 1\n", 3)
    assert done.stderr == ("" if is_program(host) else "stub loaded\n")


def test_two_libraries_share_the_stub(workshop, tmp_path):
    """Loaded one after the other, and needed by a program from its start."""
    paths = []
    for name in ("so", "so-lld", "so-gold"):
        paths.append(tmp_path / f"lib{name}.so")
        attach(workshop.host(name), paths[-1], section(), str(workshop.stub()))
    done = run(workshop.loader(), *(part for path in paths for part in (path, tmp_path / "memory")))
    assert (done.stdout, done.returncode, done.stderr) == ("42 1\n" * 3, 3, "stub loaded\n")
    user = workshop.user(paths[0], tmp_path / "user", str(paths[1]))
    done = run(user)
    assert (done.stdout, done.returncode, done.stderr) == ("42 -1\n", 3, "stub loaded\n")


@pytest.mark.parametrize("name", ["so", "so-lld", "so-stripped"])
@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_programs_link_with_it(linker, name, workshop, attached, tmp_path):
    need(f"ld.{linker}", f"ld.{linker}-19")
    library = tmp_path / f"lib{name}.so"
    shutil.copy(attached(name)[1], library)
    user = workshop.user(library, tmp_path / f"user-{name}", f"-fuse-ld={linker}")
    done = run(user, tmp_path / "memory")
    assert (done.stdout, done.returncode, done.stderr) == ("42 1\n", 3, "")


def test_what_repeats_goes_and_the_rest_stays(attached):
    """Notes stay readable through the program headers too, by which debuggers find build IDs in memory."""
    for name in HOSTS:
        host, target, _ = attached(name)
        build_ids = []
        for path in (host, target):
            elf = Elf(memoryview(path.read_bytes()), str(path))
            notes = [bytes(elf.data[row.offset : row.offset + row.file_size]) for row in elf.segments if row.type == 4]
            build_ids.append(any(b"\x03\0\0\0GNU\0" in note for note in notes))
            assert [row for row in elf.segments if row.type == 0x6474E551]
        assert build_ids[0] == build_ids[1], name


@pytest.mark.parametrize("name", ["so", "so-lld", "so-relr", "so-no-headers", "pie", "pie-lld", "exe"])
def test_patched_twice_is_patched_once(name, workshop, tmp_path):
    host = workshop.host(name)
    once, first, twice = (tmp_path / part for part in ("once", "first", "twice"))
    attach(host, first, section(b"first" * 7), NOWHERE)
    attach(first, twice, section(b"second" * 70), "another-stub.so")
    attach(host, once, section(b"second" * 70), "another-stub.so")
    assert twice.read_bytes() == once.read_bytes()
    attach(once, once, section(b"third"), NOWHERE)
    restore(once, once)
    assert once.read_bytes() == host.read_bytes()


def without_spare_entries(path: Path, target: Path) -> Path:
    """A copy whose dynamic section has one DT_NULL, as lld writes it: the others become DT_DEBUG."""
    data = bytearray(path.read_bytes())
    elf = Elf(memoryview(bytes(data)), str(path))
    (dynamic,) = (segment for segment in elf.segments if segment.type == PT_DYNAMIC)
    offsets = range(dynamic.offset, dynamic.offset + dynamic.file_size, DYNAMIC_LAYOUT.size)
    nulls = [offset for offset in offsets if DYNAMIC_LAYOUT.unpack_from(data, offset)[0] == DT_NULL]
    for offset in nulls[:-1]:
        DYNAMIC_LAYOUT.pack_into(data, offset, DT_DEBUG, 0)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("name", ["so", "so-full", "exe"])
def test_closes_the_new_file_at_once(name, workshop, tmp_path):
    """A program that is open for writing cannot be executed, so no reference cycle may keep it until a collection."""
    host = workshop.host("so" if name == "so-full" else name)
    if name == "so-full":
        host = without_spare_entries(host, tmp_path / "host")
    gc.disable()
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        attach(host, tmp_path / "patched", section(), NOWHERE)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        gc.enable()


def test_a_stub_that_moved_is_named_once(workshop, tmp_path):
    """A stripped patched library keeps its entry, which then leads to the new place."""
    stub = tmp_path / "here" / workshop.stub().name
    stub.parent.mkdir()
    shutil.copy(workshop.stub(), stub)
    for name in ("so", "so-lld"):
        target = tmp_path / name
        attach(workshop.host(name), target, section(), f"/nowhere/{stub.name}")
        must(need("strip"), target)
        attach(target, target, section(), str(stub))
        tags = must(need("readelf"), "-dW", target)
        assert re.findall(r"\(AUXILIARY\).*\[(.*)\]", tags) == [str(stub)]
        assert workshop.run(target, tmp_path / "memory").stderr == "stub loaded\n"


@pytest.mark.parametrize("flags", ["as it is", "none", "NODELETE already"])
@pytest.mark.parametrize("spare", [True, False])
def test_a_library_is_never_unloaded(spare, flags, workshop, tmp_path):
    host = tmp_path / "so"
    shutil.copy(workshop.host("so"), host)
    data = bytearray((host if spare else without_spare_entries(host, host)).read_bytes())
    elf = Elf(memoryview(bytes(data)), "host")
    (dynamic,) = (segment for segment in elf.segments if segment.type == PT_DYNAMIC)
    offsets = range(dynamic.offset, dynamic.offset + dynamic.file_size, DYNAMIC_LAYOUT.size)
    for offset in offsets:
        tag, value = DYNAMIC_LAYOUT.unpack_from(data, offset)
        if tag == DT_FLAGS_1:
            changed = {"none": (DT_DEBUG, 0), "NODELETE already": (tag, value | DF_1_NODELETE)}
            DYNAMIC_LAYOUT.pack_into(data, offset, *changed.get(flags, (tag, value)))
    before = elf.dynamic.get(DT_FLAGS_1, 0) if flags != "none" else 0
    host.write_bytes(data)
    target = tmp_path / "so-target"
    attach(host, target, section(), NOWHERE)
    after = Elf(memoryview(target.read_bytes()), "target").dynamic[DT_FLAGS_1]
    assert after == before | DF_1_NODELETE
    check_runs(workshop, target, tmp_path)
    # Patched once more, it has no second entry.
    attach(target, target, section(), NOWHERE)
    assert len(re.findall("FLAGS_1", must(need("readelf"), "-dW", target))) == 1
    restore(target, tmp_path / "original")
    assert (tmp_path / "original").read_bytes() == data


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.binary(max_size=9000), max_size=6),
    cut=st.integers(0, SECTION_HEADER.size),
    mode=st.sampled_from([0o755, 0o640]),
)
def test_sections_of_any_size(parts, cut, mode, workshop, tmp_path):
    host = tmp_path / "so"
    shutil.copy(workshop.host("so-lld"), host)
    host.chmod(mode)
    head = b"".join(section(b""))
    target = tmp_path / "so-target"
    attach(host, target, [head[:cut], b"", head[cut:], *parts], NOWHERE)
    found = section_of(target)
    assert found is not None
    assert found[SECTION_HEADER.size :].startswith(b"".join(parts))
    assert target.stat().st_mode & 0o7777 == mode
    check_runs(workshop, target, tmp_path)
    restore(target, target)
    assert target.read_bytes() == host.read_bytes()


def test_copied_where_the_kernel_cannot(workshop, tmp_path, monkeypatch):
    """As across file systems, at once or after a part."""
    host = workshop.host("so-2mib")
    attach(host, tmp_path / "expected", section(), NOWHERE)
    copy_file_range = os.copy_file_range
    for allowed in (0, 300_000):

        def limited(source: int, target: int, count: int, begin: int, to: int, allowed: int = allowed) -> int:
            if begin >= allowed:
                raise OSError(errno.EXDEV, "cross-device")
            return copy_file_range(source, target, min(count, allowed), begin, to)

        monkeypatch.setattr(os, "copy_file_range", limited)
        attach(host, tmp_path / "target", section(), NOWHERE)
        assert (tmp_path / "target").read_bytes() == (tmp_path / "expected").read_bytes()


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from neutrino.patched_files.attach import attach
source, target, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
head = bytes.fromhex(sys.argv[4])

class Deadly(bytes):
    def __len__(self):
        # Counted once while everything is planned, again while it is written.
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__len__()

if what == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[5]),) * 2)
    attach(source, target, [head, bytes(1 << 20)], "stub.so")
elif what == "kill":
    attach(source, target, [head, Deadly(b"x" * 100)], "stub.so")
else:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attach(source, target, [head, b"x" * 100], "stub.so")
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def child(source: Path, target: Path, *arguments: str | int) -> subprocess.CompletedProcess[str]:
    what, *rest = map(str, arguments)
    head = b"".join(section(b"")).hex()
    argv = [sys.executable, "-c", CHILD, str(source), str(target), what, head, *rest]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)


def test_no_target_when_there_is_no_room(workshop, tmp_path):
    host = workshop.host("so")
    size = host.stat().st_size
    for limit in (100, size + 5000, size + (1 << 20) + 100):
        done = child(host, tmp_path / "target", "limit", limit)
        assert done.returncode == 1, done.stderr
        assert "OSError" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_no_target_when_killed(workshop, tmp_path):
    """What was there keeps its bytes."""
    target = tmp_path / "target"
    done = child(workshop.host("so"), target, "kill")
    assert done.returncode == -9
    assert not target.exists()
    target.write_bytes(b"before")
    assert child(workshop.host("so"), target, "kill").returncode == -9
    assert target.read_bytes() == b"before"


def test_memory_is_the_same_for_any_size(workshop, tmp_path):
    host = tmp_path / "so-big"
    shutil.copy(workshop.host("so-no-headers"), host)
    os.truncate(host, 96 << 20)
    done = child(host, tmp_path / "target", "measure")
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after - before < 40_000, "KiB"
    restore(tmp_path / "target", tmp_path / "original")
    assert run("cmp", host, tmp_path / "original").returncode == 0
