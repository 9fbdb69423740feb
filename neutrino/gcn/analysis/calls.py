"""Which functions of its code object a function of AMD's machine code calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from neutrino.errors import NeutrinoError
from neutrino.gcn.analysis.flow_graph import FlowGraph, is_call
from neutrino.gcn.code import Function, Instruction, Module, PcLiteral
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.registers import EVERYTHING, registers_of

_LITERAL_AT = 4
_PRESERVED = EVERYTHING ^ (1 << 30) - 1
"""All registers but s0 to s29: what a function changes of the others, it restores, or returns no address in."""
_Known = Mapping[str, int]
"""Pairs of SGPRs, as operands → the addresses that they hold."""


_COMPLETES = frozenset({"s_add_u32", "s_addc_u32", "s_add_co_u32", "s_add_co_ci_u32", "s_sext_i32_i16"})
"""What makes an address of the program counter; gfx12 reads 48 bits of that."""


class UnknownCallError(NeutrinoError):
    """A call of a function that is not known."""


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a module's functions. generation: of the processor, 9 to 12."""

    module: Module
    generation: int
    _called: dict[str, tuple[Function, ...]] = field(default_factory=dict)
    _perhaps_called: dict[str, tuple[Function, ...]] = field(default_factory=dict)
    _changed: dict[str, int] = field(default_factory=dict)

    def reached(self, function: Function) -> tuple[Function, ...]:
        """Return a function and all that it may call, itself first.

        Raises UnknownCallError for a call of an address that is not added to the program counter, and
        UnknownInstructionError for an instruction that is not known.
        """
        return self._reached(function, is_sure=True)

    def _reached(self, function: Function, *, is_sure: bool) -> tuple[Function, ...]:
        """As ``reached``. is_sure: as for ``_called_by``."""
        found = {function.name: function}
        waiting = [function]
        while waiting:
            for called in self._called_by(waiting.pop(), is_sure=is_sure):
                if called.name not in found:
                    found[called.name] = called
                    waiting.append(called)
        return tuple(found.values())

    def _called_by(self, function: Function, *, is_sure: bool) -> tuple[Function, ...]:
        """Return the functions that the calls in a function lead to. Raises as ``reached``.

        is_sure: whether registers that a call may change are taken not to have what they had. Which these are depends
        on what is called, so that it is found out first without that: then more calls seem to be known.
        """
        known = self._called if is_sure else self._perhaps_called
        if function.name not in known:
            known[function.name] = self._find(function, is_sure=is_sure)
        return known[function.name]

    def _find(self, function: Function, *, is_sure: bool) -> tuple[Function, ...]:
        """As ``_called_by``, anew."""
        if not any(is_call(row) for row in function.instructions):
            return ()
        graph = FlowGraph(function)
        # What is known at a block's beginning, whichever way leads there.
        at_entry: dict[int, _Known] = {0: {}}
        waiting = [0]
        while waiting:
            number = waiting.pop()
            block = graph.blocks[number]
            known = at_entry[number]
            for row in function.instructions[block.begin : block.end]:
                known = self._through(function, row, known, is_sure=is_sure)
            for successor in block.successors:
                before = at_entry.get(successor)
                met = known if before is None else {pair: at for pair, at in before.items() if known.get(pair) == at}
                if met != before:
                    at_entry[successor] = met
                    waiting.append(successor)
        found: dict[int, Function] = {}
        for number, known in sorted(at_entry.items()):
            block = graph.blocks[number]
            for row in function.instructions[block.begin : block.end]:
                if is_call(row):
                    address = known.get(row.operands[-1]) if row.operands else None
                    called = self._by_address.get(address)
                    if called is None:
                        where = f"{row.mnemonic} at {row.offset:#x}"
                        raise UnknownCallError(f"{where} of {function.name} calls a function by a pointer")
                    found[called.address] = called
                known = self._through(function, row, known, is_sure=is_sure)
        return tuple(found.values())

    def _through(self, function: Function, row: Instruction, known: _Known, *, is_sure: bool) -> _Known:
        """Return what is known behind an instruction. known: in front of it."""
        literals = (
            {literal.get_pc: literal for literal in function.literals} if row.mnemonic.startswith("s_get") else {}
        )
        if row.offset in literals:
            return {**known, row.operands[0]: literals[row.offset].target}
        if row.mnemonic in _COMPLETES and any(_completes(row, literal) for literal in function.literals):
            # The address is known already.
            return known
        if is_call(row):
            called = self._by_address.get(known.get(row.operands[-1])) if row.operands else None
            changed = EVERYTHING if called is None else 0
            if called is not None and is_sure:
                changed = self._changed_by(called) & ~_PRESERVED
            changed |= registers_of(row.operands[0]) if row.operands else 0
            return {pair: at for pair, at in known.items() if not registers_of(pair) & changed}
        writes = effects(row, self.generation).writes
        left = {pair: at for pair, at in known.items() if not registers_of(pair) & writes}
        if row.mnemonic == "s_mov_b64" and row.operands[1] in known:
            left[row.operands[0]] = known[row.operands[1]]
        return left

    @cached_property
    def _by_address(self) -> Mapping[int | None, Function]:
        """The module's functions by their addresses, without kernels."""
        return {function.address: function for function in self.module.functions if not function.is_kernel}

    def _changed_by(self, function: Function) -> int:
        """Return the registers that a function writes, or one that it calls. Raises as ``reached``."""
        if function.name not in self._changed:
            found = 0
            for each in self._reached(function, is_sure=False):
                for row in each.instructions:
                    if row.mnemonic and not is_call(row):
                        found |= effects(row, self.generation).writes
            self._changed[function.name] = found
        return self._changed[function.name]


def _completes(row: Instruction, literal: PcLiteral) -> bool:
    """Return whether an instruction is one of those that add a literal to the program counter, or between them."""
    if row.mnemonic == "s_sext_i32_i16":
        return literal.get_pc < row.offset < literal.high
    return row.offset + _LITERAL_AT in (literal.low, literal.high)
