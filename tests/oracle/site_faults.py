"""Seeded faults at the instructions that probes are at: which they are, guards, records, operands, registers."""

from __future__ import annotations

import dataclasses
import re

from tests.oracle.fault import ARITHMETIC, MEMORY_OR_RECORDS, RECORDS, RESULTS, RUN, Fault, Faults, Pair
from tests.oracle.kernels import BRANCHES, FLOATS, MEMORY, PRODUCTS
from tests.oracle.probes import ACCESSES, COUNTS, GMEM_BYTES, KINDS, MIXED, SUMS, VALUES, VECTORS, WARPS

FAULTS = Faults()
_rewritten, _changed = FAULTS.rewritten, FAULTS.changed


def _swapped_sides(toml: str) -> str:
    return re.sub("^(before|after) =", lambda side: {"before": "after", "after": "before"}[side[1]] + " =", toml,
                  flags=re.MULTILINE)  # fmt: skip


def _reversed(toml: str) -> str:
    """The statements of each snippet, but for its declarations, from the last to the first."""

    def turned(snippet: re.Match[str]) -> str:
        lines = snippet[1].strip().splitlines()
        declared = [line for line in lines if line.startswith(".reg")]
        others = [line for line in lines if not line.startswith(".reg")]
        return "\n".join(['"""', *declared, *others[::-1], '"""'])

    return re.sub('"""(.*?)"""', turned, toml, flags=re.DOTALL)


# Which instructions are sites


_rewritten("site missed: the last one", r"^(done:\n)(?:\t(?=.*neutrino).*\n)+", r"\1", (BRANCHES, ACCESSES))


_rewritten(
    "site missed: a predicated instruction", r"(?:^\t(?=.*neutrino).*\n)+(?=\t@%p5 st)", "", (BRANCHES, ACCESSES)
)


_rewritten("site missed: after a label", r"^(zero:\n)(?:\t(?=.*neutrino).*\n)+", r"\1", (BRANCHES, ACCESSES))


_rewritten(
    "site too many: the state space of a pattern is not looked at",
    r"^(?=\tld\.shared\.u32 )",
    "\tadd.u64 %neutrino_r_loads, %neutrino_r_loads, 4;\n",
    (MEMORY, GMEM_BYTES),
)


_rewritten(
    "wrong site: code goes after the instruction in place of before it",
    r"^(\t@%p5 add\.u64 %neutrino_c0, .*\n)(\t@%p5 bra .*\n)",
    r"\2\1",
    (BRANCHES, COUNTS),
)


_rewritten(
    "wrong site: code after an instruction goes before it",
    r"^(\tadd\.s32 %r10, %r10, %r7;\n)((?:\t(?=.*neutrino).*\n)+?)(?=\tmov\.b32 %neutrino_tw0, %r10;)",
    r"\2\1",
    (BRANCHES, VALUES),
)


_rewritten(
    "wrong site: an addition goes to the other side of a label",
    r"^(loop:\n)(\tadd\.u64 %neutrino_c0, .*\n)",
    r"\2\1",
    (BRANCHES, COUNTS),
)


_rewritten(
    "a run of additions goes on after a label",
    r"^(\tadd\.u64 %neutrino_c0, %neutrino_c0), 2;\n((?:.*\n){2}loop:\n)\tadd\.u64 %neutrino_c0, .*\n",
    r"\1, 7;\n\2",
    (BRANCHES, COUNTS),
)


_rewritten(
    "a run of additions goes on after a branch",
    r"^(\t@!%p1 bra (\$L__neutrino_0);\n(?:.*\n)*?\2:\n)(\tadd\.u64 %neutrino_c0, .*\n)",
    r"\3\1",
    (BRANCHES, COUNTS),
)


_rewritten(
    "a run of additions goes on where its predicate is written",
    r"^(\t@%p5 add\.u64 %neutrino_c0, %neutrino_c0), 2;\n((?:.*\n)+?)\t@%p5 add\.u64 %neutrino_c0, .*\n",
    r"\1, 3;\n\2",
    (BRANCHES, COUNTS),
)


_rewritten(
    "a run of additions is under the other predicate",
    r"^\t@(%p3 add\.u64 %neutrino_c0)",
    r"\t@!\1",
    (BRANCHES, COUNTS),
)


_rewritten(
    "what some threads pass is added for all",
    r"(mad\.lo\.u64 %neutrino_td\d+, %neutrino_td\d+), 15,",
    r"\1, 16,",
    (BRANCHES, COUNTS),
)


_changed(
    "a packed number has room for one thread's",
    lambda text: text.replace(", 12300;", ", 396;").replace(", 1023;", ", 31;").replace(", 10;", ", 5;"),
    (MEMORY, GMEM_BYTES),
)


