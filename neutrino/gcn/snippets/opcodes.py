"""Which instructions of AMD's processors a tracepoint matches: by their mnemonics, by classes, by portable names.

A pattern names a mnemonic as AMD's documents write it, without what only says how it is encoded (``v_add_f32`` for
``v_add_f32_e32``), with modifiers as further parts (``global_load_dword.glc``). Accesses to memory also go by the names
that probes have for them on every target: ``ld``, ``st``, ``atom`` and ``red``, with the memory (``global``,
``shared``, ``local``, ``generic``) as a modifier. What computes, waits at barriers or branches has its names in
``operation_names``.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.isa.memory import accesses
from neutrino.gcn.operation_names import (
    Opcode,
    atomic_words,
    division_steps,
    first_parts,
    mnemonics_of,
    names_of_operation,
    operations_of,
)
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Pattern, Tracepoint, has_parts

_ENCODING = re.compile(r"(.+?)_(e32|e64|dpp|sdwa|e64_dpp|e32_dpp|vi|gfx9|gfx10|gfx11|gfx12)")
_PACKED = re.compile(r"\w+:.*")
_COUNTING = ("th:", "neg_lo:", "cbsz:", "blgp:")
"""Beginnings of the modifiers with a value that a name of an instruction depends on."""

_SPACES = {
    "global": ("global",), "flat": ("generic",), "buffer": ("global",), "tbuffer": ("global",), "scratch": ("local",),
    "ds": ("shared",),
}  # fmt: skip
"""Beginning of the mnemonic of an access to memory → the modifiers of its portable name."""
_DS_ATOMICS = re.compile(
    r"ds_(add|sub|rsub|inc|dec|min|max|min_num|max_num|and|or|xor|mskor|wrxchg2?|wrxchg2st64|cmpst|cmpstore|storexchg|"
    r"storexchg_2addr|condxchg32|cond_sub|sub_clamp|pk_add|wrap|append|consume|bvh_stack\w*)(_|$)"
)
_DS_OTHERS = re.compile(r"ds_(nop|swizzle|permute|bpermute|gws|ordered|direct|param)\w*")
_BRANCHES = re.compile(
    r"s_(branch|cbranch_\w+|call_[bi]64|setpc_b64|set_pc_i64|swappc_b64|swap_pc_i64|subvector_loop_\w+|endpgm|"
    r"endpgm_saved)"
)
_CALLS = frozenset({"s_swappc_b64", "s_swap_pc_i64", "s_call_b64", "s_call_i64"})
_BARRIERS = re.compile(r"s_(cluster_)?barrier(_\w+)?")
_SIGNED = re.compile(r"_(sbyte|sshort|i8|i16)(_|$)")
_TENSORS = re.compile(r"v_(mfma|smfmac|wmma|swmmac)_\w+")
_CONVERSIONS = re.compile(r"[vs]_cvt_\w+")
_SPECIALS = re.compile(r"[vs]_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos|rcp_iflag|tanh)_\w+")

PORTABLE = ("ld", "st", "atom", "red", "call")
"""First parts of names that probes have for accesses and calls of every target; ``operation_names`` has others."""
_MNEMONIC = re.compile(r"(s|v|ds|global|flat|buffer|tbuffer|scratch|image|exp|export|lds|tensor|cluster)(_\w+)?")


def is_opcode(word: str) -> bool:
    """Return whether a word may be the first part of a pattern's opcode: a mnemonic, or of a portable name."""
    return word in first_parts() or is_mnemonic(word)


def is_mnemonic(word: str) -> bool:
    """Return whether a word may be the first part of an instruction's name in a pattern; it may hold ``*``."""
    return word in PORTABLE or _MNEMONIC.fullmatch(word.replace("*", "_x")) is not None or word.startswith("*")


class Part(NamedTuple):
    """What of an instruction a tracepoint matches. half: of ``v_dual_…``, None for all of it. element: of its result,
    None for all of it."""

    half: int | None = None
    element: int | None = None


WHOLE = Part()


class Names(NamedTuple):
    """What an instruction is called in tracepoints. opcodes: dotted parts, its own first. classes: as ``model.CLASSES``
    has them."""

    opcodes: tuple[tuple[str, ...], ...]
    classes: frozenset[str]


