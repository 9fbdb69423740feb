# How many sectors of 32 bytes the loads and stores of warps touch, and how many different bytes.
#
# Of ld, ldu and st, with .global or with a generic address in global memory. A request is what the lanes of a warp
# execute together. docs/library.md says which counters of Nsight Compute these are.
import neutrino.language as nl
from neutrino import Map, probe

# 0 leaves out the table by instruction, which is most of the cost: -D PER_SITE=0.
PER_SITE = 1


@Map(level="thread", type="sum")
class LoadRequests:
    requests: nl.u64
    lanes: nl.u64
    sectors: nl.u64
    asked: nl.u64
    distinct: nl.u64


@Map(level="thread", type="sum")
class StoreRequests:
    requests: nl.u64
    lanes: nl.u64
    sectors: nl.u64
    asked: nl.u64
    distinct: nl.u64


# Requests of each instruction, and the sectors that they touch together.
@Map(level="thread", type="hash", keep=["sum", "max"])
class PerAccess:
    site: nl.u32
    sectors: nl.u32


# What the lanes of a request ask for: nl.sectors and nl.distinct are the same in all of them, and one saves.
@probe(pos="ld.global | ldu.global", level="group", before=True)
def load():
    lanes = nl.popc(nl.lanes)
    LoadRequests.save(1, lanes, nl.sectors, lanes * nl.u32(nl.bytes), nl.distinct)
    if PER_SITE == 1:
        PerAccess.save(nl.site, nl.sectors)


@probe(pos="st.global", level="group", before=True)
def store():
    lanes = nl.popc(nl.lanes)
    StoreRequests.save(1, lanes, nl.sectors, lanes * nl.u32(nl.bytes), nl.distinct)
    if PER_SITE == 1:
        PerAccess.save(nl.site, nl.sectors)


# A generic address may be in any memory. The lanes of a request are those for which it is in global memory.
@probe(pos="ld.generic | ldu.generic", level="thread", before=True)
def generic_load():
    if nl.is_global(nl.addr):
        first = is_first(nl.warp.ballot(True))
        first_of_sector = is_first(nl.warp.match(nl.addr >> 5))
        distinct = nl.bytes if is_first(nl.warp.match(nl.addr)) else nl.u64(0)
        LoadRequests.save(nl.u64(first), 1, nl.u64(first_of_sector), nl.bytes, distinct)
        count_site(first, first_of_sector)


@probe(pos="st.generic !bulk", level="thread", before=True)
def generic_store():
    if nl.is_global(nl.addr):
        first = is_first(nl.warp.ballot(True))
        first_of_sector = is_first(nl.warp.match(nl.addr >> 5))
        distinct = nl.bytes if is_first(nl.warp.match(nl.addr)) else nl.u64(0)
        StoreRequests.save(nl.u64(first), 1, nl.u64(first_of_sector), nl.bytes, distinct)
        count_site(first, first_of_sector)


def is_first(lanes: nl.u32):
    return (lanes & nl.lanemask_lt) == 0


def count_site(first, first_of_sector):
    if PER_SITE == 1:
        sectors = nl.popc(nl.warp.ballot(first_of_sector))
        if first:
            PerAccess.save(nl.site, sectors)
