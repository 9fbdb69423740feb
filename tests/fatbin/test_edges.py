"""Host files of every kind, made by nvcc and the linkers; what is read is what cuobjdump reads in them.

Where cuobjdump sees nothing (no section headers, images in data), it is asked about the file that the case was made
from.
"""

from __future__ import annotations

import gc
import resource
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from fatbin_inputs import PTX, find, need, run

from neutrino.errors import FormatError
from neutrino.fatbin import (
    Compression,
    Container,
    Image,
    ImageKind,
    build_container,
    build_entry,
    kernel_names,
    read_file,
    write_container,
)
from neutrino.sass.cubin import read_cubin

SOURCES = {
    "one": """
template <typename T> __global__ void everywhere(T *x) { x[threadIdx.x] += 1; }
static __global__ void hidden(int *x) { x[0] = 1; }
int one(int *x) { everywhere<<<1, 1>>>(x); hidden<<<1, 1>>>(x); return 0; }
""",
    "two": """
template <typename T> __global__ void everywhere(T *x) { x[threadIdx.x] += 1; }
int two(int *x) { everywhere<<<1, 1>>>(x); return 0; }
""",
    "unit": """
__device__ int twice(int x);
__global__ void outer(int *x) { x[0] = twice(x[1]); }
int three(int *x) { outer<<<1, 1>>>(x); return 0; }
""",
    "callee": """
__device__ int twice(int x) { return 2 * x; }
__global__ void inner(int *x) { x[0] = twice(x[1]); }
int four(int *x) { inner<<<1, 1>>>(x); return 0; }
""",
    "none": "int nothing() { return 0; }",
}
PLAIN = ("one.o", "two.o", "linked.o")
LINKS: dict[str, tuple[str, ...]] = {
    "shared": ("-shared", *PLAIN),
    "shared-lld": ("-shared", "-B.", "-fuse-ld=lld", *PLAIN),
    "shared-lld-relr": ("-shared", "-B.", "-fuse-ld=lld", "-Wl,--pack-dyn-relocs=relr", *PLAIN),
    "shared-gold": ("-shared", "-fuse-ld=gold", *PLAIN),
    "shared-relr": ("-shared", "-Wl,-z,pack-relative-relocs", *PLAIN),
    "shared-stripped": ("-shared", "-s", *PLAIN),
    "shared-one-segment": ("-shared", "-Wl,-z,noseparate-code", *PLAIN),
    "shared-behind-bss": ("-shared", "-Wl,-T,behind.ld", *PLAIN),
    "shared-other-section": ("-shared", "renamed.o", "two.o"),
    "pie": ("-pie", "main.o", *PLAIN),
    "pie-lld": ("-pie", "-B.", "-fuse-ld=lld", "main.o", *PLAIN),
    "executable": ("-no-pie", "main.o", *PLAIN),
    "static": ("-static", "main.o", *PLAIN),
    "static-pie": ("-static-pie", "main.o", *PLAIN),
    "relocatable": ("-r", "-nostdlib", "one.o", "two.o"),
    "device-linked": ("-shared", "unit.o", "callee.o", "relinked.o"),
    "device-linked-lld": ("-shared", "-B.", "-fuse-ld=lld", "unit.o", "callee.o", "relinked.o"),
}
# cuobjdump looks for sections by name.
SAME_AS = {"shared-other-section": ("one.o", "two.o")}
WRAPPERS = {"shared-other-section": [(1,), (1,)], "relocatable": [(1,), (1,)]}
DEVICE_LINKED = [(1,), (1,), (2,)]


