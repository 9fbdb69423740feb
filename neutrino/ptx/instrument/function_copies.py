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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from neutrino.abi.structures import align_up
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.instrument.registers import Kept, Scratch, UnsupportedError, bits
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.inserted import Lines, mem, op
from neutrino.ptx.text.module import ModuleStatement
from neutrino.twins.values import SUFFIX

_LINKAGE_WORDS = (".visible", ".weak", ".extern", ".common")


@dataclass(frozen=True)
class FunctionCopy:
    """A function's private copy for one twin. name: the function's; copy_name: the copy's.

    text: of the copy; prototype: its declaration, which stands before all code; original_text: of the function.
    statement: the function in its module, in whose place the copy goes. callers: the numbers of other modules that call
    it. own_arithmetic: how many floating-point instructions the probes add, by SASS mnemonic. is_recursive: it calls
    itself, directly or not.
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
    """The name of a function's copy for a kernel. Raises UnsupportedError when a module has that name already."""
    name = f"{callee.function.name}{SUFFIX}_{kernel.function.name}"
    # Static functions of several modules may share a name.
    if callee.linkage.number != kernel.linkage.number:
        name = f"{name}__{callee.linkage.number}"
    for module in (callee.module, kernel.module):
        if name in module.symbols:
            raise UnsupportedError(f"the module has a {name} already")
    return name


def copy_header(callee: Callee, name: str, address: str, *, visible: bool) -> tuple[str, str]:
    """The header of a function's copy, with one more parameter, and the copy's declaration (prototype).

    The parameter comes last: the address of the kernel's state. name: the copy's. address: the register that gets that
    address. visible: to other modules.
    Raises UnsupportedError for a function with a variable number of arguments.
    """
    function, text, code = callee.function, callee.module.text, callee.module.code
    start, body_start = function.statement.start, callee.body.start
    name_start = function.name_end - len(function.name)
    linkage = ".visible " if visible else ""
    before = text[start:name_start]
    for word in _LINKAGE_WORDS:
        words, found, others = before.partition(word)
        before = words + others.lstrip() if found else before
    before = linkage + before
    parameter = f".reg .b64 {address}"
    if function.parameters is None:
        parameters, rest = f"({parameter})", function.name_end
    else:
        first, closing = function.parameters
        own_parameters = code[first:closing].rstrip()
        # ".param .b8 x[]" as the last one takes what remains.
        if own_parameters.endswith("]") and own_parameters[:-1].rstrip().endswith("["):
            raise UnsupportedError(f"the called function {function.name} takes any number of arguments")
        added = f",\n\t{parameter}\n)" if own_parameters.strip() else f"{parameter})"
        parameters = text[function.name_end : first + len(own_parameters)] + added
        rest = closing + 1
    header = before + name + parameters + text[rest:body_start]
    # A declaration ends with a semicolon and has no pragmas.
    words, *pragmas = code[rest:body_start].split(".pragma")
    declaration = before + name + parameters + words + "".join(pragma.partition(";")[2] for pragma in pragmas)
    return header, f"{declaration.rstrip()}\n;"


def pass_address(body: Body, call: Call, address: str) -> tuple[int, str]:
    """The insertion (position, text) after which a call passes the state's address as its last argument.

    address: the register with it. Raises UnsupportedError for a call of an unknown form.
    """
    semicolon = body.code.find(";", call.end)
    # Nothing, or ", (arguments)".
    words = body.code[call.end : semicolon].rstrip()
    if not words and semicolon >= 0:
        return call.end, f", ({address})"
    comma, opening, arguments = words.partition("(")
    if comma.strip() != "," or not opening or arguments.find(")") != len(arguments) - 1 or "(" in arguments:
        source = " ".join(body.code[call.start : semicolon].split())
        raise UnsupportedError(f"a call of an unknown form: {source!r}")
    at = call.end + len(comma) + 1 + len(arguments[:-1].rstrip())
    return at, f", {address}" if arguments[:-1].strip() else address


