"""Folders and wheels given to ``neutrino-extract``; what hostile ones cannot make it do."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.cli.extract import main
from neutrino.cli.streams import escaped_text
from neutrino.errors import FormatError
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry, read_file
from neutrino.fatbin.extraction import Namer, file_name, safe_part, write_aside
from neutrino.fatbin.inputs import Input, find_inputs
from neutrino.fatbin.wheel import MAX_MEMBER, decode, read_members

TEXT = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one()\n{\n\tret;\n}\n"
FATBIN = build_container([build_entry(ImageKind.PTX, TEXT, "sm_90", options="")])


def names_of(output: str) -> list[str]:
    """The files listed, in order, from the JSON."""
    return [f"{one['file']}{'/' + one['member'] if 'member' in one else ''}" for one in json.loads(output)["files"]]


@pytest.fixture
def tree(tmp_path) -> Path:
    """Device code among other things, some of them not to be touched."""
    root = tmp_path / "tree"
    (root / "b" / "deep").mkdir(parents=True)
    (root / "a.fatbin").write_bytes(FATBIN)
    (root / "b" / "deep" / "k.ptx").write_bytes(b"// made by hand\n" + TEXT)
    (root / "b" / "notes.txt").write_text("hello")
    (root / "b" / "nothing").write_bytes(b"")
    (root / "b.cpp").write_text("// .version of nothing\nint main(void) { return 0; }\n")
    (root / "c.fatbin").write_bytes(FATBIN)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.fatbin").write_bytes(FATBIN)
    (root / "b" / "up").symlink_to(root)
    (root / "b" / "out").symlink_to(outside)
    (root / "b" / "out.fatbin").symlink_to(outside / "secret.fatbin")
    (root / "b" / "dangling").symlink_to("nowhere")
    return root


def test_names_in_machine_code_do_not_steer_the_terminal() -> None:
    assert escaped_text("\t.text.\x1b[2J\u202ekernel:\tEXIT ;") == "\t.text.\\x1b[2J\\u202ekernel:\tEXIT ;"


def test_many_files_written_are_counted(tmp_path, capsys):
    path = tmp_path / "many.fatbin"
    path.write_bytes(FATBIN * 30)
    assert main([str(path), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"neutrino-extract: wrote {tmp_path}/out/many.0.0.sm_90.ptx"
    assert said[-1] == f"neutrino-extract: wrote 30 files to {tmp_path}/out in all (--json names each)"
    assert len(said) == 21
    assert len(list((tmp_path / "out").iterdir())) == 30


def test_a_folder_is_walked_in_the_order_of_names(tree, capsys):
    assert main([str(tree), "--json"]) == 0
    output = capsys.readouterr()
    found = [f"{tree}/a.fatbin", f"{tree}/b/deep/k.ptx", f"{tree}/c.fatbin"]
    assert (names_of(output.out), output.err) == (found, "")
    assert main([str(tree)]) == 0
    heads = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if line.endswith("1 image")]
    assert heads == [*found]


def test_totals_of_several_files(tree, capsys):
    assert main([str(tree)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 files: 3 containers, 3 images"


def test_what_is_no_file_is_passed_over_and_nobody_waits_for_it(tree, capsys):
    os.mkfifo(tree / "b" / "fifo")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tree / "socket")[-100:] if len(str(tree)) > 90 else str(tree / "socket"))
    try:
        assert main([str(tree), "--json"]) == 0
        assert len(names_of(capsys.readouterr().out)) == 3
    finally:
        listening.close()


def test_a_fifo_that_is_named_is_refused_at_once(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    assert main([str(tmp_path / "fifo")]) == 2
    assert "a FIFO" in capsys.readouterr().err
    assert main(["/dev/null"]) == 2
    assert "a device" in capsys.readouterr().err


def test_what_cannot_be_opened_is_named_and_the_rest_is_shown(tree, capsys):
    if os.geteuid() == 0:
        pytest.skip("the superuser can open everything")
    (tree / "a.fatbin").chmod(0)
    (tree / "b" / "deep").chmod(0)
    try:
        assert main([str(tree), "--json"]) == 2
    finally:
        (tree / "b" / "deep").chmod(0o755)
    output = capsys.readouterr()
    assert names_of(output.out) == [f"{tree}/c.fatbin"]
    assert [line.split(": ")[1] for line in output.err.splitlines()] == [f"{tree}/a.fatbin", f"{tree}/b/deep"]


def test_what_is_damaged_is_named_and_the_rest_is_shown(tree, capsys):
    (tree / "b" / "cut.fatbin").write_bytes(FATBIN[:-4])
    (tree / "b" / "bad.whl").write_bytes(b"PK\x03\x04 and no more")
    (tree / "b" / "other-endian").write_bytes(b"\x7fELF\x02\x02" + bytes(100))
    assert main([str(tree), "--json"]) == 2
    output = capsys.readouterr()
    assert len(names_of(output.out)) == 3
    lines = output.err.splitlines()
    assert [f"{tree}/b/bad.whl" in lines[0], f"{tree}/b/cut.fatbin" in lines[1], len(lines)] == [True, True, 2]


def test_a_file_that_is_gone_when_its_turn_comes(tree):
    refused: list[str] = []
    found = []
    for one in find_inputs([str(tree)], lambda name, _: refused.append(name)):
        found.append(one.name)
        (tree / "c.fatbin").unlink(missing_ok=True)
    assert (found, refused) == ([f"{tree}/a.fatbin", f"{tree}/b/deep/k.ptx"], [f"{tree}/c.fatbin"])


def test_a_folder_without_device_code(tmp_path, capsys):
    (tmp_path / "x.txt").write_text("x")
    assert main([str(tmp_path)]) == 3
    output = capsys.readouterr()
    assert (output.out, "no device code found" in output.err) == ("", True)
    assert main([str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"files": []}


def test_several_inputs_of_one_name_do_not_overwrite_each_other(tree, tmp_path, capsys):
    other = tmp_path / "other" / "a.fatbin"
    other.parent.mkdir()
    other.write_bytes(build_container([build_entry(ImageKind.PTX, TEXT + b"// other\n", "sm_90", options="")]))
    (tmp_path / "a-2.fatbin").write_bytes(FATBIN)
    out = tmp_path / "out"
    inputs = [str(tree / "a.fatbin"), str(other), str(tmp_path / "a-2.fatbin"), str(tree / "missing")]
    assert main([*inputs, "-o", str(out), "--json"]) == 2
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    assert written == {
        "a.0.0.sm_90.ptx": TEXT, "a-2.0.0.sm_90.ptx": TEXT + b"// other\n", "a-2-2.0.0.sm_90.ptx": TEXT,
    }  # fmt: skip
    files = json.loads(capsys.readouterr().out)["files"]
    outputs = [one["containers"][0]["images"][0]["output"] for one in files]
    assert outputs == ["a.0.0.sm_90.ptx", "a-2.0.0.sm_90.ptx", "a-2-2.0.0.sm_90.ptx"]


# Wheels


@pytest.fixture
def wheel(tmp_path) -> Path:
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("package/__init__.py", "x = 1\n" * 100)
        file.writestr("package/stored.fatbin", FATBIN, zipfile.ZIP_STORED)
        file.writestr("package/deflated.fatbin", FATBIN + bytes(100_000))
        file.writestr("package/empty.so", b"")
        file.writestr("../../evil.fatbin", FATBIN)
        file.writestr("/tmp/absolute.fatbin", FATBIN)
        file.writestr("package/..", FATBIN)
        file.writestr("package/a\x1b[31m:b.fatbin", FATBIN)
    return path


def test_a_wheel_is_read_in_place(wheel, capsys):
    assert main([str(wheel), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    files = json.loads(output.out)["files"]
    with zipfile.ZipFile(wheel) as file:
        device = [info.filename for info in file.infolist() if file.read(info)[:4] == FATBIN[:4]]
    assert [one["member"] for one in files] == device
    assert len(device) == 6
    assert {one["file"] for one in files} == {str(wheel)}
    assert all(one["containers"][0]["images"][0]["kernels"][0]["name"] == "one" for one in files)


def test_names_of_members_never_leave_the_output_folder(wheel, tmp_path, capsys):
    before = set(tmp_path.rglob("*"))
    out = tmp_path / "x" / "out"
    assert main([str(wheel), "-o", str(out)]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    written = sorted(path.name for path in out.iterdir())
    assert written == [
        "_..0.0.sm_90.ptx", "a__31m_b.0.0.sm_90.ptx", "absolute.0.0.sm_90.ptx", "deflated.0.0.sm_90.ptx",
        "evil.0.0.sm_90.ptx", "stored.0.0.sm_90.ptx",
    ]  # fmt: skip
    assert {path for path in tmp_path.rglob("*") if out.parent not in (path, *path.parents)} == before


def test_wheels_in_folders_are_looked_into_and_other_zip_files_are_not(wheel, tmp_path, capsys):
    wheel.with_suffix(".zip").write_bytes(wheel.read_bytes())
    assert main([str(tmp_path), "--json"]) == 0
    assert {one["file"] for one in json.loads(capsys.readouterr().out)["files"]} == {str(wheel)}
    assert main([str(wheel.with_suffix(".zip")), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 6


def test_a_damaged_member_is_named_and_the_others_are_shown(wheel, capsys):
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as file:
        info = file.getinfo("package/deflated.fatbin")
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    data[at : at + 8] = b"\xff" * 8
    wheel.write_bytes(data)
    assert main([str(wheel), "--json"]) == 2
    output = capsys.readouterr()
    assert len(json.loads(output.out)["files"]) == 5
    assert "package/deflated.fatbin" in output.err
    assert "deflated data" in output.err


def central(wheel: Path, name: str) -> int:
    """Where a member's header in the central directory is."""
    data = wheel.read_bytes()
    at = data.rfind(name.encode())
    return at - 46


