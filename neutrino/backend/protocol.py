"""What a target is, and what a way of probing is: from original kernels to the twins that the hook launches instead.

    container ─ Target.find ─► Shipped ─ Target.backend ─► Backend
    kernels ─ plan ─► sites ─ write ─► code with probes ─ assemble ─► verified outcomes ─ entries ─► BackendResult

Each step takes the immutable value that the previous one returned. A target has a backend for each way in which kernels
may be shipped. ``registry.py`` has the targets, and chooses one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.backend.kernel_runs import CannotRunError, KernelResult, KernelRun, Uses
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, Image
from neutrino.probing.capabilities import Capabilities
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.model import DEFAULT_PLATFORM
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.kernel_text import Kernel, KernelText
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import LeftOut, Site, Twin, ignore


class PlannedKernel(Protocol):
    """Where the probes go in one kernel."""

    @property
    def name(self) -> str:
        """The name of the kernel that probes are planned for, mangled, as its image has it."""

    @property
    def site_count(self) -> int:
        """How many sites (places where probes run) the kernel has. This takes less time to find than the sites
        themselves."""

    @property
    def sites(self) -> Sequence[Site]:
        """The sites (places where probes run): instructions that probes match, and the kernel's entry and ends if
        probes run there."""

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """The instructions that a probe matches and that cannot be probed, each with the reason."""

    @property
    def probes_left_out(self) -> Sequence[ProbeLeftOut]:
        """The probes of the run that cannot be placed in this kernel, each with the reason."""

    @property
    def lines(self) -> Mapping[str, int]:
        """By name, the line of the text (from 1) where the kernel and each function with probes that it calls begin."""


class Plan(Protocol):
    """Where the probes go in the kernels that were asked for, each of which is in one of the two members; immutable."""

    @property
    def kernels(self) -> Sequence[PlannedKernel]:
        """The kernels of an image that can be probed, as far as their code shows before anything is written."""

    @property
    def refused(self) -> Mapping[str, tuple[Reason, str]]:
        """The kernels of the image that cannot be probed, by name, with reason and detail."""


_Plan = TypeVar("_Plan", bound=Plan)
_Code = TypeVar("_Code")
_Outcomes = TypeVar("_Outcomes")


@dataclass(frozen=True)
class BackendResult:
    """The result of a backend. entries: by the kernel's name. images: of the twins; entries refer to them by index."""

    entries: Mapping[str, KernelEntry]
    images: tuple[bytes, ...] = ()


class Backend(Protocol[_Plan, _Code, _Outcomes]):
    """A way of probing the kernels of one image, for one device, with one set of probes.

    Which of a probe's tracepoints and operands are supported in a kernel shows in the result of ``plan``.
    """

    @property
    def target(self) -> str:
        """The name of the target (kind of GPU code) that this way of probing is for, such as ``ptx``."""

    @property
    def kernels(self) -> Sequence[str]:
        """The names of all kernels of the image that is to be probed."""

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """Why no kernel of the image can be probed, as reason and detail; None if some may be."""

    def plan(self, kernels: Sequence[str]) -> _Plan:
        """Find where the probes go in the named kernels, without running any tool.

        Raises ProbeError if a probe reads an operand that a matched instruction does not have.
        """

    def write(self, plan: _Plan) -> _Code:
        """Return code with the probes in it for the kernels of a plan, not assembled yet."""

    def assemble(self, code: _Code) -> _Outcomes:
        """Assemble the code and compare each twin (instrumented copy of a kernel) with its original.

        Raises ToolError, OSError for failures of the machine.
        """

    def entries(self, code: _Code, outcomes: _Outcomes) -> BackendResult:
        """Return what the hook (Neutrino's library in the program) has to know of each kernel, and the images with
        twins (copies with probes) that it gives to the driver."""


