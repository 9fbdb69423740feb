"""What ``nvdisasm`` says of single machine instructions: their text, and which registers each defines and uses.

``nvdisasm -b`` reads words without a cubin around them. Of words that are no instruction it prints nothing but their
addresses, so those are taken out and it is asked again. Definitions and uses it prints for cubins only
(``-plr -lrm narrow``), so a small cubin of ``ptxas`` gets the words as its kernel.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from neutrino.toolchain.location import find_tool

Words: TypeAlias = NDArray[np.uint64]
"""Instructions, [n, 2]: the low and the high half of each."""

_HINT = "pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm"
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s*(.*?)\s*;?\s*$", re.MULTILINE)
_REFUSED = re.compile(r"address (0x[0-9a-f]+)")
_ROLE_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s*(.*?)\s*;?\s*// \|(.*)\|\s*$")
_TOKEN = re.compile(r"(?<![\w.])(UR|UP|R|P|B)(\d+|Z|T)(?![A-Za-z0-9_])")
_TEXT = re.compile(r"(?:(@!?U?P[\dT])\s+)?(\S+)\s*(.*)")
_ROUNDS = 60
_AT_ONCE = 20_000
"""Words to one run of nvdisasm: about two seconds."""
_AT_ONCE_WITH_ROLES = 5_000
"""The same with roles, whose time grows with the square."""
_LAST_WITH_63 = 90
"""Up to this architecture there are 63 uniform registers; from sm_100 on 255."""
_SMALL_KERNEL = """.version {version}
.target {arch}
.address_size 64
.visible .entry k() {{ ret; }}
"""


@dataclass(frozen=True)
class Reading:
    """One instruction as nvdisasm prints it.

    guard: as ``@!P0``, empty for none. fragments: of its name, ``("LDG", "E", "64")``; what IMAD is called for being a
    copy, a shift or a sum is left out. registers: (kind, number) of all that the text names, the guard's first, without
    those that are always zero or true.
    """

    guard: str
    fragments: tuple[str, ...]
    registers: tuple[tuple[str, int], ...]
    operands: str

    @property
    def rest(self) -> str:
        """The operands with their numbers of registers left out."""
        return _TOKEN.sub(lambda one: one[1] + "#", self.operands)


def zero_numbers(arch: str) -> dict[str, int]:
    """The number of the register that is always zero or true, by kind. arch: as ``sm_90a``."""
    uniform = 63 if int(arch.removeprefix("sm_").rstrip("af")) <= _LAST_WITH_63 else 255
    return {"R": 255, "UR": uniform, "P": 7, "UP": 7}


def parse(text: str, zeros: Mapping[str, int]) -> Reading:
    """Take apart one instruction's text. zeros: as ``zero_numbers`` returns them."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"nvdisasm printed {text!r}")
    guard, name, operands = match[1] or "", match[2], match[3]
    found = []
    for kind, number in _TOKEN.findall(f"{guard} {operands}"):
        if number not in "ZT" and int(number) != zeros.get(kind):
            found.append((kind, int(number)))
    return Reading(guard, _fragments(name), tuple(found), operands)


@cache
def _fragments(name: str) -> tuple[str, ...]:
    """The parts of an instruction's name."""
    fragments = name.split(".")
    if fragments[0] in {"IMAD", "UIMAD"} and len(fragments) > 1 and fragments[1] in {"MOV", "SHL", "IADD"}:
        del fragments[1]
    return tuple(fragments)


def reused(text: str) -> int:
    """How many operands are marked ``.reuse`` in an instruction's text."""
    return text.count(".reuse")


def texts(words: Words, arch: str, processes: int = 2) -> list[str | None]:
    """What nvdisasm prints for each word; None where it is no instruction. arch: as ``sm_90a``."""
    parts = [words[start : start + _AT_ONCE] for start in range(0, len(words), _AT_ONCE)]
    with ThreadPoolExecutor(processes) as pool:
        return [text for part in pool.map(lambda part: _texts(part, arch), parts) for text in part]


