"""A cache entry: what the twins of one image are, in the cache and in patched files."""

from __future__ import annotations

from enum import IntEnum

from neutrino.abi.structures import Member, Struct

TWINS_MAGIC = b"NTTWINS\0"


class FewerBlocks(IntEnum):
    """Which launches may run a twin of which fewer blocks fit on a multiprocessor than of the original: none, any, or
    those all of whose blocks fit on half of the GPU's multiprocessors at once, since they may wait for each other."""

    NONE = 0
    ANY = 1
    ALL_FIT = 2


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
        Member("unused_logs", "u32", note="1: after the kernels a u64 for each, bits of maps: logs never saved to"),
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
        Member("fewer_blocks", "u32", note="enum neutrino_fewer_blocks"),
        Member("lanes", "u32", note="of a warp, 32 or 64; 0, in earlier files: 32"),
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
