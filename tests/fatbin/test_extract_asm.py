"""``neutrino-extract --asm``: AMD's machine code as text, judged by assembling it again; and what is damaged."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.backend.gcn_listing import code_object_text
from neutrino.cli.extract import main
from neutrino.errors import FormatError, ToolMissingError
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.fatbin.code_object_lines import notes, source_lines
from tests.gcn.objects import CLANG, KERNELS, SOURCE, code_objects, need_clang, need_llvm

PTX = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    pytest.importorskip("elftools")
    need_llvm()
    return code_objects()


def test_text_on_stdout_and_in_files(objects, tmp_path, capsys) -> None:
    path = objects["gfx942-features"]
    assert main([str(path), "--asm"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        f'; {path}: image 0.0, gfx942:sramecc+:xnack-\n\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942:'
    )
    assert main([str(path), "--asm", "-o", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    name = document["containers"][0]["images"][0]["output"]
    assert name == "gfx942-features.0.0.gfx942_sramecc+_xnack-.s"
    text = (tmp_path / name).read_text()
    assert printed.split("\n", 1)[1] == text + "\n"
    code = b"".join(row.code for row in code_object_functions(path.read_bytes(), name, unnamed=True).functions)
    assert need_llvm().assemble(text, "gfx942", "+sramecc,-xnack") == code
    assert set(re.findall(r"^\t\.globl (\w+)$", text, re.MULTILINE)) == set(KERNELS)
    # As a file it is read again, with the same kernels.
    assert main([str(tmp_path / name), "--asm"]) == 0
    assert capsys.readouterr().out.split("\n", 1)[1] == text + "\n"


def test_only_what_is_asked_for(objects, capsys) -> None:
    assert main([str(objects["gfx1100-O2"]), "--asm", "-k", "saxpy", "-k", "wide"]) == 0
    assert re.findall(r"^(\w+):$", capsys.readouterr().out, re.MULTILINE) == ["saxpy", "wide"]
    assert main([str(objects["gfx1100-O2"]), "--asm", "-k", "absent"]) == 3
    output = capsys.readouterr()
    assert (output.out, "no image or kernel matches" in output.err) == ("", True)


@pytest.mark.parametrize("name", ["gfx90a-lines", "gfx1100-lines"])
def test_lines_are_those_of_llvm(objects, name, tmp_path) -> None:
    tool = shutil.which("llvm-dwarfdump-19")
    if tool is None:
        pytest.skip("no llvm-dwarfdump-19 on PATH")
    done = subprocess.run([tool, "--debug-line", objects[name]], capture_output=True, text=True, check=True)
    rows = re.findall(r"^0x([0-9a-f]{16}) +(\d+) +\d+ +\d+ +\d+ +\d+ +\d+(.*)$", done.stdout, re.MULTILINE)
    expected = {
        int(at, 16): "" if "end_sequence" in flags or line == "0" else f"kernels.hip:{line}" for at, line, flags in rows
    }
    assert len(expected) > 200
    assert source_lines(objects[name].read_bytes(), name) == expected
    # In the text they stand in front of the code that comes of them.
    text = "\n".join(code_object_text(objects[name].read_bytes(), name, ["nothing"]))
    line = 1 + SOURCE.read_text().split("\n").index("KERNEL(64) nothing() {}")
    assert re.search(rf"^nothing:\n\t; kernels\.hip:{line}\n\ts_endpgm$", text, re.MULTILINE)


def test_what_the_metadata_say(objects) -> None:
    text = "\n".join(code_object_text(objects["gfx90a-O2"].read_bytes(), "o", ["tiles"]))
    assert re.search(
        r"^\t; \d+ VGPRs, \d+ SGPRs, LDS 512 bytes, arguments \d+ bytes, waves of 64, ", text, re.MULTILINE
    )
    assert re.search(r"^\t; argument at 24: by_value, 4 bytes$", text, re.MULTILINE)


def test_notes_are_ours_and_pyelftools(objects) -> None:
    data = objects["gfx90a-O2"].read_bytes()
    (owner, kind, content), *_ = notes(data, "o")
    assert (owner, kind) == ("AMDGPU", 32)
    assert content in data
    assert b"amdhsa.kernels" in content


def test_a_damaged_line_table_costs_the_lines_alone(objects, tmp_path) -> None:
    data = bytearray(objects["gfx90a-lines"].read_bytes())
    sections = subprocess.run(
        ["readelf", "-SW", objects["gfx90a-lines"]], capture_output=True, text=True, check=True
    ).stdout
    match = re.search(r"\.debug_line +PROGBITS +\w+ (\w+) (\w+)", sections)
    assert match
    begin, size = int(match[1], 16), int(match[2], 16)
    data[begin : begin + size] = b"\xff" * size
    with pytest.raises(FormatError, match="line table is damaged"):
        source_lines(bytes(data), "o")
    text = list(code_object_text(bytes(data), "o", ["nothing"]))
    assert any(line.startswith("\t; no source lines: o: at 0x0: line table is damaged") for line in text)
    assert "\ts_endpgm" in text


def test_an_object_file_has_a_text(tmp_path, capsys) -> None:
    pytest.importorskip("elftools")
    need_llvm()
    if shutil.which(CLANG) is None:
        pytest.skip(f"no {CLANG} on PATH")
    source = "kernel void one(global int *a) { a[0] = 1; }\nkernel void two(global int *a) { a[1] = 2; }\n"
    options = ["-target", "amdgcn-amd-amdhsa", "-mcpu=gfx90a", "-nogpulib", "-x", "cl", "-O1", "-ffunction-sections"]
    subprocess.run([CLANG, *options, "-c", "-", "-o", tmp_path / "k.o"], input=source, text=True, check=True)
    assert main([str(tmp_path / "k.o"), "--asm"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["one", "two"]
    found = code_object_functions((tmp_path / "k.o").read_bytes(), "k.o", unnamed=True)
    assert need_llvm().assemble(text, "gfx90a") == b"".join(function.code for function in found.functions)


def test_what_has_no_text_says_so(objects, tmp_path, capsys) -> None:
    (tmp_path / "k.ptx").write_text(PTX)
    assert main([str(tmp_path / "k.ptx"), "--asm"]) == 0
    assert capsys.readouterr().out == f"; {tmp_path / 'k.ptx'}: image 0.0, sm_80\n{PTX}\n"
    assert main([str(objects["gfx90a-O2"]), "--sass"]) == 0
    assert "it has 1 AMD code object; --asm shows AMD's machine code as text" in capsys.readouterr().err
    assert main([str(objects["gfx90a-O2"]), "--asm", "--json"]) == 2
    assert "--asm prints text; give -o FOLDER" in capsys.readouterr().err
    assert main([str(objects["gfx90a-O2"]), "--asm", "--sass"]) == 2
    assert "--sass and --asm cannot be combined" in capsys.readouterr().err
    assert main([str(objects["gfx90a-O2"]), "--asm", "--coverage"]) == 2
    assert "--coverage and --asm cannot be combined" in capsys.readouterr().err


def test_without_the_extra_it_is_named(objects, monkeypatch, capsys) -> None:
    def refuse(processor: str) -> None:
        raise ToolMissingError("AMD's LLVM", 'pip install "neutrino-gpu[amd]"')

    monkeypatch.setattr("neutrino.backend.gcn_listing.find_llvm", refuse)
    assert main([str(objects["gfx90a-O2"]), "--asm"]) == 2
    assert 'pip install "neutrino-gpu[amd]"' in capsys.readouterr().err
    # What needs no disassembler goes on without.
    assert main([str(objects["gfx90a-O2"]), "--kernels", "--resources"]) == 0
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(ToolMissingError, match=r"neutrino-gpu\[amd\]"):
        source_lines(objects["gfx90a-O2"].read_bytes(), "o")


def test_a_new_triple_is_read(tmp_path, capsys) -> None:
    (tmp_path / "k.s").write_text(
        '\t.amdgcn_target "amdgpu9.42-amd-amdhsa-unknown-gfx942:xnack+"\n\t.amdhsa_kernel add\n'
    )
    assert main([str(tmp_path / "k.s"), "--json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["containers"][0]["images"]
    assert (image["arch"], [kernel["name"] for kernel in image["kernels"]]) == ("gfx942:xnack+", ["add"])


def test_kernels_without_code_and_behind_all_code(tmp_path, capsys) -> None:
    """rocPRIM has such, for processors that a library is not made for."""
    pytest.importorskip("elftools")
    need_llvm()
    need_clang()
    source = (
        '#define KERNEL extern "C" __attribute__((global)) void\n'
        "KERNEL first() { __builtin_unreachable(); }\nKERNEL some(int *a) { *a = 1; }\n"
        "KERNEL last() { __builtin_unreachable(); }\n"
    )
    options = ["-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-O2", "-w"]
    target = tmp_path / "k.hsaco"
    done = subprocess.run([CLANG, *options, "--offload-arch=gfx1100", "-", "-o", target], input=source, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    functions = code_object_functions(target.read_bytes(), "k").functions
    assert {function.name: bool(function.code) for function in functions} == {
        "first": False,
        "some": True,
        "last": False,
    }
    assert main([str(target), "--asm"]) == 0
    text = capsys.readouterr().out
    assert set(re.findall(r"^(\w+):$", text, re.MULTILINE)) == {"first", "some", "last"}
    assert text.count("; cannot be probed: it has no code") == 2
    whole = code_object_functions(target.read_bytes(), "k", unnamed=True).functions
    assert need_llvm().assemble(text, "gfx1100") == b"".join(function.code for function in whole)


_DAMAGE = st.lists(st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=_DAMAGE, cut=st.one_of(st.none(), st.integers(0, 2**20)), headers=st.booleans())
def test_damaged_objects_give_text_or_an_error_with_a_place(
    objects, damage: list[tuple[int, bytes]], cut: int | None, headers: bool
) -> None:
    data = bytearray(objects["gfx90a-lines"].read_bytes())
    for at, value in damage:
        # Of most files' bytes few are headers, notes and symbols.
        begin = at % (0x1400 if headers else len(data))
        data[begin : begin + len(value)] = value
    if cut is not None:
        del data[cut % len(data) :]
    # Nothing else comes of it: no other exception, and no crash.
    with contextlib.suppress(FormatError, ToolMissingError):
        for _ in code_object_text(bytes(data), "object"):
            pass


def test_wrong_tables_are_named(objects) -> None:
    """A kernel outside the code, functions that overlap, a descriptor that is missing, a processor of no name."""
    data = objects["gfx942-O2"].read_bytes()
    readelf = subprocess.run(
        ["readelf", "-sW", objects["gfx942-O2"]], capture_output=True, text=True, check=True
    ).stdout
    values = {name: int(value, 16) for value, name in re.findall(r": (\w{16}) .* (\S+)$", readelf, re.MULTILINE)}

    def with_symbol(name: str, address: int) -> bytes:
        # A row of a symbol table: type and binding, visibility, section, value.
        old = re.compile(rb"\x12\x03..(?=" + re.escape(values[name].to_bytes(8, "little")) + rb")", re.DOTALL)
        changed = bytearray(data)
        places = [match.end() for match in old.finditer(data)]
        assert places
        for place in places:
            changed[place : place + 8] = address.to_bytes(8, "little")
        return bytes(changed)

    with pytest.raises(FormatError, match=r"function wide is 0x[0-9a-f]+ to 0x[0-9a-f]+, expected inside the code"):
        code_object_functions(with_symbol("wide", 0x7FFF0000), "o")
    with pytest.raises(FormatError, match=r"(code of wide is at|function \w+ is at) 0x[0-9a-f]+, expected"):
        code_object_functions(with_symbol("wide", values["wide"] + 4), "o")
    with pytest.raises(FormatError, match=r"descriptor of wide is missing"):
        code_object_functions(data.replace(b"wide.kd", b"wide.kx"), "o")
    unknown = data[:0x30] + b"\xee" + data[0x31:]
    with pytest.raises(
        FormatError, match="at 0x30: processor in e_flags and metadata is unknown, expected one of AMD's"
    ):
        list(code_object_text(unknown.replace(b"amdhsa--gfx942", b"amdxxx--gfx942"), "o"))
    with pytest.raises(ToolMissingError, match="does not know"):
        list(code_object_text(unknown.replace(b"--gfx942", b"--gfx9zz"), "o"))
