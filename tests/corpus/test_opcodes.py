"""The table of opcodes knows every instruction of the PTX that is in the repository."""

from __future__ import annotations

from collections import Counter

from tests.corpus.all_kernels import ROOT
from tests.corpus.unknown_opcodes import count_opcodes


def test_no_instruction_is_unknown():
    texts = [path.read_text(encoding="latin-1") for path in sorted((ROOT / "tests").rglob("*.ptx"))]
    known, unknown = 0, Counter()
    for text in texts:
        found, lacking = count_opcodes(text)
        known += found
        unknown += lacking
    assert unknown == Counter()
    assert known > 10_000


def test_an_unknown_one_is_found():
    """After labels, lines, braces and guards; opcodes of later versions, and what is no opcode."""
    body = "{ L1: @!%p1 multimem.cp.async.bulk.global [a], [b], 4; .loc 1 2 3\nL2: ret; mov.b32 %r1, {%h1, %h2};\n%x;}"
    text = f".version 9.0\n.target sm_90\n.address_size 64\n.entry k() {{ .reg .b32 %r<2>; {body} memry.u32 %r1; }}"
    assert count_opcodes(text) == (2, Counter({"multimem.cp.async.bulk.global": 1, "%x": 1, "memry.u32": 1}))
