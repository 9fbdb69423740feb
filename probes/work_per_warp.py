# How much each warp does: instructions and accesses to memory, of the thread that has most.
#
# Instructions are those of the PTX text that a thread executes, not what its predicate leaves out. Each of the two figures
# is the greatest of the warp's threads. Where lanes part, a warp executes more than any one of them: branch_divergence
# says how often. Counts are modulo 2^32.
import neutrino.language as nl
from neutrino import Map, probe

instructions: nl.u32 = 0
accesses: nl.u32 = 0


@Map(level="thread", type="max", per="warp")
class WarpWork:
    instructions: nl.u32
    accesses: nl.u32


@probe(pos="*", level="thread", before=True)
def every():
    instructions += 1


@probe(pos="memory !param !const", level="thread", before=True)
def memory():
    accesses += 1


@probe(pos="kernel", level="thread", after=True)
def exit():
    WarpWork.save(instructions, accesses)
