"""A PTX text made ready to run on any device: its functions resolved. Kept from load to load."""

from __future__ import annotations

from functools import lru_cache

from neutrino.emulator.memory import FUNCTION_BASE, FUNCTION_STRIDE
from neutrino.emulator.program import Program, Variable, resolve, variable_size
from neutrino.emulator.text import Declaration, FunctionText, Statement, read_module
from neutrino.errors import PtxRefusedError


class ModuleCode:
    """What depends on the text alone.

    statements: all, by number. shared: the ``.shared`` variables, by number. declarations: of the ``.global`` and
    ``.const`` variables, by number: where they lie is the device's business.
    """

    def __init__(self, text: str) -> None:
        self.text = read_module(text)
        self.statements: list[Statement] = []
        self.shared: list[Variable] = []
        self.declarations: list[Declaration] = []
        self.variables: dict[str, Variable] = {}
        self.texts: dict[str, FunctionText] = {}
        self._programs: dict[str, Program] = {}
        for function in self.text.functions:
            known = self.texts.get(function.name)
            if known is not None and known.items is not None:
                if function.items is not None:
                    raise PtxRefusedError(function.line, function.text, "a function twice")
                continue
            self.texts[function.name] = function
        self.function_addresses = {
            name: FUNCTION_BASE + (number + 1) * FUNCTION_STRIDE for number, name in enumerate(self.texts)
        }
        self.names_by_address = {address: name for name, address in self.function_addresses.items()}
        for alias, name in self.text.aliases.items():
            self.function_addresses[alias] = self.function_addresses.get(name, 0)
        self._take_in_variables()
        for name, function in self.texts.items():
            if function.items is not None:
                self.program(name)

    def _take_in_variables(self) -> None:
        for declaration in self.text.variables:
            if declaration.name in self.variables:
                if declaration.linkage == "extern":
                    continue
                raise PtxRefusedError(declaration.line, declaration.text, "a variable twice")
            if declaration.space == "shared":
                self.variables[declaration.name] = self._add_shared(declaration)
            elif declaration.space in ("global", "const") and declaration.linkage != "extern":
                size, alignment = variable_size(declaration)
                self.variables[declaration.name] = Variable(
                    declaration.name, declaration.space, size, alignment, len(self.declarations)
                )
                self.declarations.append(declaration)
            else:
                raise PtxRefusedError(
                    declaration.line, declaration.text, "a variable that the embedded device does not know"
                )

    def _add_shared(self, declaration: Declaration) -> Variable:
        size, alignment = variable_size(declaration)
        variable = Variable(declaration.name, "shared", size, alignment, len(self.shared))
        self.shared.append(variable)
        return variable

    def resolved_name(self, name: str) -> str:
        """The function that a name or an alias stands for."""
        return self.text.aliases.get(name, name)

    def functions_with_bodies(self) -> list[str]:
        """All that an indirect call may reach."""
        return [name for name, text in self.texts.items() if text.items is not None and not text.entry]

    def program(self, name: str) -> Program:
        """A function with its names resolved. PtxRefusedError: it has no body, or names what is not there."""
        found = self._programs.get(name)
        if found is None:
            text = self.texts.get(name)
            if text is None or text.items is None:
                line, source = (text.line, text.text) if text is not None else (1, name)
                raise PtxRefusedError(line, source, f"the function {name} has no body")
            found = resolve(text, self.variables, self._known_functions(), self._add_shared, self.statements)
            self._programs[name] = found
        return found

    def _known_functions(self) -> dict[str, FunctionText]:
        known = dict(self.texts)
        for alias, name in self.text.aliases.items():
            if name in known:
                known[alias] = known[name]
        return known

    def parameters_of(self, name: str) -> list[Variable]:
        """The kernel's parameters, placed."""
        offset = 0
        found = []
        for declaration in self.texts[name].parameters:
            size, alignment = variable_size(declaration)
            offset = -(-offset // alignment) * alignment
            found.append(Variable(declaration.name, "param", size, alignment, offset))
            offset += size
        return found


@lru_cache(maxsize=128)
def module_code(text: str) -> ModuleCode:
    """The code of a text. PtxRefusedError: it is no PTX that the device runs."""
    return ModuleCode(text)