def around_call(body: Body, call: Call) -> tuple[int, int]:
    """Where the state is stored before a call and loaded after it: start and end of the call with its arguments and
    results, in the module's text. Raises UnsupportedError."""
    sequence = body.call_sequence(call.start)
    if sequence is None:
        raise UnsupportedError(f"a call of an unknown form: {body.code[call.start : call.end]!r}")
    return sequence


class State:
    """The layout of a kernel's state in its local memory, and code that stores and loads registers there.

    The state begins with the probe block, of block_size bytes; the kept registers follow, each with a place from when
    it is first stored or loaded. size: bytes so far.
    """

    def __init__(self, block_size: int) -> None:
        self._offsets: dict[str, int] = {}
        self.size = align_up(block_size, 8)

    def _offset(self, kept: Kept) -> int:
        """The byte offset of a register in the state, allocated when first asked for."""
        if kept.name not in self._offsets:
            size = _bytes(kept)
            self._offsets[kept.name] = align_up(self.size, size)
            self.size = self._offsets[kept.name] + size
        return self._offsets[kept.name]

    def store(self, base: str, chosen: Iterable[Kept], scratch: Scratch) -> Lines:
        """Instructions that store the chosen registers. base: the state's variable, or a register with its address."""
        lines: Lines = []
        for kept in chosen:
            kind, word = _moved(kept, scratch)
            if word != kept.name:
                # A predicate cannot be stored: it goes through a scratch register, as 0 or 1.
                lines.append(op("selp.u32", word, "1", "0", kept.name))
            lines.append(op(f"st.local.{kind}", mem(base, self._offset(kept)), word))
        return lines

    def load(self, base: str, chosen: Iterable[Kept], scratch: Scratch) -> Lines:
        """Instructions that load the chosen registers from where ``store`` put them. base: as in ``store``."""
        lines: Lines = []
        for kept in chosen:
            kind, register = _moved(kept, scratch)
            lines.append(op(f"ld.local.{kind}", register, mem(base, self._offset(kept))))
            if register != kept.name:
                # A predicate cannot be loaded: it goes through a scratch register.
                lines.append(op("setp.ne.u32", kept.name, register, "0"))
        return lines


def _moved(kept: Kept, scratch: Scratch) -> tuple[str, str]:
    """The type with which a register is stored and loaded, and the register that is: for a predicate, which cannot go
    to memory, a scratch register that stands for it."""
    return ("u32", scratch.take("b32")) if kept.type == "pred" else (f"b{bits(kept.type)}", kept.name)


def _bytes(kept: Kept) -> int:
    """The bytes that a register takes in the state. Raises UnsupportedError for a type without a size."""
    if kept.type == "pred":
        return 4
    size = TYPE_BYTES.get(kept.type)
    if size is None:
        raise UnsupportedError(f"{kept.name} of type .{kept.type} cannot be kept while a function runs")
    return size


_Name = TypeVar("_Name")
_Key = tuple[int, str]
"""Of a function, ``Callee.key``: its module's number and its name."""


def reach(calls: Mapping[_Key, Collection[_Key]], own: Mapping[_Key, Collection[_Name]]) -> dict[_Key, set[_Name]]:
    """By function, its own names and those of all functions that it calls, directly or not.

    calls: by function, those that it calls directly; own: by function, its own names, as of the registers that it uses.
    A function without an entry in own has no names.
    """
    names = {key: set(own_names) for key, own_names in own.items()}
    # Until nothing is added: calls may be recursive.
    changed = True
    while changed:
        changed = False
        for key, called in calls.items():
            size = len(names[key])
            for callee in called:
                names[key] |= names.get(callee, set())
            changed = changed or len(names[key]) != size
    return names


def with_their_callers(functions: Collection[Callee], direct: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """The keys of the functions that need a copy: those in direct, and those that call one of them, directly or not,
    and so have to pass the state.

    functions: all that a kernel calls, directly or not. direct: keys of some of them.
    """
    keys = set(direct)
    previous_size = -1
    while len(keys) != previous_size:
        previous_size = len(keys)
        keys |= {callee.key for callee in functions if any(call.callee in keys for call in callee.calls)}
    return keys
