"""A trace with maps of floating-point numbers: the package, ``read.py`` and the report read it alike, NaNs too."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from neutrino.abi.levels import Level
from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.cli.report import main as report
from neutrino.errors import Span
from neutrino.maps.average import Average
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.float_scales import FloatPowers, FloatSteps
from neutrino.maps.float_sums import added_in_pairs
from neutrino.maps.hash import Hash
from neutrino.maps.histogram import Histogram
from neutrino.maps.regions import copies_of
from neutrino.maps.sum import Sum
from neutrino.resources import tool_path
from neutrino.tracing import Trace
from tests.tracing.trace_writer import TraceWriter, fill_regions

WARPS = 40
LAUNCHES = 3


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read", tool_path("read.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_map(name: str, kind: MapType, *types: str) -> Map:
    names = ("key", "value") if len(types) > 1 else ("value",)
    fields, _, _ = lay_out_fields([(field, ScalarType(word)) for field, word in zip(names, types, strict=True)])
    return Map(name, kind, Level.THREAD, kind.size(fields), 1, fields, Span(1, 1))


MAPS = (
    a_map("total", Sum(), "f32"), a_map("mean", Average(), "f64"),
    a_map("powers", Histogram(FloatPowers()), "f32"),
    a_map("steps", Histogram(FloatSteps(0, 1, 0.1)), "f64"),
    a_map("keys", Hash(8, ("sum", "min", "max")), "f32", "f32"),
)  # fmt: skip


def place_of(number: float) -> int:
    """A number of f32 in the order of numbers."""
    bits = int(np.float32(number).view("<u4"))
    return bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)


def cells_of(entry: Map, random: np.random.Generator, *, has_nan: bool) -> Any:
    """The copies of a record in memory."""
    copies = np.zeros(copies_of(entry, WARPS), entry.dtype)
    if entry.kind.name in ("sum", "avg"):
        name = "value" if entry.kind.name == "sum" else "sum"
        copies[name] = random.standard_normal(len(copies)) * 1e6
        copies[name][3] = math.nan if has_nan else 1.0
        if "count" in (copies.dtype.names or ()):
            copies["count"] = 7
    elif entry.kind.name == "histogram":
        for name in copies.dtype.names or ():
            copies[name] = random.integers(0, 3, len(copies))
    else:
        words = copies["words"].reshape(len(copies), -1, 5)
        for copy in range(len(copies)):
            key = int(np.float32([0.5, -2, math.nan][copy % 3]).view("<u4"))
            sums = np.array([copy + 0.25]).view("<u8")[0]
            least = ~np.uint64(place_of(copy - 3))
            words[copy, 5] = (~np.uint64(key), 2, sums, least, place_of(copy + 0.5))
    return copies


@pytest.fixture(params=[False, True], ids=["numbers", "a NaN"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "k", maps=MAPS)
    for _ in range(LAUNCHES):
        values = {entry.name: cells_of(entry, random, has_nan=request.param) for entry in MAPS}
        writer.launch(1, (1, 1, 1), (WARPS * 32, 1, 1), fill_regions(MAPS, WARPS, values))
    writer.write()
    return tmp_path / "trace"


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_they_are_read_alike(trace: Path, reader: ModuleType) -> None:
    (kernel,) = Trace(trace).kernels
    for number, launch in enumerate(kernel.launches()):
        _, sections, records = reader.parse(trace / "result" / "1.bin", number)
        for entry, section in zip(MAPS, sections, strict=True):
            rows = launch.maps[entry.name].valid()
            assert records[entry.name].tobytes() == rows.tobytes()
            assert section["kind"] == entry.kind.name
    assert reader.main([str(trace / "result" / "1.bin")]) == 0


def test_reports(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kernel,) = Trace(trace).kernels
    launches = list(kernel.launches())
    sums = [float(launch.maps["total"].valid()["value"][0]) for launch in launches]
    assert report([str(trace), "--json"]) == 0
    document = strict_json(capsys.readouterr().out)
    shown = {entry["name"]: entry for entry in document["traces"][0]["kernels"][0]["maps"]}
    (field,) = shown["total"]["fields"]
    if math.isnan(sums[0]):
        assert (field["total"], field["min"]) == ("nan", "nan")
        assert shown["mean"]["fields"][0]["mean"] == "nan"
    else:
        assert field["total"] == pytest.approx(math.fsum(sums), rel=1e-15)
        assert (field["min"], field["max"]) == (min(sums), max(sums))
        count = sum(int(launch.maps["mean"].valid()["count"][0]) for launch in launches)
        total = sum(float(launch.maps["mean"].valid()["sum"][0]) for launch in launches)
        assert shown["mean"]["fields"][0]["mean"] == pytest.approx(total / count, rel=1e-14)
    buckets = shown["powers"]["buckets"]
    assert (buckets[0]["low"], buckets[-2]["high"], buckets[-1]["low"]) == ("-inf", "inf", "nan")
    counts = sum(launch.maps["powers"].valid()["count"].astype(int) for launch in launches)
    assert [bucket["count"] for bucket in buckets] == counts.tolist()
    keys = {key["key"]: key for key in shown["keys"]["keys"]}
    assert keys.keys() == {0.5, -2.0, "nan"}
    copies = copies_of(MAPS[-1], WARPS)
    for first, key in enumerate((0.5, -2.0, "nan")):
        own = range(first, copies, 3)
        assert keys[key]["count"] == LAUNCHES * 2 * len(own)
        kept = {"sum": LAUNCHES * sum(copy + 0.25 for copy in own), "min": own[0] - 3, "max": own[-1] + 0.5}
        assert keys[key]["kept"] == kept
    assert report([str(trace), "--all"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "0.1 <0.2" in printed
    assert "NaN NaN" in printed
    for name in shown:
        assert report([str(trace), "--csv", "--map", name]) == 0
        assert len(capsys.readouterr().out.splitlines()) > LAUNCHES


def test_values_are_added_in_pairs() -> None:
    random = np.random.default_rng(1)
    for count in (1, 2, 3, 7, 8, 128):
        values = random.standard_normal((2, count)) * 2.0 ** random.integers(-40, 40, (2, count))
        for row, total in zip(values.tolist(), added_in_pairs(values).tolist(), strict=True):
            while len(row) > 1:
                pairs = [sum(row[at : at + 2]) for at in range(0, len(row) - 1, 2)]
                row = pairs + row[len(row) // 2 * 2 :]
            assert total == row[0]
