"""What a patched file was patched with, for listings: only what is shown is checked."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.device.kind import DeviceKind
from neutrino.elf.constants import MAGIC, PT_LOAD
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_MAGIC_START = b"NT"
"""The first bytes of the section's magic; the modules that know the format check all of it."""


@dataclass(frozen=True)
class Patched:
    """Summary of a patched file. probes: their names. archs: of the devices. maker: version of Neutrino.

    twins: number of kernels with a twin (instrumented copy), summed over all architectures. embedded: whether the twins
    are for the embedded device, the emulator, instead of GPUs.
    """

    probes: tuple[str, ...]
    archs: tuple[str, ...]
    twins: int
    maker: str
    embedded: bool = False


def read_patched(data: memoryview, name: str) -> Patched | None:
    """Return what ``neutrino-patch`` put into a file; None for a file that is not patched.

    data: the file's bytes. name: its name, for messages. Raises FormatError when its ``.neutrino`` section is damaged.
    """
    if bytes(data[: len(MAGIC)]) != MAGIC:
        return None
    elf = Elf(data, name)

    # Most files are not patched, so the imports below, which take longer than this, are done for candidates only.
    starts = [segment.offset for segment in elf.segments if segment.type == PT_LOAD]
    if not any(data[start : start + len(_MAGIC_START)] == _MAGIC_START for start in starts if start < len(data)):
        return None
    import json

    from neutrino.patched_files.place import find_section
    from neutrino.patched_files.section import read_section

    place = find_section(elf)
    if place is None:
        return None
    section = read_section(data[place.offset : place.offset + place.size], name, place.offset)
    try:
        twins = json.loads(section.report)["totals"]["probed"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(name, place.offset, "report", f"unreadable ({error})", "JSON with totals") from error
    archs = tuple(dict.fromkeys(row.arch for row in section.rows))
    embedded = any(row.device is DeviceKind.EMBEDDED for row in section.rows)
    # A report with something else than a number is for --check to find.
    twins = twins if isinstance(twins, int) else 0
    return Patched(tuple(section.names.split()), archs, twins, maker=section.maker, embedded=embedded)
