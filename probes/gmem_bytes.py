# Bytes of global memory that the threads of a kernel ask for, by kind of access.
#
# One record per launch, added up over all threads that execute the instruction. It counts what the instruction names,
# before coalescing and caches: two threads that read the same four bytes read eight. The lanes of a warp that load a
# matrix together have equal shares of it.
#   load      ld, ldu, wmma.load              store   st, wmma.store
#   atomic    atom, red (the operand's width) async   cp.async and the plain bulk copies
#   uncounted executions, not bytes, of accesses whose size no operand gives: tensor copies and reductions, masked
#             bulk copies, multimem, tensormap, textures and surfaces
# Generic addresses count if they are in global memory according to isspacep.global. That includes the window of a
# kernel's parameters, so a parameter that is read through a generic pointer counts, too. Prefetches move nothing into
# the kernel and do not count.
from neutrino import Map, probe
import neutrino.language as nl

loads: nl.u64 = 0
stores: nl.u64 = 0
atomics: nl.u64 = 0
asyncs: nl.u64 = 0
others: nl.u64 = 0


@Map(level="thread", type="sum", size=40)
class GmemBytes:
    load: nl.u64
    store: nl.u64
    atomic: nl.u64
    async_: nl.u64
    uncounted: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    GmemBytes.save(loads, stores, atomics, asyncs, others)


@probe(pos="ld.global | ldu.global | wmma.load.global", level="thread", before=True)
def load_global():
    loads += nl.bytes


@probe(pos="ld.generic | ldu.generic | wmma.load.generic", level="thread", before=True)
def load_generic():
    loads += nl.bytes if nl.is_global(nl.addr) else nl.u64(0)


@probe(pos="st.global | wmma.store.global", level="thread", before=True)
def store_global():
    stores += nl.bytes


@probe(pos="st.generic !bulk | wmma.store.generic", level="thread", before=True)
def store_generic():
    stores += nl.bytes if nl.is_global(nl.addr) else nl.u64(0)


@probe(pos="atom.global | red.global", level="thread", before=True)
def atomic_global():
    atomics += nl.bytes


@probe(pos="atom.generic | red.generic", level="thread", before=True)
def atomic_generic():
    atomics += nl.bytes if nl.is_global(nl.addr) else nl.u64(0)


@probe(pos="cp.async.ca | cp.async.cg", level="thread", before=True)
def copy():
    asyncs += nl.bytes


@probe(
    pos="cp.async.bulk.shared.global !tensor !reduce | cp.async.bulk.global.shared !tensor !reduce !cp_mask | "
        "cp.reduce.async.bulk.global.shared !tensor",
    level="thread", before=True,
)
def bulk_copy():
    asyncs += nl.bytes


# Copies by a tensor map and masked copies have no operand with a number of bytes; what multimem and textures move
# depends on more than one address.
@probe(
    pos="cp.async.bulk.tensor !reduce !prefetch | cp.reduce.async.bulk.tensor | "
        "cp.async.bulk.global.shared.cp_mask",
    level="thread", before=True,
)
def uncounted_copy():
    others += 1


@probe(pos="multimem | tensormap | tex | tld4 | suld | sust | sured", level="thread", before=True)
def uncounted():
    others += 1
