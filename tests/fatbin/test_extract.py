"""``neutrino-extract`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fatbin_inputs import PTX, run

from neutrino.cli.extract import main
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry, kernel_names, read_file

ROOT = Path(__file__).resolve().parents[2]
TEXT = PTX.format(arch="sm_90").replace("second", "_Z6hiddenPi").encode()


@pytest.fixture
def file(tmp_path, cubins) -> Path:
    path = tmp_path / "library.fatbin"
    first = build_container(
        [
            build_entry(ImageKind.CUBIN, cubins["sm_90a"], "sm_90a"),
            build_entry(ImageKind.PTX, TEXT, "sm_90", compression=Compression.LZ4, options="-O1"),
        ]
    )
    second = build_container([build_entry(ImageKind.NVVM, b"\xed\x43\x4e\x7f----", "sm_80")])
    path.write_bytes(first + bytes(16) + second)
    return path


def test_json(file, capsys):
    assert main([str(file), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    first, second = read_file(file)
    two = [{"name": "add_one", "demangled": "add_one"}]
    cubin = first.images[0]
    named = [{"name": name, "demangled": name} for name in kernel_names(cubin)]
    assert json.loads(output.out) == {
        "file": str(file),
        "containers": [
            {"index": 0, "kind": "cuda-fatbin", "section": "", "offset": 0, "size": first.size, "images": [
                {"index": 0, "kind": "cubin", "arch": "sm_90a", "compression": "none", "size": len(cubin.data),
                 "stored_size": len(cubin.data), "kernels": named},
                {"index": 1, "kind": "ptx", "arch": "sm_90", "compression": "lz4", "size": len(TEXT),
                 "stored_size": first.images[1].stored_size,
                 "kernels": [*two, {"name": "_Z6hiddenPi", "demangled": "hidden(int*)"}]},
            ]},
            {"index": 1, "kind": "cuda-fatbin", "section": "", "offset": first.size + 16, "size": second.size,
             "images": [
                {"index": 0, "kind": "nvvm", "arch": "sm_80", "compression": "none", "size": 8, "stored_size": 8,
                 "kernels": []},
            ]},
        ],
    }  # fmt: skip


def test_table(file, capsys):
    assert main([str(file)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = [line.split() for line in output.out.splitlines()]
    assert output.out.splitlines()[0] == f"{file}: 2 containers, 3 images"
    stored = f"{read_file(file)[0].images[1].stored_size:,}"
    assert ["0.1", "-", "ptx", "sm_90", "lz4", f"{len(TEXT):,}", stored] in lines
    assert ["1.0", "-", "nvvm", "sm_80", "none", "8", "8"] in lines
    assert "add_one" not in output.out


def test_kernels(file, capsys):
    assert main([str(file), "--kernels"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == [f"{file}:", "2", "containers,", "3", "images,", "3", "kernels"]
    assert next(line for line in lines if line[:1] == ["0.1"])[-1] == "2"
    assert ["0", "cubin", "sm_90a;", "ptx", "sm_90", "add_one"] in lines
    assert ["0", "ptx", "sm_90", "hidden(int*)"] in lines


def test_the_plain_listing_decodes_nothing(file, capsys):
    data = bytearray(file.read_bytes())
    image = read_file(file)[0].images[1]
    place = image.offset + len(image.header)
    data[place : place + image.stored_size] = b"\xff" * image.stored_size
    file.write_bytes(data)
    assert main([str(file)]) == 0
    assert f"{len(TEXT):,}" in capsys.readouterr().out.split()
    assert main([str(file), "--kernels"]) == 2


def test_only_what_is_asked_for(file, tmp_path, capsys):
    assert main([str(file), "-k", "hidden", "--json", "-o", str(tmp_path / "out")]) == 0
    (container,) = json.loads(capsys.readouterr().out)["containers"]
    (image,) = container["images"]
    assert (image["index"], [kernel["demangled"] for kernel in image["kernels"]]) == (1, ["hidden(int*)"])
    assert image["output"] == "library.0.1.sm_90.ptx"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["library.0.1.sm_90.ptx"]
    assert main([str(file), "--arch", "sm_80"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{file}: 1 container, 1 image"
    assert main([str(file), "--arch", "sm_8"]) == 3
    output = capsys.readouterr()
    assert (output.out, "no image or kernel matches" in output.err) == ("", True)
    assert main([str(file), "-k", "/(/"]) == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_a_long_kernel_name_stays_on_one_line(tmp_path, capsys):
    name = "k" * 400
    (tmp_path / "k.ptx").write_text(PTX.format(arch="sm_90").replace("add_one", name))
    assert main([str(tmp_path / "k.ptx"), "--kernels"]) == 0
    assert any(line.split()[-1:] == [name] for line in capsys.readouterr().out.splitlines())


def test_output_folder(file, cubins, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main([str(file), "-o", str(folder), "--json"]) == 0
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written == {
        "library.0.0.sm_90a.cubin": cubins["sm_90a"],
        "library.0.1.sm_90.ptx": TEXT,
        "library.1.0.sm_80.ltoir": b"\xed\x43\x4e\x7f----",
    }
    output = capsys.readouterr()
    json.loads(output.out)
    assert sorted(line.rpartition("/")[2] for line in output.err.splitlines()) == sorted(written)


def test_the_bytes_of_cuobjdump(fatbins, cuobjdump, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    assert main([str(fatbins["size"]), "-o", str(ours)]) == 0
    run(cuobjdump, "-xptx", "all", fatbins["size"], cwd=theirs)
    run(cuobjdump, "-xelf", "all", fatbins["size"], cwd=theirs)
    contents = [sorted(path.read_bytes() for path in folder.iterdir()) for folder in (ours, theirs)]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 6


def test_a_bare_image_sits_in_a_container_of_kind_file(tmp_path, capsys):
    (tmp_path / "k.ptx").write_bytes(TEXT)
    assert main([str(tmp_path / "k.ptx"), "--json", "-o", str(tmp_path / "out")]) == 0
    (container,) = json.loads(capsys.readouterr().out)["containers"]
    assert (container["kind"], container["section"], container["size"]) == ("file", "", len(TEXT))
    assert (tmp_path / "out" / "k.0.0.sm_90.ptx").read_bytes() == TEXT


def test_a_file_without_device_code(capsys):
    # The interpreter itself: an ELF executable everywhere.
    assert main([sys.executable]) == 3
    assert capsys.readouterr().out == ""
    assert main([sys.executable, "--json"]) == 3
    output = capsys.readouterr()
    assert json.loads(output.out) == {"file": sys.executable, "containers": []}
    assert "no device code found" in output.err


def test_bad_input(tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("hello, world")
    for path in (other, tmp_path / "missing"):
        assert main([str(path)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert str(path) in output.err
        assert len(output.err.splitlines()) == 1


def test_unwritable_output(file, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert main([str(file), "-o", str(tmp_path / "taken")]) == 2
    assert str(tmp_path / "taken") in capsys.readouterr().err


def test_a_damaged_image_is_named_and_the_others_are_shown(file, tmp_path, capsys):
    data = bytearray(file.read_bytes())
    image = read_file(file)[0].images[1]
    place = image.offset + len(image.header)
    data[place : place + image.stored_size] = b"\xff" * image.stored_size
    file.write_bytes(data)
    assert main([str(file), "--kernels", "-o", str(tmp_path / "out")]) == 2
    output = capsys.readouterr()
    assert "damaged" in output.out
    assert "add_one" in output.out
    assert f"image 0.1: {file}: at {place:#x}: payload" in output.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "library.0.0.sm_90a.cubin",
        "library.1.0.sm_80.ltoir",
    ]


def run_as_user(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "neutrino.cli.extract", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)


def test_exit_status_of_the_command(file, tmp_path):
    assert run_as_user(str(file)).returncode == 0
    assert run_as_user(str(tmp_path / "missing")).returncode == 2
    assert run_as_user().returncode == 2
    assert run_as_user(str(file), "--no-such-option").returncode == 2


def test_a_name_that_is_not_utf8(file, tmp_path):
    odd = tmp_path / os.fsdecode(b"odd\xff")
    odd.symlink_to(file)
    for encoding in ("ascii", "utf-8:strict"):
        done = subprocess.run(
            [sys.executable, "-m", "neutrino.cli.extract", str(odd)], capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"odd\\udcff" in done.stdout


def test_a_reader_that_has_enough(file):
    """``neutrino-extract FILE | true`` says nothing of broken pipes."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "neutrino.cli.extract", str(file)], stdout=write_end, stderr=subprocess.PIPE,
            text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
