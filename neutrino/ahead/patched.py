"""Whether a file was patched, and with what, for listings: only what is shown is checked."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.device.kind import DeviceKind
from neutrino.elf.constants import MAGIC, PT_LOAD
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_BEGINS = b"NT"
"""The first bytes of the section's magic. Code that knows the format checks the rest: importing it takes longer than
running it."""


@dataclass(frozen=True)
class Patched:
    """What a patched file says of itself. probes: their names. archs: of the devices. maker: Neutrino's version.

    twins: the kernels that have one, over all architectures. embedded: whether they are for the embedded device.
    """

    probes: tuple[str, ...]
    archs: tuple[str, ...]
    twins: int
    maker: str
    embedded: bool = False


def read_patched(data: memoryview, name: str) -> Patched | None:
    """What ``neutrino-patch`` put into a file; None for a file that is not patched.

    Raises FormatError when there is a section, and it is damaged.
    """
    if bytes(data[:4]) != MAGIC:
        return None
    elf = Elf(data, name)
    starts = [segment.offset for segment in elf.segments if segment.type == PT_LOAD]
    if not any(data[start : start + len(_BEGINS)] == _BEGINS for start in starts if start < len(data)):
        return None
    import json

    from neutrino.ahead.place import find_section
    from neutrino.ahead.section import read_section

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
    return Patched(tuple(section.names.split()), archs, twins if isinstance(twins, int) else 0, section.maker, embedded)
