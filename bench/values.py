"""Values that probes record and aggregate, compared with NumPy, on a GPU: probes/values.toml on workloads/values.cu.

    python3 -m bench.values record [--out FILE]    on a GPU, with nvcc and CuPy
    python3 -m bench.values judge [--out FILE]     recomputes the verdicts; exit 0 good, 1 not

The PTX is loaded from files by cuModuleLoad and compiled by the driver, once for sm_75, whose sums add thread by
thread, and once for sm_90, whose sums reduce over the warp first.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import Bench
from bench.probed import made_with, with_probe
from bench.programs import find_cuda_tool, must_run
from bench.tree import ROOT
from bench.verdicts import Verdict

Json = Any

RESULTS = ROOT / "bench" / "results" / "values_h200.json"
TARGETS = ("sm_75", "sm_90")
SHAPES = (((3, 2, 2), (12, 4, 1)), ((40, 1, 1), (33, 1, 1)), ((2, 3, 1), (8, 8, 4)))
SHARED = 48 << 10
"""Bytes of dynamic shared memory, of which few blocks fit a multiprocessor: as few of a twin with more registers."""
LEFT_OUT = 37
"""Threads at the end of each grid that return at once."""


def active(grid: Sequence[int], block: Sequence[int]) -> int:
    """Return how many threads of a launch do any work: all but LEFT_OUT. grid, block: its sizes in x, y and z."""
    return int(np.prod(grid) * np.prod(block)) - LEFT_OUT


def inputs(seed: int, count: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Generate the inputs of a launch for ``count`` threads, by a seed: 4 f32 for each, and two arrays of f16."""
    random = np.random.default_rng(seed)
    half = random.standard_normal((2, count)).astype(np.float16)
    return random.standard_normal(4 * count).astype(np.float32), half[0], half[1]


