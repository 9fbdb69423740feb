"""Steps of training in eager PyTorch: a transformer as Llama's, ResNet-50, a UNet. Deterministic; prints a digest of
all losses, one of all weights at the end, and the time of a step.

python training_steps.py MODEL STEPS
"""

from __future__ import annotations

import hashlib
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

FIRST = 10
"""Steps that are not timed: in these, kernels are loaded and twins made."""


class RootMeanSquare(nn.Module):  # type: ignore[misc]
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


def rotary(x: Tensor) -> Tensor:
    """Rotate pairs of the last dimension by angles that grow with the place, the dimension before."""
    places, width = x.shape[-2:]
    steps = 10000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(places, device=x.device)[:, None] * steps[None]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


class Block(nn.Module):  # type: ignore[misc]
    """Attention, written out, and a gated layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = RootMeanSquare(width), RootMeanSquare(width)
        self.three, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        parts = self.three(self.before(x)).split(width, -1)
        query, key, value = (part.view(batch, places, self.heads, -1).transpose(1, 2) for part in parts)
        later = torch.full((places, places), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        scores = (rotary(query) @ rotary(key).transpose(-1, -2)) * (width // self.heads) ** -0.5 + later
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, places, width)
        x = x + self.out(mixed)
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """ResNet-50's block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.way = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        is_same = stride == 1 and before == after
        self.short: nn.Module = nn.Identity() if is_same else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.way(x) + self.short(x))


class UNet(nn.Module):  # type: ignore[misc]
    """Three levels, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()

        def two(before: int, after: int) -> nn.Module:
            layers = [nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)]
            return nn.Sequential(*(part for layer in layers for part in (layer, nn.GroupNorm(8, after), nn.SiLU())))

        self.one, self.two, self.three = two(3, 32), two(32, 64), two(64, 128)
        self.up_two, self.back_two = nn.ConvTranspose2d(128, 64, 2, 2), two(128, 64)
        self.up_one, self.back_one = nn.ConvTranspose2d(64, 32, 2, 2), two(64, 32)
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(functional.avg_pool2d(one, 2))
        three = self.three(functional.avg_pool2d(two, 2))
        back = self.back_two(torch.cat([self.up_two(three), two], 1))
        return self.out(self.back_one(torch.cat([self.up_one(back), one], 1)))


def transformer() -> tuple[nn.Module, Callable[[], Tensor]]:
    """The transformer, in bfloat16, and its loss on one batch of 4 texts of 128 words."""
    head = (RootMeanSquare(256), nn.Linear(256, 1003, bias=False))
    model = nn.Sequential(nn.Embedding(1003, 256), *(Block(256, 4) for _ in range(4)), *head).cuda().bfloat16()
    words = torch.randint(0, 1003, (4, 129)).cuda()
    return model, lambda: functional.cross_entropy(model(words[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten())


def resnet() -> tuple[nn.Module, Callable[[], Tensor]]:
    """ResNet-50 for 100 classes, and its loss on one batch of 8 pictures of 96 by 96."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 100)).cuda()
    pictures, classes = torch.randn(8, 3, 96, 96).cuda(), torch.randint(0, 100, (8,)).cuda()
    return model, lambda: functional.cross_entropy(model(pictures), classes)


def unet() -> tuple[nn.Module, Callable[[], Tensor]]:
    """The UNet, and its loss on one batch of 4 pictures of 64 by 64."""
    model, pictures = UNet().cuda(), torch.randn(4, 3, 64, 64).cuda()
    return model, lambda: functional.mse_loss(model(pictures), pictures.flip(1))


MODELS = {"transformer": transformer, "resnet": resnet, "unet": unet}


def main() -> None:
    """Train; print ``losses DIGEST weights DIGEST first LOSS last LOSS ms TIME``."""
    warnings.simplefilter("ignore")
    # What has no deterministic form runs all the same: two plain runs show whether it matters.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    steps = int(sys.argv[2])
    model, loss_of = MODELS[sys.argv[1]]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    begin = 0.0
    for step in range(steps):
        if step == FIRST:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    each = 1000 * (time.perf_counter() - begin) / (steps - FIRST)
    values = torch.stack(losses).float().cpu().numpy()
    weights = hashlib.sha256(b"".join(part.detach().float().cpu().numpy().tobytes() for part in model.parameters()))
    print("losses", hashlib.sha256(values.tobytes()).hexdigest()[:16], "weights", weights.hexdigest()[:16],
          "first", f"{values[0]:.6f}", "last", f"{values[-1]:.6f}", "ms", f"{each:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
