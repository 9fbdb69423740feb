# How many lanes of a warp ask for the same address in an atomic operation.
#
# Of atom and red in global and shared memory and with generic addresses; those that copies carry out are left out.
#   Atomics    instructions: as warps execute them; lanes: as threads do; addresses: how many different ones an
#              instruction has, added up. lanes / addresses is the contention within warps
#   PerAtomic  by instruction: count is its addresses, lanes how many lanes shared one
import neutrino.language as nl
from neutrino import Map, probe


@Map(level="thread", type="sum")
class Atomics:
    instructions: nl.u64
    lanes: nl.u64
    addresses: nl.u64


@Map(level="thread", type="hash", keep=["sum", "max"])
class PerAtomic:
    site: nl.u32
    lanes: nl.u32


def is_first(lanes):
    return lanes & nl.lanemask_lt == 0


@probe(pos="atom | red & !async", level="thread", before=True)
def atomic():
    same = nl.warp.match(nl.addr)
    first_of_address = is_first(same)
    Atomics.save(nl.u64(is_first(nl.lanes)), 1, nl.u64(first_of_address))
    if first_of_address:
        PerAtomic.save(nl.site, nl.popc(same))
