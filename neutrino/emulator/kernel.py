"""One kernel with everything that it can reach: functions as generated code, shared memory laid out."""

from __future__ import annotations

from functools import lru_cache

from neutrino.emulator.blocks import Graph, build_graph
from neutrino.emulator.code import ModuleCode
from neutrino.emulator.program import Program
from neutrino.emulator.provided import PROVIDED
from neutrino.emulator.source import Unit, generate
from neutrino.errors import PtxRefusedError

_LARGEST_SHARED = 227 << 10  # CUDA C++ Programming Guide, technical specifications, compute capability 9.0


class Kernel:
    """functions: the names of those with bodies that the kernel may run, itself first. shared_size: without dynamic."""

    def __init__(self, module: ModuleCode, name: str) -> None:
        self.module = module
        self.name = name
        self.functions: list[str] = []
        self.numbers: dict[str, int] = {}
        self.programs: list[Program] = []
        self._graphs: list[Graph] = []
        self._units: dict[bool, list[Unit]] = {}
        self._reach(name)
        program = self.programs[0]
        self.parameter_size = max(
            (variable.place + variable.size for variable in module.parameters_of(name)), default=0
        )
        self.frame_size = program.frame_size
        self.shared_offsets: dict[int, int] = {}
        self.shared_size = 0
        self.dynamic_alignment = 16
        self._lay_out_shared()

    def _reach(self, name: str) -> None:
        waiting = [name]
        while waiting:
            name = self.module.resolved_name(waiting.pop(0))
            if name in self.numbers or name in PROVIDED:
                continue
            program = self.module.program(name)
            self.numbers[name] = len(self.functions)
            self.functions.append(name)
            self.programs.append(program)
            waiting += sorted(program.callees)
            if program.indirect:
                waiting += self.module.functions_with_bodies()

    def _lay_out_shared(self) -> None:
        used = set().union(*(program.shared for program in self.programs))
        dynamic = []
        for place in sorted(used):
            variable = self.module.shared[place]
            if variable.size == 0:
                dynamic.append(place)
                self.dynamic_alignment = max(self.dynamic_alignment, variable.alignment)
                continue
            offset = -(-self.shared_size // variable.alignment) * variable.alignment
            self.shared_offsets[place] = offset
            self.shared_size = offset + variable.size
        if dynamic:
            self.shared_size = -(-self.shared_size // self.dynamic_alignment) * self.dynamic_alignment
        for place in dynamic:
            self.shared_offsets[place] = self.shared_size
        if self.shared_size > _LARGEST_SHARED:
            text = self.programs[0].text
            raise PtxRefusedError(text.line, text.text, f"{self.shared_size} bytes of shared memory")

    def units(self, *, observed: bool) -> list[Unit]:
        """The generated code of each function. PtxRefusedError: a statement that the device does not know."""
        found = self._units.get(observed)
        if found is None:
            if not self._graphs:
                self._graphs = [build_graph(program) for program in self.programs]
            found = self._units[observed] = [generate(graph, observed=observed) for graph in self._graphs]
        return found


@lru_cache(maxsize=1024)
def kernel_of(module: ModuleCode, name: str) -> Kernel:
    """A kernel of a module; made when first asked for. PtxRefusedError: it needs what the device lacks."""
    return Kernel(module, name)
