"""Probes at accesses of memory, for kernels that are machine code: which accesses they are at, and what they add there.

A probe names instructions of PTX; machine code has others. One probe is at an instruction of machine code if it is at
every one that ``ptxas`` may have made it of. Only sums of constants can be put there: numbers, and the bytes of the
access. Probes keep them in registers and save them where a thread ends; or they save constants at accesses to a map
that adds them up, which is the same, and is done likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level, Per
from neutrino.errors import MachineCodeError
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.statements import Load, Operation, Operator
from neutrino.ir.types import Type
from neutrino.maps.sum import Sum
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Save
from neutrino.probing.model import Lanes, Pattern, Subject
from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form, not_displaced
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, Field
from neutrino.sass.twin.accesses import Counted
from neutrino.sass.twin.probed import Additions

_Opcode = tuple[str, ...]
_ORIGINS: dict[str, tuple[_Opcode, ...]] = {
    "LDG": (("ld", "global"), ("ldu", "global"), ("wmma", "load", "global")),
    "LD": (("ld", "generic"), ("ldu", "generic"), ("wmma", "load", "generic")),
    "STG": (("st", "global"), ("wmma", "store", "global")),
    "ST": (("st", "generic"), ("wmma", "store", "generic")),
    "ATOMG": (("atom", "global"), ("red", "global")), "REDG": (("atom", "global"), ("red", "global")),
    "RED": (("atom", "global"), ("red", "global")), "ATOM": (("atom", "generic"), ("red", "generic")),
    "LDGSTS": (("cp", "async", "ca"), ("cp", "async", "cg")),
}  # fmt: skip
"""First part of an instruction's name → the instructions of PTX that it is made of."""
_OF_LANES = ("LDG", "STG", "ATOMG", "LDGSTS")
_LEFT_OUT: dict[str, tuple[_Opcode, ...]] = {
    **dict.fromkeys(
        ("UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"), (("cp", "async", "bulk"), ("cp", "reduce"))
    ),
    **dict.fromkeys(("LDGMC", "REDGMC", "ATOMGMC", "STGMC"), (("multimem",),)),
    **dict.fromkeys(("TEX", "TLD", "TLD4", "TXD", "TMML"), (("tex",), ("tld4",))),
    **dict.fromkeys(("SULD", "SUST", "SUATOM", "SURED"), (("suld",), ("sust",), ("sured",))),
}  # fmt: skip
"""The same of accesses that have no code yet: first parts of the opcodes that they are made of."""
_ACCESSES = {*_ORIGINS, *_LEFT_OUT}
_SAME: Mapping[_Opcode, _Opcode] = {("ldu", "global"): ("ld", "global"), ("ldu", "generic"): ("ld", "generic")}
"""Instruction of PTX → another that is the same in machine code: the probes there are at both."""
_MATRIX = "wmma"
"""What instructions for matrices that a whole warp has begin with: each lane's part becomes accesses."""
_READS_SPECIAL, _SPECIAL, _LANE_NUMBER = frozenset({"S2R", "S2UR", "CS2R"}), Field(72, 8), 0
_KNOWN = {*(one for row in (*_ORIGINS.values(), *_LEFT_OUT.values()) for one in row), ("tensormap",)}
BYTES = "BYTES"


@dataclass(frozen=True)
class _AtAccesses:
    """What one probe adds. opcodes: of PTX that it is at. amounts: constants and ``BYTES`` by the register's name.
    refusal: why that cannot be done in machine code, "" if it can."""

    name: str
    opcodes: tuple[_Opcode, ...]
    amounts: tuple[tuple[str, int | str], ...]
    refusal: str


