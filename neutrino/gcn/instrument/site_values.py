"""Values of the instruction at a site: where they are, and the code by which a probe gets them.

``ADDR`` is a u64. Of an access to LDS it is the offset in LDS, of one to scratch the offset in the lane's own; of two
addresses (``ds_read2_b32``) it is the first. What an instruction does not have, and what cannot be told, is refused
with a message that names both, before anything is written (``problem``).

The code of a snippet begins with ``prepare``, which computes all that it reads: later EXEC may be another, and VCC the
snippet's. What the instruction overwrites and a snippet behind it reads, ``keep`` computes in front.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping

from neutrino.gcn.analysis.branch_decisions import Decision
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.instrument.access_bytes import AMOUNTS, amount_of
from neutrino.gcn.instrument.apertures import find_global
from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.site_operands import NoValueError, SiteOperandTexts
from neutrino.gcn.instrument.site_reading import Reader, add_lanes, sum_scalar
from neutrino.gcn.instrument.site_threads import block, lanes, leader, of_leader, predicate, thread
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.memory import ACROSS_LANES, Access, Kind, Space, access_of
from neutrino.gcn.isa.registers import EXEC, VCC, UnknownInstructionError, registers_of
from neutrino.gcn.snippets.opcodes import WHOLE, Part
from neutrino.ir.operands import Constant, Register, SiteOperand, Special
from neutrino.ir.types import Type

_MESSAGES = ("s_memtime", "s_memrealtime", "s_sendmsg_rtn_")
_OF_LANES = frozenset({"LANES", "LEADER", "ELECTED", "PRED"})
_OF_PLACE = frozenset({"THREAD", "BLOCK"})
_VECTOR_COUNTER = frozenset({Space.GLOBAL, Space.BUFFER, Space.LOCAL})
_MOST_COUNTED = 63


class SiteValues:
    """The values of one instruction.

    function, instruction: where it is. placement: of the function. site: the number of the site. is_scratch:
    whether it accesses scratch memory as a buffer (``analysis.scratch_buffers``). part: of the instruction, whose
    values they are. decision: of a branch, in front of which the snippet stands; None if it stands at the instruction.
    """

    def __init__(
        self,
        function: Function,
        instruction: Instruction,
        machine: Machine,
        *,
        placement: Placement,
        site: int = 0,
        is_scratch: bool = False,
        part: Part = WHOLE,
        decision: Decision | None = None,
    ) -> None:
        """Set up the values. Parameters: see the class."""
        self._function = function
        self._instruction = instruction
        self._machine = machine
        self._placement = placement
        self._site = site
        self._is_scratch = is_scratch
        self.part = part
        self._element = part.element
        self._decision = decision
        self._texts = SiteOperandTexts(instruction, machine.generation, part)

    # What there is

    def problem(self, operand: SiteOperand, *, after: bool) -> str:
        """Return why the probed instruction does not have a value that a probe reads on one side of it, "" if it does.

        after: whether the probe runs after the instruction.
        """
        code = Code(self._machine, range(64), range(64))
        try:
            if after and self._is_overwritten(operand):
                self._check_unchanged(operand, after=False)
            else:
                self._check_unchanged(operand, after=after)
            self._value(operand, _Anywhere(code), Reader(code), after=after)
        except (NoValueError, UnknownInstructionError) as error:
            return str(error)
        return ""

    def kept(self, operands: Collection[SiteOperand]) -> list[SiteOperand]:
        """Return which values a snippet after the instruction can only have from before it: ``keep`` computes these."""
        return [operand for operand in operands if self._is_overwritten(operand)]

    @property
    def is_of_wave(self) -> bool:
        """Whether the instruction accesses memory once for all lanes: BYTES are those of the lowest lane."""
        found = amount_of("BYTES", self._instruction, self._machine.wave)
        return found is not None and not found[1]

    # Code

    def keep(self, operands: Collection[SiteOperand], surroundings: Surroundings) -> dict[SiteOperand, Value]:
        """Write code in front of the instruction that computes values for the snippet behind it.

        The registers are the snippets', and stay in use in between. Raises NoValueError, NoRegistersError.
        """
        code = surroundings.code
        reader = self._reader(operands, code, after=False)
        found = {}
        for operand in operands:
            found[operand] = code_own(code, self._value(operand, surroundings, reader, after=False))
        return found

    def prepare(
        self,
        operands: Collection[SiteOperand],
        surroundings: Surroundings,
        *,
        after: bool,
        kept: Mapping[SiteOperand, Value] | None = None,
    ) -> dict[SiteOperand, Value]:
        """Write the beginning of a snippet's code, and return the values that it reads.

        after: whether the snippet is behind the instruction. kept: what ``keep`` returned. Registers of the result may
        be the program's, and are read alone. Raises NoValueError, NoRegistersError.
        """
        found = dict(kept or {})
        # SCC and VCC, which may decide a branch, are as they were until others are computed.
        wanted = sorted((operand for operand in operands if operand not in found), key=lambda one: one.name != "PRED")
        reader = self._reader(wanted, surroundings.code, after=after)
        for operand in wanted:
            found[operand] = self._value(operand, surroundings, reader, after=after)
        return found

    def find_global(self, destination: Mask, code: Code) -> bool:
        """Write code that finds the lanes whose ADDR is a generic address in global memory, without ADDR itself, which
        takes VGPRs; return whether that is possible for the instruction. In front of it alone."""
        if not self.finds_global:
            return False
        parts = self._texts.parts
        find_global(code, destination, Reader(code).vector_pair(parts.address), parts.immediate)
        return True

    @property
    def finds_global(self) -> bool:
        """Whether ``find_global`` is possible for the instruction."""
        access = self._texts.access
        return (
            access is not None and access.space is Space.GENERIC and self._texts.parts.base in ("", "off", "null")
        )

    # Where operands are changed

    def _reader(self, operands: Collection[SiteOperand], code: Code, *, after: bool) -> Reader:
        """Return what reads the instruction's registers, with a copy of VCC where some operand is in it."""
        reader = Reader(code)
        if any(self._registers(operand) & VCC for operand in operands):
            reader.copy_vcc()
        return reader

    def _registers(self, operand: SiteOperand) -> int:
        """Return the registers that a value is in, or is computed from, as a set of ``isa.registers``."""
        name = operand.name
        if name in _OF_LANES:
            return EXEC
        if name == "OUT":
            return registers_of(self._texts.result().text)
        if name == "ADDR" or (name == "IN1" and self._texts.access is not None):
            parts = self._texts.parts
            return registers_of(parts.address) | registers_of(parts.base) | registers_of(parts.offset)
        if name.startswith("IN"):
            words = self._texts.source(_number(name))
            return 0 if words is None else registers_of(words.text)
        return 0

    def _is_overwritten(self, operand: SiteOperand) -> bool:
        """Return whether the instruction overwrites an input that a snippet after it reads."""
        if operand.name != "ADDR" and not operand.name.startswith("IN"):
            return False
        try:
            registers = self._registers(operand)
            return any(registers & self._writes(row) for row in self._between(after=True))
        except (NoValueError, UnknownInstructionError):
            return False

    def _check_unchanged(self, operand: SiteOperand, *, after: bool) -> None:
        """Raise NoValueError if instructions between the snippet and the site's change a value. Snippets do not stand
        beside their instruction where nothing may go."""
        if operand.name in _OF_LANES | _OF_PLACE or (operand.name == "OUT" and not after):
            return
        registers = self._registers(operand)
        for row in self._between(after=after):
            if operand.name == "OUT" and (row is self._instruction or self._is_other_half(row)):
                continue
            if registers & self._writes(row):
                raise self._texts.lacks(operand.text, f"{row.mnemonic} changes it where no code may go")

    def _is_other_half(self, row: Instruction) -> bool:
        """Return whether both instructions load halves of registers, different ones."""
        one, other = self._texts.access, access_of(row)
        if one is None or other is None or not (one.keeps_half and other.keeps_half):
            return False
        return ("d16_hi" in row.mnemonic) != ("d16_hi" in self._instruction.mnemonic)

    def _between(self, *, after: bool) -> list[Instruction]:
        """Return the instructions between a snippet and the site's: in front of it, or from it on up to the snippet."""
        offset = self._instruction.offset
        begin = offset if after else self._placement.before(offset)
        end = self._placement.after(offset) if after else offset
        rows = self._function.instructions
        first = bisect_left(rows.offsets, begin)
        return list(rows[first : bisect_left(rows.offsets, end, first)])

    def _writes(self, row: Instruction) -> int:
        """Return the registers that an instruction writes, as a set of ``isa.registers``."""
        return effects(row, self._machine.generation).writes

    # Values

    def _value(self, operand: SiteOperand, surroundings: Surroundings, reader: Reader, *, after: bool) -> Value:
        """Return where a value of the probed instruction is, and append the code that computes it. Raises NoValueError.
        """
        name, element = operand.name, _without_bits(operand.element)
        code = surroundings.code
        if element is not None and ((name != "OUT" and not name.startswith("IN")) or self._element is not None):
            raise self._texts.lacks(operand.text)
        if self._element is not None and (name == "OUT" or name.startswith("IN")):
            element = str(self._element)
        if name == "OUT":
            if not after:
                raise self._texts.lacks(name, "it does not exist before the instruction")
            words = self._texts.result()
            code.emit(*self._wait())
            return reader.read(words, element, self._texts.lacks(operand.text))
        if name == "ADDR":
            return self._address(code, reader)
        if name in AMOUNTS:
            found = amount_of(name, self._instruction, self._machine.wave)
            if found is None:
                raise self._texts.lacks(name)
            size, is_of_lanes = found
            return Constant(Type.U64, size) if is_of_lanes else of_leader(code, size)
        if name == "SITE":
            return Constant(Type.U32, self._site)
        if name == "PRED":
            return predicate(code, self._decision)
        if name == "LANES":
            return lanes(code)
        if name in {"LEADER", "ELECTED"}:
            return leader(code)
        if name == "THREAD":
            return thread(surroundings)
        if name == "BLOCK":
            return block(surroundings)
        if name.startswith("IN") and name[2:].isdecimal():
            input_words = self._texts.source(_number(name))
            if input_words is None:
                if element not in (None, "x", "0"):
                    raise self._texts.lacks(operand.text)
                return self._address(code, reader)
            return reader.read(input_words, element, self._texts.lacks(operand.text))
        raise self._texts.lacks(operand.text, "AMD's GPUs have no such value yet")

    def _wait(self) -> list[str]:
        """Return the instructions that wait for the probed instruction's result.

        Results of vector memory come in order, so that later instructions of its clause may be under way still; those
        of scalar memory do not.
        """
        machine, access = self._machine, self._texts.access
        mnemonic = self._instruction.mnemonic
        if mnemonic in ACROSS_LANES:
            return [machine.wait_shared]
        if mnemonic.startswith(_MESSAGES):
            return [machine.wait_scalar]
        if access is None:
            return []
        if access.space is Space.SCALAR:
            return [machine.wait_scalar]
        if access.space is Space.SHARED:
            return [machine.wait_shared]
        if access.space is Space.GENERIC:
            return [*machine.wait_vector, machine.wait_shared]
        later = self._between(after=True)[1:]
        others = [access_of(row) for row in later]
        if not all(each is not None and each.space in _VECTOR_COUNTER and each.kind is Kind.LOAD for each in others):
            return list(machine.wait_vector)
        # What loads the other half of the register has come, too, where it is read.
        halves = [place for place, row in enumerate(later, 1) if self._is_other_half(row)]
        count = min(len(later) - max(halves, default=0), _MOST_COUNTED)
        return [f"s_wait_loadcnt {count:#x}" if machine.generation == 12 else f"s_waitcnt vmcnt({count})"]

    # Addresses

    def _address(self, code: Code, reader: Reader) -> Value:
        """Append code that computes ADDR, the address that the probed instruction accesses in each lane; return where
        it is."""
        access, parts = self._texts.access, self._texts.parts
        assert access is not None
        if access.uses_m0 and access.kind is not Kind.COPY:
            raise self._texts.lacks("ADDR", "M0 has a part of it")
        if any(word in ("scale_offset", "addr64", "gds", "nv") for word in self._instruction.modifiers):
            raise self._texts.lacks("ADDR", "it is computed in a way that is not known")
        immediate = parts.immediate
        if access.space is Space.SHARED:
            if access.addresses == 2:
                immediate = self._first_of_two(access)
            return reader.lane_word(parts.address, immediate)
        if access.space is Space.LOCAL:
            return self._local(code, reader, immediate)
        if access.space is Space.SCALAR:
            if self._instruction.mnemonic.startswith("s_scratch_"):
                raise self._texts.lacks("ADDR", "it is computed in a way that is not known")
            base = self._base(reader, parts.base)
            return sum_scalar(code, base, reader.scalar_text(parts.offset), immediate)
        if access.space is Space.BUFFER:
            return self._in_buffer(code, reader, immediate)
        if parts.base in ("", "off", "null"):
            pair = reader.vector_pair(parts.address)
            return pair if not immediate else add_lanes(code, pair, immediate)
        base = sum_scalar(code, reader.pair(parts.base), "", immediate)
        return add_lanes(code, reader.vector_word(parts.address), base)

    def _first_of_two(self, access: Access) -> int:
        """Return the first offset of an access to LDS with two, in bytes."""
        name = self._instruction.mnemonic
        unit = access.size // 2 * (64 if "st64" in name or "stride64" in name else 1)
        found = [word for word in self._instruction.modifiers if word.startswith("offset0:")]
        return unit * int(found[0].partition(":")[2], 0) if found else 0

    def _local(self, code: Code, reader: Reader, immediate: int) -> Value:
        """Append code that computes an access's offset in the lane's own scratch memory; return where it is."""
        parts = self._texts.parts
        base = "" if parts.base in ("", "off", "null") else reader.scalar_text(parts.base)
        if parts.address not in ("", "off", "null"):
            if not base:
                return reader.lane_word(parts.address, immediate)
            total = sum_scalar(code, None, base, immediate)
            return reader.lane_word(parts.address, total)
        if not base:
            return Constant(Type.U64, immediate)
        return sum_scalar(code, None, base, immediate)

    def _base(self, reader: Reader, text: str) -> Scalar:
        """Return the address that an access of the scalar unit adds to."""
        if self._instruction.mnemonic.startswith("s_buffer_"):
            return reader.buffer_base(text)
        return reader.pair(text)

    def _in_buffer(self, code: Code, reader: Reader, immediate: int) -> Value:
        """Append code that computes the address of an access by a buffer's descriptor; return where it is.

        Lanes out of the buffer's bounds get what their address would be.
        """
        parts, modifiers = self._texts.parts, self._instruction.modifiers
        if "idxen" in modifiers:
            raise self._texts.lacks("ADDR", "it is an element's of a buffer of structures (idxen)")
        if self._is_scratch:
            return self._in_scratch_buffer(code, reader, immediate)
        base = sum_scalar(code, reader.buffer_base(parts.base), reader.scalar_text(parts.offset), immediate)
        if "offen" not in modifiers:
            return base
        return add_lanes(code, reader.vector_word(parts.address), base)

    def _in_scratch_buffer(self, code: Code, reader: Reader, immediate: int) -> Value:
        """Return the offset in the lane's own scratch memory: scalar offsets count the bytes of all lanes."""
        parts = self._texts.parts
        offset = reader.scalar_text(parts.offset)
        base: Scalar | int = immediate
        if offset:
            part = code.scalar()
            code.emit(f"s_lshr_b32 {part.text}, {offset}, {self._machine.wave.bit_length() - 1}")
            base = sum_scalar(code, None, part.text, immediate)
        if "offen" in self._instruction.modifiers:
            return reader.lane_word(parts.address, base)
        return Constant(Type.U64, base) if isinstance(base, int) else base



