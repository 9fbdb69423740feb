"""Asynchronous copies and mbarriers as Python source.

The methods emit calls of the batch's methods (``m.…``, see `asynchronous`). What `memory`, `value`, `fresh` and
`call_text` return are pieces of that source: names of variables and expressions.
"""

from __future__ import annotations

import numpy as np

from neutrino.emulator.address_space import Space
from neutrino.emulator.datatypes import PREDICATE
from neutrino.emulator.memory_source import SPACES, MemorySource
from neutrino.emulator.resolved_operands import Negated, Operand, Register, Sink
from neutrino.emulator.values_source import U32, U64


class AsynchronousSource(MemorySource):
    """Generates cp.async, cp.async.bulk (PTX ISA 9.7.9.25) and mbarrier (9.7.13.15), as calls of the batch's methods.

    The batch is `m` in the generated code. What `memory`, `value`, `fresh` and `call_text` return are pieces of source:
    names of variables and expressions.
    """

    def copy_async(self) -> None:
        """Emit the code of a ``cp.async`` instruction of any form: a call of a method of the batch, ``m``.

        The part of the opcode after ``cp.async`` says which form it is. Raise PtxRefusedError for one that the embedded
        device does not know. In the generated code `at` has the indices of the active threads.
        """
        parts = self.instruction.parts
        # Empty if the opcode is cut short, which is refused below.
        form = parts[2] if len(parts) > 2 else ""
        if parts[:2] != ("cp", "async"):
            raise self.refused("an instruction that the embedded device does not know")
        if form == "bulk":
            self.copy_bulk()
        elif form == "commit_group":
            self.emit(f"m.commit_group(at, {self.guard})")
        elif form == "wait_all":
            # -1: also the copies that are in no group yet.
            self.emit(f"m.wait_group(-1, at, {self.guard})")
        elif form == "wait_group":
            (max_pending,) = self.require(1)
            self.emit(f"m.wait_group({self.number(max_pending)}, at, {self.guard})")
        elif form == "mbarrier":
            (address,) = self.require(1)
            space, base, offset = self.memory(address)
            # Without .noinc the arrival first raises the pending count.
            adds = str("noinc" not in parts)
            self.emit(self.call_text("arrive_after_copies", str(int(space)), base, offset, adds))
        elif form in ("ca", "cg"):
            self.copy_non_bulk()
        else:
            raise self.refused("an instruction that the embedded device does not know")

    def copy_non_bulk(self) -> None:
        """Emit a ``cp.async.ca`` or ``.cg``: [destination], [source], size, and optionally src-size or ignore-src.

        `memory`, `value` and `fresh` return expressions of the generated code. Raise PtxRefusedError for a size that
        PTX does not have.
        """
        operands = self.require(3, 5)
        size = self.number(operands[2])
        if size not in (4, 8, 16):
            raise self.refused("a copy of another size than 4, 8 and 16")
        _, target, target_offset = self.memory(operands[0])
        _, source, source_offset = self.memory(operands[1])
        # "None": all bytes are read.
        source_size = "None"
        if len(operands) > 3:
            # A fifth operand is a cache policy, which changes no value.
            option = operands[3]
            register = option.register if isinstance(option, Negated) else option
            if isinstance(register, Register) and register.type == "pred":
                # ignore-src: nothing is read, zeros are written.
                ignored = self.value(option, PREDICATE)
                zero, full = (self.constant_object(np.uint32(number)) for number in (0, size))
                source_size = self.fresh(f"np.where({ignored}, {zero}, {full})")
            elif not (
                # A 64-bit last operand is a cache policy as well.
                isinstance(register, Register) and register.dtype.itemsize == 8 and len(operands) == 4
            ):
                source_size = self.value(option, U32)
        arguments = (target, target_offset, source, source_offset, str(size), source_size)
        self.emit(self.call_text("copy_async", *arguments))

    def copy_bulk(self) -> None:
        """Emit a ``cp.async.bulk`` instruction: a copy, or a commit or wait of bulk groups.

        After ``cp.async.bulk`` the opcode has a form or, for a copy, the state spaces of destination and source.
        `memory`, `value` and `fresh` return expressions of the generated code. Raise PtxRefusedError for tensor copies
        and others that the embedded device does not know.
        """
        parts = self.instruction.parts
        # Empty where the opcode is cut short: no state space has that name.
        form_or_destination, source_name = (*parts[3:5], "", "")[:2]
        if form_or_destination == "commit_group":
            self.emit(f"m.commit_bulk_group(at, {self.guard})")
            return
        if form_or_destination == "wait_group":
            (max_pending,) = self.require(1)
            self.emit(f"m.wait_bulk_group({self.number(max_pending)}, at, {self.guard})")
            return
        if form_or_destination == "prefetch" and "tensor" not in parts:
            # A prefetch changes no value.
            return
        if "tensor" in parts or form_or_destination not in SPACES or source_name not in SPACES:
            raise self.refused("a copy that the embedded device does not know")
        destination_space, source_space = SPACES[form_or_destination], SPACES[source_name]

        # The operands are [destination], [source], size, and the [mbarrier] of a copy that belongs to no bulk group.
        operands = self.require(3, 6)
        grouped = "bulk_group" in parts
        address_operands = operands[:2] if grouped else (*operands[:2], *operands[3:4])
        addresses = []
        for operand in address_operands:
            # The space that `memory` gives is of no use here, as the opcode names two.
            _, base, offset = self.memory(operand)
            addresses.append(base if offset == "None" else self.fresh(f"{base} + {offset}"))
        if not grouped and (len(addresses) != 3 or "mbarrier::complete_tx::bytes" not in parts):
            raise self.refused("a copy that the embedded device does not know")
        spaces = f"({int(destination_space)}, {int(source_space)})"
        barrier = "None" if grouped else addresses[2]
        size = self.value(operands[2], U32)
        self.emit(self.call_text("copy_bulk", spaces, addresses[0], addresses[1], size, barrier))

    def memory_barrier(self) -> None:
        """Emit the code of an ``mbarrier`` instruction (PTX ISA 9.7.13.15): a call of a method of the batch.

        `memory`, `value` and `fresh` return expressions of the generated code. Raise PtxRefusedError for a form that
        the embedded device does not know.
        """
        parts = self.instruction.parts
        # Empty if the opcode is cut short, which is refused below.
        operation = parts[1] if len(parts) > 1 else ""
        operands = list(self.instruction.operands)
        if operation == "pending_count":
            target, state_operand = self.require(2)
            self.write(target, self.fresh(f"m.pending_count({self.value(state_operand, U64)})"), U32)
            return

        # Take the operands apart: the destination of some operations, the mbarrier's address, and a count. A sink takes
        # a result that nothing uses.
        arrives = operation in ("arrive", "arrive_drop")
        waits = operation in ("test_wait", "try_wait")
        destination: Operand = Sink()
        if (arrives or waits) and operands:
            destination = operands.pop(0)
        if not operands:
            raise self.refused("an mbarrier is missing")
        space, base, offset = self.memory(operands.pop(0))
        # Only shared memory has mbarriers; other addresses must be generic ones that lie in it.
        space = Space.SHARED if space is Space.SHARED else Space.GENERIC
        barrier = (str(int(space)), base, offset)
        one, zero = (self.constant_object(np.int64(number)) for number in (1, 0))
        # After the address, arrivals or bytes; the operations that wait have a state or a parity there.
        amount = self.value(operands[0], U32) if operands and not waits else None

        if operation == "init" and amount is not None:
            self.emit(self.call_text("initialise_mbarrier", *barrier, amount))
        elif operation == "inval":
            self.emit(self.call_text("invalidate_mbarrier", *barrier))
        elif arrives:
            # With .expect_tx the operand is a number of bytes, else a number of arrivals (1 if there is none).
            expects = "expect_tx" in parts
            if expects and amount is None:
                raise self.refused("a count of bytes is missing")
            count = one if expects or amount is None else amount
            tx_bytes = amount if expects and amount is not None else zero
            drop = str(operation == "arrive_drop")
            state = self.fresh(self.call_text("arrive", *barrier, count, tx_bytes, drop))
            self.write(destination, state, U64)
        elif operation in ("expect_tx", "complete_tx") and amount is not None:
            # Signed, since bytes that complete count as negative; and neither operation is an arrival.
            tx_bytes = self.fresh(f"{amount}.astype({self.dtype(np.dtype('i8'))})")
            tx_bytes = tx_bytes if operation == "expect_tx" else self.fresh(f"-{tx_bytes}")
            self.emit(self.call_text("arrive", *barrier, zero, tx_bytes, "False"))
        elif waits and operands:
            parity = "parity" in parts
            phase = self.value(operands[0], U32 if parity else U64)
            complete = self.fresh(self.call_text("test_mbarrier", *barrier, phase, str(parity)))
            self.write(destination, complete, PREDICATE)
        else:
            raise self.refused("an instruction that the embedded device does not know")
