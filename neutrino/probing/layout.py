"""The one definition of every layout that C, assembly and Python share.

The C header (``c_header``), the NumPy types of the reader and the offsets in the stores that ``ptx`` writes
all come from here. All integers are little endian; every structure has C alignment and no hidden padding.

Probe block, passed by value as the twin's last parameter, 8-byte aligned::

    0             u32 warps_per_block     warps of one block, partial ones counted
    4             u32 warp_capacity       warps that this launch's regions have room for
    8             u32 dynamic_cap         records a slot of this launch's maps with a dynamic cap
    12            u32 copy_mask           copies of a sum's record in this launch, less one
    16 + 16·m     u64 records             device address of map m's records
    24 + 16·m     u64 counts              device address of map m's counts, 0 without counts
    16 + 16·maps  u64 address[variables]  device addresses of the original's module variables

Region of map m of a launch with W = blocks · warps_per_block warps (``region_layout``)::

    array, thread level   records [W][cap][32],   counts u32 [W][32]   unless cap = 1
    array, warp level     records [W][cap],       counts u32 [W]       unless cap = 1
    array, block level    records [blocks][cap],  counts u32 [blocks]  unless cap = 1
    sum                   records [sum_copies(W)], each ``sum_stride`` bytes; the reader adds the copies

The warp index is block · warps_per_block + warp, block the linear index of the block in the grid (x fastest),
warp and lane those of the linear thread index in the block (x fastest). Slots of a warp belong to its lane 0, those of
a block to its thread 0. A dynamic cap is one number for all such maps of a launch; these have counts whatever it is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neutrino.probing.model import DYNAMIC_CAP, Field, Level, Map, MapKind, ScalarType

if TYPE_CHECKING:
    import numpy as np

LANES = 32
BLOCK_HEADER = 16
"""Bytes of the probe block before the first map."""
BLOCK_WARPS_PER_BLOCK, BLOCK_WARP_CAPACITY, BLOCK_DYNAMIC_CAP, BLOCK_COPY_MASK = 0, 4, 8, 12
"""Offsets of the members of that header."""
BLOCK_PER_MAP = 16
BLOCK_PER_VARIABLE = 8
REGION_ALIGN = 128
"""Every records and counts section of a region starts at a multiple of this."""
SUM_COPIES_LEAST, SUM_COPIES_MOST = 8, 128
"""Copies of a sum's record in a launch, powers of two; see ``sum_copies``."""
SUM_WARPS_PER_COPY = 32
SUM_ALIGN = 128
"""Each copy has lines of the cache to itself: atomics on one line wait for each other."""
DYNAMIC_FIRST = 64
"""Dynamic cap of a kernel's first launches."""
DYNAMIC_STEP = 8
"""Later ones are multiples of it."""
DYNAMIC_MOST = 1 << 20
MAX_MAPS = 64
"""Maps of a run."""
MAX_RECORD = 65536
"""Bytes of a record."""
LEVELS = (Level.THREAD, Level.WARP, Level.BLOCK)
"""By their numbers in files."""
KINDS = (MapKind.ARRAY, MapKind.SUM)
"""By their numbers in files."""


class Reason(enum.IntEnum):
    """Why a launch ran, or a kernel runs, its original. The order is part of the file format."""

    PROBED = 0
    NO_PTX = 1
    NOT_SELECTED = 2
    NO_SITE = 3
    VARIANT = 4
    UNSUPPORTED = 5
    PARAMETERS = 6
    NUMERICS = 7
    ASSEMBLER = 8
    VENDOR = 9
    HELPER = 10
    LOAD = 11
    GRAPH = 12
    LAUNCH_FORM = 13
    OCCUPANCY = 14
    MAP_SIZE = 15
    POOL_FULL = 16
    CONTEXT = 17
    REFUSED = 18
    TABLE_FULL = 19
    ENDING = 20
    NOT_PATCHED = 21

    @property
    def word(self) -> str:
        """The word used in ``events.jsonl`` and in reports."""
        return self.name.lower().replace("_", "-")


