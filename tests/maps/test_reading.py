"""A trace with maps that have one record a launch: the package, ``read.py`` and the report read it alike."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from neutrino.abi.levels import LEVELS, Level
from neutrino.abi.records import lay_out_fields, record_dtype
from neutrino.abi.scalars import ScalarType
from neutrino.cli.report import main as report
from neutrino.errors import Span, TraceError
from neutrino.maps.average import Average
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.extreme import Maximum, Minimum
from neutrino.maps.hash import Hash
from neutrino.maps.histogram import Histogram
from neutrino.maps.integer_scales import Edges, Steps
from neutrino.maps.known_keys import KnownKeys
from neutrino.maps.regions import copies_of
from neutrino.maps.ring import Ring
from neutrino.maps.topk import TopK
from neutrino.resources import tool_path
from neutrino.tracing import Trace
from tests.tracing.trace_writer import TraceWriter, fill_regions

WARPS = 40


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read", tool_path("read.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_field(name: str, kind: MapType, scalar: ScalarType) -> Map:
    fields, _, _ = lay_out_fields([("value", scalar)])
    return Map(name, kind, Level.THREAD, kind.size(fields), 1, fields, Span(1, 1))


def write(folder: Path, maps: tuple[Map, ...], seed: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    writer = TraceWriter(folder)
    writer.kernel(1, "k", maps=maps)
    random = np.random.default_rng(seed)
    values = {}
    for entry in maps:
        cells = random.integers(0, 1000, (copies_of(entry, WARPS), len(entry.dtype.names or ())), np.uint64)
        values[entry.name] = cells.view(entry.dtype)[:, 0]
    writer.launch(1, (1, 1, 1), (WARPS * 32, 1, 1), fill_regions(maps, WARPS, values))
    writer.write()
    return values


def test_histograms(tmp_path: Path, reader: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    scales = (Histogram(), Histogram(Steps(-20, 100, 4)), Histogram(Edges((-5, 5))))
    wide = Histogram(Steps(0, 4096, 1))
    maps = (
        *(one_field(f"S{number}", kind, ScalarType.S32) for number, kind in enumerate(scales)),
        one_field("Log", Histogram(), ScalarType.U64), one_field("Wide", wide, ScalarType.U16),
    )  # fmt: skip
    values = write(tmp_path / "trace", maps, 5)
    (kernel,) = Trace(tmp_path / "trace").kernels
    (launch,) = kernel.launches()
    _, sections, records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    for entry, section in zip(maps, sections, strict=True):
        rows = launch.maps[entry.name].valid()
        cells = values[entry.name]
        counts = [sum(cells[name].tolist()) for name in cells.dtype.names or ()]
        assert isinstance(entry.kind, Histogram)
        assert [(low, high) for low, high, _ in rows.tolist()] == entry.kind.scale.buckets(entry.fields[0].type)
        assert rows["count"].tolist() == counts
        assert (section["kind"], records[entry.name].tolist()) == ("histogram", rows.tolist())
    assert copies_of(maps[-1], 4096) == 2
    assert report([str(tmp_path / "trace")]) == 0
    assert "a histogram over all threads" in capsys.readouterr().out
    assert report([str(tmp_path / "trace"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (shown,) = (entry for entry in document["traces"][0]["kernels"][0]["maps"] if entry["name"] == "S2")
    assert [(bucket["low"], bucket["high"]) for bucket in shown["buckets"]] == [
        (-(1 << 31), -6), (-5, 4), (5, (1 << 31) - 1),
    ]  # fmt: skip


def test_least_and_greatest(tmp_path: Path, reader: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    maps = tuple(
        one_field(f"{kind.name}_{scalar.value}", kind, scalar)
        for kind in (Minimum(), Maximum())
        for scalar in ScalarType
    )
    write(tmp_path / "trace", maps, 6)
    (kernel,) = Trace(tmp_path / "trace").kernels
    (launch,) = kernel.launches()
    _, _, records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    for entry in maps:
        rows = launch.maps[entry.name].valid()
        assert rows.shape == (1,)
        assert rows.dtype[0] == record_dtype(entry.fields, 8)[0]
        assert records[entry.name].tobytes() == rows.tobytes()
    assert report([str(tmp_path / "trace")]) == 0
    assert "max_u64: 1 launch of the greatest over all threads" in capsys.readouterr().out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cap", [1, 5])
def test_rings(
    level: Level, cap: int, tmp_path: Path, reader: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks, warps, threads = 3, 2, 40
    fields, size, _ = lay_out_fields([("value", ScalarType.U32)])
    entry = Map("Last", Ring(), level, size, cap, fields, Span(1, 1))
    owners = {Level.THREAD: (blocks, warps, 32), Level.WARP: (blocks, warps), Level.BLOCK: (blocks,)}[level]
    counts = np.random.default_rng(4).integers(0, 4 * cap, owners)
    if level is Level.THREAD:
        # Lanes of the last warp that have no thread.
        counts[:, 1, threads - 32 :] = 0
    slots = np.zeros((*owners, cap), "<u4")
    wanted = []
    for owner in np.ndindex(owners):
        for number in range(counts[owner]):
            slots[(*owner, number % cap)] = number
        wanted.append(list(range(counts[owner]))[-cap:])
    in_memory = np.swapaxes(slots, -1, -2) if level is Level.THREAD else slots
    data = fill_regions((entry,), warps, {"Last": in_memory, "Last.counts": counts}, blocks=blocks)
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "k", maps=(entry,))
    writer.launch(1, (blocks, 1, 1), (threads, 1, 1), data)
    writer.write()

    (kernel,) = Trace(tmp_path / "trace").kernels
    (launch,) = kernel.launches()
    view = launch.maps["Last"]
    places = view.places()
    axes = [places[axis] for axis in ("block", "warp", "lane") if axis in places]
    found: dict[tuple[int, ...], list[int]] = {owner: [] for owner in np.ndindex(owners)}
    for owner, value in zip(np.stack(axes, -1).tolist(), view.valid()["value"].tolist(), strict=True):
        found[tuple(owner)].append(value)
    assert list(found.values()) == wanted
    overwritten = int(np.maximum(counts - cap, 0).sum())
    assert view.dropped == overwritten > 0
    header, (section,), records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    assert reader.valid(header, section, records["Last"]).tolist() == view.valid().tolist()
    assert report([str(tmp_path / "trace")]) == 0
    printed = capsys.readouterr().out
    last = "one" if cap == 1 else cap
    assert f"the last {last} per {level.value}, {overwritten:,} overwritten" in printed
    assert "dropped" not in printed


def test_averages(tmp_path: Path, reader: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    integers = [scalar for scalar in ScalarType if scalar.value[0] in "us"]
    maps = tuple(one_field(f"mean_{scalar.value}", Average(), scalar) for scalar in integers)
    values = write(tmp_path / "trace", maps, 8)
    (kernel,) = Trace(tmp_path / "trace").kernels
    (launch,) = kernel.launches()
    _, sections, records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    for entry, section in zip(maps, sections, strict=True):
        (row,) = launch.maps[entry.name].valid().tolist()
        cells = values[entry.name]
        total = sum(cells["upper"].tolist())
        if entry.fields[0].type.size == 8:
            total = (total << 32) + sum(cells["lower"].tolist())
        count = sum(cells["count"].tolist())
        assert row == (count, total, total / count)
        assert (section["report"], records[entry.name].tolist()) == ("means", [row])
    assert reader.main([str(tmp_path / "trace" / "result" / "1.bin")]) == 0
    printed = capsys.readouterr().out
    assert f"mean: min {row[2]}, median {row[2]}, max {row[2]}" in printed
    assert report([str(tmp_path / "trace"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (shown,) = document["traces"][0]["kernels"][0]["maps"][-1]["fields"]
    assert (shown["name"], shown["values"], shown["mean"], shown["min"]) == ("value", row[0], row[2], row[2])
    assert report([str(tmp_path / "trace")]) == 0
    printed = capsys.readouterr().out
    assert "mean_u32: 1 launch of a mean over all threads" in printed
    assert "field  min  median  max  values  mean" in " ".join(printed.split()).replace(" ", "  ")


def keyed(name: str, kind: Hash | TopK) -> Map:
    fields, _, _ = lay_out_fields([("key", ScalarType.U64), *([("value", ScalarType.U64)] if kind.keep else [])])
    return Map(name, kind, Level.THREAD, kind.size(fields), 1, fields, Span(1, 1))


def keyed_trace(folder: Path, kinds: dict[str, Hash | TopK], tables: dict[str, list[list[list[int]]]]) -> None:
    """A trace of two launches. tables: entries as words (key, count …) in the first places, by map and copy."""
    maps = tuple(keyed(name, kind) for name, kind in kinds.items())
    writer = TraceWriter(folder)
    writer.kernel(1, "k", maps=maps)
    values = {}
    for entry in maps:
        document = entry.document()
        words = np.zeros((len(tables[entry.name]), document["places"] + 2, 2 + len(document["kept"])), np.uint64)
        for copy, table in enumerate(tables[entry.name]):
            for place, (key, *numbers) in enumerate(table):
                words[copy, place if key >= 0 else -1] = [~np.uint64(key) if key >= 0 else 0, *numbers]
        values[entry.name] = words.reshape(len(words), -1).view(entry.dtype)[:, 0]
    for _ in range(2):
        writer.launch(1, (1, 1, 1), (WARPS * 32, 1, 1), fill_regions(maps, WARPS, values))
    writer.write()


def test_keys(tmp_path: Path, reader: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fits = [[[7, 2, 20], [0, 5, 1]], [[7, 1, 300]]]
    lost = [[[7, 2], [9, 4], [-1, 3]], [[9, 1], [-1, 10]]]
    summed = [[[7, 2, 50], [-1, 3, 1 << 63]], [[7, 1, 5], [-1, 1, 1 << 63]]]
    kinds = {
        "Fits": Hash(4, ("sum",)), "Lost": Hash(1), "Top": TopK(4, ("sum",), 1), "Least": Hash(4, ("min",)),
        "Summed": TopK(2, ("sum",), 2),
    }  # fmt: skip
    inverted = (1 << 64) - 1
    least = [[[7, 1, inverted - 3], [8, 1, inverted]], [[7, 1, inverted - 30]]]
    keyed_trace(tmp_path / "trace", kinds, {"Fits": fits, "Lost": lost, "Top": fits, "Least": least, "Summed": summed})
    (kernel,) = Trace(tmp_path / "trace").kernels
    launch = next(iter(kernel.launches()))
    wanted = {
        "Fits": [(0, 5, 1, 0), (7, 3, 320, 0)],
        # Key 7 may have been among those without a place in the second copy, key 9 in none.
        "Lost": [(7, 2, 10), (9, 5, 0)],
        "Top": [(7, 3, 320, 0)],
        "Least": [(7, 2, 3, 0), (8, 1, 0, 0)],
        "Summed": [(7, 3, 55, 0)],
    }
    _, sections, records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    for section in sections:
        name = section["name"]
        assert launch.maps[name].valid().tolist() == wanted[name]
        assert records[name].tolist() == wanted[name]
        assert section["dropped"] == launch.maps[name].dropped == {"Lost": 13, "Summed": 4}.get(name, 0)
        dropped_sum = 1 << 64 if name == "Summed" else 0
        assert section["dropped_sum"] == launch.maps[name].dropped_sum == dropped_sum
    assert reader.main([str(tmp_path / "trace" / "result" / "1.bin")]) == 0
    printed = capsys.readouterr().out
    assert "Lost (hash, thread): 2 records" not in printed
    assert "Lost (hash, thread): 2 keys, 13 saves found no place" in printed
    assert "key 9, count 5, missed 0" in printed

    # Both launches together.
    assert report([str(tmp_path / "trace"), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    shown = {entry["name"]: entry for entry in document["kernels"][0]["maps"]}
    keys = {name: [(row["key"], row["count"], row["kept"]) for row in entry["keys"]] for name, entry in shown.items()}
    assert keys["Fits"] == [(7, 6, {"sum": 640}), (0, 10, {"sum": 2})]
    assert keys["Top"] == [(7, 6, {"sum": 640})]
    assert keys["Least"] == [(7, 4, {"min": 3}), (8, 2, {"min": 0})]
    assert (keys["Lost"], shown["Lost"]["dropped"]) == ([(9, 10, {}), (7, 4, {})], 26)
    assert report([str(tmp_path / "trace")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Fits: 2 launches of keys over all threads; 16 saves with 2 keys" in printed
    assert "key count share sum 7 6 37.5 % 640 0 10 62.5 % 2" in printed
    assert "Lost: 2 launches of keys over all threads; 26 saves found no place" in printed
    assert "26 saves of map Lost found no place for their keys: counts may be that much too low, and" in printed
    assert f"counts may be that much too low, sums {1 << 65:,}, and keys that are missing had no more" in printed


def test_sites_as_keys_have_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = keyed("Hot", TopK(8, (), 2))
    entry = replace(entry, fields=(replace(entry.fields[0], name="site"),))
    words = np.zeros(entry.document()["words"], np.uint64)
    for place, (site, count) in enumerate([(0, 5), (1, 90), (2, 7)]):
        words[2 * place : 2 * place + 2] = [~np.uint64(site), count]
    writer = TraceWriter(tmp_path / "trace")
    sites = [
        {"site": number, "probe": "p", "line": 30 + number, "instruction": f"ld.global.u32 %r{number}, [%rd1]",
         "source": "" if number == 2 else f"app.cu:{number}"}
        for number in range(3)
    ]  # fmt: skip
    writer.kernel(1, "k", maps=(entry,), sites=sites)
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions((entry,), 1, {"Hot": words.view(entry.dtype)}))
    writer.write()
    assert report([str(tmp_path / "trace")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 90 app.cu:1 ld.global.u32 %r1, [%rd1] 2 7 PTX line 32 ld.global.u32 %r2, [%rd1]" in printed
    assert "%r0" not in printed


@pytest.mark.parametrize("is_of_cells", [False, True], ids=["as older versions wrote it", "cells"])
def test_a_site_has_several_places(tmp_path: Path, reader: ModuleType, is_of_cells: bool) -> None:
    """Those that are a multiple of the period apart: the type has one where a kernel has few sites."""
    kind = Hash(8, ("sum", "min"))
    cells = kind.for_sites(3)
    assert cells.known == KnownKeys(12, is_by_site=True, stride=4), "of 32 places of 4 words"
    assert kind.for_sites(17).known == KnownKeys(0, is_by_site=True, stride=4)
    kind = cells if is_of_cells else replace(kind, known=KnownKeys(16, is_by_site=True))
    entry = keyed("Hot", kind)
    words = np.zeros(entry.document()["words"], np.uint64)
    period = 12 if is_of_cells else 16
    for place, count, total, least in [(0, 5, 50, 9), (2, 7, 70, 8), (period + 2, 1, 4, 4)]:
        first = 4 * place + (0 if is_of_cells else 1)
        words[first : first + 3] = count, total, ~np.uint64(least)
    # What found no place.
    words[-3:] = 1, 5, 0
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "k", maps=(entry,))
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions((entry,), 1, {"Hot": words.view(entry.dtype)}))
    writer.write()
    wanted = [(0, 5, 50, 9, 0), (2, 8, 74, 4, 0)]
    (kernel,) = Trace(tmp_path / "trace").kernels
    view = next(iter(kernel.launches())).maps["Hot"]
    assert (view.valid().tolist(), view.dropped, view.dropped_sum) == (wanted, 1, 5)
    _, _, records = reader.parse(tmp_path / "trace" / "result" / "1.bin")
    assert records["Hot"].tolist() == wanted
    manifest = tmp_path / "trace" / "kernel" / "1" / "manifest.json"
    text = manifest.read_text()
    known = f'"period": {period}'
    damages = [(known, f'"period": {other}') for other in ("true", f'"{period}"', f"{period}.0", "32", "-4", "17")]
    if is_of_cells:
        damages += [('"stride": 4', f'"stride": {other}') for other in ("2", "3", "true", '"4"', "-4")]
    else:
        damages += [(known, '"period": 8'), (known, f'{known}, "stride": 3')]
    for whole, damaged in damages:
        assert text.count(whole) == 1
        manifest.write_text(text.replace(whole, damaged))
        (kernel,) = Trace(tmp_path / "trace").kernels
        with pytest.raises(TraceError, match="map 'Hot'"):
            _ = kernel.manifest


def test_a_key_without_places_in_any_copy_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keyed_trace(tmp_path / "trace", {"Lost": Hash(1)}, {"Lost": [[[-1, 1]]]})
    (kernel,) = Trace(tmp_path / "trace").kernels
    launch = next(iter(kernel.launches()))
    assert (launch.maps["Lost"].valid().size, launch.maps["Lost"].dropped) == (0, 1)
    assert report([str(tmp_path / "trace")]) == 0
    assert "2 saves of map Lost found no place" in " ".join(capsys.readouterr().out.split())


def test_a_type_of_a_newer_version_is_named(tmp_path: Path, reader: ModuleType) -> None:
    write(tmp_path / "trace", (one_field("H", Histogram(), ScalarType.U32),), 1)
    manifest = tmp_path / "trace" / "kernel" / "1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"histogram"', '"sketch"'))
    (kernel,) = Trace(tmp_path / "trace").kernels
    with pytest.raises(TraceError, match=r"map 'H' is of type 'sketch', which this version does not know \(array, sum"):
        _ = kernel.manifest
    result = tmp_path / "trace" / "result" / "1.bin"
    data = bytearray(result.read_bytes())
    data[32 + 64] = 99
    result.write_bytes(data)
    with pytest.raises(ValueError, match="map H has type 99"):
        reader.parse(result)
