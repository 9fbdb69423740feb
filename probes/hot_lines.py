# The cache lines that are accessed most.
#
# Of ld, ldu, st, atom and red, with .global or with a generic address in global memory, each access of a thread counts
# once, for the line of its first byte.
# Counts are estimates, from one access of a warp in 32, with their error; -D SAMPLE=1 counts all, which costs more.
# -D LINE_BITS=12 counts pages of 4 KiB in place of lines of 128 bytes.
import neutrino.language as nl
from neutrino import Map, probe

LINE_BITS = 7
SAMPLE = 32


@Map(level="thread", type="topk", n=20, room=512, sample=SAMPLE)
class HotLines:
    line: nl.u64


@probe(pos="ld.global | ldu.global | st.global | atom.global | red.global", level="thread", before=True)
def access():
    HotLines.save(nl.addr >> LINE_BITS << LINE_BITS)


# A generic address may be in any memory.
@probe(pos="ld.generic | ldu.generic | st.generic !bulk | atom.generic | red.generic", level="thread", before=True)
def generic_access():
    if nl.is_global(nl.addr):
        HotLines.save(nl.addr >> LINE_BITS << LINE_BITS)
