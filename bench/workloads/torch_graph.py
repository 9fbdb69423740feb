"""A transformer's training steps, compiled by Inductor: launches, or a CUDA graph. `torch_graph.py FORM STEPS`."""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import nn

FORMS = {"launches": None, "graph": "reduce-overhead"}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        """Set up the layers of a transformer block for vectors of a width."""
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and two layers, each added to its input. x: [batch, length, width]."""
        q, k, v = self.mix(self.first(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.out(scores @ v)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def main() -> None:
    """Train for so many steps, as launches or as a CUDA graph, and print a digest of weights and losses."""
    form, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    model = nn.Sequential(*(Block(256) for _ in range(4))).cuda()
    compiled = torch.compile(model, mode=FORMS[form])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator("cuda").manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 64, 256, device="cuda", generator=generator)
        torch.compiler.cudagraph_mark_step_begin()
        loss = (compiled(x) - x.roll(1, -1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach().clone())
    digest = hashlib.sha256()
    for tensor in (*model.parameters(), torch.stack(losses)):
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    print(f"result {digest.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
