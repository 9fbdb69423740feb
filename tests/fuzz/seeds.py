"""Small valid files of every format, made here byte by byte: what fuzzing and property tests start from.

They are a hundredth of what compilers write, so that a change hits a header more often than a payload.
"""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack
import zstandard

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.device.kind import DeviceKind
from neutrino.errors import Span
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry
from neutrino.maps.declaration import Map
from neutrino.maps.registry import ARRAY, SUM
from neutrino.patched_files.attach import attach
from neutrino.patched_files.section import TwinsRow, write_section
from neutrino.twins.cache_entry import KernelEntry, write_entry

PTX = b"""\
//
.version 8.0
.target sm_90a
.address_size 64
/* a comment */ .visible .entry first(.param .u64 data, .param .align 8 .b8 pair[24])
.maxntid 128, 2, 1
{
\t.reg .b32 %r<3>;
\tret; // .entry none
}
.weak .entry second()
{
\tret;
}
.global .align 1 .b8 text[8] = "a\\"b";
"""
LIMIT = 16 << 10
"""Bytes of the largest input."""

_EM_X86_64, _EM_CUDA, _EM_AMDGPU = 62, 190, 224
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_ADDRESS = 0x10000
"""What every loaded byte's address is above its file offset."""


@dataclass(frozen=True)
class Part:
    """A section. type, flags, info, link: ``sh_type`` … ; data: its contents; size: of SHT_NOBITS."""

    name: str
    data: bytes = b""
    type: int = 1
    flags: int = 2
    info: int = 0
    link: int = 0
    size: int | None = None
    align: int = 8


def elf(
    machine: int,
    parts: Sequence[Part],
    *,
    kind: int = 3,
    flags: int = 0,
    os_abi: int = 0,
    abi_version: int = 0,
    version: int = 1,
    segments: Sequence[tuple[int, int, str]] = (),
    headers: bool = True,
) -> bytes:
    """Build an ELF64 file. kind: ``e_type``. segments: (``p_type``, ``p_flags``, section, empty for the whole file).

    headers: whether sections are named.
    """
    names = b"\0"
    rows = [(0,) * 10]
    body = bytearray(64 + 56 * len(segments))
    places = {}
    for part in (*parts, Part(".shstrtab", type=3, flags=0)):
        name = len(names)
        names += part.name.encode() + b"\0"
        contents = names if part.name == ".shstrtab" else part.data
        body += bytes(-len(body) % part.align)
        places[part.name] = (len(body), len(contents))
        size = len(contents) if part.size is None else part.size
        address = _ADDRESS + len(body) if part.flags & 2 else 0
        rows.append((name, part.type, part.flags, address, len(body), size, part.link, part.info, part.align, 0))
        body += contents
    body += bytes(-len(body) % 8)
    table = len(body)
    for index, (segment, access, name_) in enumerate(segments):
        begin, size = places[name_] if name_ else (0, table)
        struct.pack_into("<IIQQQQQQ", body, 64 + 56 * index, segment, access, begin, _ADDRESS + begin, _ADDRESS + begin,
                         size, size, 8)  # fmt: skip
    for row in rows if headers else ():
        body += struct.pack("<IIQQQQIIQQ", *row)
    ident = b"\x7fELF" + bytes((2, 1, 1, os_abi, abi_version)) + bytes(7)
    struct.pack_into(
        "<16sHHIQQQIHHHHHH", body, 0, ident, kind, machine, version, 0, 64 if segments else 0, table if headers else 0,
        flags, 64, 56, len(segments), 64, len(rows) if headers else 0, len(rows) - 1 if headers else 0,
    )  # fmt: skip
    return bytes(body)


def _symbols(*rows: tuple[str, int, int, int, int, int]) -> tuple[bytes, bytes]:
    """Build the sections ``.symtab`` and ``.strtab`` of symbols (name, st_info, st_other, st_shndx, st_value, st_size).
    """
    names = b"\0"
    table = bytes(24)
    for name, info, other, section, value, size in rows:
        table += struct.pack("<IBBHQQ", len(names), info, other, section, value, size)
        names += name.encode() + b"\0"
    return table, names


def _note(owner: bytes, kind: int, data: bytes) -> bytes:
    """Build an ELF note. owner: its name; kind: ``n_type``."""
    owner += b"\0"
    head = struct.pack("<III", len(owner), len(data), kind)
    return head + owner + bytes(-len(owner) % 4) + data + bytes(-len(data) % 4)


