"""Code objects with appended kernels in AMD's own HIP runtime, on a stand-in of HSA's: loading, packing, results."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neutrino.fatbin.code_object import metadata_of, open_code_object
from neutrino.fatbin.code_object_append import Appended, append_kernels, block_offset, place
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import Function, decode, split_target
from neutrino.gcn.splice import Insertion, splice, spliced_size
from tests.gcn.objects import CLANG, code_objects, need_clang, need_llvm
from tests.hsa.build import build
from tests.hsa.executes import COUNT, GROUPS
from tests.once import once

ROOT = Path(__file__).parents[2]
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib")
HEADER = Path("/usr/include/hsa/hsa.h")
ISAS = {"gfx90a": "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "gfx1030": "amdgcn-amd-amdhsa--gfx1030"}
BLOCK = 136
BUNDLER = "clang-offload-bundler-19"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return code_objects(tmp_path_factory)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in; without AMD's runtime and HSA's headers the test is skipped."""
    if not any(Path(folder, "libamdhip64.so.5").exists() for folder in LIBRARIES):
        pytest.skip("no libamdhip64.so.5 (Debian: libamdhip64-5)")
    if not HEADER.exists():
        pytest.skip(f"no {HEADER} (Debian: libhsa-runtime-dev)")
    return once(tmp_path_factory, "hsa-stand-in", build)


def start(stand_in: Path, processor: str, module: str, *arguments: str) -> Any:
    """Run a module of these tests in a process of its own with AMD's runtime, and return what it prints."""
    paths = [str(stand_in), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "HSA_STAND_IN_ISA": ISAS[processor]}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_copies(data: bytes) -> bytes:
    """A code object with a copy of each of its kernels."""
    return append_kernels(
        data,
        [
            Appended(f"{function.name}__neutrino", function.name, function.code, 50, 12, BLOCK)
            for function in code_object_functions(data, "").functions
            if function.is_kernel
        ],
    )


def metadata(data: bytes) -> dict[str, dict[str, Any]]:
    """The metadata of kernels by their names."""
    read = metadata_of(open_code_object(data, ""))
    assert read is not None
    return {kernel[".name"]: kernel for kernel in read.values["amdhsa.kernels"]}


def is_hidden(argument: Mapping[str, Any]) -> bool:
    return str(argument[".value_kind"]).startswith("hidden_")


