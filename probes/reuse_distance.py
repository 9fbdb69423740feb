# After how many other cache lines a thread comes back to one.
#
# Of each access of a thread by ld, ldu, st, atom or red, with .global or with a generic address in global memory: how
# many other lines of 128 bytes that thread has accessed since it last accessed this one (the stack distance), from 0 to
# 7; 8 for a line that is not among its last eight, be it new or older.
import neutrino.language as nl
from neutrino import Map, probe

# The lines that the thread accessed last, the latest first; all different.
line0: nl.u32 = -1
line1: nl.u32 = -1
line2: nl.u32 = -1
line3: nl.u32 = -1
line4: nl.u32 = -1
line5: nl.u32 = -1
line6: nl.u32 = -1
line7: nl.u32 = -1


@Map(level="thread", type="histogram", scale="linear", low=0, high=9, step=1)
class Distances:
    lines: nl.u32


def note():
    line = nl.u32(nl.addr >> 7)
    distance: nl.u32 = 8
    if line7 == line:
        distance = 7
    if line6 == line:
        distance = 6
    if line5 == line:
        distance = 5
    if line4 == line:
        distance = 4
    if line3 == line:
        distance = 3
    if line2 == line:
        distance = 2
    if line1 == line:
        distance = 1
    if line0 == line:
        distance = 0
    # The line moves to the front, those before it one place back.
    if distance >= 7:
        line7 = line6
    if distance >= 6:
        line6 = line5
    if distance >= 5:
        line5 = line4
    if distance >= 4:
        line4 = line3
    if distance >= 3:
        line3 = line2
    if distance >= 2:
        line2 = line1
    if distance >= 1:
        line1 = line0
    line0 = line
    Distances.save(distance)


@probe(pos="ld.global | ldu.global | st.global | atom.global | red.global", level="thread", before=True)
def access():
    note()


# A generic address may be in any memory.
@probe(pos="ld.generic | ldu.generic | st.generic !bulk | atom.generic | red.generic", level="thread", before=True)
def generic_access():
    if nl.is_global(nl.addr):
        note()
