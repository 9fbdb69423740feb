# Cycles that warps spend in barriers and other waits.
#
# One figure for each execution by a warp's first thread, from before the instruction until after it: block and cluster
# barriers, waits for copies and for tensor cores, and each try at an mbarrier.
import neutrino.language as nl
from neutrino import Map, probe

start: nl.u32 = 0


@Map(level="warp", type="hash", keep=["sum", "min", "max"])
class PerWait:
    site: nl.u32
    cycles: nl.u32


@probe(
    pos="bar.sync !warp | bar.red | barrier.sync | barrier.red | barrier.cluster.wait | mbarrier.try_wait"
    " | cp.async.wait_group | cp.async.wait_all | cp.async.bulk.wait_group | wgmma.wait_group",
    level="warp", before=True,
)  # fmt: skip
def arrive():
    start = nl.u32(nl.clock())


@probe(
    pos="bar.sync !warp | bar.red | barrier.sync | barrier.red | barrier.cluster.wait | mbarrier.try_wait"
    " | cp.async.wait_group | cp.async.wait_all | cp.async.bulk.wait_group | wgmma.wait_group",
    level="warp", after=True,
)  # fmt: skip
def leave():
    PerWait.save(nl.site, nl.u32(nl.clock()) - start)
