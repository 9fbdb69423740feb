"""Instructions of PTX texts that the table of opcodes does not know, found without the patcher's own patterns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neutrino.ptx.isa.opcodes import find
from neutrino.ptx.text.module import parse

# Braces, labels and lines stand before a statement; a directive is none.
_BEFORE = re.compile(r"(?:\s+|[{}]|\.loc\b[^\n]*\n|[A-Za-z_$%][\w$]*\s*:(?!:))*", re.ASCII)
_GUARD = re.compile(r"@\s*!?\s*[\w$%]+\s+", re.ASCII)
_OPCODE = re.compile(r"[a-z]\w*(?:\.[\w:]+)*", re.ASCII)


def count_opcodes(text: str) -> tuple[int, Counter[str]]:
    """Count the instructions in the functions of a PTX module, and those that our table of opcodes lacks, by opcode.

    Of what begins as no instruction does the statement's first characters stand for the opcode.
    """
    known = 0
    unknown: Counter[str] = Counter()
    module = parse(text)
    for function in (*module.functions, *module.entries):
        if function.body is None:
            continue
        start, end = function.body
        for statement in module.code[start:end].split(";"):
            bare = statement[_BEFORE.match(statement).end() :]  # type: ignore[union-attr]
            if not bare or bare.startswith("."):
                continue
            guard = _GUARD.match(bare)
            match = _OPCODE.match(bare, guard.end() if guard else 0)
            if match is not None and find(tuple(match[0].split("."))) is not None:
                known += 1
            else:
                unknown[match[0] if match else bare[:40]] += 1
    return known, unknown


def count_images(paths: Iterable[Path], source: str) -> dict[str, Any]:
    """Count the instructions in the PTX texts of a source's images, those that the table of opcodes knows, and the
    unknown by name."""
    from tests.corpus.all_kernels import texts

    count, known = 0, 0
    unknown: Counter[str] = Counter()
    for path in paths:
        for text in texts(path.read_bytes(), path.name):
            found, lacking = count_opcodes(text)
            count, known = count + 1, known + found
            unknown += lacking
    return {"source": source, "texts": count, "known": known, "unknown": dict(unknown)}
