"""``neutrino-probe try`` on AMD's code objects: what runs, what is compared, and every way in which it can go wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.cli import probe, report
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.maker.patcher import Twins
from neutrino.playground import code_attempt
from neutrino.playground.attempt import Attempt
from neutrino.playground.code_attempt import CodeRequest, attempt_code
from neutrino.playground.kernel_choice import find_code
from neutrino.playground.launch_inputs import Choices
from neutrino.probing.selection import Selection
from neutrino.verification import load_probes
from tests.gcn.objects import need_clang, need_llvm

GUIDE = Path(__file__).parents[1] / "fixtures" / "probes" / "guide_hip.toml"
LIBRARY = Path(__file__).parents[2] / "examples" / "amd" / "libvector.so"
SOURCE = """
#define __global__ __attribute__((global))
struct Part { float *to; const float *from; float factor; int count; };
extern "C" __global__ void scaled(Part part) {
  int i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
  if (i < part.count) part.to[i] = part.factor * part.from[i];
}
extern "C" __global__ void reverse(float *x) {
  extern __attribute__((shared)) float tile[];
  int t = __builtin_amdgcn_workitem_id_x(), n = __builtin_amdgcn_workgroup_size_x();
  float *own = x + __builtin_amdgcn_workgroup_id_x() * n;
  tile[t] = own[t];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  own[t] = tile[n - 1 - t];
}
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 64))) void endless(unsigned *x, unsigned n) {
  for (unsigned i = 0; ; i += n)
    __hip_atomic_fetch_add(x, i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" __global__ void moved(unsigned *x, unsigned by) { x[__builtin_amdgcn_workitem_id_x()] = by; }
"""
SHARED = """
import neutrino.language as nl
from neutrino import probe, Map
n: nl.u64 = 0

@Map(level="thread", type="sum")
class N:
    n: nl.u64

@probe(pos="ld.shared", level="thread")
def loads():
    N.save(1)
"""


@pytest.fixture(autouse=True)
def llvm() -> None:
    need_llvm()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of SOURCE for gfx942."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.hip").write_text(SOURCE)
    flags = ["-x", "hip", "-nogpuinc", "-nogpulib", "--offload-device-only", "--no-gpu-bundle-output", "-w", "-O2"]
    command = [need_clang(), *flags, "--offload-arch=gfx942", "own.hip", "-o", "own.hsaco"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "own.hsaco"


class Tried:
    """What a command printed, and its exit status."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str | Path) -> None:
        self.status = probe.main(["try", *map(str, words)])
        self.out, self.err = capsys.readouterr()
        self.rows = [line.split() for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        assert (self.status, self.err) == (0, "")
        return dict(json.loads(self.out))


def attempted(file: Path, kernel: str, tmp_path: Path, arch: str | None = None, **choices: Any) -> Attempt:
    found = find_code(file, Selection((kernel,)), arch)
    probes = load_probes(["gmem_bytes"], platform="hip")
    return attempt_code(CodeRequest(found, probes, ("gmem_bytes",), Choices(**choices), tmp_path))


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tried = Tried(capsys, "gmem_bytes", LIBRARY, "-k", "saxpy", "--diff")
    assert (tried.status, tried.err) == (0, "")
    assert tried.rows[:2] == [["saxpy"], ["4", "blocks", "of", "128", "threads"]]
    for row in (
        "arg0 f32 × 262,144, random read, written", "arg1 f32 × 262,144, random read", "arg2 1.5", "arg3 512",
        "load store atomic async uncounted", "4096 2048 0 0 0",
    ):  # fmt: skip
        assert row.split() in tried.rows, row
    assert "512 of 262,144" in tried.out
    assert "  The same bits with and without the probe.\n" in tried.out
    assert "times are steps of the interpreter, not cycles" in tried.out
    assert any(line.startswith("  + ") and "s_add_u32" in line for line in tried.out.splitlines())


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_kernel_runs_on_its_inputs_and_records_are_those_of_the_launch(arch: str, tmp_path: Path) -> None:
    # The last wave of a block has 8 lanes; blocks have other numbers of threads than the program's.
    result = attempted(LIBRARY, "saxpy", tmp_path, arch, grid=(3, 1, 1), block=(40, 1, 1), arguments={"arg2": "0.25"})
    out, x = (np.frombuffer(output.before, "f4") for output in result.outputs[:2])
    after = np.frombuffer(result.outputs[0].plain, "f4")
    np.testing.assert_allclose(after[:120], out[:120] + np.float32(0.25) * x[:120], rtol=1e-5, atol=1e-6)
    assert (after[120:] == out[120:]).all()
    assert result.identical
    (launch,) = result.probed.launches()
    (found,) = launch.maps["GmemBytes"].valid().tolist()
    assert found == (960, 480, 0, 0, 0)
    # What a buffer was used for is what the run has done.
    used = {buffer.value.name: (buffer.value.loads, buffer.value.stores) for buffer in result.inputs.buffers}
    assert used == {"arg0": (True, True), "arg1": (True, False)}


def test_any_order_of_waves_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gmem_bytes", LIBRARY, "-k", "sum", "--grid", "2", "--json")
    first, second = (Tried(capsys, *words, "--schedule", seed).document for seed in ("1", "2"))
    assert first["maps"] == second["maps"]
    assert first["identical"]
    assert first["clock"] == "steps"
    (argument, *_) = first["arguments"]
    assert (argument["role"], argument["type"]) == ("pointer", "f32")


def test_the_trace_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = Tried(capsys, "gmem_bytes", LIBRARY, "-k", "saxpy", "--tracedir", tmp_path / "traces")
    assert tried.status == 0
    (folder,) = (tmp_path / "traces").iterdir()
    assert f"The trace: {folder}" in tried.out
    assert report.main([str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (trace,) = document["traces"]
    (kernel,) = trace["kernels"]
    assert (kernel["name"], trace["clock"], trace["coverage"]["probed"]) == ("saxpy", "steps", 1)
    assert {file.name for file in (folder / "kernel" / "1").iterdir()} == {"manifest.json", "original.s", "probed.s"}


def test_a_kernel_without_a_site_is_said_to_be_unprobed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shared.py"
    path.write_text(SHARED)
    tried = Tried(capsys, path, LIBRARY, "-k", "saxpy")
    assert tried.status == 3
    assert tried.err == "neutrino-probe: saxpy ran unprobed: no instruction matches the probe\n"
    # Its own results are there.
    assert "512 of 262,144" in tried.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-k", "saxpy", "--arg", "arg1=f32:100"), "lie in no buffer"),
        (("-k", "saxpy", "--arg", "arg1=f32:100"), "that is right after the end of arg1 (f32 × 100, 400 bytes)"),
        (("-k", "saxpy", "--arch", "gfx1030"), "no code for gfx1030; the file has gfx1100, gfx942"),
        (("-k", "nothing"), "no kernel matches; the file has saxpy, sum"),
        ((), "2 kernels match; choose one with --kernel: saxpy, sum"),
        (("-k", "sum", "--block", "1024,2"), "a block has up to 1,024"),
        (("-k", "sum", "--shared", "65537"), "a block of this kernel has up to 65,536 bytes"),
        (("-k", "sum", "--arg", "7=1"), "the kernel's arguments are arg0 (0), arg1 (1), arg2 (2)"),
        (("-k", "saxpy", "--timeout", "0.05"), "saxpy has not ended within 0.05 s"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    tried = Tried(capsys, "gmem_bytes", LIBRARY, *words)
    assert tried.status == 2
    assert said in tried.err


def test_structures_have_pointers_and_fractions(own: Path, tmp_path: Path) -> None:
    result = attempted(own, "scaled", tmp_path, block=(70, 1, 1))
    names = {item.value.name: item.value.type for _, items in result.inputs.arguments for item in items}
    assert names == {"arg0+0": "f32", "arg0+8": "f32", "arg0+16": "f32", "arg0+20": "u32"}
    to, source = result.outputs
    assert (to.name, to.before) == ("arg0+0", bytes(len(to.before)))
    scaled = np.frombuffer(source.before, "f4")[:280] * np.float32(1.5)
    assert (np.frombuffer(to.plain, "f4")[:280] == scaled).all()
    assert result.identical


def test_lds_of_the_launch_is_there(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = attempted(own, "reverse", tmp_path)
    assert result.inputs.shared == 32 << 10
    (x,) = result.outputs
    before, after = (np.frombuffer(data, "f4")[:512].reshape(4, 128) for data in (x.before, x.plain))
    assert (after == before[:, ::-1]).all()
    tried = Tried(capsys, "gmem_bytes", own, "-k", "reverse", "--shared", "8")
    assert tried.status == 2
    assert "an access of 4 bytes at 252 of 8 bytes of LDS" in tried.err
    assert "the kernel may want another --block, or more --shared" in tried.err


def test_a_number_may_be_a_fraction(own: Path, tmp_path: Path) -> None:
    # Nothing shows what it is: it is only stored.
    result = attempted(own, "moved", tmp_path, arguments={"arg1": "0.5"})
    assert np.frombuffer(result.outputs[0].plain, "f4")[:128].tolist() == [0.5] * 128


def test_a_kernel_out_of_time_is_named_with_its_instruction(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = Tried(capsys, "inst_count", own, "-k", "endless", "--timeout", "2")
    assert tried.status == 2
    assert "endless has not ended within 2 s; after 1 s a warp was at 0x" in tried.err
    assert "a smaller --arg arg1=NUMBER, --grid 1 or --block 32 may make it shorter" in tried.err
    tried = Tried(capsys, "inst_count", own, "-k", "endless", "--block", "65")
    assert "65 threads, but the kernel was compiled for blocks of up to 64" in tried.err


def test_other_bits_with_the_probe_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_twins = code_attempt.make_twins

    def damaged(*arguments: Any, **options: Any) -> Twins:
        twins = make_twins(*arguments, **options)
        (image,) = twins.images
        (twin,) = (one for one in code_object_functions(image, "").functions if one.name == "saxpy__neutrino")
        at = image.index(twin.code)
        # global_store_dword has its offset in the lowest bits.
        store = image.index(bytes.fromhex("008070dc")[1:], at) - 1
        changed = image[:store] + b"\x04" + image[store + 1 :]
        return Twins(twins.kernels, (changed,))

    monkeypatch.setattr(code_attempt, "make_twins", damaged)
    tried = Tried(capsys, "gmem_bytes", LIBRARY, "-k", "saxpy", "--arch", "gfx942")
    assert tried.status == 1
    assert "NOT the same bits with the probe: arg0" in tried.out


def test_hand_written_reads_of_the_hardware_are_recorded(own: Path, tmp_path: Path) -> None:
    # The snippet of the page about AMD's probes, which has no other way to the clock and the unit.
    found = find_code(own, Selection(("scaled",)), None)
    probes = load_probes([str(GUIDE)], platform="hip")
    result = attempt_code(CodeRequest(found, probes, ("sched",), Choices(block=(70, 1, 1)), tmp_path))
    assert result.identical
    (launch,) = result.probed.launches()
    rows = launch.maps["BlockSched"].valid()
    assert len(rows) == 8
    assert (rows["elapsed"] > 0).all()
    # The interpreter's waves have other numbers of the hardware, and begin one after the other.
    assert len({int(unit) for unit in rows["cuid"]}) == 8
    assert sorted(rows["start"].tolist()) == rows["start"].tolist()
