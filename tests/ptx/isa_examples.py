"""Instructions of every row of the table of opcodes, and which helpers each of them has.

A line of isa_examples.txt: the instruction, ``=``, the helpers that it has besides PRED, LANES and SITE; ``BYTES:16``
and ``OPS:128`` are numbers that its text alone says. Of long lists of inputs some are named, the last one among them.
Registers: %p predicates, %h 16 bits, %r and %f 32, %rd and %d 64, %q 128; ``<r4>`` is a vector of four, ``<r4@8>`` one
from %r8 on. ``smem`` is a shared variable, ``L1`` a label.
"""

from __future__ import annotations

import re
from pathlib import Path

_TEXT = Path(__file__).with_name("isa_examples.txt")
_VECTOR = re.compile(r"<(\D+)(\d+)(?:@(\d+))?>")


def _expand(match: re.Match[str]) -> str:
    first = int(match[3] or 0)
    return "{" + ", ".join(f"%{match[1]}{number}" for number in range(first, first + int(match[2]))) + "}"


def _examples() -> list[tuple[str, str, tuple[str, ...]]]:
    found = []
    arch = ""
    for line in _TEXT.read_text().split("\n"):
        if line.startswith("sm_"):
            arch = line
        elif line:
            instruction, _, helpers = line.rpartition("=")
            found.append((arch, _VECTOR.sub(_expand, instruction).strip(), tuple(helpers.split())))
    return found


EXAMPLES = _examples()
"""(architecture, instruction without its semicolon, helpers)."""
