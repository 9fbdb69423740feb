"""Values of sites in AMD's kernels, against what the instructions access: ``python -m bench.gcn_sites [FOLDER]``.

Snippets that compute the address, bytes, result, lanes and data of every access stand in front of it and behind it, in
all kernels of ``judged.hip`` in the tests and in Triton's, of which FOLDER has the code objects, ``NAME_ARCH.hsaco``
(``.corpus/amd/triton`` unless given; none without Triton). The interpreter runs them and compares; what it finds is
printed.
"""

from __future__ import annotations

import argparse
import itertools
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.gcn_cases import WARPS, cases
from neutrino.emulator.gcn.launch import Dimensions, launch
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedKernel, LoadedObject
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import decode, split_target
from neutrino.gcn.instrument.code import NoRegistersError
from neutrino.gcn.llvm import Llvm, find_llvm
from tests.emulator.gcn import judge
from tests.gcn.site_judge import Judged, SiteJudge, TooFewError

_HERE = Path(__file__).resolve().parent
TARGETS = ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
OPTIONS = (("-O2",),)
WAVE64 = ("-O2", "-mwavefrontsize64")
TRITON = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
_LDS = 64 << 10
_PAGE = 1 << 16
_ONE_GROUP = frozenset({"locks"})
"""Kernels that write what others write at once: data in memory are not what one of them stored."""


class Sites:
    """What is counted over the kernels of one target."""

    def __init__(self, llvm: Llvm) -> None:
        """llvm: disassembles and assembles."""
        self._llvm = llvm
        self.kernels = 0
        self.compared: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.refused: Counter[str] = Counter()
        self.too_few: list[str] = []

    def add(
        self, data: bytes, loaded: LoadedObject, kernel: LoadedKernel, packed: bytes, grid: Dimensions,
        block: Dimensions, dynamic_lds: int = 0,
    ) -> None:  # fmt: skip
        """Judge a kernel, with arguments as a launch packs them."""
        found = code_object_functions(data, kernel.name, unnamed=True)
        processor, features = split_target(found.target)
        module = decode(found.functions, processor, features, self._llvm)
        function = module.function(kernel.name)
        assert function is not None
        address = -(-loaded.end // _PAGE) * _PAGE
        try:
            judged = SiteJudge(module, function, self._llvm, kernel.descriptor, address)
        except (NoRegistersError, TooFewError):
            self.too_few.append(kernel.name)
            return
        arguments = bytearray(packed.ljust(kernel.descriptor.kernarg, b"\0"))
        for offset, value in kernel.hidden(grid, block).items():
            arguments[offset : offset + len(value)] = value
        result: Judged = judged.run(
            loaded.program(kernel.descriptor.lanes).instructions,
            lambda program, watch: launch(
                program, judged.descriptor, address, loaded.memory, grid, block, bytes(arguments), base=loaded.base,
                dynamic_lds=dynamic_lds, checks=True, observer=watch.observe,
            ),
        )  # fmt: skip
        self.kernels += 1
        self.compared.update(result.compared)
        self.refused.update(result.refused)
        self.wrong += [f"{kernel.name}: {text}" for text in result.wrong[:3]]

    def document(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "kernels": self.kernels, "compared": dict(sorted(self.compared.items())), "wrong": self.wrong,
            "refused": dict(self.refused), "too_few_registers": self.too_few,
        }  # fmt: skip


def _clang(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what is found in the kernels of the tests, by target and optimisation."""
    for target in TARGETS:
        llvm = find_llvm(target)
        for options in (*OPTIONS, *((WAVE64,) if target.startswith("gfx1") else ())):
            data = judge.compile_for_gpu(folder, target, options)
            sites = Sites(llvm)
            for each in judge.kernels():
                loaded = LoadedObject(data, Memory(16 << 20), llvm.disassemble)
                at = [loaded.memory.put(values) for values in judge.inputs(3)]
                sites.add(
                    data, loaded, loaded.kernels[each.name], struct.pack("<QQQ", *at), (1, 1, 1), (judge.BLOCK, 1, 1)
                )
            yield {"source": "clang", "target": target, "options": " ".join(options), **sites.document()}


def _triton(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what is found in Triton's kernels, by target."""
    for target in TRITON:
        llvm = find_llvm(target)
        sites = Sites(llvm)
        for name, case in cases(target).items():
            path = folder / f"{name}_{target}.hsaco"
            if name in _ONE_GROUP or not path.is_file():
                continue
            data = path.read_bytes()
            loaded = LoadedObject(data, Memory(64 << 20), llvm.disassemble)
            kernel = next(iter(loaded.kernels.values()))
            packed = b""
            for argument in case.arguments:
                is_array = isinstance(argument, np.ndarray)
                value = loaded.memory.put(argument).to_bytes(8, "little") if is_array else argument.tobytes()
                packed += bytes(-len(packed) % len(value)) + value
            block = (kernel.descriptor.lanes * WARPS, 1, 1)
            sites.add(data, loaded, kernel, packed, case.grid, block, _LDS - kernel.descriptor.lds)
        if sites.kernels:
            yield {"source": "triton", "target": target, "options": "", **sites.document()}


def main() -> int:
    """Judge, print what is found, and return 1 if anything differs."""
    parser = argparse.ArgumentParser("python -m bench.gcn_sites", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=_HERE.parent / ".corpus" / "amd" / "triton")
    rows: list[dict[str, Any]] = []
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        for row in itertools.chain(_clang(Path(name)), _triton(folder)):
            rows.append(row)
            count = sum(row["compared"].values())
            print(f"{row['source']} {row['target']} {row['options']}: {row['kernels']} kernels, {count} values,",
                  f"{len(row['wrong'])} wrong, {sum(row['refused'].values())} refused", flush=True)  # fmt: skip
    for row in rows:
        print("\n".join(row["wrong"]), end="")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
