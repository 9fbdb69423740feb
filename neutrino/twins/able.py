"""Which probes of a set a target can do; others are left out of its kernels, by name, before anything is written."""

from __future__ import annotations

from neutrino.abi.reasons import Reason
from neutrino.errors import NeutrinoError
from neutrino.probing.capabilities import Able, Capabilities, lacking, lacking_of, lacking_of_map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.twins.probe_units import ProbeLeftOut, Refusal, left_out, maps_of, search, searched, units_of


def able_probes(target: Able, probes: ProbeSet) -> tuple[ProbeSet, tuple[ProbeLeftOut, ...]]:
    """Return the probes that a target (an assembly language, such as PTX) can do, and the others with their reasons.

    Left out with a probe are those that save to its map, and those that read what it computes; the set's maps stay as
    they are. Raises NeutrinoError if probes are in the assembly of another target, or if this one can do none of them.
    """
    # Probes without hand-written instructions have no target: every target can lower them.
    if probes.target not in ("", target.name):
        raise NeutrinoError(f"{probes.file}: its assembly is {probes.target}, and these kernels take {target.name}")
    if target.capabilities == Capabilities():
        return probes, ()
    lacking_maps = {entry.name: lacking_of_map(entry, target.capabilities) for entry in probes.maps}
    alone: dict[str, Refusal] = {}
    for probe in probes.probes:
        missing = lacking_of(probe, target.capabilities)
        missing += [what for name in sorted(maps_of(probe)) for what in lacking_maps[name]]
        if missing:
            what = f"not available for kernels in {target.name}: {'; '.join(missing)}"
            alone[probe.name] = Refusal(Reason.UNSUPPORTED, what)
    if not alone:
        return probes, ()

    def why_not(names: frozenset[str]) -> Refusal | None:
        """Return why the target cannot do probes of these names together; None if it can."""
        return next((refusal for name, refusal in alone.items() if name in names), None)

    units = units_of(probes.probes)
    found = searched(search(units, next(iter(alone.values()))), why_not)
    if not found.kept:
        missing = lacking(probes, target.capabilities)
        raise NeutrinoError(f"{probes.file}: not available for kernels in {target.name}: {'; '.join(missing)}")
    return probes.only(found.kept), left_out(probes.probes, units, found, alone)


def check_able(target: Able, probes: ProbeSet) -> None:
    """Raise NeutrinoError if probes are in the assembly of another target, or if this one can do none of them."""
    able_probes(target, probes)
