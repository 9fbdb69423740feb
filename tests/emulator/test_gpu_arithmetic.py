"""The arithmetic against what a GPU computed, and bench/arithmetic.py, which asked it.

`bench/results/arithmetic_h200.json` is what `python3 -m bench.arithmetic record` wrote on an H200.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import arithmetic
from bench.arithmetic_forms import BLOCK, Form, Product
from bench.arithmetic_operands import TUPLES, operands
from bench.device import DriverError
from neutrino.emulator.device import Device
from neutrino.errors import ToolMissingError
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.tool_choice import find_assembler
from tests.once import stand_in

ROOT = Path(__file__).resolve().parents[2]
EVERY = {one.name: one for one in arithmetic.instructions()}
LEAST = 1600
"""Instructions that have to be compared."""

REFUSED: Mapping[str, str] = {}
"""Instructions that the driver's compiler does not take, by a pattern of the name, and why."""
OPEN: Mapping[str, str] = {}
"""Results that may differ in the NaN they give or where the ISA says nothing, by a pattern of the name, and why."""


@cache
def recorded() -> Any:
    return json.loads(arithmetic.RESULTS.read_text())


def differences(instruction: Form | Product, row: Any, words: np.ndarray[Any, Any]) -> list[str]:
    """What speaks against the results `words`, where the GPU's are as in the row."""
    if row["inputs"] != arithmetic.digest(arithmetic.read_by(instruction))[:16]:
        return ["the operands are others than were recorded"]
    if arithmetic.is_exact(instruction):
        if row["sha256"] == arithmetic.digest(words):
            return []
        settled = arithmetic.digest(arithmetic.settled(instruction, words))
        if settled != row.get("settled", settled_as_it_is(instruction, row)):
            return ["other results than the GPU's"]
        allowed = any(re.fullmatch(pattern, instruction.name) for pattern in OPEN)
        return [] if allowed else ["other NaN than the GPU's, or other results where the ISA leaves them open"]
    sample = arithmetic.kept_sample(instruction, row)
    expected = arithmetic.sampled(instruction, words)
    if isinstance(instruction, Form):
        known = arithmetic.defined(instruction)[:: TUPLES // arithmetic.SAMPLES]
        missed, _ = arithmetic.misses(instruction, sample, expected, known)
    else:
        scale = arithmetic.sampled(instruction, arithmetic.magnitudes(instruction))
        missed = ~(arithmetic.relative_errors(instruction, sample, expected, scale) <= instruction.bound)
    found = [f"{missed.sum()} results of the sample out of bounds"] if missed.any() else []
    return [*found, *([f"{row['missed']} were out of bounds when recorded"] if row["missed"] else [])]


def settled_as_it_is(instruction: Form | Product, row: Any) -> str:
    """The digest of settled results of which none is kept: they are the results themselves, as 64-bit words."""
    if isinstance(instruction, Form):
        return str(row["sha256"])
    return "a product's words differ"


def _families() -> dict[str, list[str]]:
    found = defaultdict(list)
    for name in EVERY:
        found[name.split(".")[0]].append(name)
    return found


FAMILIES = _families()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_gpu_computes_the_same(family: str) -> None:
    rows = recorded()["instructions"]
    wrong = []
    for name in FAMILIES[family]:
        row = rows.get(name, {"error": "not recorded"})
        if "error" in row:
            if not any(re.fullmatch(pattern, name) for pattern in REFUSED):
                wrong.append(f"{name}: {row['error']}")
            continue
        wrong += [f"{name}: {what}" for what in differences(EVERY[name], row, arithmetic.emulate(EVERY[name]))]
    assert wrong == []


def test_enough_is_compared() -> None:
    rows = recorded()["instructions"]
    assert sum(name in EVERY and "error" not in row for name, row in rows.items()) >= LEAST
    assert set(rows) <= set(EVERY)
    unused = [pattern for pattern in (*REFUSED, *OPEN) if not any(re.fullmatch(pattern, name) for name in rows)]
    assert unused == []


# -- the same PTX elsewhere


def _groups() -> list[list[str]]:
    names = list(EVERY)
    return [names[start : start + arithmetic.GROUP] for start in range(0, len(names), arithmetic.GROUP)]


@pytest.mark.parametrize("group", _groups(), ids=lambda group: group[0])
def test_the_interpreter_computes_the_same(group: list[str]) -> None:
    """The PTX that the GPU runs gives, interpreted, what the arithmetic's functions give."""
    device = Device(memory=4 << 20)
    module = device.load(arithmetic.module_text([EVERY[name] for name in group]))
    wrong = []
    for place, name in enumerate(group):
        given, empty = arithmetic.read_by(EVERY[name]), arithmetic.written_by(EVERY[name])
        addresses = [device.allocate(array.nbytes) for array in (given, empty)]
        for address, array in zip(addresses, (given, empty), strict=True):
            device.write(address, array)
        device.launch(module.functions[f"k{place}"], (TUPLES // BLOCK, 1, 1), (BLOCK, 1, 1), addresses)
        result = np.frombuffer(device.read(addresses[1], empty.nbytes), empty.dtype).reshape(empty.shape)
        if not np.array_equal(result, arithmetic.emulate(EVERY[name])):
            wrong.append(name)
        for address in addresses:
            device.free(address)
    assert wrong == []


def test_the_assembler_takes_every_instruction(tmp_path: Path) -> None:
    try:
        assembler = find_assembler()
    except ToolMissingError as error:
        pytest.skip(str(error))
    source = tmp_path / "arithmetic.ptx"
    source.write_text(arithmetic.module_text(list(EVERY.values())))
    command = [assembler.path, "--gpu-name=sm_90a", "--opt-level=0", f"--output-file={tmp_path / 'cubin'}", source]
    run_tool(command, timeout=120)


# -- bench/arithmetic.py


def test_recording_through_the_driver_api(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of it by the stand-in driver, and what is kept is what the judge above takes."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA Stub, 1.2.3'\n")
    smi.chmod(0o755)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(stand_in(tmp_path_factory)),
        "NEUTRINO_EMBEDDED": f"python={sys.executable};root={ROOT}",
        "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
    }
    command = [sys.executable, "-m", "bench.arithmetic", "record", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=240, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(EVERY)} compared" in done.stdout
    assert " differ" not in done.stdout
    file = tmp_path / arithmetic.RESULTS.name
    assert file.stat().st_size < 700 << 10
    rows = json.loads(file.read_text())["instructions"]
    assert list(rows) == list(EVERY)
    with np.load(tmp_path / "arithmetic.npz") as whole:
        assert sorted(whole.files) == sorted(EVERY)
        for name in ("add.rn.f32", "cvt.rzi.s64.f64", "sin.approx.f32", "subc.cc.u64", "div.s32"):
            assert differences(EVERY[name], rows[name], whole[name]) == []


class _RefusingGpu:
    """A driver that runs nothing and refuses the modules in which a text occurs."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.loaded = 0

    @contextmanager
    def module(self, text: bytes) -> Iterator[None]:
        self.loaded += 1
        if self.refused in text.decode():
            raise DriverError("cuModuleLoadDataEx", f"no {self.refused}")
        yield None

    @contextmanager
    def memory(self, values: Any) -> Iterator[bytes]:
        yield bytes(8)

    def launch(self, *_: Any) -> None:
        pass

    def read(self, _: Any, like: Any) -> Any:
        return like


def test_one_refused_instruction_loses_no_other() -> None:
    gpu: Any = _RefusingGpu("mul.wide.s16")
    group = [EVERY[name] for name in _groups()[0]]
    results = [(one.name, result) for one, result in arithmetic.run(gpu, group)]
    assert [name for name, _ in results] == [one.name for one in group]
    failed = [(name, result) for name, result in results if isinstance(result, str)]
    assert failed == [("mul.wide.s16", "cuModuleLoadDataEx: no mul.wide.s16")]
    assert gpu.loaded < 20


# Of each kind of result one: words, halves, wide floats, predicates, carries, fragments.
KINDS = (
    "add.u16",
    "fma.rn.f16x2",
    "mul.rz.f64",
    "setp.lt.f32",
    "setp.nan.bf16x2 p|q",
    "addc.cc.u32",
    "cvt.rn.satfinite.e4m3x2.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 whole",
)


@pytest.mark.parametrize("name", KINDS)
def test_one_wrong_bit_is_found(name: str) -> None:
    instruction = EVERY[name]
    words = arithmetic.emulate(instruction)
    row = arithmetic.result_row(instruction, words)
    assert differences(instruction, row, words) == []
    words.reshape(-1)[-1] ^= words.dtype.type(1)
    assert differences(instruction, row, words) == ["other results than the GPU's"]


def test_other_nans_are_told_from_other_results() -> None:
    instruction = EVERY["add.rn.f32"]
    words = arithmetic.emulate(instruction)
    nan = words == 0x7FFFFFFF
    assert nan.any()
    row = arithmetic.result_row(instruction, np.where(nan, np.uint64(0xFFC00000), words))
    assert differences(instruction, row, words) == [
        "other NaN than the GPU's, or other results where the ISA leaves them open"
    ]


def test_what_the_isa_leaves_open_is_told_apart() -> None:
    instruction = EVERY["div.s32"]
    words = arithmetic.emulate(instruction)
    zero = operands(instruction.inputs)[1] == 0
    assert zero.any()
    row = arithmetic.result_row(instruction, np.where(zero, np.uint64(7), words))
    assert differences(instruction, row, words) == [
        "other NaN than the GPU's, or other results where the ISA leaves them open"
    ]
    row = arithmetic.result_row(instruction, np.where(zero, words, np.uint64(7)))
    assert differences(instruction, row, words) == ["other results than the GPU's"]


@pytest.mark.parametrize("name", sorted(name for name, one in EVERY.items() if one.bound))
def test_bounds_hold_what_they_say(name: str) -> None:
    instruction = EVERY[name]
    words = arithmetic.emulate(instruction)
    row = {**arithmetic.result_row(instruction, words), "missed": 0}
    assert differences(instruction, row, words) == []
    # A far exponent in every word, low halves included.
    far = words.dtype.type(0x20002000 if words.dtype == np.uint32 else 0x2000200020002000)
    mask = words.dtype.type((1 << 8 * words.dtype.itemsize) - 1)
    if isinstance(instruction, Form):
        mask = np.uint64((1 << arithmetic.bits_of(instruction.outputs[0])) - 1)
    moved = {**arithmetic.result_row(instruction, (words ^ far) & mask), "missed": 0}
    assert len(differences(instruction, moved, words)) == 1
    assert differences(instruction, {**row, "missed": 3}, words) == ["3 were out of bounds when recorded"]
