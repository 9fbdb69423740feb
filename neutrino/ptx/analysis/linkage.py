"""What a kernel's twin (instrumented copy) needs of the kernel's module: functions and variables to copy, variables to
reach by address; and what makes a twin impossible."""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from typing import Protocol

from neutrino.lazy import lazy
from neutrino.ptx.text.body import Body, Declaration
from neutrino.ptx.text.module import Function, Kind, Module, ModuleStatement, Variable

_WORD = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)

_ALIAS = re.compile(r"\.alias\s+([A-Za-z_$][\w$]*)\s*,\s*([A-Za-z_$][\w$]*)\s*;", re.ASCII)
_MOST_SEARCHED_SYMBOLS = 48
"""Up to that many names are searched for in a body one by one; with more, all names of the body are gathered."""

# Provided by the driver to every module (CUDA C++ Programming Guide: printf, assert, device-side malloc).
_SYSTEM_CALLS = frozenset({"vprintf", "__assertfail", "malloc", "free"})

# Constants that compilers put beside the code: no program can name them, so that a copy is as good as the
# original.
_LITERAL = re.compile(
    r"\$str|_\$_str|__unnamed_|__cudart_|__func__|.*__PRETTY_FUNCTION__|printfFormat_|assert(?:Message|File|Func)_"
)


class ObstacleError(Exception):
    """A kernel refers to something that a twin in an image of its own cannot take over."""


@dataclass(frozen=True)
class Callee:
    """A kernel, or a function that it calls, directly or not. linkage: of the module that defines it.

    calls: its direct calls. variables: the module variables that it names and that the twin reaches by their addresses.
    """

    linkage: Linkage
    function: Function
    body: Body
    calls: list[Call] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    @property
    def module(self) -> Module:
        """The module that defines the function."""
        return self.linkage.module

    @property
    def key(self) -> tuple[int, str]:
        """What identifies the function: the number of its module, and its name. Static functions of several modules may
        share one."""
        return self.linkage.number, self.function.name


@dataclass(frozen=True)
class Call:
    """A direct call. start, end: the callee's name in the module's text. callee: as ``Callee.key``."""

    start: int
    end: int
    callee: tuple[int, str]


