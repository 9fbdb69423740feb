"""What a probe adds to kernels by ``ptxas``: registers, bytes that spill, machine instructions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.maker.patcher import patch_image
from neutrino.maps.registry import SUM
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes

Json = Any
FIXTURES = Path(__file__).parent / "fixtures" / "kernels"
PROBES = (
    "block_sched", "branch_divergence", "gmem_bytes", "inst_count", "program_progress", "smem_bank_conflict",
    "tensorop", "value_watch",
)  # fmt: skip
"""Shipped probes whose cost is followed from change to change; docs/library.md has the others' prices."""
COLUMNS = (
    "file",
    "kernel",
    "reason",
    "registers",
    "with",
    "spilled",
    "spilled_with",
    "instructions",
    "instructions_with",
)

_INSTRUCTION = 16
_NOP = 0x918
_WORD = 12


def instructions(code: bytes) -> int:
    """Count the machine instructions of a kernel, without the padding after it. code: for sm_75 or newer, 16 bytes
    each."""
    words = [
        int.from_bytes(code[at : at + 8], "little") & ((1 << _WORD) - 1) for at in range(0, len(code), _INSTRUCTION)
    ]
    while words and words[-1] == _NOP:
        words.pop()
    return len(words)


def _arch(text: str) -> str:
    """Return the architecture to assemble a PTX text for: its own target, at least sm_75."""
    match = re.match(r"sm_(\d+)", parse(text).target)
    return f"sm_{max(int(match[1]), 75)}" if match else "sm_90"


def examine(file: str, text: str, probes: Sequence[str], assembler: Assembler) -> dict[str, list[Json]]:
    """Probe every kernel of a PTX text; return registers, spills and instructions before and after, by probe.

    A row of COLUMNS for each kernel in which the probe has a site; None where one could not be probed.
    """
    arch = _arch(text)
    target = parse(text).target
    original = read_cubin(assembler.assemble(text, target if target[-1] in "af" else arch).cubin, file).kernels
    found: dict[str, list[Json]] = {}
    for probe in probes:
        loaded = load_probes([probe])
        image = text.encode("latin-1") + b"\0"
        data = patch_image(image, loaded, arch, selection=Selection((), ()), assembler=assembler, key=bytes(32))
        entry = read_entry(data, file)
        twins = [read_cubin(image, file).kernels for image in entry.images]
        rows = found.setdefault(probe, [])
        for kernel in entry.kernels:
            if kernel.reason is not Reason.PROBED:
                if kernel.reason is not Reason.NO_SITE:
                    rows.append([file, kernel.name, kernel.reason.word, *[None] * (len(COLUMNS) - 3)])
                continue
            manifest = json.loads(kernel.files["manifest.json"])
            if not _changes(loaded, manifest["sites"]):
                continue
            spills = [sum(manifest["spills"][side].values()) for side in ("original", "twin")]
            rows.append([
                file, kernel.name, "probed", manifest["registers"]["original"], manifest["registers"]["twin"], *spills,
                instructions(original[kernel.name].code), instructions(twins[kernel.image][kernel.twin].code),
            ])  # fmt: skip
    return found


def _changes(probes: ProbeSet, sites: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a probe does anything in a kernel but at its beginning and end. sites: those of the kernel, from its
    manifest."""
    return all(entry.kind.name != SUM.name for entry in probes.maps) or any(site["site"] is not None for site in sites)
