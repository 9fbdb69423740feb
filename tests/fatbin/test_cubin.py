"""Cubins, judged by ``cuobjdump -res-usage``, pyelftools and ptxas itself."""

from __future__ import annotations

import io
import re
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from fatbin_inputs import run

from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import Cubin, read_cubin


def machine_code(path) -> list[tuple[str, bytes]]:
    found = [(image.arch, image.data) for image in read_file(path)[0].images if image.kind is ImageKind.CUBIN]
    assert found
    return found


def usage(cuobjdump: str, file) -> dict[str, dict[str, int]]:
    """``cuobjdump -res-usage``: per function REG, STACK, SHARED, CONSTANT[0] …"""
    said = run(cuobjdump, "-res-usage", file)
    functions = re.findall(r"^ *Function ([^\s:]+):\s*\n(.*)$", said, re.MULTILINE)
    return {name: {key: int(value) for key, value in re.findall(r"(\S+):(\d+)", line)} for name, line in functions}


@pytest.mark.parametrize("build", ["default", "lineinfo", "debug", "relocatable", "whole-program"])
def test_resources_as_cuobjdump_reports(build, fatbins, cuobjdump, tmp_path):
    for arch, data in machine_code(fatbins[build]):
        file = tmp_path / f"{arch}.cubin"
        file.write_bytes(data)
        theirs = usage(cuobjdump, file)
        cubin = read_cubin(data, str(file))
        # The same cubin holds functions that are no kernels, where it is relocatable.
        assert set(cubin.kernels) <= set(theirs) <= set(cubin.kernels) | set(cubin.functions)
        assert len(cubin.kernels) == 9
        for name, kernel in cubin.kernels.items():
            reported = theirs[name]
            ours = {"REG": kernel.registers, "STACK": kernel.stack, "SHARED": kernel.shared}
            assert ours == {key: reported[key] for key in ours}, (arch, name)
            if kernel.parameters:
                assert kernel.parameter_base + kernel.parameter_size == reported["CONSTANT[0]"], (arch, name)


