"""The interpreter against this CPU: the same source, bit by bit. ``--thorough``: all of it, for six processors."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from bench.recorded import load
from neutrino.emulator.gcn.errors import GcnError, GcnFaultError
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import Disassemble, LoadedObject
from neutrino.errors import ToolMissingError
from neutrino.gcn.llvm import find_llvm
from tests.emulator.gcn import judge, triton_numpy
from tests.emulator.gcn.triton_cases import cases
from tests.gcn.objects import need_clang

_KERNELS = judge.kernels()
_VALUES = judge.inputs(11)
_USUAL = (("gfx942", "-O2"), ("gfx1100", "-O2"))
_ALL = (
    *((target, level) for target in ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
      for level in ("-O0", "-O1", "-O2", "-O3")),
    *((target, "-O2 -mwavefrontsize64") for target in ("gfx1030", "gfx1100", "gfx1201")),
)  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "options" in metafunc.fixturenames:
        metafunc.parametrize(("target", "options"), _ALL if metafunc.config.getoption("--thorough") else _USUAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_clang()
    return tmp_path_factory.mktemp("judge")


@pytest.fixture(scope="module")
def cpu(folder: Path) -> ctypes.CDLL:
    return judge.compile_for_cpu(folder)


@pytest.fixture(scope="module")
def disassemble() -> Disassemble:
    try:
        return find_llvm("gfx942").disassemble
    except ToolMissingError as error:
        pytest.skip(error.hint)


@pytest.fixture(scope="module")
def code_object(folder: Path) -> bytes:
    return judge.compile_for_gpu(folder, "gfx942", ("-O2",))


def test_there_are_enough_kernels_of_each_kind() -> None:
    assert len(_KERNELS) >= 60
    assert sum(kernel.is_phased for kernel in _KERNELS) >= 7
    assert sum(kernel.kind == "f32" for kernel in _KERNELS) >= 12


def test_kernels_compute_what_this_cpu_does(
    target: str, options: str, folder: Path, cpu: ctypes.CDLL, disassemble: Disassemble, pytestconfig: pytest.Config
) -> None:
    data = judge.compile_for_gpu(folder, target, tuple(options.split()))
    chosen = _KERNELS[::3] if target == "gfx942" else _KERNELS[1::5]
    if pytestconfig.getoption("--thorough"):
        chosen = _KERNELS
    for kernel, found, _ in judge.on_gpu(data, disassemble, chosen, _VALUES, 1):
        assert not judge.differences(kernel, judge.on_cpu(cpu, kernel, *_VALUES), found), kernel.name


def _named(name: str) -> judge.Judged:
    return next(kernel for kernel in _KERNELS if kernel.name == name)


def _changed(disassemble: Disassemble, begin: str, replacement: str) -> Disassemble:
    """Return a disassembler that prints another text for instructions whose text begins so."""

    def change(code: bytes, processor: str, features: str) -> list[tuple[int, int, str | None]]:
        rows = disassemble(code, processor, features)
        return [(at, size, replacement if text and text.startswith(begin) else text) for at, size, text in rows]

    return change


def test_a_missing_wait_is_a_fault(code_object: bytes, disassemble: Disassemble) -> None:
    without = _changed(disassemble, "s_waitcnt", "s_nop 0")
    with pytest.raises(GcnFaultError, match="before the wait for it") as caught:
        list(judge.on_gpu(code_object, without, [_named("mixed_sums")], _VALUES, 1))
    assert caught.value.kind == "wait"


def _with(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_objects_that_contradict_themselves_are_refused(code_object: bytes, disassemble: Disassemble) -> None:
    kernel = _named("double_quotients")
    loaded = LoadedObject(code_object, Memory(16 << 20), disassemble)
    # The descriptor is in the first segment, whose addresses are offsets in the file.
    at = loaded.symbols[f"{kernel.name}.kd"] - loaded.base
    assert struct.unpack_from("<I", code_object, at) == (loaded.kernels[kernel.name].descriptor.lds,)
    for offset, value in ((0, 64), (4, 64), (8, 8)):
        with pytest.raises(GcnError, match="in the note"):
            LoadedObject(_with(code_object, at + offset, struct.pack("<I", value)), Memory(16 << 20), disassemble)
    (rsrc1,) = struct.unpack_from("<I", code_object, at + 48)
    fewer = _with(code_object, at + 48, struct.pack("<I", rsrc1 & ~0x3F))
    with pytest.raises(GcnFaultError, match="which the descriptor does not give"):
        list(judge.on_gpu(fewer, disassemble, [kernel], _VALUES, 1))


def test_missing_barriers_are_noticed(code_object: bytes, cpu: ctypes.CDLL, disassemble: Disassemble) -> None:
    kernel = _named("exchanged")
    expected = judge.on_cpu(cpu, kernel, *_VALUES)
    without = _changed(disassemble, "s_barrier", "s_nop 0")
    for disassembler, is_right in ((disassemble, True), (without, False)):
        counts = [
            judge.differences(kernel, expected, found)
            for seed in range(4)
            for _, found, _ in judge.on_gpu(code_object, disassembler, [kernel], _VALUES, seed)
        ]
        assert any(counts) is not is_right


def test_recorded_results_are_numpy_s() -> None:
    rows = load(triton_numpy.RESULTS)["rows"]
    for processor in triton_numpy.PROCESSORS:
        assert sum(row["processor"] == processor for row in rows) >= triton_numpy.LEAST
    for row in rows:
        assert row["error"] <= row["allowed"], row
        assert row["same"], row
    allowed = {name: case.error for name, case in cases("gfx942").items()}
    assert {row["kernel"]: row["allowed"] for row in rows} == allowed
