# How often warps split at conditional branches.
#
# One record per launch, added up over all threads. It counts the branches (bra) of the PTX text that have a predicate.
# A warp that has already split reaches a branch group by group, and each group counts. ptxas may turn a short branch
# into predicated instructions, which split nothing; such a branch still counts.
#   branches   conditional branches that groups of lanes reached
#   diverged   those at which some lanes of the group branched and others went on
#   taken      lanes that branched
#   passed     lanes that went on
from neutrino import Map, probe
import neutrino.language as nl

branches: nl.u64 = 0
diverged: nl.u64 = 0
taken: nl.u64 = 0
passed: nl.u64 = 0


@Map(level="thread", type="sum", size=32)
class BranchDivergence:
    branches: nl.u64
    diverged: nl.u64
    taken: nl.u64
    passed: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    BranchDivergence.save(branches, diverged, taken, passed)


# The lowest lane here counts the branch. The lowest lane that branches counts it as diverged if others do not.
@probe(pos="bra @", level="thread", lanes="reaching", before=True)
def branch():
    here = nl.lanes
    below = nl.lanemask_lt
    if here & below == 0:
        branches += 1
    if nl.pred:
        branching = nl.warp.ballot(True)
        if branching != here:
            if branching & below == 0:
                diverged += 1
        taken += 1
    else:
        passed += 1