def _texts(words: Words, arch: str) -> list[str | None]:
    """``texts`` of few words."""
    found: list[str | None] = [None] * len(words)
    left = np.arange(len(words))
    for _ in range(_ROUNDS):
        if not len(left):
            return found
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(np.ascontiguousarray(words[left]).tobytes())
            file.flush()
            argv = [str(find_tool("nvdisasm", _HINT)), "-b", arch.replace("sm_", "SM"), "-ndf", "-raw", file.name]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            for address, text in _LINE.findall(done.stdout):
                found[left[int(address, 16) // 16]] = text
            return found
        refused = {int(address, 16) // 16 for address in _REFUSED.findall(done.stderr)}
        if not refused:
            raise ValueError(f"nvdisasm: {done.stderr[:500]}")
        left = np.delete(left, sorted(refused))
    raise ValueError("nvdisasm goes on finding words that are no instruction")


Roles: TypeAlias = dict[tuple[str, int], str]
"""(kind, number) of a register → ``^`` defined, ``v`` used, ``x`` both."""


def roles(words: Words, arch: str, processes: int = 2) -> list[Roles | None]:
    """Definitions and uses of each instruction. words: legal, and none that branches. None where nvdisasm does not
    print them: it refuses some instructions in a cubin."""
    parts = [words[start : start + _AT_ONCE_WITH_ROLES] for start in range(0, len(words), _AT_ONCE_WITH_ROLES)]
    with ThreadPoolExecutor(processes) as pool:
        return [found for part in pool.map(lambda part: _roles(part, arch), parts) for found in part]


def _roles(words: Words, arch: str) -> list[Roles | None]:
    """``roles`` of few words; where nvdisasm refuses them together, of each half."""
    cubin = _with_code(_small_cubin(arch), np.concatenate([words, _ending(arch)]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [str(find_tool("nvdisasm", _HINT)), "-c", "-plr", "-lrm", "narrow", file.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        if len(words) == 1:
            return [None]
        half = len(words) // 2
        return _roles(words[:half], arch) + _roles(words[half:], arch)
    return read_roles(done.stdout, len(words))


def read_roles(listing: str, count: int) -> list[Roles | None]:
    """Read a listing of ``nvdisasm -plr -lrm narrow`` of one kernel, of its first ``count`` instructions."""
    lines = listing.splitlines()
    titles = [line.split("// ", 1)[1] for line in lines if "// |" in line and re.search(r"\bGPR\b|\bUGPR\b", line)]
    heads = [line.split("// ", 1)[1] for line in lines if "// |" in line and "/*" not in line]
    if not titles:
        return [{} for _ in range(count)]
    first = heads.index(titles[0])
    # Each column's number stands in up to three lines, a digit in each, below the titles.
    bars = [position for position, letter in enumerate(titles[0]) if letter == "|"]
    columns: dict[int, tuple[str, int]] = {}
    kinds = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
    for begin, end in pairwise(bars):
        kind = kinds[titles[0][begin + 1 : end].strip()]
        rows = [head[begin + 1 : end] for head in heads[first + 1 : first + 4]]
        mark = next(row.index("#") for row in rows if "#" in row)
        for position in range(mark + 1, end - begin - 1):
            digits = "".join(row[position] for row in rows).strip()
            if digits.isdigit():
                columns[begin + 1 + position] = (kind, int(digits))
    found: list[Roles | None] = [None] * count
    for line in lines:
        match = re.match(r"^\s+/\*([0-9a-f]{4,})\*/", line)
        if match is None or "// |" not in line:
            continue
        index = int(match[1], 16) // 16
        if index < count:
            marks = line.split("// ", 1)[1]
            found[index] = {columns[at]: marks[at] for at in columns if at < len(marks) and marks[at] in "^vx"}
    return found


@cache
def _small_cubin(arch: str) -> bytes:
    """A cubin with the kernel ``k``, by ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_text(_SMALL_KERNEL.format(version="8.8", arch=arch))
        argv = [str(find_tool("ptxas", _HINT)), f"-arch={arch}", "-o", str(target), str(source)]
        subprocess.run(argv, check=True, capture_output=True)
        return target.read_bytes()


def _ending(arch: str) -> Words:
    """EXIT and the branch to itself that ``ptxas`` puts after it."""
    cubin = _small_cubin(arch)
    offset, size = _text_section(cubin)[1:3]
    words = np.frombuffer(cubin[offset : offset + size], "<u8").reshape(-1, 2)
    at = int(np.flatnonzero((words[:, 0] & np.uint64(0xFFF)) == np.uint64(0x94D))[0])
    return words[at : at + 2]


def _text_section(cubin: bytes) -> tuple[int, int, int, int]:
    """Of ``.text.k``: offset of its header, of its contents, size of its contents, and its index."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    (strings,) = struct.unpack_from("<Q", cubin, headers + names * size + 24)
    for index in range(count):
        at = headers + index * size
        (name,) = struct.unpack_from("<I", cubin, at)
        if cubin[strings + name :].startswith(b".text.k\0"):
            offset, length = struct.unpack_from("<QQ", cubin, at + 24)
            return at, offset, length, index
    raise ValueError("ptxas made no .text.k")


def _with_code(cubin: bytes, words: Words) -> bytes:
    """The cubin with other code as its kernel's, at its end."""
    data = bytearray(cubin)
    header, _, _, text = _text_section(cubin)
    data += bytes(-len(data) % 128)
    code = np.ascontiguousarray(words).tobytes()
    struct.pack_into("<QQ", data, header + 24, len(data), len(code))
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    for index in range(count):
        kind, offset, length = struct.unpack_from("<4xI16xQQ", cubin, headers + index * size)
        if kind != 2:
            continue
        for at in range(offset, offset + length, 24):
            info, section = struct.unpack_from("<4xBxH", cubin, at)
            if section == text and info & 15 == 2:
                struct.pack_into("<Q", data, at + 16, len(code))
    return bytes(data) + code


def unique(words: Words) -> Words:
    """Each different word once."""
    words = words[np.lexsort((words[:, 0], words[:, 1]))]
    first = np.ones(len(words), bool)
    first[1:] = (words[1:] != words[:-1]).any(axis=1)
    return words[first]


def with_bits(words: Words, bits: Sequence[int]) -> Words:
    """For each word and bit: the word with that bit flipped. words: [n, 2]. Returns [n, bits, 2]."""
    flipped = np.repeat(words[:, None, :], len(bits), axis=1)
    for index, bit in enumerate(bits):
        flipped[:, index, bit // 64] ^= np.uint64(1 << bit % 64)
    return flipped