def _digest(array: np.ndarray[Any, Any]) -> str:
    """Return the first 32 hex digits of a digest (SHA-256) of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


def _expected(index: int, address: int) -> dict[str, Json]:
    """Compute with NumPy what probes must record of a launch. index: of its shape. address: of its inputs on the
    device."""
    grid, block = SHAPES[index]
    count = active(grid, block)
    f, x, y = inputs(index, count)
    order = np.tile(np.arange(3, dtype=np.uint32), count)
    place = np.repeat(np.arange(count, dtype=np.uint64), 3) * np.uint64(4) + order
    return {
        "counts": [4] * 1 + [count],
        "address": _digest(np.uint64(address) + place * np.uint64(4)),
        "value": _digest(f[place.astype(np.int64)]),
        "order": _digest(order),
        "product": _digest((x * y).view(np.uint16)),
        "stores": 2 * count,
        "dropped": count,
        **_aggregates(f, address),
    }


def _aggregates(f: np.ndarray[Any, Any], address: int) -> dict[str, Json]:
    """Compute what the aggregates of all loads of a launch must be: counts by bucket, and extremes of addresses, values
    and bits.

    f: what was loaded; address: of its first element.
    """
    bits = f.view(np.uint32)
    powers = [0, *(1 << power for power in range(32))]
    last = int(address) + 4 * (f.size - 1)
    return {
        "mantissas": _buckets(bits & 0x7FFFFF, powers),
        "low": _buckets(bits & 2047, range(0, 1025, 64)),
        "signed": _buckets(f.view(np.int32), [-(1 << 31), -1090000000, 0, 1060000000]),
        "least": [int(address), float(f.min()), int(f.view(np.int32).min())],
        "greatest": [last, float(f.max()), int(f.view(np.int32).max())],
    }


def _buckets(values: np.ndarray[Any, Any], starts: Sequence[int]) -> list[int]:
    """How many values lie from each start to the one before the next."""
    places = np.searchsorted(np.array(starts, np.int64), values.astype(np.int64), side="right") - 1
    return [int(count) for count in np.bincount(places, minlength=len(starts))]


def _extremes(view: Any) -> list[Json]:
    """Return the one record of a map (what probes save to) that keeps extremes: address, value, bits."""
    (row,) = view.valid()
    return [int(row["address"]), float(row["value"]), int(row["bits"])]


def _threads(array: np.ndarray[Any, Any], block: Sequence[int]) -> np.ndarray[Any, Any]:
    """Reorder a map's records [block][warp][k][lane] to [thread in grid order][k], without lanes that no thread of the
    block has."""
    blocks, warps, cap, lanes = array.shape
    by_thread = array.transpose(0, 1, 3, 2).reshape(blocks, warps * lanes, cap)
    return by_thread[:, : int(np.prod(block))].reshape(-1, cap)


def _recorded(launch: Any, index: int) -> dict[str, Json]:
    """What probes recorded of a launch, in the form of ``_expected``. index: of its shape."""
    grid, block = SHAPES[index]
    count = active(grid, block)
    loads, product = launch.maps["Loads"], launch.maps["Product"]
    records = _threads(loads.records, block)
    counts = _threads(loads.counts[:, :, None, :], block)[:, 0]
    kept = records[:count].reshape(-1)
    return {
        "counts": [int(np.unique(counts[:count])[0]) if np.unique(counts[:count]).size == 1 else -1,
                   int(np.count_nonzero(counts))],
        "address": _digest(kept["address"]),
        "value": _digest(kept["value"]),
        "order": _digest(kept["order"]),
        "product": _digest(_threads(product.records, block)[:count, 0]["bits"]),
        "stores": launch.maps["Stores"].total()["stores"],
        "dropped": loads.dropped,
        **{name.lower(): [int(count) for count in launch.maps[name].valid()["count"]]
           for name in ("Mantissas", "Low", "Signed")},
        **{name.lower(): _extremes(launch.maps[name]) for name in ("Least", "Greatest")},
    }  # fmt: skip


def record() -> Json:
    """Build the kernels, run them plain and probed, and return what was expected and recorded."""
    from neutrino.tracing import Trace, find_traces

    result: dict[str, Json] = {**made_with("values_h200"), "targets": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for target in TARGETS:
            ptx = folder / f"{target}.ptx"
            source = ROOT / "bench" / "workloads" / "values.cu"
            arch = target.replace("sm", "compute")
            nvcc = [str(find_cuda_tool("nvcc")), "-ptx", f"-arch={arch}", str(source), "-o", str(ptx)]
            must_run(nvcc, folder, "nvcc")
            plain, probed, traces = folder / "plain.npz", folder / "probed.npz", folder / f"{target}.trace"
            own = [sys.executable, str(ROOT / "bench" / "workloads" / "values.py")]
            must_run([*own, str(ptx), str(plain)], folder, "plain")
            command = with_probe([*own, str(ptx), str(probed)], str(ROOT / "bench" / "probes" / "values.toml"), traces)
            command[3:3] = ["-k", "mixed"]
            must_run(command, folder, "probed")
            (path,) = find_traces(traces)
            kernel = next(kernel for kernel in Trace(path).kernels if kernel.name == "mixed")
            before, after = np.load(plain), np.load(probed)
            launches = list(kernel.launches())
            result["targets"][target] = {
                "reason": kernel.reason.word if hasattr(kernel.reason, "word") else str(kernel.reason),
                "detail": kernel.detail,
                "numerics": dict(kernel.manifest.raw["numerics"]) if kernel.manifest else None,
                "launches": [
                    {
                        "expected": _expected(index, int(after[f"f{index}"])),
                        "recorded": _recorded(launches[index], index) if index < len(launches) else None,
                        "outputs": [[_digest(side[name]) for name in (f"out{index}", f"total{index}")]
                                    for side in (before, after)],
                    }
                    for index in range(len(SHAPES))
                ],
            }  # fmt: skip
    return result


def verdicts(results: Json) -> list[str]:
    """Return what is wrong with the recorded results, a message each; nothing when all is as it should be."""
    wrong = [f"no {name}" for name in ("tree", "device", "driver") if not results.get(name)]
    for target in TARGETS:
        kept = results["targets"].get(target)
        if kept is None or len(kept["launches"]) != len(SHAPES):
            wrong.append(f"{target}: missing")
            continue
        for index, launch in enumerate(kept["launches"]):
            plain, probed = launch["outputs"]
            if plain != probed:
                wrong.append(f"{target}, launch {index}: outputs differ from the plain run's")
            if launch["recorded"] is None:
                wrong.append(f"{target}, launch {index}: nothing recorded: {kept['reason']}: {kept['detail']}")
                continue
            wrong += [
                f"{target}, launch {index}: {name} is {launch['recorded'].get(name)}, expected {expected}"
                for name, expected in launch["expected"].items()
                if launch["recorded"].get(name) != expected
            ]
    return wrong


def judge(results: Json) -> list[Verdict]:
    """Return a verdict on all that was recorded."""
    wrong = verdicts(results)
    return [Verdict("values", not wrong, "; ".join(wrong) or f"{len(TARGETS) * len(SHAPES)} launches: as NumPy's")]


main = Bench("values", RESULTS, ("targets",), lambda options, neutrino: record(), judge).main


if __name__ == "__main__":
    sys.exit(main())
