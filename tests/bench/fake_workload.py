"""In place of a workload: a report of two launches. FAKE_FAULT makes it misbehave when it is probed."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launches", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    fault = os.environ.get("FAKE_FAULT") if os.environ.get("FAKE_PROBES") else None
    if fault == "hang":
        time.sleep(60)
    if fault == "crash":
        os.abort()
    salt = "other" if fault == "bits" else ""
    report = {
        "workload": "fake",
        "device": "NVIDIA H200",
        "sm_count": 132,
        "clock_khz": 1980000,
        "driver": 13000,
        "checks": "ok",
        "outputs": [hashlib.sha256(f"{seed}{salt}".encode()).hexdigest() for seed in range(options.seeds)],
        "launches": [["work", [8, 1, 1], [64, 1, 1], 0.01, [640, 320, 0, 0]]] * 2,
        "extra": {"launches": options.launches, "submit_us": [2.5] * options.repetitions},
    }
    options.out.write_text(json.dumps(report))
    print("fake: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
