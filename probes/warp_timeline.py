# From when to when each warp ran, and on which multiprocessor.
#
# begin and end are nanoseconds of the GPU, which all multiprocessors share; cycles are those of the warp's
# multiprocessor, modulo 2^32. A warp begins with the entry of its threads, and ends with the exit of its last one: each
# figure is the greatest of its threads'.
import neutrino.language as nl
from neutrino import Map, probe

began: nl.u64 = 0
first_cycle: nl.u32 = 0


@Map(level="thread", type="max", per="warp")
class WarpTimes:
    begin: nl.u64
    end: nl.u64
    cycles: nl.u32
    sm: nl.u32


@probe(pos="kernel", level="thread", before=True)
def entry():
    began = nl.time()
    first_cycle = nl.u32(nl.clock())


@probe(pos="kernel", level="thread", after=True)
def exit():
    cycles = nl.u32(nl.clock()) - first_cycle
    WarpTimes.save(began, nl.time(), cycles, nl.smid)