@dataclass(frozen=True)
class AccessSums:
    """The sums that the probes of a set keep. registers: the probes' registers that hold them. saves: what the end of a
    thread adds to maps: map, field, register's number or constant."""

    registers: tuple[Register, ...]
    saves: tuple[tuple[int, int, Register | int], ...]
    _probes: tuple[_AtAccesses, ...]

    @property
    def is_enough(self) -> bool:
        """Whether sums are all that the probes do at accesses of global memory by lanes."""
        ours = {origin for base in _OF_LANES for origin in _ORIGINS[base]}
        return not any(probe.refusal and ours.intersection(probe.opcodes) for probe in self._probes)

    def additions(self, code: Code, kernel: str) -> Additions:
        """Return what the probes add at the accesses of a kernel.

        code: all of its section. Raises MachineCodeError where a probe is at an access that cannot have its code: a
        sum without it would be wrong.
        """
        found: dict[int, Mapping[int, int]] = {}
        # By form: there are few in a kernel.
        of_forms: dict[int, Mapping[int, int]] = {}
        lane_number = reads_lane_number(code)
        for index in range(len(code)):
            form = code.form(index)
            if form is None or form.name.partition(".")[0] not in _ACCESSES:
                continue
            low = int(code.words[index, 0])
            # Never executed, as ``ptxas`` has some.
            if GUARD.get(low) == ALWAYS and NEGATED.get(low):
                continue
            place = index * INSTRUCTION_BYTES
            if id(form) not in of_forms:
                of_forms[id(form)] = self._at(form, f"{form.name} at {place:#x}", kernel, lane_number)
            if of_forms[id(form)]:
                found[place] = of_forms[id(form)]
        return found

    def probes_at(self, form: Form) -> tuple[str, ...]:
        """Return the names of the probes at an access that has their code."""
        return tuple(probe.name for probe in self._probes if _is_at(probe, form.name, form.name, "", ""))

    @property
    def counted(self) -> Counted:
        """What the checker is told of them."""
        numbers = {register.name: number for number, register in enumerate(self.registers)}
        added: dict[str, tuple[tuple[int, int | None], ...] | None] = {}
        for base in sorted(_ACCESSES):
            try:
                probes = [probe for probe in self._probes if _is_at(probe, base, base, "", "")]
            except MachineCodeError:
                added[base] = None
                continue
            rows = [
                (numbers[name], amount if isinstance(amount, int) else None)
                for probe in probes for name, amount in probe.amounts
            ]  # fmt: skip
            added[base] = None if any(probe.refusal for probe in probes) else tuple(rows)
        return Counted(added)

    def _at(self, form: Form, at: str, kernel: str, lane_number: str) -> dict[int, int]:
        """Return what the probes add at an access, by the number of the sum. at: the access, for messages. lane_number:
        of ``reads_lane_number``."""
        numbers = {register.name: number for number, register in enumerate(self.registers)}
        row: dict[int, int] = {}
        for probe in self._probes:
            if not _is_at(probe, form.name, at, kernel, lane_number):
                continue
            refusal = probe.refusal or _refusal(form)
            if refusal:
                raise MachineCodeError(kernel, f"has {at}, and the probe {probe.name} {refusal}")
            for name, amount in probe.amounts:
                added = form.memory_bytes if isinstance(amount, str) else amount
                row[numbers[name]] = row.get(numbers[name], 0) + added
        return row


def access_sums(probes: ProbeSet, name: str) -> AccessSums:
    """Return the sums of a set of probes of which some are at accesses.

    name: what to call the code in messages. Raises MachineCodeError for probes that cannot be in machine code.
    """
    registers: dict[str, Register] = {}
    saves: list[tuple[int, int, Register | int]] = []
    at_accesses = []
    for probe in probes.probes:
        is_kernel = probe.tracepoint.text == "kernel"
        if is_kernel and probe.before is not None:
            raise MachineCodeError(name, f"the probe {probe.name} runs at the entry, and others are at instructions")
        if probe.level is not Level.THREAD or probe.lanes is not Lanes.EXECUTING:
            raise MachineCodeError(name, f"the probe {probe.name} is not for each thread that executes an instruction")
        if is_kernel:
            saves += saves_of(probe, probes, name)
        else:
            at_accesses.append(_at_accesses(probe, probes, name, saves))
    if not saves:
        raise MachineCodeError(name, "no probe adds a sum to memory where a thread ends, others are at instructions")
    for _, _, value in saves:
        if isinstance(value, Register):
            registers.setdefault(value.name, value)
    kept = tuple(
        _AtAccesses(one.name, one.opcodes, tuple(row for row in one.amounts if row[0] in registers), one.refusal)
        for one in at_accesses
    )
    return AccessSums(tuple(registers.values()), tuple(saves), kept)


