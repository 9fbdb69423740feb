# When each block of a launch began, and on which multiprocessor.
#
# time is that of the first thread's first instruction, in nanoseconds of the GPU, which all multiprocessors share.
# LastBegin minus FirstBegin is how long it took until every block had begun.
import neutrino.language as nl
from neutrino import Map, probe


@Map(level="block", type="array", cap=1)
class Begins:
    time: nl.u64
    sm: nl.u32
    cycle: nl.u32


@Map(level="block", type="min")
class FirstBegin:
    time: nl.u64


@Map(level="block", type="max")
class LastBegin:
    time: nl.u64


@probe(pos="kernel", level="block", before=True)
def begin():
    now = nl.time()
    Begins.save(now, nl.smid, nl.u32(nl.clock()))
    FirstBegin.save(now)
    LastBegin.save(now)
