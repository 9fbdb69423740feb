"""Code of typed statements with its fences: LLVM's recognizer finds nothing missing, and every instruction is known."""

from __future__ import annotations

import pytest

from neutrino.gcn.code import written
from neutrino.gcn.instrument.hazards import WINDOW, with_fences
from neutrino.gcn.isa.effects import effects
from neutrino.ir.statements import Convert
from neutrino.ir.types import Type
from tests.gcn.compute_bench import MACHINES, lowered, machine_of
from tests.gcn.hazard_judge import HazardJudge
from tests.gcn.objects import need_llvm
from tests.gcn.test_compute import every_operator
from tests.oracle.test_typed import NUMBERS, _inputs
from tests.oracle.typed import HERE, local, saving

_JUDGED = (("gfx90a", 64), ("gfx942", 64), ("gfx1100", 64))
"""Those that LLVM 19 knows, and whose rules differ."""
_KINDS = (Type.S32, Type.U64, Type.F16, Type.F64, Type.BF16, Type.S8)


def _code(place: tuple[str, int], kind: Type) -> list[str]:
    """All operators of a type, and conversions to all others, in a row."""
    body, results = every_operator(kind)
    _, x, _, _ = _inputs(kind)
    for other in NUMBERS:
        results.append(local(f"to_{other}", other))
        body.append(Convert(results[-1], x, HERE))
    more, save = saving(results)
    text = lowered(
        machine_of(*place), need_llvm(), [*body, *more, save], max(kind.bits, 16), temporaries=range(64, 256)
    ).text
    return [line for line in text.splitlines()[:-1] if not line.endswith(":")]


@pytest.mark.parametrize(("number", "place"), list(enumerate(MACHINES)))
def test_every_instruction_is_known(number: int, place: tuple[str, int]) -> None:
    for line in _code(place, _KINDS[number % len(_KINDS)]):
        effects(written(line), machine_of(*place).generation)


@pytest.mark.parametrize(("number", "place"), list(enumerate(_JUDGED)))
def test_nothing_is_missing(number: int, place: tuple[str, int]) -> None:
    judge = HazardJudge(*place)
    before = [[written("s_nop 7")] * WINDOW]
    lines = with_fences(before, _code(place, _KINDS[number]), [[]], machine_of(*place))
    # LLVM 19's MIR has another name for what counts zeros on gfx11.
    assert judge.added([[line.replace("v_clz_i32_u32", "v_not_b32") for line in lines]]) == [[]]