def _attribute(number: int, data: bytes, kind: int = 4) -> bytes:
    """Build an attribute of a cubin's ``.nv.info`` section. kind: 4 for one with a size before its data."""
    return bytes((kind, number)) + (struct.pack("<H", len(data)) if kind == 4 else b"") + data


def cubin(*, new: bool = True) -> bytes:
    """Build a cubin with a kernel and a device function, by the ABI of CUDA 13 or the older one."""
    symtab, strtab = _symbols(("first", 0x12, 0x10, 3, 0, 64), ("helper", 0x02, 0, 4, 0, 16))
    info = b"".join(_attribute(number, struct.pack("<II", 1, value))
                    for number, value in ((0x2F, 24), (0x11, 16), (0x12, 16), (0x23, 16)))  # fmt: skip
    own = b"".join((
        _attribute(0x37, struct.pack("<I", 130)), _attribute(0x0A, struct.pack("<IHH", 9, 0x210, 32)),
        _attribute(0x19, struct.pack("<H", 32), 3), _attribute(0x17, struct.pack("<IHHI", 0, 1, 8, 24 << 18)),
        _attribute(0x45, struct.pack("<IHHI", 0, 0, 0, 8)), _attribute(0x05, struct.pack("<III", 128, 2, 1)),
        _attribute(0x10, struct.pack("<III", 64, 1, 1)), _attribute(0x4C, b"\x03\0", 2), _attribute(0x01, b"\0\0", 1),
    ))  # fmt: skip
    parts = [
        Part(".strtab", strtab, 3, 0),
        Part(".symtab", symtab, 2, 0, link=1),
        Part(".text.first", bytes(64), flags=6 | 3 << 20, info=24 << 24 | 1),
        Part(".text.helper", bytes(16), flags=6),
        Part(".nv.info", info, 0x70000000, 0, link=2),
        Part(".nv.info.first", own, 0x70000000, 0, link=2, info=3),
        Part(".nv.shared.first", type=8, flags=3, size=2048),
        Part(".nv.constant0.first", bytes(48)),
        Part(".note.nv.cuinfo", _note(b"NVIDIA Corp", 1000, struct.pack("<HHI", 2, 90, 130)), 7, 0),
        Part(".note.nv.tkinfo", _note(b"NVIDIA Corp", 2000, b"ptxas\0-arch sm_90a -m 64\0"), 7, 0),
        Part(".nv_debug_ptx_txt", PTX.replace(b"\n", b"\0") + b".section .debug_abbrev\0{\0}\0", flags=0),
    ]
    if new:
        parts.append(Part(".nv.compat", _attribute(9, b"\x01\0", 2) + _attribute(2, bytes(4)), 0x70000086, 0))
        return elf(_EM_CUDA, parts, kind=2, flags=0x6005A04, os_abi=0x41, abi_version=8)
    return elf(_EM_CUDA, parts, kind=2, flags=0x5A0D5A, os_abi=0x33, abi_version=7, version=0x81)


def code_object() -> bytes:
    """Build an AMD code object with one kernel: metadata, descriptor, code."""
    descriptor = struct.pack("<IIIIq", 512, 0, 32, 0, 256) + bytes(20) + struct.pack("<IIIHHI", 0, 0x41, 0x84, 8, 0, 0)
    metadata = msgpack.packb({
        "amdhsa.version": [1, 2], "amdhsa.target": "amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-",
        "amdhsa.kernels": [{
            ".name": "first", ".symbol": "first.kd", ".kernarg_segment_size": 32, ".kernarg_segment_align": 8,
            ".group_segment_fixed_size": 512, ".private_segment_fixed_size": 0, ".sgpr_count": 16, ".vgpr_count": 8,
            ".agpr_count": 0, ".wavefront_size": 64, ".max_flat_workgroup_size": 256,
            ".args": [{".offset": 0, ".size": 8, ".value_kind": "global_buffer", ".address_space": "global"}],
        }],
    })  # fmt: skip
    code = struct.pack("<I", 0xBF810000) * 16

    def build(entry: int, kernel: int) -> bytes:
        """The file, with these addresses of code and descriptor in its symbols."""
        symtab, strtab = _symbols(("first", 0x12, 3, 5, entry, 64), ("first.kd", 0x11, 3, 4, kernel, 64))
        parts = (
            Part(".note", _note(b"AMDGPU", 32, metadata), 7, 2, align=4),
            Part(".dynsym", symtab, 11, 2, link=3),
            Part(".dynstr", strtab, 3, 2),
            Part(".rodata", descriptor, align=64),
            Part(".text", code, flags=6, align=256),
        )
        segments = ((_PT_LOAD, 5, ""), (_PT_NOTE, 4, ".note"))
        return elf(_EM_AMDGPU, parts, flags=0xE4C, os_abi=64, abi_version=3, segments=segments)

    # The layout does not depend on the addresses in it, so the second build knows them.
    first = build(0, 0)
    return build(_ADDRESS + first.index(code), _ADDRESS + first.index(descriptor))


