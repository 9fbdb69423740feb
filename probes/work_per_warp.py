# How much each warp does: instructions and accesses to memory, as its first thread executes them.
#
# Instructions are those of the PTX text. What only other threads of the warp execute does not count; neither does what
# the first thread's predicate leaves out. Counts are modulo 2^32.
import neutrino.language as nl
from neutrino import Map, probe

instructions: nl.u32 = 0
accesses: nl.u32 = 0


@Map(level="warp", type="array", cap=1)
class WarpWork:
    instructions: nl.u32
    accesses: nl.u32


@probe(pos="*", level="warp", before=True)
def every():
    instructions += 1


@probe(pos="memory !param !const", level="warp", before=True)
def memory():
    accesses += 1


@probe(pos="kernel", level="warp", after=True)
def exit():
    WarpWork.save(instructions, accesses)
