"""Cells of bench.questions in PyTorch: Triton's kernels, compiled ones, and both in a CUDA graph."""

import hashlib
import time

import torch
import triton
import triton.language as tl

X = torch.randn(10_000, generator=torch.Generator().manual_seed(1)).cuda()
Y = torch.empty_like(X)


@triton.jit
def scale(x, y, n, factor, block: tl.constexpr):
    """y = x * factor, of n elements, ``block`` of them in each program."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@torch.compile
def wave(x):
    """A sum of curves, which becomes one kernel."""
    return x.sin() * 2 + (x * x).cos()


def launch():
    """Launch Triton's kernel once."""
    scale[(triton.cdiv(10_000, 256),)](X, Y, 10_000, 3.0, block=256)


graph = torch.cuda.CUDAGraph()
Z = torch.empty_like(X)


def prepare():
    """Compile and load all kernels, and capture a graph of them."""
    launch()
    Z.copy_(wave(Y))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        launch()
        Z.copy_(wave(Y))
    torch.cuda.synchronize()


def step():
    """Launch the kernels, and the graph twice; return the bytes of the results."""
    launch()
    first = wave(Y)
    for _ in range(2):
        graph.replay()
    return first.cpu().numpy().tobytes() + Z.cpu().numpy().tobytes()


def pace():
    """Microseconds of a launch and of a replay: the medians of 30 batches of 200 each."""
    found = []
    for run in (launch, graph.replay):
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / 200 * 1e6)
        found.append(sorted(times)[15])
    return found


def device_memory():
    """Bytes of the device's memory that are in use, by whomever."""
    free, every = torch.cuda.mem_get_info()
    return every - free


def digest(data):
    """Return 16 hex digits of a digest (SHA-256) of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]
