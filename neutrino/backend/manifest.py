"""``manifest.json``: the description of one twin (instrumented copy of a kernel)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.assemble.builds import OriginalBuild, spills
from neutrino.assemble.outcome import Result
from neutrino.assemble.retargeting import Retargeting
from neutrino.demangle import demangle
from neutrino.maps.declaration import Layout
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.values import AssembledTwin, Site, Twin

MANIFEST = "manifest.json"
"""The name of the file among those of a kernel."""


def unassembled_manifest(twin: Twin, arch: str, form: str) -> dict[str, Any]:
    """Return the manifest of a twin (instrumented kernel), in which all that only an assembler reports is None.

    arch: what the twin's code is for, as ``sm_90``. form: in which the driver gets the twin, one of the target's
    ``forms``. In the manifest, offsets and sizes are in bytes; ``block`` is the probe block, the twin's last parameter.
    """
    return {
        "name": twin.name,
        "demangled": demangle(twin.name),
        "twin": twin.twin_name,
        "arch": arch,
        "parameters": [{"offset": item.offset, "size": item.size} for item in twin.parameters],
        "block": {"offset": twin.block_offset, "size": twin.block_size},
        "maps": [entry.document() for entry in twin.maps],
        "variables": list(twin.variables),
        "registers": None,
        "spills": None,
        "frame": None,
        "sites": site_rows(twin.sites),
        "sites_left_out": [asdict(site) for site in twin.left_out],
        **_probes_left_out(twin),
        "numerics": None,
        "assembler": None,
        "maxnreg": None,
        "emit": form,
        "retargeted": None,
    }


def _probes_left_out(twin: Twin) -> dict[str, Any]:
    """Return the member about probes that are not in a twin; none where all are."""
    rows = [asdict(probe) | {"reason": probe.reason.word, "maps": list(probe.maps)} for probe in twin.probes_left_out]
    return {"probes_left_out": rows} if rows else {}


def assembled_members(
    twin: AssembledTwin, original: OriginalBuild, result: Result, under_cap: Result | None,
    retargeting: Retargeting | None,
) -> dict[str, Any]:
    """Return the members of a manifest that are known after assembling, without ``numerics``.

    original: the kernel as it runs without probes. result: the verified twin. under_cap: the twin's second version,
    with fewer registers, if there is one. retargeting: set if the twin's text is for another architecture than the
    machine code that runs.
    """
    before, after = original.machine.kernels[twin.name], result.code
    # Without original.assembled the driver compiles the text itself, so that nothing was retargeted.
    return {
        "retargeted": {
            "target": retargeting.target,
            "same_code": original.unlike_in_code(twin) is None,
            "own_text": retargeting.own,
        } if retargeting and original.assembled else None,
        "registers": {
            "original": before.registers,
            "twin": after.registers,
            "capped": under_cap.code.registers if under_cap else None,
        },
        "spills": {
            "original": original.spills(twin.name),
            "twin": spills(result.resources),
            "capped": spills(under_cap.resources) if under_cap else None,
        },
        "frame": {"original": before.frame, "twin": after.frame},
        "maxnreg": result.built.caps.get(twin.name),
    }  # fmt: skip


def probed_entry(
    twin: Twin, manifest: dict[str, Any], *, image: int, capped: int = 0,
    fewer_blocks: FewerBlocks = FewerBlocks.NONE,
) -> KernelEntry:  # fmt: skip
    """Return the cache entry of a kernel with a twin.

    manifest: of the twin, complete. image: index of the image that the twin is in. capped: index of the image with its
    version under a register cap, or 0 if there is none. fewer_blocks: which launches may run it though fewer blocks of
    it fit on a multiprocessor than of the original.
    """
    return KernelEntry(
        twin.name,
        Reason.PROBED,
        "; ".join(f"probe '{probe.probe}' is left out: {probe.detail}" for probe in twin.probes_left_out),
        twin=twin.twin_name,
        parameters=tuple((item.offset, item.size) for item in twin.parameters),
        variables=twin.variables,
        block_offset=twin.block_offset,
        block_size=twin.block_size,
        image=image,
        capped=capped,
        fewer_blocks=fewer_blocks,
        lanes=twin.lanes,
        unused_logs=tuple(
            number for number, entry in enumerate(twin.maps) if entry.kind.layout is Layout.CHUNKS and not entry.cap
        ),
        files={
            MANIFEST: json.dumps(manifest, indent=1).encode(),
            **twin.files(manifest["maxnreg"]),
        },
    )


def site_rows(sites: Iterable[Site]) -> list[dict[str, Any]]:
    """Return where the probes go, as the rows of a manifest's ``sites``.

    line: in the kernel's PTX. source: the source line, as ``file.cu:42``; None where the PTX has no line information.
    """
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
        for site in sites
    ]
