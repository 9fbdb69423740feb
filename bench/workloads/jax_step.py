"""Training steps of a small transformer in JAX, compiled by XLA: `jax_step.py STEPS`."""

from __future__ import annotations

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, LAYERS = 256, 4, 3

Parameters = list[dict[str, jax.Array]]


def initial(key: jax.Array) -> Parameters:
    """Random weights of every layer. key: JAX's, from which random numbers are made."""
    shapes = {"mix": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = iter(jax.random.split(key, LAYERS * len(shapes)))
    return [
        {name: jax.random.normal(next(keys), shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]


def normalized(x: jax.Array) -> jax.Array:
    """Return a matrix with each row scaled to mean 0 and variance 1."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def forward(parameters: Parameters, x: jax.Array) -> jax.Array:
    """The transformer: attention and two layers, each added to its input. x: [batch, length, WIDTH]."""
    batch, length, _ = x.shape
    for layer in parameters:
        mixed = (normalized(x) @ layer["mix"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (mixed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    return x


@jax.jit
def step(parameters: Parameters, x: jax.Array) -> tuple[Parameters, jax.Array]:
    """One training step on x, compiled by XLA: the new weights (parameters), and the loss."""
    def loss(parameters: Parameters) -> jax.Array:
        """The mean square of how far the output is from x one word on."""
        return jnp.square(forward(parameters, x) - jnp.roll(x, 1, -1)).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, parameters, gradients), value


def main() -> None:
    """Train for as many steps as the command line says, and print a digest of weights and losses."""
    parameters = initial(jax.random.key(0))
    losses = []
    for number in range(int(sys.argv[1])):
        x = jnp.asarray(np.random.default_rng(number).standard_normal((8, 64, WIDTH), dtype=np.float32))
        parameters, loss = step(parameters, x)
        losses.append(loss)
    digest = hashlib.sha256()
    for array in (*jax.tree.leaves(parameters), jnp.stack(losses)):
        digest.update(np.asarray(array).tobytes())
    print(f"result {digest.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
