"""A compiled model under PyTorch's profiler, which uses CUPTI: the digest of its results, and the kernels it saw."""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    """Run the model under the profiler; print how many kernels it saw, and a digest of the results."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()).cuda()
    compiled = torch.compile(model)
    x = torch.randn(64, 256, device="cuda")
    compiled(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(20):
            x = compiled(x).detach()
        torch.cuda.synchronize()
    kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())
    print("kernels", kernels)
    print("result", hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest()[:32])


if __name__ == "__main__":
    main()
