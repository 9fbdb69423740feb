"""``neutrino-probe list``: the probes that ship with Neutrino, one line each."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from neutrino.cli.probe_status import DONE, Commands
from neutrino.cli.table import table

if TYPE_CHECKING:
    from neutrino.maps.declaration import Map
    from neutrino.probing.ir.probe_set import ProbeSet


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe list`` and its options. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "list",
        help="the probes that ship with Neutrino",
        description="List the probes that ship with Neutrino: what each records, and how many instructions its "
        "snippets add to a kernel, per site and per thread, without those that save.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the shipped probes as a table or as JSON. Returns the exit status."""
    from neutrino.resources import shipped_probes
    from neutrino.targets import lowered
    from neutrino.verification import load_probe_file

    shipped = [(name, str(path), lowered(load_probe_file(path))) for name, path in shipped_probes().items()]
    if options.json:
        documents = [_document(name, path, probes) for name, path, probes in shipped]
        print(json.dumps({"probes": documents}, indent=1))
        return DONE
    rows = [[name, _records(probes), _instruction_counts(probes)] for name, _, probes in shipped]
    lines = table(("probe", "records", "instructions"), rows)
    # The head, then for each probe its row with its summary below.
    print(next(lines))
    for line, (_, _, probes) in zip(lines, shipped, strict=True):
        print(line)
        print(f"      {summary(probes.source)}")
    return DONE


def summary(source: str) -> str:
    """Return the first line of the comment that a probe file begins with, "" if it begins with anything else."""
    for line in source.splitlines():
        if line.startswith("#"):
            return line.lstrip("#").strip()
        # Blank lines may come before the comment.
        if line.strip():
            break
    return ""


def _described(entry: Map) -> str:
    """Return a map in words, of estimates without how they are made."""
    return entry.kind.complete().describe(entry) + (", estimated" if entry.kind.estimate_words() else "")


def _records(probes: ProbeSet) -> str:
    """Return in words what a set's maps record, for one line of a table: those per launch are described together."""
    from neutrino.abi.levels import Per
    from neutrino.maps.declaration import Layout

    per_launch = [entry for entry in probes.maps if entry.kind.layout is Layout.COPIES and entry.per is Per.LAUNCH]
    logs = [entry for entry in probes.maps if entry.kind.layout is Layout.CHUNKS]
    together = [*per_launch, *(logs if len(logs) > 1 else [])]
    descriptions = [_described(entry) for entry in probes.maps if entry not in together]
    if len(logs) > 1:
        sizes = [entry.size for entry in logs]
        descriptions.append(f"{len(logs)} logs of records of {_range(sizes)} bytes")
    if len(per_launch) > 1:
        kinds = {entry.kind.name for entry in per_launch}
        what = f"{kinds.pop()}s" if len(kinds) == 1 else "results"
        descriptions.append(f"{len(per_launch)} {what} of {sum(entry.size for entry in per_launch)} bytes per launch")
    else:
        descriptions += [_described(entry) for entry in per_launch]
    return "; ".join(descriptions) or "nothing"


def _instruction_counts(probes: ProbeSet) -> str:
    """Return in words how many instructions the snippets add: ``2 to 5 per site, 7 per thread``."""
    from neutrino.cli.probe_documents import snippet_sizes
    from neutrino.targets import lowered

    # Those in Python as the instructions that they become.
    sizes = snippet_sizes(lowered(probes))
    at_kernel = [sizes[probe.name] for probe in probes.probes if probe.tracepoint.is_kernel]
    at_sites = [sizes[probe.name] for probe in probes.probes if not probe.tracepoint.is_kernel]
    parts = []
    # A thread runs all snippets at the kernel's entry and end, so their sizes are added; at a site it runs those of the
    # probes that match there, so their sizes are a range.
    if at_sites:
        parts.append(f"{_range(at_sites)} per site")
    if sum(at_kernel):
        parts.append(f"{sum(at_kernel)} per thread")
    return ", ".join(parts)


def _range(sizes: list[int]) -> str:
    """The least and the greatest number in words, as ``2 to 5``; one number if they are the same."""
    return str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"


def _document(name: str, path: str, probes: ProbeSet) -> dict[str, Any]:
    """Return a shipped probe file's object in the JSON document. name: the probe's; path: of the file."""
    from neutrino.cli.probe_documents import map_document, probe_document, snippet_sizes

    sizes = snippet_sizes(probes)
    return {
        "name": name,
        "file": path,
        "summary": summary(probes.source),
        "platform": probes.platform,
        "probes": [probe_document(probe) | {"instructions": sizes[probe.name]} for probe in probes.probes],
        "maps": [map_document(entry) for entry in probes.maps],
    }
