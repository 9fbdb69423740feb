"""Constant variables of a kernel, which its twin reads through global memory.

A twin has the addresses of the original's variables, as global ones: no module can name another's constants. So its
loads from the constant space become global ones, and text is refused in which an address of that space could go where
this would show.
"""

from __future__ import annotations

import re

from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.instrument.values import UnsupportedError
from neutrino.ptx.isa.instruction import REGISTER, read_instruction
from neutrino.ptx.text.edits import Edits
from neutrino.ptx.text.module import Module

_LOAD_CONST = re.compile(
    r"(?<=[;{}:\s])ld(?:\.[\w:]+)*?(?P<space>\.const)\b(?P<bank>\s*\[\d+\]\s*\.)?", re.ASCII
)
_TO_CONST = re.compile(r"(?<=[;{}:\s])cvta(?:\.to)?(?P<space>\.const)\b", re.ASCII)
_TO_GENERIC = re.compile(r"(?<=[;{}:\s])cvta\.const\b", re.ASCII)
_ASKS_CONST = re.compile(r"(?<=[;{}:\s])isspacep\.const\b", re.ASCII)
_CONST_POINTER = re.compile(r"\.ptr\s*\.const\b", re.ASCII)
_STATEMENT = re.compile(r"(?<=[;{}:\s])((?:@\s*!?\s*[\w$%]+\s+)?[a-z]\w*(?:\.[\w:]+)*\b[^;:]*)(?=;)", re.ASCII)
_MOVES_ADDRESSES = frozenset({"mov", "add", "sub", "mad", "selp"})


def read_through_global_memory(callee: Callee, edits: Edits) -> bool:
    """Have a body that names constant variables read them as global ones.

    Whether it makes generic addresses of such: then a generic load anywhere in the kernel may mean one, which
    ``check_load`` refuses. Raises UnsupportedError.
    """
    names = {variable.name for variable in callee.variables if variable.space == "const"}
    if not names:
        return False
    code, start, end = callee.module.code, callee.body.start, callee.body.end
    if _ASKS_CONST.search(code, start, end):
        raise UnsupportedError("it asks for the constant space (isspacep.const) and uses constant variables")
    for pattern in (_LOAD_CONST, _TO_CONST):
        for match in pattern.finditer(code, start, end):
            if match.groupdict().get("bank"):
                raise UnsupportedError(f"line {callee.module.line(match.start())}: it names a constant bank")
            edits.replace(*match.span("space"), ".global")
    _check_addresses(callee, names)
    return _TO_GENERIC.search(code, start, end) is not None


def check_given_addresses(callee: Callee) -> None:
    """Refuse code beside constant variables that takes addresses in the constant space from elsewhere: what the twin
    names there lies in global memory. Raises UnsupportedError."""
    function, code = callee.function, callee.module.code
    if function.parameters and _CONST_POINTER.search(code, *function.parameters):
        raise UnsupportedError(
            f"{function.name} takes a pointer into the constant space, beside constant variables that move"
        )
    if any(variable.space == "const" for variable in callee.variables):
        return
    for pattern in (_LOAD_CONST, _TO_CONST, _ASKS_CONST):
        found = pattern.search(code, callee.body.start, callee.body.end)
        if found is not None:
            shown = _statement(callee.module, found.start())
            raise UnsupportedError(
                f"line {callee.module.line(found.start())}: {shown!r} in {function.name} may be about a constant "
                "variable that it does not name, which lies elsewhere for the twin"
            )


def check_load(text: str, line: int) -> None:
    """Refuse a load that may mean a constant by its generic address. line: of the module's text, from 1.

    Raises UnsupportedError.
    """
    instruction = read_instruction(text)
    if instruction is not None and instruction.parts[0] == "ld" and not instruction.state_space:
        raise UnsupportedError(
            f"line {line}: {' '.join(text.split())!r} may read a constant, which lies elsewhere for the twin"
        )


def _check_addresses(callee: Callee, names: set[str]) -> None:
    """Refuse where a number computed from an address in the constant space goes elsewhere than into loads.

    The twin has another address. Registers are followed by name, whatever the order of instructions.
    """
    module = callee.module
    used = []
    for match in _STATEMENT.finditer(module.code, callee.body.start, callee.body.end):
        instruction = read_instruction(match[1])
        if instruction is not None and len(instruction.operands) > 1:
            read = REGISTER.findall(",".join(instruction.sources))
            used.append((instruction, match.start(1), read))
    moved = {
        instruction.operands[0]
        for instruction, _, read in used
        if instruction.parts[0] == "mov" and not names.isdisjoint(read)
    }
    known = 0
    while len(moved) != known:
        known = len(moved)
        for instruction, _, read in used:
            if instruction.parts[0] in _MOVES_ADDRESSES and not moved.isdisjoint(read):
                moved.add(instruction.operands[0])
    for instruction, at, read in used:
        loads = instruction.parts[0] in {"ld", "cvta", *_MOVES_ADDRESSES}
        if not (loads or moved.isdisjoint(read) or (instruction.parts[0] == "setp" and moved.issuperset(read))):
            shown = _statement(module, at)
            raise UnsupportedError(f"line {module.line(at)}: {shown!r} depends on the address of a constant")


def _statement(module: Module, at: int) -> str:
    return " ".join(module.code[at : module.code.find(";", at)].split())
