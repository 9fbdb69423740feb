"""The target for NVIDIA's devices, by PTX: of one module, or of modules that the device linker put together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend import ptx_devices
from neutrino.backend.kernel_runs import CannotRunError
from neutrino.backend.ptx_linked_source import RELOCATABLE_SECTION, LinkedSource, find_linked_source, is_linked
from neutrino.backend.ptx_occupancy import warps_by_registers
from neutrino.backend.ptx_source import DEBUG_SECTION, Source, find_source, picked_image
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import NeutrinoError, ToolMissingError
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.fatbin.container import FILE
from neutrino.fatbin.ptxscan import ptx_entries
from neutrino.ptx.snippets.language import Ptx, PtxVerifier
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.sass.cubin import read_cubin
from neutrino.targets import lowered
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import LATEST_PTX, release_of_ptx
from neutrino.toolchain.tool_choice import ASSEMBLER_HINT, find_assembler, find_assembler_for, find_linking_tools

if TYPE_CHECKING:
    from neutrino.backend.kernel_runs import KernelResult, KernelRun, Uses
    from neutrino.backend.protocol import Backend, Options, PlannedKernel, Shipped, ShownTwin, Tools
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.twins.cache_entry import KernelEntry
    from neutrino.twins.kernel_text import Kernel, KernelText

NOT_ASSEMBLED = "no ptxas on this machine: neither registers nor arithmetic of the twins were verified"
"""The note of a patched file for the embedded device."""


@dataclass(frozen=True)
class LinkingTools:
    """The ``Tools`` for device-linked code."""

    assembler: Assembler
    linker: Linker

    @property
    def identity(self) -> str:
        """What identifies the versions of assembler and linker, for cache keys."""
        return f"{self.assembler.identity}, {self.linker.identity}"

    def limited(self, slots: AbstractContextManager[object]) -> LinkingTools:
        """Return the same tools, with an assembler that takes slots."""
        return replace(self, assembler=self.assembler.limited(slots))


class PtxTarget:
    """The ``Target`` for PTX. The classes of twins are imported when they are first needed."""

    name = "ptx"
    language = ptx_devices.LANGUAGE
    platform = Ptx.platform
    lanes = (32,)
    is_text_shipped = True
    capabilities = PtxVerifier.capabilities
    files = ("original.ptx", "probed.ptx")
    code_files = ("twin.cubin",)
    code_alone: frozenset[DeviceKind] = frozenset()
    sample = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\0"
    devices = ptx_devices.DEVICES
    forms = ptx_devices.FORMS
    supported = ptx_devices.SUPPORTED
    judges = "ptxas and the check of the arithmetic"
    embedded_device = ptx_devices.EMBEDDED_DEVICE

    # Architectures

    def device_of(self, arch: str) -> str | None:
        """Return the architecture of the devices that an image for one runs on; None for none of this target's."""
        return ptx_devices.device_of(arch)

    def rank(self, device: str) -> int:
        """Return a number by which architectures of devices are sorted."""
        return ptx_devices.rank(device)

    def supports(self, device: str) -> bool:
        """Return whether kernels for an architecture can be probed."""
        return ptx_devices.rank(device) >= FIRST_ARCHITECTURE

    def device_named(self, word: str) -> str | None:
        """Return the architecture that a user's word names, which may be short; None for none of this target's."""
        return ptx_devices.device_named(word)

    def warps_by_registers(self, registers: int, arch: str) -> int:
        """Return how many warps fit on a multiprocessor by their registers, as ``Target``."""
        return warps_by_registers(registers, arch)

    # Images

    def takes(self, image: Image) -> bool:
        """Return whether the image is of a kind that may hold kernels for this target."""
        return image.kind in ptx_devices.IMAGES

    def holds_text(self, image: Image) -> bool:
        """Return whether the image is text that twins can be made from."""
        return image.kind is ImageKind.PTX

    def is_machine_code(self, image: Image) -> bool:
        """Return whether the image is what the device runs, and not text that the driver compiles for it."""
        return image.kind is ImageKind.CUBIN

    def may_hold_text(self, code: bytes) -> bool:
        """Whether machine code may hold the PTX that it was made from, in a debug section."""
        return DEBUG_SECTION.encode() in code

    def is_driver_text(self, container: Container) -> bool:
        """Whether a file is PTX as the driver takes it, as ``Target``: a bare PTX file has no headers."""
        return container.kind == FILE and container.images[0].kind is ImageKind.PTX

    def picked(self, container: Container, arch: str, device: DeviceKind = DeviceKind.GPU) -> Image | None:
        """Return the image that the driver picks from a container for a device; None when nothing fits."""
        return picked_image(container, arch, device)

    def is_unit(self, container: Container) -> bool:
        """Return whether the container is an input of the devices' linker, which no program loads."""
        return container.section == RELOCATABLE_SECTION

    def is_linked(self, container: Container, units: Sequence[Container]) -> bool:
        """Return whether the container was linked from units of the same file, which have its text.

        ``Target`` says more.
        """
        return is_linked(container, units)

    def serves(
        self, container: Container, made_for: str, made_from: Image, device: str, runs: Image, emit: Emit
    ) -> bool:
        """Return whether twins that are made for one architecture are also right for another one, device.

        ``Target`` says more.
        """
        return ptx_devices.serves(container, made_for, made_from, device, runs, emit)

    def parameters(self, image: Image, name: str) -> dict[str, list[tuple[int, int]]]:
        """Return offset and size in bytes of each parameter of a PTX or machine-code image's kernels, by the kernel's
        name.

        name: of the image, for errors. Raises FormatError, and PtxError for a text that cannot be read.
        """
        if image.kind is ImageKind.CUBIN:
            # In cubins a parameter is (index, offset, size).
            return {
                kernel.name: [(offset, size) for _, offset, size in kernel.parameters]
                for kernel in read_cubin(image.data, name).kernels.values()
            }
        from neutrino.ptx.text.module import parse

        module = parse(image.data.decode("latin-1"))
        # The parameters, and the size of all together.
        layouts = {entry.name: module.parameter_layout(entry) for entry in module.entries}
        return {
            kernel_name: [(parameter.offset, parameter.size) for parameter in parameters]
            for kernel_name, (parameters, _) in layouts.items()
        }

    # Probing

    def find(
        self, container: Container, units: Sequence[Container], arch: str, device: DeviceKind, *,
        retarget: bool = False, kernel: str = "",
    ) -> Source | LinkedSource:  # fmt: skip
        """Find the code that a device runs of a container, and the PTX text that it was made from. ``Target`` says
        more.

        The embedded device (a CPU emulator) runs PTX, so it never takes what the device linker made.
        """
        if device is DeviceKind.GPU and is_linked(container, units):
            return find_linked_source(container, units, arch)
        return find_source(container, arch, device, retarget=retarget, kernel=kernel)

    def alone(self, shipped: Shipped) -> bytes | memoryview | None:
        """Return the machine code that runs, if no text is used, as ``Target``."""
        if not isinstance(shipped, Source) or shipped.machine is None or shipped.text is not None or shipped.uncertain:
            return None
        return shipped.machine.data if shipped.machine.arch else None

    def is_looked_up(self, container: Container, shipped: Shipped) -> bool:
        """Return whether the hook looks for twins (instrumented copies) of a container: only of one with PTX, which may
        also be in the cubin itself, or in the units that were linked."""
        if isinstance(shipped, LinkedSource):
            return True
        return any(map(self.holds_text, container.images)) or _source(shipped).found == DEBUG_SECTION

    def tools(self, container: Container, shipped: Shipped, options: Options) -> tuple[Tools | None, tuple[str, ...]]:
        """Find the assembler, and the linker for device-linked code, for twins of a container; and remarks for the
        user.

        The release is that of the toolkit that made the original, as machine code or else PTX states it. None where
        nothing is to be assembled. Raises ToolMissingError.
        """
        if isinstance(shipped, LinkedSource):
            # The toolkit that made the original, None if it is not known.
            release = shipped.machine.toolkit if shipped.machine else None
            assembler, linker = find_linking_tools(release, shipped.arch)
            notes = _driver_notes(assembler, release, options)
            if options.emit is not Emit.CODE:
                notes.append("device-linked code: its twins are machine code only, whatever --emit says")
            return LinkingTools(assembler, linker), tuple(notes)

        source = _source(shipped)
        release = source.machine.toolkit if source.machine else None
        # A version of (0, 0) is unknown.
        texts = [image for image in container.images if image.index == source.image and image.version != (0, 0)]
        if release is None and source.machine is None and texts:
            release = release_of_ptx(texts[0].version)
        # Without PTX there is nothing to assemble; the backend then gives the kernels their reasons.
        if source.text is None:
            return None, ()
        try:
            assembler = find_assembler_for(release, source.arch)
        except ToolMissingError:
            # The embedded device runs PTX, so its twins need not be assembled.
            if options.device is DeviceKind.GPU:
                raise
            return None, (NOT_ASSEMBLED,)
        return assembler, tuple(_driver_notes(assembler, release, options))

    def run_tools(self, driver_version: int | None) -> Tools:
        """Find the assembler for twins (instrumented kernels) that run on this machine. driver_version: as in
        ``cuDriverGetVersion``, None if it is not known. Raises ToolMissingError."""
        return find_assembler(driver_version)

    def prepare_code(self, probes: ProbeSet, arch: str, tools: Tools | None) -> None:
        """Assemble the probes' code for kernels of machine code, as ``Target``."""
        from neutrino.backend.sass_twin import prepare_code

        if isinstance(tools, Assembler):
            prepare_code(probes, arch, tools)

    def check_text(self, text: str) -> None:
        """Raise NeutrinoError for a file's content that cannot be a text of this target's. text: as latin-1."""
        from neutrino.backend.ptx_launches import check_text

        check_text(text)

    @property
    def interpreter(self) -> str:
        """None of machine code: the embedded device runs text."""
        return ""

    def kernel_of(self, shipped: Shipped, name: str, uses: Uses | None) -> Kernel:
        """Raise NeutrinoError: kernels are tried by their text."""
        raise NeutrinoError(f"{name}: there is no text of it, by which kernels are tried")

    def run_kernel(self, run: KernelRun) -> KernelResult:
        """Raise CannotRunError: kernels are tried by their text."""
        raise CannotRunError(f"{run.kernel}: there is no text of it, by which kernels are tried")

    def kernel_text(self, text: str) -> KernelText:
        """Read a text, of latin-1 characters, to launch its kernels with generated inputs.

        ``Target`` says more.
        """
        from neutrino.backend.ptx_launches import PtxKernels

        return PtxKernels(text)

    def tools_for(self, kernel: PlannedKernel, shipped: Shipped) -> Tools | None:
        """Find the assembler for the twin of one kernel: of the toolkit that made the original. None for device-linked
        code, which is not assembled kernel by kernel. Raises ToolMissingError."""
        from neutrino.ptx.instrument.plan import KernelPlan

        if not isinstance(shipped, Source):
            return None
        release = shipped.machine.toolkit if shipped.machine else None
        if shipped.machine is None and isinstance(kernel, KernelPlan):
            release = release_of_ptx(kernel.version)
        return find_assembler_for(release, shipped.arch)

    def backend(
        self, shipped: Shipped, probes: ProbeSet, tools: Tools | None, options: Options
    ) -> Backend[Any, Any, Any]:
        """Return the way in which what is shipped is probed, with the probes that the target can do (``able_probes``).

        ``Target`` says more.
        """
        if isinstance(shipped, LinkedSource):
            from neutrino.backend.ptx_linked import LinkedTwins

            if not isinstance(tools, LinkingTools):
                raise ToolMissingError("nvlink", "device-linked code is not taken without assembling it")
            return LinkedTwins(
                shipped, probes, tools.assembler.ptx_version, (tools.assembler, tools.linker), options.dump,
                options.max_registers, options.notice,
            )  # fmt: skip
        from neutrino.backend.ptx_twin import PtxTwins

        source = _source(shipped)
        assembler = tools if isinstance(tools, Assembler) else None
        is_embedded = options.device is DeviceKind.EMBEDDED
        if assembler is None and source.text is not None and not is_embedded:
            raise ToolMissingError("ptxas", ASSEMBLER_HINT)
        if options.kernel and not is_embedded and assembler is not None and takes_machine_code(source, options):
            from neutrino.backend.sass_twin import SassTwins

            return SassTwins(
                source.machine, source.arch, options.kernel, options.machine_code, probes, assembler, source.uncertain,
                options.max_registers, options.dump,
            )  # fmt: skip
        # bounded_stack: on a GPU a thread has no more stack than the program has asked for.
        return PtxTwins(
            source, probes, LATEST_PTX if assembler is None else assembler.ptx_version, assembler,
            Emit.TEXT if is_embedded else options.emit, bounded_stack=not is_embedded, unproven=options.unproven,
            max_registers=None if is_embedded else options.max_registers, notice=options.notice, dump=options.dump,
        )  # fmt: skip

    def planner(self, shipped: Shipped, probes: ProbeSet) -> Backend[Any, Any, Any]:
        """Return a way of probing that is only asked for plans, so that it needs no tools."""
        if isinstance(shipped, LinkedSource):
            from neutrino.backend.ptx_linked import LinkedTwins

            return LinkedTwins(shipped, probes, LATEST_PTX)
        from neutrino.backend.ptx_twin import PtxTwins

        return PtxTwins(_source(shipped), probes, LATEST_PTX)

    def show(self, kernel: PlannedKernel, entry: KernelEntry | None) -> ShownTwin:
        """Write the twin of a planned kernel. entry: what came of assembling it, None if it was not assembled."""
        from neutrino.backend.ptx_shown import show
        from neutrino.ptx.instrument.plan import KernelPlan

        if not isinstance(kernel, KernelPlan):
            raise TypeError(f"{kernel.name} was not planned by this target")
        return show(kernel, entry)

    def length_warning(self, kernel: PlannedKernel) -> str:
        """Return what to say of a planned kernel's twin before it is assembled, "" of one that does not take long.

        ``Target`` says more.
        """
        from neutrino.errors import PtxError
        from neutrino.ptx.instrument.plan import KernelPlan
        from neutrino.ptx.instrument.registers import UnsupportedError
        from neutrino.ptx.instrument.twin_bodies import write_twin

        try:
            return write_twin(kernel).length_warning if isinstance(kernel, KernelPlan) else ""
        except (UnsupportedError, PtxError):
            return ""

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Return probes with their typed statements as this target's assembly."""
        return lowered(probes)


