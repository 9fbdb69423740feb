"""A kernel's text with instructions of our own beside the program's: how often those run shows what probes must count.

This reads PTX by itself, one statement a line, and knows nothing of the rewriter. Of a statement under
a predicate the tracer reports only the threads for which it runs; an instruction without one before it shows all that
come to it, and one after a call those that come back from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from neutrino.emulator.tracer import Tracer
from tests.oracle.bench import Bench, Kernel
from tests.oracle.simulation import LANES, Array

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"[\w$]+\s*:")
_INSTRUCTION = re.compile(r"(?P<guard>@\s*!?\s*%?\w+\s+)?(?P<opcode>[a-z]\w*(?:\.[\w:]+)*)")
_CALLEE = re.compile(r"call(?:\.\w+)*\s+(?:\([^()]*\)\s*,\s*)?(\w+)")
_FUNCTION = re.compile(r"\.(?:func|entry)\s*(?:\([^()]*\)\s*)?(\w+)")
# Registers that random kernels do not use.
_COMES, _BACK, _ALL_BACK = "brev.b32 %r28, %r28;", "clz.b32 %r27, %r27;", "popc.b32 %r26, %r26;"


@dataclass
class Statement:
    """An instruction. runs, comes, back: threads that ran it, came to it, came back from the call that it is.

    all_back: the same under its predicate and without. is_first: of its function. line: in the text one statement a
    line.
    """

    function: str
    guarded: bool
    opcode: str
    line: int
    is_first: bool
    callee: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    threads: dict[str, list[Array]] = field(default_factory=dict)

    def count(self, what: str, level: str, block: int) -> int:
        """How often threads did so, of those that a level's snippets run for. what: runs, comes, back or all_back."""
        total = 0
        for threads in self.threads.get(what, ()):
            inside = threads % block
            owners = {"thread": np.ones(len(inside), bool), "warp": inside % LANES == 0, "block": inside == 0}[level]
            total += int(owners.sum())
        return total


def plain_kernel(kernel: Kernel) -> tuple[Kernel, list[Statement]]:
    """The kernel with one statement a line, and what its statements did under the fixed schedule."""
    plain, marked, statements = _mark(kernel.text)
    bench = Bench(replace(kernel, text=marked), (), (None,))
    place = bench.place(None)
    launch = place.launch()
    tracer = Tracer(lambda statement: True)
    place.device.launch(place.function, launch.grid, launch.block, launch.parameters, observer=tracer)
    executions: dict[int, list[Array]] = {}
    for execution in tracer.executions:
        executions.setdefault(execution.site.line, []).append(execution.threads)
    for statement in statements:
        statement.threads = {what: executions.get(line, []) for what, line in statement.lines.items()}
    return replace(kernel, text=plain), statements


def _mark(text: str) -> tuple[str, str, list[Statement]]:
    plain: list[str] = []
    marked: list[str] = []
    statements: list[Statement] = []
    function, is_first = "", False
    for kind, piece in _pieces(text):
        instruction = _INSTRUCTION.match(piece) if kind == "statement" else None
        if kind == "header":
            found = _FUNCTION.search(piece)
            function, is_first = found[1] if found else "", True
        if instruction is None:
            plain += piece.split("\n")
            marked += piece.split("\n")
            continue
        guard, opcode = instruction["guard"], instruction["opcode"]
        plain.append(piece)
        statement = Statement(function, bool(guard), opcode, len(plain), is_first)
        is_first = False
        if guard:
            marked.append(_COMES)
            statement.lines["comes"] = len(marked)
        marked.append(piece)
        statement.lines["runs"] = len(marked)
        statement.lines.setdefault("comes", len(marked))
        callee = _CALLEE.search(piece)
        if callee is not None:
            statement.callee = callee[1]
            marked += [f"{guard or ''}{_BACK}", _ALL_BACK]
            statement.lines |= {"back": len(marked) - 1, "all_back": len(marked)}
        statements.append(statement)
    return "\n".join(plain) + "\n", "\n".join(marked) + "\n", statements


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Headers, braces, labels, directives and statements, in order."""
    head, rest = _COMMENT.sub(" ", text).split(".address_size 64", 1)
    yield "directive", f"{head}.address_size 64"
    at = depth = 0
    while at < len(rest):
        if rest[at].isspace():
            at += 1
            continue
        label = _LABEL.match(rest, at)
        end = at + 1
        kind = "brace"
        if rest[at] in "{}":
            depth += 1 if rest[at] == "{" else -1
        elif depth == 0:
            kind, end = "header", rest.index("{", at)
        elif label is not None:
            kind, end = "label", label.end()
        else:
            end = rest.index(";", at) + 1
            kind = "directive" if rest[at] == "." else "statement"
        yield kind, " ".join(rest[at:end].split())
        at = end
