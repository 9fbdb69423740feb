"""Seeded faults where threads end, in sums, in called functions, and at block level."""

from __future__ import annotations

from tests.oracle.fault import MEMORY_OR_RECORDS, RUN, Faults
from tests.oracle.kernels import BRANCHES, CALLS, FLOATS, MEMORY
from tests.oracle.probes import ACCESSES, BLOCKS, SUMS

FAULTS = Faults()
_rewritten, _changed = FAULTS.rewritten, FAULTS.changed


# The ends of threads


_rewritten(
    "end lost: a predicated exit",
    r"^\t@!%p1 bra \$L__neutrino_0;\n(?:\t.*\n)*?(?=\t@%p1 exit;)",
    "",
    (BRANCHES, SUMS),
    (BRANCHES, ACCESSES),
)


_rewritten("end lost: falling off", r"(?:^(?=.*neutrino|\t[{}]$).*\n)+(?=\t\}\s*\Z)", "", (BRANCHES, SUMS))


_rewritten("end lost: exit", r"(?:^\t(?=.*neutrino|[{}]$).*\n)+(?=\texit;\n)", "", (BRANCHES, SUMS))


_rewritten("end lost: an early ret", r"(?:^\t(?=.*neutrino|[{}]$).*\n)+(?=\tret;\n)", "", (BRANCHES, SUMS))


_rewritten(
    "end of some taken for the end of all",
    r"^\t@!%p1 bra \$L__neutrino_0;\n",
    "",
    (BRANCHES, SUMS),
)


_rewritten(
    "at a predicated end the wrong lanes go on",
    r"^(.*)@!(%p\d+) bra (\$L__neutrino_\d+);",
    r"\1@\2 bra \3;",
    (FLOATS, SUMS),
    (BRANCHES, SUMS),
    by=RUN,
)
_rewritten(
    "a label of ours on the wrong branch", r"bra \$L__neutrino_1;", "bra $L__neutrino_0;", (BRANCHES, SUMS), by=RUN
)
_rewritten("the end's own instruction lost", r"^\t@%p2 ret;\n", "", (BRANCHES, ACCESSES), by=RUN)

# Sums

_rewritten(
    "sum over all lanes in place of those that are there",
    r"^\tactivemask\.b32 (.*);",
    r"\tmov.u32 \1, -1;",
    (BRANCHES, SUMS),
    by=MEMORY_OR_RECORDS,
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
    by=MEMORY_OR_RECORDS,
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
    "state not loaded after a call",
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
    r"\[%neutrino_state\+56\]",
    "[%neutrino_state+64]",
    (CALLS, SUMS),
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "a word of the probe block does not reach functions",
    r"^\tst\.local\.u64 \[__neutrino_state\+16\], .*\n",
    "",
    (CALLS, ACCESSES),
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "a variable's address from its neighbour's place, in a function",
    r"(ld\.local\.u64 %neutrino_v\d+), \[%neutrino_state\+(\d+)\]",
    lambda found: f"{found[1]}, [%neutrino_state+{int(found[2]) - 8}]",
    (CALLS, ACCESSES),
    by=RUN,
)


_rewritten(
    "site missed: in a function",
    r"(?:^\t(?=.*neutrino).*\n)+(?=\tst\.global\.u32 \[%rd1\+4096\])",
    "",
    (CALLS, ACCESSES),
)


_rewritten(
    "end lost: exit in a function",
    r"^\t@!%p1 bra \$L__neutrino_0;\n(?:\t.*\n)*?(?=\t@%p1 exit;)",
    "",
    (CALLS, SUMS),
)


_rewritten(
    "an early return of a function forgotten",
    r"(?:^\t(?:selp|st\.local)\b.*\n)+(?=\t@%p2 ret;)",
    "",
    (CALLS, SUMS),
)


_rewritten(
    "falling off a function forgotten",
    r"(?:^\t?(?:selp|st\.local)\b.*\n)+(?=\t\}\n)",
    "",
    (CALLS, ACCESSES),
    (CALLS, SUMS),
)


_rewritten(
    "two registers at one place of the state",
    r"\[((?:%|__)neutrino_state)\+184\]",
    r"[\1+176]",
    (CALLS, SUMS),
)


_rewritten(
    "what a function's own calls change is not loaded",
    r"^(\t\}\n)(?:\tld\.local\S+ %neutrino\w+, \[%neutrino_state.*\n|\tsetp\.ne\.u32 %neutrino_r.*\n)+",
    r"\1",
    (CALLS, SUMS),
)


_rewritten(
    "a call goes to the function without probes",
    r"note__neutrino_calls, \(%neutrino_state\);",
    "note;",
    (CALLS, ACCESSES),
    by=frozenset({"refused"}),
)


# Block level and caps of a launch

_rewritten(
    "block level: every thread writes",
    r"^\tsetp\.eq\.and\.u32 %neutrino_tq\d+, %neutrino_tw1, 0, .*\n",
    "",
    (BRANCHES, BLOCKS),
    by=MEMORY_OR_RECORDS,
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
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "slots as far apart as of a cap of one",
    r"^\tmad\.wide\.u32 (%neutrino_td\d+), (%neutrino_tw\d+), 2560, \1;",
    r"\tmad.wide.u32 \1, \2, 512, \1;",
    (BRANCHES, BLOCKS),
    by=MEMORY_OR_RECORDS,
)
_rewritten(
    "the cap not looked at",
    r"setp\.lt\.and\.u32 (%neutrino_tq\d+), %neutrino_k\d, 5, (%neutrino_tq\d+);",
    r"mov.pred \1, \2;",
    (CALLS, BLOCKS),
    by=MEMORY_OR_RECORDS,
)


_rewritten(
    "a register of block level changed in all threads",
    r"^\t@%neutrino_tq\d+ (add\.u64 %neutrino_r_stores)",
    r"\t\1",
    (BRANCHES, BLOCKS),
)
