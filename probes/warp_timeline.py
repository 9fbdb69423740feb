# From when to when each warp ran, and on which multiprocessor.
#
# begin and end are nanoseconds of the GPU, which all multiprocessors share; cycles are those of the warp's
# multiprocessor, modulo 2^32. All three are of the warp's first thread, from its entry to its exit.
import neutrino.language as nl
from neutrino import Map, probe

began: nl.u64 = 0
first_cycle: nl.u32 = 0


@Map(level="warp", type="array", cap=1)
class WarpTimes:
    begin: nl.u64
    end: nl.u64
    cycles: nl.u32
    sm: nl.u32


@probe(pos="kernel", level="warp", before=True)
def entry():
    began = nl.time()
    first_cycle = nl.u32(nl.clock())


@probe(pos="kernel", level="warp", after=True)
def exit():
    cycles = nl.u32(nl.clock()) - first_cycle
    WarpTimes.save(began, nl.time(), cycles, nl.smid)