@functools.lru_cache(maxsize=1 << 14)
def names_of(
    mnemonic: str, modifiers: tuple[str, ...] = (), *, is_parameter: bool = False, is_scratch: bool = False
) -> Names:
    """Return the names by which probes may choose an instruction: AMD's own, and portable ones such as ``ld.global``.

    Nothing for data, whose mnemonic is empty. is_parameter: it loads an argument of the kernel, so that for portable
    names it is no access to global memory. is_scratch: it accesses scratch memory as a buffer.
    """
    if not mnemonic:
        return Names((), frozenset())
    match = _ENCODING.fullmatch(mnemonic)
    plain = match[1] if match else mnemonic
    own = (plain, *([match[2]] if match else []), *(word for word in modifiers if not _PACKED.fullmatch(word)))
    classes = _classes(plain, modifiers)
    opcodes = [own]
    if "memory" in classes:
        space = ("local",) if is_scratch else _space(plain, is_parameter=is_parameter)
        if "load" in classes:
            opcodes.append(("ld", *space, *_width(plain)))
        if "store" in classes:
            to = "shared" if "lds" in modifiers or "_lds_" in plain else space[0]
            opcodes.append(("st", to, *_width(plain)))
        if "atomic" in classes:
            # Whether the old value comes back is what tells the two apart.
            kind = "atom" if _returns(plain, modifiers) else "red"
            opcodes += [(kind, *space, *words) for words in atomic_words(plain)]
    if plain in _CALLS:
        opcodes.append(("call",))
    return Names(tuple(opcodes), classes)


def matches(
    tracepoint: Tracepoint, instruction: Instruction, *, is_parameter: bool = False, is_scratch: bool = False,
    steps: Set[tuple[int, int]] = frozenset(),
) -> bool:  # fmt: skip
    """Return whether a tracepoint matches an instruction, as far as that follows from the instruction alone.

    An instruction of two halves matches by either of them. is_parameter, is_scratch: as for ``names_of``. steps: as
    ``operation_names.division_steps`` returns them.
    """
    return bool(
        matched_parts(tracepoint, instruction, is_parameter=is_parameter, is_scratch=is_scratch, steps=steps)
    )


def matched_parts(
    tracepoint: Tracepoint, instruction: Instruction, *, is_parameter: bool = False, is_scratch: bool = False,
    steps: Set[tuple[int, int]] = frozenset(),
) -> tuple[Part, ...]:  # fmt: skip
    """Return what of an instruction a tracepoint matches: all of it, or operations that it consists of; empty if
    nothing.

    By mnemonics and classes an instruction matches once, by names of operations as often as it has such ones.
    Parameters: as for ``matches``.
    """
    mnemonic, modifiers, second = instruction.mnemonic, instruction.modifiers, instruction.second
    names = names_of(mnemonic, modifiers, is_parameter=is_parameter, is_scratch=is_scratch)
    patterns = tracepoint.patterns
    if second is None:
        operations = () if (instruction.offset, 0) in steps else names_of_operation(mnemonic, modifiers)
        if any(_fits(pattern, _with(names, operations)) for pattern in patterns):
            return (WHOLE,)
    else:
        halves = [names, names_of(second[0])]
        fitting = [half for half, one in enumerate(halves) if any(_fits(pattern, one) for pattern in patterns)]
        if fitting:
            return (Part(fitting[0]) if len(fitting) == 1 else WHOLE,)
    found = []
    for operation in operations_of(instruction):
        if (instruction.offset, operation.half) in steps:
            continue
        own = names if operation.half == 0 else names_of(second[0] if second is not None else "")
        if any(_fits(pattern, _with(own, operation.opcodes)) for pattern in patterns):
            found.append(Part(operation.half if second is not None else None, operation.element))
    return tuple(found)


