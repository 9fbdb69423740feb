"""What patching a file did, kernel by kernel: the document of ``neutrino-patch --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neutrino.abi.reasons import REASON_TEXT, Reason
from neutrino.demangle import demangle

FILE_REASON_TEXT = {**REASON_TEXT, Reason.NOT_SELECTED: "not chosen by -k or --filter"}
"""What reasons mean of kernels in files: commands that read them have fewer options that choose than ``neutrino``."""
_BOTH = ("original", "twin")
_MOST_DETAILS = 8
"""Groups that one reason may have; the last one is for the remaining details if there are more."""


@dataclass(frozen=True)
class KernelReport:
    """What patching did to one kernel of one image.

    container, image: indices, as ``neutrino-extract`` shows them, of the image that the driver picks. arch: what the
    image's code is for. devices: architectures that the twin (instrumented copy) runs on. sites: number of instructions
    that the probes matched. registers: per thread, of original and twin; None if nothing was assembled. retargeted: as
    in the twin's manifest, or ``target`` alone for a kernel without twin; None if the PTX is for the machine code's own
    architecture. probes_left_out: those that are not in the twin, as in the manifest. max_registers: the user's cap
    that it was assembled under, None without one. warps_by_registers: on a multiprocessor, of original and twin, if
    launches may run the twin though fewer of its blocks fit; else None. is_of_machine_code: in a coverage, whether this
    is what came of making a twin of the kernel's machine code.
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
    probes_left_out: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    max_registers: int | None = None
    warps_by_registers: tuple[int, int] | None = None
    is_of_machine_code: bool = False

    @property
    def probed(self) -> bool:
        """Whether the kernel has a twin (copy with probes) in the patched file."""
        return self.reason is Reason.PROBED

    def document(self) -> dict[str, Any]:
        """Return what the JSON report of patching says of this kernel."""
        registers = None if self.registers is None else dict(zip(_BOTH, self.registers, strict=True))
        warps = self.warps_by_registers
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
            "probes_left_out": [dict(probe) for probe in self.probes_left_out],
            **({} if self.max_registers is None else {"max_registers": self.max_registers}),
            **({} if warps is None else {"warps_by_registers": dict(zip(_BOTH, warps, strict=True))}),
        }


@dataclass(frozen=True)
class Report:
    """What patching did to a file.

    output: the patched file; None if none was written. probes: names as the user gave them. archs: of the devices that
    twins were made for. refused: why the whole file must not be patched, "" if it may. notes: remarks for the user.
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
        """How many kernels of the file have a twin (copy with probes)."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def skipped(self) -> list[tuple[Reason, int]]:
        """Reasons of kernels without a twin, each with the number of kernels, the most frequent first."""
        counts = Counter(kernel.reason for kernel in self.kernels if not kernel.probed)
        # Equal numbers in the order of the reasons.
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    def document(self) -> dict[str, Any]:
        """Return the report as the JSON document of ``neutrino-patch --json``."""
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
class SkippedGroup:
    """Kernels without a twin for the same reason. text: the detail that they share, or what the reason means."""

    reason: Reason
    text: str
    kernels: tuple[KernelReport, ...]


def group_skipped(kernels: Iterable[KernelReport]) -> list[SkippedGroup]:
    """Group the kernels without a twin (instrumented copy) by reason and detail, the largest groups first.

    If a reason has many different details, the kernels with the rarest of them form one group without a detail.
    """
    details: dict[Reason, dict[str, list[KernelReport]]] = {}
    for kernel in kernels:
        if not kernel.probed:
            details.setdefault(kernel.reason, {}).setdefault(kernel.detail, []).append(kernel)
    groups = [group for reason, by_detail in details.items() for group in _group_by_detail(reason, by_detail)]
    return sorted(groups, key=lambda group: (-len(group.kernels), group.reason, group.text))


def _group_by_detail(reason: Reason, by_detail: Mapping[str, Sequence[KernelReport]]) -> Iterator[SkippedGroup]:
    """Yield the groups of one reason: one per detail, but the rarest details together if there are too many.

    by_detail: the reason's kernels by detail.
    """
    # The most frequent first. With too many, the last group is needed for the remaining ones.
    ordered = sorted(by_detail.items(), key=lambda item: (-len(item[1]), item[0]))
    separate = ordered if len(ordered) <= _MOST_DETAILS else ordered[: _MOST_DETAILS - 1]
    for detail, kernels in separate:
        # Some reasons need no detail.
        yield SkippedGroup(reason, detail or FILE_REASON_TEXT[reason], tuple(kernels))
    remaining = ordered[len(separate) :]
    if remaining:
        text = f"{FILE_REASON_TEXT[reason]} ({len(remaining)} more details, see --json)"
        yield SkippedGroup(reason, text, tuple(kernel for _, kernels in remaining for kernel in kernels))
