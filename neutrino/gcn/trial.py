"""Whether probes can be put into some kernel for a processor: tried on one that has an instruction of each kind.

What is possible is decided where code is written, statement by statement, and may depend on the instruction; so the
same code is asked, and a check and a patch do not differ.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from neutrino.errors import Diagnostic, Span, ToolMissingError
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, Instruction, Module, decode
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.instrument.twin import Request, write
from neutrino.gcn.llvm import AssemblyError, Llvm, find_llvm
from neutrino.gcn.processors import processor_named
from neutrino.gcn.snippets.meaning import typed
from neutrino.gcn.snippets.opcodes import Matching, parameter_loads
from neutrino.ir.operands import SiteOperand, Special
from neutrino.probing.capabilities import CODE
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Save, Statement, walk
from neutrino.probing.written import WrittenProbes
from neutrino.twins.probe_units import units_of

_LINES = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_load_b64 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
s_wait_kmcnt 0x0
s_load_dword s6, s[4:5], 0x0
s_load_b32 s6, s[4:5], 0x0
s_waitcnt lgkmcnt(0)
s_wait_kmcnt 0x0
v_mov_b32_e32 v2, 0
v_mov_b32_e32 v3, 0
v_mov_b32_e32 v4, 0
v_mov_b32_e32 v5, 0
v_mov_b32_e32 v6, 0
v_mov_b32_e32 v7, 0
s_mov_b32 s8, 0
s_mov_b32 s9, 0
s_mov_b32 s10, 0
s_mov_b32 s11, 0
s_mov_b32 s12, 0
{global,flat}_load_{dword,b32} v6, v[2:3]{, off}
{global,flat}_load_{ubyte,u8} v6, v[2:3]{, off}
{global,flat}_load_{dwordx2,b64} v[6:7], v[2:3]{, off}
{global,flat}_load_{dwordx4,b128} v[6:9], v[2:3]{, off}
{global,flat}_store_{dword,b32} v[2:3], v6{, off}
{global,flat}_store_{dwordx2,b64} v[2:3], v[6:7]{, off}
{global,flat}_atomic_{add,add_u32} v[2:3], v6{, off}
{global,flat}_atomic_{add,add_u32} v7, v[2:3], v6{, off} {glc,sc0,th:TH_ATOMIC_RETURN}
buffer_load_{dword,b32} v6, v2, s[8:11], {0,null} offen
buffer_store_{dword,b32} v6, v2, s[8:11], {0,null} offen
ds_{read,load}_b32 v6, v2
ds_{write,store}_b32 v2, v6
ds_add_u32 v2, v6
ds_add_rtn_u32 v6, v2, v4
scratch_load_{dword,b32} v6, off, s12
scratch_store_{dword,b32} off, v6, s12
s_waitcnt vmcnt(0) lgkmcnt(0)
s_wait_loadcnt_dscnt 0x0
v_add_f32_e32 v6, v4, v5
v_mul_f32_e32 v6, v4, v5
v_fma_f32 v6, v4, v5, v6
v_rcp_f32_e32 v6, v4
v_exp_f32_e32 v6, v4
v_add_f64{_e32,} v[6:7], v[2:3], v[4:5]
v_add_f16_e32 v6, v4, v5
v_add_{u32,nc_u32}_e32 v6, v4, v5
v_lshlrev_b32_e32 v6, 1, v4
v_cvt_f32_i32_e32 v6, v4
v_cvt_f16_f32_e32 v6, v4
v_mfma_f32_4x4x4{f16,_16b_f16} v[4:7], v[2:3], v[2:3], v[4:7]
v_wmma_f32_16x16x16_f16 v[4:11], v[12:19], v[20:27], v[4:11]
v_wmma_f32_16x16x16_f16 v[4:11], v[12:15], v[16:19], v[4:11]
s_barrier
s_barrier_signal -1
s_barrier_wait 0xffff
s_cbranch_scc0 0
s_branch 0
s_endpgm
"""
"""Instructions by their names in all generations; an assembler takes those of its own."""
_WAVES = ("gfx9",)
"""Beginnings of the names of processors whose waves have 64 lanes."""
_VGPRS, _KERNARG = 32, 64
_RSRC1, _RSRC2, _PROPERTIES = 48, 52, 56
_ITEMS, _GROUPS, _USER = 2 << 11, 7 << 7, 2 << 1
"""Of the descriptor's second word: work-items in three registers, work-groups in three, and two SGPRs before these."""
_HAS_ARGUMENTS, _IS_WAVE32 = 8, 0x400


