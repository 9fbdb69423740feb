"""Twins assembled, held against their originals, and made entries."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.assemble.assembly import Assembly
from neutrino.assemble.built import Built, Original, build_originals, build_twins, spills
from neutrino.assemble.manifest import assembled_members, probed_entry, unassembled_manifest
from neutrino.assemble.numerics.comparison import Arithmetic
from neutrino.assemble.numerics.explicit_fma import Pinned
from neutrino.assemble.parts import Judged
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.verdict import Judge, Verdict
from neutrino.assemble.warnings import newly_warned
from neutrino.cache.entry import KernelEntry
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.toolchain.refusal import AssemblyError

_REGISTER_UNIT = 8
"""Registers are handed out to threads in units of this many (CUDA occupancy calculator, all of sm_75 to sm_120)."""


def judge_twins(
    twins: Sequence[TwinKernel],
    assembly: Assembly,
    probes: ProbeSet,
    *,
    retargeting: Retargeting | None = None,
    pins: Pinned | None = None,
) -> Judged:
    """Assemble twins and hold them against their originals.

    retargeting: where the twins' text is for another architecture; then the originals' own text is held against their
    machine code as well. pins: what is known of twins that are pinned.

    Gives entries of all kernels with twins, good or not, and the images that the good ones are in.
    """
    return _Attempt(twins, assembly, probes, retargeting, pins).run()


class _Attempt:
    """The twins of one image, assembled and judged. All state that several steps of it need."""

    def __init__(
        self,
        twins: Sequence[TwinKernel],
        assembly: Assembly,
        probes: ProbeSet,
        retargeting: Retargeting | None,
        pins: Pinned | None,
    ) -> None:
        self._twins = twins
        self._assembly = assembly
        self._probes = probes
        self._retargeting = retargeting
        self._arithmetic = Arithmetic(assembly, pins)
        self._judge = Judge(assembly, self._arithmetic, retargeting)

    def run(self) -> Judged:
        twins = self._twins
        names = [twin.name for twin in twins]
        with ThreadPoolExecutor(2) as pool:
            # The original's spills are only known by assembling its text; ptxas has a process of its own
            # meanwhile.
            is_variant = self._retargeting is not None
            original_job = pool.submit(build_originals, self._assembly, {*names}, is_variant=is_variant)
            built = build_twins(self._assembly, names, "probed")
            try:
                original = original_job.result()
            except AssemblyError as error:
                if self._retargeting and len(twins) > 1:
                    return self._without_refused()
                return {twin.name: self._refused_original(twin, error.reason) for twin in twins}, ()
        verdicts = self._verdicts(twins, original, built)
        good = [twin for twin in twins if verdicts[twin.name] is None]
        capped = self._cap(good, original, built)
        # A cap that costs nothing is no second choice: the twin takes no more of the register file than the original.
        free = {twin.name for twin in good if _spills_no_more(capped, twin, original)}
        images = () if len(free) == len(good) else (built.image,)
        entries = {}
        for twin in twins:
            verdict = verdicts[twin.name]
            if verdict is not None:
                entries[twin.name] = KernelEntry(twin.name, *verdict)
            elif twin.name in free:
                entry = self._probed(twin, original, capped, Built())
                entries[twin.name] = replace(entry, image=len(images))
            else:
                entries[twin.name] = self._probed(twin, original, built, capped)
        return entries, (*images, capped.image) if capped.kernels else images

    def _refused_original(self, twin: TwinKernel, reason: str) -> KernelEntry:
        detail = self._judge.of_variant(f"{self._assembly.name} refuses the original: {reason}")
        return KernelEntry(twin.name, Reason.VARIANT if self._retargeting else Reason.ASSEMBLER, detail)

    def _without_refused(self) -> Judged:
        """Again without those whose own text is refused by itself: one variant must not take the others with it."""
        def attempt(twin: TwinKernel) -> str | None:
            try:
                self._assembly.originals([twin.name])
            except AssemblyError as error:
                return error.reason
            return None

        with ThreadPoolExecutor(2) as pool:
            reasons = list(pool.map(attempt, self._twins))
        left = [twin for twin, reason in zip(self._twins, reasons, strict=True) if reason is None]
        if len(left) == len(self._twins):
            reasons = ["only together with other kernels"] * len(left)
            left = []
        refused = {
            twin.name: self._refused_original(twin, reason)
            for twin, reason in zip(self._twins, reasons, strict=True)
            if reason is not None
        }
        if not left:
            return refused, ()
        made, images = judge_twins(left, self._assembly, self._probes, retargeting=self._retargeting)
        return {**refused, **made}, images

    def _verdicts(
        self, twins: Sequence[TwinKernel], original: Original, built: Built
    ) -> dict[str, Verdict | None]:
        """What stands against each of these twins."""
        assembled = [twin for twin in self._twins if twin.twin_name in built.kernels]
        warned = newly_warned(assembled, self._assembly, original.warnings, built.warnings)
        return {twin.name: self._judge.verdict(twin, original, built, warned) for twin in twins}

    def _cap(self, good: Sequence[TwinKernel], original: Original, built: Built) -> Built:
        """Again, under the original's register count, the twins that need more; only those that came out well."""
        limits = {}
        for twin in good:
            limit = align_up(original.machine.kernels[twin.name].registers, _REGISTER_UNIT)
            if align_up(built.kernels[twin.twin_name].registers, _REGISTER_UNIT) > limit:
                limits[twin.name] = limit
        if not limits:
            return Built()
        capped = build_twins(self._assembly, list(limits), "capped", limits)
        there = [twin for twin in good if twin.name in limits and twin.twin_name in capped.kernels]
        verdicts = self._verdicts(there, original, capped)
        sound = {
            twin.twin_name: capped.kernels[twin.twin_name]
            for twin in there
            if verdicts[twin.name] is None and capped.kernels[twin.twin_name].registers <= limits[twin.name]
        }
        return replace(capped, kernels=sound)

    def _probed(self, twin: TwinKernel, original: Original, built: Built, capped: Built) -> KernelEntry:
        manifest = unassembled_manifest(twin, self._assembly.arch, self._probes, built.emit)
        manifest |= assembled_members(twin, original, built, capped, self._retargeting)
        manifest["numerics"] = self._arithmetic.manifest(twin, original, built)
        manifest["assembler"] = self._assembly.name
        return probed_entry(twin, manifest, capped=twin.twin_name in capped.kernels)


def _spills_no_more(capped: Built, twin: TwinKernel, original: Original) -> bool:
    """Whether the twin under a register cap is there, and spills no more than the original."""
    if twin.twin_name not in capped.kernels:
        return False
    own, others = spills(capped.resources[twin.twin_name]), spills(original.resources[twin.name])
    return all(own[kind] <= others[kind] for kind in others)