@pytest.mark.parametrize(
    ("offset", "layout", "value", "said"),
    [
        (24, "<I", 0x7FFFFFFF, "uncompressed size"),
        (8, "<H", 1, "encrypted"),
        (10, "<H", 12, "0 (stored) or 8 (deflated)"),
        (42, "<I", 0x7FFFFFFF, "offset of member"),
        (20, "<I", 0x7FFFFFFF, "data of member"),
        (34, "<H", 0, None),
    ],
)
def test_members_that_lie_are_refused(wheel, capsys, offset, layout, value, said):
    data = bytearray(wheel.read_bytes())
    struct.pack_into(layout, data, central(wheel, "package/deflated.fatbin") + offset, value)
    wheel.write_bytes(data)
    assert main([str(wheel)]) == (2 if said else 0)
    error = capsys.readouterr().err
    assert (said or "") in error
    assert not said or str(wheel) in error


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, capsys):
    """Members that share one payload: a small file that would decode to terabytes."""
    import zlib

    size = 1 << 24
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    payload = deflater.compress(FATBIN.ljust(1 << 20, b"\0"))
    for _ in range((size >> 20) - 1):
        payload += deflater.compress(bytes(1 << 20))
    payload += deflater.flush()
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(payload), size, 1, 0) + b"m" + payload
    row = struct.pack(
        "<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, 0, len(payload), size, 1, 0, 0, 0, 0, 0, 0
    ) + b"m"  # fmt: skip
    count = 10_000
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(row) * count, len(local), 0)
    path = tmp_path / "bomb.whl"
    path.write_bytes(local + row * count + end)
    members = read_members(memoryview(path.read_bytes()), "bomb.whl")
    with pytest.raises(FormatError, match="compressed bytes"):
        for _ in members:
            pass
    forged = bytearray(local + row + end)
    struct.pack_into("<I", forged, len(local) + 24, (len(payload) * 1032 + 1) & 0xFFFFFFFF)
    with pytest.raises(FormatError, match=r"uncompressed size|end of central|central directory"):
        list(read_members(memoryview(forged), "bomb.whl"))
    assert MAX_MEMBER < 1 << 40


