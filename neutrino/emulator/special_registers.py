"""The special registers (PTX ISA 10): their names and types."""

from __future__ import annotations

# Each has the components x, y, z and w.
_VECTORS = (
    "tid", "ntid", "ctaid", "nctaid",
    "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid",
)  # fmt: skip
# The names and the types of the others: 32 and 64 bits.
_WORDS = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid",
    "is_explicit_cluster", "cluster_ctarank", "cluster_nctarank",
    "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
    "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi",
    "total_smem_size", "aggr_smem_size", "dynamic_smem_size",
    "reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap",
    "reserved_smem_offset_0", "reserved_smem_offset_1",
)  # fmt: skip
_LONG_WORDS = ("gridid", "clock64", "globaltimer", "current_graph_exec")

SPECIAL_REGISTERS: dict[str, str] = {
    **{f"{name}.{axis}": "u32" for name in _VECTORS for axis in "xyz"},
    **{f"{name}.w": "u32" for name in _VECTORS},
    **dict.fromkeys(_WORDS, "u32"),
    **dict.fromkeys(_LONG_WORDS, "u64"),
    "is_explicit_cluster": "pred",
    # Performance counters, and registers that the driver sets for tools: read as zero.
    **{f"pm{number}": "u32" for number in range(8)},
    **{f"pm{number}_64": "u64" for number in range(8)},
    **{f"envreg{number}": "u32" for number in range(32)},
}
"""Name without ``%`` → type. ``.w`` reads as zero."""

CLOCKS = frozenset({"clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"})
"""The special registers that change while a thread runs."""
