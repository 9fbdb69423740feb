# Every access to global memory: its address, bytes, kind and site, and when.
#
# GlobalAccesses has a record for each thread that executes a load, store, atomic, reduction or cp.async
# of global memory, when it is issued. docs/library.md describes the fields, what is not recorded, and how to record a part.
import neutrino.language as nl
from neutrino import Map, probe

# Each n-th block, warp of a block, and access of a thread: -D BLOCKS=16 records a sixteenth of the blocks.
BLOCKS = 1
WARPS = 1
ACCESSES = 1

LOAD = 0
STORE = 1
ATOMIC = 2
REDUCTION = 3
ASYNC = 4

seen: nl.u32 = 0


@Map(level="thread", type="log")
class GlobalAccesses:
    address: nl.u64
    clock: nl.u64
    site: nl.u32
    bytes: nl.u16
    kind: nl.u16


# BulkCopies by the copy engine of a multiprocessor, issued by one thread: kind LOAD is into shared memory.
@Map(level="thread", type="log")
class BulkCopies:
    address: nl.u64
    clock: nl.u64
    bytes: nl.u32
    site: nl.u32
    kind: nl.u32
    thread: nl.u32


# BulkCopies by a tensor map: the map's address, and the first element's coordinates.
@Map(level="thread", type="log")
class TensorCopies:
    tensor: nl.u64
    clock: nl.u64
    site: nl.u32
    kind: nl.u32
    x: nl.s32
    y: nl.s32
    z: nl.s32
    w: nl.s32
    v: nl.s32
    dimensions: nl.u32


# Executions of accesses that may be to global memory and are not recorded.
@Map(level="thread", type="sum")
class NotTraced:
    matrix: nl.u64
    other: nl.u64


def chosen():
    block = nl.ctaid.x + nl.nctaid.x * (nl.ctaid.y + nl.nctaid.y * nl.ctaid.z)
    return block % BLOCKS == 0 and nl.warpid % WARPS == 0 and seen % ACCESSES == 0


def access(kind: nl.u16):
    if BLOCKS * WARPS * ACCESSES == 1:
        GlobalAccesses.save(nl.addr, nl.clock(), nl.site, nl.u16(nl.bytes), kind)
    else:
        if chosen():
            GlobalAccesses.save(nl.addr, nl.clock(), nl.site, nl.u16(nl.bytes), kind)
        seen += 1


def copy(kind: nl.u32):
    BulkCopies.save(nl.addr, nl.clock(), nl.u32(nl.bytes), nl.site, kind, nl.thread)


@probe(pos="ld.global | ldu.global", level="thread", before=True)
def load():
    access(LOAD)


@probe(pos="st.global", level="thread", before=True)
def store():
    access(STORE)


@probe(pos="atom.global", level="thread", before=True)
def atomic():
    access(ATOMIC)


@probe(pos="red.global", level="thread", before=True)
def reduction():
    access(REDUCTION)


# A generic address may be in any memory.
@probe(pos="ld.generic | ldu.generic", level="thread", before=True)
def generic_load():
    if nl.is_global(nl.addr):
        access(LOAD)


@probe(pos="st.generic !bulk", level="thread", before=True)
def generic_store():
    if nl.is_global(nl.addr):
        access(STORE)


@probe(pos="atom.generic", level="thread", before=True)
def generic_atomic():
    if nl.is_global(nl.addr):
        access(ATOMIC)


@probe(pos="red.generic", level="thread", before=True)
def generic_reduction():
    if nl.is_global(nl.addr):
        access(REDUCTION)


@probe(pos="cp.async.ca.shared.global | cp.async.cg.shared.global", level="thread", before=True)
def async_copy():
    access(ASYNC)


@probe(pos="cp.async.bulk.shared.global !reduce !tensor", level="thread", before=True)
def bulk_load():
    copy(LOAD)


@probe(pos="cp.async.bulk.global.shared !reduce !tensor !cp_mask", level="thread", before=True)
def bulk_store():
    copy(STORE)


@probe(pos="cp.reduce.async.bulk.global.shared !tensor", level="thread", before=True)
def bulk_reduction():
    copy(REDUCTION)


def tensor(
    kind: nl.u32, dimensions: nl.u32, descriptor: nl.u64, x: nl.s32, y: nl.s32, z: nl.s32, w: nl.s32, v: nl.s32
):  # fmt: skip
    TensorCopies.save(descriptor, nl.clock(), nl.site, kind, x, y, z, w, v, dimensions)


