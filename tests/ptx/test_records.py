"""Records of fields of several classes, side by side: what pairs them into wide stores must suit the assembler."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from machine import assemble

from neutrino.abi.levels import LEVELS, Level
from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.ir.operands import Immediate, Register
from neutrino.ir.statements import Assembly
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map
from neutrino.maps.registry import ARRAY
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet, verified
from neutrino.probing.ir.structured import Save
from neutrino.probing.model import Pattern, Subject, Tracepoint
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse

HERE = Span(1, 1)
PTX = """.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 a)
{
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [a];
	st.global.u64 [%d1], %d1;
	ret;
}
"""


ZERO = {"f32": "0f00000000", "f64": "0d0000000000000000"}


def probe(types: tuple[ScalarType, ...], level: Level, cap: int) -> ProbeSet:
    fields, size, _ = lay_out_fields([(f"f{i}", scalar) for i, scalar in enumerate(types)])
    registers = tuple(
        Register(f"%r{i}", Type(scalar.value) if scalar.size > 1 else Type.U16, 0, HERE)
        for i, scalar in enumerate(types)
    )
    target = Map("M", ARRAY, level, size, cap, tuple(fields), HERE)
    moves = [
        Assembly("ptx", f"mov.{register.type}", (register, Immediate(ZERO.get(register.type, "0"))), HERE,
                 writes=(register,))
        for register in registers
    ]
    save = Save(target, registers, HERE)
    tracepoint = Tracepoint("st.global", (Pattern(Subject.OPCODE, ("st", "global")),))
    saving = Probe("p", tracepoint, level, Snippet((*moves, save)), None, HERE)
    return verified("p.toml", "", False, "ptx", (target,), registers, (saving,))


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cap", [1, 3])
def test_any_two_fields_side_by_side(level: Level, cap: int, tmp_path: Path) -> None:
    texts = []
    for number, types in enumerate(itertools.product(ScalarType, repeat=2)):
        twins = probe_module(parse(PTX.replace(" k(", f" k{number}(")), probe(types, level, cap))
        assert not twins.skipped
        texts.append(twins.render())
    header, _, _ = texts[0].partition(".visible")
    assemble(header + "\n".join(".visible" + text.partition(".visible")[2] for text in texts), "sm_75", tmp_path)
