# How far the first thread of each warp had come, and when: a timeline of its branches and barriers.
#
# One record when that thread enters the kernel, whenever it reaches a branch, a call, a barrier, a fence or a wait, and
# when it leaves. What other lanes of the warp do apart from it, or after it has left, is not recorded.
#   clock   the multiprocessor's clock; the clocks of multiprocessors are not synchronised
#   site    the number of the instruction, as the manifest and `neutrino-probe sites` list it; 4294967295 at the entry,
#           4294967294 at the exit
#   sm      the multiprocessor's id
# All records are kept as far as memory reaches; what did not fit is counted.
import neutrino.language as nl
from neutrino import Map, probe

ENTRY = 4294967295
EXIT = 4294967294


@Map(level="warp", type="log", size=16)
class ProgramProgress:
    clock: nl.u64
    site: nl.u32
    sm: nl.u32


@probe(pos="kernel", level="warp", before=True)
def entry():
    ProgramProgress.save(nl.clock(), ENTRY, nl.smid)


@probe(pos="kernel", level="warp", after=True)
def end():
    ProgramProgress.save(nl.clock(), EXIT, nl.smid)


@probe(pos="branch | barrier", level="warp", lanes="reaching", before=True)
def steps():
    ProgramProgress.save(nl.clock(), nl.site, nl.smid)
