"""The ``.neutrino`` section of a patched file."""

from __future__ import annotations

from neutrino.abi.structures import Member, Struct

SECTION_MAGIC = b"NTSECTN\0"

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
