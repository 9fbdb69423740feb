# Which multiprocessor ran each warp, from when, for how long.
#
# One record per warp: the multiprocessor's clock when the warp entered the kernel, the cycles until its last thread
# left it, and the multiprocessor's id. The clocks of multiprocessors are not synchronised.
# elapsed wraps around after 2^32 cycles, about two seconds.
from neutrino import Map, probe
import neutrino.language as nl

start: nl.u64 = 0


@Map(level="warp", type="array", size=16, cap=1)
class BlockSched:
    start: nl.u64
    elapsed: nl.u32
    cuid: nl.u32


@probe(pos="kernel", level="thread", before=True)
def block_sched_begin():
    start = nl.clock()


@probe(pos="kernel", level="group", after=True)
def block_sched():
    BlockSched.save(start, nl.clock() - start, nl.cuid())