def takes_machine_code(source: Source, options: Options) -> bool:
    """Return whether the twin of the wanted kernel is to be made of machine code: where there is no PTX of it that was
    surely compiled to the code that runs, or where none of PTX is wanted."""
    if options.machine_code is MachineCode.ONLY:
        return True
    if not options.machine_code.is_on or source.machine is None:
        return False
    if source.reason in (Reason.NO_PTX, Reason.VARIANT) or source.text is None or source.retargeted:
        return True
    return options.kernel not in ptx_entries(source.text.encode("latin-1"))


def _source(shipped: Shipped) -> Source:
    """Return what is shipped as one module. Raises TypeError for another target's."""
    if not isinstance(shipped, Source):
        raise TypeError(f"{type(shipped).__name__} is not what this target finds")
    return shipped


def _driver_notes(assembler: Assembler, release: tuple[int, int] | None, options: Options) -> list[str]:
    """Return a note if machine code of twins (instrumented kernels) may need a newer driver than the originals do.

    release: the CUDA toolkit (major, minor) that made the originals; None if it is not known. PTX is compiled by the
    driver itself, so it needs no note.
    """
    if options.emit is Emit.TEXT or options.device is DeviceKind.EMBEDDED:
        return []
    if release is not None and assembler.version[:2] <= release:
        # A driver that runs the originals is new enough.
        return []
    made_by = f"newer than CUDA {release[0]}.{release[1]}, which made the originals" if release else (
        "the oldest here, and what made the originals is not known"
    )  # fmt: skip
    version = f"{assembler.version[0]}.{assembler.version[1]}"
    return [f"{assembler.name} is {made_by}: the twins need a driver of CUDA {version}"]
