# LDS of AMD's GPUs: how many passes accesses take, and how many they would take without bank conflicts.
#
# One record per launch, added up over all waves. A wave's access is split by its width into groups of lanes that follow one
# another: of 32 lanes for 4 bytes or less, 16 for 8, and 8 for 12 and 16. Each of 32 banks serves one word of 4 bytes
# in a pass, to any number of lanes. A group takes as many passes as there are different words in its busiest bank. How the
# hardware groups lanes in truth waits for hardware, as does the number of banks (gfx950 has more).
#   load, store                      accesses: ds_read, ds_load, ds_write, ds_store, as waves execute them
#   load_wavefronts, store_…         the passes that they take
#   load_least, store_least          the passes without conflicts: one for each group with a lane
# Conflicts are wavefronts minus least. Of instructions with two addresses the first one counts. Atomics, copies from global
# memory and generic addresses are not counted; matrix and its two fields, of NVIDIA's instructions, are 0.
from neutrino import Map, probe
import neutrino.language as nl

loads: nl.u64 = 0
load_wavefronts: nl.u64 = 0
load_least: nl.u64 = 0
stores: nl.u64 = 0
store_wavefronts: nl.u64 = 0
store_least: nl.u64 = 0


@Map(level="thread", type="sum", size=72)
class SmemBankConflict:
    load: nl.u64
    load_wavefronts: nl.u64
    load_least: nl.u64
    store: nl.u64
    store_wavefronts: nl.u64
    store_least: nl.u64
    matrix: nl.u64
    matrix_wavefronts: nl.u64
    matrix_least: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    SmemBankConflict.save(loads, load_wavefronts, load_least, stores, store_wavefronts, store_least, 0, 0, 0)


def groups(group):
    """Return how many groups of so many lanes have one."""
    mine = ((nl.u64(1) << group) - 1) << (nl.lane & (64 - group))
    return nl.popc(nl.warp.ballot(nl.lanes & mine & nl.lanemask_lt == 0))


def ones(bits):
    """Return how many bits are set in some lane. bits: a u32, another one for lanes from 32 on."""
    is_upper = nl.lane >= 32
    lower = nl.warp.bit_or(nl.u32(0) if is_upper else bits)
    upper = nl.warp.bit_or(bits if is_upper else nl.u32(0))
    return nl.popc(lower) + nl.popc(upper)


def passes(unit, banks, group, least):
    """Return the passes of an access to units of 4, 8 or 16 bytes.

    banks: of units, less one. group: its lanes. least: passes without conflicts.
    """
    first = nl.lane & (64 - group)
    bank = unit & banks | first
    taken: nl.u32 = least
    # Where each lane has a bank for itself there is no conflict. All lanes agree on it.
    if nl.warp.any(nl.popc(nl.warp.match(bank)) > 1):
        mine = ((nl.u64(1) << group) - 1) << first
        is_first = nl.warp.match(unit) & mine & nl.lanemask_lt == 0
        words = nl.popc(nl.warp.match(bank if is_first else nl.u32(64)))
        taken = ones((((nl.u32(1) << words) - 1) << (first & 31)) if is_first else nl.u32(0))
    return taken


def is_leader():
    return nl.u64(nl.lanes & nl.lanemask_lt == 0)


def load(unit, banks, group):
    least = groups(group)
    one = is_leader()
    loads += one
    load_wavefronts += nl.u64(passes(unit, banks, group, least)) * one
    load_least += nl.u64(least) * one


def store(unit, banks, group):
    least = groups(group)
    one = is_leader()
    stores += one
    store_wavefronts += nl.u64(passes(unit, banks, group, least)) * one
    store_least += nl.u64(least) * one


@probe(pos="ld.shared & !(*_b64 | *_b64_tr_* | *_tr_b64 | *_b96 | *_b96_tr_* | *_b128)", level="thread", before=True)
def load_4():
    load(nl.u32(nl.addr) >> 2, 31, 32)


@probe(pos="ld.shared & (*_b64 | *_b64_tr_* | *_tr_b64)", level="thread", before=True)
def load_8():
    load(nl.u32(nl.addr) >> 3, 15, 16)


@probe(pos="ld.shared & (*_b96 | *_b96_tr_* | *_b128)", level="thread", before=True)
def load_16():
    load(nl.u32(nl.addr) >> 4, 7, 8)


@probe(pos="st.shared & !load & !(*_b64 | *_b96 | *_b128)", level="thread", before=True)
def store_4():
    store(nl.u32(nl.addr) >> 2, 31, 32)


@probe(pos="st.shared & !load & *_b64", level="thread", before=True)
def store_8():
    store(nl.u32(nl.addr) >> 3, 15, 16)


@probe(pos="st.shared & !load & (*_b96 | *_b128)", level="thread", before=True)
def store_16():
    store(nl.u32(nl.addr) >> 4, 7, 8)