REASON_TEXT: dict[Reason, str] = {
    Reason.PROBED: "the twin ran",
    Reason.NO_PTX: "the image holds machine code only",
    Reason.NOT_SELECTED: "left out by -k or --filter",
    Reason.NO_SITE: "no instruction matches the probe",
    Reason.VARIANT: "the PTX is for another architecture than the machine code that runs",
    Reason.UNSUPPORTED: "the kernel, or a probe at it, needs what a twin cannot do",
    Reason.PARAMETERS: "no room for the probe block in the parameter space",
    Reason.NUMERICS: "the probes would change how the assembler fuses arithmetic",
    Reason.ASSEMBLER: "the assembler refused or warned, or is not on this machine",
    Reason.VENDOR: "a vendor-licensed library, never rewritten",
    Reason.HELPER: "the helper that makes twins was not there or took too long",
    Reason.LOAD: "the driver would not load the twin, or a variable has no address",
    Reason.GRAPH: "launched in a stream capture or as a graph node",
    Reason.LAUNCH_FORM: "launched by a call that is not supported yet",
    Reason.OCCUPANCY: "the twin would fit fewer blocks on a multiprocessor than the original",
    Reason.MAP_SIZE: "the launch needs more map memory than the pool has",
    Reason.POOL_FULL: "the pool was full when the launch came",
    Reason.CONTEXT: "the context had no pool yet",
    Reason.REFUSED: "the driver refused the launch, or had lost the context",
    Reason.TABLE_FULL: "the launch table was full when the launch came",
    Reason.ENDING: "the trace had ended",
    Reason.NOT_PATCHED: "no probe was given, and its file has no usable twins of it",
}


VENDOR_LIBRARIES = (
    "libcublas", "libcudnn", "libcufft", "libcusparse", "libcusolver", "libcurand", "libcutensor", "libcudss",
    "libnvjpeg", "libnpp", "libnvrtc", "libnvJitLink", "libnvinfer", "libcuda.so",
)  # fmt: skip
"""How the names of libraries begin whose licence forbids changing them: listed, never rewritten."""


class LaunchState(enum.IntEnum):
    """State of one record of ``launches.bin``. The order is part of the file format."""

    EMPTY = 0
    SUBMITTED = 1
    WRITTEN = 2
    LOST = 3
    FALLBACK = 4


@dataclass(frozen=True)
class Member:
    """One member of a C structure. count > 1: an array; type ``char``: bytes."""

    name: str
    type: str
    count: int = 1
    note: str = ""


