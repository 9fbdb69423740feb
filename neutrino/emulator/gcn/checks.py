"""Registers that are used before the wait that covers them, or before anything wrote them."""

from __future__ import annotations

from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.numbering import UPPER_HALVES, VGPRS

_OUT_OF_ORDER = frozenset({"smem", "message"})
"""Their results arrive in any order: only a wait for all of them covers one."""


def counters_of(generation: int) -> dict[str, tuple[str, ...]]:
    """Return the counters in which each kind of operation counts, on a generation of processors."""
    if generation >= 12:
        return {
            "vm": ("vm",), "store": ("vs",), "flat": ("vm", "ds"), "flat_store": ("vs", "ds"), "ds": ("ds",),
            "smem": ("km",), "message": ("km",),
        }  # fmt: skip
    stores = "vs" if generation >= 10 else "vm"
    return {
        "vm": ("vm",), "store": (stores,), "flat": ("vm", "lgkm"), "flat_store": (stores, "lgkm"), "ds": ("lgkm",),
        "smem": ("lgkm",), "message": ("lgkm",),
    }  # fmt: skip


class Checks:
    """What a wave waits for, and which registers have a value. Registers are the bits of ``numbering``."""

    def __init__(self, generation: int, defined: int, owned: int) -> None:
        """Begin the checks of one wave, with no operation under way. defined: the registers that have a value; owned:
        those that the wave has at all; both as bits."""
        self._foreign = ~owned
        self._clause = 0
        self._counters = counters_of(generation)
        self._queues: dict[str, list[tuple[str, int]]] = {}
        self.pending = 0
        """Registers that operations under way will write."""
        self.defined = defined
        self.undefined: dict[int, int] = {}
        """Place of an instruction → registers that it read although nothing wrote them."""

    def issue(self, kind: str, registers: int) -> None:
        """Note an operation under way."""
        for counter in self._counters[kind]:
            self._queues.setdefault(counter, []).append((kind, registers))
        self.pending |= registers

    def wait(self, limits: dict[str, int]) -> None:
        """Note that at most so many operations of each counter are under way."""
        for counter, limit in limits.items():
            queue = self._queues.get(counter)
            if not queue:
                continue
            if limit and any(kind in _OUT_OF_ORDER for kind, _ in queue):
                continue
            done = queue[: max(0, len(queue) - limit)]
            del queue[: len(done)]
            # An operation that counts in two counters is done when either says so: both go down together.
            for other, rest in self._queues.items():
                if other != counter:
                    for row in done:
                        if row[0].startswith("flat") and row in rest and not limit:
                            rest.remove(row)
        self.pending = 0
        for queue in self._queues.values():
            for _, registers in queue:
                self.pending |= registers

    def begin_clause(self, length: int) -> None:
        """Note that so many instructions on memory must follow."""
        self._clause = length

    def use(self, place: int, text: str, reads: int, writes: int, is_memory: bool) -> None:
        """Check an instruction's registers. Raises GcnFaultError for one that is still being loaded, for one that the
        wave does not have, and for an instruction that is on no memory inside a clause."""
        if (reads | writes) & self._foreign:
            beyond = names((reads | writes) & self._foreign)
            raise GcnFaultError("register", f"{text!r} uses {beyond}, which the descriptor does not give to the wave")
        if self._clause:
            if not is_memory:
                raise GcnFaultError("clause", f"{text!r} is inside a clause")
            self._clause -= 1
        early = self.pending & (reads if is_memory else reads | writes)
        if early:
            raise GcnFaultError("wait", f"{text!r} uses {names(early)} before the wait for it")
        missing = reads & ~self.defined
        if missing:
            self.undefined[place] = self.undefined.get(place, 0) | missing
        self.defined |= writes


def names(registers: int) -> str:
    """Return the names of registers that bits stand for."""
    found: dict[str, None] = {}
    while registers:
        bit = (registers & -registers).bit_length() - 1
        registers &= registers - 1
        if bit >= UPPER_HALVES:
            bit -= UPPER_HALVES
        found[f"s{bit - VGPRS}" if bit >= VGPRS else f"a{bit - 256}" if bit >= 256 else f"v{bit}"] = None
    return ", ".join(found)
