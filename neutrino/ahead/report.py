"""What patching a file did, kernel by kernel: the document of ``neutrino-patch --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neutrino.abi.reasons import REASON_TEXT, Reason
from neutrino.demangle import demangle

_MOST_DETAILS = 8
"""Different details of one reason that are listed separately."""


@dataclass(frozen=True)
class KernelReport:
    """One kernel of one image.

    container, image: indices as ``neutrino-extract`` shows them; of the image that the driver picks. arch: what its
    code is for. devices: which the twin serves. sites: instructions that the probes matched. registers: of original
    and twin, per thread; None where nothing was assembled. retargeted: as in the twin's manifest, of a kernel without
    one the ``target`` alone; None where the PTX is the machine code's own.
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
    retargeted: Mapping[str, Any] | None = field(default=None, hash=False)

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
            "retargeted": None if self.retargeted is None else dict(self.retargeted),
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


@dataclass(frozen=True)
class Skipped:
    """Kernels without a twin for one reason, and the detail that they share."""

    reason: Reason
    text: str
    kernels: tuple[KernelReport, ...]


def group_skipped(kernels: Iterable[KernelReport]) -> list[Skipped]:
    """Why kernels have no twin, the most frequent first. Of a reason with many details the rarest are one group, with
    what the reason means."""
    details: dict[Reason, dict[str, list[KernelReport]]] = {}
    for kernel in kernels:
        if not kernel.probed:
            details.setdefault(kernel.reason, {}).setdefault(kernel.detail, []).append(kernel)
    found = [group for reason, groups in details.items() for group in _by_detail(reason, groups)]
    return sorted(found, key=lambda group: (-len(group.kernels), group.reason, group.text))


def _by_detail(reason: Reason, groups: Mapping[str, Sequence[KernelReport]]) -> Iterator[Skipped]:
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    kept = ordered if len(ordered) <= _MOST_DETAILS else ordered[: _MOST_DETAILS - 1]
    for detail, kernels in kept:
        yield Skipped(reason, detail or REASON_TEXT[reason], tuple(kernels))
    rest = ordered[len(kept) :]
    if rest:
        text = f"{REASON_TEXT[reason]} ({len(rest)} more details, see --json)"
        yield Skipped(reason, text, tuple(kernel for _, kernels in rest for kernel in kernels))