def compile_hidden(folder: Path) -> None:
    for processor in ISAS:
        command = [
            CLANG, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-w",
            "-O2", "-mcode-object-version=4", f"--offload-arch={processor}",
            str(Path(__file__).with_name("hidden.hip")), "-o", str(folder / f"{processor}.hsaco"),
        ]  # fmt: skip
        subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``hidden.hip`` for each processor; without clang the test is skipped."""
    need_clang()
    return once(tmp_path_factory, "hsa-hidden", compile_hidden)


@pytest.mark.parametrize("processor", ISAS)
def test_the_block_is_packed_behind_all_other_arguments(
    processor: str, stand_in: Path, hidden: Path, objects: Mapping[str, Path], tmp_path: Path
) -> None:
    """By kernelParams and by extra; what hidden arguments a kernel has, its twin has too."""
    chance = random.Random(5)
    jobs: list[dict[str, Any]] = []
    for number, source in enumerate(
        (hidden / f"{processor}.hsaco", objects[f"{processor}-O0"], objects[f"{processor}-O2"])
    ):
        patched = with_copies(source.read_bytes())
        path = tmp_path / f"{number}.hsaco"
        path.write_bytes(patched)
        kernels: dict[str, Any] = {}
        for kernel, row in metadata(patched).items():
            packed = chance.randbytes(row[".kernarg_segment_size"])
            explicit = [argument for argument in row.get(".args", ()) if not is_hidden(argument)]
            values = [
                packed[argument[".offset"] : argument[".offset"] + argument[".size"]].hex() for argument in explicit
            ]
            # A queue for kernels that launch kernels is more than the stand-in has.
            has_queue = any(argument[".value_kind"] == "hidden_default_queue" for argument in row.get(".args", ()))
            kernels[kernel] = None if has_queue else (values, packed.hex())
        jobs.append({"file": str(path), "kernels": kernels})
    job = tmp_path / "job.json"
    job.write_text(json.dumps(jobs))
    counts = {"hidden": 0, "launched": 0, "found": 0}
    for asked, got in zip(jobs, start(stand_in, processor, "tests.hsa.dispatches", str(job)), strict=True):
        assert got["problem"] == ""
        rows = metadata(Path(asked["file"]).read_bytes())
        assert got["kernels"].keys() == rows.keys()
        counts["found"] += len(rows)
        for kernel, row in rows.items():
            if asked["kernels"][kernel] is None:
                continue
            counts["launched"] += 1
            packed = bytes.fromhex(asked["kernels"][kernel][1])
            both = [bytes.fromhex(kernarg) for kernarg in got["kernels"][kernel]]
            assert [len(kernarg) for kernarg in both] == [row[".kernarg_segment_size"]] * 2
            for argument in row.get(".args", ()):
                begin, end = argument[".offset"], argument[".offset"] + argument[".size"]
                if not is_hidden(argument):
                    assert both[0][begin:end] == both[1][begin:end] == packed[begin:end]
                elif kernel.endswith("__neutrino"):
                    counts["hidden"] += 1
                    originals = [bytes.fromhex(kernarg) for kernarg in got["kernels"][kernel[: -len("__neutrino")]]]
                    assert both[0][begin:end] == originals[0][begin:end]
                    if argument[".value_kind"] != "hidden_none":
                        assert both[1][begin:end] == originals[1][begin:end]
            if kernel.endswith("__neutrino"):
                block = row[".args"][-1]
                assert (block[".size"], block[".offset"] + BLOCK) == (BLOCK, row[".kernarg_segment_size"])
    assert counts["found"] == 80
    assert counts["hidden"] == 21
    assert counts["launched"] >= 40


def counting_twin(data: bytes) -> bytes:
    """The code object with a twin of ``scaled`` that adds the lanes of its loads to a counter, whose address is the
    second word of its block."""
    llvm = need_llvm()
    functions = code_object_functions(data, "")
    processor, features = split_target(functions.target)
    function = decode(functions.functions, processor, features, llvm).function("scaled")
    assert function is not None
    half, lanes = ("_lo", 32) if function.wave == 32 else ("", 64)
    at = block_offset(metadata(data)["scaled"][".kernarg_segment_size"])
    pointer = function.instructions[0].operands[1]

    def code(*lines: str) -> bytes:
        return llvm.assemble("\n".join(lines), processor, features)

    entry = code(f"s_load_dwordx2 s[62:63], {pointer}, {at + 8:#x}", "s_mov_b32 s61, 0", "s_waitcnt lgkmcnt(0)")
    # SCC is nowhere alive in front of a load of this kernel.
    load = code(f"s_bcnt1_i32_b{lanes} s60, exec{half}", "s_add_u32 s61, s61, s60")
    end = code(
        "s_waitcnt vmcnt(0) lgkmcnt(0)", f"s_mov_b{lanes} exec{half}, 1", "v_mov_b32 v0, 0", "v_mov_b32 v1, s61",
        "global_atomic_add v0, v1, s[62:63]",
    )  # fmt: skip
    insertions = [Insertion(0, entry, ahead_of_label=False)]
    for instruction in function.instructions:
        if instruction.mnemonic == "global_load_dword":
            insertions.append(Insertion(instruction.offset, load))
        elif instruction.mnemonic == "s_endpgm":
            insertions.append(Insertion(instruction.offset, end))
    # Nothing goes between the loads of a clause.
    insertions = [replace(row, before=_head(function, row.before)) for row in insertions]
    (address,) = place(data, [spliced_size(function, insertions)])
    twin = splice(function, insertions, address)
    return append_kernels(data, [Appended("scaled__neutrino", "scaled", twin.code, 64, 2, 16)])


def _head(function: Function, offset: int) -> int:
    """The beginning of the clause with an instruction, or of the instruction."""
    head, left = 0, 0
    for instruction in function.instructions:
        if not left:
            head = instruction.offset
        left = max(left - 1, 0)
        if instruction.mnemonic == "s_clause":
            left = int(instruction.operands[0], 0) + 1
        if instruction.offset == offset:
            return head
    return offset


@pytest.mark.parametrize("processor", ISAS)
def test_a_patched_bundle_gives_the_same_results_and_the_right_record(
    processor: str, stand_in: Path, hidden: Path, tmp_path: Path
) -> None:
    if shutil.which(BUNDLER) is None:
        pytest.skip(f"no {BUNDLER} on PATH")
    (tmp_path / "host").write_bytes(b"")
    for each in ISAS:
        (tmp_path / each).write_bytes(counting_twin((hidden / f"{each}.hsaco").read_bytes()))
    targets = ",".join(["host-x86_64-unknown-linux-gnu", *(f"hipv4-amdgcn-amd-amdhsa--{each}" for each in ISAS)])
    inputs = [f"--input={tmp_path / name}" for name in ("host", *ISAS)]
    command = [
        BUNDLER,
        "--type=o",
        "--bundle-align=4096",
        f"--targets={targets}",
        *inputs,
        f"--output={tmp_path / 'b'}",
    ]
    subprocess.run(command, check=True)
    got = start(stand_in, processor, "tests.hsa.executes", str(tmp_path / "b"), str(tmp_path / processor))
    original, twin = got["scaled"], got["scaled__neutrino"]
    values = got["values"]
    right = [(value * (3, 5, 7, 11)[index % 4] + values[-1 - index]) % (1 << 32) for index, value in enumerate(values)]
    # What lies behind the last result stays.
    assert bytes.fromhex(original["results"]) == struct.pack(f"<{COUNT}I", *right) + bytes([0xCD]) * 64
    assert twin["results"] == original["results"]
    # Both use the same variable of the module, once a work-group.
    assert (original["launches"], twin["launches"]) == (GROUPS, 2 * GROUPS)
    # Each of the threads that have something to do loads three times.
    assert (original["loads"], twin["loads"]) == (0, 3 * COUNT)


def test_the_runtime_notices_what_is_wrong(stand_in: Path, objects: Mapping[str, Path], tmp_path: Path) -> None:
    """Faults of what the runtime relies on, each in a file; without them it loads and finds everything."""
    original = objects["gfx90a-O2"].read_bytes()
    patched = with_copies(original)
    elf = open_code_object(patched, "")
    notes = next(at for at, row in enumerate(elf.segments) if row.type == 4)
    loads = [at for at, row in enumerate(elf.segments) if row.type == 1]
    headers = elf.program_headers
    sections = {section.name: section for section in elf.sections}
    faults = {
        "where the note is": (headers + 56 * notes + 9, 0x10),
        "the size of the note": (headers + 56 * notes + 34, 0xFF),
        "where the code is loaded": (headers + 56 * loads[-2] + 18, 1),
        "where descriptors are loaded": (headers + 56 * loads[-1] + 18, 1),
        "that the code may be executed": (headers + 56 * loads[-2] + 4, 1),
        "the last descriptor's entry": (
            sections[".neutrino.rodata"].offset + sections[".neutrino.rodata"].size - 48,
            0x10,
        ),
        "the descriptor's symbol": (sections[".symtab"].offset + sections[".symtab"].size - 16, 0x10),
        "the name of the descriptor's symbol": (sections[".symtab"].offset + sections[".symtab"].size - 24, 1),
        "the note's kernel": (patched.rindex(b"nothing__neutrino", 0, sections[".dynstr"].offset), 1),
        "the section of names": (elf.section_headers + 64 * sections[".strtab"].index + 25, 0x10),
    }
    kernels = {"nothing": ((), ""), "nothing__neutrino": ((bytes(BLOCK).hex(),), bytes(BLOCK).hex())}
    jobs: list[dict[str, Any]] = []
    for number, (at, bits) in enumerate([(0, 0), *faults.values()]):
        wrong = bytearray(patched)
        wrong[at] ^= bits
        path = tmp_path / f"{number}.hsaco"
        path.write_bytes(wrong)
        jobs.append({"file": str(path), "kernels": kernels})
    job = tmp_path / "job.json"
    job.write_text(json.dumps(jobs))
    control, *got = start(stand_in, "gfx90a", "tests.hsa.dispatches", str(job))
    assert control["problem"] == ""
    assert [name for name, row in zip(faults, got, strict=True) if not row["problem"]] == []


def test_comgr_finds_all_kernels(objects: Mapping[str, Path], tmp_path: Path) -> None:
    """Those for processors and versions that Debian's HIP does not load, too."""
    if not any(Path(folder, "libamd_comgr.so.2").exists() for folder in LIBRARIES):
        pytest.skip("no libamd_comgr.so.2 (Debian: libamd-comgr2)")
    names = ("gfx942-O2", "gfx942-features", "gfx942-preload", "gfx1100-O0", "gfx1100-v6", "gfx1201-O2")
    paths = [tmp_path / name for name in names]
    for name, path in zip(names, paths, strict=True):
        path.write_bytes(with_copies(objects[name].read_bytes()))
    argv = [sys.executable, "-m", "tests.hsa.comgr", *map(str, paths)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path, got in zip(paths, json.loads(done.stdout), strict=True):
        kernels = metadata(path.read_bytes())
        assert got["kernels"] == [*kernels]
        assert {*kernels, *(f"{kernel}.kd" for kernel in kernels)} <= {*got["symbols"]}
