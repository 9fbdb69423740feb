"""One kernel with everything that it can reach: functions as generated code, and the layout of shared memory."""

from __future__ import annotations

from neutrino.emulator.blocks import Graph, build_graph
from neutrino.emulator.code import ModuleCode
from neutrino.emulator.provided import PROVIDED
from neutrino.emulator.resolution import Program
from neutrino.emulator.source import Unit, generate
from neutrino.errors import PtxRefusedError

_LARGEST_SHARED = 227 << 10  # CUDA C++ Programming Guide, technical specifications, compute capability 9.0


class Kernel:
    """A kernel, independent of a device.

    functions: the names of all functions with bodies that the kernel may run, itself first. numbers: name → index in
    that list. programs: these functions with their names resolved, in the same order. parameter_size: bytes of the
    parameter buffer. shared_offsets: the byte offset of each ``.shared`` variable, by its number in the module.
    shared_size: bytes of static shared memory per block. dynamic_alignment: of the dynamic shared memory after it.
    frame_size: bytes of local memory of the kernel's own frame.
    """

    def __init__(self, module: ModuleCode, name: str) -> None:
        """Resolve all functions that the kernel `name` may call, and lay out its shared memory."""
        self.module = module
        self.name = name
        self.functions: list[str] = []
        self.numbers: dict[str, int] = {}
        self.programs: list[Program] = []
        # The control-flow graphs and, by whether it calls an observer, the code of the functions: made on first use.
        self._graphs: list[Graph] = []
        self._units: dict[bool, list[Unit]] = {}
        self._find_functions(name)
        program = self.programs[0]
        self.parameter_size = max(
            (variable.place + variable.size for variable in module.parameters_of(name)), default=0
        )
        self.frame_size = program.frame_size
        self.shared_offsets: dict[int, int] = {}
        self.shared_size = 0
        self.dynamic_alignment = 16
        self._lay_out_shared()

    def _find_functions(self, name: str) -> None:
        """Number the functions that are reachable by calls from the function `name`, in breadth-first order.

        An indirect call may reach every function with a body. Raise PtxRefusedError if one of them has no body.
        """
        worklist = [name]
        while worklist:
            name = self.module.resolved_name(worklist.pop(0))
            # Functions that the device itself provides have no program.
            if name in self.numbers or name in PROVIDED:
                continue
            program = self.module.program(name)
            self.numbers[name] = len(self.functions)
            self.functions.append(name)
            self.programs.append(program)
            worklist += sorted(program.callees)
            if program.indirect:
                worklist += self.module.functions_with_bodies()

    def _lay_out_shared(self) -> None:
        """Assign offsets to the ``.shared`` variables that the kernel uses; those without a size come last.

        These are dynamic shared memory: they all begin where static memory ends. Raise PtxRefusedError if static
        memory exceeds the hardware's limit.
        """
        used = set().union(*(program.shared for program in self.programs))
        dynamic = []
        for number in sorted(used):
            variable = self.module.shared[number]
            # Declared without a size: dynamic shared memory.
            if variable.size == 0:
                dynamic.append(number)
                self.dynamic_alignment = max(self.dynamic_alignment, variable.alignment)
                continue
            offset = _align(self.shared_size, variable.alignment)
            self.shared_offsets[number] = offset
            self.shared_size = offset + variable.size
        if dynamic:
            self.shared_size = _align(self.shared_size, self.dynamic_alignment)
        for number in dynamic:
            self.shared_offsets[number] = self.shared_size
        if self.shared_size > _LARGEST_SHARED:
            text = self.programs[0].text
            raise PtxRefusedError(text.line, text.text, f"{self.shared_size} bytes of shared memory")

    def units(self, *, observed: bool) -> list[Unit]:
        """Return the generated code of each function, with calls of an observer if `observed`.

        Code is generated on first use. Raise PtxRefusedError for a statement that the device does not know.
        """
        units = self._units.get(observed)
        if units is None:
            if not self._graphs:
                self._graphs = [build_graph(program) for program in self.programs]
            units = self._units[observed] = [generate(graph, observed=observed) for graph in self._graphs]
        return units


def _align(offset: int, alignment: int) -> int:
    """Return `offset` rounded up to a multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def kernel_of(module: ModuleCode, name: str) -> Kernel:
    """Return a kernel of a module, made once. Raise PtxRefusedError if it uses what the device does not support."""
    kernel = module.kernels.get(name)
    if kernel is None:
        # The module has it, so that both are forgotten together.
        kernel = module.kernels[name] = Kernel(module, name)
    return kernel
