# Cycles from the issue of a load until its result is there.
#
# Of ld with .global, .shared, .local or a generic address. Of a warp's executions one in 16 is measured, chosen at random:
# its second clock waits for the result, and with it all that comes after. Counts and sums are estimates for all threads
# and executions, with the error of the count; min and max are those of what was measured. -D SAMPLE=1 measures all, so
# that a thread's loads no longer overlap, at a higher price. docs/library.md says what else the figures contain.
import neutrino.language as nl
from neutrino import Map, probe

# -D HISTOGRAM=1 adds a histogram of all loads that are measured.
HISTOGRAM = 0
# A power of two.
SAMPLE = 16

start: nl.u32 = 0
# The warp's last random number, and whether the load to come is measured: the same in lanes that are together.
drawn: nl.u32 = 0
chosen: nl.u32 = 0


# What the two clocks cost by themselves: subtract the least of them.
@Map(level="thread", type="min")
class ClockOverhead:
    cycles: nl.u32


@Map(level="thread", type="hash", keep=["sum", "min", "max"], stands_for=SAMPLE)
class PerLoad:
    site: nl.u32
    cycles: nl.u32


@Map(level="thread", type="histogram", scale="log2")
class LoadCycles:
    cycles: nl.u32


@probe(pos="kernel", level="thread", before=True)
def overhead():
    # A value that is there before the first clock is read.
    ready = nl.u32(nl.clock(after=nl.tid.x))
    begin = nl.u32(nl.clock())
    ClockOverhead.save(nl.u32(nl.clock(after=ready)) - begin)
    if SAMPLE > 1:
        # It depends on the warp and on the time. The shifts and factors are those of MurmurHash3.
        drawn = (nl.u32(nl.block) * 32 + nl.warpid) * 747796405 ^ begin
        drawn = (drawn ^ drawn >> 16) * 0x85EBCA6B
        drawn = (drawn ^ drawn >> 13) * 0xC2B2AE35


def arrived(value: nl.u64):
    cycles = nl.u32(nl.clock(after=value)) - start
    PerLoad.save(nl.site, cycles)
    if HISTOGRAM:
        LoadCycles.save(cycles)


@probe(
    pos="(ld.global | ld.shared | ld.local | ld.generic) & !b128", level="thread", lanes="reaching", before=True,
)  # fmt: skip
def issue():
    if SAMPLE == 1:
        start = nl.u32(nl.clock())
    else:
        # A generator with a period of 2 to the 32 (M. E. O'Neill, PCG, 2014).
        drawn = drawn * 747796405 + 2891336453
        chosen = nl.u32(nl.warp.any(drawn <= 0xFFFFFFFF // SAMPLE))
        if nl.unlikely(chosen != 0):
            start = nl.u32(nl.clock())


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b8 | u8 | s8)", level="thread", after=True)
def bits_8():
    if SAMPLE == 1:
        value: nl.u8 = nl.out
        arrived(nl.u64(value))
    elif nl.unlikely(chosen != 0):
        own: nl.u8 = nl.out
        arrived(nl.u64(own))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b16 | u16 | s16)", level="thread", after=True)
def bits_16():
    if SAMPLE == 1:
        value: nl.u16 = nl.out
        arrived(nl.u64(value))
    elif nl.unlikely(chosen != 0):
        own: nl.u16 = nl.out
        arrived(nl.u64(own))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b32 | u32 | s32 | f32)", level="thread", after=True)
def bits_32():
    if SAMPLE == 1:
        value: nl.u32 = nl.out
        arrived(nl.u64(value))
    elif nl.unlikely(chosen != 0):
        own: nl.u32 = nl.out
        arrived(nl.u64(own))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b64 | u64 | s64 | f64)", level="thread", after=True)
def bits_64():
    if SAMPLE == 1:
        value: nl.u64 = nl.out
        arrived(value)
    elif nl.unlikely(chosen != 0):
        own: nl.u64 = nl.out
        arrived(own)