@probe(pos="cp.async.bulk.tensor.1d.shared.global !reduce", level="thread", before=True)
def tensor_load_1d():
    tensor(LOAD, 1, nl.in2[0], nl.in2[1], 0, 0, 0, 0)


@probe(pos="cp.async.bulk.tensor.2d.shared.global !reduce !tile::gather4", level="thread", before=True)
def tensor_load_2d():
    tensor(LOAD, 2, nl.in2[0], nl.in2[1], nl.in2[2], 0, 0, 0)


@probe(pos="cp.async.bulk.tensor.3d.shared.global !reduce", level="thread", before=True)
def tensor_load_3d():
    tensor(LOAD, 3, nl.in2[0], nl.in2[1], nl.in2[2], nl.in2[3], 0, 0)


@probe(pos="cp.async.bulk.tensor.4d.shared.global !reduce", level="thread", before=True)
def tensor_load_4d():
    tensor(LOAD, 4, nl.in2[0], nl.in2[1], nl.in2[2], nl.in2[3], nl.in2[4], 0)


@probe(pos="cp.async.bulk.tensor.5d.shared.global !reduce", level="thread", before=True)
def tensor_load_5d():
    tensor(LOAD, 5, nl.in2[0], nl.in2[1], nl.in2[2], nl.in2[3], nl.in2[4], nl.in2[5])


@probe(pos="cp.async.bulk.tensor.1d.global.shared !reduce", level="thread", before=True)
def tensor_store_1d():
    tensor(STORE, 1, nl.in1[0], nl.in1[1], 0, 0, 0, 0)


@probe(pos="cp.async.bulk.tensor.2d.global.shared !reduce !tile::scatter4", level="thread", before=True)
def tensor_store_2d():
    tensor(STORE, 2, nl.in1[0], nl.in1[1], nl.in1[2], 0, 0, 0)


@probe(pos="cp.async.bulk.tensor.3d.global.shared !reduce", level="thread", before=True)
def tensor_store_3d():
    tensor(STORE, 3, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], 0, 0)


@probe(pos="cp.async.bulk.tensor.4d.global.shared !reduce", level="thread", before=True)
def tensor_store_4d():
    tensor(STORE, 4, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], nl.in1[4], 0)


@probe(pos="cp.async.bulk.tensor.5d.global.shared !reduce", level="thread", before=True)
def tensor_store_5d():
    tensor(STORE, 5, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], nl.in1[4], nl.in1[5])


@probe(pos="cp.reduce.async.bulk.tensor.1d.global.shared", level="thread", before=True)
def tensor_reduction_1d():
    tensor(REDUCTION, 1, nl.in1[0], nl.in1[1], 0, 0, 0, 0)


@probe(pos="cp.reduce.async.bulk.tensor.2d.global.shared", level="thread", before=True)
def tensor_reduction_2d():
    tensor(REDUCTION, 2, nl.in1[0], nl.in1[1], nl.in1[2], 0, 0, 0)


@probe(pos="cp.reduce.async.bulk.tensor.3d.global.shared", level="thread", before=True)
def tensor_reduction_3d():
    tensor(REDUCTION, 3, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], 0, 0)


@probe(pos="cp.reduce.async.bulk.tensor.4d.global.shared", level="thread", before=True)
def tensor_reduction_4d():
    tensor(REDUCTION, 4, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], nl.in1[4], 0)


@probe(pos="cp.reduce.async.bulk.tensor.5d.global.shared", level="thread", before=True)
def tensor_reduction_5d():
    tensor(REDUCTION, 5, nl.in1[0], nl.in1[1], nl.in1[2], nl.in1[3], nl.in1[4], nl.in1[5])


@probe(
    pos="wmma.load.global | wmma.load.generic | wmma.store.global | wmma.store.generic", level="thread", before=True
)
def matrix():
    NotTraced.save(1, 0)


@probe(
    pos="multimem | tensormap | tex | tld4 | suld | sust | sured | cp.async.bulk.global.shared.cp_mask"
    " | cp.async.bulk.tensor.tile::gather4 !prefetch | cp.async.bulk.tensor.tile::scatter4",
    level="thread", before=True,
)  # fmt: skip
def other():
    NotTraced.save(0, 1)
