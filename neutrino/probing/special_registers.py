"""The special registers of PTX that a probe may read, and the type of each (PTX ISA 9.0, chapter 10)."""

from __future__ import annotations

_VECTORS = (
    "tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid",
)  # fmt: skip
_U32 = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "cluster_ctarank", "cluster_nctarank",
    "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
    "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi",
    "total_smem_size", "aggr_smem_size", "dynamic_smem_size",
)  # fmt: skip
_U64 = ("gridid", "clock64", "globaltimer", "current_graph_exec")

SPECIAL_REGISTERS: dict[str, str] = {
    **{f"%{name}.{part}": "u32" for name in _VECTORS for part in "xyz"},
    **{f"%{name}": "u32" for name in _U32},
    **{f"%{name}": "u64" for name in _U64},
    **{f"%pm{index}": "u32" for index in range(8)},
    **{f"%pm{index}_64": "u64" for index in range(8)},
    **{f"%envreg{index}": "b32" for index in range(32)},
}
"""Name with ``%`` → PTX type without the dot."""

SPECIAL_NEEDS: dict[str, tuple[tuple[int, int], int]] = {
    f"%{name}.{part}": ((7, 8), 90)
    for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    for part in "xyz"
} | {f"%{name}": ((7, 8), 90) for name in ("cluster_ctarank", "cluster_nctarank")}
"""Name with ``%`` → the lowest ``.version`` and architecture that have it, of those that not all have."""
