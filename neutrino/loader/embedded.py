"""The embedded device as a driver: the path of its stand-in, and its settings for this run."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.loader.driver import NAME, is_library

VARIABLE = "NEUTRINO_EMBEDDED"
"""The variable that configures the stand-in: ``key=value`` pairs with semicolons between them."""

_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARY = _PACKAGE / "emulator" / "lib" / NAME
_MEMORY = (64 << 20, 64 << 30)
"""The least and the greatest size of device memory, in bytes."""
_SIZE_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class EmbeddedDevice:
    """The user's settings of the embedded device; None for its default.

    seed: schedule warps in random order, the same for the same seed. delay: microseconds by which a stream's work is
    delayed at most, at random by seed. memory: bytes of device memory.
    """

    seed: int | None = None
    delay: int | None = None
    memory: int | None = None

    @classmethod
    def parse(cls, text: str) -> EmbeddedDevice:
        """From ``embedded`` or ``embedded:seed=3,delay=200,memory=1G``. Raises NeutrinoError for anything else."""
        name, _, rest = text.partition(":")
        if name != "embedded":
            raise NeutrinoError(
                f"--device {text}: there is no device of that name; use embedded, or leave --device out to use the "
                "machine's GPU"
            )
        known = [field.name for field in fields(cls)]
        values = {}
        for part in rest.split(",") if rest else []:
            key, _, value = part.partition("=")
            if key not in known:
                raise NeutrinoError(f"--device {text}: {key!r} is no option of it: {', '.join(known)}")
            match = re.fullmatch(r"(\d{1,15})([KMG]?)", value, re.ASCII)
            if match is None or (match[2] and key != "memory"):
                raise NeutrinoError(f"--device {text}: {key} needs a number, not {value!r}")
            values[key] = int(match[1]) << _SIZE_SHIFTS[match[2]]
        if not _MEMORY[0] <= values.get("memory", _MEMORY[0]) <= _MEMORY[1]:
            raise NeutrinoError(f"--device {text}: memory is from 64M to 64G")
        return cls(**values)

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """The variable for the stand-in. before: an environment whose other settings stay."""
        settings = dict(pair.partition("=")[::2] for pair in before.get(VARIABLE, "").split(";") if "=" in pair)
        own = {"python": sys.executable, "root": str(_PACKAGE.parent)}
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        own |= {key: str(value) for key, value in chosen.items() if value is not None}
        settings |= {key: value.replace("%", "%25").replace(";", "%3B") for key, value in own.items()}
        return {VARIABLE: ";".join(f"{key}={value}" for key, value in settings.items())}


def stand_in() -> Path:
    """The stand-in driver. Raises NeutrinoError when it was not built."""
    if not is_library(_LIBRARY):
        raise NeutrinoError(
            f"{_LIBRARY} is missing: the embedded device was not built; run make setup in a checkout, or install "
            "Neutrino again with a C compiler present"
        )
    return _LIBRARY
