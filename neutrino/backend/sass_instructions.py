"""Probes that count instructions, for kernels that are machine code: which instructions they are at, and what they add.

A probe names instructions of PTX, or classes of them. It is at an instruction of machine code if it names what does the
same in PTX; where several do, it has to name all of them or none. What is counted is what the machine code executes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.backend.sass_access_sums import amounts_of, saves_of
from neutrino.errors import MachineCodeError
from neutrino.ir.operands import Register
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.model import CLASSES, Lanes, Pattern, Subject
from neutrino.ptx.isa.opcodes import find, meaning_of
from neutrino.sass.decoder import Code
from neutrino.sass.encoding import encoding
from neutrino.sass.fields import INSTRUCTION_BYTES
from neutrino.sass.twin.counting import Counts, plan_counts
from neutrino.sass.twin.executed import CountedInstructions, kind_of
from neutrino.sass.twin.probed import Places

_Opcode = tuple[str, ...]


def _each(*texts: str) -> tuple[_Opcode, ...]:
    """Return opcodes of PTX, in parts. texts: each with alternatives in its parts, ``add.u32|s32``."""
    found: list[_Opcode] = []
    for text in texts:
        rows: list[_Opcode] = [()]
        for part in text.split("."):
            rows = [(*row, one) for row in rows for one in part.split("|")]
        found += rows
    return tuple(found)


_INTEGERS = "u16|s16|u32|s32|u64|s64"
_INTEGER = _each(*(f"{name}.{_INTEGERS}" for name in ("add", "sub", "mul", "mad", "min", "max", "abs", "neg")))
_HALVES = "f16|f16x2|bf16|bf16x2"
_LOGIC = _each("and", "or", "xor", "not", "lop3")
_SHIFTS = _each("shf", "shl", "shr")
_SPACE_OF = {"G": "global", "S": "shared", "L": "local", "": "generic"}
_NAMED: Mapping[str, tuple[_Opcode, ...]] = {
    # Whole numbers.
    **dict.fromkeys((
        "IADD3", "UIADD3", "VIADD", "IMAD", "UIMAD", "LEA", "ULEA", "IABS", "IMNMX", "VIMNMX", "VIMNMX3", "VIADDMNMX",
    ), _INTEGER),
    **dict.fromkeys(("POPC", "UPOPC"), _each("popc")), **dict.fromkeys(("BREV", "UBREV"), _each("brev")),
    **dict.fromkeys(("FLO", "UFLO"), _each("clz", "bfind")), **dict.fromkeys(("BMSK", "UBMSK"), _each("bmsk")),
    "SGXT": _each("szext", "bfe"), "IDP": _each("dp4a", "dp2a"),
    **dict.fromkeys(("LOP3", "ULOP3", "PLOP3", "UPLOP3"), _LOGIC), **dict.fromkeys(("SHF", "USHF"), _SHIFTS),
    # Numbers with a point.
    "FADD": _each("add.f32", "sub.f32", "neg.f32", "abs.f32"), "FMUL": _each("mul.f32"),
    "FFMA": _each("fma.f32", "mad.f32"), "FMNMX": _each("min.f32", "max.f32"),
    "DADD": _each("add.f64", "sub.f64", "neg.f64", "abs.f64"), "DMUL": _each("mul.f64"),
    "DFMA": _each("fma.f64", "mad.f64"),
    "HADD2": _each(f"add.{_HALVES}", f"sub.{_HALVES}"), "HMUL2": _each(f"mul.{_HALVES}"),
    "HFMA2": _each(f"fma.{_HALVES}"),
    **dict.fromkeys(("HMNMX2", "VHMNMX"), _each(f"min.{_HALVES}", f"max.{_HALVES}")),
    # Comparisons, choices, moves, conversions.
    **dict.fromkeys(("ISETP", "UISETP", "FSETP", "DSETP", "HSETP2"), _each("setp")),
    **dict.fromkeys(("FSET", "HSET2"), _each("set")), "FCHK": _each("testp"),
    **dict.fromkeys(("SEL", "USEL", "FSEL"), _each("selp", "slct")),
    **dict.fromkeys((
        "MOV", "UMOV", "S2R", "S2UR", "CS2R", "R2UR", "P2R", "R2P", "UP2UR", "UR2UP", "B2R",
    ), _each("mov")),
    **dict.fromkeys(("PRMT", "UPRMT"), _each("prmt")), "MOVM": _each("movmatrix"),
    **dict.fromkeys(("F2F", "F2I", "I2F", "I2FP", "I2I", "I2IP", "F2FP", "FRND", "HADD2.F32"), _each("cvt")),
    **{f"MUFU.{name}": _each(opcode) for name, opcode in (
        ("RCP", "rcp"), ("RCP64H", "rcp"), ("RSQ", "rsqrt"), ("RSQ64H", "rsqrt"), ("SQRT", "sqrt"), ("SIN", "sin"),
        ("COS", "cos"), ("EX2", "ex2"), ("LG2", "lg2"), ("TANH", "tanh"),
    )},
    # Memory.
    **{f"LD{letter}": _each(f"ld.{space}") for letter, space in _SPACE_OF.items()},
    **{f"ST{letter}": _each(f"st.{space}") for letter, space in _SPACE_OF.items()},
    **{f"ATOM{letter}": _each(f"atom.{space}", f"red.{space}") for letter, space in _SPACE_OF.items()},
    **dict.fromkeys(("RED", "REDG"), _each("atom.global", "red.global")),
    **dict.fromkeys(("LDC", "ULDC"), _each("ld.param", "ld.const")),
    "LDSM": _each("ldmatrix.shared"), "STSM": _each("stmatrix.shared"), "STAS": _each("st.async.shared"),
    "LDGSTS": _each("cp.async.ca.shared.global", "cp.async.cg.shared.global"),
    **dict.fromkeys(("UTMALDG", "UTMASTG"), _each("cp.async.bulk.tensor.shared.global")),
    "UBLKCP": _each("cp.async.bulk.shared.global"), "UBLKRED": _each("cp.reduce.async.bulk.shared.global"),
    "LDGMC": _each("multimem.ld_reduce.global"),
    # Lanes, barriers, branches, matrices.
    "SHFL": _each("shfl"), **dict.fromkeys(("VOTE", "VOTEU"), _each("vote", "activemask")), "MATCH": _each("match"),
    "REDUX": _each("redux"), "ELECT": _each("elect"),
    "BAR.SYNC": _each("bar.sync", "barrier.sync"), "BAR.ARV": _each("bar.arrive", "barrier.arrive"),
    "BAR.RED": _each("bar.red", "barrier.red"), "WARPSYNC": _each("bar.warp.sync"),
    "UCGABAR_ARV": _each("barrier.cluster.arrive"), "UCGABAR_WAIT": _each("barrier.cluster.wait"),
    "DEPBAR": _each("cp.async.wait_group", "cp.async.wait_all"), "LDGDEPBAR": _each("cp.async.commit_group"),
    "MEMBAR": _each("membar", "fence"), "FENCE": _each("fence"),
    **dict.fromkeys(("BRA", "BRX", "BRXU"), _each("bra", "brx.idx")), "CALL": _each("call"), "RET": _each("ret"),
    "EXIT": _each("exit", "ret"),
    **dict.fromkeys(("HMMA", "IMMA"), _each("mma", "wmma.mma")),
    **dict.fromkeys(("HGMMA", "IGMMA", "QGMMA"), _each("wgmma.mma_async")),
    # What is none of these in PTX.
    **dict.fromkeys((
        "NOP", "BSSY", "BSYNC", "BREAK", "BMOV", "YIELD", "LEPC", "ENDCOLLECTIVE", "ERRBAR", "CGAERRBAR", "CCTL",
    ), ()),
    "NANOSLEEP": _each("nanosleep"), "QSPC": _each("isspacep"), "BPT": _each("trap"),
    "UTMACMDFLUSH": _each("cp.async.bulk.commit_group"), "ACQBULK": _each("griddepcontrol.wait"),
    "PREEXIT": _each("griddepcontrol.launch_dependents"), "ARRIVES": _each("cp.async.mbarrier.arrive"),
    "WARPGROUP.ARRIVE": _each("wgmma.fence"), "WARPGROUP.DEPBAR": _each("wgmma.wait_group"),
}  # fmt: skip
"""Opcode, or with its first modifier → instructions of PTX that do the same. Others no kernel may have whose
instructions are counted by what they are."""
_IN_SEVERAL = frozenset({
    "addc", "bfi", "cnot", "copysign", "div", "fns", "mad24", "madc", "mul24", "rem", "sad", "subc",
})  # fmt: skip
"""Instructions of PTX that machine code has none for: ``ptxas`` makes several of each, or others."""
_VOCABULARY: Mapping[str, frozenset[str]] = {
    first: frozenset(part for rows in _NAMED.values() for row in rows if row[0] == first for part in row[1:])
    for first in {row[0] for rows in _NAMED.values() for row in rows}
}
"""First part of an instruction of PTX → the modifiers by which machine code tells one from another."""
_TYPE = re.compile(r"(?:[us](?:8|16|32|64)|b?f16|f32|f64)(?:x2)?\*?")
COUNTED = "machine instructions"
"""What sites of such probes are called: each is all instructions of the kernel that the probe counts."""
_SPACES = frozenset({"global", "shared", "local", "param", "const", "generic"})
"""Modifiers that classes may be narrowed by: each access of memory has one."""


@dataclass(frozen=True)
class _AtInstructions:
    """What one probe adds, where. amounts: register's name, constant."""

    probe: Probe
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class InstructionSums:
    """The sums that the probes of a set keep; registers and saves as of ``AccessSums``."""

    registers: tuple[Register, ...]
    saves: tuple[tuple[int, int, Register | int], ...]
    _probes: tuple[_AtInstructions, ...]

    def counts(self, code: Code, places: Places, kernel: str) -> Counts:
        """Return what to add where in a kernel. places: what its cubin says of places. Raises MachineCodeError for a
        kernel in which something cannot be counted."""

        def weights(index: int) -> Mapping[int, int]:
            form = code.form(index)
            at = f"at {index * INSTRUCTION_BYTES:#x}"
            if form is None:
                raise MachineCodeError(kernel, f"has an instruction {at} that the table lacks")
            word = int(code.words[index, 0]) | int(code.words[index, 1]) << 64
            try:
                return self._weights(kind_of(form, word))
            except MachineCodeError as error:
                raise MachineCodeError(kernel, f"has {form.name} {at}, {error.reason}") from None

        return plan_counts(code, weights, places.functions, places.indirect, places.fixed, kernel)

    def counted(self, sm: int) -> CountedInstructions:
        """Return what the checker is told: what each kind of instruction of an architecture counts. sm: its number."""
        return _counted(self, sm)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the probes at instructions."""
        return tuple(one.probe.name for one in self._probes)

    def _weights(self, kind: str) -> Mapping[int, int]:
        return _weights(self, kind)


@functools.lru_cache(maxsize=1 << 14)
def _weights(sums: InstructionSums, kind: str) -> Mapping[int, int]:
    """Return what an instruction adds to which sum. Raises MachineCodeError where the probes do not say it."""
    numbers = {register.name: number for number, register in enumerate(sums.registers)}
    row: dict[int, int] = {}
    for one in sums._probes:
        if _is_at(one.probe, kind):
            for name, amount in one.amounts:
                row[numbers[name]] = row.get(numbers[name], 0) + amount
    return row


@functools.lru_cache(maxsize=16)
def _counted(sums: InstructionSums, sm: int) -> CountedInstructions:
    """Return ``InstructionSums.counted``."""
    added: dict[str, Mapping[int, int] | None] = {}
    names = {str(opcode.row["name"]) for opcode in encoding(sm).opcodes.values()}
    for kind in sorted(names | {kind for kind in _NAMED if kind.partition(".")[0] in names}):
        try:
            added[kind] = _weights(sums, kind)
        except MachineCodeError:
            added[kind] = None
    return CountedInstructions(added)


def instruction_sums(probes: ProbeSet, name: str) -> InstructionSums:
    """Return the sums of a set of probes of which some are at instructions, whichever these are.

    name: what to call the code in messages. Raises MachineCodeError for probes that cannot be in machine code.
    """
    registers: dict[str, Register] = {}
    saves: list[tuple[int, int, Register | int]] = []
    found: list[_AtInstructions] = []
    for probe in probes.probes:
        is_kernel = probe.tracepoint.text == "kernel"
        if is_kernel and probe.before is not None:
            raise MachineCodeError(name, f"the probe {probe.name} runs at the entry, and others are at instructions")
        if probe.level is not Level.THREAD or probe.lanes is not Lanes.EXECUTING:
            raise MachineCodeError(name, f"the probe {probe.name} is not for each thread that executes an instruction")
        if is_kernel:
            saves += saves_of(probe, probes, name)
            continue
        _check_patterns(probe, name)
        amounts, refusal = amounts_of(probe, probes, saves)
        constants = tuple((register, amount) for register, amount in amounts if isinstance(amount, int))
        if refusal or len(constants) != len(amounts):
            why = refusal or "adds the bytes of an access at what may be none"
            raise MachineCodeError(name, f"the probe {probe.name} {why}, at {probe.tracepoint.text}")
        found.append(_AtInstructions(probe, constants))
    if not saves:
        raise MachineCodeError(name, "no probe adds a sum to memory where a thread ends, others are at instructions")
    for _, _, value in saves:
        if isinstance(value, Register):
            registers.setdefault(value.name, value)
    kept = (
        _AtInstructions(one.probe, tuple(row for row in one.amounts if row[0] in registers)) for one in found
    )  # fmt: skip
    return InstructionSums(tuple(registers.values()), tuple(saves), tuple(kept))


def _origins(kind: str) -> tuple[_Opcode, ...] | None:
    """Return the instructions of PTX that do what one of machine code does; None if that is not known."""
    parts = kind.split(".")
    return _NAMED.get(".".join(parts[:2]), _NAMED.get(parts[0]))


@functools.lru_cache(maxsize=1 << 16)
def _is_at(probe: Probe, kind: str) -> bool:
    """Whether a probe is at an instruction. Raises MachineCodeError where it names some of what does the same in PTX,
    or where that is not known."""
    if any(pattern.subject is Subject.ANY and not _narrows(pattern) for pattern in probe.tracepoint.patterns):
        return True
    origins = _origins(kind)
    if origins is None:
        raise MachineCodeError("", f"of which it is not known whether the probe {probe.name} is at it")
    there = [row for row in origins if _matches(probe, row)]
    if there and len(there) < len(origins):
        others = ", ".join(sorted({".".join(row) for row in origins if row not in there}))
        raise MachineCodeError("", f"which may be {others}, where the probe {probe.name} is not")
    return bool(there)


def _matches(probe: Probe, opcode: _Opcode) -> bool:
    """Whether a probe is at an instruction of PTX."""
    row = find(opcode)
    groups = row.classes if row is not None else frozenset()
    return probe.tracepoint.matches(opcode, groups, meaning_of)


def _narrows(pattern: Pattern) -> bool:
    """Whether a pattern asks for more than its subject."""
    return bool(pattern.without or pattern.requires or pattern.excludes)


def _check_patterns(probe: Probe, name: str) -> None:
    """Raise MachineCodeError for a probe at what machine code does not tell."""
    told = [_tells(pattern) for pattern in probe.tracepoint.patterns]
    if not all(one is not False for one in told) or not any(told):
        text = probe.tracepoint.text
        raise MachineCodeError(name, f"the probe {probe.name} is at {text}, of which machine code does not tell")


def _tells(pattern: Pattern) -> bool | None:
    """Whether machine code tells which instructions a pattern is at; None for one that machine code does not have."""
    plain = Pattern(
        pattern.subject, pattern.opcode, pattern.group, without=pattern.without, requires=pattern.requires,
        excludes=pattern.excludes,
    )  # fmt: skip
    if pattern != plain or pattern.subject not in (Subject.OPCODE, Subject.CLASS, Subject.ANY):
        return False
    more = [(word,) for word in pattern.without] + [*pattern.requires, *pattern.excludes]
    if pattern.subject is not Subject.OPCODE:
        return all(len(parts) == 1 and parts[0] in {*CLASSES, *_SPACES, *_VOCABULARY} for parts in more)
    first, *modifiers = pattern.opcode
    if first in _IN_SEVERAL:
        return None
    known = _VOCABULARY.get(first)
    if known is None:
        return False
    # A word that no such instruction has is none of what is told apart: "add.f32x2", which sm_100 has.
    words = [*modifiers, *(part for parts in more for part in parts)]
    return all(word in known or (_is_type(word) and any(map(_is_type, known))) for word in words)


def _is_type(word: str) -> bool:
    """Whether a modifier is a type of numbers, or a glob of such."""
    return _TYPE.fullmatch(word) is not None
