"""What registers of a body hold, as far as its text says: which pointers, which sums, which of a few constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.isa.instruction import REGISTER, Instruction
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.body import Body, Declaration

# By opcode, the operands that may be the pointer that the result is computed from; products and the like are offsets.
_FOLLOWED = {
    "add": slice(1, 3), "sub": slice(1, 2), "mov": slice(1, 2), "cvta": slice(1, 2), "selp": slice(1, 3),
    "mad": slice(3, 4),
}  # fmt: skip
_MOST_REGISTERS = 200
"""Further ones are not followed."""
_MOST_TERMS, _MOST_DEPTH = 8, 40
"""A sum with more terms, or of more additions in a row, is not followed further."""
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|[1-9]\d{0,18}|0)U?", re.ASCII)
_SIGNS = {
    "add.s64": 1, "add.u64": 1, "sub.s64": -1, "sub.u64": -1, "mov.b64": 0, "mov.s64": 0, "mov.u64": 0,
}  # fmt: skip
_LOADS = frozenset({"atom", "ld", "ldu", "shfl", "tex", "tld4"})
"""Opcodes, by their first part, whose results may be anything in each lane, if the lanes read different places."""
_SAME_FOR_ALL = ("ld.param", "ld.const")
_LANES = ("%tid", "%laneid", "%clock", "%globaltimer")


class Pointers:
    """The pointers of one body: a guess that follows registers by their names, whatever the flow of control and the
    scopes. Equal names in different scopes are taken as one register."""

    def __init__(self, body: Body) -> None:
        """Prepare to find which pointers the addresses in a function body are computed from."""
        self._body = body

    def of(self, instruction: Instruction) -> frozenset[str]:
        """Return which pointers an instruction's addresses are computed from, to tell accesses to different arrays
        apart.

        A pointer is named by the parameter that it is loaded from, or by the index of another load's statement, as
        text.
        """
        roots: set[str] = set()
        waiting = {
            name for operand in instruction.operands if operand.startswith("[") for name in REGISTER.findall(operand)
        }
        seen: set[str] = set()
        while waiting and len(seen) < _MOST_REGISTERS:
            name = waiting.pop()
            seen.add(name)
            for source in self._sources.get(name, ()):
                if source.startswith("%"):
                    waiting.add(source)
                else:
                    roots.add(source)
            waiting -= seen
        return frozenset(roots)

    @lazy
    def _sources(self) -> dict[str, set[str]]:
        """By register of 64 bits, what its value is computed from: registers, which begin with "%", and what loads
        read."""
        body = self._body
        sources: dict[str, set[str]] = {}
        chosen = {
            mnemonic for mnemonic in set(body.mnemonics)
            if mnemonic is not None and (
                (mnemonic.word in {*_FOLLOWED, "ld"} and mnemonic.text.endswith("64"))
                or mnemonic.text.startswith("mad.wide.")
            )
        }  # fmt: skip
        for index in body.where(chosen):
            instruction = body.statement(index).instruction
            if instruction is None:
                continue
            found = sources.setdefault(instruction.operands[0].strip("{} \t"), set())
            word = instruction.mnemonic.word
            if word == "ld":
                is_parameter = instruction.opcode.startswith("ld.param")
                found.add(instruction.operands[1] if is_parameter else str(index))
            else:
                operands = instruction.operands[_FOLLOWED[word]]
                found.update(operand for operand in operands if operand.startswith("%"))
        return sources


class Sum(NamedTuple):
    """A value modulo 2 to the 64th: a constant, and what the terms stand for, each times its factor."""

    terms: frozenset[tuple[Hashable, int]]
    constant: int


class Addresses:
    """What the addresses in one body are, as far as additions show it.

    A term is what a register had after an instruction, or where a basic block began, when these were last executed.
    Two sums at places of one basic block with the same terms thus differ by the same amount in all lanes that come to
    both, each time.
    """

    def __init__(self, body: Body) -> None:
        """Prepare to express the addresses in a function body as sums, to compare them."""
        self._body = body
        self._known: dict[tuple[str, int], Sum] = {}
        # By register, what `_reaches` gave.
        self._scattered: dict[str, bool] = {}
        self._by_lane: dict[str, bool] = {}

    def of(self, name: str, index: int) -> Sum | None:
        """The value of a register that a statement reads, as a sum of terms and a constant, so that addresses can be
        compared.

        None if it is no 64-bit register of the body, or its name has several meanings there. index: of the statement.
        """
        declaration = self._body.declaration(name, self._body.statement(index).start)
        return self._at(name, index, 0) if declaration is not None and self._is_one(name, declaration) else None

    def is_scattered(self, instruction: Instruction) -> bool:
        """Whether an instruction's addresses come from values that each lane loads for itself, as indices: a guess that
        follows registers by their names."""
        return any(
            self._is_scattered(name)
            for operand in instruction.operands if operand.startswith("[") for name in REGISTER.findall(operand)
        )  # fmt: skip

    @lazy
    def _graph(self) -> FlowGraph:
        """The flow graph of the body."""
        return FlowGraph(self._body)

    @lazy
    def writes(self) -> dict[str, list[int]]:
        """By register, the indices of the instructions that write it, in text order."""
        body = self._body
        writes: dict[str, list[int]] = {}
        rows = [(decoded, decoded.row) for decoded in body.opcodes if decoded.word != "call"]
        none = {decoded for decoded, row in rows if row is not None and row.destinations == 0}
        single = {decoded for decoded, row in rows if row is not None and row.destinations == 1}
        for index, decoded in enumerate(body.mnemonics):
            if decoded is None or decoded in none:
                continue
            # Most instructions write one register, and need not be taken apart for its name.
            name = body.first_word(index) if decoded in single else ""
            if name:
                writes.setdefault(name, []).append(index)
                continue
            instruction = body.statement(index).instruction
            for name in instruction.written if instruction is not None else ():
                writes.setdefault(name, []).append(index)
        return writes

    def _is_one(self, name: str, declaration: Declaration) -> bool:
        """Whether all instructions that write a register of that name mean the declared one, not another of another
        scope."""
        body = self._body
        return all(
            body.declaration(name, body.statement(index).start) == declaration for index in self.writes.get(name, ())
        )

    def _at(self, name: str, index: int, depth: int) -> Sum:
        """Return the value that a register has when a statement reads it, as a sum of terms and a constant.

        index: of the statement. depth: how many additions were followed to here, which is limited.
        """
        block, writes = self._graph.block(index), self.writes.get(name, [])
        begin = self._graph.starts[block]
        within = [write for write in writes if begin <= write < index]
        if within:
            return self._after(name, within[-1], depth)
        if len(writes) == 1 and self._dominates(self._graph.block(writes[0]), block):
            return self._after(name, writes[0], depth)
        return Sum(frozenset({(("begins", block, name), 1)}), 0)

    def _after(self, name: str, index: int, depth: int) -> Sum:
        """Return the value that a statement has written to a register, as a sum of terms and a constant.

        If nothing is known of it, it is one term of its own. index: of the statement. depth: how many additions were
        followed to here.
        """
        if (name, index) not in self._known:
            found = self._added(index, depth) if depth < _MOST_DEPTH else None
            self._known[name, index] = found or Sum(frozenset({(("after", index, name), 1)}), 0)
        return self._known[name, index]

    def _added(self, index: int, depth: int) -> Sum | None:
        """Return the value that a statement writes as a sum of terms and a constant; None if it is no addition or move
        to follow.

        Those under a predicate are none. depth: how many additions were followed to here.
        """
        instruction = self._body.statement(index).instruction
        sign = _SIGNS.get(instruction.opcode) if instruction is not None else None
        if instruction is None or sign is None or self._body.is_guarded(index):
            return None
        terms: dict[Hashable, int] = {}
        constant = 0
        for operand, factor in zip(instruction.operands[1:], (1, sign), strict=False):
            if _INTEGER.fullmatch(operand):
                constant += factor * int(operand.rstrip("U"), 0)
                continue
            declaration = self._body.declaration(operand, self._body.statement(index).start)
            if declaration is None or declaration.space != "reg" or not self._is_one(operand, declaration):
                return None
            part = self._at(operand, index, depth + 1)
            constant += factor * part.constant
            for term, times in part.terms:
                terms[term] = terms.get(term, 0) + factor * times
        found = frozenset((term, times) for term, times in terms.items() if times)
        return Sum(found, constant % (1 << 64)) if len(found) <= _MOST_TERMS else None

    def _dominates(self, block: int, other: int) -> bool:
        """Whether all threads that come to the block ``other`` have been in a different block, ``block``, before."""
        dominators = self._graph.dominators
        while other in dominators and dominators[other] != other:
            other = dominators[other]
            if other == block:
                return True
        return False

    def _is_scattered(self, name: str) -> bool:
        """Whether a register's value comes from a load that each lane may make from another place, such as an index
        array."""
        return self._reaches(name, self._scattered, self._is_loaded_by_lane, lambda read: not _is_load(read))

    def _is_loaded_by_lane(self, read: Instruction) -> bool:
        """Whether an instruction is a load whose address depends on the lane, so that the lanes may read different
        places."""
        return _is_load(read) and any(
            self._reaches(source, self._by_lane, _reads_lane, lambda _: True) for source in _registers_read(read)
        )

    def _reaches(
        self, name: str, known: dict[str, bool], is_found: Callable[[Instruction], bool],
        is_followed: Callable[[Instruction], bool],
    ) -> bool:  # fmt: skip
        """Return whether a register's value comes, directly or through others, from an instruction of some kind.

        is_found: says whether an instruction is of the kind. is_followed: says whether what it reads is followed, too.
        known: the answers so far, by register, which this adds to.
        """
        path, waiting = set[str](), [name]
        while waiting:
            top = waiting[-1]
            if top in known:
                waiting.pop()
                continue
            reads = [self._body.statement(index).instruction for index in self.writes.get(top, ())]
            sources = {
                source for read in reads if read is not None and is_followed(read) for source in _registers_read(read)
            }  # fmt: skip
            # A register that is computed from itself adds nothing.
            open_ones = sources - known.keys() - path - {top}
            if open_ones and top not in path:
                path.add(top)
                waiting.extend(open_ones)
                continue
            path.discard(top)
            waiting.pop()
            known[top] = any(read is not None and is_found(read) for read in reads) or any(
                known.get(source, False) for source in sources
            )
        return known[name]


def _is_load(instruction: Instruction) -> bool:
    """Return whether an instruction is a load from memory, which may give each lane another value."""
    return instruction.mnemonic.word in _LOADS and not instruction.opcode.startswith(_SAME_FOR_ALL)


def _reads_lane(instruction: Instruction) -> bool:
    """Return whether an instruction reads a special register whose value differs from lane to lane, such as ``%tid``.
    """
    return any(name.startswith(_LANES) for name in _registers_read(instruction))


def _registers_read(instruction: Instruction) -> Iterator[str]:
    """Yield the registers that an instruction reads."""
    return (name for operand in instruction.sources for name in REGISTER.findall(operand))


MOST_VALUES = 2
"""Of more values than these nothing is said."""
# By opcode, which operands are the values that the result may have.
_VALUE_OPERANDS = {"mov": slice(1, 2), "selp": slice(1, 3)}


class _Register(NamedTuple):
    """A register: its declaration may be one of a numbered series."""

    declaration: Declaration
    name: str


class _Sources(NamedTuple):
    """What is moved into a register. None among the registers is an operand that is none."""

    registers: list[_Register | None]
    numbers: list[int]


class PossibleValues:
    """The values of one body's registers. It follows registers through the whole body, whatever the flow of control: a
    register has a value that some instruction of the body gives it."""

    def __init__(self, body: Body) -> None:
        """Prepare to find which few constants a register of a function body may hold."""
        self._body = body
        # What `_sources` gave.
        self._known: dict[_Register, _Sources | None] = {}

    def of(self, operand: str, position: int) -> tuple[int, ...]:
        """Return the few constants of which an operand has one, ascending and unsigned; () where they are unknown or
        too many.

        position: of the operand in the module's text.
        """
        if _INTEGER.fullmatch(operand):
            return (int(operand.rstrip("U"), 0),)
        first = self._register(operand, position)
        values: set[int] = set()
        waiting, seen = {first}, set[_Register | None]()
        while waiting:
            register = waiting.pop()
            seen.add(register)
            found = self._sources(register) if register is not None else None
            if found is None:
                return ()
            values.update(found.numbers)
            if len(values) > MOST_VALUES:
                return ()
            waiting.update(set(found.registers) - seen)
        return tuple(sorted(values))

    def _register(self, name: str, position: int) -> _Register | None:
        """The register that a name means at a position; None if it is no register of the body."""
        declaration = self._body.declaration(name, position)
        return _Register(declaration, name) if declaration is not None else None

    def _sources(self, register: _Register) -> _Sources | None:
        """What is moved into a register, from which its value follows; None if it may be anything else. Remembered."""
        if register not in self._known:
            self._known[register] = self._find_sources(register)
        return self._known[register]

    def _find_sources(self, register: _Register) -> _Sources | None:
        """Return what all instructions that write a register move into it: numbers, and other registers.

        None if its value may be anything else, such as a result of arithmetic.
        """
        body, (declaration, name) = self._body, register
        width = TYPE_BYTES.get(declaration.type, 0)
        # A function's parameter has its value from the caller; such are declared where the body begins.
        if declaration.space != "reg" or declaration.start == body.start or not width:
            return None
        sources = _Sources([], [])
        for start, _ in body.occurrences(name):
            if body.declaration(name, start) != declaration:
                continue
            instruction = body.statement(body.index_at(start)).instruction
            if instruction is None or name not in instruction.written:
                continue
            # Of another width it would be a conversion, or the operand a pair of registers.
            own_width = TYPE_BYTES.get(instruction.type or "", 0)
            which = _VALUE_OPERANDS.get(instruction.mnemonic.word)
            if which is None or own_width != width or instruction.operands[0] != name:
                return None
            for operand in instruction.operands[which]:
                if _INTEGER.fullmatch(operand):
                    sources.numbers.append(int(operand.rstrip("U"), 0) % (1 << 8 * width))
                else:
                    sources.registers.append(self._register(operand, start))
        # One that nothing writes has no value.
        return sources if sources.registers or sources.numbers else None
