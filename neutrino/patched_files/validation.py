"""LIEF's complaints about a file: a second, independent ELF reader, for ``--check`` and the tests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import re
import tempfile
from pathlib import Path

from neutrino.elf.constants import PT_LOAD, SHT_GNU_HASH
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError
from neutrino.places import scratch_parent

_UNREAD_HASHES = ("Failed to read hash values", "GNU hash buckets corrupted")
"""Messages of LIEF 1.0 about a valid ``.gnu.hash`` that ends exactly where its segment does: LIEF needs one byte more.
readelf, pyelftools and the dynamic loader read such a table, and so does LIEF when the segment is longer."""
_UNKNOWN_MACHINE = "Unsupported relocation architecture"
"""A message of LIEF 1.0 about relocations of machines that it does not know; of several such files, of one alone."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def has_lief() -> bool:
    """Whether LIEF is installed (the extra ``check``)."""
    return importlib.util.find_spec("lief") is not None


def lief_version() -> str:
    """Return LIEF's installed version. Raises PackageNotFoundError if it is not installed."""
    return importlib.metadata.version("lief")


def complaints(path: Path) -> list[str]:
    """Return LIEF's warnings about an ELF file and its layout, one per line; empty for a valid file.

    LIEF reads the whole file into memory. Raises ImportError if LIEF is not installed, OSError if its log, a temporary
    file, cannot be written.
    """
    import lief

    folder = scratch_parent()
    with tempfile.NamedTemporaryFile("r", prefix="neutrino-", suffix=".log", errors="replace", dir=folder) as log:
        with lief.logging.level_scope(lief.logging.LEVEL.WARN):
            lief.logging.set_path(log.name)
            try:
                binary = lief.ELF.parse(str(path))
                layout = "" if binary is None else lief.ELF.check_layout(binary)[1]
            finally:
                # Closes the log, too.
                lief.logging.reset()
        warnings = [line.strip() for line in (*log.read().splitlines(), *layout.splitlines()) if line.strip()]
    warnings = [warning for warning in warnings if not warning.startswith(_UNKNOWN_MACHINE)]
    if binary is None:
        return [*warnings, "LIEF cannot read it"]
    # LIEF is wrong about such a table: see _UNREAD_HASHES.
    if any(warning.startswith(_UNREAD_HASHES) for warning in warnings) and _hash_table_ends_segment(path):
        return [warning for warning in warnings if not warning.startswith(_UNREAD_HASHES)]
    return warnings


def new_complaints(complaints: list[str], original: list[str]) -> list[str]:
    """Return the complaints about a patched file that LIEF does not have about its original.

    Numbers are ignored in the comparison, since offsets and sizes differ between the two files.
    """
    known = {_NUMBER.sub("#", complaint) for complaint in original}
    return [complaint for complaint in complaints if _NUMBER.sub("#", complaint) not in known]


def _hash_table_ends_segment(path: Path) -> bool:
    """Whether ``.gnu.hash`` ends exactly where a PT_LOAD does, which LIEF wrongly takes for damaged."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        elf = Elf(data, str(path))
        ends = {segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD}
        return any(section.type == SHT_GNU_HASH and section.offset + section.size in ends for section in elf.sections)
    except FormatError:
        # Then LIEF's complaint may well be right.
        return False
