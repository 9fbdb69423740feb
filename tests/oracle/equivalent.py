"""Mutants that no reference can notice, each with the reason."""

from __future__ import annotations

import re

from tests.kernels.cases import Case
from tests.oracle.mutations import Mutation

_SHIFTED = frozenset(
    {"attention", "attention_causal", "softmax", "triton_attention", "triton_attention_bf16_sm_90", "triton_softmax",
     "triton_softmax_sm_90"}
)  # fmt: skip
_BY_HAND: dict[tuple[str, str, str], str] = {
    ("nothing", "add.u32 %k, %k, 1", "sub.u32 %k, %k, 1"): "what the kernel computes goes nowhere: it has no memory",
    ("rare", "fence.proxy.alias", ""): "no two names of one place in the kernel",
}
"""(case, statement, what it became) → why nothing can differ."""


def why_equivalent(case: Case, mutation: Mutation) -> str | None:
    """The reason why what a mutant computes is as right as what its original computes; None if it is not."""
    if mutation.kind == "rounding" and not case.exact:
        return "the reference allows more than the last bit"
    if case.name in _SHIFTED and re.search(r"\bmax\.f32 .*", mutation.statement) and "min.f32" in mutation.into:
        return "softmax does not depend on what is taken off all its inputs"
    scales = re.fullmatch(r"mul(?:\.rn)?\.f32 (%\w+), .*, 0f3E(?:3504F3|000000)", mutation.statement)
    if case.name in _SHIFTED and scales and mutation.into.startswith("add"):
        return "the product is only used for the greatest input, see above"
    return _BY_HAND.get((case.name, mutation.statement, mutation.into))
