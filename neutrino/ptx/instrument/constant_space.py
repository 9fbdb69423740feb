"""Constant variables of a kernel, which its twin reads through global memory.

A twin has the addresses of the original's variables, as global ones: no module can name another's constants. So its
loads from the constant space become global ones, and text is refused in which an address of that space could go where
this would show.
"""

from __future__ import annotations

import re

from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.instrument.values import UnsupportedError
from neutrino.ptx.isa.instruction import REGISTER, Mnemonic
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits

_CONST = re.compile(r"(?:ld|cvta)(?:\.[\w:]+)*?(?P<space>\.const)\b(?P<bank>\s*\[\d+\]\s*\.)?", re.ASCII)
_CONST_POINTER = re.compile(r"\.ptr\s*\.const\b", re.ASCII)
_MOVES_ADDRESSES = frozenset({"mov", "add", "sub", "mad", "selp"})


def read_through_global_memory(callee: Callee, edits: Edits) -> bool:
    """Have a body that names constant variables read them as global ones.

    Whether it makes generic addresses of such: then a generic load anywhere in the kernel may mean one, which
    ``check_load`` refuses. Raises UnsupportedError.
    """
    names = {variable.name for variable in callee.variables if variable.space == "const"}
    if not names:
        return False
    body = callee.body
    if any(_asks(opcode) for opcode in body.opcodes):
        raise UnsupportedError("it asks for the constant space (isspacep.const) and uses constant variables")
    for statement in _about_constants(body):
        match = _CONST.match(body.code, statement.position, statement.end)
        if match is None:
            continue
        if match["bank"]:
            raise UnsupportedError(f"line {callee.module.line(statement.position)}: it names a constant bank")
        edits.replace(*match.span("space"), ".global")
    _check_addresses(callee, names)
    return any(opcode.parts[:2] == ("cvta", "const") for opcode in body.opcodes)


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
    for statement in _about_constants(callee.body):
        shown = " ".join(statement.text.split())
        raise UnsupportedError(
            f"line {callee.module.line(statement.position)}: {shown!r} in {function.name} may be about a constant "
            "variable that it does not name, which lies elsewhere for the twin"
        )


def _about_constants(body: Body) -> list[Statement]:
    """Loads from the constant space, then conversions of its addresses, then questions about them."""
    words = ("ld", "cvta", "isspacep")
    chosen = {opcode for opcode in body.opcodes if opcode.word in words and "const" in opcode.parts}
    found = [body.statement(index) for index in body.where(chosen)]
    return sorted(found, key=lambda statement: words.index(statement.word))


def _asks(opcode: Mnemonic) -> bool:
    return opcode.word == "isspacep" and "const" in opcode.parts


def check_load(statement: Statement, line: int) -> None:
    """Refuse a load that may mean a constant by its generic address. line: of the module's text, from 1.

    Raises UnsupportedError.
    """
    if statement.word == "ld" and statement.mnemonic is not None and not statement.mnemonic.state_space:
        raise UnsupportedError(
            f"line {line}: {' '.join(statement.text.split())!r} may read a constant, which lies elsewhere for the twin"
        )


def _check_addresses(callee: Callee, names: set[str]) -> None:
    """Refuse where a number computed from an address in the constant space goes elsewhere than into loads.

    The twin has another address. Registers are followed by name, whatever the order of instructions.
    """
    module, body = callee.module, callee.body
    moves = body.where({opcode for opcode in body.opcodes if opcode.word == "mov"})
    if not any(name in body.statement(index).text for index in moves for name in names):
        return
    used = []
    for statement in body:
        instruction = statement.instruction
        if instruction is not None and len(instruction.operands) > 1:
            read = REGISTER.findall(",".join(instruction.sources))
            used.append((instruction, statement, read))
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
    for instruction, statement, read in used:
        loads = instruction.parts[0] in {"ld", "cvta", *_MOVES_ADDRESSES}
        if not (loads or moved.isdisjoint(read) or (instruction.parts[0] == "setp" and moved.issuperset(read))):
            line, shown = module.line(statement.start), " ".join(statement.text.split())
            raise UnsupportedError(f"line {line}: {shown!r} depends on the address of a constant")
