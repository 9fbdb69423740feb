"""``--group-by line|site|kernel`` of tables by site, over several launches and kernels of a trace that is built here:
what each way to read it adds up is what plain arithmetic does."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from neutrino.abi.levels import Level
from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.cli.report import main
from neutrino.errors import Span
from neutrino.maps.declaration import Map
from neutrino.maps.hash import Hash
from neutrino.resources import tool_path
from neutrino.tracing import Trace
from neutrino.tracing.recorded import RecordedMap
from tests.cli.test_site_tables import cells
from tests.tracing.trace_writer import TraceWriter, fill_regions

WARPS = 5
KEPT = ("sum", "min", "max")
# By kernel and site, its source line. Two kernels have sites at one line; of one kernel two sites are.
SITES = {
    ("walk", 0): "walk.cu:10", ("walk", 1): "walk.cu:10", ("walk", 2): "walk.cu:12", ("walk", 3): "walk.cu:20",
    ("step", 0): "walk.cu:12", ("step", 1): "step.cu:7",
}  # fmt: skip
LAUNCHES = ("walk", "step", "walk", "walk", "step")
NUMBERS = {"walk": 1, "step": 2}
WORDS = (0, 1, 7, 300, 1 << 40, (1 << 64) - 1)


@dataclass(frozen=True)
class Saved:
    """Some saves of one value, of a launch, in one of the copies of its table."""

    launch: int
    copy: int
    site: int
    count: int
    value: int

    @property
    def kernel(self) -> str:
        return LAUNCHES[self.launch]


def some_saves() -> list[Saved]:
    """Of all sites but one, in all launches, in four copies."""
    draw = random.Random(29)
    return [
        Saved(launch, copy, site, draw.randrange(1, 9), draw.choice(WORDS))
        for launch, kernel in enumerate(LAUNCHES)
        for copy in range(4)
        for name, site in SITES
        if name == kernel and (kernel, site) != ("walk", 3) and draw.random() < 0.8
    ]


def table() -> Map:
    fields, _, _ = lay_out_fields([("spot", ScalarType.U32), ("value", ScalarType.U64)])
    kind = Hash(8, KEPT)
    return Map("Spots", kind.for_sites(4), Level.THREAD, kind.size(fields), 1, fields, Span(1, 1))


def written(folder: Path, saves: list[Saved]) -> Path:
    """The trace of some saves, as kernels leave it: in a copy each site has two places, of which threads use either."""
    entry = table()
    known = table().document()
    writer = TraceWriter(folder)
    for kernel, identity in NUMBERS.items():
        sites = [
            {"probe": "p", "tracepoint": "ld.global", "line": site, "instruction": f"ld.{site};", "site": site}
            | {"source": source}
            for (name, site), source in SITES.items()
            if name == kernel
        ]
        writer.kernel(identity, kernel, maps=[entry], sites=sites)
    for launch, kernel in enumerate(LAUNCHES):
        words = np.zeros((4, known["words"]), np.uint64)
        for save in (save for save in saves if save.launch == launch):
            place = save.site + known["period"] * (save.count % 2)
            cells = words[save.copy, place * known["stride"] :][:4]
            cells[0] += np.uint64(save.count)
            cells[1] += np.uint64(save.count * save.value % (1 << 64))
            cells[2:] = np.maximum(cells[2:], [~np.uint64(save.value), np.uint64(save.value)])
        values = {"Spots": words.view(entry.dtype)[:, 0]}
        writer.launch(NUMBERS[kernel], (1, 1, 1), (WARPS * 32, 1, 1), fill_regions([entry], WARPS, values))
    return writer.write()


Group = tuple[int, int, int, int, int]
"""Count, sum, least, greatest, and how many sites."""
Part = tuple[str, int, int, int, int, int]
"""Of a kernel and a site: count, sum, least, greatest."""
GROUPS = {
    "line": lambda kernel, site: (kernel, SITES[kernel, site]),
    "site": lambda kernel, site: (kernel, site),
    "spot": lambda kernel, site: (kernel, site),
    "kernel": lambda kernel, site: (kernel,),
}


def added_up(by: str, parts: Iterable[Part]) -> dict[tuple[Any, ...], Group]:
    """Rows added up, in Python's integers."""
    groups: dict[tuple[Any, ...], list[Part]] = defaultdict(list)
    for part in parts:
        groups[GROUPS[by](part[0], part[1])].append(part)
    return {
        key: (
            sum(part[2] for part in some), sum(part[3] for part in some) % (1 << 64), min(part[4] for part in some),
            max(part[5] for part in some), len({part[:2] for part in some}),
        )
        for key, some in groups.items()
    }  # fmt: skip


