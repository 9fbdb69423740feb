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
_LEAST_MEMORY, _MOST_MEMORY = 64 << 20, 64 << 30
"""Sizes of device memory that are accepted, in bytes."""
_SIZE_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}
"""The suffixes of sizes, as powers of two."""


_WITHOUT = "use the machine's GPU, or a number to probe only that GPU"
"""What else may be meant, of a run."""


@dataclass(frozen=True)
class EmbeddedDevice:
    """The user's settings of the embedded device, the emulator behind a stand-in driver; None for a default.

    seed: for a random order of warps, which is the same for the same seed. delay: microseconds by which a stream's work
    is delayed at most, at random by seed. memory: bytes of device memory.
    """

    seed: int | None = None
    delay: int | None = None
    memory: int | None = None

    @classmethod
    def parse(cls, text: str, *, without: str = _WITHOUT) -> EmbeddedDevice:
        """Parse ``embedded`` or ``embedded:seed=3,delay=200,memory=1G``. Raises NeutrinoError for anything else.

        without: what leaving it out does, for the message.
        """
        name, _, options = text.partition(":")
        if name != "embedded":
            raise NeutrinoError(
                f"--device {text}: there is no device of that name; use embedded, or leave --device out to {without}"
            )
        option_names = [field.name for field in fields(cls)]
        values = {}
        for option in options.split(",") if options else []:
            key, _, value = option.partition("=")
            if key not in option_names:
                raise NeutrinoError(f"--device {text}: {key!r} is no option of it: {', '.join(option_names)}")
            match = re.fullmatch(r"(\d{1,15})([KMG]?)", value, re.ASCII)
            # Only a size may have a suffix.
            if match is None or (match[2] and key != "memory"):
                raise NeutrinoError(f"--device {text}: {key} needs a number, not {value!r}")
            values[key] = int(match[1]) << _SIZE_SHIFTS[match[2]]
        if "memory" in values and not _LEAST_MEMORY <= values["memory"] <= _MOST_MEMORY:
            raise NeutrinoError(f"--device {text}: memory is from 64M to 64G")
        return cls(**values)

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variable that configures the stand-in driver.

        before: the environment so far, whose settings stay unless they are set here.
        """
        # The user may have set the variable, for settings that --device does not have.
        pairs = [pair for pair in before.get(VARIABLE, "").split(";") if "=" in pair]
        settings = dict(pair.split("=", 1) for pair in pairs)
        # The stand-in driver runs the emulator by this Python, from this installation.
        values = {"python": sys.executable, "root": str(_PACKAGE.parent)}
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {key: str(value) for key, value in options.items() if value is not None}
        # A path may contain the separator.
        settings |= {key: value.replace("%", "%25").replace(";", "%3B") for key, value in values.items()}
        return {VARIABLE: ";".join(f"{key}={value}" for key, value in settings.items())}


def stand_in() -> Path:
    """Return the path of the stand-in driver: the ``libcuda.so.1`` that runs kernels on the embedded device.

    Raises NeutrinoError when it was not built.
    """
    if not is_library(_LIBRARY):
        raise NeutrinoError(
            f"{_LIBRARY} is missing: the embedded device was not built; run make setup in a checkout, or install "
            "Neutrino again with a C compiler present"
        )
    return _LIBRARY
