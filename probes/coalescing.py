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


def is_first(lanes: nl.u32):
    return (lanes & nl.lanemask_lt) == 0


# lanes: those of the request. Where addresses ascend from lane to lane, as they mostly do, a lane is the first with its
# address, or with its sector, if the lane before it has another; else all are compared.
def count_load(lanes):
    first = is_first(lanes)
    before = nl.warp.shuffle(nl.addr, nl.lane - 1)
    first_of_sector = first or (nl.addr ^ before) >> 5 != 0
    first_of_address = first or nl.addr != before
    if nl.warp.any(nl.addr < before or not (first or follows(lanes))):
        first_of_sector = is_first(nl.warp.match(nl.addr >> 5))
        first_of_address = is_first(nl.warp.match(nl.addr))
    distinct = nl.bytes if first_of_address else nl.u64(0)
    LoadRequests.save(nl.u64(first), 1, nl.u64(first_of_sector), nl.bytes, distinct)
    count_site(first, first_of_sector)


def count_store(lanes):
    first = is_first(lanes)
    before = nl.warp.shuffle(nl.addr, nl.lane - 1)
    first_of_sector = first or (nl.addr ^ before) >> 5 != 0
    first_of_address = first or nl.addr != before
    if nl.warp.any(nl.addr < before or not (first or follows(lanes))):
        first_of_sector = is_first(nl.warp.match(nl.addr >> 5))
        first_of_address = is_first(nl.warp.match(nl.addr))
    distinct = nl.bytes if first_of_address else nl.u64(0)
    StoreRequests.save(nl.u64(first), 1, nl.u64(first_of_sector), nl.bytes, distinct)
    count_site(first, first_of_sector)


# Whether the lane before this one is one of them.
def follows(lanes: nl.u32):
    return (lanes >> (nl.lane - 1)) & 1 == 1


def count_site(first, first_of_sector):
    if PER_SITE == 1:
        sectors = nl.popc(nl.warp.ballot(first_of_sector))
        if first:
            PerAccess.save(nl.site, sectors)


@probe(pos="ld.global | ldu.global", level="thread", before=True)
def load():
    count_load(nl.lanes)


@probe(pos="st.global", level="thread", before=True)
def store():
    count_store(nl.lanes)


# A generic address may be in any memory.
@probe(pos="ld.generic | ldu.generic", level="thread", before=True)
def generic_load():
    if nl.is_global(nl.addr):
        count_load(nl.warp.ballot(True))


@probe(pos="st.generic !bulk", level="thread", before=True)
def generic_store():
    if nl.is_global(nl.addr):
        count_store(nl.warp.ballot(True))
