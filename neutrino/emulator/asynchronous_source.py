"""Asynchronous copies and mbarriers as Python source."""

from __future__ import annotations

import numpy as np

from neutrino.emulator.datatypes import PREDICATE
from neutrino.emulator.memory import Space
from neutrino.emulator.memory_source import SPACES, MemorySource
from neutrino.emulator.program import (
    Negated,
    Operand,
    Register,
    Sink,
)
from neutrino.emulator.values_source import U32, U64


class AsynchronousSource(MemorySource):
    """cp.async, cp.async.bulk (PTX ISA 9.7.9.25) and mbarrier (9.7.13.15)."""

    def copy_async(self) -> None:
        parts = self.instruction.parts
        if parts[1] != "async":
            raise self.refused("an instruction that the embedded device does not know")
        if parts[2] == "bulk":
            self.copy_bulk()
        elif parts[2] == "commit_group":
            self.emit(f"m.commit_group(at, {self.guard})")
        elif parts[2] in ("wait_group", "wait_all"):
            if parts[2] == "wait_all":
                self.emit(f"m.wait_group(-1, at, {self.guard})")
            else:
                self.emit(f"m.wait_group({self.number(self.require(1)[0])}, at, {self.guard})")
        elif parts[2] == "mbarrier":
            space, base, offset = self.memory(self.require(1)[0])
            adds = str("noinc" not in parts)
            self.emit(self.call_text("arrive_after_copies", str(int(space)), base, offset, adds))
        elif parts[2] in ("ca", "cg"):
            self.copy_some()
        else:
            raise self.refused("an instruction that the embedded device does not know")

    def copy_some(self) -> None:
        operands = self.require(3, 5)
        size = self.number(operands[2])
        if size not in (4, 8, 16):
            raise self.refused("a copy of another size than 4, 8 and 16")
        _, target, target_offset = self.memory(operands[0])
        _, source, source_offset = self.memory(operands[1])
        given = "None"
        if len(operands) > 3:
            fourth = operands[3]
            register = fourth.register if isinstance(fourth, Negated) else fourth
            if isinstance(register, Register) and register.type == "pred":
                # ignore-src: nothing is read, zeros are written.
                ignored = self.value(fourth, PREDICATE)
                zero, full = (self.constant_object(np.uint32(number)) for number in (0, size))
                given = self.fresh(f"np.where({ignored}, {zero}, {full})")
            elif isinstance(register, Register) and register.dtype.itemsize == 8 and len(operands) == 4:
                # A cache policy.
                given = "None"
            else:
                given = self.value(fourth, U32)
        arguments = (target, target_offset, source, source_offset, str(size), given)
        self.emit(self.call_text("copy_async", *arguments))

    def copy_bulk(self) -> None:
        parts = self.instruction.parts
        if parts[3] == "commit_group":
            self.emit(f"m.commit_bulk_group(at, {self.guard})")
            return
        if parts[3] == "wait_group":
            self.emit(f"m.wait_bulk_group({self.number(self.require(1)[0])}, at, {self.guard})")
            return
        if parts[3] == "prefetch" and "tensor" not in parts:
            return
        if "tensor" in parts or parts[3] not in SPACES or parts[4] not in SPACES:
            raise self.refused("a copy that the embedded device does not know")
        operands = self.require(3, 6)
        grouped = "bulk_group" in parts
        addresses = []
        for operand in (*operands[:2], *(() if grouped else operands[3:4])):
            _, base, offset = self.memory(operand)
            addresses.append(base if offset == "None" else self.fresh(f"{base} + {offset}"))
        if not grouped and (len(addresses) != 3 or "mbarrier::complete_tx::bytes" not in parts):
            raise self.refused("a copy that the embedded device does not know")
        spaces = f"({int(SPACES[parts[3]])}, {int(SPACES[parts[4]])})"
        barrier = "None" if grouped else addresses[2]
        size = self.value(operands[2], U32)
        self.emit(self.call_text("copy_bulk", spaces, addresses[0], addresses[1], size, barrier))

    def memory_barrier(self) -> None:
        """mbarrier (PTX ISA 9.7.13.15)."""
        parts = self.instruction.parts
        what = parts[1]
        operands = list(self.instruction.operands)
        if what == "pending_count":
            counted, of_state = self.require(2)
            self.write(counted, self.fresh(f"m.pending_count({self.value(of_state, U64)})"), U32)
            return
        destination: Operand = Sink()
        if what in ("arrive", "arrive_drop", "test_wait", "try_wait") and operands:
            destination = operands.pop(0)
        if not operands:
            raise self.refused("an mbarrier is missing")
        space, base, offset = self.memory(operands.pop(0))
        space = Space.SHARED if space is Space.SHARED else Space.GENERIC
        head = (str(int(space)), base, offset)
        one, none = (self.constant_object(np.int64(number)) for number in (1, 0))
        first = self.value(operands[0], U32) if operands and what not in ("test_wait", "try_wait") else None
        if what == "init" and first is not None:
            self.emit(self.call_text("initialise_mbarrier", *head, first))
        elif what == "inval":
            self.emit(self.call_text("invalidate_mbarrier", *head))
        elif what in ("arrive", "arrive_drop"):
            expects = "expect_tx" in parts
            if expects and first is None:
                raise self.refused("a count of bytes is missing")
            count = one if expects or first is None else first
            moved = first if expects and first is not None else none
            state = self.fresh(self.call_text("arrive", *head, count, moved, str(what == "arrive_drop")))
            self.write(destination, state, U64)
        elif what in ("expect_tx", "complete_tx") and first is not None:
            moved = self.fresh(f"{first}.astype({self.dtype(np.dtype('i8'))})")
            moved = moved if what == "expect_tx" else self.fresh(f"-{moved}")
            self.emit(self.call_text("arrive", *head, none, moved, "False"))
        elif what in ("test_wait", "try_wait") and operands:
            parity = "parity" in parts
            phase = self.value(operands[0], U32 if parity else U64)
            over = self.fresh(self.call_text("test_mbarrier", *head, phase, str(parity)))
            self.write(destination, over, PREDICATE)
        else:
            raise self.refused("an instruction that the embedded device does not know")
