"""Instructions are printed as they are read, and each opcode is decoded once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.ptx.isa.instruction import Instruction, mnemonic, read_instruction
from neutrino.ptx.isa.opcodes import FLOW, NO_AFTER, OPCODES, Flow
from neutrino.ptx.text.inserted import op

_OPCODES = st.sampled_from([row.text.replace("|", ".").split("..")[0] for row in OPCODES])
_REGISTERS = st.from_regex(r"%[a-z]{1,3}[0-9]{1,4}", fullmatch=True)
_OPERANDS = st.one_of(
    _REGISTERS,
    st.integers(-(1 << 31), 1 << 31).map(str),
    st.builds("[{}+{}]".format, _REGISTERS, st.integers(0, 4096)),
    st.lists(_REGISTERS, min_size=1, max_size=4).map(lambda names: "{" + ", ".join(names) + "}"),
)
_GUARDS = st.just("") | st.builds("{}{}".format, st.sampled_from(["", "!"]), _REGISTERS)


@given(_OPCODES, st.lists(_OPERANDS, max_size=5), _GUARDS)
def test_what_is_printed_is_read_again(opcode: str, operands: list[str], guard: str) -> None:
    made = op(opcode, *operands, when=guard)
    assert made.text.endswith(";")
    assert read_instruction(made.text[:-1]) == made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (op("ret"), "ret;"),
        (op("add.u32", "%r1", "%r1", "1", when="!%p2"), "@!%p2 add.u32 %r1, %r1, 1;"),
        (op("st.global.u32", "[%rd1+8]", "%r1", when="%p"), "@%p st.global.u32 [%rd1+8], %r1;"),
    ],
)
def test_assembly(made: Instruction, text: str) -> None:
    assert made.text == text


def test_an_opcode_is_decoded_once() -> None:
    assert mnemonic("ld.global.v4.f32") is mnemonic("ld.global.v4.f32")
    decoded = mnemonic("ld.global.v4.f32")
    assert (decoded.word, decoded.state_space, decoded.type, decoded.elements) == ("ld", "global", "f32", 4)
    assert decoded.row is not None


def test_where_control_goes() -> None:
    assert {word for word, flow in FLOW.items() if flow.ends_block} == {"bra", "brx", "ret", "exit", "trap"} == NO_AFTER
    assert (FLOW["call"], FLOW["brkpt"]) == (Flow.CALL, Flow.PAUSE)
    assert mnemonic("bra.uni").flow is Flow.JUMP
    assert mnemonic("add.u32").flow is None