def named_on(tracepoint: Tracepoint, processor: str) -> tuple[list[str], list[str]]:
    """Return the mnemonics of a processor that a tracepoint's names of operations mean, and which of these names it has
    no instruction for. Patterns that name mnemonics, classes or accesses to memory count for neither."""
    found: dict[str, None] = {}
    missing = []
    for pattern in tracepoint.patterns:
        if not pattern.opcode or is_mnemonic(pattern.opcode[0]):
            continue
        plain_pattern = Pattern(pattern.subject, pattern.opcode, without=pattern.without)
        mine = [
            mnemonic for mnemonic, names in mnemonics_of(processor)
            if any(map(plain_pattern.matches, names)) and _has_condition(pattern, mnemonic)
        ]  # fmt: skip
        found.update(dict.fromkeys(mine))
        if not mine:
            condition = " @" if pattern.predicated else " !@" if pattern.unpredicated else ""
            missing.append(".".join(pattern.opcode) + condition)
    return list(found), missing


_MOST_MATCHED = 1 << 13
"""Texts of instructions of which it is kept which probes match them."""


class Matched:
    """Which of some probes match instructions, as far as that has been found out."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.by_names: dict[tuple[object, ...], tuple[Probe, ...]] = {}
        self.by_text: dict[str, tuple[Probe, ...]] = {}


class Matching:
    """Which probes match the instructions of a function. parameters, scratch: offsets of instructions that load
    arguments of the kernel, and that access scratch memory as a buffer. known: what has been found for these probes in
    other functions; it is added to."""

    def __init__(
        self, function: Function, probes: Sequence[Probe], parameters: Set[int], scratch: Set[int],
        known: Matched | None = None,
    ) -> None:  # fmt: skip
        """Find the steps of divisions, which have no names."""
        self._probes, self._parameters, self._scratch = probes, parameters, scratch
        self._steps = division_steps(function)
        self._by_place = {*parameters, *scratch, *(offset for offset, _ in self._steps)}
        self._known = Matched() if known is None else known

    def probes_at(self, instruction: Instruction) -> tuple[Probe, ...]:
        """Return the probes at an instruction."""
        if instruction.offset in self._by_place:
            return self._found(instruction)
        by_text = self._known.by_text
        found = by_text.get(instruction.text)
        if found is None:
            if len(by_text) >= _MOST_MATCHED:
                by_text.clear()
            found = by_text[instruction.text] = self._found(instruction)
        return found

    def _found(self, instruction: Instruction) -> tuple[Probe, ...]:
        """Return the probes at an instruction, which is known by its names and what its place makes of it."""
        offset, modifiers, steps = instruction.offset, instruction.modifiers, self._steps
        is_parameter, is_scratch = offset in self._parameters, offset in self._scratch
        if modifiers:
            # A numbered one, such as an offset, rarely matters.
            modifiers = tuple([word for word in modifiers if ":" not in word or word.startswith(_COUNTING)])
        # All that matters of it.
        key = (
            instruction.mnemonic, instruction.second and instruction.second[0], is_parameter, is_scratch,
            (offset, 0) in steps, (offset, 1) in steps, modifiers,
        )  # fmt: skip
        known = self._known.by_names
        found = known.get(key)
        if found is None:
            found = known[key] = tuple(
                probe for probe in self._probes
                if matches(
                    probe.tracepoint, instruction, is_parameter=is_parameter, is_scratch=is_scratch, steps=steps
                )
            )  # fmt: skip
        return found


@functools.lru_cache(maxsize=1 << 14)
def _with(names: Names, opcodes: tuple[Opcode, ...]) -> Names:
    """Return names with further ones."""
    return names._replace(opcodes=(*names.opcodes, *opcodes))


@functools.lru_cache(maxsize=1 << 14)
def _fits(pattern: Pattern, names: Names) -> bool:
    """Return whether a probe's pattern matches an instruction of these names: one name has all that the pattern asks
    for, and none has what it excludes."""
    if not pattern.has_operands or not names.opcodes:
        return False
    if not _has_condition(pattern, names.opcodes[0][0]):
        return False
    plain = replace(pattern, without=(), requires=(), excludes=())
    if not any(plain.matches(opcode, names.classes) for opcode in names.opcodes):
        return False
    unwanted = [*pattern.excludes, *((word,) for word in pattern.without)]
    return all(_has(names, parts) for parts in pattern.requires) and not any(_has(names, parts) for parts in unwanted)


def _has_condition(pattern: Pattern, mnemonic: str) -> bool:
    """Return whether an instruction has a condition if a pattern asks for one (``@``), and none if it asks for none:
    of AMD's, conditional branches have one."""
    return not (pattern.unpredicated if mnemonic.startswith("s_cbranch_") else pattern.predicated)