def entries() -> list[bytes]:
    """Build entries of a fatbin (NVIDIA's container), of every kind and compression.

    The header of nvcc 12.4 and an unknown kind are among them.
    """
    made = [
        build_entry(ImageKind.PTX, PTX, "sm_90a", options="-O1", compression=Compression.ZSTD, identifier="k.cu"),
        build_entry(ImageKind.PTX, PTX, "sm_80", options="", compression=Compression.LZ4),
        build_entry(ImageKind.PTX, PTX, "sm_75"),
        build_entry(ImageKind.CUBIN, cubin(new=False), "sm_90a", compression=Compression.LZ4),
        build_entry(ImageKind.CUBIN, cubin(), "sm_100f"),
        build_entry(ImageKind.NVVM, b"\xed\x43\x4e\x7f" + bytes(60), "sm_80"),
    ]
    obfuscated = bytearray(build_entry(ImageKind.NVVM, bytes(64), "sm_80", compression=Compression.ZSTD))
    obfuscated[0x2A] |= 1
    unknown = bytearray(build_entry(ImageKind.CUBIN, b"a future kind...", "sm_80"))
    unknown[0] = 0x77
    longer = bytearray(made[2])
    struct.pack_into("<I", longer, 4, 0x48)
    longer[0x40:0x40] = bytes(8)
    return [*made, bytes(obfuscated), bytes(unknown), bytes(longer)]


def containers() -> list[bytes]:
    """Build fatbins (NVIDIA's containers of GPU code): each entry alone, some together, with what may follow."""
    made = entries()
    return [
        *(build_container([entry]) for entry in made),
        build_container(made[1:4]),
        build_container([]),
        build_container([made[2]]) + bytes(8) + build_container([made[1], made[7]]),
    ]


def bundle(code_objects: Sequence[tuple[str, bytes]]) -> bytes:
    """Build an offload bundle of (id, code object), as clang lays it out but for the alignment, which is 64 here."""
    head = 32 + sum(24 + len(name) for name, _ in code_objects)
    rows, body = b"", b""
    for name, data in code_objects:
        body += bytes(-(head + len(body)) % 64)
        rows += struct.pack("<QQQ", head + len(body), len(data), len(name)) + name.encode()
        body += data
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(code_objects)) + rows + body


def compressed_bundle(data: bytes, version: int, method: int) -> bytes:
    """Build a compressed offload bundle, as clang writes it. version: 1 to 3; method: 0 zlib, 1 ZSTD."""
    stored = zstandard.ZstdCompressor().compress(data) if method else zlib.compress(data)
    head = b"CCOB" + struct.pack("<HH", version, method)
    total = {1: 20, 2: 24, 3: 32}[version] + len(stored)
    sizes = {1: struct.pack("<I", len(data)), 2: struct.pack("<II", total, len(data)),
             3: struct.pack("<QQ", total, len(data))}[version]  # fmt: skip
    return head + sizes + bytes(8) + stored


def bundles() -> list[bytes]:
    """Build offload bundles, plain and compressed."""
    small = bundle([("host-x86_64-unknown-linux--", b""),
                    ("hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-", code_object())])  # fmt: skip
    two = bundle([("host-x86_64-unknown-linux--", b""), ("hip-amdgcn-amd-amdhsa--gfx90a", b"BC\xc0\xde" + bytes(12)),
                  ("openmp-amdgcn-amd-amdhsa--gfx9-generic", code_object())])  # fmt: skip
    return [small, two, *(compressed_bundle(small, version, method) for version in (1, 2, 3) for method in (0, 1)),
            small + bytes(-len(small) % 64) + compressed_bundle(two, 2, 1)]  # fmt: skip


