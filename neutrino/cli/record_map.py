"""Which map a query is about: that of ``--map``, or the only one that has the fields which the options name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from neutrino.cli.report_messages import say
from neutrino.errors import NeutrinoError, TraceError
from neutrino.maps.declaration import Report
from neutrino.probing.nearest import nearest
from neutrino.tracing import TraceKernel
from neutrino.tracing.recorded import RecordedMap

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_WORDS = frozenset({"and", "or", "not", "kernel", "line", "site", "records"})
"""Names in expressions that are no fields, or of any map."""
_OF_GROUPS = re.compile(r"_(?:min|mean|max|sum)$")


def map_names(kernel: TraceKernel) -> list[str]:
    """The names of the maps (what probes save to) that a kernel's twin (copy with probes) has."""
    return [entry.name for entry in kernel.manifest.probed_maps] if kernel.manifest else []


def chosen_map(kernels: Sequence[TraceKernel], options: argparse.Namespace) -> str:
    """Return the name of the map (what probes save to) to read: that of --map, the only one, the only one with the
    fields that --where, --group-by and --sort name, or the only one of these with records.

    Raises NeutrinoError if there is none, or are several.
    """
    known = sorted({name for kernel in kernels for name in map_names(kernel)})
    given = options.map
    if len(given) > 1:
        raise NeutrinoError("--map: the records of one map are printed at a time")
    if given and given[0] not in known:
        raise NeutrinoError(f"--map {given[0]}: no such map; there are {', '.join(known)}{_near(given[0], known)}")
    if given or len(known) == 1:
        return str(given[0]) if given else known[0]
    named = _named(options)
    columns = {name: _columns(kernels, name) for name in known}
    fitting = [name for name in known if named <= columns[name]]
    if not fitting:
        every = sorted(set().union(*columns.values()))
        absent = next((name for name in sorted(named) if name not in every), "")
        if absent:
            raise NeutrinoError(f"no map has a field {absent!r}; {_listed(columns)}{_near(absent, every)}")
        raise NeutrinoError(f"no map has all of {', '.join(sorted(named))}; {_listed(columns)}")
    if len(fitting) > 1:
        recorded = [name for name in fitting if _has_records(kernels, name)]
        if len(recorded) == 1:
            others = [name for name in fitting if name != recorded[0]]
            say(f"map {recorded[0]}, the only one with records: there are none in {', '.join(others)}")
            return recorded[0]
        raise NeutrinoError(f"there are several maps{_with(named)}: choose one with --map: {', '.join(fitting)}")
    return fitting[0]


def _named(options: argparse.Namespace) -> frozenset[str]:
    """The fields that the options' expressions name."""
    texts = [options.where, options.group_by, options.sort]
    names = {name for text in texts if text for name in _NAME.findall(text)}
    if options.group_by is not None and options.sort:
        # Those of groups are made of fields.
        own = _NAME.findall(options.sort)
        names = names - set(own) | {_OF_GROUPS.sub("", name) for name in own}
    return frozenset(names - _WORDS)


def _with(named: frozenset[str]) -> str:
    """What the maps have in common, in words."""
    return f" with {', '.join(sorted(named))}" if named else ""


def _columns(kernels: Sequence[TraceKernel], name: str) -> frozenset[str]:
    """The columns of a map's records; none of a map per run."""
    try:
        return frozenset(RecordedMap([kernel for kernel in kernels if name in map_names(kernel)], name).types)
    except TraceError:
        return frozenset()


def _listed(columns: dict[str, frozenset[str]]) -> str:
    """The fields of all maps in words."""
    places = frozenset({"launch", "block", "warp", "lane", "k", "order", "sm"})
    return "; ".join(f"{name} has {', '.join(sorted(own - places))}" for name, own in columns.items() if own - places)


def _near(word: str, known: Sequence[str]) -> str:
    """The known word that was probably meant, as the end of a sentence; "" if none is similar."""
    meant = nearest(word, known)
    return f"; did you mean {meant}?" if meant else ""


def _has_records(kernels: Sequence[TraceKernel], name: str) -> bool:
    """Whether a map has a record in some launch, or sums that are not 0."""
    for kernel in kernels:
        for views in kernel.stacks() if name in map_names(kernel) else ():
            view = views[name]
            if view.map.kind.report is Report.TOTALS:
                rows = view.valid()
                if any(rows[field].any() for field in rows.dtype.names or ()):
                    return True
            elif view.record_counts().any():
                return True
    return False
