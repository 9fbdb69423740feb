"""Ranges, sums and medians of records, in C and by NumPy alone, against NumPy on the same records one by one."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neutrino.abi.records import lay_out_fields, record_dtype
from neutrino.abi.scalars import ScalarType
from neutrino.tracing import aggregate, build
from neutrino.tracing.aggregate import Tiles, count_values, medians_of, ranges_of

Array = Any
TYPES = list(ScalarType)


@pytest.fixture(params=["c", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(aggregate, "_library", lambda: None)
    else:
        assert aggregate._library() is not None, "make setup builds it"
    return str(request.param)


def random_column(kind: np.dtype[Any], shape: tuple[int, ...], how: str, random: np.random.Generator) -> Array:
    raw = random.integers(0, 1 << 64, shape, np.uint64, endpoint=False)
    if how == "few":
        raw >>= np.uint64(60)
    if how == "near":
        # Far from 0, and not far from each other.
        raw = (raw >> np.uint64(40)) + np.uint64(0x7FFF_FFFF_FFFF_0000)
    if kind.kind == "f" and how != "bits":
        return (raw >> np.uint64(11)).astype(kind) - kind.type(7)
    # All bits: of floating point NaNs, infinities and both zeros, too.
    values = raw.astype(f"<u{kind.itemsize}").view(kind)
    if kind.kind == "f":
        odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], kind)
        values = np.where(random.random(shape) < 0.3, random.choice(odd, shape), values)
    return values


def tiles_of(
    kinds: list[ScalarType], spare: int, shape: tuple[int, ...], threads: int, counted: bool, gap: int, how: str,
    seed: int,
) -> Tiles:
    """Records in a buffer as frames have them. spare: bytes after each record. gap: bytes between launches."""
    random = np.random.default_rng(seed)
    fields, size, _ = lay_out_fields([(f"f{number}", kind) for number, kind in enumerate(kinds)])
    dtype = record_dtype(fields, size + spare)
    launches, blocks, tiles, cap, lanes = shape
    in_launch = blocks * tiles * cap * lanes * dtype.itemsize
    in_counts = blocks * tiles * lanes * 4
    stride = in_launch + in_counts + gap
    buffer = random.integers(0, 256, launches * stride, np.uint8)
    steps = np.cumprod([dtype.itemsize, lanes, cap, tiles])[::-1].tolist()
    records = np.ndarray(shape, dtype, buffer, 0, (stride, *steps))
    for name in dtype.names or ():
        records[name] = random_column(dtype[name], shape, how, random)
    if not counted:
        return Tiles(records, None, threads)
    counts = np.ndarray((launches, blocks, tiles, lanes), "<u4", buffer, in_launch, (
        stride, 4 * tiles * lanes, 4 * lanes, 4))  # fmt: skip
    counts[:] = random.integers(0, cap + 3, counts.shape)
    # Whole tiles are full now and then.
    counts[random.random(counts.shape[:3]) < 0.4] = cap
    return Tiles(records, counts, threads)


def one_by_one(tiles: Tiles) -> Array:
    """The records that count."""
    found = []
    for (launch, block, tile, k, lane), record in np.ndenumerate(tiles.records):
        exists = tile * tiles.records.shape[-1] + lane < tiles.threads
        if exists and (tiles.counts is None or k < tiles.counts[launch, block, tile, lane]):
            found.append(record.tobytes())
    return np.frombuffer(b"".join(found), tiles.records.dtype)


def same(found: float, wanted: float) -> bool:
    return found == wanted or (math.isnan(found) and math.isnan(wanted))


def check(all_tiles: list[Tiles]) -> None:
    records = np.concatenate([one_by_one(tiles) for tiles in all_tiles])
    names = records.dtype.names or ()
    ranges = ranges_of(all_tiles, names)
    assert ranges.records == len(records)
    counts = [tiles.counts.reshape(-1).astype(np.int64) for tiles in all_tiles if tiles.counts is not None]
    cap = all_tiles[0].records.shape[3]
    every = np.concatenate([*counts, np.zeros(0, np.int64)])
    assert (ranges.wanted, ranges.dropped) == (every.max(initial=0), np.maximum(every - cap, 0).sum())
    medians = medians_of(lambda: all_tiles, {name: records.dtype[name].str for name in names}, ranges)
    for name in names if len(records) else ():
        values, known = records[name], ranges.fields[name]
        assert known.count == len(values)
        assert same(known.minimum, values.min().item())
        assert same(known.maximum, values.max().item())
        middle = (len(values) - 1) // 2
        assert same(medians[name], np.partition(values, middle)[middle].item())
        if values.dtype.kind != "f":
            assert known.total == sum(values.tolist())
        else:
            with np.errstate(all="ignore"):
                wanted = float(values.astype(np.float64).sum())
            close = math.isclose(known.total, wanted, rel_tol=1e-9, abs_tol=1e-300)
            # Great numbers of both signs may leave any difference.
            assert close or same(known.total, wanted) or np.abs(values.astype(np.float64)).max() > 1e15 * abs(wanted)
    if not len(records):
        assert medians == {}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], int, bool]:
    lanes, counted = draw(st.sampled_from([1, 1, 4, 32])), draw(st.booleans())
    cap = draw(st.sampled_from([1, 2, 5, 70])) if counted else 1
    tiles = draw(st.integers(1, 4))
    # The last tile of a block may be partial.
    threads = tiles * lanes - draw(st.integers(0, lanes - 1))
    return (draw(st.integers(1, 3)), draw(st.integers(1, 4)), tiles, cap, lanes), threads, counted


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=4), st.sampled_from([0, 0, 1, 8, 40]),
    st.lists(shapes(), min_size=1, max_size=3), st.sampled_from([0, 64]),
    st.sampled_from(["any", "few", "near", "bits"]), st.integers(0, 1 << 32),
)  # fmt: skip
@example([ScalarType.U64, ScalarType.U32, ScalarType.U32], 0, [((2, 300, 8, 1, 1), 8, False)], 64, "near", 1)
@example([ScalarType.S64], 0, [((1, 40, 2, 5, 32), 40, True)], 0, "any", 2)
def test_all_forms_of_records(
    way: str, kinds: list[ScalarType], spare: int, forms: list[tuple[tuple[int, ...], int, bool]], gap: int, how: str,
    seed: int,
) -> None:
    cap = forms[0][0][3]
    alike = [form for form in forms if form[0][3] == cap]
    check([
        tiles_of(kinds, spare, shape, threads, counted, gap, how, seed + number)
        for number, (shape, threads, counted) in enumerate(alike)
    ])  # fmt: skip


def test_more_records_than_are_read_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "MOST_RECORDS", 50)
    kinds = [ScalarType.U64, ScalarType.F32]
    for shape, threads, counted in (
        ((3, 40, 1, 1, 32), 32, False), ((3, 40, 1, 1, 32), 31, False), ((5, 2, 1, 1, 4), 4, False),
        ((2, 9, 2, 3, 32), 50, True), ((1, 1, 1, 1, 777), 777, False),
    ):  # fmt: skip
        check([tiles_of(kinds, 0, shape, threads, counted, 0, "any", 5)])


@pytest.mark.parametrize("kind", TYPES)
def test_ends_of_types(way: str, kind: ScalarType) -> None:
    fields, size, _ = lay_out_fields([("value", kind)])
    dtype = record_dtype(fields, size)
    of = dtype["value"]
    ends = np.finfo(of) if of.kind == "f" else np.iinfo(of)
    for values in ([ends.min], [ends.max], [ends.min, ends.max], [ends.min, ends.min, 0, ends.max, ends.max], [0] * 7):
        rows = np.zeros(len(values), dtype)
        rows["value"] = values
        check([Tiles.of(rows)])


def test_values_are_counted(way: str) -> None:
    random = np.random.default_rng(7)
    for kind, values in (
        ("<u4", [0, 1, 65_535, (1 << 32) - 1, (1 << 32) - 2]), ("<u4", [3, 1 << 20]), ("<u8", [0, (1 << 64) - 1, 9]),
        ("<i4", [-1, 5, -70_000]), ("<i2", [-32_768, 32_767]), ("<u1", [0, 255]), ("<u2", [65_535, 0]),
        ("<i8", [-5, 5]),
    ):  # fmt: skip
        rows = np.zeros(200, [("site", kind)])
        rows["site"] = random.choice(np.array(values, kind), 200)
        numbers, counts = np.unique(rows["site"], return_counts=True)
        found = count_values(lambda rows=rows: [Tiles.of(rows)], "site", np.dtype(kind), len(rows))
        assert found == dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def test_records_that_lie_otherwise_are_refused() -> None:
    rows = np.zeros((2, 3, 4, 5, 6), [("value", "<u4")])
    for apart in (rows[:, :, ::2], rows[..., ::2], rows[:, ::-1]):
        with pytest.raises(ValueError, match="not back to back"):
            Tiles(apart, None, 1)
    with pytest.raises(ValueError, match="as far apart"):
        Tiles(rows, np.zeros((2, 3, 4, 6), "<u4"), 1)
    assert ranges_of([Tiles.of(np.zeros(8, [("value", "<u4")])[::2])], ["value"]).records == 4


def test_a_library_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for body in ("uint64_t nt_aggregate_interface(void) { return 99; }", "int nothing;"):
        source = tmp_path / "other.c"
        source.write_text(f"#include <stdint.h>\n{body}\n")
        other = tmp_path / f"other{len(body)}.so"
        subprocess.run([*build.compiler(), "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
        monkeypatch.setattr(aggregate, "LIBRARY", other)
        assert aggregate._library.__wrapped__() is None
    monkeypatch.setattr(aggregate, "LIBRARY", tmp_path / "none.so")
    assert aggregate._library.__wrapped__() is None


_UNDER_SANITIZERS = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from neutrino.tracing import aggregate
aggregate.LIBRARY = Path({library!r})
assert aggregate._library() is not None
from test_aggregate import TYPES, check, tiles_of
# In memory of its own to the last byte, so that any access beyond is seen.
for seed, (shape, threads, counted) in enumerate([
    ((2, 3, 2, 1, 32), 40, False), ((2, 3, 2, 1, 32), 64, False), ((3, 2, 3, 4, 1), 3, True),
    ((1, 700, 1, 1, 1), 1, False),
    ((2, 2, 2, 5, 32), 33, True), ((1, 2, 1, 70, 4), 3, True),
]):
    for spare in (0, 1, 5000):
        for number in range(0, len(TYPES), 2):
            check([tiles_of(TYPES[number:number + 2], spare, shape, threads, counted, 0, "any", seed)])
print("done")
"""


def test_no_report_of_the_sanitizers(address_sanitizer: tuple[str, Path]) -> None:
    """And the same results as NumPy's without the vectors that only some processors have."""
    runtime, library = address_sanitizer
    code = _UNDER_SANITIZERS.format(here=str(Path(__file__).parent), library=str(library))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "PYTHONMALLOC": "malloc"},
    )  # fmt: skip
    assert (done.stdout, done.stderr[-3000:], done.returncode) == ("done\n", "", 0)
