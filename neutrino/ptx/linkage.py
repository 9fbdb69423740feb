"""What of its module a kernel needs: functions and variables to copy, variables to reach by address, and
obstacles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from neutrino.ptx.body import Body
from neutrino.ptx.module import Function, Module, Statement, Variable

# Names in operand position stand behind an opening bracket or a comma; the first operand of a call has
# neither.
_NAMED = re.compile(r"[\[,({]\s*([A-Za-z_$][\w$]*)", re.ASCII)
_LISTED = re.compile(r"\.(?:calltargets|branchtargets)\b([^;]*);", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_CALLEE = re.compile(
    r"(?<=[;{}:\s])call(?:\.\w+)*(?:\s+|\s*\([^()]*\)\s*,\s*)(?!\()([A-Za-z_$%][\w$]*)", re.ASCII
)

_PARAMETER_NAME = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:\[[^\[\]]*\]\s*)*(?=,|\Z)", re.ASCII)

_LOCAL_STATIC = re.compile(r"\.(?:global|const)\s", re.ASCII)

# Provided by the driver to every module (CUDA C++ Programming Guide: printf, assert, device-side malloc).
_SYSTEM_CALLS = frozenset({"vprintf", "__assertfail", "malloc", "free"})

# Constants that compilers put beside the code: no program can name them, so that a copy is as good as the
# original.
_LITERAL = re.compile(
    r"\$str|_\$_str|__unnamed_|__cudart_|__func__|.*__PRETTY_FUNCTION__|printfFormat_|assert(?:Message|File|Func)_"
)


class ObstacleError(Exception):
    """A kernel refers to something that a twin in an image of its own cannot take over."""


@dataclass
class Needs:
    """statements: to copy, besides the kernel. by_address: variables in the order of the probe block."""

    statements: set[Statement] = field(default_factory=set)
    by_address: list[Variable] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    constant: bool = False


class Linkage:
    """Answers for the kernels of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._bodies: dict[Statement, tuple[Body, set[str]]] = {}
        self._taken_addresses: set[str] | None = None

    def body(self, function: Function) -> Body:
        """The body of a function that has one."""
        return self._read(function)[0]

    def _read(self, function: Function) -> tuple[Body, set[str]]:
        known = self._bodies.get(function.statement)
        if known is None:
            start, end = function.body or (function.statement.end, function.statement.end)
            names = set(_NAMED.findall(self._module.code, start, end))
            if self._module.code.find("call", start, end) >= 0:
                names.update(_CALLEE.findall(self._module.code, start, end))
            if self._module.code.find(".calltargets", start, end) >= 0:
                for listed in _LISTED.findall(self._module.code, start, end):
                    names.update(_WORD.findall(listed))
            known = (Body(self._module.code, start, end), names)
            self._bodies[function.statement] = known
        return known

    def needs(self, kernel: Function) -> Needs:
        """What a kernel needs. Raises ObstacleError."""
        needs = Needs()
        reached: set[str] = set()
        indirect = False
        taken: set[str] = set()
        waiting = [kernel]
        while waiting:
            function = waiting.pop()
            body, names = self._read(function)
            names = names & self._module.symbols.keys()
            if names:
                names = self._not_shadowed(function, body, names)
            has_calls = self._module.code.find("call", body.start, body.end) >= 0
            if has_calls:
                indirect = indirect or self._calls_a_register(body)
            for name in sorted(names):
                symbol = self._module.symbols[name]
                if isinstance(symbol, Variable):
                    self._need_variable(needs, symbol, kernel, function)
                elif symbol.is_entry:
                    raise ObstacleError(f"{function.name} refers to the kernel {name}")
                else:
                    if self._takes_address(function, body, name):
                        taken.add(name)
                    if name not in reached:
                        reached.add(name)
                        self._need_function(needs, symbol)
                        if symbol.body is not None:
                            waiting.append(symbol)
            self._check_local_variables(body, function)
        self._check_pointers(taken, reached, indirect=indirect)
        return needs

    def _calls_a_register(self, body: Body) -> bool:
        return any(
            callee[1] in body.declarations or not isinstance(self._module.symbols.get(callee[1]), Function)
            for callee in _CALLEE.finditer(self._module.code, body.start, body.end)
        )

    def _not_shadowed(self, function: Function, body: Body, names: set[str]) -> set[str]:
        """Names that mean the module's symbol at one place at least."""
        parameters = _parameter_names(self._module, function)
        local = {name for name in names if name in body.declarations}
        return {
            name
            for name in names - parameters
            if name not in local or any(True for _ in self.references(function, name))
        }

    def references(self, function: Function, name: str) -> list[tuple[int, int]]:
        """Where in a function's body a name means the module's symbol, as positions in the module's text."""
        body = self.body(function)
        if name in _parameter_names(self._module, function):
            return []
        return [
            match.span()
            for match in re.compile(rf"(?<![\w$%.]){re.escape(name)}(?![\w$]|\.\w)").finditer(
                self._module.code, body.start, body.end
            )
            if name not in body.declarations or body.declaration(name, match.start()) is None
        ]

    def _need_function(self, needs: Needs, function: Function) -> None:
        if function.body is None and function.name not in _SYSTEM_CALLS:
            raise ObstacleError(f"it calls the external function {function.name}")
        if function.body is not None:
            needs.functions.append(function)
        needs.statements.update(
            entry.statement for entry in self._module.functions if entry.name == function.name
        )

    def _need_variable(self, needs: Needs, variable: Variable, kernel: Function, user: Function) -> None:
        if variable.space in {"shared", "local", "reg", "param"}:
            needs.statements.add(variable.statement)
            return
        if variable.space not in {"global", "const"}:
            raise ObstacleError(f"it uses the {variable.space} {variable.name}")
        if "extern" in variable.linkage:
            raise ObstacleError(f"it uses the external variable {variable.name}")
        if variable.initializer is not None and self._names_functions(variable.initializer):
            raise ObstacleError(f"it uses the function table {variable.name}")
        if self._is_literal(variable):
            needs.statements.add(variable.statement)
            return
        if user is not kernel:
            raise ObstacleError(f"the called function {user.name} uses the module's variable {variable.name}")
        if variable not in needs.by_address:
            needs.by_address.append(variable)
        needs.constant = needs.constant or variable.space == "const"

    def _is_literal(self, variable: Variable) -> bool:
        return (
            variable.initializer is not None
            and not variable.linkage
            and (variable.space, variable.type) == ("global", ".b8")
            and _LITERAL.match(variable.name) is not None
            and self._module.symbols.keys().isdisjoint(_WORD.findall(variable.initializer))
        )

    def _names_functions(self, initializer: str) -> bool:
        return any(
            isinstance(self._module.symbols.get(word), Function) for word in _WORD.findall(initializer)
        )

    def _check_local_variables(self, body: Body, function: Function) -> None:
        if not any(
            match.start() == body.start or self._module.code[match.start() - 1] in ";{} \t\r\n"
            for match in _LOCAL_STATIC.finditer(self._module.code, body.start, body.end)
        ):
            return
        for declarations in body.declarations.values():
            for declaration in declarations:
                if declaration.space in {"global", "const"}:
                    raise ObstacleError(
                        f"{function.name} declares the {declaration.space} variable {declaration.name}"
                    )

    def _check_pointers(self, taken: set[str], reached: set[str], *, indirect: bool) -> None:
        """Function pointers must come from the twin's own text, and stay in it."""
        if not indirect:
            if taken:
                raise ObstacleError(f"it takes the address of the function {min(taken)}")
            return
        everywhere = self._addresses_taken()
        outside = everywhere - taken
        if outside or not taken:
            name = f" ({min(outside)} may be one)" if outside else ""
            raise ObstacleError(f"it calls functions by pointers that come from outside the kernel{name}")

    def _takes_address(self, function: Function, body: Body, name: str) -> bool:
        calls = _CALLEE.findall(self._module.code, body.start, body.end).count(name)
        return len(self.references(function, name)) > calls

    def _addresses_taken(self) -> set[str]:
        """Functions whose address any code or initializer of the module takes."""
        if self._taken_addresses is None:
            found = set()
            functions = {function.name for function in self._module.functions}
            for function in (*self._module.functions, *self._module.entries):
                body, names = self._read(function)
                found |= {name for name in names & functions if self._takes_address(function, body, name)}
            for variable in self._module.variables:
                found |= functions.intersection(_WORD.findall(variable.initializer or ""))
            self._taken_addresses = found
        return self._taken_addresses


def _parameter_names(module: Module, function: Function) -> set[str]:
    if function.parameters is None:
        return set()
    start, end = function.parameters
    return set(_PARAMETER_NAME.findall(module.code[start:end]))
