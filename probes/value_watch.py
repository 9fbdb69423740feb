# NaNs, infinities and the range of the floating-point results that a kernel computes.
#
# Over all threads of a launch, and the results of additions, subtractions, multiplications, fused and not, divisions, square
# roots, the functions of the class special and conversions to a narrower type; f16x2 and bf16x2 count as two results.
# Loads, moves, minima and tensor instructions are excluded: they pass values on, or have their results later.
#   ValueCounts    results: all of them; nan, infinite: how many were NaN or infinite
#   ValueLeast     least: the least finite result; no record without a finite one
#   ValueGreatest  greatest: the greatest finite result
import neutrino.language as nl
from neutrino import Map, probe

INFINITY = 1e999

# Singles have registers of their own: minima of doubles take many instructions.
least: nl.f32 = INFINITY
greatest: nl.f32 = -INFINITY
least_wide: nl.f64 = INFINITY
greatest_wide: nl.f64 = -INFINITY
nans: nl.u32 = 0
# NaNs and infinities.
others: nl.u32 = 0


@Map(level="thread", type="sum", size=24)
class ValueCounts:
    results: nl.u64
    nan: nl.u64
    infinite: nl.u64


@Map(level="thread", type="min")
class ValueLeast:
    least: nl.f64


@Map(level="thread", type="max")
class ValueGreatest:
    greatest: nl.f64


@probe(pos="kernel", level="thread", after=True)
def end():
    if least <= greatest:
        ValueLeast.save(nl.f64(least))
        ValueGreatest.save(nl.f64(greatest))
    if least_wide <= greatest_wide:
        ValueLeast.save(least_wide)
        ValueGreatest.save(greatest_wide)
    ValueCounts.save(0, nans, others - nans)


def watch(value: nl.f32):
    size = nl.abs(value)
    if nl.unlikely(not size < INFINITY):
        others += 1
        if value != value:
            nans += 1
    else:
        least = nl.min(least, value)
        greatest = nl.max(greatest, value)


@probe(
    pos="add.f32 | sub.f32 | mul.f32 | fma.f32 | mad.f32 | div.f32 | rcp.f32 | sqrt.f32 | rsqrt.f32"
    " | sin.f32 | cos.f32 | lg2.f32 | ex2.f32 | tanh.f32 | cvt.f32.f64",
    level="thread", after=True,
)  # fmt: skip
def single():
    ValueCounts.save(1, 0, 0)
    watch(nl.out)


@probe(
    pos="add.f64 | sub.f64 | mul.f64 | fma.f64 | mad.f64 | div.f64 | rcp.f64 | sqrt.f64 | rsqrt.f64",
    level="thread", after=True,
)  # fmt: skip
def double():
    ValueCounts.save(1, 0, 0)
    value: nl.f64 = nl.out
    size = nl.abs(value)
    if size < INFINITY:
        least_wide = nl.min(least_wide, value)
        greatest_wide = nl.max(greatest_wide, value)
    if nl.unlikely(not size < INFINITY):
        others += 1
        if value != value:
            nans += 1


@probe(
    pos="add.f16 | sub.f16 | mul.f16 | fma.f16 | tanh.f16 | ex2.f16 | cvt.f16.f32 | cvt.f16.f64",
    level="thread", after=True,
)  # fmt: skip
def half():
    ValueCounts.save(1, 0, 0)
    value: nl.f16 = nl.out
    watch(nl.f32(value))


@probe(
    pos="add.f16x2 | sub.f16x2 | mul.f16x2 | fma.f16x2 | tanh.f16x2 | ex2.f16x2 | cvt.f16x2.f32",
    level="thread", after=True,
)  # fmt: skip
def half_pair():
    ValueCounts.save(2, 0, 0)
    pair: nl.u32 = nl.out
    low: nl.f16 = nl.bits(nl.u16(pair))
    watch(nl.f32(low))
    high: nl.f16 = nl.bits(nl.u16(pair >> 16))
    watch(nl.f32(high))


# A bf16 is the upper half of an f32.
@probe(
    pos="add.bf16 | sub.bf16 | mul.bf16 | fma.bf16 | tanh.bf16 | ex2.bf16 | cvt.bf16.f32",
    level="thread", after=True,
)  # fmt: skip
def brain():
    ValueCounts.save(1, 0, 0)
    value: nl.bf16 = nl.out
    watch(nl.bits(nl.u32(nl.bits(value)) << 16))


@probe(
    pos="add.bf16x2 | sub.bf16x2 | mul.bf16x2 | fma.bf16x2 | tanh.bf16x2 | ex2.bf16x2 | cvt.bf16x2.f32",
    level="thread", after=True,
)  # fmt: skip
def brain_pair():
    ValueCounts.save(2, 0, 0)
    pair: nl.u32 = nl.out
    watch(nl.bits(pair & 0xFFFF0000))
    watch(nl.bits(pair << 16))
