"""Tensor cores: how much of the arithmetic runs on them."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent

_DENSE, _DENSE_ALONE = 4.0, 16.0
"""Floating-point instructions for each load, store and copy from which on a kernel may be a product of matrices; the
latter where bytes are not known, since a vector of four is one access.
"""
_PER_BYTE = 4.0
"""The same for each byte of global memory: as a product by tiles of 32 x 32 in FP32 has. What looks at each element
alone, or reduces rows, has about two at most.
"""
_OPERATIONS = ("f64", "tf32", "f16", "bf16", "f8", "f4", "i8", "i4", "b1")


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield what share of the arithmetic runs on tensor cores, and whether that without them looks like products of
    matrices."""
    tensors = evidence.totals("TensorOps", ("f16", "tf32"))
    mix = evidence.totals("OpcodeMix", ("fp16", "fp32", "fp64", "load", "store"))
    launches = evidence.summary.written
    if tensors is None or mix is None or not launches:
        return
    operations = sum(tensors[name] for name in _OPERATIONS if name in tensors)
    issued = (evidence.totals("TensorIssued") or {}).get("tcgen05", 0)
    ordinary = sum(mix[name] for name in ("fp16", "fp32", "fp64"))
    accesses = mix["load"] + mix["store"] + mix.get("copy", 0)
    share = shared(operations, operations + 2 * ordinary)
    dense = ordinary / max(accesses, 1)
    size = sum(count for name, count in (evidence.totals("GmemBytes") or {}).items() if name != "uncounted")
    is_dense = dense >= _DENSE and ordinary >= _PER_BYTE * size if size else dense >= _DENSE_ALONE
    values = {
        "share": share, "operations": operations // launches, "ordinary": ordinary // launches,
        "ordinary_per_access": dense,
        **({"ordinary_per_byte": ordinary / size} if size else {}),
        "half_without": (1 - share) * shared(mix["fp16"], ordinary) if is_dense else 0.0,
        "single_without": (1 - share) * shared(mix["fp32"], ordinary) if is_dense else 0.0,
    }  # fmt: skip
    if operations or issued:
        sentence = (
            f"{percent(share)} of the arithmetic runs on tensor cores: {brief(operations / launches)} operations of a "
            f"launch, beside {brief(ordinary / launches)} ordinary floating-point instructions"
        )
    else:
        sentence = (
            f"no tensor core is used for {brief(ordinary / launches)} floating-point instructions of a launch, "
            f"{brief(dense)} for each access to memory"
        )
    certainty = evidence.certainty(["TensorOps", "OpcodeMix"], is_timed=False)
    remedies = (
        "if these are products of matrices, do them with tensor cores (a library, wmma or mma; of FP32 as TF32 where "
        "its 10 bits of fraction are enough)",
    )
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


ANALYSIS = Analysis(
    "tensor_cores",
    "How much of the arithmetic runs on tensor cores?",
    (("tensorop", "opcode_mix", "gmem_bytes"), ("tensorop", "opcode_mix")),
    (
        FigureKind("share", "share", "operations on tensor cores, of all"),
        FigureKind("operations", "", "on tensor cores, of a launch"),
        FigureKind("ordinary", "", "floating-point instructions of a launch without tensor cores"),
        FigureKind("ordinary_per_access", "", "such instructions for each load, store and copy"),
        FigureKind("ordinary_per_byte", "", "such instructions for each byte of global memory that threads ask for"),
        FigureKind("half_without", "share", "arithmetic in 16 bits without tensor cores where few accesses are"),
        FigureKind("single_without", "share", "arithmetic in FP32 without tensor cores where few accesses are"),
    ),
    (Threshold("half_without", 0.5, 0.9), Threshold("single_without", 0.5, float("inf"))),
    run,
)
