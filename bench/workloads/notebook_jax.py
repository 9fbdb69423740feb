"""Cells of bench.notebooks in JAX. With the argument run a program: both steps, and their digests."""

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy

X = jnp.arange(5000, dtype=jnp.float32) / 77
smooth = jax.jit(lambda x: jnp.tanh(x * 2 + 1) - x)
squares = jax.jit(lambda x: (x * x).reshape(50, 100).sum(axis=1))


def first():
    """Run the first step of the notebook on the GPU; return the bytes of its results."""
    return numpy.asarray(smooth(X)).tobytes()


def second():
    """The second step, with a kernel that the first has not loaded; the bytes of its results."""
    for _ in range(3):
        y = squares(X).block_until_ready()
    return numpy.asarray(y).tobytes()


def digest(data):
    """Return 16 hex digits of a digest (SHA-256) of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


if sys.argv[1:] == ["run"]:
    print(digest(first()), digest(second()))
