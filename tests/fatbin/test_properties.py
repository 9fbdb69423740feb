"""Every field of every format set to what it must not be: a FormatError, or a valid reading that is written back.

The fields come from the tables of ``tests/fuzz/fields.py``, which share nothing with the readers; what is valid, and
how long and how large a reading may get, from the targets of the fuzzing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.entries import TWINS_HEADER
from neutrino.abi.sections import SECTION_HEADER
from neutrino.errors import FormatError
from tests.fuzz import fields, seeds
from tests.fuzz.fields import Place, field_values, places
from tests.fuzz.run import check_input
from tests.fuzz.targets import TARGETS

READ = ("container", "bundle", "file", "cubin", "usage", "code-object", "section", "twins", "wheel",
        "offload-binary")
WRITTEN = ("host", "patched")
"""What writes files as well and takes ten times as long: fewer values are tried."""
FORMATS = (*READ, *WRITTEN)
FEW = (0, 1 << 31, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)
_ELF = "EI_CLASS EI_DATA e_shentsize e_shnum e_shoff e_shstrndx"
_SYMBOLS = "st_name st_shndx"
_SECTIONS = "sh_name sh_offset sh_size"
_CONTAINER = {
    "container": "magic version header_size size",
    "entry": "header_size payload_size compressed_size options_offset name_offset",
    "options": "string_offset length",
}
_BUNDLE = {"bundle": "count", "bundle entry": "offset size id_size"}
REFUSED = {
    "container": _CONTAINER,
    "bundle": {**_BUNDLE, "compressed bundle": "magic version method size uncompressed_size"},
    "file": {**_CONTAINER, **_BUNDLE, "ELF header": f"{_ELF} e_phentsize e_phoff", "section header": _SECTIONS,
             "archive member": "size end"},
    "cubin": {"ELF header": f"{_ELF} e_machine", "section header": _SECTIONS, "attribute": "format",
              "symbol": f"{_SYMBOLS} st_value st_size"},
    "usage": {"ELF header": f"{_ELF} e_machine", "section header": _SECTIONS, "symbol": _SYMBOLS},
    "code-object": {"ELF header": f"{_ELF} e_machine e_phentsize e_phoff", "section header": _SECTIONS,
                    "symbol": "st_name st_value", "note": "n_namesz n_descsz"},
    "section": {"section_header": "magic version rows size rows_offset names_offset maker_offset probes_offset "
                "probes_size reader_offset reader_size report_offset report_size restore_offset restore_size",
                "section_twins": "arch entry_offset entry_size device"},
    "twins": {"twins_header": "magic version reserved size maps_offset kernels_offset images_offset maps kernels "
              "images",
              "map": "kind level", "twin_image": "offset size",
              "twin_kernel": "name_offset twin_offset detail_offset files_offset parameters_offset variables_offset "
              "reason files parameters variables"},
    "offload-binary": {"offload binary": "magic version size entry_offset",
                       "offload entry": "string_offset strings image_offset image_size",
                       "offload string": "key_offset value_offset"},
    "host": {"ELF header": f"{_ELF} e_phentsize e_phoff e_phnum", "section header": _SECTIONS,
             "program header": "p_offset p_vaddr p_filesz p_memsz", "dynamic": "d_val"},
    "patched": {"section_header": "size restore_offset restore_size", "restore_header": "edits",
                "restore_edit": "size bytes_offset"},
    "wheel": {"ZIP end": "disk size offset", "ZIP local": "magic name_size extra_size",
              "ZIP central": "magic flags method compressed_size size name_size extra_size comment_size offset"},
}  # fmt: skip
"""Fields that cannot hold ones alone wherever they are used: by format and structure."""
PER_FIELD = 2
"""Structures of one kind whose fields are gone through, of those in all inputs of a format; one of what takes long."""


def chosen_places(name: str) -> list[tuple[bytes, list[Place]]]:
    """The inputs of a format, each with fields: all kinds of structures occur, as often as PER_FIELD says, in the
    inputs that have them first."""
    seen: Counter[tuple[str, str]] = Counter()
    most = 1 if name in (*WRITTEN, "file") else PER_FIELD
    chosen = []
    for data in TARGETS[name].seeds():
        found = places(data)
        own = [place for place in found if seen[place.structure, place.field] < most]
        own = list({(place.structure, place.field): place for place in reversed(own)}.values())
        seen.update((place.structure, place.field) for place in own)
        chosen.append((data, own))
    return chosen


@pytest.mark.parametrize("name", FORMATS)
def test_every_field_set_to_every_value(name):
    for data, chosen in chosen_places(name):
        for place in chosen:
            values = FEW if name in WRITTEN else field_values(place, chosen, data)
            for value in sorted({value & ((1 << 8 * place.width) - 1) for value in values}):
                changed = bytearray(data)
                place.put(changed, value)
                if changed != data:
                    check_input(TARGETS[name].run, bytes(changed))


@pytest.mark.parametrize("name", FORMATS)
def test_every_truncation(name):
    """At each field's edges, and everywhere in the first half kilobyte."""
    data = max(TARGETS[name].seeds(), key=len)
    edges = {edge for place in places(data) for edge in (place.offset, place.offset + place.width)}
    for cut in sorted(edges | set(range(0, min(len(data), 512), 8 if name in WRITTEN else 1))):
        check_input(TARGETS[name].run, data[:cut])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_several_fields_at_once(data):
    """Sizes and offsets that agree with each other and with nothing else: the overlap of two parts, mostly."""
    name = data.draw(st.sampled_from(READ))
    seed = data.draw(st.sampled_from(TARGETS[name].seeds()))
    chosen = places(seed)
    changed = bytearray(seed)
    for _ in range(data.draw(st.integers(2, 5)) if chosen else 0):
        place = data.draw(st.sampled_from(chosen))
        place.put(changed, data.draw(st.sampled_from(field_values(place, chosen, seed)) | st.integers(0, 1 << 64)))
    check_input(TARGETS[name].run, bytes(changed))


