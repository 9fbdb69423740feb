"""The values that inserted code is made of say what its text says."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.isa.instruction import Instruction, read_instruction
from neutrino.ptx.text.inserted import Declaration, Edits, Inserted, Label, Scope
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probes

_KERNELS = Path(__file__).resolve().parents[1] / "fixtures" / "kernels" / "clang"
_PROBES = ("opcode_mix", "coalescing", "hot_lines", "dmat", "block_sched", "nan_finder")


def _read(text: str) -> list[Instruction]:
    """The instructions of inserted text, taken apart by what reads PTX."""
    lines = [line.strip() for line in text.splitlines()]
    assert all(line in {"", "{", "}"} or line[-1] in ";:" for line in lines)
    instructions = [read_instruction(line[:-1]) for line in lines if line.endswith(";") and line[0] != "."]
    return [instruction for instruction in instructions if instruction is not None]


@pytest.mark.parametrize("probe", _PROBES)
def test_instructions_are_those_of_the_text(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inserted: dict[int, Inserted] = {}
    apply = Edits.apply

    def recorded(edits: Edits, text: str, start: int, end: int) -> str:
        inserted.update((id(new), new) for _, _, new in edits.edits if isinstance(new, Inserted))
        return apply(edits, text, start, end)

    monkeypatch.setattr(Edits, "apply", recorded)
    for name in ("atomics.ptx", "floats.ptx"):
        probe_module(parse((_KERNELS / name).read_text()), load_probes([probe]), version=(9, 0))
    assert inserted
    for new in inserted.values():
        instructions = [instruction for line in new.lines for instruction in line.instructions]
        assert instructions == _read(new.text)
        assert new.opcodes == [instruction.opcode for instruction in instructions]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (Label("$L"), "$L:"),
        (Scope.OPEN, "{"),
        (Declaration("reg", "b32", "%w", 5), ".reg .b32 %w<5>;"),
        (Declaration("reg", "pred", "%p"), ".reg .pred %p;"),
        (Declaration("local", "b8", "state", 24, align=16), ".local .align 16 .b8 state[24];"),
    ],
)
def test_what_is_no_instruction(line: Label | Scope | Declaration, text: str) -> None:
    assert line.text == text
    assert not line.instructions
    assert not line.opcodes
