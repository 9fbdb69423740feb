"""Twins of one module judged; those refused for their arithmetic once more, pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neutrino.abi.reasons import Reason
from neutrino.assemble.numerics.explicit_fma import Pinned, pin_twins
from neutrino.assemble.one_module import CutError, OneModule
from neutrino.assemble.parts import Judged, join
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.verification import judge_twins
from neutrino.errors import FormatError, PtxError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.same_code import SameCode
from neutrino.toolchain.ptxas import Assembled
from neutrino.toolchain.refusal import AssemblyError


def judge_with_pins(
    twins: Sequence[TwinKernel], assembly: OneModule, probes: ProbeSet, retargeting: Retargeting | None
) -> Judged:
    """As judge_twins; twins refused for their numbers of fused instructions are pinned, where that can be."""
    made = judge_twins(twins, assembly, probes, retargeting=retargeting)
    refused = [twin for twin in twins if made[0][twin.name].reason is Reason.NUMERICS]
    if not refused or not assembly.can_pin:
        return made
    names = {twin.name for twin in refused}
    try:
        original = assembly.originals(names)
        others = _others(refused, assembly, original)
        pins = pin_twins(
            [twin for twin in refused if twin.name not in others], assembly.originals_text(names), original,
            assembly.assemble, lambda twin: assembly.pinned((twin,)).text([twin.name]), assembly.arch,
        )  # fmt: skip
        pins = replace(pins, refused={**pins.refused, **others})
    except (AssemblyError, CutError):
        return made
    except (FormatError, PtxError) as error:
        # An assembler may come to write line information, or a twin's text, in a form that is not known here.
        pins = Pinned({}, {twin.name: str(error) for twin in refused})
    entries = {
        name: replace(entry, detail=f"{entry.detail}; {pins.refused[name]}") if name in pins.refused else entry
        for name, entry in made[0].items()
    }
    if not pins.twins:
        return entries, made[1]
    pinned = tuple(pins.twins.values())
    again = judge_twins(pinned, assembly.pinned(pinned), probes, retargeting=retargeting, pins=pins)
    return join([({name: entry for name, entry in entries.items() if name not in pins.twins}, made[1]), again])


def _others(twins: Sequence[TwinKernel], assembly: OneModule, original: Assembled) -> dict[str, str]:
    """Twins with loose sums whose originals' code is not what the assembler makes of their text, and what differs.

    What is fused with what in their text then says nothing of the code that runs.
    """
    loose = [twin for twin in twins if twin.loose is not None]
    if not loose or assembly.machine is None:
        return {}
    comparison = SameCode(assembly.machine.data, original.cubin)
    found = {twin.name: comparison.difference(twin.name, self_contained=twin.self_contained) for twin in loose}
    return {
        name: f"{difference} of the code that runs are not those that {assembly.name} makes of its text"
        for name, difference in found.items() if difference is not None
    }  # fmt: skip
