# Shared memory: how many wavefronts accesses take, and how many they would take without bank conflicts.
#
# One record per launch, added up over all warps. A warp's access is split by its width into groups of lanes: the whole
# warp for 4 bytes or less, halves for 8, quarters for 16; the rows of ldmatrix and stmatrix are split eight by eight.
# Halves, and the two quarters of a half, are merged under two conditions. Each of their lanes has a neighbour, lane ^ 1
# for all or lane ^ 2 for all, that asks for the same address or is absent. Merged, they take one wavefront.
# Within a group each of the 32 banks serves one word of 4 bytes at a time, to any number of lanes. The group takes as
# many wavefronts as there are different words in its busiest bank.
#   load, store, matrix              accesses: groups of lanes of a warp that execute ld.shared, st.shared, or ldmatrix
#                                    and stmatrix together
#   load_wavefronts …                the wavefronts that they take
#   load_least …                     the wavefronts without conflicts: one per group
# Conflicts are wavefronts minus least. Atomics, copies, and generic addresses in shared memory are not counted.
# Needs sm_80.
from neutrino import Map, probe
import neutrino.language as nl

loads: nl.u64 = 0
load_wavefronts: nl.u64 = 0
load_least: nl.u64 = 0
stores: nl.u64 = 0
store_wavefronts: nl.u64 = 0
store_least: nl.u64 = 0
matrices: nl.u64 = 0
matrix_wavefronts: nl.u64 = 0
matrix_least: nl.u64 = 0


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
    SmemBankConflict.save(
        loads, load_wavefronts, load_least, stores, store_wavefronts, store_least,
        matrices, matrix_wavefronts, matrix_least,
    )


# Few instructions show that most accesses have no conflict. The search for words and banks (nl.warp.match), which takes
# long, stands in an `if` on which all lanes agree: where it is not needed, none of them waits for it.


def of_words(address):
    """Return the wavefronts of an access to words of 4 bytes."""
    unit = nl.u32(address) >> 2
    rivals: nl.u32 = 1
    # 32 words in a row are in as many banks.
    if not nl.warp.same(unit >> 5):
        is_first = nl.warp.match(unit) & nl.lanemask_lt == 0
        others = nl.warp.match((unit & 31) if is_first else nl.u32(32))
        rivals = others if is_first else nl.u32(1)
    return nl.warp.max(nl.popc(rivals))


def of_parts(unit, banks, part_of, whole_of, part, whole, full):
    """Return the wavefronts of an access to units of 8 or 16 bytes: a bit for each, those of a part of the warp from
    its first lane on.

    banks: of units, less one. part_of, whole_of: what lane numbers of a part, and of two that may be merged, have in
    common. part, whole: the lanes of the first ones. full: one wavefront for each part.
    """
    bank = unit & banks
    first = nl.lane & part_of
    seen: nl.u32 = full
    # Other banks in all lanes of each part.
    if nl.warp.bit_or(nl.u32(1) << (bank | first)) != 0xFFFFFFFF:
        same = nl.warp.match(unit)
        rivals = nl.warp.match(bank)
        start = nl.lane & whole_of
        both = nl.u32(whole) << start
        mine = nl.u32(part) << first
        # A neighbour asks for the same, or is not there.
        alike = same | ~nl.lanes
        clashes = (rivals ^ same) & both != 0
        apart = nl.warp.ballot(clashes or alike >> (nl.lane ^ 1) & 1 == 0) & both
        apart_by_two = nl.warp.ballot(clashes or alike >> (nl.lane ^ 2) & 1 == 0) & both
        words = rivals & mine & nl.warp.ballot(same & mine & nl.lanemask_lt == 0)
        wavefronts = (nl.u32(1) << nl.popc(words)) - 1
        seen = nl.warp.bit_or(wavefronts << (start if apart == 0 or apart_by_two == 0 else first))
    return seen


def of_rows(unit, count, full):
    """Return the wavefronts of the rows of matrices, which the first lanes have the addresses of, as ``of_parts`` does.

    count: of these lanes. full: one wavefront for each eight.
    """
    bank = unit & 7
    first = nl.lane & 24
    seen: nl.u32 = full
    has_row = nl.lane < count
    if nl.warp.bit_or((nl.u32(1) << (bank | first)) if has_row else nl.u32(0)) != full * 0xFF:
        # Where it is the first lane of a part with its address: the others that are, of the same bank.
        is_first = nl.warp.match(unit) & nl.u32(0xFF) << first & nl.lanemask_lt == 0
        words = nl.warp.match((bank | first) if is_first and has_row else nl.u32(32))
        wavefronts = (nl.u32(1) << nl.popc(words)) - 1
        seen = nl.warp.bit_or((wavefronts << first) if is_first and has_row else nl.u32(0))
    return seen