def saves_of(probe: Probe, probes: ProbeSet, name: str) -> list[tuple[int, int, Register | int]]:
    """Return what a probe at the kernel's end adds to maps. Raises MachineCodeError for one that does more."""
    found: list[tuple[int, int, Register | int]] = []
    for statement in probe.after.statements if probe.after is not None else ():
        if not isinstance(statement, Save) or statement.guard is not None:
            raise MachineCodeError(name, f"the probe {probe.name} does more than to save sums where a thread ends")
        entry = statement.map
        if not isinstance(entry.kind, Sum) or entry.level is not Level.THREAD or entry.per is not Per.LAUNCH:
            raise MachineCodeError(name, f"the probe {probe.name} saves to {entry.name}, which is no sum over a launch")
        for number, (field, value) in enumerate(zip(entry.fields, statement.operands, strict=True)):
            is_register = isinstance(value, Register) and not value.is_local and value.type is Type.U64
            if field.type.size != 8 or field.type.value[0] == "f" or not (is_register or isinstance(value, Constant)):
                raise MachineCodeError(name, f"the probe {probe.name} saves a sum that is not of u64, {field.name}")
            known = value if isinstance(value, Register) else value.bits if isinstance(value, Constant) else 0
            found.append((probes.maps.index(entry), number, known))
    return found


def _at_accesses(
    probe: Probe, probes: ProbeSet, name: str, saves: list[tuple[int, int, Register | int]]
) -> _AtAccesses:  # fmt: skip
    """Return what a probe at accesses adds, and note sums in saves that it keeps for a map. Raises MachineCodeError for
    one that is elsewhere."""
    opcodes = tuple(_opcode(pattern, probe, name) for pattern in probe.tracepoint.patterns)
    amounts, refusal = amounts_of(probe, probes, saves)
    return _AtAccesses(probe.name, opcodes, amounts, refusal)


def amounts_of(
    probe: Probe, probes: ProbeSet, saves: list[tuple[int, int, Register | int]]
) -> tuple[tuple[tuple[str, int | str], ...], str]:  # fmt: skip
    """Return what a probe adds to sums wherever it is, constants and ``BYTES`` by the register's name, and why machine
    code cannot do that, "" if it can; note sums in saves that it keeps for a map."""
    if probe.before is None or probe.after is not None:
        return (), "runs after it, or not at all"
    constants: dict[str, int | str] = {}
    amounts: list[tuple[str, int | str]] = []
    for statement in probe.before.statements:
        if isinstance(statement, Load) and statement.operand == SiteOperand(BYTES) and statement.destination.is_local:
            constants[statement.destination.name] = BYTES
        elif isinstance(statement, Operation) and statement.operator is Operator.ADD and _is_sum(statement.destination):
            target, *rest = sorted(statement.sources, key=lambda one: one != statement.destination)
            added = _amount(rest[0], constants) if target == statement.destination else None
            if added is None:
                return (), f"adds more than constants to {statement.destination.name}"
            amounts.append((statement.destination.name, added))
        elif isinstance(statement, Save) and (kept := _kept_for(statement, probes, constants)) is not None:
            for at, register, added in kept:
                if not any(register == known for *_, known in saves):
                    saves.append((*at, register))
                amounts.append((register.name, added))
        else:
            return (), "does more there than to add constants to sums of u64"
    return tuple(amounts), ""


