"""How the addresses in a body differ from lane to lane of a warp, as far as its text alone says that.

Only identities of integers are followed that hold whatever the launch: a step that may carry out of its bits ends the
search, and so does a value that a load, an instruction between lanes or one under a predicate has given.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from neutrino.ptx.analysis.register_values import Addresses, Sum
from neutrino.ptx.isa.instruction import Instruction, read_address
from neutrino.ptx.isa.scalars import WARP_LANES, known_integer
from neutrino.ptx.text.body import Body

_WORD = (1 << 32) - 1
_LANE = ("lane",)
"""The term that is the number of the lane."""
_UNIFORM = "uniform"
"""The first part of terms that are the same in all lanes of a warp, and that no register stands for."""
_PRODUCT = "product"
_SAME = frozenset({"add", "and", "cvt", "cvta", "div", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "rem",
                   "shl", "shr", "sub", "xor"})  # fmt: skip
"""Opcodes, by their first part, whose result is the same in all lanes if what they read is."""
_OF_BLOCK = frozenset(f"%{name}.{axis}" for name in ("ctaid", "nctaid", "ntid") for axis in "xyz")
_MOST_DEPTH, _MOST_TERMS = 40, 8
"""Of more instructions in a row, or more terms, nothing is said."""


class _Narrow(NamedTuple):
    """A value of 32 bits, without a sign, as a sum that is equal to it without any modulus. bits: those that may be
    set."""

    sum: Sum
    bits: int


class LaneAddresses(Addresses):
    """What the addresses in one kernel's body are, and how much they grow from lane to lane.

    threads: of a block, if it has one dimension, no others are launched, and they fill its warps; 0 if that is not
    known, so that nothing follows from the number of a thread.
    """

    def __init__(self, body: Body, threads: int) -> None:
        """Prepare to find the distances between lanes in a kernel's body. Parameters: see the class."""
        super().__init__(body)
        self._threads = threads
        self._narrow_known: dict[tuple[str, int], _Narrow] = {}
        self._same: dict[str, bool] = {}

    def stride(self, address: Sum) -> int | None:
        """Return how much a sum grows from each lane of a warp to the next, modulo 2 to the 64 as a signed number; None
        if that is not known."""
        if not self._threads or not all(term == _LANE or self._is_uniform(term) for term, _ in address.terms):
            return None
        factor = dict(address.terms).get(_LANE, 0)
        return (factor + (1 << 63)) % (1 << 64) - (1 << 63)

    # Sums modulo 2 to the 64

    def _added(self, index: int, depth: int) -> Sum | None:
        found = super()._added(index, depth)
        if found is None and self._threads and not self._body.is_guarded(index):
            found = self._widely_added(index, depth)
        return found if found is None or len(found.terms) <= _MOST_TERMS else None

    def _widely_added(self, index: int, depth: int) -> Sum | None:
        """Return the value that a statement without a predicate writes as a sum, if it multiplies, shifts or widens."""
        instruction = self._body.statement(index).instruction
        if instruction is None:
            return None
        word, *parts = instruction.opcode.split(".")
        type_ = parts[-1] if parts else ""
        operands = instruction.operands
        if word == "cvt" and parts in (["u64", "u32"], ["s64", "s32"], ["u64", "s32"], ["s64", "u32"]):
            return self._widened(operands[1], type_, index, depth)
        if word == "shl" and type_ == "b64":
            amount = known_integer(operands[2])
            if amount is not None and 0 <= amount < 64:
                return _scaled(self._wide(operands[1], index, depth), 1 << amount)
        if word in {"mul", "mad"} and parts in (["wide", "u32"], ["wide", "s32"], ["lo", "u64"], ["lo", "s64"]):
            return self._product(instruction, index, depth, is_narrow=parts[0] == "wide")
        return None

    def _product(self, instruction: Instruction, index: int, depth: int, *, is_narrow: bool) -> Sum | None:
        """Return what a multiplication writes, with an addition after it or not. is_narrow: its factors have 32 bits,
        and its result has 64."""
        _, value, factor, *rest = instruction.operands
        number = known_integer(factor)
        product: Sum | None = None
        if number is not None:
            if not is_narrow:
                product = self._wide(value, index, depth)
            elif number in (range(-1 << 31, 1 << 31) if instruction.opcode.endswith("s32") else range(1 << 32)):
                product = self._widened(value, instruction.opcode.rpartition(".")[2], index, depth)
            product = _scaled(product, number)
        if not rest:
            return product
        if product is None:
            is_same = self._is_same_operand(value, index) and self._is_same_operand(factor, index)
            product = Sum(frozenset({((_UNIFORM if is_same else _PRODUCT, index), 1)}), 0)
        return _together(product, self._wide(rest[0], index, depth))

    def _wide(self, operand: str, index: int, depth: int) -> Sum | None:
        """Return an operand of 64 bits as a sum."""
        number = known_integer(operand)
        if number is not None:
            return Sum(frozenset(), number % (1 << 64))
        return self._at(operand, index, depth + 1) if self._is_register(operand, index, "64") else None

    def _widened(self, operand: str, type_: str, index: int, depth: int) -> Sum | None:
        """Return an operand of 32 bits as a value of 64. type_: ``u32`` or ``s32``: how the upper bits are filled."""
        found = self._narrow(operand, index, depth)
        if found is None or (type_ == "s32" and found.bits >> 31):
            return None
        return found.sum

    # Values of 32 bits

    def _narrow(self, operand: str, index: int, depth: int) -> _Narrow | None:
        """Return an operand of 32 bits as an exact sum; None of all but numbers and registers of that size."""
        number = known_integer(operand)
        if number is not None:
            return _Narrow(Sum(frozenset(), number & _WORD), number & _WORD)
        if not self._is_register(operand, index, "32"):
            return None
        written = self._written_by(operand, index)
        if isinstance(written, int):
            return self._narrow_after(operand, written, depth)
        return _Narrow(Sum(frozenset({(written, 1)}), 0), _WORD)

    def _written_by(self, name: str, index: int) -> int | Hashable:
        """Return the index of the instruction that has given a register the value that a statement reads; or the term
        for what it had where the basic block began."""
        block, writes = self._graph.block(index), self.writes.get(name, [])
        within = [write for write in writes if self._graph.starts[block] <= write < index]
        if within:
            return within[-1]
        if len(writes) == 1 and self._dominates(self._graph.block(writes[0]), block):
            return writes[0]
        return "begins", block, name

    def _narrow_after(self, name: str, index: int, depth: int) -> _Narrow:
        """Return the value of 32 bits that a statement has written to a register."""
        if (name, index) not in self._narrow_known:
            found = self._computed(index, depth) if depth < _MOST_DEPTH else None
            own = Sum(frozenset({(("after", index, name), 1)}), 0)
            if found is None or (isinstance(found, _Narrow) and len(found.sum.terms) > _MOST_TERMS):
                found = _Narrow(own, _WORD)
            elif isinstance(found, int):
                found = _Narrow(own, found)
            self._narrow_known[name, index] = found
        return self._narrow_known[name, index]

    def _computed(self, index: int, depth: int) -> _Narrow | int | None:
        """Return what a statement writes to a register of 32 bits: an exact sum; or only which bits may be set."""
        instruction = self._body.statement(index).instruction
        if instruction is None or self._body.is_guarded(index):
            return None
        word, *parts = instruction.opcode.split(".")
        if not parts or parts[-1] not in {"b32", "u32", "s32"} or len(parts) > 2:
            return None
        sources = instruction.operands[1:]
        if word == "mov" and len(parts) == 1:
            return self._moved(sources[0], index, depth)
        if len(sources) != 2 or (len(parts) == 2 and not (word == "mul" and parts[0] == "lo")):
            return None
        left, right = (self._narrow(source, index, depth + 1) for source in sources)
        if left is None or right is None:
            return None
        number = None if right.sum.terms else right.sum.constant
        if word == "and":
            return _masked(left, right)
        if word in {"or", "xor"}:
            return left.bits | right.bits if left.bits & right.bits else _added_up(left, right)
        if word == "add":
            return _added_up(left, right) if left.bits + right.bits <= _WORD else None
        if number is None:
            return None
        if word == "shr" and parts == ["u32"]:
            return left.bits >> min(number, 32)
        if word == "shl" and number < 32:
            bits = left.bits << number
            return _Narrow(_multiplied(left.sum, 1 << number), bits) if bits <= _WORD else bits & _WORD
        if word == "mul" and left.bits * number <= _WORD:
            return _Narrow(_multiplied(left.sum, number), _below(left.bits * number))
        return None

    def _moved(self, source: str, index: int, depth: int) -> _Narrow | None:
        """Return the value of an operand that is moved, special registers among them."""
        if source == "%laneid":
            return _Narrow(Sum(frozenset({(_LANE, 1)}), 0), WARP_LANES - 1)
        if source == "%tid.x" and self._threads:
            # A warp's first thread has a number that all of its lanes share.
            terms: frozenset[tuple[Hashable, int]] = frozenset({(_LANE, 1), ((_UNIFORM, "warp"), 1)})
            return _Narrow(Sum(terms, 0), _below(self._threads - 1))
        return self._narrow(source, index, depth + 1)

    # What is the same in all lanes

    def _is_uniform(self, term: Hashable) -> bool:
        """Whether a term is the same in all lanes of a warp."""
        if not isinstance(term, tuple):
            return False
        return term[0] == _UNIFORM or (term[0] == "after" and self._is_same(term[2]))

    def _is_same(self, name: str) -> bool:
        """Whether a register that one instruction writes has the same value in all threads of a block that have come to
        it."""
        if name not in self._same:
            # Until it is known: a register that is computed from itself is not.
            self._same[name] = False
            writes = self.writes.get(name, ())
            if len(writes) == 1:
                self._same[name] = self._writes_same(writes[0])
        return self._same[name]

    def _writes_same(self, index: int) -> bool:
        """Whether an instruction gives all threads of a block the same value."""
        instruction = self._body.statement(index).instruction
        if instruction is None or self._body.is_guarded(index) or len(instruction.written) != 1:
            return False
        sources = instruction.operands[1:]
        if instruction.opcode.startswith("ld.param."):
            # One that the body declares is of a call.
            address = read_address(sources[0])
            return (
                address is not None and known_integer(address.offset) is not None
                and self._body.declaration(address.base, self._body.statement(index).start) is None
            )  # fmt: skip
        word, *parts = instruction.opcode.split(".")
        # Carries are what another instruction has left.
        return word in _SAME and "cc" not in parts and all(self._is_same_operand(one, index) for one in sources)

    def _is_same_operand(self, operand: str, index: int) -> bool:
        """Whether what an instruction reads is the same in all threads of a block."""
        if known_integer(operand) is not None or operand in _OF_BLOCK:
            return True
        return self._is_register(operand, index, "") and self._is_same(operand)

    def _is_register(self, name: str, index: int, bits: str) -> bool:
        """Whether an operand is a register of the body with so many bits, "" for any, and its name means no other."""
        declaration = self._body.declaration(name, self._body.statement(index).start)
        return (
            declaration is not None and declaration.space == "reg" and not declaration.is_vector
            and declaration.type.endswith(bits) and self._is_one(name, declaration)
        )  # fmt: skip


