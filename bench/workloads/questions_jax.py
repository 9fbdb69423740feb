"""Cells of bench.questions in JAX: two compiled functions, and a chain that XLA may launch as one graph."""

import hashlib
import time

import jax
import jax.numpy as jnp
import numpy

X = jnp.arange(5000, dtype=jnp.float32) / 77
smooth = jax.jit(lambda x: jnp.tanh(x * 2 + 1) - x)
squares = jax.jit(lambda x: (x * x).reshape(50, 100).sum(axis=1))


@jax.jit
def chain(x):
    """Several kernels, one after another: each sorts or sums what the one before has left."""
    for _ in range(6):
        x = jnp.cumsum(x.reshape(50, 100), axis=1).reshape(-1) / (1 + jnp.abs(x).max())
    return x


def launch():
    """Launch one kernel."""
    return smooth(X)


def prepare():
    """Compile and load all kernels."""
    for function in (smooth, squares, chain):
        function(X).block_until_ready()


def step():
    """Launch the kernels; return the bytes of the results."""
    found = [launch(), squares(X), chain(X)]
    return b"".join(numpy.asarray(one).tobytes() for one in found)


def pace():
    """Microseconds of a launch and of the chain: the medians of 30 batches of 100 each."""
    found = []
    for function in (smooth, chain):
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            for _ in range(100):
                y = function(X)
            y.block_until_ready()
            times.append((time.perf_counter() - begin) / 100 * 1e6)
        found.append(sorted(times)[15])
    return found


def device_memory():
    """Not asked: JAX allocates most of the device's memory at its start."""
    return 0


def digest(data):
    """Return 16 hex digits of a digest (SHA-256) of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]
