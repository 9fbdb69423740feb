"""ELF files generated from a description, by layouts of their own: what the reader is compared on with others."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

NAME = st.text("abcdefgh._$", max_size=12)
WORD = st.integers(0, (1 << 64) - 1)
HALF = st.integers(0, (1 << 32) - 1)
ADDEND = st.integers(-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Description:
    """What is in a file. symbols: name, type, other, value, size; relocations: offset, symbol, type, addend;
    segments: type, flags, content; dynamic: tag, value; notes: owner, type, content."""

    machine: int
    contents: list[bytes]
    symbols: list[tuple[str, int, int, int, int]]
    rela: list[tuple[int, int, int, int]]
    rel: list[tuple[int, int, int]]
    dynamic: list[tuple[int, int]]
    notes: list[tuple[bytes, int, bytes]] = field(default_factory=list)


def descriptions() -> st.SearchStrategy[Description]:
    return st.builds(
        Description,
        machine=st.sampled_from([62, 183, 190, 224]),
        contents=st.lists(st.binary(max_size=40), max_size=4),
        symbols=st.lists(st.tuples(NAME, st.integers(0, 4), st.integers(0, 255), WORD, WORD), max_size=8),
        rela=st.lists(st.tuples(WORD, HALF, HALF, ADDEND), max_size=8),
        rel=st.lists(st.tuples(WORD, HALF, HALF), max_size=8),
        dynamic=st.lists(st.tuples(st.integers(30, 1 << 30), WORD), max_size=5, unique_by=lambda entry: entry[0]),
        notes=st.lists(
            st.tuples(st.sampled_from([b"GNU\0", b"AMDGPU\0", b"x\0"]), st.integers(100, 200), st.binary(max_size=20)),
            max_size=3,
        ),
    )


def write(described: Description) -> bytes:
    """The file: ELF header, program headers, contents of sections, section headers."""
    names = bytearray(b"\0")
    rows: list[tuple[int, int, int, int, int, int, int, int, int, int]] = [(0,) * 10]
    segments = 2
    body = bytearray(64 + 56 * segments)

    def string(table: bytearray, text: str) -> int:
        at = len(table)
        table += text.encode() + b"\0"
        return at

    def section(name: str, kind: int, content: bytes, link: int = 0, info: int = 0, entry: int = 0) -> int:
        body.extend(bytes(-len(body) % 8))
        rows.append((string(names, name), kind, 0, 0, len(body), len(content), link, info, 8, entry))
        body.extend(content)
        return len(rows) - 1

    first = section(".first", 1, b"first")
    for number, content in enumerate(described.contents):
        section(f".data.{number}", 1, content)
    strings = bytearray(b"\0")
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", string(strings, name), kind | 0x10, other, first, value, size)
        for name, kind, other, value, size in described.symbols
    )
    symbols = section(".symtab", 2, table, link=len(rows) + 1, info=1, entry=24)
    section(".strtab", 3, bytes(strings))
    rela = b"".join(struct.pack("<QIIq", at, kind, symbol, more) for at, symbol, kind, more in described.rela)
    section(".rela.first", 4, rela, link=symbols, info=first, entry=24)
    rel = b"".join(struct.pack("<QII", at, kind, symbol) for at, symbol, kind in described.rel)
    section(".rel.first", 9, rel, link=symbols, info=first, entry=16)
    notes = bytearray()
    for owner, kind, content in described.notes:
        notes += struct.pack("<III", len(owner), len(content), kind)
        notes += owner + bytes(-len(owner) % 4) + content + bytes(-len(content) % 4)
    section(".note.test", 7, bytes(notes))
    note_at, note_size = rows[-1][4], rows[-1][5]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in [*described.dynamic, (0, 0)])
    section(".dynamic", 6, dynamic, link=symbols + 1, entry=16)
    dynamic_at, dynamic_size = rows[-1][4], rows[-1][5]
    at = len(names)
    names += b".shstrtab\0"
    body.extend(bytes(-len(body) % 8))
    rows.append((at, 3, 0, 0, len(body), len(names), 0, 0, 1, 0))
    body.extend(names)
    body.extend(bytes(-len(body) % 8))
    headers = len(body)
    for row in rows:
        body.extend(struct.pack("<IIQQQQIIQQ", *row))
    struct.pack_into("<IIQQQQQQ", body, 64, 4, 4, note_at, note_at, note_at, note_size, note_size, 4)
    struct.pack_into(
        "<IIQQQQQQ", body, 64 + 56, 2, 6, dynamic_at, dynamic_at, dynamic_at, dynamic_size, dynamic_size, 8
    )
    struct.pack_into(
        "<16sHHIQQQIHHHHHH", body, 0, b"\x7fELF\2\1\1".ljust(16, b"\0"), 3, described.machine, 1, 0, 64, headers, 0,
        64, 56, segments, 64, len(rows), len(rows) - 1,
    )  # fmt: skip
    return bytes(body)
