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


def look_up(here):
    # What all lines differ from is new, as most accesses of coalesced kernels are, or else the line of the access
    # before. Other lines are looked for and moved by code that is skipped where no lane needs it.
    line = nl.u32(nl.addr >> 7)
    away = here and line != line0
    new = away and line != line1 and line != line2 and line != line3
    new = new and line != line4 and line != line5 and line != line6 and line != line7
    if here and not away:
        Distances.save(0)
    if new:
        Distances.save(8)
        line7 = line6
        line6 = line5
        line5 = line4
        line4 = line3
        line3 = line2
        line2 = line1
        line1 = line0
        line0 = line
    if nl.unlikely(away and not new):
        move_to_front()


def move_to_front():
    # The line is one of line1 to line7. It comes to line0, those that were before it one place back.
    line = nl.u32(nl.addr >> 7)
    distance: nl.u32 = 1
    old1 = line1
    line1 = line0
    line0 = line
    if old1 != line:
        distance = 2
        old2 = line2
        line2 = old1
        if old2 != line:
            distance = 3
            old3 = line3
            line3 = old2
            if old3 != line:
                distance = 4
                old4 = line4
                line4 = old3
                if old4 != line:
                    distance = 5
                    old5 = line5
                    line5 = old4
                    if old5 != line:
                        distance = 6
                        old6 = line6
                        line6 = old5
                        if old6 != line:
                            distance = 7
                            line7 = old6
    Distances.save(distance)


@probe(pos="ld.global | ldu.global | st.global | atom.global | red.global", level="thread", before=True)
def access():
    look_up(True)


# A generic address may be in any memory.
@probe(pos="ld.generic | ldu.generic | st.generic !bulk | atom.generic | red.generic", level="thread", before=True)
def generic_access():
    look_up(nl.is_global(nl.addr))