_rewritten(
    "a packed number is taken from beside its place",
    r"^(\tshr\.u32 %neutrino_tw\d+, %neutrino_tw\d+), 10;",
    r"\1, 11;",
    (MEMORY, GMEM_BYTES),
)


FAULTS.append(Fault("before and after swapped", ((MEMORY, WARPS),), RECORDS, probe=_swapped_sides))


FAULTS.append(Fault("a snippet's statements in reverse order", ((BRANCHES, SUMS),), RECORDS, probe=_reversed))


_rewritten(
    "label on the wrong side: a jump passes the inserted code by",
    r"(?P<label>^(?:two|zero): ?)(?P<code>\n?(?:.*neutrino.*\n)+)",
    r"\g<code>\g<label>\n",
    (BRANCHES, ACCESSES),
)

# Guards


_rewritten(
    "predicate lost",
    r"^\tand\.pred (%neutrino_tq\d+), (%neutrino_tq\d+), (?:%p\d|%neutrino_tq\d+);",
    r"\tmov.pred \1, \2;",
    (BRANCHES, ACCESSES),
)


_rewritten(
    "predicate inverted",
    r"^\tand\.pred (%neutrino_tq\d+), (%neutrino_tq\d+), (%p\d);",
    r"\t{ .reg .pred %other; not.pred %other, \3; and.pred \1, \2, %other; }",
    (BRANCHES, ACCESSES),
)


_rewritten(
    "predicate's negation lost", r"^\tnot\.pred (%neutrino_tq\d+), (%p\d);", r"\tmov.pred \1, \2;", (BRANCHES, ACCESSES)
)


