"""What NVIDIA's tools say of a cubin: instructions by their places, with branches to places, and resources."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from neutrino.toolchain.location import find_tool

PTX = Path(__file__).parent / "kernels.ptx"
KERNELS = ("reversed", "divided", "asserted", "printed", "switched", "nothing")
"""Those that are cut; ``counted`` and ``scaled`` use variables of the module."""
_SECTION = re.compile(r"^//-+ (\S+)[ \t]+-+$", re.MULTILINE)
_LINE = re.compile(r"^(?:(\S+):|\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;.*)$", re.MULTILINE)
_LABEL = re.compile(r"\.L_x_\d+|(?<=`\()[^()\s]+")


def tool(name: str) -> str:
    """Its path, or the test is skipped with the reason."""
    try:
        return str(find_tool(name, "install it"))
    except Exception as error:  # noqa: BLE001
        pytest.skip(str(error))


def assemble(text: str, arch: str, folder: Path, *more: str) -> bytes:
    """The cubin that ptxas makes of PTX text."""
    source, cubin = folder / "module.ptx", folder / "module.cubin"
    source.write_text(text)
    subprocess.run([tool("ptxas"), f"-arch={arch}", *more, str(source), "-o", str(cubin)], check=True)
    return cubin.read_bytes()


def _printed(cubin: bytes, folder: Path) -> str:
    """What nvdisasm prints of a file. It takes a third of a second to start, so the tests of a run ask once of each.

    folder: of a test, beside which all can find it.
    """
    base = folder.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else folder.parent
    kept = base / f"{hashlib.sha256(cubin).hexdigest()}.sass"
    if not kept.exists():
        path = folder / "listed.cubin"
        path.write_bytes(cubin)
        argv = [tool("nvdisasm"), "-c", str(path)]
        path.with_suffix(".sass").write_text(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        path.with_suffix(".sass").replace(kept)
    return kept.read_text()


def instructions(cubin: bytes, kernel: str, folder: Path) -> dict[int, str]:
    """The kernel's instructions as nvdisasm prints them, by their places; labels are written as their places."""
    text = _printed(cubin, folder)
    headings = list(_SECTION.finditer(text))
    (index,) = (number for number, heading in enumerate(headings) if heading[1] == f".text.{kernel}")
    end = headings[index + 1].start() if index + 1 < len(headings) else len(text)
    labels: dict[str, int] = {}
    found: dict[int, str] = {}
    waiting: list[str] = []
    for label, place, instruction in _LINE.findall(text[headings[index].end() : end]):
        if label:
            waiting.append(label)
            continue
        labels |= dict.fromkeys(waiting, int(place, 16))
        waiting = []
        found[int(place, 16)] = re.sub(r"\s+", " ", instruction)
    labels |= dict.fromkeys(waiting, max(found) + 16)
    return {place: _LABEL.sub(lambda at: f"{labels.get(at[0], -1):#x}", line) for place, line in found.items()}


def resources(cubin: bytes, kernel: str, folder: Path) -> dict[str, int]:
    """What cuobjdump says that the kernel uses."""
    path = folder / "used.cubin"
    path.write_bytes(cubin)
    argv = [tool("cuobjdump"), "-res-usage", str(path)]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    (figures,) = re.findall(rf"Function {re.escape(kernel)}:\s+(.*)", text)
    return {name: int(value) for name, value in re.findall(r"(\S+):(\d+)", figures)}


def elf_dump(cubin: bytes, folder: Path) -> str:
    """All that cuobjdump prints of the file's sections, symbols and attributes."""
    path = folder / "dumped.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([tool("cuobjdump"), "-elf", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