def _has(names: Names, parts: tuple[str, ...]) -> bool:
    """Return whether an instruction, by any of its names, has these words: a dotted opcode, or a single class or
    modifier."""
    return any(has_parts(opcode, names.classes, parts) for opcode in names.opcodes)


@functools.cache
def _width(plain: str) -> tuple[str, ...]:
    """Return the words of a load's or store's portable name that say what it accesses, as PTX has them: ``b32``,
    ``v2.b64``; none for what is wider than 16 bytes, or not known."""
    access = accesses().get(plain)
    if access is None or access.size > 16 * access.addresses:
        return ()
    size = access.size // access.addresses
    kind = "s" if _SIGNED.search(plain) else "u" if size < 4 else "b"
    return (*(["v2"] if access.addresses == 2 else []), f"{kind}{8 * size}")


def _space(plain: str, *, is_parameter: bool) -> tuple[str, ...]:
    """Return the words of an access's portable name that say which memory it is to, such as ``global``."""
    beginning = plain.partition("_")[0]
    if beginning == "s":
        # The scalar unit reads global memory for all lanes at once, arguments of the kernel among it.
        return ("param",) if is_parameter else ("global", "uniform")
    return _SPACES.get(beginning, ("texture",))


def _returns(plain: str, modifiers: tuple[str, ...]) -> bool:
    """Return whether an atomic instruction writes the memory's old value into a register."""
    if plain.startswith("ds_"):
        return "_rtn" in plain or plain.startswith(("ds_append", "ds_consume", "ds_bvh"))
    return any(word in modifiers for word in ("glc", "sc0", "th:TH_ATOMIC_RETURN")) or any(
        word.startswith("th:TH_ATOMIC") and "RETURN" in word for word in modifiers
    )


def _classes(plain: str, modifiers: tuple[str, ...]) -> frozenset[str]:
    """Return the classes that a mnemonic belongs to; no more than one, but for copies, which load and store."""
    access = _access(plain, modifiers)
    if access:
        return frozenset({"memory", *access})
    for name, pattern in (
        ("barrier", _BARRIERS), ("branch", _BRANCHES), ("tensor", _TENSORS), ("convert", _CONVERSIONS),
        ("special", _SPECIALS),
    ):  # fmt: skip
        if pattern.fullmatch(plain):
            return frozenset({name})
    return frozenset()


def _access(plain: str, modifiers: tuple[str, ...]) -> Set[str]:
    """Return how an instruction accesses memory, from its name: ``load``, ``store``, ``atomic``; empty if it does not.
    """
    beginning, _, rest = plain.partition("_")
    if beginning == "ds":
        if _DS_OTHERS.fullmatch(plain):
            return frozenset()
        if _DS_ATOMICS.match(plain):
            return {"atomic"}
        return {"store"} if rest.startswith(("write", "store")) else {"load"}
    if beginning == "s":
        if rest.startswith(("load_", "buffer_load_", "scratch_load_")):
            return {"load"}
        if rest.startswith(("store_", "buffer_store_", "scratch_store_")):
            return {"store"}
        return {"atomic"} if rest.startswith(("atomic_", "buffer_atomic_")) else frozenset()
    if beginning == "image":
        if rest.startswith("atomic"):
            return {"atomic"}
        if rest.startswith("store"):
            return {"store"}
        return frozenset() if rest.startswith("get_") else {"load"}
    if beginning not in _SPACES:
        return frozenset()
    if "atomic" in rest:
        return {"atomic"}
    if rest.startswith("store"):
        return {"store"} if "_lds_" not in plain else {"load", "store"}
    if rest.startswith("load"):
        return {"load", "store"} if "lds" in modifiers or "_lds_" in f"{plain}_" else {"load"}
    return frozenset()