@pytest.mark.parametrize("name", FORMATS)
def test_some_field_is_looked_at(name):
    """The tests above would also pass if nothing were read: most fields of a format must be refused when wrong."""
    wanted = {(structure, field) for structure, fields in REFUSED[name].items() for field in fields.split()}
    for data in TARGETS[name].seeds():
        TARGETS[name].run(data)
        for place in places(data):
            if (place.structure, place.field) not in wanted:
                continue
            changed = bytearray(data)
            place.put(changed, (1 << 8 * place.width) - 1)
            with contextlib.suppress(FormatError):
                TARGETS[name].run(bytes(changed))
                continue
            wanted.discard((place.structure, place.field))
    assert not wanted


@pytest.mark.parametrize("name", FORMATS)
def test_errors_name_the_file_and_a_place_in_it(name):
    data = max(TARGETS[name].seeds(), key=len)
    for cut in range(0, min(len(data), 64), 5):
        try:
            TARGETS[name].run(data[:cut])
        except FormatError as error:
            caught = error
        else:
            continue
        assert caught.file
        assert 0 <= caught.offset <= max(cut, 64)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        (fields.CONTAINER, 16), (fields.ENTRY, 64), (fields.WRAPPER, 24),
        (fields.SECTION_HEADER, 64), (fields.PROGRAM_HEADER, 56), (fields.SYMBOL, 24),
        (fields.DYNAMIC, 16), (fields.RELA, 24), (fields.BUNDLE_ENTRY, 24),
        *((fields.COMPRESSED_BUNDLE[version], size) for version, size in ((1, 20), (2, 24), (3, 32))),
    ],
)  # fmt: skip
def test_the_tables_leave_nothing_out(fields, size):
    ends = [field.offset + field.width for field in fields]
    assert [field.offset for field in fields] == [0, *ends[:-1]]
    assert ends[-1] == size


def test_fields_are_found_where_they_were_written():
    """In a library with device code: the addresses, sizes and numbers that its builder put there."""
    device = seeds.containers()[2]
    data = seeds.host(device)
    found = {(place.structure, place.field): place.value(data) for place in reversed(places(data))}
    begin = data.index(device)
    assert found["container", "size"] == len(device) - 16
    assert found["entry", "arch"] == 75
    assert found["wrapper", "data"] == found["relocation", "r_addend"] == begin + 0x10000
    assert found["ELF header", "e_machine"] == 62
    assert found["ELF header", "e_phnum"] == 3
    for own, seed in ((SECTION_HEADER, seeds.sections()[0]), (TWINS_HEADER, seeds.twins(2))):
        values = {place.field: place.value(seed) for place in places(seed) if place.structure == own.name}
        assert values["size"] in (len(seed), len(seeds.twins(2)))
        assert set(values) == {member.name for member in own.members}


def test_tables_of_fields_cover_every_structure_of_ours():
    seen = {place.structure for seed in itertools.chain(seeds.sections(), [seeds.twins(2)])
            for place in places(seed)}  # fmt: skip
    assert {"section_header", "section_twins", "twins_header", "twin_kernel", "twin_image", "map"} <= seen