_rewritten(
    "the guard that an instruction overwrites is read after it",
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
    by=MEMORY_OR_RECORDS,
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
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "off-by-one slot",
    r"^(\tand\.b32 (%neutrino_tw\d+), \2, 31;)",
    r"\1\n\tadd.u32 \2, \2, 1;",
    (BRANCHES, ACCESSES),
    by=MEMORY_OR_RECORDS,
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


_rewritten(
    "record stride too small",
    r"^(\tmad\.wide\.u32 (%neutrino_td\d+), %neutrino_tw1), 24,",
    r"\1, 16,",
    (BRANCHES, ACCESSES),
)


_rewritten(
    "record stride too large",
    r"^(\tmad\.wide\.u32 (%neutrino_td\d+), %neutrino_tw1), 24,",
    r"\1, 32,",
    (BRANCHES, ACCESSES),
    by=MEMORY_OR_RECORDS,
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
    by=MEMORY_OR_RECORDS,
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
    by=MEMORY_OR_RECORDS,
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
_rewritten("narrow fields stored wide", r"st\.global\.b8 ", "st.global.b16 ", (BRANCHES, KINDS), by=MEMORY_OR_RECORDS)

# Maps and the probe block


_rewritten(
    "maps swapped",
    r"\[__neutrino_block\+(24|40)\]",
    lambda found: f"[__neutrino_block+{64 - int(found[1])}]",
    (MEMORY, WARPS),
    (MEMORY, SUMS),
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "records and counts swapped",
    r"\[__neutrino_block\+(24|32)\]",
    lambda found: f"[__neutrino_block+{56 - int(found[1])}]",
    (BRANCHES, ACCESSES),
    by=MEMORY_OR_RECORDS,
)
_rewritten("probe block read four bytes off", r"\[__neutrino_block\+4\]", "[__neutrino_block]", (BRANCHES, ACCESSES))
FAULTS.append(
    Fault(
        "probe block put elsewhere than the twin reads it",
        ((BRANCHES, ACCESSES),),
        frozenset({"refused"}),
        manifest=lambda kernel: dataclasses.replace(kernel, block_offset=kernel.block_offset - 4),
    )
)
FAULTS.append(
    Fault(
        "variables in another order",
        ((MEMORY, ACCESSES),),
        RUN,
        manifest=lambda kernel: dataclasses.replace(kernel, variables=kernel.variables[::-1]),
    )
)


_rewritten(
    "a variable's address from its neighbour's place",
    r"(ld\.param\.u64 %neutrino_v\d+), \[__neutrino_block\+(\d+)\]",
    lambda found: f"{found[1]}, [__neutrino_block+{int(found[2]) - 8}]",
    (MEMORY, ACCESSES),
    by=RUN,
)
_rewritten("offset after a variable lost", r"\[(%neutrino_v\d+)\+4\]", r"[\1]", (MEMORY, ACCESSES), by=RUN)

# What a site's operands are


_rewritten(
    "address without its immediate offset",
    r"^\tadd\.s64 (%neutrino_td\d+), (%rd\d+), -?\d+;",
    r"\tmov.b64 \1, \2;",
    (BRANCHES, ACCESSES),
)


_rewritten(
    "address with a negative offset taken as positive",
    r"^(\tadd\.s64 %neutrino_td\d+, %rd\d+), -",
    r"\1, ",
    (BRANCHES, ACCESSES),
)


_rewritten(
    "an input read after the instruction that overwrites it",
    r"^(\tmov\.b32 %neutrino_tw\d+, %r10;\n)(\tadd\.s32 %r10, %r10, %r7;\n)",
    r"\2\1",
    (BRANCHES, VALUES),
)


_rewritten(
    "bytes of a vector: one element",
    r"^(\t@!%p1 add\.u32 %neutrino_c0, %neutrino_c0), 16;",
    r"\1, 4;",
    (MEMORY, GMEM_BYTES),
)


_rewritten("element of a vector off by one", r"^(\tcvt\.u64\.u32 %neutrino_td3), %r10;", r"\1, %r9;", (MEMORY, VECTORS))


_rewritten(
    "destination and first source mixed up",
    r"^(\tcvt\.u64\.u32 %neutrino_td1), (%r10);\n(\tcvt\.u64\.u32 %neutrino_td2), (%neutrino_tw0);",
    r"\1, \4;\n\3, \2;",
    (BRANCHES, VALUES),
)


_rewritten(
    "code of one site reused at another with other operands",
    r"^(\tisspacep\.global %neutrino_tq0), %rd15;",
    r"\1, %rd14;",
    (MEMORY, GMEM_BYTES),
)


_rewritten(
    "generic addresses all counted as global",
    r"^\tisspacep\.global (%neutrino_tq0), .*;",
    r"\tmov.pred \1, 1;",
    (MEMORY, GMEM_BYTES),
)
_rewritten(
    "shared addresses recorded with their upper half undefined",
    r"^\tcvt\.u64\.u32 (%neutrino_td\d+), (%r\d+);",
    r"\tmov.b64 \1, {\2, \2};",
    (MEMORY, ACCESSES),
)


_changed(
    "no private copy of a product that may be fused",
    lambda text: re.sub(
        r"%neutrino_m([012])\b", lambda found: ("%f3", "%f5", "%f6")[int(found[1])],
        re.sub(r"^\t(?:mul\.rn\.f32|\.reg \.b32) %neutrino_m.*\n", "", text, flags=re.MULTILINE),
    ),
    (PRODUCTS, VALUES),
    by=ARITHMETIC,
)


_rewritten(
    "predicated stores between a product and its sum",
    r"^(\tadd\.f32 %f4, %f3, %f1;\n)((?:\t@%neutrino_tq1 st\.global.*\n){3})",
    r"\2\1",
    (PRODUCTS, VALUES),
    by=ARITHMETIC,
)


_changed(
    "registers of waiting stores handed out again",
    lambda text: re.sub(r"%neutrino_td(1[4-9]|20)\b", lambda found: f"%neutrino_td{int(found[1]) - 7}", text),
    (PRODUCTS, VALUES),
)


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
        by=RESULTS,
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
    by=RESULTS,
)


_changed(
    "a probe's registers not renamed",
    lambda text: re.sub(
        r"%neutrino_r_(p1|rd[1-5])\b", r"%\1",
        re.sub(r"^\t\.reg \.\w+ %neutrino_r_(?:p1|rd[1-5]);\n", "", text, flags=re.MULTILINE),
    ),
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
    by=RUN,
)


_rewritten("scratch registers overlap", r"%neutrino_tw3\b", "%neutrino_tw1", (BRANCHES, ACCESSES), by=RUN)


_rewritten(
    "contexted register begins with what was there",
    r"^\tmov\.b64 %neutrino_r_rd3, 0;\n",
    "",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
    by=RUN,
)
_rewritten(
    "contexted register begins anew at each site",
    r"^(\tadd\.u64 %neutrino_r_rd3)",
    r"\tmov.u64 %neutrino_r_rd3, 0;\n\1",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
)

# The program itself

_rewritten(
    "twin stores into the program's memory",
    r"ld\.param\.u64 %neutrino_td0, \[__neutrino_block\+24\];",
    "ld.param.u64 %neutrino_td0, [out];",
    (BRANCHES, ACCESSES),
    (MEMORY, ACCESSES),
    by=RUN,
)
_rewritten(
    "a barrier where only some threads come",
    r"^(\tmov\.b64 (%neutrino_td\d+), 4;)",
    r"\1\n\tbar.sync 1, 96;",
    (MEMORY, ACCESSES),
    by=RESULTS,
)