@pytest.fixture(scope="module")
def built(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the objects, and what is linked of them."""
    folder = tmp_path_factory.mktemp("edges")
    arch = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
    running = []
    for name, source in SOURCES.items():
        (folder / f"{name}.cu").write_text(source)
        relocatable = ["-rdc=true"] if name in ("unit", "callee") else []
        argv = [nvcc, arch, *relocatable, "-Xcompiler=-fPIC", "-c", f"{name}.cu", "-o", f"{name}.o"]
        running.append(subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        if len(running) % 2 == 0:
            running[-2].wait()
    for process in running:
        output, _ = process.communicate()
        assert process.returncode == 0, output.decode()
    run(nvcc, arch, "-dlink", "-Xcompiler=-fPIC", "one.o", "two.o", "-o", "linked.o", cwd=folder)
    run(nvcc, "-arch=sm_80", "-dlink", "-Xcompiler=-fPIC", "unit.o", "callee.o", "-o", "relinked.o", cwd=folder)
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    run(need("gcc"), "-c", "main.c", "-o", "main.o", cwd=folder)
    run(need("objcopy"), "--rename-section", ".nv_fatbin=weights", "one.o", "renamed.o", cwd=folder)
    (folder / "behind.ld").write_text("SECTIONS { .nv_fatbin : { *(.nv_fatbin) } } INSERT AFTER .bss;\n")
    for lld in ("ld.lld", "ld.lld-19"):
        if path := shutil.which(lld):
            (folder / "ld.lld").symlink_to(path)
            break
    return folder


def linked(folder: Path, link: str) -> Path:
    """The file of that kind, linked at first use."""
    target = folder / link
    if not target.exists():
        # The runtime's functions are not there; nothing of this is run.
        argv = ["g++", *LINKS[link], "-Wl,--unresolved-symbols=ignore-all", "-o", str(target)]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this machine's compiler cannot link with {' '.join(LINKS[link])}: {done.stderr[-200:]}")
    return target


def extracted(cuobjdump: str, file: Path, folder: Path) -> Counter[bytes]:
    """All that cuobjdump extracts of a file: machine code and PTX."""
    folder.mkdir(parents=True)
    for option in ("-xelf", "-xptx"):
        run(cuobjdump, "-all", option, "all", file.resolve(), cwd=folder)
    return Counter(path.read_bytes() for path in folder.iterdir())


def images(containers: Iterable[Container]) -> list[Image]:
    return [image for container in containers for image in container.images]


def check(containers: tuple[Container, ...], theirs: Counter[bytes], file: Path) -> None:
    """The same images as cuobjdump's, in containers that are written back as they stand in the file."""
    data = file.read_bytes()
    assert Counter(image.data for image in images(containers)) == theirs
    assert theirs
    assert [container.index for container in containers] == list(range(len(containers)))
    for container in containers:
        assert write_container(container) == data[container.offset : container.offset + container.size]
        for image in container.images:
            assert data[image.offset :].startswith(image.header + bytes(image.payload))


@pytest.mark.parametrize("link", LINKS)
def test_linked_files(link, built, cuobjdump, tmp_path):
    file = linked(built, link)
    theirs: Counter[bytes] = Counter()
    for number, judged in enumerate(SAME_AS.get(link, (link,))):
        theirs += extracted(cuobjdump, built / judged, tmp_path / str(number))
    containers = read_file(file)
    check(containers, theirs, file)
    expected = DEVICE_LINKED if link.startswith("device-linked") else WRAPPERS.get(link, [(1,), (1,), (2,)])
    assert sorted(container.wrappers for container in containers) == expected
    sections = {container.section for container in containers}
    if link.startswith("device-linked"):
        assert sections == {".nv_fatbin", "__nv_relfatbin"}
    else:
        assert sections == ({"weights", ".nv_fatbin"} if link in SAME_AS else {".nv_fatbin"})


@pytest.mark.parametrize("link", [link for link in LINKS if link != "relocatable"])
def test_linked_files_without_section_headers(link, built, tmp_path):
    file = linked(built, link)
    data = bytearray(file.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    bare = tmp_path / "bare"
    bare.write_bytes(data)
    containers = read_file(bare)
    with_headers = read_file(file)
    assert [(one.offset, one.size, one.wrappers) for one in containers] == [
        (one.offset, one.size, one.wrappers) for one in with_headers
    ]
    assert list(map(write_container, containers)) == list(map(write_container, with_headers))
    assert {container.section for container in containers} == {""}


def test_one_kernel_in_two_containers(built):
    containers = read_file(linked(built, "shared"))
    homes = [
        container.index
        for container in containers
        if any("everywhere" in name for image in container.images for name in kernel_names(image))
    ]
    assert homes == [0, 1]


def test_a_unit_without_kernels(built, cuobjdump, tmp_path):
    """Also such a unit has PTX and a cubin, and nothing is in either."""
    containers = read_file(built / "none.o")
    check(containers, extracted(cuobjdump, built / "none.o", tmp_path / "theirs"), built / "none.o")
    assert [(image.kind, kernel_names(image)) for image in images(containers)] == [
        (ImageKind.CUBIN, ()),
        (ImageKind.PTX, ()),
    ]


def test_device_linked_code_is_linked(built):
    units, linked_code = [], []
    for container in read_file(linked(built, "device-linked")):
        (units if container.section == "__nv_relfatbin" else linked_code).append(container)
    (image,) = images(linked_code)
    assert len(units) == 2
    assert {image.options.strip() for image in images(units) if image.kind is ImageKind.PTX} == {"--compile-only"}
    assert set(read_cubin(image.data, "linked").kernels) == {"_Z5outerPi", "_Z5innerPi"}


LONG_NAME = "a_member_with_quite_a_long_name.o"
ARCHIVES: dict[str, tuple[str, list[str], list[str]]] = {
    "same-names": ("qc", ["d1/same.o", "d2/same.o"], ["same.o", "same.o"]),
    "long-names": ("rc", [LONG_NAME, "two.o"], [LONG_NAME, "two.o"]),
    "no-index": ("rcS", ["one.o", "two.o"], ["one.o", "two.o"]),
    "odd-sizes": ("rcS", ["odd.txt", "one.o", "odd.txt", "two.o"], ["one.o", "two.o"]),
    "thin": ("rcT", ["one.o", "d2/same.o"], ["one.o", "d2/same.o"]),
    "thin-nested": ("qcT", ["same-names.a"], ["same-names.a(same.o)", "same-names.a(same.o)"]),
}  # fmt: skip


def archived(folder: Path, name: str, ar: str) -> Path:
    target = folder / f"{name}.a"
    if not target.exists():
        for source, copy in (("one.o", "d1/same.o"), ("two.o", "d2/same.o"), ("one.o", LONG_NAME)):
            (folder / copy).parent.mkdir(exist_ok=True)
            shutil.copy(folder / source, folder / copy)
        (folder / "odd.txt").write_text("no object\n.")
        run(need(ar), ARCHIVES[name][0], target.name, *ARCHIVES[name][1], cwd=folder)
    return target


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(name, built, cuobjdump, tmp_path):
    if name == "thin-nested":
        archived(built, "same-names", "ar")
    file = archived(built, name, "ar")
    containers = read_file(file)
    assert [container.member for container in containers] == ARCHIVES[name][2]
    theirs = sum((extracted(cuobjdump, built / one, tmp_path / one) for one in ("one.o", "two.o")), Counter())
    if name.startswith("thin"):
        assert Counter(image.data for image in images(containers)) == theirs
    else:
        check(containers, theirs, file)
        if name != "odd-sizes":
            # It refuses archives with a member that is no object.
            assert theirs == extracted(cuobjdump, file, tmp_path / "whole")
    for container in containers:
        assert container.wrappers == (1,)
        for image in container.images:
            inside, _, _ = container.member.partition("(")
            assert image.file == (str(built / inside) if name == "thin" else image.file)
            assert Path(image.file.partition("(")[0]).is_file()


def test_thin_archive_of_llvm(built):
    """llvm-ar names the inner archive once, GNU ar each of its members."""
    archived(built, "same-names", "ar")
    tool = find("llvm-ar") or need("llvm-ar-19")
    (built / "llvm.a").unlink(missing_ok=True)
    run(tool, "qcT", "llvm.a", "same-names.a", cwd=built)
    containers = read_file(built / "llvm.a")
    assert [container.member for container in containers] == ["same-names.a(same.o)"] * 2


def test_archives_in_archives(built, tmp_path):
    """Some levels are read, any number is not."""
    shutil.copy(built / "one.o", tmp_path / "0.o")
    for level in range(10):
        run(need("ar"), "rcS", f"{level + 1}.o", f"{level}.o", cwd=tmp_path)
    (container,) = read_file(tmp_path / "3.o")
    assert container.member == "2.o(1.o(0.o))"
    with pytest.raises(FormatError) as deep:
        read_file(tmp_path / "10.o")
    assert deep.value.field == "archive"


def test_thin_archives_without_their_files(built, tmp_path):
    shutil.copy(built / "one.o", tmp_path / "one.o")
    run(need("ar"), "rcT", "thin.a", "one.o", cwd=tmp_path)
    (tmp_path / "one.o").unlink()
    with pytest.raises(FileNotFoundError) as missing:
        read_file(tmp_path / "thin.a")
    assert missing.value.filename is not None
    assert Path(missing.value.filename) == tmp_path / "one.o"
    shutil.copy(tmp_path / "thin.a", tmp_path / "one.o")
    with pytest.raises(FormatError) as endless:
        read_file(tmp_path / "thin.a")
    assert endless.value.field == "member"


def test_a_thin_archive_of_more_files_than_may_be_open(built, tmp_path):
    names = [f"{number}.o" for number in range(100)]
    for name in names:
        shutil.copy(built / "one.o", tmp_path / name)
    run(need("ar"), "rcT", "thin.a", *names, cwd=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, limits[1]))
    try:
        containers = read_file(tmp_path / "thin.a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [container.member for container in containers] == names
    expected = [image.data for image in images(read_file(built / "one.o"))]
    assert [image.data for image in images(containers)] == expected * len(names)
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(f"{tmp_path}/") == len(names)
    del containers
    gc.collect()
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("how", ["with-headers", "stripped", "without-headers"])
def test_images_in_data(how, built, cubins, tmp_path):
    """Put there by bin2c, .incbin and as strings, among what only looks like images."""
    fatbin = write_container(read_file(built / "one.o")[0])
    cubin = cubins["sm_90"]
    text = b"//\n// Generated\n//\n" + PTX.format(arch="sm_80").encode()
    (tmp_path / "k.fatbin").write_bytes(fatbin)
    (tmp_path / "k.cubin").write_bytes(cubin)
    (tmp_path / "k.ptx").write_bytes(text)
    # A payload with containers' magics in it is one container, and what ends elsewhere than its entries is none.
    nested = build_container([build_entry(ImageKind.CUBIN, fatbin + b"\x7fELF" + fatbin, "sm_80")])
    (tmp_path / "nested").write_bytes(nested)
    cut = bytearray(build_container([build_entry(ImageKind.PTX, text, "sm_80", compression=Compression.LZ4)]))
    struct.pack_into("<Q", cut, 8, len(cut))
    (tmp_path / "cut").write_bytes(cut)
    (tmp_path / "usage").write_bytes(b"usage: put\n.version 8.0\n.target sm_80\n.entry k() {}")
    (tmp_path / "format").write_bytes(b".version %d.%d\n.target sm_%d\n.entry k() {}")
    (tmp_path / "array.c").write_text(run(need("bin2c"), "--const", "--name", "array", tmp_path / "k.fatbin"))
    lines = ['.section .rodata,"a"', ".balign 8"]
    for name in ("cut", "usage", "k.ptx", "nested", "format", "k.cubin"):
        lines += [f'.incbin "{tmp_path / name}"', ".byte 0"]
    lines += [f'.incbin "{built / "main.o"}"', '.section .note.GNU-stack,"",@progbits']
    (tmp_path / "data.s").write_text("\n".join(lines) + "\n")
    file = tmp_path / "program"
    strip = ["-s"] if how == "stripped" else []
    run(need("gcc"), *strip, tmp_path / "array.c", tmp_path / "data.s", built / "main.o", "-o", file)
    data = bytearray(file.read_bytes())
    if how == "without-headers":
        struct.pack_into("<Q", data, 0x28, 0)
        struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
        file.write_bytes(data)
    containers = read_file(file)
    found = {write_container(container) for container in containers}
    assert found == {fatbin, nested, text, cubin}
    assert len(containers) == 4
    for container in containers:
        assert data[container.offset : container.offset + container.size] == write_container(container)
        assert container.wrappers == ()
        assert container.section == ("" if how == "without-headers" else ".rodata")
        kinds = [image.kind for image in container.images]
        assert container.kind == ("cuda-fatbin" if container.header else "file")
        assert container.header or kinds in ([ImageKind.PTX], [ImageKind.CUBIN])


@pytest.mark.parametrize("sections", [True, False])
def test_a_container_of_three_gigabytes(sections, tmp_path):
    """Read without reading it: in no time and no memory, found by its section or by its wrapper."""
    payload = 3 << 30
    entry = build_entry(ImageKind.CUBIN, bytes(8), "sm_90")
    header = bytearray(entry[:-8])
    struct.pack_into("<Q", header, 8, payload)
    last = build_container([build_entry(ImageKind.PTX, PTX.format(arch="sm_90").encode(), "sm_90")])
    names = b"\0.nv_fatbin\0.shstrtab\0"
    size = 16 + len(header) + payload + len(last)
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x1000, 0)
    table = 0x1000 + size + len(wrapper)
    with (tmp_path / "huge.o").open("wb") as file:
        tables = (0, table, 0, 64, 0, 0, 64, 3, 2) if sections else (64, 0, 0, 64, 56, 1, 0, 0, 0)
        file.write(struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1 if sections else 3, 62, 1, 0, *tables))
        file.write(struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, table, table, 0x1000))
        file.seek(0x1000)
        file.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(header) + payload) + header)
        file.seek(payload, 1)
        file.write(last + wrapper)
        section = struct.Struct("<IIQQQQIIQQ")
        file.write(bytes(64) + section.pack(1, 1, 2, 0, 0x1000, size, 0, 0, 8, 0))
        file.write(section.pack(12, 3, 0, 0, table + 192, len(names), 0, 0, 1, 0) + names)
    program = """
import resource, sys
from neutrino.fatbin import read_file
def taken():
    # Bytes read, and those of pages of memory, which maps of files have, too.
    bytes_read = open("/proc/self/io").read().partition("rchar: ")[2].split()[0]
    faults = resource.getrusage(resource.RUSAGE_SELF)
    return int(bytes_read) + (faults.ru_minflt + faults.ru_majflt) * resource.getpagesize()
read_file(sys.argv[1])
before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, taken()
(huge, last) = read_file(sys.argv[1])
assert huge.images[0].stored_size == 3 << 30, huge
assert huge.wrappers == (() if sys.argv[2] == "True" else (1,)), huge
assert last.images[0].data.startswith(b".version"), last
read = taken() - read
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert read < 1 << 24, read
assert grown < 1 << 14, grown
"""
    run(sys.executable, "-c", program, tmp_path / "huge.o", str(sections))