def parameter_loads(graph: FlowGraph, properties: int) -> frozenset[int]:
    """Return the offsets of the instructions of a kernel that load what a launch passes to it: its arguments, and the
    packet that it was launched by. graph: the kernel's.

    properties: ``kernel_code_properties`` of its descriptor, which says where their addresses are. Copies of these in
    other scalar registers are followed on every way through the code; what is loaded by one that went through a vector
    register, or that is there on some of the ways alone, counts as global memory.
    """
    rows = graph.function.instructions
    found: set[int] = set()
    # Most instructions name no scalar register first: they neither copy such an address nor overwrite it.
    named = [
        index for index, row in enumerate(rows)
        if (operands := row.operands) and (operands[0][:1] == "s" or (len(operands) > 1 and operands[1][:1] == "s"))
    ]  # fmt: skip
    begins = [bisect_left(named, block.begin) for block in graph.blocks]
    ends = [*begins[1:], len(named)]
    # A block that was not reached has none: what is on all ways to a block shrinks until nothing changes.
    before: dict[int, frozenset[str]] = {0: frozenset(_launch_pointers(properties))} if graph.blocks else {}
    waiting = [*before]
    while waiting:
        number = waiting.pop()
        pairs = before[number]
        for index in named[begins[number] : ends[number]] if pairs else ():
            pairs = _pointers_after(rows[index], pairs)
        for successor in graph.ways[number]:
            known = before.get(successor)
            shared = pairs if known is None else known & pairs
            if shared != known:
                before[successor] = shared
                waiting.append(successor)
    for number, pairs in before.items():
        for index in named[begins[number] : ends[number]]:
            if not pairs:
                break
            instruction = rows[index]
            sources = instruction.operands[1:2]
            if instruction.mnemonic.startswith("s_load_") and sources and sources[0] in pairs:
                found.add(instruction.offset)
            pairs = _pointers_after(instruction, pairs)
    return frozenset(found)


def _pointers_after(instruction: Instruction, pairs: frozenset[str]) -> frozenset[str]:
    """Return the pairs of scalar registers that have an address of ``parameter_loads`` after an instruction.

    pairs: those that have one before it.
    """
    operands = instruction.operands
    if not pairs:
        return pairs
    copied = instruction.mnemonic == "s_mov_b64" and operands[1:2] and operands[1] in pairs
    written = [] if instruction.mnemonic.startswith(_WRITE_NOTHING) else [operands[0]]
    if len(operands) > 1 and operands[1].startswith("s") and _CARRIES.fullmatch(instruction.mnemonic):
        written.append(operands[1])
    if any(_overlap(operand, pair) for operand in written for pair in pairs):
        pairs = frozenset(pair for pair in pairs if not any(_overlap(operand, pair) for operand in written))
    return pairs | {operands[0]} if copied else pairs


def _launch_pointers(properties: int) -> Iterator[str]:
    """Yield the pairs of scalar registers in which a kernel gets the addresses of its packet, queue and arguments.

    LLVM, "User Guide for AMDGPU Backend", "Initial Kernel Execution State": each takes its registers in this order.
    """
    first = 4 if properties & 1 else 0
    for bit in (1, 2, 3):
        if properties >> bit & 1:
            yield f"s[{first}:{first + 1}]"
            first += 2


_WRITE_NOTHING = ("s_waitcnt", "s_wait_", "s_cmp", "s_bitcmp", "s_branch", "s_cbranch", "s_barrier", "s_nop", "v_cmpx")
_CARRIES = re.compile(r"v_(?:(?:add|sub|subrev)_co(?:_ci)?|(?:addc|subb|subbrev)_co|div_scale|mad_[iu]64)_\w+")
"""What writes a second operand, in which vector instructions have a scalar register."""
_RANGE = re.compile(r"s(?:(\d+)|\[(\d+):(\d+)\])")


@functools.lru_cache(maxsize=1 << 12)
def _overlap(operand: str, pair: str) -> bool:
    """Return whether two operands have a scalar register in common."""
    one, other = _RANGE.fullmatch(operand), _RANGE.fullmatch(pair)
    if one is None or other is None:
        return False
    first, last = int(one[1] or one[2]), int(one[1] or one[3])
    return first <= int(other[1] or other[3]) and int(other[1] or other[2]) <= last
