# The clocks of bench/workloads/barriers.cu: both of them, in 64 bits, from before each barrier until after it.
import neutrino.language as nl
from neutrino import Map, probe

cycles: nl.u64 = 0
nanoseconds: nl.u64 = 0


@Map(level="warp", type="array")
class Waits:
    cycles: nl.u64
    nanoseconds: nl.u64


@probe(pos="bar.sync !warp | barrier.sync | barrier.cluster.wait", level="warp", before=True)
def arrive():
    cycles = nl.clock()
    nanoseconds = nl.time()


@probe(pos="bar.sync !warp | barrier.sync | barrier.cluster.wait", level="warp", after=True)
def leave():
    Waits.save(nl.clock() - cycles, nl.time() - nanoseconds)
