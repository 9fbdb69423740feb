# What the warps of bench/workloads/roles.cu do: its marked ranges, their waits, and how often each executes what.
import neutrino.language as nl
from neutrino import Map, probe

since: nl.u64 = 0
arrived: nl.u64 = 0
copies: nl.u32 = 0
products: nl.u32 = 0
stores: nl.u32 = 0
waits: nl.u64 = 0


@Map(level="thread", type="log")
class Copy:
    start: nl.u64
    elapsed: nl.u64


@Map(level="thread", type="log")
class Multiply:
    start: nl.u64
    elapsed: nl.u64


@Map(level="thread", type="log")
class HandOver:
    start: nl.u64
    elapsed: nl.u64


@Map(level="thread", type="log")
class Store:
    start: nl.u64
    elapsed: nl.u64


@Map(level="thread", type="log")
class Wait:
    start: nl.u64
    elapsed: nl.u64


@Map(level="thread", type="max", per="warp")
class WarpWork:
    copy: nl.u32
    tensor: nl.u32
    store: nl.u32
    waited: nl.u64


@probe(pos="range:copy | range:multiply | range:hand_over | range:store", level="thread", before=True)
def begin():
    since = nl.clock()


@probe(pos="range:copy", level="thread", after=True)
def copied():
    if nl.leader:
        Copy.save(since, nl.clock() - since)


@probe(pos="range:multiply", level="thread", after=True)
def multiplied():
    if nl.leader:
        Multiply.save(since, nl.clock() - since)


@probe(pos="range:hand_over", level="thread", after=True)
def handed():
    if nl.leader:
        HandOver.save(since, nl.clock() - since)


@probe(pos="range:store", level="thread", after=True)
def stored():
    if nl.leader:
        Store.save(since, nl.clock() - since)


@probe(pos="bar.sync | cp.async.wait_group", level="thread", before=True)
def arrive():
    arrived = nl.clock()


@probe(pos="bar.sync | cp.async.wait_group", level="thread", after=True)
def leave():
    elapsed = nl.clock() - arrived
    waits += elapsed
    if nl.leader:
        Wait.save(arrived, elapsed)


@probe(pos="cp.async.cg.shared.global", level="thread", before=True)
def copying():
    copies += 1


@probe(pos="mma", level="thread", before=True)
def product():
    products += 1


@probe(pos="st.global | st.generic", level="thread", before=True)
def storing():
    stores += 1


@probe(pos="kernel", level="thread", after=True)
def end():
    WarpWork.save(copies, products, stores, waits)
