"""What depends on a PTX text alone: its functions with resolved names. Cached from load to load."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from neutrino.emulator.address_space import FUNCTION_BASE, FUNCTION_STRIDE
from neutrino.emulator.resolution import Program, resolve, single_declarations, variable_size
from neutrino.emulator.resolved_operands import Variable
from neutrino.emulator.text import Declaration, FunctionText, Statement, read_module
from neutrino.errors import PtxRefusedError


class ModuleCode:
    """A PTX module, independent of a device.

    text: the module as parsed. statements: all of them; their indices are the statement numbers of faults and
    observers. shared: the ``.shared`` variables, by number. declarations: those of the ``.global`` and ``.const``
    variables, by number (each device has addresses of its own for them). variables: those of module scope, by name.
    texts: the functions, by name. function_addresses: by name and alias, for indirect calls. names_by_address: the
    opposite, without aliases. kernels: what ``kernel_of`` has made of it, by name.
    """

    def __init__(self, text: str) -> None:
        """Parse and resolve a PTX text. Raise PtxRefusedError if the device does not run it."""
        self.text = read_module(text)
        # Resolving functions fills these lists.
        self.statements: list[Statement] = []
        self.shared: list[Variable] = []
        self.declarations: list[Declaration] = []
        self.variables: dict[str, Variable] = {}
        self.texts: dict[str, FunctionText] = {}
        self.kernels: dict[str, Any] = {}
        self._programs: dict[str, Program] = {}
        # The variables that bodies declare with .global and .const, by the identity of the declaration in ``texts``:
        # others may have the same name on the same line.
        self._lasting: dict[int, list[Variable]] = {}
        for function in self.text.functions:
            # A definition (items is not None) replaces declarations of the same function, and stays if another
            # declaration follows.
            earlier = self.texts.get(function.name)
            if earlier is not None and earlier.items is not None:
                if function.items is not None:
                    raise PtxRefusedError(function.line, function.text, "a function twice")
                continue
            self.texts[function.name] = function
        # The base itself is the address of no function.
        self.function_addresses = {
            name: FUNCTION_BASE + (number + 1) * FUNCTION_STRIDE for number, name in enumerate(self.texts)
        }
        self.names_by_address = {address: name for name, address in self.function_addresses.items()}
        for alias, name in self.text.aliases.items():
            # The 0 is never seen: no statement can use an alias of an unknown function.
            self.function_addresses[alias] = self.function_addresses.get(name, 0)
        # Functions refer to the variables, so these come first.
        self._add_variables()
        self._add_lasting()
        for name, function in self.texts.items():
            if function.items is not None:
                # `program` keeps what it resolves.
                self.program(name)

    def _add_variables(self) -> None:
        """Number the variables of module scope.

        Raise PtxRefusedError for a duplicate, for an unknown state space, and for a global variable of another module.
        """
        for declaration in self.text.variables:
            if declaration.name in self.variables:
                # An ``.extern`` declaration may follow the definition.
                if declaration.linkage == "extern":
                    continue
                raise PtxRefusedError(declaration.line, declaration.text, "a variable twice")
            if declaration.space == "shared":
                # Also if ``.extern``, which is how dynamic shared memory is declared.
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

    def _add_lasting(self) -> None:
        """Number the ``.global`` and ``.const`` variables of bodies, which are there from load to unload as others are.

        Their names in ``declarations`` and ``variables`` are no names of PTX, as those that ptxas gives them.
        """
        for function in self.texts.values():
            for item in function.items or ():
                if isinstance(item, Declaration) and item.space in ("global", "const"):
                    numbered = self._lasting[id(item)] = []
                    for declaration in single_declarations(item):
                        name = f"$__{declaration.name}__{len(self.declarations)} "
                        size, alignment = variable_size(declaration)
                        variable = Variable(name, item.space, size, alignment, len(self.declarations))
                        self.variables[name] = variable
                        self.declarations.append(replace(declaration, name=name))
                        numbered.append(variable)

    def _find_lasting(self, declaration: Declaration) -> list[Variable]:
        """Return the variables of a ``.global`` or ``.const`` declaration in a body: one for each of its names."""
        return self._lasting[id(declaration)]

    def _add_shared(self, declaration: Declaration) -> Variable:
        """Enter a ``.shared`` variable under the next number, and return it."""
        size, alignment = variable_size(declaration)
        variable = Variable(declaration.name, "shared", size, alignment, len(self.shared))
        self.shared.append(variable)
        return variable

    def resolved_name(self, name: str) -> str:
        """Return the name of the function that a name or an alias stands for."""
        return self.text.aliases.get(name, name)

    def functions_with_bodies(self) -> list[str]:
        """Return the names of all functions that an indirect call may reach: those with a body, without kernels."""
        return [name for name, text in self.texts.items() if text.items is not None and not text.entry]

    def program(self, name: str) -> Program:
        """Return a function with its names resolved.

        Raise PtxRefusedError if it has no body or uses an undefined name. A function is resolved once, as this gives
        numbers to its statements and shared variables.
        """
        program = self._programs.get(name)
        if program is None:
            text = self.texts.get(name)
            if text is None or text.items is None:
                # A function that is not even declared has no place in the text: blame the first line.
                line, source = (text.line, text.text) if text is not None else (1, name)
                raise PtxRefusedError(line, source, f"the function {name} has no body")
            program = resolve(
                text,
                self.variables,
                self._functions_and_aliases(),
                self._add_shared,
                self._find_lasting,
                self.statements,
            )
            self._programs[name] = program
        return program

    def _functions_and_aliases(self) -> dict[str, FunctionText]:
        """Return the functions of the module by name and by alias."""
        functions = dict(self.texts)
        for alias, name in self.text.aliases.items():
            if name in functions:
                functions[alias] = functions[name]
        return functions

    def parameters_of(self, name: str) -> list[Variable]:
        """Return a kernel's parameters with their offsets, in bytes, in its parameter buffer."""
        offset = 0
        parameters = []
        for declaration in self.texts[name].parameters:
            size, alignment = variable_size(declaration)
            # Round up to the alignment.
            offset = -(-offset // alignment) * alignment
            parameters.append(Variable(declaration.name, "param", size, alignment, offset))
            offset += size
        return parameters


@lru_cache(maxsize=32)
def module_code(text: str) -> ModuleCode:
    """Return the code of a PTX text, cached. Raise PtxRefusedError if the device does not run it."""
    return ModuleCode(text)