@pytest.mark.parametrize(("build", "options"), [("default", ()), ("debug", ("-g", "--dont-merge-basicblocks"))])
def test_registers_and_frame_as_ptxas_reports(build, options, fatbins, ptxas, tmp_path):
    source, target = tmp_path / "k.ptx", tmp_path / "k.cubin"
    for image in read_file(fatbins[build])[0].images:
        if image.kind is not ImageKind.PTX:
            continue
        source.write_bytes(image.data)
        done = subprocess.run(
            [ptxas, "-v", f"-arch={image.arch}", *options, source, "-o", target],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        frames = dict(re.findall(r"Function properties for (\S+)\n\s*(\d+) bytes stack frame", done.stderr))
        registers = dict(
            re.findall(r"entry function '(\S+)'.*\n.*\n.*stack frame.*\n.*Used (\d+) registers", done.stderr)
        )
        kernels = read_cubin(target.read_bytes(), "k").kernels
        assert len(kernels) == len(registers) == 9
        for name, kernel in kernels.items():
            assert (kernel.frame, kernel.registers) == (int(frames[name]), int(registers[name])), name


@pytest.mark.parametrize("build", ["default", "debug", "relocatable"])
def test_code_as_pyelftools_finds_it(build, fatbins):
    for arch, data in machine_code(fatbins[build]):
        cubin = read_cubin(data, arch)
        elf = ELFFile(io.BytesIO(data))
        for name, kernel in cubin.kernels.items():
            assert kernel.code == elf.get_section_by_name(f".text.{name}").data()
            assert kernel.code
        symbols = {symbol.name: symbol for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
        assert any("twisted" in name for name in cubin.functions)
        for name, code in cubin.functions.items():
            symbol = symbols[name]
            section = elf.get_section(symbol["st_shndx"]).data()
            assert code == section[symbol["st_value"] : symbol["st_value"] + symbol["st_size"]]
            assert code


def test_parameters_of_every_form(fatbins):
    point = ((0, 0, 88), (1, 88, 8), (2, 96, 1), (3, 98, 2), (4, 100, 1))
    expected = {
        "vadd": ((0, 0, 8), (1, 8, 8), (2, 16, 8), (3, 24, 4)),
        "_Z6smoothIfEvPT_S0_l": ((0, 0, 8), (1, 8, 4), (2, 16, 8)),
        "_Z6smoothIdEvPT_S0_l": ((0, 0, 8), (1, 8, 8), (2, 16, 8)),
        "_ZN5space6gatherENS_5PointEPfcsc": point,
        # Beyond 16 KiB: KPARAM_INFO_V2.
        "big": ((0, 0, 20000), (1, 20000, 8), (2, 20008, 4)),
        "nothing": (),
    }
    bases = {"sm_80": 0x160, "sm_90a": 0x210, "sm_100f": 0x380}
    for arch, data in machine_code(fatbins["default"]):
        kernels = read_cubin(data, arch).kernels
        for name, parameters in expected.items():
            kernel = kernels[name]
            assert kernel.parameters == parameters
            _, offset, size = parameters[-1] if parameters else (0, 0, 0)
            assert kernel.parameter_size == offset + size
            base = 0x1A80 if (name, arch) == ("big", "sm_80") else bases[arch]
            assert kernel.parameter_base == (base if parameters else 0)


def test_bounds_and_barriers(cubins):
    for arch, data in cubins.items():
        cubin = read_cubin(data, arch)
        assert list(cubin.kernels) == ["second", "add_one"] or list(cubin.kernels) == ["add_one", "second"]
        first, second = cubin.kernels["add_one"], cubin.kernels["second"]
        assert (first.max_threads, first.required_threads, first.barriers) == ((128, 2, 1), None, 0)
        assert (second.required_threads, second.barriers) == ((64, 1, 1), 4)
        assert first.parameters == ((0, 0, 8), (1, 8, 24), (2, 32, 1))


def test_architecture_and_toolkit(cubins, ptxas):
    release = re.search(r"release (\d+)\.(\d+)", run(ptxas, "--version"))
    assert release is not None
    for arch, data in cubins.items():
        cubin = read_cubin(data, arch)
        assert cubin.arch == arch
        assert cubin.toolkit == (int(release[1]), int(release[2]))


def test_nvcc_agrees_with_the_container(fatbins):
    for build in ("default", "relocatable", "whole-program", "lto"):
        images = machine_code(fatbins[build])
        assert images
        for arch, data in images:
            assert read_cubin(data, arch).arch == arch


def _old(data: bytes, flags: int, release: int) -> bytes:
    """The cubin with the ELF header that CUDA 12 and older gave it."""
    header = bytearray(data[:64])
    header[7:9] = b"\x33\x07"
    header[20:24] = release.to_bytes(4, "little")
    header[48:52] = flags.to_bytes(4, "little")
    return bytes(header) + data[64:]


@pytest.mark.parametrize(
    ("flags", "release", "arch", "toolkit"),
    [
        # As ptxas 12.4 and 12.8 write them; 11.8 from libcurand.
        (0x5A055A, 124, "sm_90", (12, 4)),
        (0x5A0D5A, 128, "sm_90a", (12, 8)),
        (0x500550, 118, "sm_80", (11, 8)),
    ],
)
def test_header_of_older_toolkits(flags, release, arch, toolkit, cubins):
    cubin = read_cubin(_old(cubins["sm_90"], flags, release), "old")
    assert (cubin.arch, cubin.toolkit) == (arch, toolkit)
    assert set(cubin.kernels) == {"add_one", "second"}


def test_header_of_toolkit_12_9(cubins):
    # There 'a' was bit 3 of e_flags.
    data = bytearray(cubins["sm_90"])
    data[48:52] = (0x600640A).to_bytes(4, "little")
    assert read_cubin(bytes(data), "12.9").arch == "sm_100a"


def test_an_unknown_abi_has_no_architecture(cubins):
    data = bytearray(cubins["sm_90"])
    data[7] = 0x55
    cubin = read_cubin(bytes(data), "future")
    assert cubin.arch == ""
    assert set(cubin.kernels) == {"add_one", "second"}


def test_registers_before_sm_90_without_nv_info(cubins):
    data = cubins["sm_75"]
    cubin = read_cubin(data, "whole")
    elf = ELFFile(io.BytesIO(data))
    section = elf.get_section_by_name(".nv.info")
    cut = bytearray(data)
    # NVAL attributes of no meaning in place of REGCOUNT and the others.
    cut[section["sh_offset"] : section["sh_offset"] + section["sh_size"]] = b"\x01\xee\0\0" * (section["sh_size"] // 4)
    for name, kernel in read_cubin(bytes(cut), "cut").kernels.items():
        assert kernel.registers == cubin.kernels[name].registers > 0


def texts(cubin: Cubin) -> str:
    assert cubin.debug_ptx is not None
    return cubin.debug_ptx


def test_debug_ptx_assembles_to_the_same_code(fatbins, ptxas, tmp_path):
    """-lineinfo leaves the text in the cubin; assembled again, it gives every kernel the code that it has."""
    for arch, data in machine_code(fatbins["lineinfo"]):
        cubin = read_cubin(data, arch)
        source = tmp_path / f"{arch}.ptx"
        source.write_text(texts(cubin), encoding="latin-1")
        target = tmp_path / f"{arch}.cubin"
        run(ptxas, f"-arch={arch}", "-lineinfo", "-maxrregcount=40", source, "-o", target)
        again = read_cubin(target.read_bytes(), str(target))
        assert {name: kernel.code for name, kernel in again.kernels.items()} == {
            name: kernel.code for name, kernel in cubin.kernels.items()
        }


def test_debug_ptx_of_a_debug_build_is_accepted(fatbins, ptxas, tmp_path):
    """-G leaves the text too, with debug sections that ptxas would not take back."""
    for arch, data in machine_code(fatbins["debug"]):
        cubin = read_cubin(data, arch)
        assert ".debug_" not in re.sub(r"\.debug_\w+\s*\{\s*[^}\s]", "", texts(cubin))
        source = tmp_path / f"{arch}.ptx"
        source.write_text(texts(cubin), encoding="latin-1")
        target = tmp_path / f"{arch}.cubin"
        run(ptxas, f"-arch={arch}", source, "-o", target)
        assert set(read_cubin(target.read_bytes(), str(target)).kernels) == set(cubin.kernels)


def test_no_debug_ptx_without_line_information(fatbins):
    for arch, data in machine_code(fatbins["default"]):
        assert read_cubin(data, arch).debug_ptx is None
