"""What keeps a kernel from having a twin, as far as its module's text tells before anything is written."""

from __future__ import annotations

import re

from neutrino.abi.reasons import Reason
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.values import UnsupportedError
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import Kind, Module

_SPECIAL = re.compile(
    rf"(?:{'|'.join(sorted({re.escape(name.partition('.')[0]) for name in SPECIAL_REGISTERS}))})(?![\w$])", re.ASCII
)


class SkipError(Exception):
    """A kernel gets no twin, for another reason than that it holds what is not supported. detail: as in a manifest."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def module_obstacle(linkage: Linkage) -> str | None:
    """What makes twins of all kernels of a module impossible, None when nothing does."""
    module = linkage.module
    if module.address_size != 64:
        return f".address_size is {module.address_size}, not 64"
    aliases = {directive for _, directive in linkage.aliases.values()}
    for statement in module.statements:
        if statement.kind is Kind.UNKNOWN or (statement.kind is Kind.ALIAS and statement not in aliases):
            line = module.line(statement.start)
            source = module.source(statement).strip().split("\n")[0]
            return f"line {line}: {source!r} at module level is not supported"
    return None


def check_text(module: Module, body: Body) -> None:
    """Refuse a body of a module that ptxas reads otherwise than we do. Raises UnsupportedError."""
    # Where nothing closes a body it takes in all the rest.
    if body.end == len(module.code) and module.code.count("{", body.start) != module.code.count("}", body.start):
        raise UnsupportedError(f"line {module.line(body.start)}: the text ends within the body that begins there")
    for position in body.spaced_dots:
        statement = body.statement(body.index_at(position))
        if module.code[statement.start] != ".":
            raise UnsupportedError(f"line {module.line(statement.start)}: white space within an opcode")
    for statement in body.directives:
        special = _SPECIAL.search(statement.text) if statement.text.startswith(".reg") else None
        if special is not None:
            raise UnsupportedError(f"line {module.line(statement.start)}: a register of its own is called {special[0]}")
