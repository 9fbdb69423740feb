# Operations on tensor cores, by the type of their factors, and instructions, by shape.
#
# TensorOps: one record per launch, added up over all threads. A matrix instruction of shape m, n, k has 2·m·n·k
# operations (a multiplication and an addition each), including zeros of sparse matrices. The threads that execute it
# together have equal shares. FLOP are the sum of all fields but i8, i4 and b1.
#   f64 tf32 f16 bf16   mma, wmma, wgmma and tcgen05 with such factors; tcgen05's kind::f16, either of the two, is in f16
#   f8                  e4m3, e5m2 and the mixed forms with types of 6 and 4 bits (kind::f8f6f4, kind::mxf8f6f4)
#   f4                  kind::mxf4, kind::mxf4nvf4
#   i8 i4 b1            s8 and u8, s4 and u4, single bits
# TensorInstructions: one record per launch, added up over all warps: how many of each shape a warp executed. A
# warpgroup's wgmma counts once for each of its four warps. TensorIssued: tcgen05.mma, which one thread issues for a
# whole block, counted once for each thread that does.
from neutrino import Map, probe
import neutrino.language as nl

f64_ops: nl.u64 = 0
tf32_ops: nl.u64 = 0
f16_ops: nl.u64 = 0
bf16_ops: nl.u64 = 0
f8_ops: nl.u64 = 0
f4_ops: nl.u64 = 0
i8_ops: nl.u64 = 0
i4_ops: nl.u64 = 0
b1_ops: nl.u64 = 0
issued: nl.u64 = 0
mma_m8n8k4_count: nl.u64 = 0
mma_m16n8k8_count: nl.u64 = 0
mma_m16n8k16_count: nl.u64 = 0
mma_m16n8k32_count: nl.u64 = 0
mma_other_count: nl.u64 = 0
wmma_count: nl.u64 = 0
wgmma_n64_count: nl.u64 = 0
wgmma_n128_count: nl.u64 = 0
wgmma_n256_count: nl.u64 = 0
wgmma_other_count: nl.u64 = 0


@Map(level="thread", type="sum", size=72)
class TensorOps:
    f64: nl.u64
    tf32: nl.u64
    f16: nl.u64
    bf16: nl.u64
    f8: nl.u64
    f4: nl.u64
    i8: nl.u64
    i4: nl.u64
    b1: nl.u64


@Map(level="warp", type="sum", size=80)
class TensorInstructions:
    mma_m8n8k4: nl.u64
    mma_m16n8k8: nl.u64
    mma_m16n8k16: nl.u64
    mma_m16n8k32: nl.u64
    mma_other: nl.u64
    wmma: nl.u64
    wgmma_n64: nl.u64
    wgmma_n128: nl.u64
    wgmma_n256: nl.u64
    wgmma_other: nl.u64


@Map(level="thread", type="sum", size=8)
class TensorIssued:
    tcgen05: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    TensorOps.save(f64_ops, tf32_ops, f16_ops, bf16_ops, f8_ops, f4_ops, i8_ops, i4_ops, b1_ops)
    TensorIssued.save(issued)


@probe(pos="kernel", level="warp", after=True)
def warp_total():
    TensorInstructions.save(
        mma_m8n8k4_count, mma_m16n8k8_count, mma_m16n8k16_count, mma_m16n8k32_count, mma_other_count, wmma_count,
        wgmma_n64_count, wgmma_n128_count, wgmma_n256_count, wgmma_other_count,
    )


@probe(pos="mma.f64.f64 | wmma.mma.f64.f64", level="thread", before=True)
def f64():
    f64_ops += nl.ops


@probe(pos="mma.tf32 | wmma.mma.tf32 | wgmma.mma_async.tf32 | tcgen05.mma.kind::tf32", level="thread", before=True)
def tf32():
    tf32_ops += nl.ops


@probe(
    pos="mma.f16.f16 !e4m3 !e5m2 !e3m2 !e2m3 !e2m1 | wgmma.mma_async.f16.f16 | "
        "wmma.mma !bf16 !tf32 !f64 !s8 !u8 !s4 !u4 !b1 | tcgen05.mma.kind::f16",
    level="thread", before=True,
)
def f16():
    f16_ops += nl.ops


@probe(pos="mma.bf16 | wmma.mma.bf16 | wgmma.mma_async.bf16", level="thread", before=True)
def bf16():
    bf16_ops += nl.ops


@probe(
    pos="mma.e4m3 !kind::mxf4 !kind::mxf4nvf4 | mma.e5m2 !kind::mxf4 !kind::mxf4nvf4 | "
        "mma.e3m2 !kind::mxf4 !kind::mxf4nvf4 | mma.e2m3 !kind::mxf4 !kind::mxf4nvf4 | "
        "mma.e2m1 !kind::mxf4 !kind::mxf4nvf4 | wgmma.mma_async.e4m3 | wgmma.mma_async.e5m2 | "
        "tcgen05.mma.kind::f8f6f4 | tcgen05.mma.kind::mxf8f6f4",
    level="thread", before=True,
)
def f8():
    f8_ops += nl.ops


@probe(
    pos="mma.kind::mxf4 | mma.kind::mxf4nvf4 | tcgen05.mma.kind::mxf4 | tcgen05.mma.kind::mxf4nvf4",
    level="thread", before=True,
)
def f4():
    f4_ops += nl.ops


@probe(
    pos="mma.s8 | mma.u8 | wmma.mma.s8 | wmma.mma.u8 | wgmma.mma_async.s8 | wgmma.mma_async.u8 | "
        "tcgen05.mma.kind::i8",
    level="thread", before=True,
)
def i8():
    i8_ops += nl.ops


@probe(pos="mma.s4 | mma.u4 | wmma.mma.s4 | wmma.mma.u4", level="thread", before=True)
def i4():
    i4_ops += nl.ops


@probe(pos="mma.b1 | wmma.mma.b1 | wgmma.mma_async.b1", level="thread", before=True)
def b1():
    b1_ops += nl.ops


@probe(pos="mma.m8n8k4", level="warp", before=True)
def mma_m8n8k4():
    mma_m8n8k4_count += 1


@probe(pos="mma.m16n8k8", level="warp", before=True)
def mma_m16n8k8():
    mma_m16n8k8_count += 1


@probe(pos="mma.m16n8k16", level="warp", before=True)
def mma_m16n8k16():
    mma_m16n8k16_count += 1


@probe(pos="mma.m16n8k32", level="warp", before=True)
def mma_m16n8k32():
    mma_m16n8k32_count += 1


@probe(pos="mma !m8n8k4 !m16n8k8 !m16n8k16 !m16n8k32", level="warp", before=True)
def mma_other():
    mma_other_count += 1


@probe(pos="wmma.mma", level="warp", before=True)
def wmma():
    wmma_count += 1


@probe(pos="wgmma.mma_async.m64n64k*", level="warp", before=True)
def wgmma_n64():
    wgmma_n64_count += 1


@probe(pos="wgmma.mma_async.m64n128k*", level="warp", before=True)
def wgmma_n128():
    wgmma_n128_count += 1


@probe(pos="wgmma.mma_async.m64n256k*", level="warp", before=True)
def wgmma_n256():
    wgmma_n256_count += 1


@probe(
    pos="wgmma.mma_async & !(wgmma.mma_async.m64n64k* | wgmma.mma_async.m64n128k* | wgmma.mma_async.m64n256k*)",
    level="warp", before=True,
)
def wgmma_other():
    wgmma_other_count += 1


@probe(pos="tcgen05.mma", level="thread", before=True)
def tcgen05():
    issued += 1
