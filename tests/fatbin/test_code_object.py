"""Code objects of clang, judged by llvm-readelf, and damaged ones."""

from __future__ import annotations

import re
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
from amd_inputs import DEVICE_ONLY, FLAGS, SOURCE, compile_hip, need_clang, need_llvm
from fatbin_inputs import run
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError
from neutrino.fatbin import ImageKind, kernel_names, read_code_object, read_file
from neutrino.fatbin.code_object import code_object_target

BUILDS: dict[str, tuple[str, ...]] = {
    "v4": ("--offload-arch=gfx90a", "-mcode-object-version=4"),
    "v5": ("--offload-arch=gfx90a", "-mcode-object-version=5"),
    "v6": ("--offload-arch=gfx90a", "-mcode-object-version=6"),
    "generic": ("--offload-arch=gfx9-generic", "-mcode-object-version=6"),
    "features": ("--offload-arch=gfx942:sramecc+:xnack-",),
    "xnack": ("--offload-arch=gfx906:xnack+",),
    "wave32": ("--offload-arch=gfx1100",),
    "wave64": ("--offload-arch=gfx1030", "-mwavefrontsize64"),
    "preload": ("--offload-arch=gfx942", "-mllvm", "-amdgpu-kernarg-preload-count=6"),
    "unoptimised": ("--offload-arch=gfx90a", "-O0", "-g"),
}
VERSIONS = {"v4": 4, "v6": 6, "generic": 6}
KERNELS = ("_Z3addPfic", "_Z7scratchIdEvPT_i")
_FIGURES = {
    "vgpr_count": "vgprs",
    "sgpr_count": "sgprs",
    "agpr_count": "agprs",
    "vgpr_spill_count": "vgpr_spills",
    "sgpr_spill_count": "sgpr_spills",
    "group_segment_fixed_size": "group_segment",
    "private_segment_fixed_size": "private_segment",
    "kernarg_segment_size": "kernarg_segment",
    "wavefront_size": "wavefront_size",
    "max_flat_workgroup_size": "max_workgroup_size",
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("code-objects")
    clang = need_clang(folder)
    (folder / "kernels.hip").write_text(SOURCE)
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda name: compile_hip(clang, folder, f"{name}.hsaco", *DEVICE_ONLY, *BUILDS[name]), BUILDS)
        return dict(zip(BUILDS, made, strict=True))


def shown_by_readelf(path: Path) -> tuple[str, list[dict[str, str]]]:
    """The target and the kernels' own fields of the metadata that llvm-readelf prints."""
    text = run(need_llvm("llvm-readelf"), "--notes", path)
    target = re.search(r"^amdhsa\.target: +'?amdgcn-amd-amdhsa--([^\s']+)", text, re.MULTILINE)
    assert target
    rows = []
    for block in re.split(r"^  - ", text.partition("amdhsa.kernels:")[2], flags=re.MULTILINE)[1:]:
        rows.append(dict(re.findall(r"^(?:    )?\.(\w+): +'?([^\s']+)'?$", block, re.MULTILINE)))
    return target[1], [row for row in rows if "symbol" in row]


@pytest.mark.parametrize("build", BUILDS)
def test_figures_of_llvm_readelf(build, objects):
    target, rows = shown_by_readelf(objects[build])
    found = read_code_object(objects[build].read_bytes(), build)
    assert found.target == target
    assert found.version == VERSIONS.get(build, 5)
    assert tuple(found.kernels) == KERNELS == tuple(row["name"] for row in rows)
    for kernel, row in zip(found.kernels.values(), rows, strict=True):
        assert kernel.symbol == row["symbol"]
        shown = {ours: int(row[theirs]) for theirs, ours in _FIGURES.items() if theirs in row}
        assert {ours: getattr(kernel, ours) for ours in shown} == shown
        assert len(shown) >= len(_FIGURES) - 1
        assert (kernel.agprs is None) == ("agpr_count" not in row)
        assert kernel.conflicts == ()
    assert found.kernels[KERNELS[0]].group_segment == 96 * 4
    assert found.kernels[KERNELS[1]].private_segment >= 40 * 8
    assert found.kernels[KERNELS[1]].max_workgroup_size == 256
    assert found.kernels[KERNELS[0]].wavefront_size == (32 if build == "wave32" else 64)


@pytest.mark.parametrize("build", BUILDS)
def test_a_file_that_is_a_code_object(build, objects):
    (container,) = read_file(objects[build])
    (image,) = container.images
    assert (container.kind, image.kind) == ("file", ImageKind.CODE_OBJECT)
    assert image.arch == shown_by_readelf(objects[build])[0]
    assert kernel_names(image) == KERNELS