@dataclass(frozen=True)
class Struct:
    """A C structure without hidden padding. name: in C, with the ``neutrino_`` prefix left out."""

    name: str
    members: tuple[Member, ...]
    note: str

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The structure as a NumPy type."""
        # Here, because reading a probe file needs this module but must not wait for NumPy.
        import numpy as np

        return np.dtype(
            [
                (member.name, _NUMPY[member.type], (member.count,))
                if member.count > 1 and member.type != "char"
                else (member.name, f"S{member.count}" if member.type == "char" else _NUMPY[member.type])
                for member in self.members
            ]
        )

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.itemsize


_NUMPY = {
    "u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "f32": "<f4",
    "s8": "<i1", "s16": "<i2", "s32": "<i4", "s64": "<i8", "f64": "<f8",
}  # fmt: skip
_C = {
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "s32": "int32_t", "s64": "int64_t", "char": "char",
}  # fmt: skip

MAX_KERNELS = 4096
"""Rows of the counter table of ``launches.bin``; kernels beyond share the last row."""
REASON_SLOTS = 24
LAUNCHES_HEADER_SIZE = 4096
LAUNCHES_MAGIC = b"NTLAUNCH"
RESULT_MAGIC = b"NTRESULT"
FRAME_MAGIC = b"NTFRAME\0"
TWINS_MAGIC = b"NTTWINS\0"
REQUEST_MAGIC = b"NTASK\0\0\0"
REPLY_MAGIC = b"NTREPLY\0"
SECTION_MAGIC = b"NTSECTN\0"
FORMAT_VERSION = 3
TWINS_VERSION = 4
"""Of cache entries, in the cache and in sections."""

LAUNCHES_HEADER = Struct(
    "launches_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("record_size", "u32"),
        Member("records_offset", "u64", note="bytes from the start of the file"),
        Member("records_capacity", "u64", note="records that the file has room for"),
        Member("records_used", "u64", note="records handed out; never above the capacity"),
        Member("monotonic_ns", "u64", note="CLOCK_MONOTONIC when the file was made"),
        Member("realtime_ns", "u64", note="CLOCK_REALTIME at the same moment"),
        Member("pid", "u32"),
        Member("ended", "u32", note="1 once the process drained at its end"),
    ),
    "Start of launches.bin; the counter table u64 [MAX_KERNELS][REASON_SLOTS] is at LAUNCHES_HEADER_SIZE.",
)

LAUNCH = Struct(
    "launch",
    (
        Member("state", "u32"),
        Member("kernel", "u32", note="kernel id: the folder kernel/<id>/"),
        Member("context", "u64"),
        Member("stream", "u64"),
        Member("submit_ns", "u64", note="CLOCK_MONOTONIC at submission"),
        Member("data_offset", "u64", note="of the frame in result/<kernel>.bin; valid when WRITTEN"),
        Member("data_size", "u64", note="bytes of the regions"),
        Member("grid", "u32", 3),
        Member("block", "u32", 3),
        Member("shared", "u32", note="dynamic shared memory, bytes"),
        Member("device", "u32"),
        Member("thread", "u32", note="host thread id"),
        Member("variant", "u32", note="1: the twin under a register cap"),
        Member("dynamic_cap", "u32", note="records a slot of maps with a dynamic cap; 0: the kernel has none"),
        Member("reserved", "u32", 9),
    ),
    "One record of launches.bin.",
)

RESULT_HEADER = Struct(
    "result_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("kernel", "u32"),
        Member("maps", "u32"),
        Member("map_size", "u32", note="bytes of one map descriptor"),
        Member("reserved", "u64"),
    ),
    "Start of result/<kernel>.bin; the map descriptors follow, then frames.",
)

MAP_DESCRIPTOR = Struct(
    "map",
    (
        Member("name", "char", 64),
        Member("kind", "u32", note="0 array, 1 sum"),
        Member("level", "u32", note="0 thread, 1 warp, 2 block"),
        Member("record_size", "u32"),
        Member("cap", "u32", note="records a slot; 0: dynamic, as the launch has it"),
    ),
    "What the hook needs to know of a map.",
)

FRAME = Struct(
    "frame",
    (
        Member("magic", "char", 8),
        Member("launch", "u64", note="index in launches.bin"),
        Member("grid", "u32", 3),
        Member("block", "u32", 3),
        Member("size", "u64", note="bytes of the regions that follow"),
        Member("dynamic_cap", "u32", note="records a slot of maps with a dynamic cap; 0: the kernel has none"),
        Member("reserved", "u32", 3),
    ),
    "One launch in result/<kernel>.bin; its regions follow, back to back, then padding to 64 bytes.",
)

TWINS_HEADER = Struct(
    "twins_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("reserved", "u32"),
        Member("digest", "u8", 32, note="SHA-256 of all that follows this member"),
        Member("size", "u64", note="bytes of the whole entry"),
        Member("key", "u8", 32, note="the cache key that the entry was made for"),
        Member("maps_offset", "u64"),
        Member("kernels_offset", "u64"),
        Member("images_offset", "u64"),
        Member("maps", "u32"),
        Member("kernels", "u32"),
        Member("images", "u32"),
        Member("padding", "u32"),
    ),
    "Start of a cache entry: what one image's twins are. Offsets count from the start of the entry.",
)

TWIN_IMAGE = Struct(
    "twin_image",
    (
        Member("offset", "u64"),
        Member("size", "u64"),
    ),
    "An image of a cache entry, 64-byte aligned, for cuModuleLoadData: the twins', then those under a cap.",
)

TWIN_KERNEL = Struct(
    "twin_kernel",
    (
        Member("name_offset", "u64", note="NUL-terminated, mangled"),
        Member("twin_offset", "u64", note="name of the twin's entry, NUL-terminated; 0: no twin"),
        Member("detail_offset", "u64", note="why there is no twin, NUL-terminated; 0: nothing to add"),
        Member("files_offset", "u64", note="twin_file rows: what goes into kernel/<id>/"),
        Member("parameters_offset", "u64", note="twin_parameter rows, the program's parameters in order"),
        Member("variables_offset", "u64", note="u64 rows: offset of each variable's NUL-terminated name"),
        Member("reason", "u32", note="enum neutrino_reason; PROBED when there is a twin"),
        Member("files", "u32"),
        Member("parameters", "u32"),
        Member("variables", "u32"),
        Member("block_offset", "u32", note="of the probe block in the twin's parameter space"),
        Member("block_size", "u32"),
        Member("capped", "u32", note="the image that has this twin too, under a register cap; 0: none has"),
        Member("image", "u32", note="the image that has this twin; 0 when there is no twin"),
    ),
    "One kernel of a cache entry.",
)

TWIN_PARAMETER = Struct(
    "twin_parameter",
    (Member("offset", "u32"), Member("size", "u32")),
    "One parameter of the original, in bytes of its parameter space.",
)

TWIN_FILE = Struct(
    "twin_file",
    (Member("name_offset", "u64"), Member("offset", "u64"), Member("size", "u64")),
    "A file of kernel/<id>/, written as it is.",
)

REQUEST = Struct(
    "request",
    (
        Member("magic", "char", 8),
        Member(
            "kind", "u32", note="1: this process has begun a trace, its path follows; 2: make twins, the image does"
        ),
        Member("pid", "u32"),
        Member("key", "u8", 32, note="cache key of the entry asked for"),
        Member("arch", "char", 16, note="of the device, such as sm_90"),
        Member("driver_version", "u32", note="as cuDriverGetVersion gives it"),
        Member("reserved", "u32"),
        Member("size", "u64", note="bytes that follow"),
    ),
    "What a hooked process sends to the listener.",
)

REPLY = Struct(
    "reply",
    (
        Member("magic", "char", 8),
        Member("status", "u32", note="0: the entry follows; 1: a message follows, why there is none"),
        Member("reserved", "u32"),
        Member("size", "u64", note="bytes that follow"),
    ),
    "What the listener answers to a request of kind 2.",
)

SECTION_HEADER = Struct(
    "section_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("rows", "u32"),
        Member("size", "u64", note="bytes of the whole section"),
        Member("rows_offset", "u64", note="section_twins rows"),
        Member("names_offset", "u64", note="names of the probes, with spaces between, NUL-terminated"),
        Member("maker_offset", "u64", note="version of Neutrino that wrote it, NUL-terminated"),
        Member("probes_offset", "u64", note="probe.toml"),
        Member("probes_size", "u64"),
        Member("reader_offset", "u64", note="read.py"),
        Member("reader_size", "u64"),
        Member("report_offset", "u64", note="what neutrino-patch --json printed"),
        Member("report_size", "u64"),
        Member("restore_offset", "u64", note="restore_header and what follows"),
        Member("restore_size", "u64"),
    ),
    "Start of a patched file's .neutrino section. Offsets count from the start of the section, which is page-aligned.",
)

SECTION_TWINS = Struct(
    "section_twins",
    (
        Member("image_digest", "u8", 32, note="SHA-256 of the image as the program hands it to the driver"),
        Member("image_size", "u64", note="its bytes"),
        Member("key", "u8", 32, note="of the cache entry"),
        Member("arch", "char", 16, note="of a device that the entry is for, such as sm_90"),
        Member("entry_offset", "u64", note="twins_header, 64-byte aligned; rows may share one"),
        Member("entry_size", "u64"),
        Member("device", "u32", note="0 a GPU, 1 the embedded device"),
        Member("reserved", "u32"),
    ),
    "The twins of one image for one architecture of devices.",
)

RESTORE_HEADER = Struct(
    "restore_header",
    (
        Member("original_size", "u64"),
        Member("original_digest", "u8", 32, note="SHA-256 of the original file"),
        Member("edits", "u32", note="restore_edit rows that follow"),
        Member("tables_crc", "u32", note="CRC-32 of what patching wrote beside the section"),
    ),
    "What gives the original file back: cut to original_size, then each edit's bytes put where they were.",
)

RESTORE_EDIT = Struct(
    "restore_edit",
    (
        Member("file_offset", "u64"),
        Member("size", "u64"),
        Member("bytes_offset", "u64", note="of the original's bytes, from the start of the section"),
    ),
    "A range of the original file that patching changed.",
)

STRUCTS = (
    LAUNCHES_HEADER, LAUNCH, RESULT_HEADER, MAP_DESCRIPTOR, FRAME,
    TWINS_HEADER, TWIN_IMAGE, TWIN_KERNEL, TWIN_PARAMETER, TWIN_FILE, REQUEST, REPLY,
    SECTION_HEADER, SECTION_TWINS, RESTORE_HEADER, RESTORE_EDIT,
)  # fmt: skip


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of alignment (a power of two) not below value."""
    return (value + alignment - 1) & ~(alignment - 1)


