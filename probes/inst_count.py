# How many instructions the threads of a kernel execute, by class and in all.
#
# One record per launch, added up over all threads: instructions of the PTX text, counted once for every thread that
# executes them. A predicated instruction counts for the threads whose predicate holds. The moves of a call's arguments
# and results are instructions, too. ptxas makes other machine instructions of these, and often fewer.
#   all        every instruction
#   load store atomic barrier branch tensor convert special
#              those of a class (docs/opcodes.md lists them); copies are loads and stores, the others are in one class
#              at most
from neutrino import Map, probe
import neutrino.language as nl

instructions: nl.u64 = 0
loads: nl.u64 = 0
stores: nl.u64 = 0
atomics: nl.u64 = 0
barriers: nl.u64 = 0
branches: nl.u64 = 0
tensors: nl.u64 = 0
converts: nl.u64 = 0
specials: nl.u64 = 0


@Map(level="thread", type="sum", size=72)
class InstCount:
    all: nl.u64
    load: nl.u64
    store: nl.u64
    atomic: nl.u64
    barrier: nl.u64
    branch: nl.u64
    tensor: nl.u64
    convert: nl.u64
    special: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    InstCount.save(
        instructions, loads, stores, atomics, barriers, branches, tensors, converts, specials
    )


@probe(pos="*", level="thread", before=True)
def all():
    instructions += 1


@probe(pos="load", level="thread", before=True)
def load():
    loads += 1


@probe(pos="store", level="thread", before=True)
def store():
    stores += 1


@probe(pos="atomic", level="thread", before=True)
def atomic():
    atomics += 1


@probe(pos="barrier", level="thread", before=True)
def barrier():
    barriers += 1


@probe(pos="branch", level="thread", before=True)
def branch():
    branches += 1


@probe(pos="tensor", level="thread", before=True)
def tensor():
    tensors += 1


@probe(pos="convert", level="thread", before=True)
def convert():
    converts += 1


@probe(pos="special", level="thread", before=True)
def special():
    specials += 1
