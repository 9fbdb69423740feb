"""What the numbers of shipped probes stand for, and of what whole their sums are parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from neutrino.tracing.accesses import KINDS

_KINDS = dict(enumerate(KINDS))
_WORDS: dict[str, tuple[Collection[str], str, Mapping[int, str]]] = {
    "GlobalAccesses": (("address", "clock", "site", "bytes", "kind"), "kind", _KINDS),
    "BulkCopies": (("address", "clock", "bytes", "site", "kind", "thread"), "kind", _KINDS),
    "TensorCopies": (
        ("tensor", "clock", "site", "kind", "x", "y", "z", "w", "v", "dimensions"), "kind", _KINDS,
    ),
    "Distances": (("lines",), "lines", {0: "the same line again", 8: "farther away, or a new line"}),
}  # fmt: skip
"""By map: its fields, and of one of them what its values are called."""
_MIX = (
    "integer", "fp16", "fp32", "fp64", "special", "compare", "logic", "move", "convert", "load", "store", "copy",
    "atomic", "lanes", "barrier", "branch", "tensor",
)  # fmt: skip
_CLASSES = ("load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")
_BYTES = ("load", "store", "atomic", "async")
_FACTORS = ("f64", "tf32", "f16", "bf16", "f8", "f4", "i8", "i4", "b1")
_SHARES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "OpcodeMix": (("all", *_MIX), _MIX, ("all",)),
    "InstCount": (("all", *_CLASSES), _CLASSES, ("all",)),
    "ValueCounts": (("results", "nan", "infinite"), ("nan", "infinite"), ("results",)),
    "BranchDivergence": (("branches", "diverged", "taken", "passed"), ("diverged",), ("branches",)),
    "GmemBytes": ((*_BYTES, "uncounted"), _BYTES, _BYTES),
    "TensorOps": (_FACTORS, _FACTORS, _FACTORS),
}
"""By map: its fields, those that are parts of a whole, and those that the whole is the sum of."""


def words_of(name: str, fields: Collection[str]) -> tuple[str, Mapping[int, str]]:
    """Return which field of a map has names for its values, and the names; "" and none for others. name: the map's.
    fields: all of its fields: another probe's map of that name has its own meaning.
    """
    known = _WORDS.get(name)
    return (known[1], known[2]) if known is not None and set(fields) == set(known[0]) else ("", {})


def whole_of(name: str, totals: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return for each field of a map of sums of what whole its total is a part; none of other maps. totals: by field,
    all of the map's.
    """
    fields, parts, whole = _SHARES.get(name, ((), (), ()))
    if set(totals) != set(fields):
        return {}
    return dict.fromkeys(parts, sum(totals[field] for field in whole))
