"""The names of ``neutrino.language``, and what each stands for."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.ir.operands import SiteOperand, Special
from neutrino.ir.statements import Reduction
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.language.locals import Result
from neutrino.probing.target import Words

_AXES = ("x", "y", "z")
PLACES: Mapping[str, Mapping[str, Special]] = {
    name: {axis: Special(f"{name}.{axis}") for axis in _AXES}
    for name in (
        "tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid",
    )
}  # fmt: skip
"""``nl.tid`` and the others, where a thread is and how many there are → the hardware value of each axis."""

HELPERS: Mapping[str, Special] = {
    "clock": Special.CLOCK, "time": Special.TIME, "cuid": Special.CUID, "smid": Special.CUID, "lane": Special.LANE,
    "lanemask_lt": Special.LANEMASK_LT, "warpid": Special.WARP, **{name: axes["x"] for name, axes in PLACES.items()},
}  # fmt: skip
"""Functions without arguments, such as ``nl.clock()`` → the hardware value that they read."""

CHANGING = frozenset({"clock", "time"})
"""Helpers that give another value each time, and so are calls: the others may be written without parentheses."""

REDUCTIONS: Mapping[str, Reduction] = {reduction.value: reduction for reduction in Reduction}
"""``nl.warp.sum`` and the others."""

VECTORS = ("out", "in1", "in2", "in3", "in4", "in5", "in6", "in7", "in8", "in9")
"""``nl.out`` and the inputs: operands of the instruction that a probe is at, which may be vectors."""

SITE_OPERANDS = (
    *VECTORS, "addr", "bytes", "ops", "pred", "lanes", "leader", "elected", "thread", "block", "site", "line",
    "elements", "sectors", "distinct",
)  # fmt: skip
"""``nl.out`` and the others: values of the instruction that a probe is at."""

ELSEWHERE: Mapping[str, str] = {
    "threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid", "laneid": "lane",
    "laneId": "lane", "lane_id": "lane", "warpId": "warpid", "warp_id": "warpid", "program_id": "block",
    "threadid": "thread", "thread_id": "thread", "blockid": "block", "block_id": "block", "group": "leader",
    "activemask": "lanes", "mask": "lanes", "sm": "smid", "globaltimer": "time", "clock64": "clock", "nsecs": "time",
    "lineno": "line", "pc": "site",
}  # fmt: skip
"""What CUDA, Triton and PTX call something → its name here."""

HAS = "HAS"
"""The site operand that ``nl.has`` gives: whether the instruction's opcode has a modifier."""

PARAMETER = "PARAM"
"""The site operand that ``nl.param`` gives: a parameter of the kernel."""

FUNCTIONS: Mapping[str, int] = {"min": 2, "max": 2, "abs": 1, "popc": 1, "clz": 1, "select": 3}
"""Functions that compute, such as ``nl.min(a, b)`` → how many values they take; ``min`` and ``max`` also more."""

TYPES: Mapping[str, Type] = {
    ir_type.value: ir_type
    for ir_type in PROBE_TYPES
    if ir_type is not Type.F16X2
    and ir_type is not Type.PRED
    and (ir_type is Type.BF16 or not ir_type.value.startswith("b"))
}
"""``nl.u64`` and the others."""

_SITE_OPERAND_TYPES: Mapping[str, Type] = {
    "ADDR": Type.U64, "BYTES": Type.U64, "OPS": Type.U64, "PRED": Type.PRED, "LEADER": Type.PRED,
    "THREAD": Type.U32, "BLOCK": Type.U64, "SITE": Type.U32, "LINE": Type.U32, "ELEMENTS": Type.U32, "HAS": Type.U32,
    "SECTORS": Type.U32, "DISTINCT": Type.U32,
}  # fmt: skip
"""Site operands whose type depends neither on the instruction nor, as that of ``LANES``, on the target."""


def settled(type_: Type | None) -> Type | None:
    """Return the type in which a value is kept: untyped bits are kept as an unsigned integer, others as they are."""
    return Type(f"u{type_.bits}") if type_ is not None and type_.is_untyped else type_


def is_wider(one: Type, other: Type) -> bool:
    """Return whether a type is of the same kind and sign as another, and has more bits."""
    return one.is_float == other.is_float and one.is_signed == other.is_signed and one.bits > other.bits > 1


def type_of_result(result: Result, words: Words) -> Type | None:
    """Return the type of an expression's value. words: of the target.

    None for a plain number, and for a site operand that has whatever type the probed instruction has.
    """
    if isinstance(result, SiteOperand) and result.name == PARAMETER and "." in (result.element or ""):
        return TYPES.get((result.element or "").rpartition(".")[2])
    if isinstance(result, SiteOperand) and result.name == "LANES":
        return words.lane_mask
    if isinstance(result, SiteOperand):
        return _SITE_OPERAND_TYPES.get(result.name)
    return None if isinstance(result, (int, float)) else result.type