def test_a_temporary_folder_without_room_is_said(wheel, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    assert main([str(wheel)]) == 2
    assert "set TMPDIR" in capsys.readouterr().err


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    members=st.lists(
        st.tuples(
            st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12), st.binary(max_size=300),
            st.booleans(),
        ),
        max_size=6, unique_by=lambda one: one[0].replace("\\", "/"),
    )
)  # fmt: skip
def test_members_are_those_of_zipfile(tmp_path, members):
    path = tmp_path / "any.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, data, deflated in members:
            info = zipfile.ZipInfo(name)
            info.filename = name.replace("\0", "") or "x"
            file.writestr(info, data, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)
    with zipfile.ZipFile(path) as file:
        expected = [
            (info.filename, file.read(info)) for info in file.infolist() if info.file_size and not info.is_dir()
        ]
    found = []
    for member in read_members(memoryview(path.read_bytes()), "any.zip"):
        if member.compressed:
            with (tmp_path / "decoded").open("wb") as target:
                decode(member, target)
            found.append((member.name, (tmp_path / "decoded").read_bytes()))
        else:
            found.append((member.name, bytes(member.payload)))
    assert found == expected


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_damage_to_a_zip_file_is_a_format_error(data):
    base = bytearray(_small_zip())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(base) - 1))
        base[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(base)))
    for view in (bytes(base), bytes(base[:cut])):
        try:
            for member in read_members(memoryview(view), "damaged.whl"):
                if member.compressed:
                    with Path(os.devnull).open("wb") as target:
                        decode(member, target)
        except FormatError:
            pass


def _small_zip() -> bytes:
    import io

    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/one.fatbin", FATBIN)
        file.writestr("b", b"stored", zipfile.ZIP_STORED)
    return target.getvalue()


