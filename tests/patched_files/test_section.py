"""The section: what is written is read back; whatever is damaged is a FormatError."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.abi.reasons import Reason
from neutrino.abi.sections import SECTION_HEADER, SECTION_TWINS
from neutrino.device.kind import DeviceKind
from neutrino.errors import FormatError, NeutrinoError
from neutrino.patched_files.section import TwinsRow, read_section, write_section
from neutrino.twins.cache_entry import KernelEntry, read_entry, write_entry

ENTRIES = [
    write_entry(bytes([number]) * 32, [], [KernelEntry(f"kernel_{number}", Reason.NO_SITE)], [b"image"])
    for number in range(2)
]
ROWS = [
    TwinsRow(b"a" * 32, 100, bytes(32), "sm_80", DeviceKind.GPU, 0),
    TwinsRow(b"a" * 32, 100, bytes(32), "sm_86", DeviceKind.GPU, 0),
    TwinsRow(b"a" * 32, 100, b"\1" * 32, "sm_90", DeviceKind.GPU, 1),
    TwinsRow(b"a" * 32, 100, b"\1" * 32, "sm_90", DeviceKind.EMBEDDED, 1),
]
TEXTS = {"names": "block_sched ü", "maker": "0.1.0", "probes": b"[probe]\n", "reader": b"#", "report": b"{}"}


def _section(rows=ROWS, entries=ENTRIES, **texts) -> bytes:
    return b"".join(write_section(rows, entries, **(TEXTS | texts)))


def test_read_back() -> None:
    data = _section()
    section = read_section(data + b"what follows in the file", "lib.so")
    assert section.rows == tuple(ROWS)
    assert [bytes(entry) for entry in section.entries] == ENTRIES
    assert [read_entry(bytes(entry), "entry").kernels[0].name for entry in section.entries] == ["kernel_0", "kernel_1"]
    read = {name: getattr(section, name) for name in TEXTS}
    assert (read, section.size, section.restore) == (TEXTS, len(data), (0, 0))


@given(
    st.lists(st.binary(min_size=200, max_size=300), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(75, 121), st.integers(0, 4), st.integers(0, 2**64 - 1)), max_size=8),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200),
    st.binary(max_size=500),
)
def test_any_content_is_read_back(entries, rows, names, report) -> None:
    made = [
        TwinsRow(bytes([index]) * 32, size, b"k" * 32, f"sm_{arch}", DeviceKind.GPU, entry % len(entries))
        for index, (arch, entry, size) in enumerate(rows)
    ]
    section = read_section(_section(made, entries, names=names, report=report), "section")
    assert (section.names, section.report) == (names, report)
    # Entries of no row are not found again, so those of rows are compared by content.
    for row, back in zip(made, section.rows, strict=True):
        assert bytes(section.entries[back.entry]) == entries[row.entry]
        assert dataclasses.replace(back, entry=0) == dataclasses.replace(row, entry=0)


def test_entries_are_aligned_for_the_driver() -> None:
    data = _section(names="x")
    for entry in ENTRIES:
        assert data.index(entry) % 64 == 0


def test_texts_that_do_not_fit_are_refused() -> None:
    for names in ("p" * 70000, "a\0b"):
        with pytest.raises(NeutrinoError, match="names of the probes"):
            _section(names=names)


def test_every_truncation_is_an_error() -> None:
    data = _section()
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read_section(data[:size], "lib.so")


EXTREMES = (1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)


def _fields(layout, at: int, count: int):
    for index in range(count):
        offset = at + index * layout.size
        for member in layout.members:
            width = {"u32": 4, "u64": 8}.get(member.type, 0)
            if width:
                yield f"{layout.name}[{index}].{member.name}", offset, width
            offset += (width or 1) * member.count


def _all_fields():
    rows_offset = struct.unpack_from("<Q", _section(), 24)[0]
    yield from _fields(SECTION_HEADER, 0, 1)
    yield from _fields(SECTION_TWINS, rows_offset, len(ROWS))


@pytest.mark.parametrize(("name", "offset", "width"), list(_all_fields()), ids=str)
def test_extreme_numbers_are_errors_or_stay_within(name: str, offset: int, width: int) -> None:
    faults = []
    for extreme in EXTREMES:
        data = bytearray(_section())
        data[offset : offset + width] = (extreme % (1 << 8 * width)).to_bytes(width, "little")
        try:
            section = read_section(bytes(data), "lib.so", base=0x1000)
        except FormatError as error:
            faults.append(error.offset)
        else:
            assert section.size <= len(data)
            assert all(len(entry) <= len(data) for entry in section.entries)
    if not name.endswith((".image_size", ".reserved")):
        assert len(faults) >= len(EXTREMES) - 2, name
    assert all(0x1000 <= fault <= 0x1000 + len(_section()) for fault in faults)


@given(st.data())
def test_any_byte_may_be_wrong(data) -> None:
    content = bytearray(_section())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_section(content, "lib.so")
    except FormatError:
        pass
    else:
        assert content[:8] == b"NTSECTN\0"


@pytest.mark.parametrize("arch", [b"sm_" + b"9" * 13, b"sm 90", b"sm_90\0x", b"\xffsm_90", b""])
def test_a_name_that_is_no_architecture(arch: bytes) -> None:
    data = bytearray(_section())
    at = struct.unpack_from("<Q", data, 24)[0] + 72
    data[at : at + 16] = arch.ljust(16, b"\0")
    with pytest.raises(FormatError, match="arch"):
        read_section(data, "lib.so")


def test_two_rows_for_one_image_and_architecture() -> None:
    with pytest.raises(FormatError, match="a second one for this image and sm_80"):
        read_section(_section([ROWS[0], ROWS[1], dataclasses.replace(ROWS[0], entry=1)]), "lib.so")
