"""The target for AMD's machine code: code objects are taken apart, probed and completed without a text in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neutrino.assemble.emit import Emit
from neutrino.backend import gcn_devices
from neutrino.backend.gcn_source import CodeObjectSource, find_code_object, parameters_of
from neutrino.backend.protocol import Options, Target
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.targets import LANGUAGES, lowered
from neutrino.twins.able import able_probes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from neutrino.backend.kernel_runs import KernelResult, KernelRun, Uses
    from neutrino.backend.protocol import Backend, PlannedKernel, Shipped, ShownTwin, Tools
    from neutrino.gcn.llvm import Llvm
    from neutrino.probing.capabilities import Capabilities
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.twins.cache_entry import KernelEntry
    from neutrino.twins.kernel_text import Kernel

_PLATFORM = "hip"


class LlvmTools:
    """The ``Tools``: AMD's assembler, which runs in this process."""

    def __init__(self, llvm: Llvm) -> None:
        """llvm: found on this machine."""
        self.llvm = llvm

    @property
    def identity(self) -> str:
        """What identifies the build of AMD's LLVM, which assembles: a part of keys of the cache of twins."""
        return self.llvm.identity

    def limited(self, slots: AbstractContextManager[object]) -> LlvmTools:
        """Return these tools themselves: they start no process that would take a slot."""
        return self


class GcnTarget(Target):
    """The ``Target`` for AMD's machine code. What takes it apart is imported when it is first needed."""

    name = "gcn"
    language = gcn_devices.LANGUAGE
    platform = _PLATFORM
    lanes = (32, 64)
    is_text_shipped = False
    files = ("original.s", "probed.s")
    # The hook loads no code objects yet.
    code_alone: frozenset[DeviceKind] = frozenset()
    devices = gcn_devices.DEVICES
    supported = gcn_devices.SUPPORTED
    judges = "the writing of its twin"
    forms = gcn_devices.FORMS

    @property
    def capabilities(self) -> Capabilities:
        """Which tracepoints, operands, helpers and maps probes may use on some of AMD's GPUs."""
        verifier = LANGUAGES[_PLATFORM].verifier
        if verifier is None:
            raise LookupError("there is a verifier")
        return verifier.capabilities

    # Architectures

    def device_of(self, arch: str) -> str | None:
        """Return the architecture of the devices that an image for one runs on: a target id with its features, which
        are what devices are set to; None for none of AMD's."""
        return gcn_devices.device_of(arch)

    def rank(self, device: str) -> int:
        """Return a number by which architectures of devices are sorted."""
        return gcn_devices.rank(device)

    def supports(self, device: str) -> bool:
        """Return whether kernels for an architecture can be probed."""
        return gcn_devices.processor_of(device) in gcn_devices.DEVICES

    def device_named(self, word: str) -> str | None:
        """Return the architecture that a user's word names; None for none of this target's."""
        return gcn_devices.device_of(word)

    # Images

    def takes(self, image: Image) -> bool:
        """Return whether an image of a program is a code object, of which kernels may be probed."""
        return image.kind is ImageKind.CODE_OBJECT

    def holds_text(self, image: Image) -> bool:
        """Return whether twins can be made from the image: from code objects, whose code is taken apart."""
        return self.takes(image)

    def is_machine_code(self, image: Image) -> bool:
        """Return whether an image is what AMD's GPUs run, a code object, and not text that a driver compiles."""
        return self.takes(image)

    def picked(self, container: Container, arch: str, device: DeviceKind = DeviceKind.GPU) -> Image | None:
        """Return the code object that a device runs; None when nothing fits, and for the embedded device."""
        return gcn_devices.picked_image(container, arch) if device is DeviceKind.GPU else None

    def serves(
        self, container: Container, made_for: str, made_from: Image, device: str, runs: Image, emit: Emit
    ) -> bool:
        """Return whether twins that are made for one architecture are right for another: if it runs the same image."""
        return made_from is runs

    def parameters(self, image: Image, name: str) -> dict[str, list[tuple[int, int]]]:
        """Return offset and size in bytes of each argument that launches pass. Raises FormatError."""
        return parameters_of(image.data, name)

    # Kernels that are tried

    @property
    def interpreter(self) -> str:
        """The name of the interpreter. It begins as that of the embedded device, whose times are steps, too."""
        return "Neutrino embedded device (GCN interpreter, step clock)"

    def kernel_of(self, shipped: Shipped, name: str, uses: Uses | None) -> Kernel:
        """Return a kernel's arguments and launches. Raises as ``Target``."""
        from neutrino.backend.gcn_launches import kernel_of

        return kernel_of(_source(shipped), name, uses)

    def run_kernel(self, run: KernelRun) -> KernelResult:
        """Run a kernel in the interpreter. Raises as ``Target``, and ToolMissingError without AMD's disassembler."""
        from neutrino.backend.gcn_runs import run_kernel

        return run_kernel(run)

    # Probing

    def find(
        self, container: Container, units: Sequence[Container], arch: str, device: DeviceKind, *,
        retarget: bool = False, kernel: str = "",
    ) -> CodeObjectSource:  # fmt: skip
        """Find the code object that a device runs of a container."""
        return find_code_object(container, arch)

    def tools(self, container: Container, shipped: Shipped, options: Options) -> tuple[Tools | None, tuple[str, ...]]:
        """Find AMD's assembler for what is inserted; and remarks for the user, none. Raises ToolMissingError."""
        from neutrino.gcn.llvm import find_llvm

        return LlvmTools(find_llvm(gcn_devices.processor_of(shipped.arch))), ()

    def run_tools(self, driver_version: int | None) -> Tools:
        """Find AMD's assembler for kernels that run on this machine. driver_version: ignored, since code objects do not
        depend on it. Raises ToolMissingError."""
        from neutrino.gcn.llvm import find_llvm

        return LlvmTools(find_llvm())

    def tools_for(self, kernel: PlannedKernel, shipped: Shipped) -> Tools | None:
        """Find AMD's assembler for the instrumented copy of one kernel. Raises ToolMissingError."""
        from neutrino.gcn.llvm import find_llvm

        return LlvmTools(find_llvm(gcn_devices.processor_of(shipped.arch)))

    def backend(
        self, shipped: Shipped, probes: ProbeSet, tools: Tools | None, options: Options
    ) -> Backend[Any, Any, Any]:
        """Return the way in which the kernels of a code object are probed: the plan, the writing, the entries for the
        cache."""
        from neutrino.backend.gcn_twin import GcnTwins
        from neutrino.gcn.snippets.meaning import typed

        able, left_out = able_probes(self, probes)
        able = typed(able)
        return GcnTwins(_source(shipped), able, left_out, options.notice, options.dump)

    def show(self, kernel: PlannedKernel, entry: KernelEntry | None) -> ShownTwin:
        """Write the twin (copy with probes) of a planned kernel, to be shown to the user with what was inserted."""
        from neutrino.backend.gcn_shown import show
        from neutrino.backend.gcn_values import GcnKernel

        if not isinstance(kernel, GcnKernel):
            raise TypeError(f"{kernel.name} was not planned by this target")
        return show(kernel.source, kernel)

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Return probes as they are kept: what they become differs between processors, so they stay typed."""
        return lowered(probes)


def _source(shipped: Shipped) -> CodeObjectSource:
    """Return what this target has found. Raises TypeError for what another one has."""
    if not isinstance(shipped, CodeObjectSource):
        raise TypeError(f"{type(shipped).__name__} is not what this target finds")
    return shipped
