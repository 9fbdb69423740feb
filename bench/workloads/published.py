"""The program of ``bench/published.py``: kernels with a published fault and with its remedy, timed by events.

    python3 published.py --case NAME --out FILE [--rounds N] [--image FATBIN] [--profile]

The kernels of a case take turns. Each launch is timed alone, with the GPU busy before it, so that submitting is not in
the times; what a remedy needs besides its kernel, such as zeros to add to, is in them. The report has for each kernel
its times, digests of outputs, and the geometry; PyTorch's profiler adds what it launches itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

UNTIMED = 2
_BUSY = 1_000_000
"""Cycles, half a millisecond: longer than submitting a launch takes, with probes or without."""
CASES = {"fill": "published_fill", "gemm": "published_triton", "attention": "published_triton",
         "attention_published": "published_triton"}  # fmt: skip
"""By the case: the module that has it."""


@dataclass(frozen=True)
class Prepared:
    """A kernel with its inputs. out: what it writes. want: what it should, which it may miss by ``tolerance``, or by
    that part of it.

    facts: on its launch, for the report. is_framework: whether PyTorch launches one of its own.
    """

    launch: Callable[[], object]
    out: torch.Tensor
    want: torch.Tensor
    tolerance: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_framework: bool = False


def _timed(launch: Callable[[], object]) -> float:
    """Return the milliseconds that a launch takes, by events."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_BUSY)
    before.record()
    launch()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after))


def _run(kernels: Mapping[str, Prepared], rounds: int) -> dict[str, dict[str, Any]]:
    """Launch the kernels in turns, UNTIMED + ``rounds`` times; return by name what the report has of them.

    Raises AssertionError when an output is not what it should be.
    """
    rows: dict[str, dict[str, Any]] = {
        name: {"ms": [], "outputs": [], **prepared.facts} for name, prepared in kernels.items()
    }
    for number in range(UNTIMED + rounds):
        for name, prepared in kernels.items():
            prepared.out.fill_(float("nan"))
            torch.cuda.synchronize()
            milliseconds = _timed(prepared.launch)
            row = rows[name]
            if number >= UNTIMED:
                row["ms"].append(round(milliseconds, 6))
            # The first, the last and some between: copying and hashing takes longer than the kernels.
            if number % 8 == 0 or number == UNTIMED + rounds - 1:
                digest = hashlib.sha256(prepared.out.cpu().contiguous().view(torch.uint8).numpy().tobytes())
                row["outputs"] = sorted({*row["outputs"], digest.hexdigest()[:32]})
                torch.testing.assert_close(
                    prepared.out.float(), prepared.want.float(), atol=prepared.tolerance, rtol=prepared.tolerance
                )
    return rows


def _profiled(launch: Callable[[], object], folder: Path) -> list[dict[str, Any]]:
    """Return name, grid and block of the kernels of a launch, as PyTorch's profiler has them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        launch()
        torch.cuda.synchronize()
    path = folder / "profile.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [
        {"name": event["name"], "grid": event["args"]["grid"], "block": event["args"]["block"]}
        for event in events
        if event.get("cat") == "kernel"
    ]


def main() -> int:
    """Run the kernels of the case that the command line names, and write the report. Returns the exit status 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--image", type=Path, help="of the case fill: its kernels")
    parser.add_argument("--profile", action="store_true", help="add what PyTorch launches itself")
    options = parser.parse_args()
    if CASES[options.case] == "published_fill":
        from published_fill import prepare
    else:
        from published_triton import prepare
    kernels = prepare(options)
    properties = torch.cuda.get_device_properties(0)
    report: dict[str, Any] = {
        "multiprocessors": properties.multi_processor_count, "torch": torch.__version__,
        "kernels": _run(kernels, options.rounds),
    }  # fmt: skip
    if options.profile:
        try:
            report["profiled"] = [
                row for it in kernels.values() if it.is_framework for row in _profiled(it.launch, options.out.parent)
            ]
        except (AssertionError, ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
            report["profiled"] = f"{type(error).__name__}: {error}"
    options.out.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    # The modules of the cases import this one by its name.
    sys.modules["published"] = sys.modules["__main__"]
    sys.exit(main())
