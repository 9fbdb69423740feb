"""AMD's code objects carry twins, in files of their own and in HIP's host libraries, and the original comes back."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend import gcn_writing
from neutrino.backend.gcn_values import GcnKernel
from neutrino.backend.gcn_writing import Inserted
from neutrino.cli import patch
from neutrino.elf.constants import EM_AMDGPU, PT_LOAD
from neutrino.elf.reader import Elf
from neutrino.fatbin import read_code_object, read_file
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.splice import Insertion
from neutrino.patched_files.check import check_file
from neutrino.patched_files.place import find_section
from neutrino.patched_files.section import read_section
from neutrino.twins.cache_entry import read_entry
from tests.gcn.objects import CLANG, code_objects, need_llvm

KERNELS = ("saxpy", "tiles", "calls")
CHOSEN = [word for name in KERNELS for word in ("-k", name)]
HOST = """
#define __global__ __attribute__((global))
struct dim3 { unsigned x, y, z; dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" int __hipPushCallConfiguration(dim3, dim3, unsigned long = 0, void * = 0);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void *);
extern "C" __global__ void add(float *a, int n) {
  int i = __builtin_amdgcn_workitem_id_x() + __builtin_amdgcn_workgroup_id_x() * 64;
  if (i < n) a[i] += 1;
}
extern "C" __global__ void twice(int *a) { a[__builtin_amdgcn_workitem_id_x()] *= 2; }
"""


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    need_llvm()
    return code_objects()


@pytest.fixture
def nops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of probes, an instruction that does nothing at each site and at the entry: files are what is tested."""

    def inserted_into(kernel: GcnKernel, llvm: Llvm) -> Inserted:
        nop = llvm.assemble("s_nop 0", kernel.source.processor)
        found = []
        for one in kernel.functions:
            places = dict.fromkeys([0, *one.at])
            inside = set()
            left = 0
            for row in one.function.instructions:
                inside |= {row.offset} if left else set()
                left = int(row.operands[0], 0) + 1 if row.mnemonic == "s_clause" else max(left - 1, 0)
            found.append([Insertion(place, nop) for place in places if place not in inside])
        return Inserted(found, 0, 0)

