"""What patching a file did, kernel by kernel: the document of ``neutrino-patch --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutrino.fatbin import demangle
from neutrino.probing.layout import REASON_TEXT, Reason


@dataclass(frozen=True)
class KernelReport:
    """One kernel of one image.

    container, image: indices as ``neutrino-extract`` shows them; of the image that the driver picks. arch: what its
    code is for. devices: which the twin serves. sites: instructions that the probes matched. registers: of original
    and twin, per thread; None where nothing was assembled. retargeted: from and to which architecture the PTX was
    lowered, "" if it was not.
    """

    name: str
    container: int
    image: int
    arch: str
    devices: tuple[str, ...]
    reason: Reason
    detail: str = ""
    sites: int = 0
    registers: tuple[int, int] | None = None
    retargeted: str = ""

    @property
    def probed(self) -> bool:
        """Whether it has a twin."""
        return self.reason is Reason.PROBED

    def document(self) -> dict[str, Any]:
        """The kernel's object in the JSON document."""
        registers = None if self.registers is None else {"original": self.registers[0], "twin": self.registers[1]}
        return {
            "name": self.name,
            "demangled": demangle(self.name),
            "container": self.container,
            "image": self.image,
            "arch": self.arch,
            "devices": list(self.devices),
            "status": "probed" if self.probed else "skipped",
            "reason": None if self.probed else self.reason.word,
            "detail": self.detail,
            "sites": self.sites,
            "registers": registers,
            "retargeted": self.retargeted or None,
        }


@dataclass(frozen=True)
class Report:
    """What was done to a file. output: None where none was written. probes: names as given.

    refused: why the file is left alone as a whole, "" if it is not. notes: what the user should know of it.
    """

    input: Path
    output: Path | None
    probes: tuple[str, ...]
    archs: tuple[str, ...]
    kernels: tuple[KernelReport, ...]
    notes: tuple[str, ...] = ()
    refused: str = ""

    @property
    def probed(self) -> int:
        """How many twins there are."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def skipped(self) -> list[tuple[Reason, int]]:
        """How many kernels have no twin, by reason, the most frequent first."""
        counts = Counter(kernel.reason for kernel in self.kernels if not kernel.probed)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    def document(self) -> dict[str, Any]:
        """The whole as JSON has it."""
        return {
            "input": str(self.input),
            "output": None if self.output is None else str(self.output),
            "probes": list(self.probes),
            "archs": list(self.archs),
            "refused": self.refused or None,
            "kernels": [kernel.document() for kernel in self.kernels],
            "notes": list(self.notes),
            "totals": {
                "kernels": len(self.kernels),
                "probed": self.probed,
                "skipped": len(self.kernels) - self.probed,
                "reasons": {reason.word: count for reason, count in self.skipped},
            },
        }


def reason_text(kernels: Sequence[KernelReport]) -> str:
    """Why kernels of one reason have no twin: the detail that all share, else what the reason means."""
    details = {kernel.detail for kernel in kernels}
    detail = details.pop() if len(details) == 1 else ""
    return detail or REASON_TEXT[kernels[0].reason]
