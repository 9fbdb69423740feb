"""Judges the interpreter: kernels of ``judged.hip`` for AMD's GPUs and for this CPU, compared bit by bit."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import Disassemble, LoadedObject

SOURCE = Path(__file__).with_name("judged.hip")
CLANG = shutil.which("clang-19")
KEPT: Path | None = None
"""Where code objects of all kernels stay for other tests; None: nowhere."""
BLOCK, GROUPS = 128, 4
_ITEMS = BLOCK * GROUPS
_MORE = 16
"""Elements behind the items' own, for what all of them write to."""
Values = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Judged:
    """A kernel. is_phased: whether its work-items meet at barriers. kind: of the results, in which any NaN is as good
    as another, since the two processors make different ones: ``f32``, ``f64`` or empty."""

    name: str
    is_phased: bool
    kind: str


def kernels() -> list[Judged]:
    """Return the kernels of the source, in its order."""
    text = SOURCE.read_text()
    found = []
    for kind, name in re.findall(r"^(KERNEL|PHASED)\((\w+)\)", text, re.MULTILINE):
        result = "f64" if name.startswith("double") else "f32" if name.startswith(("float_", "half", "scaled")) else ""
        found.append(Judged(name, kind == "PHASED", result))
    return found


def compile_for_cpu(folder: Path) -> ctypes.CDLL:
    """Compile the source for this CPU, and load it."""
    made = folder / "judged.so"
    command = [str(CLANG), "-x", "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fwrapv", "-fPIC", "-shared", "-w"]
    subprocess.run([*command, str(SOURCE), "-o", str(made), "-lm"], check=True)
    return ctypes.CDLL(str(made))


def compile_for_gpu(folder: Path, processor: str, options: tuple[str, ...], source: Path = SOURCE) -> bytes:
    """Return the code object for a processor. options: of clang. source: what is compiled, all kernels unless given."""
    name = f"{source.stem}-{processor}{''.join(options)}.hsaco"
    kept = KEPT / name if KEPT is not None and source == SOURCE else None
    if kept is not None and kept.exists():
        return kept.read_bytes()
    made = folder / name
    subprocess.run(
        [
            str(CLANG), "-x", "hip", f"--offload-arch={processor}", "--offload-device-only", "-nogpuinc", "-nogpulib",
            "--no-gpu-bundle-output", "-ffp-contract=off", "-fwrapv", "-w", *options, str(source), "-o", str(made),
        ],
        check=True,
    )  # fmt: skip
    if kept is not None:
        # Another process may do the same: the file appears whole.
        whole = shutil.copyfile(made, kept.with_name(f"{name}.{os.getpid()}"))
        whole.replace(kept)
    return made.read_bytes()


def inputs(seed: int) -> tuple[Values, Values, Values]:
    """Return both inputs and what the results' buffer has before: random bits, and numbers at the ends of ranges."""
    random = np.random.default_rng(seed)
    special = np.array(
        [0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x3F800000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF,
         0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0x4B000001, 0xC2F70000, 0x33800000],
        np.uint64,
    )  # fmt: skip
    rows = []
    for _ in range(2):
        words = random.integers(0, 1 << 32, (_ITEMS, 2), np.uint64)
        # Half of the words are floats near 1.
        near = random.integers(0x3E000000, 0x41800000, (_ITEMS, 2), np.uint64)
        words = np.where(random.random((_ITEMS, 2)) < 0.5, near | words & np.uint64(1 << 31), words)
        chosen = random.integers(0, special.size, (_ITEMS, 2))
        words = np.where(random.random((_ITEMS, 2)) < 0.2, special[chosen], words)
        # Signalling NaN are made quiet, as the two processors keep different ones.
        for shift, exponent, quiet in ((0, 0x7F800000, 1 << 22),):
            is_nan = (words & np.uint64(exponent)) == np.uint64(exponent)
            words = np.where(is_nan & ((words & np.uint64(0x7FFFFF)) != 0), words | np.uint64(quiet), words) << shift
        rows.append(words[:, 0] | words[:, 1] << np.uint64(32))
    return rows[0], rows[1], np.zeros(_ITEMS + _MORE, np.uint64)


def on_cpu(library: ctypes.CDLL, kernel: Judged, a: Values, b: Values, before: Values) -> Values:
    """Return what a kernel writes on this CPU."""
    out = before.copy()
    pointers = [values.ctypes.data_as(ctypes.c_void_p) for values in (a, b, out)]
    function = getattr(library, kernel.name)
    for group in range(GROUPS):
        if kernel.is_phased:
            function(*pointers, group)
        else:
            for item in range(BLOCK):
                function(*pointers, group * BLOCK + item, item, group)
    return out


def on_gpu(
    data: bytes, disassemble: Disassemble, names: list[Judged], values: tuple[Values, Values, Values], seed: int | None,
    limit: int = 1_000_000,
) -> Iterator[tuple[Judged, Values, int]]:
    """Yield what kernels write in the interpreter, and how many instructions they executed."""
    memory = Memory(16 << 20)
    loaded = LoadedObject(data, memory, disassemble)
    a, b, before = values
    at = [memory.put(a), memory.put(b), memory.put(before)]
    for kernel in names:
        memory.write(at[2], before)
        arguments = struct.pack("<QQQ", *at)
        done = loaded.run(kernel.name, (GROUPS, 1, 1), (BLOCK, 1, 1), arguments, seed=seed, checks=True, limit=limit)
        yield kernel, np.frombuffer(memory.read(at[2], before.nbytes), np.uint64), done.instructions


def differences(kernel: Judged, expected: Values, found: Values) -> int:
    """Return how many elements differ, where a NaN equals any other."""
    if not kernel.kind:
        return int((expected != found).sum())
    left, right = (values.view({"f32": np.float32, "f64": np.float64}[kernel.kind]) for values in (expected, found))
    raw = np.uint32 if kernel.kind == "f32" else np.uint64
    same = (left.view(raw) == right.view(raw)) | (np.isnan(left) & np.isnan(right))
    return int((~same).sum())