def _kept_for(
    save: Save, probes: ProbeSet, constants: Mapping[str, int | str]
) -> list[tuple[tuple[int, int], Register, int | str]] | None:  # fmt: skip
    """Return for each field of a save of constants to a map of sums the map's index and the field's, a register that
    stands for the field, and what is added; None for another save."""
    entry = save.map
    is_plain = save.guard is None and isinstance(entry.kind, Sum) and entry.level is Level.THREAD
    if not is_plain or entry.per is not Per.LAUNCH or entry.by_site:
        return None
    found: list[tuple[tuple[int, int], Register, int | str]] = []
    index = probes.maps.index(entry)
    for number, (field, value) in enumerate(zip(entry.fields, save.operands, strict=True)):
        amount = BYTES if value == SiteOperand(BYTES) else _amount(value, constants)
        if field.type.size != 8 or field.type.value[0] == "f" or amount is None:
            return None
        register = Register(f"%sum_{index}_{number}", Type.U64, 0, entry.span, is_local=False)
        found.append(((index, number), register, amount))
    return found


def _is_sum(register: Register) -> bool:
    """Whether a register can hold a sum while a kernel runs."""
    return not register.is_local and register.type is Type.U64


def _amount(operand: object, constants: Mapping[str, int | str]) -> int | str | None:
    """Return a constant operand, ``BYTES`` included; None for another."""
    if isinstance(operand, Constant):
        return operand.bits
    return constants.get(operand.name) if isinstance(operand, Register) else None


def _opcode(pattern: Pattern, probe: Probe, name: str) -> _Opcode:
    """Return the opcode of PTX that a pattern names. Raises MachineCodeError where machine code does not tell."""
    plain = Pattern(pattern.subject, pattern.opcode, without=pattern.without)
    parts = pattern.opcode
    is_known = parts in _KNOWN or any(parts[: len(one)] == one for row in _LEFT_OUT.values() for one in row)
    if pattern.subject is not Subject.OPCODE or pattern != plain or not is_known:
        text = probe.tracepoint.text
        raise MachineCodeError(name, f"the probe {probe.name} is at {text}, of which machine code does not tell")
    return parts


def _is_at(probe: _AtAccesses, form: str, at: str, kernel: str, lane_number: str) -> bool:
    """Whether a probe is at an instruction. Raises MachineCodeError where it is at some of what that may be made of.

    form: the instruction's name. lane_number: of ``reads_lane_number``.
    """
    base = form.partition(".")[0]
    if base in _LEFT_OUT:
        return any(opcode[: len(one)] == one for opcode in probe.opcodes for one in _LEFT_OUT[base])
    origins: Sequence[_Opcode] = _ORIGINS.get(base, ())
    there = [origin for origin in origins if origin in probe.opcodes]
    others = [
        origin for origin in origins
        if origin not in there and _SAME.get(origin) not in there and (origin[0] != _MATRIX or lane_number)
    ]  # fmt: skip
    if there and others:
        names = ", ".join(".".join(origin) for origin in others)
        because = f" and {lane_number}" if all(origin[0] == _MATRIX for origin in others) else ""
        raise MachineCodeError(kernel, f"has {at}{because}, which may be {names}, where the probe {probe.name} is not")
    return bool(there)


def reads_lane_number(code: Code) -> str:
    """Return the first instruction that reads the lane's number in its warp, for messages, "" without one: code without
    it has no instructions for matrices, which all lanes of a warp have together. code: all of the section."""
    for index in range(len(code)):
        form = code.form(index)
        if form is None or form.name.partition(".")[0] not in _READS_SPECIAL:
            continue
        word = int(code.words[index, 0]) | int(code.words[index, 1]) << 64
        if _SPECIAL.get(word) == _LANE_NUMBER:
            return f"{form.name} of the lane's number at {index * INSTRUCTION_BYTES:#x}"
    return ""


def _refusal(form: Form) -> str:
    """Why an access that a probe is at cannot have its code, as the end of a sentence; "" if it can."""
    base = form.name.partition(".")[0]
    if base in _LEFT_OUT:
        return "has no code for such accesses in machine code yet"
    reason = not_displaced(form)
    if reason is not None:
        return f"would have to move it, but {reason}"
    if "ZFILL" in form.name.split("."):
        return "would need the number of bytes, which its address says"
    return "" if form.memory_bytes else "would need the number of bytes, which is not known"