def lay_out_fields(fields: Sequence[tuple[str, ScalarType]]) -> tuple[tuple[Field, ...], int, int]:
    """Place fields by C alignment. Returns the fields, the record's bytes, and how many are padding."""
    offset = 0
    alignment = 1
    placed = []
    for name, scalar in fields:
        offset = align_up(offset, scalar.size)
        placed.append(Field(name, scalar, offset))
        offset += scalar.size
        alignment = max(alignment, scalar.size)
    size = align_up(offset, alignment)
    return tuple(placed), size, size - sum(scalar.size for _, scalar in fields)


def record_dtype(fields: Sequence[Field], size: int) -> np.dtype[np.void]:
    """The NumPy type of one record of size bytes."""
    import numpy as np

    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [_NUMPY[field.type.value] for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": size,
        }
    )


def sum_copies(warps: int) -> int:
    """Copies of a sum's record in a launch of so many warps (``sum_copies`` in C).

    Multiprocessors share a copy, so that small launches leave little to read. On an H200 a kernel that moves memory as
    fast as it can took 1.56 times as long with 32 copies 64 bytes apart, 1.00 with 128 copies 128 bytes apart.
    """
    copies = SUM_COPIES_LEAST
    while copies < SUM_COPIES_MOST and copies * SUM_WARPS_PER_COPY < warps:
        copies *= 2
    return copies


