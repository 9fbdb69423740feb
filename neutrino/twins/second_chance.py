"""Twins of one module judged; those refused for their arithmetic once more, pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neutrino.errors import FormatError, PtxError
from neutrino.parts import Judged, join
from neutrino.pinning import Pinned, pin_twins
from neutrino.probing.layout import Reason
from neutrino.probing.model import ProbeSet
from neutrino.ptx.twin import TwinKernel
from neutrino.toolchain import AssemblyError
from neutrino.twins.judging import judge_twins
from neutrino.twins.one_module import CutError, OneModule
from neutrino.twins.retargeting import Retargeting


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
        pins = pin_twins(
            refused, assembly.originals_text(names), assembly.originals(names), assembly.assemble,
            lambda twin: assembly.pinned((twin,)).text([twin.name]), assembly.arch,
        )  # fmt: skip
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
