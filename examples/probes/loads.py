# As loads.toml: what each thread loads first.
import neutrino.language as nl
from neutrino import Map, probe


@Map(level="thread", type="array", size=16, cap=4)
class Loads:
    address: nl.u64
    value: nl.f32
    clock: nl.u32


@probe(pos="ld.global.f32", level="thread")
def loads():
    if nl.addr() != 0:
        Loads.save(nl.addr(), nl.out(), nl.clock())