def sum_stride(record_size: int) -> int:
    """Bytes from one copy of a sum map's record to the next."""
    return align_up(record_size, SUM_ALIGN)


@dataclass(frozen=True)
class Region:
    """Where one map's data lie in a launch's regions, in bytes from their start. counts: None without."""

    records: int
    records_size: int
    counts: int | None
    counts_size: int


def has_counts(entry: Map) -> bool:
    """Whether the slots of a map count their saves."""
    return entry.kind is MapKind.ARRAY and entry.cap != 1


def cap_of(entry: Map, dynamic_cap: int) -> int:
    """Records a slot of a map in a launch with that dynamic cap."""
    return dynamic_cap if entry.cap == DYNAMIC_CAP else entry.cap


def region_layout(
    maps: Sequence[Map], blocks: int, warps_per_block: int, dynamic_cap: int = 0
) -> tuple[tuple[Region, ...], int]:
    """Regions of a launch, and the bytes of all (``nt_region_of`` in C). dynamic_cap: 0 where no map has one."""
    offset = 0
    regions = []
    for entry in maps:
        slots = blocks
        if entry.level is not Level.BLOCK:
            slots *= warps_per_block * (LANES if entry.level is Level.THREAD else 1)
        if entry.kind is MapKind.SUM:
            records_size = sum_copies(blocks * warps_per_block) * sum_stride(entry.size)
            counts_size = 0
        else:
            records_size = slots * cap_of(entry, dynamic_cap) * entry.size
            counts_size = slots * 4 if has_counts(entry) else 0
        records = offset
        offset = align_up(offset + records_size, REGION_ALIGN)
        counts = offset if counts_size else None
        offset = align_up(offset + counts_size, REGION_ALIGN)
        regions.append(Region(records, records_size, counts, counts_size))
    return tuple(regions), offset


def block_size(maps: int, variables: int) -> int:
    """Bytes of the probe block."""
    return BLOCK_HEADER + BLOCK_PER_MAP * maps + BLOCK_PER_VARIABLE * variables


