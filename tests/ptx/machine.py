"""What ptxas and nvdisasm make of PTX text."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from elftools.elf.elffile import ELFFile

from neutrino.sass.arithmetic import count_arithmetic
from neutrino.toolchain.location import find_tool

_FUNCTION = re.compile(r"\s*\.section\s+\.text\.([\w$]+)")
_CODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")


def assemble(text: str, arch: str, folder: Path) -> Path:
    """The cubin of PTX text. Fails the test with what ptxas says."""
    source, cubin = folder / "module.ptx", folder / "module.cubin"
    source.write_bytes(text.encode("latin-1"))
    argv = [str(find_tool("ptxas")), f"-arch={arch}", str(source), "-o", str(cubin)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stderr}\n{text}"
    assert "warning" not in result.stderr, result.stderr
    return cubin


def machine_code(text: str, arch: str, folder: Path) -> dict[str, list[str]]:
    """SASS instructions of each function, in order."""
    cubin = assemble(text, arch, folder)
    argv = [str(find_tool("nvdisasm")), "-c", str(cubin)]
    listing = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    functions: dict[str, list[str]] = {}
    current: list[str] = []
    for line in listing.splitlines():
        section = _FUNCTION.match(line)
        if section:
            current = functions.setdefault(section[1], [])
        code = _CODE.search(line)
        if code:
            current.append(code[1] + ";")
    return functions


def arithmetic(text: str, arch: str, folder: Path) -> dict[str, dict[str, int]]:
    """Counts of fused and unfused floating-point instructions of each function of PTX text."""
    with assemble(text, arch, folder).open("rb") as file:
        sections = [
            (section.name, section.data())
            for section in ELFFile(file).iter_sections()
            if section.name.startswith(".text.")
        ]
    return {name.removeprefix(".text."): count_arithmetic(code, arch) for name, code in sections}


def _unoptimised(text: str, arch: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "module.ptx"
    source.write_bytes(text.encode("latin-1"))
    argv = [str(find_tool("ptxas")), f"-arch={arch}", "-O0", str(source), "-o", str(folder / "module.cubin")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def run_ptxas(text: str, arch: str, folder: Path) -> str:
    """Assemble PTX text whose warnings do not matter; what ptxas says. Fails the test where it refuses."""
    result = _unoptimised(text, arch, folder)
    if result.returncode:
        lines = text.split("\n")
        shown = [f"{lines[int(number) - 1]}" for number in re.findall(r"line (\d+); (?:error|fatal)", result.stderr)]
        raise AssertionError("\n".join([result.stderr, *shown]))
    return result.stderr


def refused_lines(text: str, arch: str, folder: Path) -> set[int]:
    """The lines of PTX text that ptxas finds fault with, one by one; it must be able to read all of it."""
    result = _unoptimised(text, arch, folder)
    assert "Parsing error" not in result.stderr, result.stderr
    found = {int(number) for number in re.findall(r"module\.ptx, line (\d+); error", result.stderr)}
    assert bool(found) == bool(result.returncode), result.stderr
    return found


def ptxas_version() -> tuple[int, int]:
    """The version of the ptxas at hand."""
    text = subprocess.run([str(find_tool("ptxas")), "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"release (\d+)\.(\d+)", text)
    assert match is not None, text
    return int(match[1]), int(match[2])
