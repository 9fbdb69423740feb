"""What keeps a kernel from having a twin, as far as its module's text tells before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neutrino.probing.layout import Reason
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.values import UnsupportedError
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import Kind, Module

_SPECIAL = re.compile(
    rf"(?:{'|'.join(sorted({re.escape(name.partition('.')[0]) for name in SPECIAL_REGISTERS}))})(?![\w$])", re.ASCII
)
_WHITE_SPACE = " \t\n\r\v\f"


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


class TextCheck:
    """Refuses bodies that ptxas reads otherwise than we do."""

    def __init__(self) -> None:
        # By the module's number: which white space it has at all.
        self._white_space: dict[int, list[str]] = {}

    def check(self, linkage: Linkage, body: Body) -> None:
        """Look at a body of a function of linkage's module. Raises UnsupportedError."""
        module = linkage.module
        # Where nothing closes a body it takes in all the rest.
        if body.end == len(module.code) and module.code.count("{", body.start) != module.code.count("}", body.start):
            raise UnsupportedError(f"line {module.line(body.start)}: the text ends within the body that begins there")
        if linkage.number not in self._white_space:
            self._white_space[linkage.number] = [space for space in _WHITE_SPACE if space in module.code]
        for space in self._white_space[linkage.number]:
            _check_opcodes(module, body, space)
        for at in _places(module.code, ".reg", body):
            special = _SPECIAL.search(module.code, at, module.code.find(";", at))
            if special is not None:
                line = module.line(at)
                raise UnsupportedError(f"line {line}: a register of its own is called {special[0]}")


def _check_opcodes(module: Module, body: Body, space: str) -> None:
    code = module.code
    for at in _places(code, f"{space}.", body):
        if code.endswith(".reg", 0, at) or code.startswith(".reg", at + 1):
            continue
        statement = body.statement_start(at + 1)
        if code[statement] != "." and code[at + 2].isalpha():
            line = module.line(statement)
            raise UnsupportedError(f"line {line}: white space within an opcode")


def _places(code: str, text: str, body: Body) -> Iterator[int]:
    at = code.find(text, body.start, body.end)
    while at >= 0:
        yield at
        at = code.find(text, at + 1, body.end)