def test_what_cuobjdump_reads_of_odd_containers(cuobjdump, tmp_path):
    """Zeros between containers, an entry of a kind that nobody knows, a longer header, another line end."""
    text = PTX.format(arch="sm_80").replace("\n", "\r\n").encode() + b"// caf\xc3\xa9\r\n"
    plain = build_entry(ImageKind.PTX, text, "sm_80", options="")
    longer = bytearray(build_entry(ImageKind.PTX, text + b"// 2", "sm_80", compression=Compression.LZ4, options=""))
    longer[0x40:0x40] = bytes(8)
    struct.pack_into("<I", longer, 4, 0x58)
    struct.pack_into("<I", longer, 0x14, 0x48)
    struct.pack_into("<I", longer, 0x48, 0x50)
    unknown = bytearray(build_entry(ImageKind.CUBIN, b"a future kind", "sm_80"))
    struct.pack_into("<H", unknown, 0, 0x77)
    data = build_container([bytes(unknown), plain]) + bytes(4096) + build_container([bytes(longer)])
    file = tmp_path / "odd.fatbin"
    file.write_bytes(data)
    containers = read_file(file)
    assert [image.kind for image in images(containers)] == [ImageKind.UNKNOWN, ImageKind.PTX, ImageKind.PTX]
    assert images(containers)[0].data.startswith(b"a future kind")
    assert Counter(image.data for image in images(containers)[1:]) == extracted(cuobjdump, file, tmp_path / "theirs")
    first, second = map(write_container, containers)
    assert first + bytes(4096) + second == data