def test_a_stripped_code_object(objects, tmp_path):
    """Descriptors are found by the dynamic symbols, and without section headers the metadata by the segments."""
    stripped = tmp_path / "stripped.hsaco"
    run(need_llvm("llvm-strip"), objects["v5"], "-o", stripped)
    whole = read_code_object(objects["v5"].read_bytes(), "whole")
    assert stripped.stat().st_size < objects["v5"].stat().st_size
    assert read_code_object(stripped.read_bytes(), "stripped") == whole
    data = bytearray(stripped.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    bare = read_code_object(data, "bare")
    assert tuple(bare.kernels) == KERNELS
    assert bare.kernels[KERNELS[0]].conflicts == (f"no descriptor {KERNELS[0]}.kd",)


def test_an_object_that_was_not_linked(tmp_path):
    clang = need_clang(tmp_path)
    arguments = ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx90a", "-nogpulib", "-O1")
    (tmp_path / "k.cl").write_text("kernel void one(global float *p) { p[get_local_id(0)] = 1; }\n")
    run(clang, *arguments, "-Dget_local_id(n)=__builtin_amdgcn_workitem_id_x()", "-c", tmp_path / "k.cl", "-o", "k.o",
        cwd=tmp_path)  # fmt: skip
    found = read_code_object((tmp_path / "k.o").read_bytes(), "k.o")
    assert (found.target, tuple(found.kernels), found.kernels["one"].conflicts) == ("gfx90a", ("one",), ())


def test_what_the_descriptor_says_otherwise(objects):
    data = bytearray(objects["v5"].read_bytes())
    descriptor = struct.pack("<II", 96 * 4, 0)
    place = data.index(descriptor, 0x700)
    struct.pack_into("<I", data, place, 100)
    kernel = read_code_object(data, "changed").kernels[KERNELS[0]]
    assert kernel.conflicts == ("group_segment_fixed_size is 100 in the descriptor, 384 in the metadata",)


def test_every_processor_of_llvm(tmp_path):
    """Each assembled to an empty object; features that are not named may be on or off."""
    assembler = need_llvm("llvm-mc")
    helped = run("sh", "-c", f"{assembler} -triple amdgcn-amd-amdhsa -mcpu=help </dev/null 2>&1")
    processors = re.findall(r"^  (gfx\d+[a-z]?|gfx[\d-]+generic) +- Select", helped, re.MULTILINE)
    assert len(processors) > 40
    (tmp_path / "empty.s").write_text("\n")

    def assemble(processor: str) -> bytes:
        argv = ("-triple", "amdgcn-amd-amdhsa", f"-mcpu={processor}", "-filetype=obj", tmp_path / "empty.s")
        target = tmp_path / f"{processor}.o"
        run(assembler, *argv, "-o", target)
        return target.read_bytes()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(assemble, processors))
    for processor, data in zip(processors, made, strict=True):
        assert code_object_target(data, processor) == processor
        found = read_code_object(data, processor)
        assert (found.kernels, found.version) == ({}, 5)


@pytest.mark.parametrize(
    ("version", "flags", "target"),
    [
        (1, 0x12F, "gfx906:xnack+"),
        (1, 0x32F, "gfx906:sramecc+:xnack+"),
        (1, 0x2F, "gfx906"),
        (2, 0x54C, "gfx942"),
        (2, 0xE4C, "gfx942:sramecc+:xnack-"),
        (3, 0xB3F, "gfx90a:sramecc-:xnack+"),
        (4, 0x1000151, "gfx9-generic"),
        # A processor that is not known is named by the metadata.
        (4, 0xFE, "gfx90a"),
    ],
)
def test_targets_by_flags(version, flags, target, objects):
    """V3, which clang no longer writes, has a bit for each feature; LLVM's ELF.h has the values."""
    data = bytearray(objects["v5"].read_bytes())
    data[8] = version
    struct.pack_into("<I", data, 0x30, flags)
    assert code_object_target(data, "flags") == target


def with_metadata(data: bytes, metadata: bytes) -> bytes:
    """The code object with another metadata note, after everything else."""
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata + bytes(-len(metadata) % 4)
    changed = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, 0x20)
    for row in range(table, table + 56 * data[0x38], 56):
        if struct.unpack_from("<I", data, row)[0] == 4:
            struct.pack_into("<Q", changed, row + 8, len(data))
            struct.pack_into("<Q", changed, row + 32, len(note))
    return bytes(changed) + note


