"""What is known of addresses: by how much they differ, and whether lanes have loaded them."""

from __future__ import annotations

import pytest

from neutrino.ptx.analysis.register_values import Addresses
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse

_KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
.reg .u64 %a, %b, %c, %d, %x, %y; .reg .u32 %r, %t; .reg .pred %p;
ld.param.u64 %x, [x];
ld.param.u64 %y, [y];
mov.u32 %t, %tid.x;
mul.wide.u32 %d, %t, 4;
setp.eq.u32 %p, %t, 3;
BODY
ret;
}
"""


def _body(text: str) -> Body:
    module = parse(_KERNEL.replace("BODY", text))
    return Body(module.code, *module.entries[0].body)


def _difference(text: str) -> int | None:
    """By how much the address of the second load is greater than that of the first; None if that is not known."""
    body = _body(text)
    addresses = Addresses(body)
    loads = [index for index, one in enumerate(body.mnemonics) if one is not None and one.text == "ld.global.u32"]
    first, second = (addresses.of(body.statement(index).text.split("[")[1].split("]")[0], index) for index in loads)
    if first is None or second is None or first.terms != second.terms:
        return None
    amount = (second.constant - first.constant) % (1 << 64)
    return amount - (1 << 64) if amount >> 63 else amount


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        ("ld.global.u32 %r, [%x]; add.s64 %a, %x, 16; ld.global.u32 %r, [%a];", 16),
        ("add.s64 %a, %x, %d; sub.u64 %b, %a, 8; add.u64 %c, %d, %x; ld.global.u32 %r, [%b];"
         "ld.global.u32 %r, [%c];", 8),
        ("add.s64 %a, %x, -4; mov.b64 %b, %a; ld.global.u32 %r, [%b]; ld.global.u32 %r, [%x];", 4),
        ("add.s64 %a, %x, 0x10; ld.global.u32 %r, [%a]; add.s64 %a, %a, 32; ld.global.u32 %r, [%a];", 32),
        ("add.s64 %a, %x, %x; add.s64 %b, %x, %a; sub.s64 %b, %b, %x; ld.global.u32 %r, [%a];"
         "ld.global.u32 %r, [%b];", 0),
        # By amounts that differ from lane to lane.
        ("ld.global.u32 %r, [%x]; add.s64 %a, %x, %d; ld.global.u32 %r, [%a];", None),
        ("ld.global.u32 %r, [%x]; ld.global.u32 %r, [%y];", None),
        ("mov.b64 %a, %x; ld.global.u32 %r, [%a]; @%p add.s64 %a, %a, 16; ld.global.u32 %r, [%a];", None),
        ("mul.lo.u64 %a, %d, 2; add.s64 %b, %x, %a; add.s64 %c, %x, %d; ld.global.u32 %r, [%b];"
         "ld.global.u32 %r, [%c];", None),
        # What a branch may pass by is not known after it.
        ("mov.b64 %a, %x; @%p bra L; add.s64 %a, %a, 4; L: ld.global.u32 %r, [%a]; ld.global.u32 %r, [%x];", None),
        ("mov.b64 %a, %x; @%p bra L; add.s64 %a, %a, 4; L: add.s64 %b, %a, 8; ld.global.u32 %r, [%a];"
         "ld.global.u32 %r, [%b];", 8),
        # In a loop, the register that counts has changed since the other one was computed.
        ("mov.b64 %a, %x; L: add.s64 %b, %a, 8; bra M; M: add.s64 %a, %a, 64; bra N; N: ld.global.u32 %r, [%a];"
         "ld.global.u32 %r, [%b]; @%p bra L;", None),
        ("mov.b64 %a, %x; L: add.s64 %b, %a, 8; add.s64 %c, %a, 24; @%p bra N; N: ld.global.u32 %r, [%b];"
         "ld.global.u32 %r, [%c]; add.s64 %a, %a, 64; @%p bra L;", 16),
        # One that only some threads compute.
        ("@%p bra L; add.s64 %a, %x, 4; L: ld.global.u32 %r, [%x]; ld.global.u32 %r, [%a];", None),
        # Another register of that name.
        ("ld.global.u32 %r, [%x]; { .reg .u64 %x; mov.b64 %x, %y; ld.global.u32 %r, [%x]; }", None),
    ],
)  # fmt: skip
def test_addresses_that_differ_by_a_constant(text: str, difference: int | None) -> None:
    assert _difference(text) == difference


@pytest.mark.parametrize(
    ("text", "is_scattered"),
    [
        ("add.s64 %a, %x, %d; ld.global.u32 %r, [%a];", False),
        # An index that all lanes load alike, and one that each lane loads.
        ("ld.global.u32 %t, [%y]; mul.wide.u32 %b, %t, 4; add.s64 %a, %x, %b; ld.global.u32 %r, [%a];", False),
        ("add.s64 %c, %y, %d; ld.global.u32 %t, [%c]; mul.wide.u32 %b, %t, 4; add.s64 %a, %x, %b;"
         "ld.global.u32 %r, [%a];", True),
        ("mov.u64 %a, %x; L: ld.global.u64 %a, [%a]; add.s64 %a, %a, %d; ld.global.u32 %r, [%a]; @%p bra L;", True),
        ("add.s64 %c, %y, %d; ld.const.u32 %t, [%c]; mul.wide.u32 %b, %t, 4; add.s64 %a, %x, %b;"
         "ld.global.u32 %r, [%a];", False),
    ],
)  # fmt: skip
def test_scattered_accesses(text: str, is_scattered: bool) -> None:
    body = _body(text)
    (load,) = [
        instruction for index, one in enumerate(body.mnemonics) if one is not None and one.text == "ld.global.u32"
        and (instruction := body.statement(index).instruction) is not None and instruction.operands[0] == "%r"
    ]  # fmt: skip
    assert Addresses(body).is_scattered(load) is is_scattered


_WRITES = (
    "add.u32 %r, %t, 1;", "@%p add.u32 %r, %t, 1;", "here: add.u32\t%r ,%t,1;", "{ add.u32 %r, %t, 1; }",
    "{.reg .u32 %r; add.u32 %r, %t, 1; }", "ld.global.v2.u32 {%r, %t}, [%a];", "ld.global.v2.u32 {_, %t}, [%a];",
    "setp.eq.u32 %p|%q, %r, %t;", "st.global.u32 [%a], %r;", "atom.global.add.u32 _, [%a], %r;",
    "call (%r), f, (%t);", "call f, (%r);", "mov.b64 {%r, %t}, %a;", "activemask.b32 %r;", "bar.sync 0, 32;",
    "unheard.of.u32 %r, %t;", "mov.u32 %r$1, %t;", "mov.u32 %1, %t;", "mov.u32 tail, %t;",
)  # fmt: skip


@pytest.mark.parametrize("text", _WRITES)
def test_writes_are_those_of_the_decoded_instructions(text: str) -> None:
    body = _body(text)
    instructions = ((index, body.statement(index).instruction) for index in range(len(body)))
    decoded: dict[str, list[int]] = {}
    for index, instruction in instructions:
        for name in instruction.written if instruction is not None else ():
            decoded.setdefault(name, []).append(index)
    assert Addresses(_body(text)).writes == decoded
