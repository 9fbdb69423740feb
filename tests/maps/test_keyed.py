"""``hash`` and ``topk``: equal to what Python counts where the keys fit, and within the printed bound where not."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.scalars import ScalarType
from neutrino.errors import ProbeError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.tracing.views import MapView
from neutrino.verification import read_probes
from tests.maps.aggregates import Values, kernel_text, probes_of, random_values, read_by, run, run_twin, twin_of
from tests.oracle.assembling import assemble

INTEGERS = tuple(scalar.value for scalar in ScalarType if scalar.value[0] in "us")
KEEP = 'type = "hash"\nkeep = ["min", "sum", "max"]'
Row = tuple[int, int, int, int]


def with_value(kind: str, table: str = KEEP) -> ProbeSet:
    """A probe that saves what a load got under its low bits as the key. table: of its map, but for level and data."""
    bits = max(16, int(kind[1:]))
    return read_probes(
        "test.toml",
        f"""platform = "cuda"
[map.M]
{table}
level = "thread"
data = {{ key = "{kind}", value = "{kind}" }}
[probe.loads]
position = "ld.global"
level = "thread"
after = \"\"\".reg .b{bits} %key;
and.b{bits} %key, OUT, 15;
SAVE [ M ] {{ %key, OUT }};\"\"\"
"""
    )


def counted(values: Values) -> dict[int, int]:
    """How often each value occurs."""
    keys, counts = np.unique(values, return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def aggregated(values: Values) -> dict[int, Row]:
    """Of the values under each low bits: count, sum modulo 2 to the 64, least and greatest, as unsigned numbers."""
    groups: dict[int, list[int]] = defaultdict(list)
    for value in values.tolist():
        groups[value & 15].append(value)
    return {key: (len(group), sum(group) % (1 << 64), min(group), max(group)) for key, group in groups.items()}


def few_values(kind: str, count: int, seed: int) -> Values:
    """Values of which each occurs often, the type's extremes, 0 and -1 among them."""
    random = np.random.default_rng(seed)
    some = random_values(kind, 20, random)
    info = np.iinfo(some.dtype)
    some = np.concatenate([some, np.array([info.min, info.max, 0], some.dtype), ~np.zeros(1, some.dtype)])
    return random.choice(some, count)


def check_bounds(view: MapView, counts: dict[int, int]) -> None:
    """Whether the rows and the number of saves without a place are true of the counts."""
    rows = view.valid()
    found = {key: (count, missed) for key, count, missed in rows[["key", "count", "missed"]].tolist()}
    assert len(found) == len(rows)
    for key, (count, missed) in found.items():
        assert count <= counts[key] <= count + missed, key
    for key, count in counts.items():
        assert key in found or count <= view.dropped, key
    assert rows["count"].sum() + view.dropped == sum(counts.values())


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("arch", ["sm_60", "sm_75", "sm_90"])
def test_counts(kind: str, arch: str) -> None:
    values = few_values(kind, 700, 5)
    view = run(probes_of('type = "hash"', kind), values, kind, arch)
    assert view.dropped == 0
    assert view.valid().tolist() == [(key, count, 0) for key, count in sorted(counted(values).items())]


@pytest.mark.parametrize("kind", ["u8", "u32", "u64"])
@pytest.mark.parametrize("arch", ["sm_60", "sm_75", "sm_90"])
def test_aggregates(kind: str, arch: str) -> None:
    values = few_values(kind, 700, 6)
    view = run(with_value(kind), values, kind, arch)
    wanted = [(key, *row, 0) for key, row in sorted(aggregated(values).items())]
    assert view.valid().tolist() == wanted
    assert view.valid().dtype.names == ("key", "count", "sum", "min", "max", "missed")


@pytest.mark.parametrize("level", ["warp", "block"])
@pytest.mark.parametrize("kind", ["u32", "s64"])
def test_levels(level: str, kind: str) -> None:
    values = few_values(kind, 700, 7)
    view = run(probes_of('type = "hash"', kind, level), values, kind, "sm_90")
    assert view.valid().tolist() == [(*row, 0) for row in sorted(counted(read_by(values, 70, 3, level)).items())]


