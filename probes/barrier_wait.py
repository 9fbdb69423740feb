# Cycles that warps spend in barriers and other waits.
#
# One figure for each group of lanes of a warp that execute the instruction together, from before it until after it: block
# and cluster barriers, waits for copies and for tensor cores, and each try at an mbarrier. Lanes that come to a barrier
# apart and go on together are one group, which waited for as long as one of its lanes.
import neutrino.language as nl
from neutrino import Map, probe

start: nl.u32 = 0


@Map(level="thread", type="hash", keep=["sum", "min", "max"])
class PerWait:
    site: nl.u32
    cycles: nl.u32


@probe(
    pos="bar.sync !warp | bar.red | barrier.sync | barrier.red | barrier.cluster.wait | mbarrier.try_wait"
    " | cp.async.wait_group | cp.async.wait_all | cp.async.bulk.wait_group | wgmma.wait_group",
    level="thread", before=True,
)  # fmt: skip
def arrive():
    start = nl.u32(nl.clock())


@probe(
    pos="bar.sync !warp | bar.red | barrier.sync | barrier.red | barrier.cluster.wait | mbarrier.try_wait"
    " | cp.async.wait_group | cp.async.wait_all | cp.async.bulk.wait_group | wgmma.wait_group",
    level="thread", after=True,
)  # fmt: skip
def leave():
    if nl.elected:
        PerWait.save(nl.site, nl.u32(nl.clock()) - start)
