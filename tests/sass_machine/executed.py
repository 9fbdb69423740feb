"""Records of twins, held against what the interpreter executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from neutrino.tracing.views import MapView
from tests.sass_machine.lanes import LANES
from tests.sass_machine.launching import records_of
from tests.sass_machine.machine import Launch

_FIELDS = {"LDG": "load", "STG": "store", "ATOMG": "atomic", "REDG": "atomic", "RED": "atomic", "LDGSTS": "async_"}
_KINDS = {"LDG": 0, "STG": 1, "LDGSTS": 4}


def judge_records(probe: str, plain: Launch, launch: Launch, views: Mapping[str, MapView]) -> Iterator[str]:
    """What is wrong with a twin's records. plain, launch: of the kernel, and of the twin, whose records views are."""
    if probe == "block_sched":
        found = views["BlockSched"].valid().reshape(-1)
        warps = -(-prod(launch.block) // LANES)
        if len(found) != warps * prod(launch.grid):
            yield f"has {len(found)} records"
        for number, record in enumerate(found):
            block, warp = divmod(number, warps)
            end = launch.ends[launch.index(block), warp]
            start, elapsed = int(record["start"]), int(record["elapsed"])
            late, early = start - launch.begin(warp), end - start - elapsed
            if not (0 <= late <= 64 and 0 <= early <= 600 and record["cuid"] == launch.multiprocessor(block)):
                yield f"warp {number} is {record}, from {launch.begin(warp)} to {end}"
    elif probe == "gmem_bytes":
        wanted = Counter()
        for name, places, size in plain.accesses:
            wanted[_FIELDS[name]] += len(places) * size
        (found,) = views["GmemBytes"].valid().reshape(-1)
        have = {name: int(found[name]) for name in found.dtype.names if found[name]}
        if have != {name: size for name, size in wanted.items() if size}:
            yield f"counts {have}, not {dict(wanted)}"
    else:
        wanted = sorted(
            (int(place), size, _KINDS[name]) for name, places, size in plain.accesses for place in places
        )  # fmt: skip
        have = [(row[0], row[1], row[2]) for row in records_of(views)["GlobalAccesses"]]
        if have != wanted:
            yield f"has {len(have)} records {have[:2]}, not {len(wanted)} {wanted[:2]}"
