"""Training steps of a small transformer in PyTorch: `torch_steps.py STEPS [--compile]`."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import torch
from torch import nn

WIDTH, HEADS, LAYERS, WORDS = 256, 4, 3, 1000


class Block(nn.Module):
    """Attention and two layers, each added to its input."""

    def __init__(self) -> None:
        """Make the layers, with random weights."""
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and two layers, each added to its input. x: [batch, length, WIDTH]."""
        batch, length, _ = x.shape
        mixed = self.mix(self.before(x)).reshape(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = mixed.unbind(0)
        scores = torch.softmax(q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """Words to the next words."""

    def __init__(self) -> None:
        """Make the layers, with random weights."""
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores for each next word. words: [batch, length] of numbers below WORDS."""
        return self.last(self.blocks(self.words(words)))


def main() -> None:
    """Train for so many steps, and print a digest of weights and losses."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    forward = torch.compile(model) if "--compile" in sys.argv else model
    losses = []
    for number in range(int(sys.argv[1])):
        words = torch.from_numpy(np.random.default_rng(number).integers(0, WORDS, (8, 65))).cuda()
        scores = forward(words[:, :-1])
        loss = nn.functional.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    for tensor in (*model.parameters(), torch.stack(losses)):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    print(f"result {digest.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