KERNEL = {
    ".name": "k", ".symbol": "k.kd", ".vgpr_count": 1, ".sgpr_count": 2, ".group_segment_fixed_size": 3,
    ".private_segment_fixed_size": 4, ".kernarg_segment_size": 5, ".wavefront_size": 64,
    ".max_flat_workgroup_size": 1024,
}  # fmt: skip


def with_kernel(changed: dict[str, object]) -> bytes:
    packed: bytes = msgpack.packb({"amdhsa.kernels": [KERNEL | changed]})
    return packed


DAMAGED = {
    "not msgpack": (b"\xc1", "metadata note"),
    "nothing": (b"", "metadata note"),
    "more than one object": (msgpack.packb({}) * 2, "metadata note"),
    "a list": (msgpack.packb([1]), "metadata note"),
    "keys that are numbers": (msgpack.packb({1: 2}), "metadata note"),
    "keys that are lists": (b"\x81\x90\x01", "metadata note"),
    "no text": (b"\x81\xa1\xff\x01", "metadata note"),
    "a string longer than the note": (b"\x81\xdb\xff\xff\xff\xff", "metadata note"),
    "an array longer than the note": (b"\xdd\xff\xff\xff\xff", "metadata note"),
    "nested too deeply": (b"\x91" * 100_000 + b"\x90", "metadata note"),
    "kernels that are none": (msgpack.packb({"amdhsa.kernels": 5}), "metadata amdhsa.kernels"),
    "a kernel that is none": (msgpack.packb({"amdhsa.kernels": [[]]}), "metadata amdhsa.kernels"),
    "a negative count": (with_kernel({".vgpr_count": -1}), "metadata .vgpr_count"),
    "a count that is text": (with_kernel({".agpr_count": "1"}), "metadata .agpr_count"),
    "a count that is true": (with_kernel({".agpr_count": True}), "metadata .agpr_count"),
    "a name that is a number": (with_kernel({".name": 1}), "metadata .name"),
} | {
    f"without {key}": (
        msgpack.packb({"amdhsa.kernels": [{other: value for other, value in KERNEL.items() if other != key}]}),
        "metadata " + key,
    )
    for key in KERNEL
}


@pytest.mark.parametrize("case", DAMAGED)
def test_metadata_that_cannot_be(case, objects):
    metadata, field = DAMAGED[case]
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        read_code_object(with_metadata(objects["v5"].read_bytes(), metadata), "damaged")
    assert (caught.value.field, caught.value.file) == (field, "damaged")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_the_metadata_of_the_cases_are_otherwise_sound(objects):
    data = with_metadata(objects["v5"].read_bytes(), with_kernel({}))
    assert read_code_object(data, "sound").kernels["k"].conflicts == ("no descriptor k.kd",)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_damage_raises_nothing_but_format_errors(objects, data):
    content = bytearray(objects[data.draw(st.sampled_from(["v5", "wave32"]))].read_bytes())
    (sections,) = struct.unpack_from("<Q", content, 0x28)
    tables = [*range(8, 0x40, 2), *range(0x40, 0x900, 4), *range(sections, len(content) - 8, 4)]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(tables) | st.integers(0, len(content) - 8))
        layout = data.draw(st.sampled_from(["<B", "<H", "<I", "<Q"]))
        top = 1 << 8 * struct.calcsize(layout)
        value = data.draw(st.sampled_from([0, 1, len(content) % top, top - 1, top >> 1]) | st.integers(0, top - 1))
        struct.pack_into(layout, content, place, value)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    try:
        read_code_object(content, "damaged")
    except FormatError as error:
        if error.file != "damaged":
            raise AssertionError(error.file) from error


@pytest.mark.parametrize("arch", ["gfx90a:xnack+", "gfx1100"])
def test_assembly_says_what_it_is_for(tmp_path: Path, arch: str) -> None:
    source, text = tmp_path / "kernels.hip", tmp_path / "kernels.s"
    source.write_text(SOURCE)
    # Without a linker of LLVM's, which code objects need.
    run(need_llvm("clang"), *FLAGS, "-DNAME=add", *DEVICE_ONLY, f"--offload-arch={arch}", "-S", source, "-o", text)
    (container,) = read_file(text)
    (image,) = container.images
    assert (image.kind, image.arch, image.data) == (ImageKind.TEXT, arch, text.read_bytes())


@pytest.mark.parametrize(
    "text", ["add:\n.amdgcn_target \"amdgcn--gfx90a\"", ".amdgcn_target", "; .amdgcn_target \"a--gfx90a\"", "\n" * 9999]
)
def test_text_that_names_no_target_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "k.s").write_text(text)
    with pytest.raises(FormatError, match="expected a fatbin container, a cubin, or PTX text"):
        read_file(tmp_path / "k.s")
