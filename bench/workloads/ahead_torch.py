"""A running PyTorch into which a library with kernels is loaded: PyTorch's work before, around and after it.

    ahead_torch.py LIBRARY --seeds N --out FILE

FILE is the library's own report; FILE.torch holds digests of what PyTorch computed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from pathlib import Path

import torch


def work(graph: torch.cuda.CUDAGraph, static: torch.Tensor) -> str:
    """Let PyTorch compute (its own and library kernels, reductions, a graph); the digest of the results.

    graph: captured on the tensor ``static``.
    """
    integers = torch.arange(1 << 20, device="cuda")
    numbers = torch.linspace(-1, 1, 1 << 18, device="cuda").reshape(512, 512)
    static.copy_(integers[:1024].float())
    graph.replay()
    results = [(integers * 3 + 1).cumsum(0), numbers @ numbers.T, numbers.softmax(1), numbers.sort(0).values, static]
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    """Let PyTorch work before, between and after a library with kernels is loaded and used.

    Returns the library's exit status.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--seeds", default="4")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.cuda.init()
    static = torch.zeros(1024, device="cuda")
    # The first product sets up cuBLAS, which a capture could not.
    _ = static.reshape(32, 32) @ static.reshape(32, 32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.mul_(2).add_(1)
    digests = [work(graph, static)]
    torch.ops.load_library(str(arguments.library))
    library = ctypes.CDLL(str(arguments.library))
    digests.append(work(graph, static))
    run = library._Z13workload_mainiPPc
    words = [b"library", b"--seeds", arguments.seeds.encode(), b"--out", str(arguments.out).encode()]
    status: int = run(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    digests.append(work(graph, static))
    torch.cuda.synchronize()
    told = {"torch": torch.__version__, "digests": digests}
    arguments.out.with_name(arguments.out.name + ".torch").write_text(json.dumps(told))
    return status


if __name__ == "__main__":
    sys.exit(main())