class Shipped(Protocol):
    """What a program ships for a device: the code that runs, and the text that it was made from, if there is any."""

    @property
    def image(self) -> int | None:
        """The index in its container of the image that the driver picks for the device; None where nothing fits."""

    @property
    def arch(self) -> str:
        """The GPU architecture that the code found in a program is for, such as ``sm_90``."""

    @property
    def retargeted(self) -> str:
        """From which architecture to which the text is translated, if it is for another one than the device's code,
        else ""."""

    def summary(self) -> dict[str, object]:
        """Return what ``source.json``, a file of the option ``--save-temps``, says of the code found in a program:
        everything but the text, which has a file of its own."""


class Tools(Protocol):
    """What a target makes machine code with."""

    @property
    def identity(self) -> str:
        """What differs between builds of the assembler and linker: a part of the keys of the cache of twins."""

    def limited(self, slots: AbstractContextManager[object]) -> Tools:
        """Return the same tools (assembler, linker), each process of which takes one of these slots while it runs."""


@dataclass(frozen=True)
class Options:
    """How twins (instrumented kernels) are made, whatever the target.

    device: what runs them. emit: their form for the driver; ignored for the embedded device, which takes text.
    unproven: for text of another architecture, also make twins of kernels that are not proven to be the ones that run.
    max_registers: the user's register cap of twins, None without one; nothing for the embedded device. notice: called
    with each long twin before it is assembled. dump: for ``--save-temps``. kernel: the mangled name of the only kernel
    that is wanted, "" for all; a twin may be made of its machine code, as machine_code says.
    """

    device: DeviceKind = DeviceKind.GPU
    emit: Emit = Emit.CODE
    unproven: bool = False
    max_registers: int | None = None
    notice: Callable[[Twin], None] = ignore
    dump: Dump = field(default_factory=Dump)
    kernel: str = ""
    machine_code: MachineCode = MachineCode.OFF


@dataclass(frozen=True)
class TwinText:
    """The kernel, or a function that it calls a copy of: its text before and after probing.

    line: the line of the file's text where it begins. pairs: for each line of the original which line of the probed
    text it is, from 0, None for none; where that is not known, lines are paired by their text.
    """

    name: str
    line: int
    original: str
    probed: str
    is_kernel: bool = False
    pairs: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class ShownTwin:
    """A twin (instrumented copy) as it is shown to people.

    probed: the text of the twin and of its copies of functions. parts: these, in the order of the file's text. added:
    how many instructions were inserted.
    """

    twin: Twin
    probed: str
    parts: tuple[TwinText, ...]
    added: int

    @property
    def original(self) -> str:
        """The text of the original kernel, without probes."""
        return next(part.original for part in self.parts if part.is_kernel)


