"""What AMD's HIP runtime makes of code objects: which it loads, which kernels it finds, what it packs. A process of its
own, ``python -m tests.hsa.dispatches JOB``: JOB is a file with JSON, the answer is printed as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.hsa.hip import Hip, HipError


def answer(hip: Hip, job: dict[str, Any]) -> dict[str, Any]:
    """Load a file, and launch its kernels in both ways. job: ``file``; ``kernels``: by name, the arguments as hex one
    by one, and as they lie in memory; None for a kernel that is found and not launched."""
    found: dict[str, Any] = {"problem": "", "kernels": {}}
    try:
        module = hip.module(Path(job["file"]).read_bytes())
        for name, values in job["kernels"].items():
            function = hip.function(module, name)
            found["kernels"][name] = None
            if values is None:
                continue
            arguments, packed = values
            hip.packets.clear()
            hip.launch(function, (3, 1, 1), (64, 1, 1), [bytes.fromhex(argument) for argument in arguments])
            hip.launch_packed(function, (3, 1, 1), (64, 1, 1), bytes.fromhex(packed))
            found["kernels"][name] = [packet.kernarg.hex() for packet in hip.packets]
    except HipError as error:
        found["problem"] = str(error)
    return found


if __name__ == "__main__":
    _hip = Hip()
    print(json.dumps([answer(_hip, job) for job in json.loads(Path(sys.argv[1]).read_text())]))
