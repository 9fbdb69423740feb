"""Cache entries for kernels, from the verified outcomes of their twins, and the images that the entries refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import Outcomes
from neutrino.assemble.builds import TwinBuild
from neutrino.assemble.emit import Emit
from neutrino.assemble.outcome import Outcome, Result
from neutrino.backend.manifest import assembled_members, probed_entry, unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.values import Twin

_Twin = TypeVar("_Twin", bound=Twin)


def entries_of(
    outcomes: Outcomes, refused: Mapping[str, tuple[Reason, str]], forms: Mapping[Emit, str]
) -> BackendResult:
    """Return the entries of all kernels, and the images of the twins (instrumented copies) that were accepted.

    outcomes: of the attempts to assemble and verify the twins, by the kernel's name. refused: why no twin was written
    for other kernels. forms: the target's. The images that twins are normally launched from come first; images of
    versions under a register cap follow.
    """
    # A build has one image for all its twins.
    results = [outcome.result for outcome in outcomes.values() if outcome.result is not None]
    capped_results = [outcome.under_cap for outcome in outcomes.values() if outcome.under_cap is not None]
    images = _distinct(result.built for result in (*results, *capped_results))
    entries = {name: KernelEntry(name, *refusal) for name, refusal in refused.items()}
    entries |= {name: _entry(outcome, images, forms) for name, outcome in outcomes.items()}
    return BackendResult(entries, tuple(built.image for built in images))


def unassembled_entries(
    parts: Sequence[Sequence[_Twin]],
    manifest: Callable[[_Twin], dict[str, Any]],
    image: Callable[[Sequence[_Twin]], bytes],
) -> BackendResult:
    """Return the entries of twins that were not assembled, and an image for each part.

    So it is for the embedded device on a machine without an assembler: it runs the twins' text. parts: the twins of a
    module, in the parts that it was split into. manifest: returns a twin's manifest. image: returns the image of a
    part.
    """
    entries = {
        twin.name: probed_entry(twin, manifest(twin), image=number)
        for number, part in enumerate(parts)
        for twin in part
    }
    return BackendResult(entries, tuple(image(part) for part in parts))


def _distinct(builds: Iterable[TwinBuild]) -> list[TwinBuild]:
    """Return each build once, by identity, in the order of their first occurrence."""
    return list({id(built): built for built in builds}.values())


def _entry(outcome: Outcome, images: Sequence[TwinBuild], forms: Mapping[Emit, str]) -> KernelEntry:
    """Return the entry of one twin: with its manifest if it was accepted, else with the reason why not.

    outcome: of the attempts to assemble and verify it. images: the builds whose images the entry refers to by index.
    forms: the target's.
    """
    twin, result = outcome.twin, outcome.result
    if outcome.refusal is not None:
        return KernelEntry(twin.name, outcome.refusal.reason, outcome.refusal.detail)
    # An accepted twin has all of these.
    if result is None or outcome.run is None or outcome.run.original is None:
        raise LookupError(f"{twin.name}: neither refused nor there")
    assembly, original, under_cap = outcome.run.assembly, outcome.run.original, outcome.under_cap
    manifest = unassembled_manifest(twin, assembly.arch, forms[result.built.emit])
    manifest |= assembled_members(twin, original, result, under_cap, outcome.run.verifier.retargeting)
    manifest["numerics"] = dict(result.numerics)
    manifest["assembler"] = assembly.name
    if assembly.max_registers is not None and twin.name in result.built.caps:
        manifest["max_registers"] = assembly.max_registers
    # Images of twins under a cap come last, so that index 0 is free to say that there is none.
    capped = _image_index(under_cap, images) if under_cap is not None else 0
    return probed_entry(
        twin, manifest, image=_image_index(result, images), capped=capped, fewer_blocks=outcome.fewer_blocks
    )


def _image_index(result: Result, images: Sequence[TwinBuild]) -> int:
    """Return the index of the image that holds a kernel's result, among the images that were built."""
    return next(index for index, built in enumerate(images) if built is result.built)