class Target(Protocol):
    """An assembly language of devices, and all that is to be known of these to probe their kernels.

    What returns something here is so of targets whose programs ship complete images, for which nothing is assembled.
    They inherit it.
    """

    @property
    def name(self) -> str:
        """The name of the kind of GPU code, such as ``ptx``, as ``ProbeSet.target`` has it."""

    @property
    def language(self) -> str:
        """The name of the assembly language of this kind of GPU code, as messages call it."""

    @property
    def platform(self) -> str:
        """The name by which probe files ask for this kind of GPU code, such as ``cuda``."""
        return DEFAULT_PLATFORM

    @property
    def lanes(self) -> tuple[int, ...]:
        """How many lanes (threads) a warp may have on GPUs that run this kind of code."""

    @property
    def capabilities(self) -> Capabilities:
        """Which tracepoints, operands, helpers and maps probes may use in this kind of GPU code."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files with texts of a twin (copy with probes) that a trace keeps, beside ``manifest.json``.
        """

    @property
    def code_files(self) -> tuple[str, ...]:
        """The same of twins that were made of machine code: none, as by default, where none are."""
        return ()

    @property
    def code_alone(self) -> frozenset[DeviceKind]:
        """The kinds of devices for which twins (copies with probes) are made of machine code that comes without a text.
        By default none."""
        return frozenset()

    @property
    def is_text_shipped(self) -> bool:
        """Whether programs ship kernels as text of the target's language."""
        return True

    @property
    def sample(self) -> bytes:
        """A small image, of one kernel without parameters, that the embedded device can run. By default there is none.
        """
        return b""

    @property
    def devices(self) -> tuple[str, ...]:
        """The architectures of GPUs that this kind of code is known for, in ascending order."""

    @property
    def supported(self) -> str:
        """For which architectures kernels can be probed, in words for messages."""

    @property
    def judges(self) -> str:
        """What may still refuse a kernel whose twin (copy with probes) is planned and not written, in words for
        messages."""

    @property
    def embedded_device(self) -> str:
        """The architecture that the embedded device (it runs kernels on the CPU) has, by default "": it runs none of
        these."""
        return ""

    @property
    def forms(self) -> Mapping[Emit, str]:
        """The words of manifests for the forms in which twins (copies with probes) can be emitted: code, text, or both.
        """
        return {Emit.CODE: "code", Emit.TEXT: self.name, Emit.BOTH: "both"}

    # Architectures

    def device_of(self, arch: str) -> str | None:
        """Return the architecture of the GPUs that an image made for one runs on (``sm_90`` of ``sm_90a``); None for
        none of this target's."""

    def rank(self, device: str) -> int:
        """Return a number by which architectures of devices are sorted."""
        return self.devices.index(device)

    def supports(self, device: str) -> bool:
        """Return whether kernels for an architecture can be probed."""
        return device in self.devices

    def device_named(self, word: str) -> str | None:
        """Return the GPU architecture that a user's word names, which may be short; None for none of this target's."""
        return word if word in self.devices else None

    def warps_by_registers(self, registers: int, arch: str) -> int:
        """Return how many warps fit on a multiprocessor if nothing but a thread's registers limits them.

        0, as by default, where that is not known.
        """
        return 0

    # Images

    def takes(self, image: Image) -> bool:
        """Return whether an image of a program is of a kind that may hold kernels for this target (kind of GPU code).
        """

    def holds_text(self, image: Image) -> bool:
        """Return whether the image is of the kind from which twins (copies with probes) can be made."""
        return self.takes(image)

    def may_hold_text(self, code: bytes) -> bool:
        """Return whether machine code that a compiler has just written may hold its text. It is not parsed for that.

        By default it never does.
        """
        return False

    def is_driver_text(self, container: Container) -> bool:
        """Return whether the container is a text that the driver gets as it is, without headers. By default none is."""
        return False

    def picked(self, container: Container, arch: str, device: DeviceKind = DeviceKind.GPU) -> Image | None:
        """Return the image that the driver picks from a container for a device; None when nothing fits."""

    def is_unit(self, container: Container) -> bool:
        """Return whether the container is an input of the devices' linker, which no program loads. By default none is.
        """
        return False

    def is_linked(self, container: Container, units: Sequence[Container]) -> bool:
        """Return whether the container was linked from units of the same file, which have its text. By default none
        was.

        Raises FormatError for a damaged image.
        """
        return False

    def is_machine_code(self, image: Image) -> bool:
        """Return whether the image is what the device runs, and not text that the driver compiles for it."""
        return not self.holds_text(image)

    def serves(
        self, container: Container, made_for: str, made_from: Image, device: str, runs: Image, emit: Emit
    ) -> bool:
        """Return whether twins that are made for one architecture are also right for another one, device. By default
        they are not.

        They must run on it, and be made from the code that the program runs there. made_from, runs: the images that the
        driver picks from the container for the two.
        """
        return False

    def parameters(self, image: Image, name: str) -> dict[str, list[tuple[int, int]]]:
        """Return offset and size in bytes of each parameter of an image's kernels, by the kernel's name.

        name: of the image, for errors. Raises FormatError, and NeutrinoError for a text that cannot be read.
        """

    # Probing

    def find(
        self, container: Container, units: Sequence[Container], arch: str, device: DeviceKind, *,
        retarget: bool = False, kernel: str = "",
    ) -> Shipped:  # fmt: skip
        """Find what a device runs of a container, and the text that it was made from.

        units: those of the same file that the container may be linked from. retarget: if there is no such text, use
        that of another architecture. kernel: one that is asked for, "" for all; what is found also serves others
        of the same image. Raises FormatError for damaged images.
        """

    def alone(self, shipped: Shipped) -> bytes | memoryview | None:
        """Return the machine code that stands for what is shipped where single kernels are asked for: of it alone the
        same twins would be made. None, as by default, where that is not so."""
        return None

    def is_looked_up(self, container: Container, shipped: Shipped) -> bool:
        """Return whether the hook (Neutrino's library in the program) looks for twins of this container. By default it
        does."""
        return True

    def tools(self, container: Container, shipped: Shipped, options: Options) -> tuple[Tools | None, tuple[str, ...]]:
        """Find the assembler for twins that may run on other machines; and remarks for the user about it.

        None, as by default, where nothing is to be assembled. Raises ToolMissingError.
        """
        return None, ()

    def run_tools(self, driver_version: int | None) -> Tools | None:
        """Find the assembler for twins that run on this machine; None, as by default, where nothing is to be assembled.

        driver_version: as its driver says it, None if that is not known. Raises ToolMissingError.
        """
        return None

    def prepare_code(self, probes: ProbeSet, arch: str, tools: Tools | None) -> None:
        """Make ready what twins of machine code alone have in common, for a device's architecture and a set of probes.
        By default there is nothing.
        """
        return

    def check_text(self, text: str) -> None:
        """Raise NeutrinoError for a file's content that cannot be a text of this target's. By default any can.

        text: of latin-1 characters.
        """
        return

    def kernel_text(self, text: str) -> KernelText:
        """Read a text of GPU code, to launch its kernels with generated inputs.

        text: of latin-1 characters. Raises NeutrinoError if that cannot be done: by default it cannot.
        """
        raise NeutrinoError(f"kernels in {self.language} cannot be tried: no device here runs them")

    @property
    def interpreter(self) -> str:
        """The name, as traces have it, of what here interprets machine code of this target; "" without such."""
        return ""

    def kernel_of(self, shipped: Shipped, name: str, uses: Uses | None) -> Kernel:
        """Read a kernel of machine code, to launch it by ``run_kernel`` with generated inputs.

        uses: of its buffers, as a run of it has shown, None before there was one. Raises NeutrinoError if that cannot
        be done, as by default; FormatError for damaged code, ToolMissingError.
        """
        raise NeutrinoError(f"kernels in {self.language} cannot be tried: no device here runs them")

    def run_kernel(self, run: KernelRun) -> KernelResult:
        """Raise CannotRunError: by default no interpreter here runs a target's machine code.

        A target that has one launches the kernel in it, and returns what it did.
        """
        raise CannotRunError(f"kernels in {self.language} cannot be tried: no device here runs them")

    def tools_for(self, kernel: PlannedKernel, shipped: Shipped) -> Tools | None:
        """Find the assembler for the twin of one planned kernel. None, as by default, for code that is not assembled
        kernel by kernel.

        Raises ToolMissingError.
        """
        return None

    def backend(
        self, shipped: Shipped, probes: ProbeSet, tools: Tools | None, options: Options
    ) -> Backend[Any, Any, Any]:
        """Return the way in which what is shipped is probed, with the probes that the target can do (``able_probes``).

        Raises ToolMissingError without tools where it takes them.
        """

    def planner(self, shipped: Shipped, probes: ProbeSet) -> Backend[Any, Any, Any]:
        """Return a way of probing that is only asked for plans, so that it needs no tools."""
        return self.backend(shipped, probes, None, Options())

    def show(self, kernel: PlannedKernel, entry: KernelEntry | None) -> ShownTwin:
        """Write the twin (copy with probes) of a planned kernel, to be shown to the user.

        entry: what came of assembling it, None if it was not assembled.
        """

    def length_warning(self, kernel: PlannedKernel) -> str:
        """Return what to say of a planned kernel's twin before it is assembled, "" of one that does not take long.

        The twin is written to find out. Also "" for one that cannot be written.
        """
        return ""

    def lowered(self, probes: ProbeSet) -> ProbeSet:
        """Return probes with their typed statements as this target's assembly."""
        return probes
