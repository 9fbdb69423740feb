"""Constant expressions as ptxas 13 folds them, and directives that share a line with an instruction."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.emulator.constant_expressions import evaluate_integer
from neutrino.emulator.device import Device
from neutrino.errors import PtxRefusedError
from tests.emulator.kernels_by_hand import Kernel, module_text

# What ptxas 13.0 put into the cubin for `.global .u64 g = EXPRESSION;`.
_FOLDED = {
    "0xFFFFFFFFFFFFFFFF>>1": 0x7FFFFFFFFFFFFFFF,
    "-1>>65": 0xFFFFFFFFFFFFFFFF,
    "1<<65": 2,
    "1<<-1": 0x8000000000000000,
    "0xFFFFFFFFFFFFFFFF<1": 0,
    "-1<1U": 0,
    "-1/2U": 0x7FFFFFFFFFFFFFFF,
    "(-1&-1)>>4": 0xFFFFFFFFFFFFFFFF,
    "(~0)>>4": 0x0FFFFFFFFFFFFFFF,
    "-7 % 4": 1,
    "7 % -4": 7,
    "-7/2": 0xFFFFFFFFFFFFFFFD,
    "(1?-1:1U)/2": 0,
    "-8>>1U": 0xFFFFFFFFFFFFFFFC,
    "(-1)*1U/2": 0x7FFFFFFFFFFFFFFF,
    "-(0x8000000000000000)/2": 0x4000000000000000,
    "9223372036854775808/3": 0x2AAAAAAAAAAAAAAA,
    "1<<63>>3": 0xF000000000000000,
    "-1U>>4": 0x0FFFFFFFFFFFFFFF,
    "-1<=2U": 0,
    "(.s64)0xFFFFFFFFFFFFFFFF>>1": 0xFFFFFFFFFFFFFFFF,
    "(.u64)-1>>1": 0x7FFFFFFFFFFFFFFF,
    "-0x8000000000000000/-1": 0,
}


@pytest.mark.parametrize("expression", _FOLDED)
def test_constant_expressions(expression: str) -> None:
    value = evaluate_integer(expression)
    assert value is not None
    assert value & (1 << 64) - 1 == _FOLDED[expression]


def test_instruction_behind_loc() -> None:
    body = "mov.u32 %r5, 1; .loc 1 1 1 mov.u32 %r5, (1 << 3) + 2;\n"
    body += ".loc 1 2 0, function_name $L1 + 4, inlined_at 1 2 3\n"
    kernel = Kernel(body + "st.global.u32 [%d1], %r5;", before='.file 1 "a.c" .global .u32 g;')
    out = np.zeros(32, np.uint32)
    kernel.run(out)
    assert (out == 10).all()


@pytest.mark.parametrize(
    "text",
    [
        module_text("", before=".shared .u32 s = 5;"),
        module_text(".local .u32 s = 5;"),
        module_text("mov.u32 %r6, %tid;"),
        module_text("").replace("p0)", "p0) .unheardof 3"),
    ],
)
def test_what_would_be_left_out_is_refused(text: str) -> None:
    device = Device(memory=1 << 20)
    with pytest.raises(PtxRefusedError):
        device.launch(device.load(text).functions["k"], (1, 1, 1), (32, 1, 1), [device.allocate(128)])
