"""What reports say of the registers that probes take from other blocks of a multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutrino.tracing.summary import KernelSummary


def warps_by_registers(registers: int, arch: str) -> int:
    """Return how many warps fit on a multiprocessor by a thread's registers alone, 0 where that is not known."""
    # Here, since few reports ask.
    from neutrino.backend.registry import target_of_device

    return target_of_device(arch).warps_by_registers(registers, arch)


def _blocks_by_registers(registers: int, threads: int, arch: str) -> int:
    """Return how many blocks of so many threads fit on a multiprocessor if nothing else limits them."""
    from neutrino.backend.registry import target_of_device

    lanes, *_ = target_of_device(arch).lanes
    return warps_by_registers(registers, arch) // max(-(-threads // lanes), 1)


def registers_text(registers: Mapping[str, Any], arch: str, max_registers: int | None) -> str:
    """Return the registers of an original and its twin (copy with probes), as ``registers 40 → 72 (48 → 28 warps by
    registers on a multiprocessor)``. registers, max_registers: as in a manifest.
    """
    text = f"registers {registers['original']} → {registers['twin']}"
    before, after = (warps_by_registers(registers[which], arch) for which in ("original", "twin"))
    if after < before:
        text += f" ({before} → {after} warps by registers on a multiprocessor)"
    return text if max_registers is None else f"{text} under --max-registers {max_registers}"


def occupancy_lines(summary: KernelSummary) -> Iterator[str]:
    """Yield lines about launches whose twin (instrumented copy) had fewer blocks at a time than the original would have
    had, and about the user's register cap."""
    manifest = summary.kernel.manifest
    if manifest is None or manifest.assembly is None:
        return
    found = manifest.assembly
    if manifest.max_registers is not None:
        yield f"registers limited by --max-registers {manifest.max_registers}"
    if summary.fewer_blocks:
        warps = [warps_by_registers(count, manifest.arch) for count in (found.registers_original, found.registers_twin)]
        text = f"fewer blocks at a time in {_launches(summary.fewer_blocks)}"
        blocks = _blocks(summary)
        if len(blocks) == 1:
            row = blocks[0]
            text += f": by registers alone {row['twin']} of {row['original']} blocks of {row['threads']:,} threads fit"
        elif warps[1] < warps[0]:
            text += f": by registers alone {warps[1]} of {warps[0]} warps fit"
        yield f"{text} on a multiprocessor" if ":" in text else text


def occupancy_document(summary: KernelSummary) -> dict[str, Any]:
    """Return what a report's JSON says of a kernel whose twin (copy with probes) runs fewer blocks at a time, and of
    the user's register cap: members of the kernel's object; empty where nothing is to say.
    """
    manifest = summary.kernel.manifest
    if manifest is None or manifest.assembly is None:
        return {}
    members: dict[str, Any] = {}
    if manifest.max_registers is not None:
        members["max_registers"] = manifest.max_registers
    if summary.fewer_blocks or summary.capped:
        found = manifest.assembly
        counts = {"original": found.registers_original, "twin": found.registers_twin, "capped": found.registers_capped}
        members["by_registers"] = {
            "warps": {
                which: None if count is None else warps_by_registers(count, manifest.arch)
                for which, count in counts.items()
            },
            "blocks": _blocks(summary),
        }
    return members


def _blocks(summary: KernelSummary) -> list[dict[str, int]]:
    """Return, for each block size that a kernel was launched with at a lower occupancy, how many blocks fit by
    registers.

    Those with most launches come first. A size is left out where registers alone do not explain it.
    """
    manifest = summary.kernel.manifest
    if manifest is None or manifest.assembly is None:
        return []
    rows = []
    for threads, launches in sorted(summary.fewer_by_threads.items(), key=lambda item: (-item[1], item[0])):
        original, twin = (
            _blocks_by_registers(count, threads, manifest.arch)
            for count in (manifest.assembly.registers_original, manifest.assembly.registers_twin)
        )
        if twin < original:
            rows.append({"threads": threads, "launches": launches, "original": original, "twin": twin})
    return rows


def _launches(count: int) -> str:
    """A number of launches in words."""
    return f"{count:,} {'launch' if count == 1 else 'launches'}"
