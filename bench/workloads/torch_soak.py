"""A transformer's training steps for a long time: compiled, by turns as launches and as a CUDA graph.

`torch_soak.py SECONDS` prints a line at each 200 steps:
``at STEP SECONDS DIGEST RESIDENT_BYTES DESCRIPTORS FREE_DEVICE_BYTES``.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch_graph import FORMS, Block

STEPS = 200


def main() -> None:
    """Train until the time is over, and print a line of state every STEPS steps."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    generator = torch.Generator("cuda").manual_seed(1)
    models = {form: nn.Sequential(*(Block(256) for _ in range(2))).cuda() for form in FORMS}
    compiled = {form: torch.compile(model, mode=FORMS[form]) for form, model in models.items()}
    parameters = [parameter for model in models.values() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    begin, step = time.monotonic(), 0
    while time.monotonic() - begin < float(sys.argv[1]):
        for form in (form for form in FORMS for _ in range(STEPS // 2)):
            x = torch.randn(8, 64, 256, device="cuda", generator=generator)
            torch.compiler.cudagraph_mark_step_begin()
            loss = (compiled[form](x) - x.roll(1, -1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += STEPS
        digest = hashlib.sha256()
        for tensor in parameters:
            digest.update(tensor.detach().cpu().numpy().tobytes())
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        seen = resident, len(list(Path("/proc/self/fd").iterdir())), torch.cuda.mem_get_info()[0]
        print("at", step, f"{time.monotonic() - begin:.1f}", digest.hexdigest()[:16], *seen, flush=True)


if __name__ == "__main__":
    main()