def code_own(code: Code, value: Value) -> Value:
    """Return a value in registers of the snippet, which nothing changes meanwhile."""
    if isinstance(value, Constant):
        return value
    taken = code.vectors_used if isinstance(value, Vector) else code.scalars_used
    if taken.issuperset(range(value.first, value.first + value.words)):
        return value
    if isinstance(value, Vector):
        copy: Place = code.vector(value.words)
        code.emit(*(f"v_mov_b32_e32 {copy.word(word)}, {value.word(word)}" for word in range(value.words)))
        return copy
    copy = code.mask() if isinstance(value, Mask) else code.scalar(value.words)
    code.emit(*(f"s_mov_b32 {copy.word(word)}, {value.word(word)}" for word in range(value.words)))
    return copy


def _number(name: str) -> int:
    """Return the number in a value's name: 2 of IN2."""
    return int(name[2:]) if name[2:].isdecimal() else 0


def _without_bits(element: str | None) -> str | None:
    """Return an element's name without the word that says that its type does not count."""
    if element is None:
        return None
    return element.removesuffix("bits").rstrip(".") or None


class _Anywhere:
    """A place where every value is 0, to find out what can be computed: as ``Surroundings``."""

    def __init__(self, code: Code) -> None:
        """code: takes what is written."""
        self.code = code
        self.site = 0
        self.is_exec_known = False

    def home(self, register: Register) -> Place:
        """Return a register."""
        return self.code.scalar()

    def special(self, special: Special) -> Value:
        """Return 0."""
        return Constant(special.type, 0)

    def operand(self, operand: SiteOperand) -> Value:
        """Return 0."""
        return Constant(Type.U64, 0)

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        """Return registers."""
        return self.code.scalar(words)

    def grid_blocks(self, axis: int) -> Value:
        """Return 1."""
        return Constant(Type.U32, 1)
