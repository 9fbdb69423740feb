"""Functions that a twin calls with probes in them: private copies, and the state that reaches them.

A function gets a copy of its own for each twin, ``NAME__neutrino_KERNEL``, when it holds a site or an end of the
thread, names a module variable that is passed by address, or calls a function that does. All others are called as
they are.

The kernel keeps its state in local memory while such a function runs: the words of the probe block that functions
read, at the offsets that they have there, and after them the registers that live from entry to exit. The address
of that state is one more parameter of each copy, a register. A body has in registers of its own what it names itself:
a function loads it at its entry and stores at its returns what it may have changed; around a call a body stores what
the called function names, and loads what that may have changed. So the state is whole wherever a function begins or
ends, which is all that recursion needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from neutrino.abi.structures import align_up
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.instrument.registers import SUFFIX, Kept, Scratch, UnsupportedError, bits
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import ModuleStatement

_LINKAGE_WORD = re.compile(r"\.(?:visible|weak|extern|common)\b\s*", re.ASCII)
_PRAGMA = re.compile(r"\.pragma\b[^;]*;", re.ASCII)
_ARGUMENTS = re.compile(r"\s*(?:,\s*\((?P<given>[^()]*)\)\s*)?(?=;)", re.ASCII)


@dataclass(frozen=True)
class FunctionCopy:
    """A function's private copy for one twin. name: the function's; copy_name: its own.

    text: the copy; prototype: its declaration, which stands before all code; original_text: the function. statement:
    the function in its module, where the copy goes. callers: numbers of other modules that call it. own_arithmetic: as
    for a twin. is_recursive: it calls itself, directly or not.
    """

    name: str
    copy_name: str
    original_text: str
    text: str
    prototype: str
    statement: ModuleStatement
    callers: frozenset[int] = frozenset()
    own_arithmetic: Mapping[str, int] = field(default_factory=dict)
    is_recursive: bool = False

    @property
    def external_prototype(self) -> str:
        """Its declaration in another module."""
        return f".extern {self.prototype.removeprefix('.visible ')}"


def copy_name(callee: Callee, kernel: Callee) -> str:
    """The name of a function's copy for a kernel. Raises UnsupportedError when the module has it already."""
    name = f"{callee.function.name}{SUFFIX}_{kernel.function.name}"
    if callee.linkage.number != kernel.linkage.number:
        name = f"{name}__{callee.linkage.number}"
    for module in (callee.module, kernel.module):
        if name in module.symbols:
            raise UnsupportedError(f"the module has a {name} already")
    return name


def copy_header(callee: Callee, name: str, address: str, *, visible: bool) -> tuple[str, str]:
    """The header of a function's copy, and its declaration. address: the register that gets the state's address."""
    function, text, code = callee.function, callee.module.text, callee.module.code
    start, body_start = function.statement.start, callee.body.start
    name_start = function.name_end - len(function.name)
    linkage = ".visible " if visible else ""
    before = linkage + _LINKAGE_WORD.sub("", text[start:name_start])
    parameter = f".reg .b64 {address}"
    if function.parameters is None:
        given, rest = f"({parameter})", function.name_end
    else:
        first, rest = function.parameters[0], function.parameters[1]
        some = code[first:rest].rstrip()
        if some.endswith("]") and some[:-1].rstrip().endswith("["):
            raise UnsupportedError(f"the called function {function.name} takes any number of arguments")
        added = f",\n\t{parameter}\n)" if some.strip() else f"{parameter})"
        given = text[function.name_end : first + len(some)] + added
        rest += 1
    header = before + name + given + text[rest:body_start]
    plain = before + name + given + _PRAGMA.sub("", code[rest:body_start])
    return header, f"{plain.rstrip()}\n;"


def pass_address(body: Body, call: Call, address: str) -> tuple[int, str]:
    """Where and what to insert so that a call passes the state's address. Raises UnsupportedError."""
    arguments = _ARGUMENTS.match(body.code, call.end)
    if arguments is None:
        source = " ".join(body.code[call.start : body.code.find(";", call.end)].split())
        raise UnsupportedError(f"a call of an unknown form: {source!r}")
    given = arguments["given"]
    if given is None:
        return call.end, f", ({address})"
    at = arguments.start("given") + len(given.rstrip())
    return at, f", {address}" if given.strip() else address


def around_call(body: Body, call: Call) -> tuple[int, int]:
    """Code around a call: the state is stored before it and loaded after it. Raises UnsupportedError."""
    sequence = body.call_sequence(call.start)
    if sequence is None:
        raise UnsupportedError(f"a call of an unknown form: {body.code[call.start : call.end]!r}")
    return sequence


class State:
    """Where a kernel's state lies in its local memory. block_size: bytes of the probe block."""

    def __init__(self, block_size: int) -> None:
        self._offsets: dict[str, int] = {}
        self.size = align_up(block_size, 8)

    def _offset(self, kept: Kept) -> int:
        if kept.name not in self._offsets:
            size = _bytes(kept)
            self._offsets[kept.name] = align_up(self.size, size)
            self.size = self._offsets[kept.name] + size
        return self._offsets[kept.name]

    def store(self, base: str, chosen: Iterable[Kept], scratch: Scratch) -> list[str]:
        """Stores of registers. base: the buffer's name, or a register that holds its address."""
        lines = []
        for kept in chosen:
            kind, word = _moved(kept, scratch)
            if word != kept.name:
                lines.append(f"selp.u32 {word}, 1, 0, {kept.name};")
            lines.append(f"st.local.{kind} [{base}+{self._offset(kept)}], {word};")
        return lines

    def load(self, base: str, chosen: Iterable[Kept], scratch: Scratch) -> list[str]:
        """Instructions that restore the chosen registers from where ``store`` put them."""
        lines = []
        for kept in chosen:
            kind, register = _moved(kept, scratch)
            lines.append(f"ld.local.{kind} {register}, [{base}+{self._offset(kept)}];")
            if register != kept.name:
                # A predicate cannot be loaded: it goes through a scratch register.
                lines.append(f"setp.ne.u32 {kept.name}, {register}, 0;")
        return lines


def _moved(kept: Kept, scratch: Scratch) -> tuple[str, str]:
    """As what a register goes to memory and comes back: the type, and what holds it, for predicates a word."""
    return ("u32", scratch.take("b32")) if kept.type == "pred" else (f"b{bits(kept.type)}", kept.name)


def _bytes(kept: Kept) -> int:
    if kept.type == "pred":
        return 4
    size = TYPE_BYTES.get(kept.type)
    if size is None:
        raise UnsupportedError(f"{kept.name} of type .{kept.type} cannot be kept while a function runs")
    return size


_Name = TypeVar("_Name")
_Key = tuple[int, str]


def reach(calls: Mapping[_Key, Collection[_Key]], own: Mapping[_Key, Collection[_Name]]) -> dict[_Key, set[_Name]]:
    """Of each function its own names and those of the functions that it calls, directly or not."""
    found = {key: set(names) for key, names in own.items()}
    changed = True
    while changed:
        changed = False
        for key, called in calls.items():
            known = len(found[key])
            for callee in called:
                found[key] |= found.get(callee, set())
            changed = changed or len(found[key]) != known
    return found


def with_their_callers(functions: Collection[Callee], direct: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Of the functions of a kernel those in direct, and those that call one of them."""
    found = set(direct)
    known = -1
    while len(found) != known:
        known = len(found)
        found |= {callee.key for callee in functions if any(call.callee in found for call in callee.calls)}
    return found

