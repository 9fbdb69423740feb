"""What LIEF says of a file: a reader of ELF that shares nothing with this project's, for ``--check`` and the tests."""

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

_UNREAD_HASHES = ("Failed to read hash values", "GNU hash buckets corrupted")
"""What LIEF 1.0 says of a ``.gnu.hash`` that ends where its segment does: it wants a byte after it. Where the
segment goes on it reads the same table, as readelf, pyelftools and the dynamic loader do in any case."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def has_lief() -> bool:
    """Whether LIEF is installed (the extra ``check``)."""
    return importlib.util.find_spec("lief") is not None


def lief_version() -> str:
    """The version that is installed. Raises PackageNotFoundError without one."""
    return importlib.metadata.version("lief")


def complaints(path: Path) -> list[str]:
    """What LIEF warns of while it reads an ELF file, and what is wrong with the file's layout; empty for a valid one.

    LIEF holds the whole file in memory. Raises ImportError without LIEF, OSError for no room for its log.
    """
    import lief

    with tempfile.NamedTemporaryFile("r", prefix="neutrino-", suffix=".log", errors="replace") as log:
        with lief.logging.level_scope(lief.logging.LEVEL.WARN):
            lief.logging.set_path(log.name)
            try:
                binary = lief.ELF.parse(str(path))
                layout = "" if binary is None else lief.ELF.check_layout(binary)[1]
            finally:
                lief.logging.reset()
        found = [line.strip() for line in (*log.read().splitlines(), *layout.splitlines()) if line.strip()]
    if binary is None:
        return [*found, "LIEF cannot read it"]
    if any(complaint.startswith(_UNREAD_HASHES) for complaint in found) and _hashes_end_a_segment(path):
        return [complaint for complaint in found if not complaint.startswith(_UNREAD_HASHES)]
    return found


def new_complaints(complaints: list[str], original: list[str]) -> list[str]:
    """Those that the original has not as well, but for numbers: offsets and sizes are the patched file's own."""
    known = {_NUMBER.sub("#", complaint) for complaint in original}
    return [complaint for complaint in complaints if _NUMBER.sub("#", complaint) not in known]


def _hashes_end_a_segment(path: Path) -> bool:
    """Whether ``.gnu.hash`` ends exactly where a PT_LOAD does."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        elf = Elf(data, str(path))
        ends = {segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD}
        return any(section.type == SHT_GNU_HASH and section.offset + section.size in ends for section in elf.sections)
    except FormatError:
        return False
