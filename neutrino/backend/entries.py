"""From verified outcomes to entries, and the images that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import Outcomes
from neutrino.assemble.builds import TwinBuild
from neutrino.assemble.outcome import Outcome, Result
from neutrino.backend.manifest import assembled_members, probed_entry, unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.cache.entry import KernelEntry
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinKernel


def entries_of(outcomes: Outcomes, probes: ProbeSet, refused: Mapping[str, tuple[Reason, str]]) -> BackendResult:
    """Entries of kernels with twins, good or not, and the images that the good ones are in.

    refused: kernels for which no twin was written, and why. First come the images that twins are launched from, then
    those under a register cap that are a second choice.
    """
    results = [outcome.result for outcome in outcomes.values() if outcome.result is not None]
    second = [outcome.under_cap for outcome in outcomes.values() if outcome.under_cap is not None]
    images = _distinct(result.built for result in (*results, *second))
    entries = {name: KernelEntry(name, *refusal) for name, refusal in refused.items()}
    entries |= {name: _entry(outcome, images, probes) for name, outcome in outcomes.items()}
    return BackendResult(entries, tuple(built.image for built in images))


def unassembled_entries(
    parts: Sequence[Sequence[TwinKernel]],
    manifest: Callable[[TwinKernel], dict[str, Any]],
    image: Callable[[Sequence[TwinKernel]], bytes],
) -> BackendResult:
    """The same of twins that no assembler has seen, an image for each part."""
    entries = {
        twin.name: probed_entry(twin, manifest(twin), image=number)
        for number, part in enumerate(parts)
        for twin in part
    }
    return BackendResult(entries, tuple(image(part) for part in parts))


def _distinct(builds: Iterable[TwinBuild]) -> list[TwinBuild]:
    return list({id(built): built for built in builds}.values())


def _entry(outcome: Outcome, images: Sequence[TwinBuild], probes: ProbeSet) -> KernelEntry:
    twin, result = outcome.twin, outcome.result
    if outcome.refusal is not None:
        return KernelEntry(twin.name, outcome.refusal.reason, outcome.refusal.detail)
    if result is None or outcome.run is None or outcome.run.original is None:
        raise LookupError(f"{twin.name}: neither refused nor there")
    assembly, original, under_cap = outcome.run.assembly, outcome.run.original, outcome.under_cap
    manifest = unassembled_manifest(twin, assembly.arch, probes, result.built.emit)
    manifest |= assembled_members(twin, original, result, under_cap, outcome.run.verifier.retargeting)
    manifest["numerics"] = dict(result.numerics)
    manifest["assembler"] = assembly.name
    capped = _place(under_cap, images) if under_cap is not None else 0
    return probed_entry(twin, manifest, image=_place(result, images), capped=capped)


def _place(result: Result, images: Sequence[TwinBuild]) -> int:
    return next(place for place, built in enumerate(images) if built is result.built)