def _below(most: int) -> int:
    """Return the bits that may be set in numbers up to one."""
    return (1 << most.bit_length()) - 1


def _multiplied(value: Sum, factor: int) -> Sum:
    """Return a sum times a number."""
    terms = frozenset((term, times * factor) for term, times in value.terms if factor)
    return Sum(terms, value.constant * factor % (1 << 64))


def _scaled(value: Sum | None, factor: int) -> Sum | None:
    """Return a sum times a number; None where there is no sum."""
    return None if value is None else _multiplied(value, factor)


def _together(value: Sum, other: Sum | None) -> Sum | None:
    """Return the sum of two; None where there is only one."""
    if other is None:
        return None
    terms: dict[Hashable, int] = dict(value.terms)
    for term, times in other.terms:
        terms[term] = terms.get(term, 0) + times
    kept: Mapping[Hashable, int] = {term: times for term, times in terms.items() if times}
    return Sum(frozenset(kept.items()), (value.constant + other.constant) % (1 << 64))


def _added_up(value: _Narrow, other: _Narrow) -> _Narrow | None:
    """Return the sum of two values of 32 bits that does not carry out of these."""
    found = _together(value.sum, other.sum)
    bits = value.bits | other.bits if not value.bits & other.bits else _below(value.bits + other.bits)
    return None if found is None else _Narrow(found, bits)


def _masked(value: _Narrow, mask: _Narrow) -> _Narrow | int:
    """Return a value of which some bits are kept; or only which bits may be set."""
    bits = value.bits & mask.bits
    if mask.sum.terms:
        return bits
    kept_bits = mask.sum.constant
    if not value.bits & ~kept_bits:
        return value
    # Of a multiple of a thread's number, a power of two, at least all bits that are the lane's.
    terms = dict(value.sum.terms)
    factor = terms.get(_LANE, 0)
    multiple = kept_bits // factor if factor > 0 else 0
    is_power = factor & (factor - 1) == 0 and multiple & (multiple + 1) == 0 and multiple >= WARP_LANES - 1
    if is_power and not value.sum.constant and terms == {_LANE: factor, (_UNIFORM, "warp"): factor}:
        kept: frozenset[tuple[Hashable, int]] = frozenset({(_LANE, factor), ((_UNIFORM, "warp", multiple), factor)})
        return _Narrow(Sum(kept, 0), bits)
    return bits
