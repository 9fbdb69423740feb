"""ctranslate2's own kernels, by the functions that its library exports, on PyTorch's memory.

    ahead_ctranslate2.py LIBRARY --out FILE

FILE: {"outputs": {function: SHA-256 of what it computed}, "checks": "ok" or the first wrong one}.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

PREFIX = "_ZN11ctranslate210primitivesILNS_6DeviceE1EE"
"""``ctranslate2::primitives<Device::CUDA>``."""
COUNT = 100_003
Function = Callable[[torch.Tensor], torch.Tensor]
Argument = torch.Tensor | int | ctypes.Array[ctypes.c_int64]
UNARY: dict[str, Function] = {
    "3cosIfEEvPKT_PS4_l": torch.cos,
    "3expIfEEvPKT_PS4_l": torch.exp,
    "3sinIfEEvPKT_PS4_l": torch.sin,
    "4reluIfEEvPKT_PS4_l": torch.relu,
    "4tanhIfEEvPKT_PS4_l": torch.tanh,
    "5swishIfEEvPKT_PS4_l": torch.nn.functional.silu,
    "7sigmoidIfEEvPKT_PS4_l": torch.sigmoid,
    "4geluIfEEvPKT_PS4_l": torch.nn.functional.gelu,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "3addIfEEvPKT_S6_PS4_l": torch.add,
    "3subIfEEvPKT_S6_PS4_l": torch.sub,
    "3mulIfEEvPKT_S6_PS4_l": torch.mul,
    "3maxIfEEvPKT_S6_PS4_l": torch.maximum,
}
TRANSPOSE = "12transpose_2dIfEEvPKT_PKlPS4_"
ADD_ROWS = "19add_batch_broadcastIfEEvPKT_S6_PS4_ll"


class Calls:
    """The library's functions, what they computed, and the first that is wrong."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Prepare to call the functions of CTranslate2's library, which is loaded; nothing was computed yet."""
        self.outputs: dict[str, str] = {}
        self.failure = ""
        self._library = library

    def call(self, name: str, want: torch.Tensor, *arguments: Argument) -> None:
        """Call a function of the library, whose last tensor is its output; keep a digest of that, and whether it is
        what PyTorch computes (want). name: mangled, without the common prefix.
        """
        function = self._library[PREFIX + name]
        function.restype = None
        out = next(argument for argument in reversed(arguments) if isinstance(argument, torch.Tensor))
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        function(*(ctypes.c_void_p(word.data_ptr()) if isinstance(word, torch.Tensor)
                   else ctypes.c_int64(word) if isinstance(word, int) else word for word in arguments))  # fmt: skip
        torch.cuda.synchronize()
        self.outputs[name] = hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest()
        if not self.failure and not torch.allclose(out, want, rtol=1e-4, atol=1e-5):
            self.failure = f"{name}: differs from PyTorch by {(out - want).abs().max().item():g}"


def main() -> int:
    """Call all functions and write the digests.

    PyTorch is at work first, so that the driver is loaded before the library is. Returns 1 when one computed something
    wrong.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    left = torch.linspace(-4, 4, COUNT, device="cuda")
    right = torch.linspace(2, -3, COUNT, device="cuda")
    calls = Calls(ctypes.CDLL(str(options.library)))
    out = torch.empty_like(left)
    for name, unary in UNARY.items():
        calls.call(name, unary(left), left, out, COUNT)
    for name, binary in BINARY.items():
        calls.call(name, binary(left, right), left, right, out, COUNT)
    rows, columns = 250, 400
    square = left[: rows * columns].reshape(rows, columns)
    turned = torch.empty(columns, rows, device="cuda")
    calls.call(TRANSPOSE, square.T, square, (ctypes.c_int64 * 2)(rows, columns), turned)
    summed = torch.empty(rows * columns, device="cuda")
    row = right[:columns]
    calls.call(ADD_ROWS, (square + row).reshape(-1), row, square, summed, columns, rows * columns)
    options.out.write_text(json.dumps({"checks": calls.failure or "ok", "outputs": calls.outputs}))
    return 1 if calls.failure else 0


if __name__ == "__main__":
    sys.exit(main())