@functools.cache
def _kernel(processor: str) -> tuple[Module, Function, bytes, Llvm]:
    """Return the kernel that probes are tried on, with its module and its descriptor. Raises ToolMissingError."""
    llvm = find_llvm(processor)
    wave = 64 if processor.startswith(_WAVES) else 32
    code = b""
    for line in _LINES.strip().split("\n"):
        for text in _spelled(line):
            try:
                code += llvm.assemble(text, processor)
            except AssemblyError:
                continue
    module = decode([("trial", 0, code, True, wave)], processor, "", llvm)
    descriptor = bytearray(64)
    struct.pack_into("<I", descriptor, 8, _KERNARG)
    struct.pack_into("<I", descriptor, _RSRC1, _VGPRS // 8 - 1)
    struct.pack_into("<I", descriptor, _RSRC2, _ITEMS | _GROUPS | _USER)
    struct.pack_into("<H", descriptor, _PROPERTIES, _HAS_ARGUMENTS | (_IS_WAVE32 if wave == 32 else 0))
    return module, module.functions[0], bytes(descriptor), llvm


def _spelled(line: str) -> Iterator[str]:
    """Yield the instructions that a line with alternatives in braces stands for."""
    before, brace, rest = line.partition("{")
    if not brace:
        yield line
        return
    words, _, after = rest.partition("}")
    # An operand that only one of the alternatives before it has.
    for word in ("", words) if words.startswith(",") else words.split(","):
        yield from _spelled(before + word + after)


class Impossible(NamedTuple):
    """What kernels for a processor cannot have. span: where the file says it best. why: in words. site: the instruction
    that a kernel must not have to get the others of its probes, "" if none gets any of them."""

    span: Span
    why: str
    site: str = ""


def impossible(part: WrittenProbes | DraftProbes, probes: ProbeSet, processor: str) -> list[Diagnostic]:
    """Return an error for each thing that the probes of a file ask for and no kernel for a processor gets yet, and a
    warning for each that only kernels with some instruction do not get.

    part: the file. probes: what it has become.
    """
    lines = part.source.split("\n")
    found = []
    for span, why, site in trial(probes, processor):
        message = f"not in kernels for {processor}: {why}"
        if site:
            message = f"kernels for {processor} with {site} and the like are left out: {why}"
        line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
        severity = "warning" if site else "error"
        found.append(Diagnostic(part.file, span.line, span.column, line, message, "", severity, CODE))
    return found


def trial(probes: ProbeSet, processor: str) -> list[Impossible]:
    """Return what of verified probes cannot be put into kernels for a processor.

    Nothing for a processor whose kernels get no probes, and without AMD's assembler, as nothing is written then.
    """
    known = processor_named(processor)
    if known is None or not known.is_probed:
        return []
    try:
        module, function, descriptor, llvm = _kernel(processor)
    except ToolMissingError:
        return []
    parameters = parameter_loads(FlowGraph(function), _HAS_ARGUMENTS)

    def why_not(chosen: ProbeSet, at: Mapping[int, Sequence[Probe]]) -> str:
        """Return why probes cannot be at these places, "" if they can."""
        try:
            write(Request(module, ((function, at),), chosen, descriptor, _KERNARG, _VGPRS), llvm)
        except CannotError as error:
            return str(error)
        return ""

    found: dict[str, Impossible] = {}
    for unit in units_of(probes.probes):
        chosen = typed(probes.only(unit.names))
        at_sites = [probe for probe in chosen.probes if not probe.tracepoint.is_kernel]
        # What nothing here is like has no place, as in most kernels.
        sites = [(probe, matched) for probe in at_sites if (matched := list(_matched(function, probe, parameters)))]
        if not sites:
            if len(at_sites) < len(chosen.probes) and (why := why_not(chosen, {})):
                found.setdefault(why, Impossible(_place(chosen, why), why))
            continue
        refused: list[tuple[Probe, Instruction, str]] = []
        for probe, matched in sites:
            # With other operands it may be possible.
            whys = []
            for one in matched:
                whys.append(why_not(chosen, {one.offset: (probe,)}))
                if not whys[-1]:
                    break
            else:
                refused.append((probe, matched[0], whys[0]))
        for probe, one, why in refused:
            site = one.mnemonic if len(refused) < len(sites) else ""
            found.setdefault(why, Impossible(_place(chosen, why, probe), why, site))
    return list(found.values())


def _matched(function: Function, probe: Probe, parameters: Set[int]) -> Iterator[Instruction]:
    """Yield the instructions that a probe matches. parameters: offsets of those that load arguments."""
    matching = Matching(function, (probe,), parameters, frozenset())
    return (one for one in function.instructions if matching.probes_at(one))


def _place(probes: ProbeSet, why: str, chosen: Probe | None = None) -> Span:
    """Return where a set says what is not possible: a map, a statement, or else a probe. chosen: the one that was tried
    alone, if it was one."""
    named = next((one for one in probes.maps if f"map '{one.name}'" in why), None)
    if named is not None:
        return named.span
    for probe in (chosen,) if chosen is not None else probes.probes:
        for snippet in (probe.before, probe.after):
            for statement in walk(snippet.statements) if snippet is not None else ():
                if _says(statement, why):
                    return statement.span
    named_probe = next((one for one in probes.probes if f"probe '{one.name}'" in why), chosen or probes.probes[0])
    return named_probe.span


def _says(statement: Statement, why: str) -> bool:
    """Return whether a reason is about a statement: it begins with a word of it, or with its own name."""
    words = [type(statement).__name__, *(getattr(statement, name).value for name in ("operator", "reduction")
                                         if hasattr(statement, name))]  # fmt: skip
    for operand in _operands(statement):
        if isinstance(operand, SiteOperand):
            words.append(operand.text)
        elif isinstance(operand, Special):
            words.append(operand.value)
    return not isinstance(statement, Save) and any(why == word or why.startswith(f"{word} ") for word in words)


def _operands(statement: Statement) -> Iterable[object]:
    """Yield what a statement reads, without statements within it."""
    for name in statement.__dataclass_fields__:
        value = getattr(statement, name)
        yield from value if isinstance(value, tuple) else (value,)
