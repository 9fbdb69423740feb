# The cache lines that are accessed most.
#
# Of ld, ldu, st, atom and red with .global, each access of a thread counts once, for the line of its first byte.
# -D LINE_BITS=12 counts pages of 4 KiB in place of lines of 128 bytes.
import neutrino.language as nl
from neutrino import Map, probe

LINE_BITS = 7


@Map(level="thread", type="topk", n=20, room=512)
class HotLines:
    line: nl.u64


@probe(pos="ld.global | ldu.global | st.global | atom.global | red.global", level="thread", before=True)
def access():
    HotLines.save(nl.addr >> LINE_BITS << LINE_BITS)
