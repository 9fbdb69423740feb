"""What benchmarks say of planted samples, whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.benchmark_file import BENCHMARK_HEADER, BENCHMARK_MAGIC, SAMPLE, SampleFlag, SampleKind
from neutrino.abi.reasons import Reason
from neutrino.abi.versions import BENCHMARK_VERSION
from neutrino.cli.report import main
from neutrino.cli.section_text import section_lines
from neutrino.errors import TraceError
from neutrino.tracing.benchmark import Benchmark, RatioOfMedians, median_ranks, read_samples, summarized
from neutrino.tracing.launches import Array
from neutrino.tracing.shown.benchmark import shown_benchmark
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions


def planted(*rows: dict[str, object]) -> Array:
    samples = np.zeros(len(rows), SAMPLE.dtype)
    for sample, row in zip(samples, rows, strict=True):
        for name, value in {"kernel": 1, "grid": (8, 1, 1), "block": (32, 1, 1), "stream": 1, **row}.items():
            sample[name] = value
    return samples


def launches(kind: SampleKind, times: list[int], **more: object) -> list[dict[str, object]]:
    return [{"kind": kind, "elapsed_ns": time, **more} for time in times]


def found(*rows: dict[str, object], not_probed: dict[Reason, int] | None = None) -> Benchmark:
    return summarized(planted(*rows), 1, not_probed or {})


def binomial_tail(count: int, below: int) -> float:
    """P(Binomial(count, 1/2) < below), by whole numbers."""
    return sum(math.comb(count, number) for number in range(below)) / 2**count


@pytest.mark.parametrize("confidence", [0.95, math.sqrt(0.95), 0.5])
def test_ranks_cover_the_median_just_as_often_as_they_should(confidence: float) -> None:
    for count in [*range(1, 60), 499, 500, 501, 1000, 3001]:
        ranks = median_ranks(count, confidence)
        if ranks is None:
            assert 2 * binomial_tail(count, 1) > 1 - confidence
            continue
        low, high = ranks
        assert 1 <= low < high == count + 1 - low
        slack = 1e-9 if count <= 500 else 0.002
        assert 1 - 2 * binomial_tail(count, low) >= confidence - slack
        # One rank further in is not enough, or by hardly more.
        assert 1 - 2 * binomial_tail(count, low + 1 + (count > 500)) < confidence + slack


def test_the_interval_holds_the_ratio_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    misses = 0
    for _ in range(1000):
        # Skewed, as times are: the ratio of the medians is 1.3.
        original, probed = random.lognormal(3, 0.4, 25), 1.3 * random.lognormal(3, 0.4, 25)
        ratio = RatioOfMedians.of(original, probed)
        assert ratio is not None
        misses += not ratio.low <= 1.3 <= ratio.high
    # 5 % would be 50.
    assert misses <= 50


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=40),
    st.lists(st.integers(1, 10**9), min_size=1, max_size=40),
    st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_a_ratio_needs_seven_of_each_and_scales(originals: list[int], probed: list[int], factor: int) -> None:
    ratio = RatioOfMedians.of(np.array(originals), np.array(probed))
    assert (ratio is None) == (min(len(originals), len(probed)) < 7)
    if ratio is None:
        return
    assert ratio.low <= ratio.ratio <= ratio.high
    assert ratio.ratio - ratio.spread <= ratio.low + 1e-9 * ratio.low
    # Orders and units do not matter.
    scaled = RatioOfMedians.of(factor * np.array(originals[::-1]), factor * np.array(probed[::-1]))
    assert scaled is not None
    assert [scaled.ratio, scaled.low, scaled.high] == pytest.approx([ratio.ratio, ratio.low, ratio.high])


def test_groups_have_their_own_medians_and_warm_up_does_not_count() -> None:
    wide = {"grid": (64, 2, 1), "shared": 48}
    benchmark = found(
        *launches(SampleKind.ORIGINAL, [9_000_000], flags=SampleFlag.WARM_UP),
        *launches(SampleKind.PROBED, [9_000_000], flags=SampleFlag.WARM_UP),
        *launches(SampleKind.ORIGINAL, [100_000, 101_000, 99_000, 100_000, 100_000, 100_000, 100_000]),
        *launches(SampleKind.PROBED, [150_000] * 7),
        *launches(SampleKind.ORIGINAL, [3_000_000] * 9, **wide),
        *launches(SampleKind.PROBED, [3_000_000, 2_900_000, 3_100_000] * 3, **wide),
        *launches(SampleKind.ORIGINAL, [5_000] * 6, device=1),
        {"kind": SampleKind.UNTIMED, "number": 4},
        {"kind": SampleKind.UNTIMED, "number": 3},
        not_probed={Reason.VENDOR: 12},
    )
    large, small, few = benchmark.groups
    assert large.grid == (64, 2, 1)
    assert large.verdict == "within noise"
    assert (small.medians_ns, small.warm_up, small.launches) == ((100_000, 150_000), 2, 16)
    assert small.verdict == "1.500 ± 0.015"
    assert few.verdict == "too few launches"
    assert benchmark.untimed == 7
    # 16 launches of one, 18 of the other.
    assert benchmark.slowdown == pytest.approx((16 * 150 + 18 * 3000) / (16 * 100 + 18 * 3000))
    text = "\n".join(section_lines(shown_benchmark(benchmark, {1: "saxpy"}), str))
    for words in ("64x2", "1.500 ± 0.015", "too few launches", "12 launches that cannot be probed: vendor",
                  "7 launches for which no events were free", "1 group of too few launches"):  # fmt: skip
        assert words in text


def test_short_kernels_are_marked_by_the_floor() -> None:
    def group(floor: int) -> Benchmark:
        return found(
            *launches(SampleKind.FLOOR, [floor, floor, 100 * floor]),
            *launches(SampleKind.ORIGINAL, [40_000] * 8),
            *launches(SampleKind.PROBED, [60_000] * 8),
        )

    (long,), (short,) = group(2000).groups, group(2001).groups
    assert not long.is_short
    assert short.is_short
    assert short.verdict == "1.500 ± 0.000, short"
    assert long.ratio_above_floor == pytest.approx(58 / 38)


def test_launches_beside_others_are_counted() -> None:
    def at(begin_us: int, length_us: int, stream: int, **more: object) -> dict[str, object]:
        return {"begin_ns": begin_us * 1000, "elapsed_ns": length_us * 1000, "stream": stream, **more}

    def overlapped(*rows: dict[str, object]) -> int:
        return sum(group.overlapped for group in found(*rows).groups)

    assert overlapped(at(100, 50, 4), at(150, 50, 5), at(200, 50, 4)) == 0
    assert overlapped(at(100, 50, 4), at(120, 50, 4)) == 0
    # One that holds another, and one after both.
    assert overlapped(at(100, 500, 4), at(200, 50, 5), at(700, 50, 5)) == 2
    assert overlapped(at(100, 500, 4), at(200, 50, 5, device=1)) == 0
    # Default streams of two threads have one handle.
    assert overlapped(at(100, 50, 2, thread=1), at(120, 50, 2, thread=2)) == 2


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    header = np.zeros(1, BENCHMARK_HEADER.dtype)
    header["magic"], header["version"], header["record_size"] = BENCHMARK_MAGIC, BENCHMARK_VERSION, SAMPLE.size
    header["seed"] = 5
    path = tmp_path / "benchmark.bin"
    samples = planted(*launches(SampleKind.PROBED, [1, 2]))
    # A last sample that is cut off.
    path.write_bytes(header.tobytes() + samples.tobytes() + bytes(40))
    read, seed = read_samples(path)
    assert (list(read["elapsed_ns"]), seed) == ([1, 2], 5)
    for name, value, words in (("magic", b"WRONG", "magic"), ("version", 99, "version 99"), ("record_size", 8, "of 8")):
        wrong = header.copy()
        wrong[name] = value
        path.write_bytes(wrong.tobytes())
        with pytest.raises(TraceError, match=words):
            read_samples(path)
    samples["kind"][1] = 9
    path.write_bytes(header.tobytes() + samples.tobytes())
    with pytest.raises(TraceError, match="sample 1: kind 9"):
        read_samples(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="cut off"):
        read_samples(path)


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_report_notes_a_damaged_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 0)]}))
    path = writer.write()
    (path / "benchmark.bin").write_bytes(b"WRONG" + bytes(500))
    assert main([*option, str(path)]) == 0
    # Lines are wrapped, by the width of the terminal.
    words = capsys.readouterr().out.split()
    assert "the benchmark cannot be read:" in " ".join(words)
    assert "magic" in words
