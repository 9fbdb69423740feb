"""What can carry no section is refused with a reason; damaged files raise FormatError, whatever is wrong with them."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.abi.sections import SECTION_HEADER, SECTION_MAGIC
from neutrino.abi.versions import SECTION_VERSION
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, NeutrinoError, PatchError
from neutrino.patched_files.attach import attach
from neutrino.patched_files.carrier import file_refusal
from neutrino.patched_files.original import read_original
from neutrino.patched_files.place import find_section
from neutrino.patched_files.restore import restore
from tests.patched_files.hosts import HOSTS, Workshop, must, need
from tests.work import counted

SECTION = [SECTION_MAGIC + SECTION_VERSION.to_bytes(4, "little") + bytes(SECTION_HEADER.size - 12), b"twins" * 100]


def refused(path: Path, reason: str) -> None:
    assert reason in (file_refusal(path) or "")
    target = path.with_name("target")
    with pytest.raises(PatchError) as caught:
        attach(path, target, SECTION, "stub.so")
    assert caught.value.file == str(path)
    assert not target.exists()


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_can_carry_one(name, workshop):
    assert file_refusal(workshop.host(name)) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("static", "statically linked, so"), ("static-pie", "static-pie"), ("relocatable", "object file")],
)
def test_refused_by_how_it_is_linked(name, reason, workshop):
    refused(workshop.host(name), reason)


def test_refused_by_what_it_is(workshop, tmp_path):
    host = tmp_path / "so"
    shutil.copy(workshop.host("so"), host)
    archive = tmp_path / "archive.a"
    must(need("ar"), "qc", archive, host)
    refused(archive, "archive")
    must(need("ar"), "qcT", tmp_path / "thin.a", host)
    refused(tmp_path / "thin.a", "archive")
    (tmp_path / "script.so").write_text("/* GNU ld script */ INPUT(libc.so.6)")
    refused(tmp_path / "script.so", "not an ELF file")
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", "not an ELF file")
    must(need("objcopy"), "--only-keep-debug", host, tmp_path / "debug")
    refused(tmp_path / "debug", "debugging information only")
    assert "not a regular file" in (file_refusal(Path("/dev/null")) or "")


@pytest.mark.parametrize(("at", "value", "reason"), [(4, 1, "32-bit"), (5, 2, "big-endian")])
def test_refused_by_class(at, value, reason, workshop, tmp_path):
    data = bytearray(workshop.host("so").read_bytes())
    data[at] = value
    path = tmp_path / "other"
    path.write_bytes(data)
    assert reason in (file_refusal(path) or "")
    with pytest.raises(NeutrinoError):
        attach(path, tmp_path / "target", SECTION, "stub.so")


@pytest.mark.parametrize(("machine", "reason"), [(190, "image for a GPU")])
def test_refused_by_machine(machine, reason, workshop, tmp_path):
    data = bytearray(workshop.host("so").read_bytes())
    struct.pack_into("<H", data, 18, machine)
    (tmp_path / "image").write_bytes(data)
    refused(tmp_path / "image", reason)


def test_refused_with_a_payload_behind_it(workshop, tmp_path):
    """As self-extracting programs have it, which look for it at the end of their file."""
    path = tmp_path / "program"
    shutil.copy(workshop.host("pie"), path)
    with path.open("ab") as file:
        file.write(bytes(64))
    assert file_refusal(path) is None
    with path.open("ab") as file:
        file.write(b"PK\5\6")
    refused(path, "68 bytes of other data")


def test_refused_with_androids_relocations(workshop, tmp_path):
    clang = need("clang-19", "clang")
    # Skips where clang has no lld.
    workshop.host("so-lld")
    path = tmp_path / "so"
    sources = [workshop.folder / "host.c", workshop.folder / "fatbin.s"]
    arguments = ["-shared", "-fPIC", "-fuse-ld=lld", "-Wl,--pack-dyn-relocs=android", "-DBSS=10"]
    must(clang, *arguments, *sources, "-o", path)
    refused(path, "DT_ANDROID_RELA")


def test_restore_of_what_is_not_patched(workshop, tmp_path):
    with pytest.raises(PatchError, match=r"no \.neutrino section"):
        restore(workshop.host("so"), tmp_path / "target")
    with pytest.raises(PatchError, match="not an ELF file"):
        restore(Path(__file__), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def patched(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("patched")
    made = {}
    for name in ("so-stripped", "so-lld", "pie", "so-no-headers"):
        attach(workshop.host(name), folder / name, SECTION, "stub.so")
        made[name] = (folder / name).read_bytes()
    return made


def treat(data: bytes, folder: Path) -> str:
    """Everything that reads a file; the name of what it ended with."""
    path, target = folder / "so", folder / "target"
    path.write_bytes(data)
    target.unlink(missing_ok=True)
    ended = []
    for act in (restore, lambda source, into: attach(source, into, SECTION, "other.so")):
        try:
            with counted() as work:
                act(path, target)
            ended.append("done")
        except (FormatError, PatchError) as error:
            ended.append(type(error).__name__)
        else:
            target.unlink()
        # Half of it is usual for a whole file.
        assert work.calls < 25_000
    assert list(folder.iterdir()) == [path]
    return " ".join(ended)


hostile = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@hostile
@given(data=st.data())
def test_truncated_files(data, patched, tmp_path):
    whole = patched[data.draw(st.sampled_from(sorted(patched)))]
    ended = treat(whole[: data.draw(st.integers(0, len(whole) - 1))], tmp_path)
    assert not ended.startswith("done")


@hostile
@given(data=st.data())
def test_mutated_files(data, patched, tmp_path):
    name = data.draw(st.sampled_from(sorted(patched)))
    mutant = bytearray(patched[name])
    elf = Elf(memoryview(patched[name]), name)
    place = find_section(elf)
    original = read_original(elf)
    assert place is not None
    assert original is not None
    dynamic = next(segment for segment in elf.segments if segment.type == 2)
    interesting = [
        (0, 64),
        (elf.program_headers, 56 * len(elf.segments)),
        (dynamic.offset, dynamic.file_size),
        (place.offset, SECTION_HEADER.size),
        (place.offset + SECTION_HEADER.size + 500, place.size - SECTION_HEADER.size - 500),
    ]
    if elf.section_headers:
        interesting.append((elf.section_headers, 64 * len(elf.sections)))
    for _ in range(data.draw(st.integers(1, 3))):
        begin, size = data.draw(st.sampled_from(interesting))
        at = begin + data.draw(st.integers(0, size // 8 - 1)) * 8 + data.draw(st.sampled_from([0, 4]))
        value = data.draw(
            st.one_of(
                st.integers(0, 1 << 64),
                st.sampled_from([0, 1, 0x7F, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, len(mutant), len(mutant) - 1]),
            )
        )
        struct.pack_into("<Q", mutant, min(at, len(mutant) - 8), value & ((1 << 64) - 1))
    treat(bytes(mutant), tmp_path)


@pytest.mark.parametrize("name", ["so-lld", "so-no-headers"])
def test_every_bit_counts(name, patched, tmp_path):
    """A changed byte of the original is noticed, wherever it is."""
    data = patched[name]
    place = find_section(Elf(memoryview(data), name))
    assert place is not None
    for at in (5000, place.offset // 2, place.offset + place.size - 1):
        changed = bytearray(data)
        changed[at] ^= 0x10
        path = tmp_path / "so"
        path.write_bytes(changed)
        with pytest.raises(NeutrinoError):
            restore(path, tmp_path / "target")
        assert list(tmp_path.iterdir()) == [path]