def test_a_zip64_wheel(tmp_path):
    path = tmp_path / "wide.whl"
    with zipfile.ZipFile(path, "w") as file, file.open("one.fatbin", "w", force_zip64=True) as member:
        member.write(FATBIN)
    data = bytearray(path.read_bytes())
    # As writers of large files have it: sizes and offset in the extra field alone.
    at = data.rfind(b"PK\x01\x02")
    name = b"one.fatbin"
    row = bytearray(data[at : at + 46]) + name + struct.pack("<HHQQQ", 1, 24, len(FATBIN), len(FATBIN), 0)
    struct.pack_into("<II", row, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", row, 30, 28)
    struct.pack_into("<I", row, 42, 0xFFFFFFFF)
    wide_end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(row), at)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at + len(row), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(bytes(data[:at]) + row + wide_end + locator + end)
    with zipfile.ZipFile(path) as file:
        assert file.read("one.fatbin") == FATBIN
    (member,) = read_members(memoryview(path.read_bytes()), "wide.whl")
    assert (member.name, bytes(member.payload)) == ("one.fatbin", FATBIN)


# Writing


@given(st.text(max_size=300), st.text(max_size=300))
def test_names_are_one_part_of_a_path(stem, arch):
    (container,) = _containers()
    image = container.images[0]
    name = file_name(Namer().stem(stem), container, type(image)(**{**_fields(image), "arch": arch}))
    assert Path(name).name == name
    assert not name.startswith((".", "-"))
    assert len(name) <= 255
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-_.")
    assert safe_part("gfx942:sramecc+:xnack-") == "gfx942_sramecc+_xnack-"


def _containers():
    from neutrino.fatbin.host import read_data

    return read_data(FATBIN, "made here")


def _fields(image) -> dict[str, object]:
    import dataclasses

    return {field.name: getattr(image, field.name) for field in dataclasses.fields(image)}


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "b", "a-2-2"]), max_size=12))
def test_no_two_inputs_get_one_name(stems):
    namer = Namer()
    given_out = [namer.stem(stem) for stem in stems]
    assert len(set(given_out)) == len(stems)


def test_links_in_the_output_folder_are_replaced_not_followed(tmp_path, tree, capsys):
    out = tmp_path / "out"
    out.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    (out / "a.0.0.sm_90.ptx").symlink_to(victim)
    assert main([str(tree / "a.fatbin"), "-o", str(out)]) == 0
    assert victim.read_text() == "keep me"
    assert (out / "a.0.0.sm_90.ptx").read_bytes() == TEXT
    assert not (out / "a.0.0.sm_90.ptx").is_symlink()
    (out / "a.0.0.sm_90.ptx").unlink()
    (out / "a.0.0.sm_90.ptx").mkdir()
    assert main([str(tree / "a.fatbin"), "-o", str(out)]) == 2
    assert str(out / "a.0.0.sm_90.ptx") in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["a.0.0.sm_90.ptx"]


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self._file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def write(self, data):
            self._file.write(data[:3])
            raise OSError(28, "No space left on device")

    opened = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: Full(opened(descriptor, mode)))
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_aside(tmp_path / "image.ptx", TEXT)
    assert caught.value.filename == str(tmp_path / "image.ptx")
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_write_whole_files(tmp_path, tree):
    out = tmp_path / "out"
    out.mkdir()
    errors: list[BaseException] = []

    def write(byte: int) -> None:
        try:
            for _ in range(20):
                write_aside(out / f"image{byte}.ptx", bytes([byte]) * 100_000)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(byte,)) for byte in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {path.name: set(path.read_bytes()) for path in out.iterdir()} == {"image1.ptx": {1}, "image2.ptx": {2}}


def test_a_file_in_a_wheel_is_what_it_is_beside_it(tmp_path):
    entries = [
        build_entry(ImageKind.PTX, TEXT * 50, f"sm_{arch}", options="", compression=compression)
        for arch, compression in ((75, Compression.LZ4), (80, Compression.ZSTD), (90, Compression.NONE))
    ]
    library = tmp_path / "lib.fatbin"
    library.write_bytes(build_container(entries) + bytes(8) + build_container(entries[:1]))
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("odd", b"odd", zipfile.ZIP_STORED)
        file.write(library, "package/lib.fatbin")
    (found,) = find_inputs([str(path)], lambda name, error: pytest.fail(f"{name}: {error}"))
    inside = found.read(found.data())
    beside = read_file(library)
    assert [[image.data for image in container.images] for container in inside] == [
        [image.data for image in container.images] for container in beside
    ]
    assert sum(len(container.images) for container in inside) == 4
    assert found.stem == "lib"
    assert Input(Path(sys.executable), is_named=True).stem == Path(sys.executable).stem