    monkeypatch.setattr(gcn_writing, "inserted_into", inserted_into)


def run(*arguments: object) -> int:
    return patch.main([str(argument) for argument in arguments])


def entry_of(path: Path):  # type: ignore[no-untyped-def]
    data = memoryview(path.read_bytes())
    place = find_section(Elf(data, str(path)))
    assert place is not None
    section = read_section(data[place.offset : place.offset + place.size], str(path), place.offset)
    return section, [read_entry(bytes(entry), "entry") for entry in section.entries]


@pytest.mark.usefixtures("nops")
@pytest.mark.parametrize("name", ["gfx942-O0", "gfx1100-O2", "gfx1201-wave64"])
def test_a_code_object_carries_twins_and_loads_as_before(
    objects: dict[str, Path], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = objects[name]
    target = tmp_path / "out" / source.name
    target.parent.mkdir()
    assert run(source, "-p", "inst_count", *CHOSEN, "-o", target, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    probed = {row["name"] for row in report["kernels"] if row["status"] == "probed"}
    original, patched = (Elf(memoryview(path.read_bytes()), str(path)) for path in (source, target))
    known = read_code_object(original.data, "original").kernels
    assert probed == {kernel for kernel in known if any(name in kernel for name in KERNELS)}

    # What a loader reads is as it was.
    assert patched.machine == EM_AMDGPU
    for one, other in zip(original.segments, patched.segments, strict=True):
        assert one == other
        if one.type == PT_LOAD:
            # But for the header, which says where the section headers are.
            begin, end = max(one.offset, 64), one.offset + one.file_size
            assert bytes(original.data[begin:end]) == bytes(patched.data[begin:end])

    section, (entry,) = entry_of(target)
    (image,) = entry.images
    twins = read_code_object(image, "twins").kernels
    for kernel in (kernel for kernel in entry.kernels if kernel.reason is not Reason.NOT_SELECTED):
        assert kernel.reason is Reason.PROBED
        assert {kernel.name, kernel.twin} <= set(twins)
        assert kernel.lanes == twins[kernel.name].wavefront_size
        assert kernel.block_offset >= twins[kernel.name].kernarg_segment
        assert twins[kernel.twin].kernarg_segment == kernel.block_offset + kernel.block_size
        assert b"s_nop 0" in kernel.files["probed.s"]
    assert section.rows[0].arch == name.partition("-")[0]

    check = check_file(target)
    assert check.faults == []
    assert check.counts["twins"] == len(probed)
    assert run("--restore", target, "-o", tmp_path / "back.hsaco") == 0
    assert (tmp_path / "back.hsaco").read_bytes() == source.read_bytes()
    # Patched anew it is as if the original were.
    again = tmp_path / "again.hsaco"
    assert run(target, "-p", "inst_count", *CHOSEN, "-o", again) == 0
    assert again.read_bytes() == target.read_bytes()


@pytest.mark.usefixtures("nops")
def test_damage_to_it_is_noticed(objects: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "k.hsaco"
    assert run(objects["gfx90a-O2"], "-p", "block_sched", *CHOSEN, "-o", target) == 0
    data = bytearray(target.read_bytes())
    place = find_section(Elf(memoryview(data), "k"))
    assert place is not None
    _, (entry,) = entry_of(target)
    begins = bytes(data).find(entry.images[0])
    for at in (0x1000, begins + 20, place.offset + place.size - 8, place.offset + 8):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        (tmp_path / "damaged.hsaco").write_bytes(damaged)
        check = check_file(tmp_path / "damaged.hsaco")
        assert check.faults or any("another tool changed the file" in note for note in check.notes), hex(at)


@pytest.mark.usefixtures("nops")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_host_library_with_two_architectures_carries_twins_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compressed: bool
) -> None:
    need_llvm()
    if shutil.which(CLANG) is None or shutil.which("ld.lld-19") is None:
        pytest.skip(f"no {CLANG} with lld, which link HIP's libraries")
    library = tmp_path / "libk.so"
    flags = ["-x", "hip", "-no-hip-rt", "-nogpuinc", "-nogpulib", "-w", "-fPIC", "-shared", "-O2"]
    flags += ["-mcode-object-version=4", *(["--offload-compress"] if compressed else [])]
    archs = ["gfx90a", "gfx1030"]
    (tmp_path / "k.hip").write_text(HOST)
    flags += [f"--offload-arch={arch}" for arch in archs]
    command = [CLANG, *flags, str(tmp_path / "k.hip"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{CLANG} links no HIP library: {done.stderr[-300:]}")
    target = tmp_path / "patched.so"
    assert run(library, "-p", "block_sched", "-o", target, "--json", "-j", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["status"] for row in report["kernels"]} == {"probed"}
    section, entries = entry_of(target)
    assert {row.arch for row in section.rows} == set(archs)
    assert len(entries) == len(archs)
    assert check_file(target).faults == []
    (container,) = read_file(target)
    assert sorted(image.arch for image in container.images if image.arch) == sorted(archs)
    # What the program hands to its runtime is the bundle as it is stored.
    assert container.bundle is not None
    assert {row.image_digest for row in section.rows} == {hashlib.sha256(container.bundle.stored).digest()}
    assert run("--restore", target, "-o", tmp_path / "back.so") == 0
    assert (tmp_path / "back.so").read_bytes() == library.read_bytes()
    # One of them alone.
    capsys.readouterr()
    assert run(library, "-p", "block_sched", "--dry-run", "--arch", "gfx90a", "--json", "-j", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert ({row["arch"] for row in report["kernels"]}, report["output"]) == ({"gfx90a"}, None)


def test_what_cannot_be_probed_has_its_reason(
    objects: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(objects["gfx906-O1"], "-p", "block_sched", "-o", tmp_path / "x.hsaco") == 3
    assert "gfx906" in capsys.readouterr().out
    assert not (tmp_path / "x.hsaco").exists()
