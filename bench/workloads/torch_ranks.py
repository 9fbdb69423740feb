"""Training steps of a small model on every GPU, under ``torchrun``: `torch_ranks.py STEPS`. NCCL sums the gradients.

Each rank prints one line: its number and a digest of its parameters, which are the same on all.
"""

from __future__ import annotations

import hashlib
import sys

import torch
import torch.distributed
from torch import nn


def main() -> None:
    """Train on this rank's GPU for so many steps, and print a digest of the weights."""
    torch.distributed.init_process_group("nccl")
    rank = torch.distributed.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator("cuda").manual_seed(rank)
    for _ in range(int(sys.argv[1])):
        x = torch.randn(64, 256, device="cuda", generator=generator)
        (compiled(x) - x.roll(1, -1)).square().mean().backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    torch.distributed.destroy_process_group()
    sys.stdout.write(f"rank {rank} {digest.hexdigest()[:32]}\n")


if __name__ == "__main__":
    main()