def test_nothing_saved_is_no_row() -> None:
    assert run(probes_of('type = "hash"', "u32"), np.zeros(0, "<u4"), "u32", "sm_90").valid().size == 0


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 3, 9, 64]), st.integers(0, 1 << 30), st.sampled_from(["u32", "s64"]))
def test_where_keys_do_not_fit(distinct: int, room: int, seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    values = random.choice(random_values(kind, distinct, random), 400)
    counts = counted(values)
    view = run(probes_of(f'type = "hash"\nroom = {room}', kind), values, kind, "sm_90", 2, 64)
    check_bounds(view, counts)
    if len(counts) <= room:
        assert view.dropped == 0


def test_some_do_not_fit() -> None:
    values = np.arange(900, dtype="<u4")
    view = run(probes_of('type = "hash"\nroom = 1', "u32"), values, "u32", "sm_90")
    check_bounds(view, counted(values))
    assert view.dropped > 0


def test_as_many_keys_as_there_is_room_for() -> None:
    for stride in (1, 4, 128, 1 << 12, 999):
        values = np.tile(np.arange(512, dtype="<u8") * stride, 2)
        view = run(probes_of('type = "hash"\nroom = 512', "u64"), values, "u64", "sm_90")
        assert view.dropped == 0, stride
        assert view.valid().tolist() == [(int(value), 2, 0) for value in values[:512]]
    # A table of more than 64 KiB: half of what there is at most, of which there are two copies.
    values = np.arange(8000, dtype="<u8") * 4096
    view = run(probes_of('type = "hash"\nroom = 8192', "u64"), values, "u64", "sm_90")
    assert view.valid().tolist() == [(int(value), 1, 0) for value in values]


@pytest.mark.parametrize("n", [1, 5, 40])
def test_topk(n: int) -> None:
    values = few_values("u32", 900, 8)
    view = run(probes_of(f'type = "topk"\nn = {n}', "u32"), values, "u32", "sm_90")
    wanted = sorted(((key, count, 0) for key, count in counted(values).items()), key=lambda row: (-row[1], row[0]))
    assert view.valid().tolist() == wanted[:n]


def test_topk_by_sum() -> None:
    values = few_values("u32", 900, 9)
    view = run(with_value("u32", 'type = "topk"\nn = 4'), values, "u32", "sm_90")
    wanted = [(key, count, total, 0) for key, (count, total, _, _) in aggregated(values).items()]
    assert view.valid().tolist() == sorted(wanted, key=lambda row: (-row[2], row[0]))[:4]


@pytest.mark.parametrize(
    ("keys", "fields", "message"),
    [
        ('type = "hash"\nroom = 0', 'key = "u32"', "room is 0"),
        ('type = "hash"\nroom = 16385', 'key = "u32"', "room is 16385"),
        ('type = "hash"\nroom = true', 'key = "u32"', "room is True"),
        ('type = "hash"\nkeep = ["sum"]', 'key = "u32"', "no value besides its key"),
        ('type = "hash"\nkeep = ["mean"]', 'key = "u32", value = "u32"', "keep is "),
        ('type = "hash"\nkeep = ["sum", "sum"]', 'key = "u32", value = "u32"', "no list of different words"),
        ('type = "hash"\nkeep = "sum"', 'key = "u32", value = "u32"', "no list of different words"),
        ('type = "hash"\nkeep = ["sum", "min"]\nroom = 8193', 'key = "u32", value = "u32"', "room is 8193"),
        ('type = "hash"', 'key = "u32", value = "s32"', "the value 'value' is s32"),
        ('type = "hash"', 'key = "u32", value = "u32", more = "u32"', "data names 3 fields"),
        ('type = "hash"\ncap = 2', 'key = "u32"', "a hash has one record"),
        ('type = "topk"', 'key = "u32"', "has no n"),
        ('type = "topk"\nn = 0', 'key = "u32"', "n is 0"),
        ('type = "topk"\nn = 30\nroom = 20', 'key = "u32"', "room is 20, but n is 30"),
    ],
)  # fmt: skip
def test_wrong_keys(keys: str, fields: str, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        read_probes(
            "test.toml",
            f"""platform = "cuda"
[map.M]
{keys}
level = "thread"
data = {{ {fields} }}
[probe.loads]
position = "ld.global"
level = "thread"
after = "SAVE [ M ] {{ {', '.join(['OUT'] * fields.count('='))} }};"
"""
        )


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_they_assemble(arch: str) -> None:
    texts = [twin_of(probes_of('type = "hash"', kind), kind, arch).render() for kind in INTEGERS]
    texts += [twin_of(with_value(kind), kind, arch).render() for kind in ("u8", "u32", "u64")]
    for text in texts:
        if arch == "sm_120":
            text = text.replace(".version 7.8", ".version 8.7")
        cubin, said = assemble(text, quick=False)
        assert cubin, said


@pytest.mark.parametrize("kind", ["u8", "u32", "u64"])
@pytest.mark.parametrize("guard", ["", "@%q ", "@!%q "])
def test_sites_have_places(guard: str, kind: str) -> None:
    """Keys that are sites are not searched for; from different multiprocessors they have different places. Values are
    of all magnitudes, so that the sum over a warp needs more than 32 bits, or does not."""
    probes = read_probes(
        "test.toml",
        f"""platform = "cuda"
[map.M]
{KEEP}
level = "thread"
data = {{ key = "u32", value = "{kind}" }}
[probe.loads]
position = "ld.global"
level = "thread"
after = "SAVE [ M ] {{ SITE, OUT }};"
""",
    )
    text = kernel_text(kind, "sm_90").replace("ld.global", f"{guard}ld.global")
    twins = probe_module(parse(text), probes)
    (twin,) = twins.kernels
    assert "atom" not in twin.whole_text()
    blocks, threads = 140, 40
    values = random_values(kind, 7000, np.random.default_rng(len(guard)))
    thread = np.arange(len(values)) % (blocks * threads)
    chosen = values[{"": thread >= 0, "@%q ": thread % 3 == 0, "@!%q ": thread % 3 != 0}[guard]]
    view = run_twin(twins, values, blocks, threads)["M"]
    numbers = [int(value) for value in chosen]
    assert view.valid().tolist() == [(0, len(numbers), sum(numbers) % (1 << 64), min(numbers), max(numbers), 0)]
    entries = view.records["words"].reshape(-1, view.map.size // 8)[:, 1 :: 2 + 3]
    assert (np.count_nonzero(entries, axis=-1) > 1).all(), "each copy has several places of the site"
