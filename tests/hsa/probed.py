"""Kernels with shipped probes, launched by AMD's HIP runtime out of bundles, and executed by the interpreter.

A process of its own, ``python -m tests.hsa.probed FOLDER KERNELS PROBES [file]``. FOLDER has ``ARCH.hsaco`` of each
processor; the runtime's GPU gets twins of the kernels, which are named with commas between, as are the probes ("" for
all that load). With ``file`` originals are those of the file that ``neutrino-patch`` writes, and twins those that it
carries. Each twin is launched twice, with its arguments and its block by ``kernelParams`` and by ``extra``. What came
of it is printed as JSON, by probe and kernel: what is wrong ("" if nothing is) and how many records there are, or why
there is no twin.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import GcnKernel, GcnTwin
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.elf.reader import Elf
from neutrino.emulator.gcn.memory import BASE
from neutrino.fatbin.code_object import metadata_of, open_code_object
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.snippets.meaning import typed
from neutrino.maps.declaration import Layout
from neutrino.patched_files.section import read_section
from neutrino.twins.able import able_probes
from neutrino.twins.cache_entry import read_entry
from tests.gcn.exact import faults, left_out_of, numbers_of, portable_probes, views_of
from tests.gcn.executed import Ran, Recorder, ticking
from tests.gcn.trace_models import Launch
from tests.hsa.executes import _ARENA_SIZE, Device

BUNDLER = "clang-offload-bundler-19"
BLOCK = (64, 1, 1)
_TWO = frozenset({"saxpy", "wide", "block_sum", "steps", "histogram", "nothing"})
"""Kernels whose blocks write elements of their own; of the others one block runs."""
_WORDS = 1024
"""Of each buffer."""
_LOG_UNITS = 1 << 14
_NUMBER = 100
"""What arguments are that are numbers."""


class Bench:
    """The runtime with one GPU, for which kernels get twins."""

    def __init__(self, folder: Path, processor: str, *, is_of_file: bool = False) -> None:
        self._path = folder / f"{processor}.hsaco"
        self._is_of_file = is_of_file
        self._originals = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.hsaco"))}
        self._processor = processor
        self._data = self._originals[processor]
        self._device = Device(self._data)
        metadata = metadata_of(open_code_object(self._data, ""))
        assert metadata is not None
        self._metadata = {row[".name"]: row for row in metadata.values["amdhsa.kernels"]}

    def judge(self, probe: str, kernels: Sequence[str]) -> dict[str, Any]:
        """Patch the code object, load it in a bundle, and launch its kernels. probe: its name."""
        target = code_object_functions(self._data, "").target
        able, left_out = able_probes(GcnTarget(), portable_probes()[probe])
        backend = GcnTwins(CodeObjectSource(0, target, self._data), typed(able), left_out)
        plan = backend.plan(kernels)
        code = backend.write(plan)
        refusals = {**plan.refused, **code.refused}
        found: dict[str, Any] = {name: f"{why.name.lower()}: {detail}" for name, (why, detail) in refusals.items()}
        if code.twins:
            image, carrier = self._patched(probe, kernels) if self._is_of_file else (code.image, code.image)
            self._device.take(image)
            module = self._device.hip.module(self._bundle(image))
            originals = module if carrier is image else self._device.hip.module(self._bundle(carrier))
            planned = {kernel.name: kernel for kernel in plan.kernels}
            for twin in code.twins:
                found[twin.name] = self._launched(originals, module, probe, planned[twin.name], twin)
        return found

    def _patched(self, probe: str, kernels: Sequence[str]) -> tuple[bytes, bytes]:
        """The code object with twins that is in the file that ``neutrino-patch`` writes, and that file."""
        with tempfile.TemporaryDirectory() as name:
            to = Path(name) / "patched.hsaco"
            chosen = [word for kernel in kernels for word in ("-k", kernel)]
            argv = [sys.executable, "-m", "neutrino.cli.patch", str(self._path), "-p", probe, *chosen, "-o", str(to)]
            # Without the stand-in of the HSA, by which it would look for GPUs.
            environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environment)
            data = to.read_bytes()
        found = Elf(memoryview(data), "patched").section(".neutrino")
        assert found is not None
        carried = read_section(data[found.offset : found.offset + found.size], "patched", found.offset)
        (image,) = read_entry(bytes(carried.entries[0]), "patched").images
        return image, data

    def _bundle(self, image: bytes) -> bytes:
        """A bundle of all code objects, the patched one for this GPU."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "host").write_bytes(b"")
            for arch, data in self._originals.items():
                (folder / arch).write_bytes(image if arch == self._processor else data)
            targets = ["host-x86_64-unknown-linux-gnu", *(f"hipv4-amdgcn-amd-amdhsa--{one}" for one in self._originals)]
            inputs = [f"--input={folder / one}" for one in ("host", *self._originals)]
            subprocess.run(
                [BUNDLER, "--type=o", "--bundle-align=4096", f"--targets={','.join(targets)}", *inputs,
                 f"--output={folder / 'bundle'}"],
                check=True,
            )  # fmt: skip
            return (folder / "bundle").read_bytes()

    def _launched(self, originals: Any, module: Any, probe: str, kernel: GcnKernel, twin: GcnTwin) -> list[Any]:
        """Launch a kernel, and its twin in both ways. originals, module: that have them. Returns what is wrong, and how
        many records there are."""
        hip, device = self._device.hip, self._device
        random = np.random.default_rng(5)
        grid = (2 if kernel.name in _TWO else 1, 1, 1)
        contents, buffers, arguments = [], [], []
        for argument in self._metadata[kernel.name].get(".args", ()):
            kind, size = argument[".value_kind"], argument[".size"]
            if kind == "global_buffer":
                contents.append(random.integers(0, _NUMBER, _WORDS, np.uint32).tobytes())
                buffers.append(hip.buffer(contents[-1]))
                arguments.append(struct.pack("<Q", buffers[-1]))
            elif not kind.startswith("hidden_"):
                arguments.append(struct.pack("<Q", _NUMBER)[:size].ljust(size, b"\0"))

        def fresh() -> None:
            for address, content in zip(buffers, contents, strict=True):
                hip.write(address, content)

        def after() -> list[bytes]:
            return [hip.read(address, 4 * _WORDS) for address in buffers]

        recorders: list[Recorder] = []

        def observing(program: Any) -> Any:
            recorders.append(Recorder(program, grid))
            return recorders[0].observe

        device.name, device.observing, device.options = kernel.name, observing, {}
        hip.launch(hip.function(originals, kernel.name), grid, BLOCK, arguments)
        results = after()
        passed = BASE + _ARENA_SIZE // 2
        noted = recorders[0]
        original = Ran(results, b"", list(noted.waves.values()), passed, {}, noted.operations, noted.branches)
        device.name, device.observing, device.options = twin.twin_name, None, {"seed": 3, "poison": 4, "checks": True}
        units = _LOG_UNITS if any(entry.kind.layout is Layout.CHUNKS for entry in twin.maps) else 0
        launch = LaunchMemory(twin.maps, grid, BLOCK, twin.lanes, units)
        function = hip.function(module, twin.twin_name)
        records = 0
        for way in ("kernelParams", "extra"):
            fresh()
            memory = hip.buffer(bytes(launch.size + 64))
            block = launch.probe_block(memory, twin.block_size)
            with ticking() as ticks:
                if way == "extra":
                    hip.launch_packed(function, grid, BLOCK, self._packed(kernel.name, arguments, twin, block))
                else:
                    hip.launch(function, grid, BLOCK, [*arguments, block])
            if after() != results:
                return [f"{way}: other results", 0]
            data = hip.read(memory, launch.size + 64)
            if any(data[launch.size :]):
                return [f"{way}: written beyond the maps", 0]
            views = views_of(twin, launch, data[: launch.size])
            warps = launch.warps_per_block
            judged = Launch(
                original, self._processor, grid, warps, numbers_of(kernel), ticks, left_out_of(kernel, twin)
            )  # fmt: skip
            wrong = faults(probe, judged, views, twin)
            if wrong:
                return [f"{way}: {wrong[0]}", 0]
            records = sum(view.record_count for view in views.values())
        return ["", records]

    def _packed(self, name: str, arguments: Sequence[bytes], twin: GcnTwin, block: bytes) -> bytes:
        """The arguments as they lie in memory, and the block after hidden ones, for which there is room."""
        packed = bytearray(twin.block_offset + len(block))
        rows = [row for row in self._metadata[name].get(".args", ()) if not row[".value_kind"].startswith("hidden_")]
        for row, value in zip(rows, arguments, strict=True):
            packed[row[".offset"] : row[".offset"] + len(value)] = value
        packed[twin.block_offset :] = block
        return bytes(packed)


def main(folder: str, kernels: str, probes: str, source: str = "") -> dict[str, dict[str, Any]]:
    """Judge all probes. Returns what is printed."""
    match = re.search(r"gfx\w+", os.environ["HSA_STAND_IN_ISA"])
    assert match is not None
    bench = Bench(Path(folder), match[0], is_of_file=source == "file")
    names = probes.split(",") if probes else list(portable_probes())
    return {probe: bench.judge(probe, kernels.split(",")) for probe in names}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