@dataclass
class Needs:
    """What a kernel's twin needs besides the kernel's text.

    statements: of the kernel's own module, to copy, without the kernel's. by_address: the variables that it reaches by
    their addresses, in the order of the probe block, each name once. kernel: what the kernel itself calls and names.
    functions: what it calls, directly or not. taken: names of functions whose address it or they take. elsewhere:
    statements to copy of the modules that this one is linked with, by the module's number.
    """

    kernel: Callee
    statements: set[ModuleStatement] = field(default_factory=set)
    by_address: list[Variable] = field(default_factory=list)
    functions: list[Callee] = field(default_factory=list)
    taken: frozenset[str] = frozenset()
    elsewhere: dict[int, set[ModuleStatement]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Use:
    """A symbol of its module that a function names.

    calls: where the function calls it, as (start, end) of the name in the module's text. is_taken: the symbol is a
    function, and named otherwise than to call it: its address is taken.
    """

    name: str
    symbol: Function | Variable
    calls: tuple[tuple[int, int], ...] = ()
    is_taken: bool = False


class Surroundings(Protocol):
    """The modules that the device linker puts together with a relocatable module."""

    def definition(self, user: Linkage, name: str) -> tuple[Linkage, Function] | None:
        """The function that a name in user's module refers to in the linked code, None when no module defines it.

        Raises ObstacleError when modules define it differently.
        """

    def check_address(self, name: str) -> None:
        """Raise ObstacleError if the driver cannot give the address of a variable by its name."""

    def addresses_taken(self) -> Collection[str]:
        """Return the functions whose address any module of the linked code takes, so that calls by pointer may reach
        them.

        Raises ObstacleError when not all modules are known.
        """


class Linkage:
    """Finds what the kernels of one module need of it and of the modules that it is linked with.

    surroundings: the linked modules, None where the module is complete by itself; number: which of them it is.
    aliases: by name, the function that an alias stands for, and the directive that says so.
    """

    def __init__(self, module: Module, surroundings: Surroundings | None = None, number: int = 0) -> None:
        """Prepare to find which functions and variables kernels of a module need.

        surroundings: the modules that it is linked with, None if it is complete by itself. number: which of them it is.
        """
        self.module = module
        self.number = number
        self._surroundings = surroundings
        # Groups of the pattern: 1 the alias, 2 the function that it stands for.
        self.aliases = {
            alias[1]: (alias[2], statement)
            for statement in module.statements
            if statement.kind is Kind.ALIAS
            and (alias := _ALIAS.fullmatch(module.code, statement.start, statement.end)) is not None
        }
        # What `body`, `_uses`, `declarations` and `addresses_taken` gave: many kernels call the same functions.
        self._bodies: dict[ModuleStatement, Body] = {}
        self._uses_by_function: dict[ModuleStatement, tuple[list[_Use], bool]] = {}
        self._declarations_by_name: dict[str, frozenset[ModuleStatement]] = {}
        self._taken_addresses: set[str] | None = None
        # Functions that passed `check_local_variables`.
        self._without_local_variables: set[ModuleStatement] = set()

    def body(self, function: Function) -> Body:
        """The body of a kernel or function of this module; an empty one for a mere declaration.

        Returns the same object each time, so that a body is decoded once for all kernels that call the function.
        """
        body = self._bodies.get(function.statement)
        if body is None:
            start, end = function.body or (function.statement.end, function.statement.end)
            # The header of a function may declare registers, that of a kernel only parameters.
            head = None if function.is_entry else (function.statement.start, start)
            body = self._bodies[function.statement] = Body(self.module.code, start, end, head)
        return body

    def _symbols_in(self, body: Body) -> Set[str]:
        """The names of the module's functions and variables that stand as operands in a body, whatever they refer to
        there.

        Found in the quicker of two ways: name by name, or by all names of the body at once.
        """
        symbols = self.module.symbols
        if len(symbols) <= _MOST_SEARCHED_SYMBOLS:
            return {name for name in symbols if body.names_operand(name)}
        return body.operand_names & symbols.keys()

    def needs(self, kernel: Function) -> Needs:
        """Find the functions and variables that a kernel's twin (the copy of it with probes) needs, by following the
        kernel's calls.

        Raises ObstacleError when it can have no twin.
        """
        needs = Needs(Callee(self, kernel, self.body(kernel)))
        reached: set[tuple[int, str]] = set()
        # Of the kernel and all that it calls: whether any makes indirect calls; functions whose address any takes.
        indirect = False
        taken: set[str] = set()
        # The functions whose uses are still to be looked at.
        waiting = [needs.kernel]
        while waiting:
            user = waiting.pop()
            # The function may be of another module than the kernel.
            linkage, function = user.linkage, user.function
            uses, calls_a_register = linkage._uses(function)
            indirect = indirect or calls_a_register
            statements = needs.statements if linkage is self else needs.elsewhere.setdefault(linkage.number, set())
            for use in uses:
                symbol = use.symbol
                if isinstance(symbol, Variable):
                    linkage.need_variable(needs, statements, symbol, user)
                elif symbol.is_entry:
                    raise ObstacleError(f"{function.name} refers to the kernel {use.name}")
                else:
                    if use.is_taken:
                        taken.add(use.name)
                    statements |= linkage.declarations(use.name)
                    definition = linkage.definition(symbol)
                    if definition is None:
                        continue  # the driver provides it
                    defining_linkage, defined = definition
                    key = (defining_linkage.number, defined.name)
                    if use.name in taken:
                        # The name may be an alias, so that the function that it stands for has another name.
                        taken.add(defined.name)
                    user.calls.extend(Call(start, end, key) for start, end in use.calls)
                    if key not in reached:
                        reached.add(key)
                        waiting.append(defining_linkage.need_function(needs, defined, self))
            if function.statement not in linkage._without_local_variables:
                linkage.check_local_variables(user.body, function)
                linkage._without_local_variables.add(function.statement)
        self._check_pointers(taken, indirect=indirect)
        needs.taken = frozenset(taken)
        return needs

    def _uses(self, function: Function) -> tuple[list[_Use], bool]:
        """The functions and variables of the module that a function names, sorted by name; and whether it makes
        indirect calls."""
        result = self._uses_by_function.get(function.statement)
        if result is None:
            body, names = self.symbols_used(function)
            called = self.calls_by_name(function, body) if names else {}
            uses = []
            for name in sorted(names):
                symbol = self.module.symbols[name]
                if isinstance(symbol, Variable) or symbol.is_entry:
                    uses.append(_Use(name, symbol))
                    continue
                all_calls = called.get(name, [])
                calls = all_calls
                if body.may_declare(name):
                    # Where the body declares the name, a call of it is one by a register or label of the body.
                    calls = [span for span in all_calls if body.declaration(name, span[0]) is None]
                # More references than calls: some are no calls, so they take the address.
                is_taken = len(self.references(function, name)) > len(all_calls)
                uses.append(_Use(name, symbol, tuple(calls), is_taken))
            result = self._uses_by_function[function.statement] = uses, self.calls_a_register(body)
        return result

    def declarations(self, name: str) -> frozenset[ModuleStatement]:
        """The statements of the module that declare or define a function of that name.

        For an alias also its directive, and the statements of the function that it stands for.
        """
        declarations = self._declarations_by_name.get(name)
        if declarations is None:
            statements = set(self._functions_by_name.get(name, ()))
            if name in self.aliases:
                target, directive = self.aliases[name]
                statements.update([directive, *self._functions_by_name.get(target, ())])
            declarations = self._declarations_by_name[name] = frozenset(statements)
        return declarations

    @lazy
    def _functions_by_name(self) -> dict[str, list[ModuleStatement]]:
        """The declarations and definitions of the module's functions, without kernels."""
        by_name: dict[str, list[ModuleStatement]] = {}
        for function in self.module.functions:
            by_name.setdefault(function.name, []).append(function.statement)
        return by_name

    def calls_by_name(self, function: Function, body: Body) -> dict[str, list[tuple[int, int]]]:
        """By name, where a function's body calls it, as (start, end) of the name in the module's text."""
        calls: dict[str, list[tuple[int, int]]] = {}
        for name, start, end in body.called:
            calls.setdefault(name, []).append((start, end))
        return calls

    def symbols_used(self, function: Function) -> tuple[Body, set[str]]:
        """The function's body, and the names of the module's functions and variables that the body uses."""
        body = self.body(function)
        names = self._symbols_in(body)
        return body, self._not_shadowed(function, body, names) if names else set()

    def definition(self, function: Function) -> tuple[Linkage, Function] | None:
        """The definition of a function that this module names, and the module that it is in.

        None for what the driver provides, such as ``malloc``. Raises ObstacleError when nothing defines the function.
        """
        if function.body is None and function.name in self.aliases:
            target_name, _ = self.aliases[function.name]
            target = self.module.symbols.get(target_name)
            if isinstance(target, Function) and target.body is not None:
                return self, target
        # Before the module's own definition: the linker may have kept that of another module.
        linked = self._surroundings.definition(self, function.name) if self._surroundings is not None else None
        if linked is not None:
            return linked
        if function.body is not None:
            return self, function
        if function.name in _SYSTEM_CALLS:
            return None
        raise ObstacleError(f"it calls the external function {function.name}")

    def calls_a_register(self, body: Body) -> bool:
        """Whether a body makes indirect calls: by a name that is no function of the module, or by a register."""
        return any(
            not isinstance(self.module.symbols.get(name), Function)
            or (body.may_declare(name) and body.declaration(name, start) is not None)
            for name, start, _ in body.called
        )

    def _not_shadowed(self, function: Function, body: Body, names: Set[str]) -> set[str]:
        """Those of these names that mean the module's symbol somewhere in the function, not always a parameter or local
        of that name."""
        parameters = _parameter_names(self.module, function)
        # A name that the body declares may still mean the symbol outside of the declaration's scope.
        local = {name for name in names if body.may_declare(name) and name in body.declarations}
        return {
            name
            for name in names - parameters
            if name not in local or any(True for _ in self.references(function, name))
        }

    def references(self, function: Function, name: str) -> list[tuple[int, int]]:
        """Where a function's body refers to the module's symbol of a name, not to a local one; (start, end) in the
        module's text."""
        body = self.body(function)
        if name in _parameter_names(self.module, function):
            return []
        occurrences = body.occurrences(name)
        if not body.may_declare(name) or name not in body.declarations:
            return occurrences
        return [span for span in occurrences if body.declaration(name, span[0]) is None]

    def need_function(self, needs: Needs, function: Function, asker: Linkage) -> Callee:
        """Add a function of this module to what a kernel's twin (copy with probes) needs; return it, so that its calls
        are followed.

        asker: of the kernel's module.
        """
        callee = Callee(self, function, self.body(function))
        needs.functions.append(callee)
        statements = needs.statements if self is asker else needs.elsewhere.setdefault(self.number, set())
        statements |= self.declarations(function.name)
        return callee

    def need_variable(self, needs: Needs, statements: set[ModuleStatement], variable: Variable, user: Callee) -> None:
        """Add a variable of this module to what a kernel's twin (copy with probes) needs: a copy of it, or its address.

        user: the kernel, or its callee, that names it. statements: gets the declaration of a variable that the twin can
        have a copy of; others go to ``needs.by_address`` and ``user.variables``. Raises ObstacleError when the twin can
        reach it in neither way.
        """
        # Each launch has its own, so that a copy is as good.
        if variable.space in {"shared", "local", "reg", "param"}:
            statements.add(variable.statement)
            return
        if variable.space not in {"global", "const"}:
            raise ObstacleError(f"it uses the {variable.space} {variable.name}")
        if "extern" in variable.linkage and self._surroundings is None:
            raise ObstacleError(f"it uses the external variable {variable.name}")
        # The twin uses the original's variable, whose functions would be the original's, too.
        if variable.initializer is not None and self._names_functions(variable.initializer):
            raise ObstacleError(f"it uses the function table {variable.name}")
        if self._is_literal(variable):
            statements.add(variable.statement)
            return
        if self._surroundings is not None:
            self._surroundings.check_address(variable.name)
        user.variables.append(variable)
        if all(variable.name != known.name for known in needs.by_address):
            needs.by_address.append(variable)

    def _is_literal(self, variable: Variable) -> bool:
        """Whether a variable is a constant that the compiler made of a string literal or the like, so that a copy is as
        good."""
        return (
            variable.initializer is not None
            and not variable.linkage
            and (variable.space, variable.type) == ("global", ".b8")
            and _LITERAL.match(variable.name) is not None
            and self.module.symbols.keys().isdisjoint(_WORD.findall(variable.initializer))
        )

    def _names_functions(self, initializer: str) -> bool:
        """Whether the initial value of a variable names a function of the module."""
        return any(isinstance(self.module.symbols.get(word), Function) for word in _WORD.findall(initializer))

    def check_local_variables(self, body: Body, function: Function) -> None:
        """Raises ObstacleError when a function's body declares a global or constant variable that a twin cannot have a
        copy of.

        Such a variable outlives the function, and nobody can ask for its address: ptxas calls it ``$__name__9``, a
        local symbol. A copy has the same values where all that names it are loads from where it stands.
        """
        if not any(body.directives_with(".global", ".const")):
            return
        for declarations in body.declarations.values():
            for declaration in declarations:
                if declaration.space in {"global", "const"} and not self._is_only_loaded(body, declaration):
                    raise ObstacleError(
                        f"{function.name} declares the {declaration.space} variable {declaration.name} in its body and "
                        "does more than load from it"
                    )

    def _is_only_loaded(self, body: Body, declaration: Declaration) -> bool:
        """Whether a body only loads from a variable that it declares, so that a copy of the variable is as good.

        All that names it must be loads from ``[name]`` or ``[name+4]``, and its initial value must name nothing.
        """
        name = declaration.name
        declaring = body.statement(body.index_at(declaration.start))
        symbols, declared = self.module.symbols, body.declarations
        if declaration.count is not None or any(
            word in symbols or word in declared for word in _WORD.findall(declaring.text.partition("=")[2])
        ):
            return False
        for start, _ in body.occurrences(name):
            statement = body.statement(body.index_at(start))
            if statement.index == declaring.index or body.declaration(name, start) != declaration:
                continue
            if statement.word not in {"ld", "ldu"}:
                return False
            # Not in brackets: the address itself is used.
            before = body.code[statement.start : start]
            if before.count("[") <= before.count("]"):
                return False
        return True

    def _check_pointers(self, taken: set[str], *, indirect: bool) -> None:
        """Raises ObstacleError for function pointers that may come from outside of the twin, or leave it.

        The addresses of functions differ between the twin and the original. taken: the functions whose address the
        kernel, or what it calls, takes. indirect: they make indirect calls.
        """
        if not indirect:
            # An address that nothing here calls can only go to memory that others read.
            if taken:
                raise ObstacleError(f"it takes the address of the function {min(taken)}")
            return
        everywhere = self.addresses_taken() if self._surroundings is None else self._surroundings.addresses_taken()
        outside = set(everywhere) - taken
        # Without any address taken here the pointers come from outside for certain.
        if outside or not taken:
            name = f" ({min(outside)} may be one)" if outside else ""
            raise ObstacleError(f"it calls functions by pointers that come from outside the kernel{name}")

    def takes_address(self, function: Function, body: Body, name: str) -> bool:
        """Whether a function names another one otherwise than to call it: as an address. body: the function's own."""
        return len(self.references(function, name)) > len(self.calls_by_name(function, body).get(name, ()))

    def addresses_taken(self) -> set[str]:
        """Names of the functions whose address any code or initializer of the module takes.

        These are what an indirect call may call, whatever kernel makes it.
        """
        if self._taken_addresses is None:
            taken = set()
            functions = {function.name for function in self.module.functions}
            for function in (*self.module.functions, *self.module.entries):
                body = self.body(function)
                names = self._symbols_in(body) & functions
                taken |= {name for name in names if self.takes_address(function, body, name)}
            for variable in self.module.variables:
                taken |= functions.intersection(_WORD.findall(variable.initializer or ""))
            self._taken_addresses = taken
        return self._taken_addresses


def _parameter_names(module: Module, function: Function) -> set[str]:
    """Return the names of a kernel's or function's parameters, from its header."""
    if function.parameters is None:
        return set()
    start, end = function.parameters
    # The name is the last word before the extents of an array.
    words = (piece.partition("[")[0].split() for piece in module.code[start:end].split(","))
    return {words_of_one[-1] for words_of_one in words if words_of_one}
