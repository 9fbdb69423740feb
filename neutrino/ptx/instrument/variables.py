"""Module variables of a kernel, which its twin reaches by addresses in registers: the variables stay the original's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.instrument.values import UnsupportedError
from neutrino.ptx.text.edits import Edits

_OPCODE = re.compile(r"[a-z]\w*(?:\.[\w:]+)+")
_MOVES = ("mov.u64", "mov.b64", "mov.s64")


def pass_by_address(callee: Callee, registers: Mapping[str, str], edits: Edits) -> None:
    """Put registers in the place of the module variables that a body names.

    registers: by the variable's name, what holds its address. Raises UnsupportedError.
    """
    for variable, register in registers.items():
        for start, end in callee.linkage.references(callee.function, variable):
            _replace(callee, variable, register, start, end, edits)


def _replace(callee: Callee, variable: str, register: str, start: int, end: int, edits: Edits) -> None:
    code, body = callee.module.code, callee.body
    statement = body.statement(body.index_at(start))
    at = statement.start
    ahead = code[at:start]
    follows = code[end : end + 32].lstrip()
    if ahead.count("[") > ahead.count("]"):
        edits.replace(start, end, register)
        return
    opcode = _OPCODE.search(ahead)
    if follows.startswith((";", ",")) and opcode and opcode[0].startswith((*_MOVES, "cvta.")):
        edits.replace(start, end, register)
        return
    if follows.startswith("+") and opcode and opcode[0] in _MOVES:
        plus = code.index("+", end)
        edits.replace(at + opcode.start(), at + opcode.end(), "add.s64")
        edits.replace(start, plus + 1, f"{register}, ")
        return
    source = " ".join(statement.text.split())
    raise UnsupportedError(f"line {callee.module.line(start)}: it uses {variable} in {source!r}")
