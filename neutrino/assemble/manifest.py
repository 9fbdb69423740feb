"""``manifest.json``: what is known of one twin."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.built import Built, Original, spills
from neutrino.assemble.emit import Emit
from neutrino.assemble.retargeting import Retargeting
from neutrino.cache.entry import KernelEntry
from neutrino.fatbin import demangle
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinKernel


def unassembled_manifest(twin: TwinKernel, arch: str, probes: ProbeSet, emit: Emit) -> dict[str, Any]:
    """What a manifest holds of a twin that no assembler has seen."""
    return {
        "name": twin.name,
        "demangled": demangle(twin.name),
        "twin": twin.twin_name,
        "arch": arch,
        "parameters": [{"offset": item.offset, "size": item.size} for item in twin.parameters],
        "block": {"offset": twin.block_offset, "size": twin.block_size},
        "maps": [entry.document() for entry in probes.maps],
        "variables": list(twin.variables),
        "registers": None,
        "spills": None,
        "frame": None,
        "sites": site_rows(twin),
        "sites_left_out": [asdict(left) for left in twin.left_out],
        "numerics": None,
        "assembler": None,
        "maxnreg": None,
        "emit": emit.value,
        "retargeted": None,
    }


def assembled_members(
    twin: TwinKernel, original: Original, built: Built, capped: Built, retargeting: Retargeting | None
) -> dict[str, Any]:
    """What assembling settles of a manifest, but for the arithmetic. capped: the same under a cap, if that is there."""
    before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
    under_cap = capped.kernels.get(twin.twin_name)
    return {
        "retargeted": {
            "target": retargeting.target,
            "same_code": original.unlike_in_code(twin) is None,
            "own_text": retargeting.own,
        } if retargeting and original.assembled else None,
        "registers": {
            "original": before.registers,
            "twin": after.registers,
            "capped": under_cap.registers if under_cap else None,
        },
        "spills": {
            "original": spills(original.resources[twin.name]),
            "twin": spills(built.resources[twin.twin_name]),
            "capped": spills(capped.resources[twin.twin_name]) if under_cap else None,
        },
        "frame": {"original": before.frame, "twin": after.frame},
        "maxnreg": built.caps.get(twin.name),
    }  # fmt: skip


def probed_entry(twin: TwinKernel, manifest: dict[str, Any], *, capped: bool) -> KernelEntry:
    """The entry of a kernel with a twin. capped: it is there under a register cap as well."""
    return KernelEntry(
        twin.name,
        Reason.PROBED,
        twin=twin.twin_name,
        parameters=tuple((item.offset, item.size) for item in twin.parameters),
        variables=twin.variables,
        block_offset=twin.block_offset,
        block_size=twin.block_size,
        capped=int(capped),
        files={
            "manifest.json": json.dumps(manifest, indent=1).encode(),
            "original.ptx": twin.original_text.encode("latin-1"),
            "probed.ptx": twin.whole_text(manifest["maxnreg"]).encode("latin-1"),
        },
    )


def site_rows(twin: TwinKernel) -> list[dict[str, Any]]:
    """Where the probes went, as manifests say it."""
    return [
        {
            "probe": site.probe,
            "tracepoint": site.tracepoint,
            "site": site.number,
            "function": site.function,
            "line": site.line,
            "source": site.source or None,
            "instruction": site.instruction,
        }
        for site in twin.sites
    ]
