"""Training steps of ``torch_steps.py``'s transformer, compiled; those after the first ones are in an NVTX range.

    python3 torch_training.py --steps N

The range is ``training``: compilation, and the launches that it makes, are before it.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch_steps import WORDS, Model

_WARM = 3


def main() -> int:
    """Train, and print the losses. Returns the exit status: 1 where the loss did not fall."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    steps: int = parser.parse_args().steps
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    forward = torch.compile(model)
    words = torch.randint(WORDS, (8, 65), generator=torch.Generator().manual_seed(1)).cuda()
    losses = []
    for number in range(_WARM + steps):
        if number == _WARM:
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_push("training")
        scores = forward(words[:, :-1])
        loss = nn.functional.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    values = [float(loss) for loss in losses]
    print(f"{torch.__version__}: losses {' '.join(f'{value:.4f}' for value in values)}")
    return 0 if values[-1] < values[0] else 1


if __name__ == "__main__":
    sys.exit(main())
