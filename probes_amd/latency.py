# Cycles from the issue of each load until its result is there.
#
# One figure for each thread and execution of ld with .global, .shared, .local or a generic address. The second clock
# waits for the result, so a thread's loads no longer overlap. docs/library.md says what else the figures contain.
import neutrino.language as nl
from neutrino import Map, probe

# -D HISTOGRAM=1 adds a histogram of all loads.
HISTOGRAM = 0

start: nl.u32 = 0


# What the two clocks cost by themselves: subtract the least of them.
@Map(level="thread", type="min")
class ClockOverhead:
    cycles: nl.u32


@Map(level="thread", type="hash", keep=["sum", "min", "max"])
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


def arrived(value: nl.u64):
    cycles = nl.u32(nl.clock(after=value)) - start
    PerLoad.save(nl.site, cycles)
    if HISTOGRAM:
        LoadCycles.save(cycles)


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & !b128", level="thread", before=True)
def issue():
    start = nl.u32(nl.clock())


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b8 | u8 | s8)", level="thread", after=True)
def bits_8():
    value: nl.u8 = nl.out
    arrived(nl.u64(value))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b16 | u16 | s16)", level="thread", after=True)
def bits_16():
    value: nl.u16 = nl.out
    arrived(nl.u64(value))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b32 | u32 | s32 | f32)", level="thread", after=True)
def bits_32():
    value: nl.u32 = nl.out
    arrived(nl.u64(value))


@probe(pos="(ld.global | ld.shared | ld.local | ld.generic) & (b64 | u64 | s64 | f64)", level="thread", after=True)
def bits_64():
    value: nl.u64 = nl.out
    arrived(value)