@probe(
    pos="ld.shared !v2 !v4 !b64 !u64 !s64 !f64 !b128 | ld.shared.v2.b8 | ld.shared.v2.u8 | ld.shared.v2.s8 | "
        "ld.shared.v2.b16 | ld.shared.v2.u16 | ld.shared.v2.s16 | ld.shared.v4.b8 | ld.shared.v4.u8 | "
        "ld.shared.v4.s8",
    level="thread", before=True,
)
def load_4():
    wavefronts = of_words(nl.addr)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    loads += nl.u64(one)
    load_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    load_least += nl.u64(one)


@probe(
    pos="ld.shared.b64 !v2 | ld.shared.u64 !v2 | ld.shared.s64 !v2 | ld.shared.f64 !v2 | ld.shared.v2.b32 | "
        "ld.shared.v2.u32 | ld.shared.v2.s32 | ld.shared.v2.f32 | ld.shared.v4.b16 | ld.shared.v4.u16 | "
        "ld.shared.v4.s16",
    level="thread", before=True,
)
def load_8():
    seen = of_parts(nl.u32(nl.addr) >> 3, 15, 16, 0, 0xFFFF, 0xFFFFFFFF, 0x00010001)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x00010001)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    loads += nl.u64(one)
    load_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    load_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="ld.shared.v2.b64 | ld.shared.v2.u64 | ld.shared.v2.s64 | ld.shared.v2.f64 | ld.shared.v4.b32 | "
        "ld.shared.v4.u32 | ld.shared.v4.s32 | ld.shared.v4.f32 | ld.shared.b128",
    level="thread", before=True,
)
def load_16():
    seen = of_parts(nl.u32(nl.addr) >> 4, 7, 24, 16, 0xFF, 0xFFFF, 0x01010101)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x01010101)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    loads += nl.u64(one)
    load_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    load_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="st.shared !v2 !v4 !b64 !u64 !s64 !f64 !b128 | st.shared.v2.b8 | st.shared.v2.u8 | st.shared.v2.s8 | "
        "st.shared.v2.b16 | st.shared.v2.u16 | st.shared.v2.s16 | st.shared.v4.b8 | st.shared.v4.u8 | "
        "st.shared.v4.s8",
    level="thread", before=True,
)
def store_4():
    wavefronts = of_words(nl.addr)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    stores += nl.u64(one)
    store_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    store_least += nl.u64(one)


@probe(
    pos="st.shared.b64 !v2 | st.shared.u64 !v2 | st.shared.s64 !v2 | st.shared.f64 !v2 | st.shared.v2.b32 | "
        "st.shared.v2.u32 | st.shared.v2.s32 | st.shared.v2.f32 | st.shared.v4.b16 | st.shared.v4.u16 | "
        "st.shared.v4.s16",
    level="thread", before=True,
)
def store_8():
    seen = of_parts(nl.u32(nl.addr) >> 3, 15, 16, 0, 0xFFFF, 0xFFFFFFFF, 0x00010001)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x00010001)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    stores += nl.u64(one)
    store_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    store_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="st.shared.v2.b64 | st.shared.v2.u64 | st.shared.v2.s64 | st.shared.v2.f64 | st.shared.v4.b32 | "
        "st.shared.v4.u32 | st.shared.v4.s32 | st.shared.v4.f32 | st.shared.b128",
    level="thread", before=True,
)
def store_16():
    seen = of_parts(nl.u32(nl.addr) >> 4, 7, 24, 16, 0xFF, 0xFFFF, 0x01010101)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x01010101)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    stores += nl.u64(one)
    store_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    store_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="ldmatrix.x1 !m16n16 !m8n16 | stmatrix.x1 !m16n8",
    level="thread", before=True,
)
def matrix_x1():
    seen = of_rows(nl.u32(nl.addr) >> 4, 8, 0x01)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x01010101)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    matrices += nl.u64(one)
    matrix_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    matrix_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="ldmatrix.x2 !m16n16 !m8n16 | stmatrix.x2 !m16n8",
    level="thread", before=True,
)
def matrix_x2():
    seen = of_rows(nl.u32(nl.addr) >> 4, 16, 0x0101)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x01010101)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    matrices += nl.u64(one)
    matrix_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    matrix_least += nl.u64(least) * nl.u64(one)


@probe(
    pos="ldmatrix.x4 !m16n16 !m8n16 | stmatrix.x4 !m16n8",
    level="thread", before=True,
)
def matrix_x4():
    seen = of_rows(nl.u32(nl.addr) >> 4, 32, 0x01010101)
    wavefronts = nl.popc(seen)
    least = nl.popc(seen & 0x01010101)
    one = nl.u32(nl.lanes & nl.lanemask_lt == 0)
    matrices += nl.u64(one)
    matrix_wavefronts += nl.u64(wavefronts) * nl.u64(one)
    matrix_least += nl.u64(least) * nl.u64(one)