def plain(kernel: str) -> str:
    """A kernel's name without its parameters."""
    return kernel.split("(", maxsplit=1)[0]


def of_columns(kernel: str, columns: Mapping[str, Any], key: str) -> Iterable[Part]:
    for row in zip(*(columns[name].tolist() for name in (key, "count", *KEPT)), strict=True):
        yield (kernel, *row)


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The script in a trace."""
    spec = importlib.util.spec_from_file_location("read", tool_path("read.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("launches", ["0:5", "1:4"])
@pytest.mark.parametrize("by", GROUPS)
def test_six_ways_add_up_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reader: ModuleType, by: str, launches: str
) -> None:
    first, end = map(int, launches.split(":"))
    saves = some_saves()
    trace = written(tmp_path / "trace", saves)

    def report(*options: str) -> str:
        assert main([str(trace), "--map", "Spots", "--launch", launches, *options]) == 0
        return capsys.readouterr().out

    def group_of(row: Mapping[str, Any]) -> tuple[tuple[Any, ...], Group]:
        kernel = plain(row["kernel"])
        which: tuple[Any, ...] = () if by == "kernel" else (row[by],)
        if by in ("site", "spot"):
            # In words the number is that in the instruction.
            which = (int(str(row[by]).rsplit("ld.")[-1].rstrip(";")),)
        # A group of one site does not say how many it has.
        numbers = [int(str(row.get(name, 1)).replace(",", "")) for name in ("count", *KEPT, "sites")]
        return (kernel, *which), tuple(numbers)  # type: ignore[return-value]

    ways: dict[str, dict[tuple[Any, ...], Group]] = {}
    grouped = json.loads(report("--group-by", by, "--json"))["rows"]
    ways["--json"] = dict(map(group_of, grouped))
    ways["--csv"] = dict(map(group_of, csv.DictReader(io.StringIO(report("--group-by", by, "--csv")))))
    ways["report"] = dict(map(group_of, cells(report("--group-by", by), str(trace))))
    rows = json.loads(report("--records", "--json"))["rows"]
    parts = [(plain(row["kernel"]), row["spot"], *(row[name] for name in ("count", *KEPT))) for row in rows]
    ways["--records"] = added_up(by, parts)
    recorded = RecordedMap(Trace(trace).kernels, "Spots", range(first, end))
    parts = [part for rows in recorded.rows() for part in of_columns(rows.kernel.name, rows.columns, "spot")]
    ways["Python"] = added_up(by, parts)
    parts = []
    for number, kernel in list(enumerate(LAUNCHES))[first:end]:
        _, _, records = reader.parse(trace / "result" / f"{NUMBERS[kernel]}.bin", number)
        parts += of_columns(kernel, records["Spots"], "key")
    ways["read.py"] = added_up(by, parts)

    wanted = added_up(
        by,
        [
            (save.kernel, save.site, save.count, save.count * save.value, save.value, save.value)
            for save in saves
            if first <= save.launch < end
        ],
    )
    assert len(wanted) > 1
    for way, found in ways.items():
        assert found == wanted, way
    sums = [row["sum"] for row in grouped]
    assert sums == sorted(sums, reverse=True)
    for row in grouped:
        assert row["mean"] == pytest.approx(row["sum"] / row["count"])
