"""Restore the original from a patched file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neutrino.ahead.aside import digest, mapped, written_aside
from neutrino.ahead.original import copy_original, read_original
from neutrino.ahead.section import NAME
from neutrino.elf.reader import Elf
from neutrino.errors import PatchError


def restore(source: Path, target: Path) -> None:
    """Write the original that a patched file was made from, byte for byte.

    Target appears complete and verified by its digest, or not at all; it may be source. Raises PatchError when source
    is not patched or was changed since, FormatError when it is damaged, OSError.
    """
    with mapped(source) as (descriptor, data):
        original = read_original(Elf(data, str(source)))
        if original is None:
            raise PatchError(str(source), f"has no {NAME} section: it is not patched")
        changed = PatchError(
            str(source),
            "was changed by another tool (strip, patchelf …) after it was patched, so the original cannot be restored "
            "from it; use the file that was patched",
        )
        if not original.fits(len(data)):
            raise changed
        with written_aside(target, stat.S_IMODE(os.fstat(descriptor).st_mode)) as new:
            copy_original(descriptor, new, original)
            if digest(new, original.size) != original.digest:
                raise changed