def offload_binary(content: bytes, kind: int) -> bytes:
    """Build an offload binary of clang's new driver with one image. kind: its ``ImageKind``."""
    texts = b"\0arch\0sm_90\0triple\0nvptx64-nvidia-cuda\0"
    strings = struct.pack("<QQQQ", 105, 110, 116, 123)
    begin = 72 + len(strings) + len(texts)
    begin += -begin % 8
    size = begin + len(content) + -len(content) % 8
    head = struct.pack("<4sIQQQ", b"\x10\xff\x10\xad", 1, size, 32, 40)
    entry = struct.pack("<HHIQQQQ", kind, 2, 0, 72, 2, begin, len(content))
    return (head + entry + strings + texts).ljust(begin, b"\0") + content + bytes(-len(content) % 8)


def offload_binaries() -> list[bytes]:
    """Build contents of the section ``.llvm.offloading``: PTX, a cubin, a code object, several."""
    made = [offload_binary(PTX + b"\0", 5), offload_binary(cubin(), 3), offload_binary(code_object(), 1)]
    return [*made, made[0] + made[1]]


def host(
    device: bytes, *, kind: int = 3, headers: bool = True, slot: bool = True, version: int = 1, amd: bool = False,
    section: str | None = None,
) -> bytes:  # fmt: skip
    """Build a host library with device code, the wrapper that points to it, a dynamic section and relocations.

    slot: whether the wrapper holds the address itself, else only the relocation does, as lld leaves it.
    """
    magic = 0x48495046 if amd else 0x466243B1
    section = section or (".hip_fatbin" if amd else ".nv_fatbin")

    def build(code: int, rela: int, wrapper: int) -> bytes:
        """The file, with these addresses of device code, relocations and wrapper."""
        parts = (
            Part(section, device, align=64 if amd else 8),
            Part(".rela.dyn", struct.pack("<QQq", wrapper + 8, 8, code), 4, 2),
            # The string table is the empty string that the wrapper's filename is.
            Part(".dynamic", struct.pack("<12Q", 7, rela, 8, 24, 9, 24, 5, wrapper + 16, 10, 1, 0, 0), 6, 3),
            Part(".hipFatBinSegment" if amd else ".nvFatBinSegment",
                 struct.pack("<IIQQ", magic, version, code if slot else 0, 0), 1, 3),
            Part(".note.gnu.build-id", _note(b"GNU", 3, bytes(20)), 7, 2, align=4),
        )  # fmt: skip
        segments = ((_PT_LOAD, 6, ""), (_PT_DYNAMIC, 6, ".dynamic"), (_PT_NOTE, 4, ".note.gnu.build-id"))
        return elf(_EM_X86_64, parts, kind=kind, segments=segments, headers=headers)

    # The layout does not depend on the addresses in it, so the second build knows them.
    code = -(-(64 + 3 * 56) // (64 if amd else 8)) * (64 if amd else 8)
    rela = -(-(code + len(device)) // 8) * 8
    wrapper = rela + 24 + 96
    return build(_ADDRESS + code, _ADDRESS + rela, _ADDRESS + wrapper)


def hosts() -> list[bytes]:
    """Build libraries, executables and objects, with and without section headers, and what else ``read_file`` takes."""
    fatbins = containers()
    return [
        host(fatbins[2]),
        host(fatbins[9], kind=2),
        host(fatbins[11], headers=False),
        host(fatbins[1], headers=False, slot=False),
        host(fatbins[4], version=2),
        host(fatbins[3], section="__nv_relfatbin", kind=1),
        elf(_EM_X86_64, [Part(".data", bytes(16) + fatbins[2])], segments=((_PT_LOAD, 6, ""),)),
        *(host(data, amd=True, headers=headers) for data in bundles()[:4] for headers in (True, False)),
        archive([("a.o", host(fatbins[2], kind=1)), ("a-very-long-name-of-a-member.o", host(fatbins[3], kind=1))]),
        archive([("a.o", b""), ("b/c.o", b"")], thin=True),
        elf(_EM_X86_64, [Part(".llvm.offloading", offload_binaries()[3], flags=0x80000000)], kind=1),
        cubin(),
        code_object(),
        fatbins[9],
        bundles()[0],
        PTX,
    ]


def dynamic_hosts() -> list[bytes]:
    """Build libraries and programs that neutrino-patch can patch."""
    fatbins = containers()
    return [host(fatbins[2]), host(fatbins[9], kind=2), host(fatbins[11], headers=False), host(bundles()[0], amd=True)]


def patched_hosts() -> list[bytes]:
    """Build libraries with a section of twins (copies of kernels with probes) attached, as neutrino-patch writes them.
    """
    made = []
    with tempfile.TemporaryDirectory() as name:
        for data, section in zip(dynamic_hosts()[:3], [*sections(), sections()[1]], strict=True):
            source = Path(name, "source")
            source.write_bytes(data)
            attach(source, Path(name, "patched"), [section], "libneutrino.so")
            made.append(Path(name, "patched").read_bytes())
    return made


def wheels() -> list[bytes]:
    """Build ZIP files: stored and deflated members, folders, empty files, ZIP64 fields, a comment."""
    made = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive_:
            for name, data in (("lib/libk.so", host(containers()[2])), ("lib/", b""), ("empty", b""), ("k.ptx", PTX)):
                with archive_.open(zipfile.ZipInfo(name), "w", force_zip64=compression == zipfile.ZIP_STORED) as member:
                    member.write(data)
            archive_.comment = b"a comment"
        made.append(buffer.getvalue())
    return made


def archive(members: Sequence[tuple[str, bytes]], *, thin: bool = False) -> bytes:
    """Build an archive as GNU ``ar`` writes it, with a name table for long names; thin: without the members' contents.
    """
    table = b""
    headed = []
    for name, data in members:
        short = name + "/"
        if len(short) > 16 or thin:
            short = f"/{len(table)}"
            table += name.encode() + b"/\n"
        headed.append((short, data))
    made = b"!<thin>\n" if thin else b"!<arch>\n"
    for name, data in (*((("//", table),) if table else ()), *headed):
        made += name.encode().ljust(16) + b"0".ljust(12) + b"0".ljust(6) * 2 + b"644".ljust(8)
        made += str(len(data)).encode().ljust(10) + b"`\n" + data + b"\n" * (len(data) % 2)
    return made


def twins(kernels: int) -> bytes:
    """Build a cache entry for that many kernels of an image: the first has a twin (copy with probes), the others a
    reason for none.

    The first has one with a cap on registers, too, if it is not alone.
    """
    fields, span = (Field("start", ScalarType.U64, 0),), Span(1, 1)
    maps = [Map("BlockSched", ARRAY, Level.WARP, 8, 1, fields, span),
            Map("Bytes", SUM, Level.THREAD, 8, 1, fields, span)]  # fmt: skip
    probed = KernelEntry("first", Reason.PROBED, twin="first__neutrino", parameters=((0, 8), (8, 24)),
                         variables=("table",), block_offset=32, block_size=block_size(len(maps), 1),
                         capped=min(kernels, 2) - 1,
                         files={"manifest.json": b"{}", "original.ptx": PTX}, lanes=32)  # fmt: skip
    others = [KernelEntry(f"other{index}", Reason.NO_SITE, "no load") for index in range(1, kernels)]
    return write_entry(bytes(range(32)), maps, [probed, *others][:kernels], [cubin(), PTX][:kernels])


def sections() -> list[bytes]:
    """Build sections of patched files: with rows that share an entry, and without any."""
    entries_ = [twins(2), twins(1)]
    rows = [TwinsRow(bytes([index]) * 32, 100 + index, bytes(range(32)), arch, device, entry)
            for index, (arch, device, entry) in enumerate((
                ("sm_90", DeviceKind.GPU, 0), ("sm_100a", DeviceKind.GPU, 0), ("sm_90", DeviceKind.EMBEDDED, 1),
            ))]  # fmt: skip
    texts = {"names": "block_sched gmem_bytes", "maker": "0.1.0", "probes": b"[map.X]\n", "reader": b"import numpy\n",
             "report": b"{}"}  # fmt: skip
    return [b"".join(write_section(rows, entries_, **texts)), b"".join(write_section([], [], **texts))]  # type: ignore[arg-type]
