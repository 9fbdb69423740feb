"""Seeded faults of the rewriter: small changes, each of a kind that one makes, and what has to notice it.

A fault changes either the rewriter itself, by patching one of its functions, or the twin's text where a slip of
the rewriter would have shown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from neutrino.ptx.analysis import (
    additions,
    flow_graph,
    matching,
    tallies,
)
from neutrino.ptx.instrument import (
    body_rewriter,
    emission,
    end_sums,
    function_rewriter,
    functions,
    guards,
    kernel_rewriter,
    operands,
    private_registers,
    probe_registers,
    products,
    records,
    rewriting,
    site_writer,
    sums,
    values,
)
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.isa.instruction import Instruction, Mnemonic, mnemonic
from tests.oracle.bench import Kernel
from tests.oracle.kernels import BRANCHES, CALLS, FLOATS, MEMORY, PRODUCTS
from tests.oracle.probes import ACCESSES, BLOCKS, COUNTS, GMEM_BYTES, KINDS, MIXED, SUMS, VALUES, VECTORS, WARPS, Probe

Pair = tuple[Kernel, Probe]


@dataclass(frozen=True)
class Fault:
    """name: what is wrong. on: where it has to show, one is enough. caught_by: the kinds of problem that may tell.

    patch: changes the rewriter. rewrite: changes the twins' text. manifest: changes what the host is told.
    """

    name: str
    on: tuple[Pair, ...]
    caught_by: frozenset[str]
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    rewrite: Callable[[str], str] | None = None
    manifest: Callable[[TwinKernel], TwinKernel] = field(default=lambda kernel: kernel)


_FAULTS: list[Fault] = []
_RECORDS = frozenset({"records"})
_RESULTS = frozenset({"results", "fault"})
_RUN = frozenset({"records", "results", "fault"})
_MEMORY = frozenset({"fault", "records"})


def _patched(name: str, *on: Pair, by: frozenset[str] = _RECORDS) -> Callable[[Any], Any]:
    def add(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        _FAULTS.append(Fault(name, on, by, patch=patch))
        return patch

    return add


def _rewritten(
    name: str,
    pattern: str,
    into: str | Callable[[re.Match[str]], str],
    *on: Pair,
    by: frozenset[str] = _RECORDS,
    count: int = 0,
) -> None:
    compiled = re.compile(pattern, re.MULTILINE)
    _FAULTS.append(Fault(name, on, by, rewrite=lambda text: compiled.sub(into, text, count=count)))


# Which instructions are sites


@_patched("site missed: the last one", (BRANCHES, ACCESSES))
def _last_site(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.find

    def find(self: Any, callee: Any, first: int = 0) -> Any:
        found = original(self, callee, first)
        return dataclasses.replace(found, hits=found.hits[:-1])

    patch.setattr(rewriting.Rewriting, "find", find)


@_patched("site missed: predicated instructions", (BRANCHES, ACCESSES))
def _predicated_sites(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.find

    def find(self: Any, callee: Any, first: int = 0) -> Any:
        found = original(self, callee, first)
        return dataclasses.replace(found, hits=tuple(hit for hit in found.hits if hit.statement.guard is None))

    patch.setattr(rewriting.Rewriting, "find", find)


@_patched("site missed: behind a label", (BRANCHES, ACCESSES))
def _labelled_sites(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.find

    def find(self: Any, callee: Any, first: int = 0) -> Any:
        found = original(self, callee, first)
        labelled = {label.before for label in callee.body.labels}
        return dataclasses.replace(found, hits=tuple(hit for hit in found.hits if hit.statement.index not in labelled))

    patch.setattr(rewriting.Rewriting, "find", find)


@_patched("site too many: the state space of a pattern is not looked at", (MEMORY, GMEM_BYTES))
def _any_space(patch: pytest.MonkeyPatch) -> None:
    original = matching._Plan._choose

    def choose(self: Any, opcode: Mnemonic, *, guarded: bool) -> Any:
        return original(self, mnemonic(opcode.text.replace("ld.shared", "ld.global")), guarded=guarded)

    patch.setattr(matching._Plan, "_choose", choose)
    patch.setattr(rewriting, "_known", rewriting._known.__wrapped__)


@_patched("wrong site: code goes behind the instruction in place of before it", (BRANCHES, VALUES))
def _behind(patch: pytest.MonkeyPatch) -> None:
    original = site_writer.SiteWriter.write

    def write(self: Any, hit: Any) -> None:
        known = len(self._edits.found)
        original(self, hit)
        end = hit.statement.end
        self._edits.found[known:] = [
            (end, end, text) if at < end else (at, stop, text) for at, stop, text in self._edits.found[known:]
        ]

    patch.setattr(site_writer.SiteWriter, "write", write)


@_patched("wrong site: code behind an instruction goes before it", (BRANCHES, VALUES), by=_MEMORY)
def _too_early(patch: pytest.MonkeyPatch) -> None:
    original = site_writer.SiteWriter.write

    def write(self: Any, hit: Any) -> None:
        known = len(self._edits.found)
        original(self, hit)
        start, end = hit.statement.start, hit.statement.end
        self._edits.found[known:] = [
            (start, start, text.strip() + "\n\t") if at >= end else (at, stop, text)
            for at, stop, text in self._edits.found[known:]
        ]

    patch.setattr(site_writer.SiteWriter, "write", write)


@_patched("wrong site: one instruction further down", (BRANCHES, VALUES), by=_MEMORY)
def _next_instruction(patch: pytest.MonkeyPatch) -> None:
    original = site_writer.SiteWriter.write

    def write(self: Any, hit: Any) -> None:
        known = len(self._edits.found)
        original(self, hit)
        moved = [(self._code.find(";", at) + 1, text) for at, _, text in self._edits.found[known:]]
        self._edits.found[known:] = [(at, at, text) for at, text in moved]

    patch.setattr(site_writer.SiteWriter, "write", write)


def _keep_borders(patch: pytest.MonkeyPatch, keep: Callable[[Any, int], bool]) -> None:
    """Let runs end at some borders alone: labels are at even numbers, what leads elsewhere at odd ones."""
    original = additions.Runs.__init__

    def init(self: Any, body: Any) -> None:
        original(self, body)
        self._borders = [border for border in self._borders if keep(body, border)]

    patch.setattr(additions.Runs, "__init__", init)


@_patched("a run of additions goes on behind a label", (BRANCHES, COUNTS))
def _over_labels(patch: pytest.MonkeyPatch) -> None:
    _keep_borders(patch, lambda body, border: border % 2 == 1)


@_patched("a run of additions goes on behind a branch", (BRANCHES, COUNTS))
def _over_branches(patch: pytest.MonkeyPatch) -> None:
    _keep_borders(patch, lambda body, border: border % 2 == 0 or border // 2 in body.calls)


@_patched("a run of additions goes on where its predicate is written", (BRANCHES, COUNTS))
def _over_predicates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(additions.Runs, "_holds", lambda *_: True)


@_patched("a run of additions is under the other predicate", (BRANCHES, COUNTS))
def _other_predicate(patch: pytest.MonkeyPatch) -> None:
    original = sums.Sums.add_row

    def add_row(self: Any, number: int, guard: Any) -> Any:
        return original(self, number, guard and dataclasses.replace(guard, negated=not guard.negated))

    patch.setattr(sums.Sums, "add_row", add_row)


@_patched("every thread is thought to come by wherever it comes by once at most", (BRANCHES, COUNTS))
def _always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_graph.FlowGraph, "always", lambda self, index: self.once(index))


@_patched("a packed number has room for one thread's", (MEMORY, GMEM_BYTES))
def _no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tallies._Small, "width", property(lambda self: self.most.bit_length()))


@_patched("a packed number is taken from beside its place", (MEMORY, GMEM_BYTES))
def _beside(patch: pytest.MonkeyPatch) -> None:
    original = end_sums._number

    def number(part: Any, *others: Any) -> Any:
        return original(dataclasses.replace(part, shift=part.shift + (part.most is not None)), *others)

    patch.setattr(end_sums, "_number", number)


@_patched("before and after swapped", (MEMORY, WARPS), (FLOATS, WARPS), (BRANCHES, WARPS))
def _swapped_sides(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.__init__

    def init(self: Any, linkage: Any, probes: Any, **others: Any) -> None:
        turned = tuple(
            dataclasses.replace(probe, before=probe.after, after=probe.before) if probe.tracepoint.is_kernel else probe
            for probe in probes.probes
        )
        original(self, linkage, probes.lowered(probes.target, probes.registers, turned), **others)

    patch.setattr(rewriting.Rewriting, "__init__", init)


@_patched("a snippet's statements in reverse order", (BRANCHES, KINDS), (MEMORY, SUMS))
def _reverse_order(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.__init__

    def init(self: Any, linkage: Any, probes: Any, **others: Any) -> None:
        snippets = tuple(
            dataclasses.replace(
                probe,
                before=probe.before and dataclasses.replace(probe.before, statements=probe.before.statements[::-1]),
                after=probe.after and dataclasses.replace(probe.after, statements=probe.after.statements[::-1]),
            )
            for probe in probes.probes
        )
        original(self, linkage, probes.lowered(probes.target, probes.registers, snippets), **others)

    patch.setattr(rewriting.Rewriting, "__init__", init)


_rewritten(
    "label on the wrong side: a jump passes the inserted code by",
    r"(?P<label>^(?:two|zero): ?)(?P<code>\n?(?:.*neutrino.*\n)+)",
    r"\g<code>\g<label>\n",
    (BRANCHES, ACCESSES),
)

# Guards


@_patched("predicate lost", (BRANCHES, ACCESSES))
def _no_guard(patch: pytest.MonkeyPatch) -> None:
    original = emission.Emission.snippet

    def snippet(self: Any, *given: Any, **words: Any) -> Any:
        return original(self, *given[:2], None, **words)

    patch.setattr(emission.Emission, "snippet", snippet)


@_patched("predicate inverted", (BRANCHES, ACCESSES))
def _inverted_guard(patch: pytest.MonkeyPatch) -> None:
    original = guards.positive

    def positive(guard: Any, *more: Any) -> Any:
        return original(dataclasses.replace(guard, negated=not guard.negated), *more)

    patch.setattr(guards, "positive", positive)


@_patched("predicate's negation lost", (BRANCHES, ACCESSES))
def _no_negation(patch: pytest.MonkeyPatch) -> None:
    original = guards.positive

    def positive(guard: Any, *more: Any) -> Any:
        return original(dataclasses.replace(guard, negated=False), *more)

    patch.setattr(guards, "positive", positive)


_rewritten(
    "the guard that an instruction overwrites is read behind it",
    r"^\tmov\.pred %neutrino_tq0, %p5;\n",
    "\tmov.pred %neutrino_tq0, 1;\n",
    (BRANCHES, VALUES),
)
_rewritten(
    "a snippet's own predicate lost",
    r"^\t@%neutrino_r_p1 add\.u64 (%neutrino_r_rd4.*)",
    r"\tadd.u64 \1",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
)

# Slots and records

_rewritten(
    "warps of 16 threads: the lane",
    r"^\tand\.b32 (%neutrino_tw\d+), \1, 31;",
    r"\tand.b32 \1, \1, 15;",
    (BRANCHES, ACCESSES),
)
_rewritten(
    "warps of 16 threads: the warp",
    r"^\tshr\.u32 (%neutrino_tw\d+), (%neutrino_tw\d+), 5;",
    r"\tshr.u32 \1, \2, 4;",
    (BRANCHES, ACCESSES),
    by=_MEMORY,
)
_rewritten("slot by tid.x alone", r"^\tmov\.u32 (%neutrino_tw\d+), %tid\.y;", r"\tmov.u32 \1, 0;", (BRANCHES, ACCESSES))
_rewritten(
    "block by ctaid.x alone", r"^\tmov\.u32 (%neutrino_tw\d+), %ctaid\.y;", r"\tmov.u32 \1, 0;", (BRANCHES, ACCESSES)
)
_rewritten(
    "slot by ntid in place of nctaid",
    r"^\tmov\.u32 (%neutrino_tw\d+), %nctaid\.x;",
    r"\tmov.u32 \1, %ntid.x;",
    (BRANCHES, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "off-by-one slot",
    r"^(\tand\.b32 (%neutrino_tw\d+), \2, 31;)",
    r"\1\n\tadd.u32 \2, \2, 1;",
    (BRANCHES, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "lane 0 alone checked by its warp's number",
    r"^\tsetp\.eq\.and\.u32 (%neutrino_tq\d+), (%neutrino_tw)1, 0",
    r"\tsetp.eq.and.u32 \1, \g<2>0, 0",
    (MEMORY, WARPS),
)
_rewritten(
    "warp level: every lane writes",
    r"^\tsetp\.eq\.and\.u32 %neutrino_tq\d+, %neutrino_tw1, 0, .*\n",
    "",
    (MEMORY, WARPS),
)
_rewritten(
    "warp level: the lowest lane that is there in place of lane 0",
    r"^\tsetp\.eq\.and\.u32 (%neutrino_tq\d+), %neutrino_tw1, 0, (.*)\n",
    r"\tactivemask.b32 %neutrino_tw3;\n\tneg.s32 %neutrino_tw4, %neutrino_tw3;\n"
    r"\tand.b32 %neutrino_tw3, %neutrino_tw3, %neutrino_tw4;\n\tmov.u32 %neutrino_tw4, %lanemask_eq;\n"
    r"\tsetp.eq.and.u32 \1, %neutrino_tw3, %neutrino_tw4, \2\n",
    (BRANCHES, WARPS),
)


@_patched("record stride too small", (BRANCHES, ACCESSES))
def _stride(patch: pytest.MonkeyPatch) -> None:
    original = records.Records._scaled

    def scaled(self: Any, base: str, index: str, scale: int, lines: list[str]) -> None:
        original(self, base, index, 16 if scale == 24 else scale, lines)

    patch.setattr(records.Records, "_scaled", scaled)


_rewritten(
    "record stride too large",
    r"^(\tmad\.wide\.u32 (%neutrino_td\d+), %neutrino_tw1), 24,",
    r"\1, 32,",
    (BRANCHES, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "all records of a slot in one place",
    r"^\tmad\.wide\.u32 %neutrino_td0, %neutrino_k0, .*\n",
    "",
    (BRANCHES, ACCESSES),
)
_rewritten(
    "capacity check off by one",
    r"setp\.lt\.and\.u32 (%neutrino_tq\d+, %neutrino_k0)",
    r"setp.le.and.u32 \1",
    (BRANCHES, ACCESSES),
    (MEMORY, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "capacity check one too strict",
    r"(setp\.lt\.and\.u32 %neutrino_tq\d+, %neutrino_k0), 12",
    r"\1, 11",
    (MEMORY, ACCESSES),
)
_rewritten(
    "capacity check missing",
    r"setp\.lt\.and\.u32 (%neutrino_tq\d+), %neutrino_k0, 12, (%neutrino_tq\d+);",
    r"mov.pred \1, \2;",
    (MEMORY, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "count not stored",
    r"^\t@%neutrino_tq\d+ st\.global\.u32 \[%neutrino_td\d+\], %neutrino_k0;\n",
    "",
    (BRANCHES, ACCESSES),
)
_rewritten(
    "count stops at the capacity",
    r"^\t@%neutrino_tq0 (add\.u32 %neutrino_k0.*)",
    r"\t@%neutrino_tq1 \1",
    (MEMORY, ACCESSES),
)
_rewritten(
    "count goes on where the site does not run",
    r"^\t@%neutrino_tq\d+ (add\.u32 %neutrino_k0.*)",
    r"\t\1",
    (BRANCHES, ACCESSES),
)
_rewritten(
    "counter not begun at zero", r"^\tmov\.u32 %neutrino_k0, 0;", "\tmov.u32 %neutrino_k0, 1;", (BRANCHES, ACCESSES)
)
_rewritten(
    "fields swapped",
    r"^\tmov\.b64 (%neutrino_td\d+), \{(%neutrino_tw\d+), (%neutrino_tw\d+)\};",
    r"\tmov.b64 \1, {\3, \2};",
    (BRANCHES, ACCESSES),
)
_rewritten("field at another's offset", r"(st\.global\.b64 \[%neutrino_td\d+)\+16\]", r"\1+8]", (BRANCHES, ACCESSES))
_rewritten(
    "field of half its width", r"st\.global\.b64 (\[%neutrino_td\d+\],)", r"st.global.b32 \1", (BRANCHES, ACCESSES)
)
_rewritten("narrow fields stored wide", r"st\.global\.b8 ", "st.global.b16 ", (BRANCHES, KINDS), by=_MEMORY)

# Maps and the probe block


_rewritten(
    "maps swapped",
    r"\[__neutrino_block\+(16|32)\]",
    lambda found: f"[__neutrino_block+{48 - int(found[1])}]",
    (MEMORY, WARPS),
    (MEMORY, SUMS),
    by=_MEMORY,
)
_rewritten(
    "records and counts swapped",
    r"\[__neutrino_block\+(16|24)\]",
    lambda found: f"[__neutrino_block+{40 - int(found[1])}]",
    (BRANCHES, ACCESSES),
    by=_MEMORY,
)
_rewritten("probe block read four bytes off", r"\[__neutrino_block\+4\]", "[__neutrino_block]", (BRANCHES, ACCESSES))
_FAULTS.append(
    Fault(
        "probe block put elsewhere than the twin reads it",
        ((BRANCHES, ACCESSES),),
        frozenset({"refused"}),
        manifest=lambda kernel: dataclasses.replace(kernel, block_offset=kernel.block_offset - 4),
    )
)
_FAULTS.append(
    Fault(
        "variables in another order",
        ((MEMORY, ACCESSES),),
        _RUN,
        manifest=lambda kernel: dataclasses.replace(kernel, variables=kernel.variables[::-1]),
    )
)


_rewritten(
    "a variable's address from its neighbour's place",
    r"(ld\.param\.u64 %neutrino_v\d+), \[__neutrino_block\+(\d+)\]",
    lambda found: f"{found[1]}, [__neutrino_block+{int(found[2]) - 8}]",
    (MEMORY, ACCESSES),
    by=_RUN,
)
_rewritten("offset behind a variable lost", r"\[(%neutrino_v\d+)\+4\]", r"[\1]", (MEMORY, ACCESSES), by=_RUN)

# What a site's operands are


@_patched("address without its immediate offset", (BRANCHES, ACCESSES))
def _no_offset(patch: pytest.MonkeyPatch) -> None:
    original = operands.SiteOperands._sum
    patch.setattr(
        operands.SiteOperands,
        "_sum",
        lambda self, address: original(self, dataclasses.replace(address, offset="0")),
    )


@_patched("address with a negative offset taken as positive", (BRANCHES, ACCESSES))
def _sign_of_offset(patch: pytest.MonkeyPatch) -> None:
    original = operands.SiteOperands._sum
    patch.setattr(
        operands.SiteOperands,
        "_sum",
        lambda self, address: original(self, dataclasses.replace(address, offset=address.offset.lstrip("-"))),
    )


@_patched("an input read behind the instruction that overwrites it", (BRANCHES, VALUES))
def _not_preserved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operands.SiteOperands, "_preserved", lambda self, name, kind: values.Value(name, kind))


@_patched("bytes of a vector: one element", (MEMORY, ACCESSES), (MEMORY, GMEM_BYTES))
def _one_element(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instruction, "elements", 1)


@_patched("element of a vector off by one", (MEMORY, VECTORS))
def _element(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operands, "_ELEMENT", {"x": 0, "y": 0, "z": 1, "w": 2})


@_patched("destination and first source mixed up", (BRANCHES, VALUES), (FLOATS, VALUES))
def _sources(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instruction, "sources", property(lambda self: self.operands))


@_patched("code of one site reused at another with other operands", (MEMORY, GMEM_BYTES))
def _reused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        operands.SiteOperands, "reads_operands", property(lambda self: False, lambda self, value: None), raising=False
    )


_rewritten(
    "generic addresses all counted as global",
    r"^\tisspacep\.global (%neutrino_r_global), .*;",
    r"\tmov.pred \1, 1;",
    (MEMORY, GMEM_BYTES),
)
_rewritten(
    "shared addresses told with their upper half undefined",
    r"^\tcvt\.u64\.u32 (%neutrino_td\d+), (%r\d+);",
    r"\tmov.b64 \1, {\2, \2};",
    (MEMORY, ACCESSES),
)


@_patched("no private copy of a product that may be fused", (PRODUCTS, VALUES), by=frozenset({"arithmetic"}))
def _no_private_product(patch: pytest.MonkeyPatch) -> None:
    original = site_writer.SiteWriter._operands

    def site_operands(self: Any, *given: Any, **words: Any) -> Any:
        found = original(self, *given, **words)
        found._product = lambda name, is_out: None
        return found

    patch.setattr(site_writer.SiteWriter, "_operands", site_operands)


@_patched("predicated stores between a product and its sum", (PRODUCTS, VALUES), by=frozenset({"arithmetic"}))
def _stores_between(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products.Products, "clear_of", lambda self, position: position)


@_patched("registers of waiting stores handed out again", (FLOATS, VALUES), by=_MEMORY)
def _released(patch: pytest.MonkeyPatch) -> None:
    original = site_writer.SiteWriter._snippet

    def snippet(self: Any, *given: Any, **words: Any) -> bool:
        original(self, *given, **words)
        return False

    patch.setattr(site_writer.SiteWriter, "_snippet", snippet)


_rewritten(
    "the private product rounds another way", r"mul\.rn\.f32 (%neutrino_m\d+)", r"mul.rz.f32 \1", (FLOATS, MIXED)
)

# The program's registers


def _clobber(kind: str, line: str, *on: Pair) -> None:
    """The program's register is overwritten where a record's slot is computed, at every site."""
    _rewritten(
        f"program register clobbered: {kind}",
        r"^(\tld\.param\.u32 %neutrino_tw\d+, \[__neutrino_block\];)",
        rf"\1\n\t{line}",
        *on,
        by=_RESULTS,
    )


_clobber("predicate", "mov.pred %p2, 1;", (FLOATS, WARPS))
_clobber("32 bits", "mov.u32 %r1, %neutrino_tw3;", (BRANCHES, VALUES), (MEMORY, KINDS), (FLOATS, KINDS))
_clobber("64 bits", "mov.u64 %rd2, %neutrino_td0;", (BRANCHES, ACCESSES))
_clobber("f32", "mov.f32 %f7, 0f3F800000;", (FLOATS, WARPS))
_clobber("f16", "mov.b16 %h1, 0;", (FLOATS, WARPS))
_clobber("f64", "mov.f64 %fd3, 0d3FF0000000000000;", (FLOATS, WARPS))
_rewritten(
    "program register clobbered in one branch only",
    r"^(zero:\n)",
    r"\1\tmov.u32 %r10, 0;\n",
    (BRANCHES, ACCESSES),
    by=_RESULTS,
)


@_patched("a probe's registers not renamed", (FLOATS, SUMS), (BRANCHES, SUMS), by=_RUN)
def _not_renamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probe_registers.ProbeRegisters, "private", lambda self, name: name)
    entry = emission.Emission.entry

    def declared_once(self: Any) -> tuple[list[str], list[str]]:
        declarations, first = entry(self)
        clash = [line for line in declarations if not re.search(r"%(?:p1|rd[1-5]);", line)]
        return clash, first

    patch.setattr(emission.Emission, "entry", declared_once)


@_patched("scratch registers overlap", (BRANCHES, ACCESSES), by=_RUN)
def _overlap(patch: pytest.MonkeyPatch) -> None:
    original = private_registers.Scratch.take

    def take(self: Any, kind: str) -> str:
        name = original(self, kind)
        return f"{name[:-1]}1" if kind == "b32" and name.endswith("w3") else name

    patch.setattr(private_registers.Scratch, "take", take)


_rewritten(
    "contexted register begins with what was there",
    r"^\tmov\.b64 %neutrino_r_rd3, 0;\n",
    "",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
    by=_RUN,
)
_rewritten(
    "contexted register begins anew at each site",
    r"^(\tadd\.u64 %neutrino_r_rd3)",
    r"\tmov.u64 %neutrino_r_rd3, 0;\n\1",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
)

# The ends of threads


@_patched("end lost: predicated exit and ret", (BRANCHES, SUMS), (BRANCHES, ACCESSES))
def _predicated_ends(patch: pytest.MonkeyPatch) -> None:
    original = kernel_rewriter.find_ends
    patch.setattr(
        kernel_rewriter, "find_ends", lambda body, matches: [end for end in original(body, matches) if not end.guard]
    )


@_patched("end lost: falling off", (BRANCHES, SUMS))
def _falling_off(patch: pytest.MonkeyPatch) -> None:
    original = kernel_rewriter.find_ends
    patch.setattr(
        kernel_rewriter,
        "find_ends",
        lambda body, matches: [end for end in original(body, matches) if end.shown != "}"],
    )


@_patched("end lost: exit", (BRANCHES, SUMS))
def _no_exit(patch: pytest.MonkeyPatch) -> None:
    original = kernel_rewriter.find_ends
    patch.setattr(
        kernel_rewriter, "find_ends", lambda body, matches: [end for end in original(body, matches) if not end.is_exit]
    )


@_patched("end lost: an early ret", (BRANCHES, SUMS))
def _early_ret(patch: pytest.MonkeyPatch) -> None:
    original = kernel_rewriter.find_ends
    patch.setattr(kernel_rewriter, "find_ends", lambda body, matches: original(body, matches)[1:])


@_patched("end of some taken for the end of all", (BRANCHES, SUMS), (FLOATS, SUMS))
def _unguarded_end(patch: pytest.MonkeyPatch) -> None:
    original = body_rewriter.close
    patch.setattr(
        body_rewriter,
        "close",
        lambda edits, code, end, closing, label: original(edits, code, end._replace(guard=None), closing, label),
    )


_rewritten(
    "at a predicated end the wrong lanes go on",
    r"^(.*)@!(%p\d+) bra (\$L__neutrino_\d+);",
    r"\1@\2 bra \3;",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
    by=_RUN,
)
_rewritten(
    "a label of ours on the wrong branch", r"bra \$L__neutrino_1;", "bra $L__neutrino_0;", (BRANCHES, SUMS), by=_RUN
)
_rewritten("the end's own instruction lost", r"^\t@%p2 ret;\n", "", (BRANCHES, ACCESSES), by=_RUN)

# Sums

_rewritten(
    "sum over all lanes in place of those that are there",
    r"^\tactivemask\.b32 (.*);",
    r"\tmov.u32 \1, -1;",
    (BRANCHES, SUMS),
    by=_MEMORY,
)
_rewritten(
    "sum written by lane 0 alone",
    r"^\tsetp\.eq\.u32 (%neutrino_tq\d+), (%neutrino_tw\d+), 0;",
    r"\tmov.u32 \2, %laneid;\n\tsetp.eq.u32 \1, \2, 0;",
    (BRANCHES, SUMS),
)
_rewritten(
    "sum written by every lane", r"^\tsetp\.eq\.u32 (%neutrino_tq\d+), (%neutrino_tw\d+), 0;",
    r"\tmov.u32 \2, 0;\n\tsetp.eq.u32 \1, \2, 0;", (BRANCHES, SUMS)
)
_rewritten(
    "sum without atomics",
    r"^\tred\.global\.add\.u64 (\[.*\]), (%neutrino_td\d+);",
    r"\t{ .reg .u64 %old; ld.global.u64 %old, \1;\n\tadd.u64 %old, %old, \2;\n\tst.global.u64 \1, %old; }",
    (BRANCHES, SUMS),
)
_rewritten(
    "the middle bits of a wide sum lost",
    r"^\tmad\.wide\.u32 %neutrino_td\d+, %neutrino_tw\d+, 67108864, .*\n",
    "",
    (MEMORY, SUMS),
)
_rewritten(
    "the upper bits of a wide sum lost", r"^\tshl\.b64 (%neutrino_td\d+), \1, 52;", r"\tmov.u64 \1, 0;", (MEMORY, SUMS)
)
_rewritten(
    "what a thread has beyond the lower bits lost", r"^\tsetp\.ne\.or\.u64 (%neutrino_tq\d+), .*, (%neutrino_tq\d+);",
    r"\tmov.pred \1, \2;", (MEMORY, SUMS)
)
_rewritten("sums at each other's place", r"(red\.global\.add\.u64 \[%neutrino_td\d+)\+8\]", r"\1]", (MEMORY, SUMS))
_rewritten(
    "shared copies of a sum overlap",
    r"(mad\.wide\.u32 %neutrino_td\d+, %neutrino_tw\d+), 128, ",
    r"\1, 4, ",
    (MEMORY, SUMS),
    by=_MEMORY,
)

# Functions and the state that reaches them

_STATE = r"(?:b64|b32|u32)"
_rewritten(
    "state not stored before a call",
    rf"^\tst\.local\.{_STATE} \[__neutrino_state\+\d+\], %neutrino_[rks].*;\n",
    "",
    (CALLS, SUMS),
)
_rewritten(
    "state not loaded behind a call",
    rf"^\tld\.local\.{_STATE} %neutrino_[rks]\w+, \[__neutrino_state\+\d+\];\n",
    "",
    (CALLS, SUMS),
    (CALLS, ACCESSES),
)
_rewritten(
    "a function begins with registers of its own",
    rf"^\tld\.local\.{_STATE} (%neutrino_k\d), \[%neutrino_state\+\d+\];$",
    r"\tmov.u32 \1, 0;",
    (CALLS, ACCESSES),
)
_rewritten(
    "a function's changes lost",
    rf"st\.local\.{_STATE} \[%neutrino_state\+\d+\], %neutrino_[rks]\w+;\n\s*((?:@\S+ )?ret)",
    r"\1",
    (CALLS, SUMS),
    (CALLS, ACCESSES),
)
_rewritten(
    "a function's state where that of its caller is not",
    r"\[%neutrino_state\+48\]",
    "[%neutrino_state+56]",
    (CALLS, SUMS),
    by=_MEMORY,
)
_rewritten(
    "a word of the probe block does not reach functions",
    r"^\tst\.local\.u64 \[__neutrino_state\+16\], .*\n",
    "",
    (CALLS, ACCESSES),
    by=_MEMORY,
)
_rewritten(
    "a variable's address from its neighbour's place, in a function",
    r"(ld\.local\.u64 %neutrino_v\d+), \[%neutrino_state\+(\d+)\]",
    lambda found: f"{found[1]}, [%neutrino_state+{int(found[2]) - 8}]",
    (CALLS, ACCESSES),
    by=_RUN,
)


@_patched("site missed: in functions", (CALLS, ACCESSES))
def _sites_of_functions(patch: pytest.MonkeyPatch) -> None:
    original = rewriting.Rewriting.find_in_function
    patch.setattr(
        rewriting.Rewriting,
        "find_in_function",
        lambda self, callee, first: dataclasses.replace(original(self, callee, first), hits=()),
    )


@_patched("end lost: exit in a function", (CALLS, SUMS))
def _exits_of_functions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(function_rewriter.FunctionRewriter, "write_exits", lambda self, state: None)


@_patched("an early return of a function forgotten", (CALLS, SUMS))
def _early_return(patch: pytest.MonkeyPatch) -> None:
    original = function_rewriter.FunctionRewriter.returns.func
    patch.setattr(
        function_rewriter.FunctionRewriter,
        "returns",
        property(lambda self: [end for end in original(self) if not end.guard]),
    )


@_patched("falling off a function forgotten", (CALLS, ACCESSES), (CALLS, SUMS))
def _function_falls_off(patch: pytest.MonkeyPatch) -> None:
    original = function_rewriter.FunctionRewriter.returns.func
    patch.setattr(
        function_rewriter.FunctionRewriter,
        "returns",
        property(lambda self: [end for end in original(self) if end.shown != "}"]),
    )


@_patched("two registers at one place of the state", (CALLS, SUMS))
def _shared_place(patch: pytest.MonkeyPatch) -> None:
    original = functions.State._offset

    def offset(self: Any, kept: Any) -> int:
        return original(self, dataclasses.replace(kept, name="shared") if kept.type == "u64" else kept)

    patch.setattr(functions.State, "_offset", offset)


@_patched("what a function's own calls change is not loaded", (CALLS, SUMS), (CALLS, ACCESSES))
def _nested_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernel_rewriter, "reach", lambda calls, own: own)


@_patched("a call goes to the function without probes", (CALLS, ACCESSES), by=frozenset({"refused"}))
def _calls_original(patch: pytest.MonkeyPatch) -> None:
    original = body_rewriter.BodyRewriter.pass_state
    patch.setattr(
        function_rewriter.FunctionRewriter,
        "pass_state",
        lambda self, state, base, names, used, changed: original(self, state, base, {}, used, changed),
    )


# Block level and caps of a launch

_rewritten(
    "block level: every thread writes",
    r"^\tsetp\.eq\.and\.u32 %neutrino_tq\d+, %neutrino_tw1, 0, .*\n",
    "",
    (BRANCHES, BLOCKS),
    by=_MEMORY,
)
_rewritten(
    "block level: thread 0 by tid.x alone",
    r"^\tor\.b32 (%neutrino_tw\d+), \1, (%neutrino_tw\d+);",
    r"\tmov.b32 \2, \1;",
    (BRANCHES, BLOCKS),
)
_rewritten(
    "block level: the slot of its first warp",
    r"^\tmul\.lo\.u32 (%neutrino_tw\d+), (%neutrino_tw\d+), \1;",
    r"\tmul.lo.u32 \1, \2, \1;\n\tmov.b32 \2, \1;",
    (BRANCHES, BLOCKS),
    by=_MEMORY,
)
_rewritten(
    "the launch's cap read from another word",
    r"(ld\.param\.u32 %neutrino_tw\d+, \[__neutrino_block)\+8\]",
    r"\1]",
    (BRANCHES, BLOCKS),
)
_rewritten(
    "slots as far apart as of a cap of one",
    r"^\tmul\.wide\.u32 (%neutrino_td\d+), (%neutrino_tw\d+), %neutrino_tw\d+;",
    r"\tcvt.u64.u32 \1, \2;",
    (BRANCHES, BLOCKS),
    by=_MEMORY,
)
_rewritten(
    "the launch's cap not looked at",
    r"setp\.lt\.and\.u32 (%neutrino_tq\d+), %neutrino_k\d, %neutrino_tw\d+, (%neutrino_tq\d+);",
    r"mov.pred \1, \2;",
    (CALLS, BLOCKS),
    by=_MEMORY,
)


@_patched("a register of block level changed in all threads", (BRANCHES, BLOCKS))
def _unmasked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probe_registers, "_WIDER", dict.fromkeys(probe_registers._WIDER, ()))


# The program itself

_rewritten(
    "twin stores into the program's memory",
    r"ld\.param\.u64 %neutrino_td0, \[__neutrino_block\+16\];",
    "ld.param.u64 %neutrino_td0, [out];",
    (BRANCHES, ACCESSES),
    (MEMORY, ACCESSES),
    by=_RUN,
)
_rewritten(
    "a barrier where only some threads come",
    r"^(\tmov\.b64 (%neutrino_td\d+), 4;)",
    r"\1\n\tbar.sync 1, 96;",
    (MEMORY, ACCESSES),
    by=_RESULTS,
)

FAULTS = tuple(_FAULTS)
