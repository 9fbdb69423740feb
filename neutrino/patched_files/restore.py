"""Restore the original from a patched file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neutrino.elf.reader import Elf
from neutrino.errors import PatchError
from neutrino.patched_files.large_files import mapped_elf, replace_atomically, sha256_prefix
from neutrino.patched_files.original import copy_original, read_original
from neutrino.patched_files.section import NAME


def restore(source: Path, target: Path) -> None:
    """Write the original that the patched file source was made from to target, byte for byte.

    Target is replaced only when the restored bytes have the recorded digest; it may be source itself. Raises PatchError
    when source is not patched or another tool has changed it since, FormatError when it is damaged, OSError.
    """
    with mapped_elf(source) as (descriptor, data):
        original = read_original(Elf(data, str(source)))
        if original is None:
            raise PatchError(str(source), f"has no {NAME} section: it is not patched")
        # Raised in two cases below.
        changed = PatchError(
            str(source),
            "was changed by another tool (strip, patchelf …) after it was patched, so the original cannot be restored "
            "from it; use the file that was patched",
        )
        if not original.fits(len(data)):
            raise changed
        with replace_atomically(target, stat.S_IMODE(os.fstat(descriptor).st_mode)) as restored:
            copy_original(descriptor, restored, original)
            # The exception also removes the new file.
            if sha256_prefix(restored, original.size) != original.digest:
                raise changed
