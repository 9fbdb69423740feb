"""``result/<kernel>.bin``: a header, one descriptor per map, then one frame per launch.

With a limit of the trace's size, later launches are in ``result/<kernel>.<part>.bin``, of the same form.
"""

from __future__ import annotations

from neutrino.abi.structures import Member, Struct

RESULT_MAGIC = b"NTRESULT"
FRAME_MAGIC = b"NTFRAME\0"

RESULT_HEADER = Struct(
    "result_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("kernel", "u32"),
        Member("maps", "u32"),
        Member("map_size", "u32", note="bytes of one map descriptor"),
        Member("base", "u64", note="bytes of the kernel's data before this file: offset 0 of it, by data_offset"),
    ),
    "Start of result/<kernel>.bin; the map descriptors follow, then frames.",
)

MAP_DESCRIPTOR = Struct(
    "map",
    (
        Member("name", "char", 64),
        Member("kind", "u32", note="number of its type: NEUTRINO_MAP_TYPES"),
        Member("level", "u16", note="0 thread, 1 warp, 2 block"),
        Member("per", "u16", note="whose values are one result: enum neutrino_per"),
        Member("record_size", "u32"),
        Member("cap", "u32", note="records a slot; of a log 1, or 0 if its twin never saves to it"),
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
        Member("unused", "u32"),
        Member("lanes", "u32", note="of a warp; 0, in earlier files: 32"),
        Member("log_units", "u32", note="units of each log with cap 1, of those that the launch had; 0: none"),
        Member("reserved", "u32"),
    ),
    "One launch in result/<kernel>.bin; its regions follow, back to back, then padding to 64 bytes.",
)