def c_header() -> str:
    """``neutrino_layout.h``: constants, enumerations, structures, static assertions of sizes and offsets."""
    lines = [
        "/* Generated by neutrino/probing/layout.py: change it there. */",
        "#ifndef NEUTRINO_LAYOUT_H",
        "#define NEUTRINO_LAYOUT_H",
        "#include <assert.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
    ]
    constants = {
        "LANES": LANES, "BLOCK_HEADER": BLOCK_HEADER, "BLOCK_PER_MAP": BLOCK_PER_MAP,
        "BLOCK_PER_VARIABLE": BLOCK_PER_VARIABLE, "REGION_ALIGN": REGION_ALIGN,
        "SUM_COPIES_LEAST": SUM_COPIES_LEAST, "SUM_COPIES_MOST": SUM_COPIES_MOST,
        "SUM_WARPS_PER_COPY": SUM_WARPS_PER_COPY, "SUM_ALIGN": SUM_ALIGN,
        "DYNAMIC_CAP": DYNAMIC_CAP, "DYNAMIC_FIRST": DYNAMIC_FIRST, "DYNAMIC_STEP": DYNAMIC_STEP,
        "DYNAMIC_MOST": DYNAMIC_MOST,
        "MAX_MAPS": MAX_MAPS, "MAX_RECORD": MAX_RECORD,
        "MAX_KERNELS": MAX_KERNELS, "REASON_SLOTS": REASON_SLOTS,
        "LAUNCHES_HEADER_SIZE": LAUNCHES_HEADER_SIZE, "FORMAT_VERSION": FORMAT_VERSION,
        "TWINS_VERSION": TWINS_VERSION,
    }  # fmt: skip
    lines += [f"#define NEUTRINO_{name} {value}" for name, value in constants.items()]
    magics = {"LAUNCHES": LAUNCHES_MAGIC, "RESULT": RESULT_MAGIC, "FRAME": FRAME_MAGIC, "TWINS": TWINS_MAGIC,
              "REQUEST": REQUEST_MAGIC, "REPLY": REPLY_MAGIC, "SECTION": SECTION_MAGIC}  # fmt: skip
    for name, magic in magics.items():
        text = magic.decode().replace("\0", "\\0")
        lines.append(f'#define NEUTRINO_{name}_MAGIC "{text}"')
    lines += ["", "enum neutrino_reason {"]
    lines += [f"    NEUTRINO_REASON_{reason.name} = {reason.value}," for reason in Reason]
    lines += ["};", "", "enum neutrino_map_kind {"]
    lines += [f"    NEUTRINO_KIND_{kind.name} = {number}," for number, kind in enumerate(KINDS)]
    lines += ["};", "", "enum neutrino_level {"]
    lines += [f"    NEUTRINO_LEVEL_{level.name} = {number}," for number, level in enumerate(LEVELS)]
    lines += ["};", "", "#define NEUTRINO_REASON_WORDS \\"]
    lines += [f'    [{reason.value}] = "{reason.word}", \\' for reason in Reason]
    lines += ["", "#define NEUTRINO_REASON_TEXTS \\"]
    lines += [f'    [{reason.value}] = "{REASON_TEXT[reason]}", \\' for reason in Reason]
    lines += ["", "#define NEUTRINO_VENDOR_LIBRARIES \\"]
    lines += [f'    "{name}", \\' for name in VENDOR_LIBRARIES]
    lines += ["", "enum neutrino_launch_state {"]
    lines += [f"    NEUTRINO_LAUNCH_{state.name} = {state.value}," for state in LaunchState]
    lines += ["};", ""]
    for struct in STRUCTS:
        lines += [f"/* {struct.note} */", f"struct neutrino_{struct.name} {{"]
        for member in struct.members:
            suffix = f"[{member.count}]" if member.count > 1 else ""
            note = f" /* {member.note} */" if member.note else ""
            lines.append(f"    {_C[member.type]} {member.name}{suffix};{note}")
        lines.append("};")
        name = f"struct neutrino_{struct.name}"
        lines.append(f'static_assert(sizeof({name}) == {struct.size}, "{struct.name}");')
        fields = struct.dtype.fields
        for member in struct.members:
            offset = fields[member.name][1] if fields else 0
            lines.append(f'static_assert(offsetof({name}, {member.name}) == {offset}, "{member.name}");')
        lines.append("")
    lines += ["#endif", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(c_header(), end="")
