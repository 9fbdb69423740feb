"""The twin (instrumented copy) of a kernel that ships as machine code: cut out of its cubin, with probe code in it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.backend.manifest import probed_entry, unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.backend.ptx_devices import FORMS
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.backend.sass_reader import SASS
from neutrino.device.machine_code import PROVEN, MachineCode
from neutrino.errors import FormatError, MachineCodeError
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.sass.cubin import Cubin, read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import code_of
from neutrino.sass.twin.probed import BLOCK_ALIGNMENT, ProbedTwin, calls_assertions
from neutrino.sass.twin.trampolines import ARCHITECTURES
from neutrino.sass.twin.waiting import may_wait
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import LeftOut, Site

MADE_OF = "machine code"
"""How manifests say what a twin was made of, where that is not PTX."""
TWIN_FILE = "twin.cubin"
"""The name of the twin's cubin among a kernel's files in a trace."""
_WARP_LANES = 32


@dataclass(frozen=True)
class _Place:
    """A parameter's place: offset and size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class SassKernel:
    """A kernel that probes are planned for; a ``PlannedKernel``. data: the cubin of it alone."""

    name: str
    data: bytes
    probes: ProbeSet
    left_out: tuple[LeftOut, ...] = ()
    probes_left_out: tuple[ProbeLeftOut, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def sites(self) -> tuple[Site, ...]:
        """One for each probe: its accesses are found when its code is put there. There is no text, whose lines they
        could name."""
        return tuple(Site(probe.name, probe.tracepoint.text, 1, "", function=self.name) for probe in self.probes.probes)

    @property
    def site_count(self) -> int:
        """How many there are."""
        return len(self.probes.probes)


@dataclass(frozen=True)
class SassPlan:
    """The kernel, if probes can go into it; a ``Plan``."""

    kernels: tuple[SassKernel, ...]
    refused: Mapping[str, tuple[Reason, str]]


@dataclass(frozen=True)
class SassTwin:
    """The twin as everybody sees it, a ``Twin``: it has the original's name, in a cubin of its own.

    registers: per thread, of the original and of the twin. data: the cubin.
    """

    name: str
    parameters: tuple[_Place, ...]
    block_offset: int
    block_size: int
    maps: tuple[Map, ...]
    sites: tuple[Site, ...]
    registers: tuple[int, int]
    data: bytes
    lanes: int = _WARP_LANES
    variables: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    probes_left_out: tuple[ProbeLeftOut, ...] = ()
    length_warning: str = ""

    @property
    def twin_name(self) -> str:
        """The name that the twin (copy with probes) has in its image: the original's."""
        return self.name

    def files(self, cap: int | None) -> Mapping[str, bytes]:
        """Return what a trace keeps of it: the cubin, since there is no text. cap: is not used."""
        return {TWIN_FILE: self.data}


@dataclass(frozen=True)
class SassOutcome:
    """A twin that the checker has passed, or the reason why there is none."""

    twin: SassTwin | None
    refusal: tuple[Reason, str] | None = None


@dataclass(frozen=True)
class SassTwins:
    """The ``Backend`` for one kernel of a cubin, which is the only one that is probed.

    machine: the machine code that the driver picks, None where it compiles PTX. arch: of that, or of the device.
    kernel: its mangled name. certain: "", or why it is not known which machine code runs. code: as the user has it.
    probes: of the run. max_registers: the user's register cap of twins, None without one. dump: for ``--save-temps``.
    """

    machine: Cubin | None
    arch: str
    kernel: str
    code: MachineCode
    probes: ProbeSet
    assembler: Assembler
    uncertain: str = ""
    max_registers: int | None = None
    dump: Dump = field(default_factory=Dump)
    target: str = "ptx"

    @property
    def kernels(self) -> Sequence[str]:
        """The name of the kernel."""
        return [self.kernel]

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """Why it cannot be probed, whatever its code is; None if it may be."""
        if self.machine is None:
            return Reason.NO_PTX, "the driver compiles it from PTX, which --machine-code only leaves alone"
        if self.uncertain:
            return Reason.VARIANT, self.uncertain
        if self.arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            return Reason.UNSUPPORTED, f"its machine code is for {self.arch}: twins are made of that for {known}"
        if not self.code.takes(self.arch):
            proven = ", ".join(sorted(PROVEN))
            return Reason.UNSUPPORTED, (
                f"its machine code is for {self.arch}: no GPU has shown twins of that, but for {proven or 'none'}; "
                "--machine-code unproven makes them"
            )
        return None

    def plan(self, kernels: Sequence[str]) -> SassPlan:
        """Cut the kernel out of its cubin. kernels: its name."""
        if self.machine is None or not kernels:
            return SassPlan((), {})
        try:
            data = _cutter_of(self.machine).cut(self.kernel)
        except (MachineCodeError, FormatError) as error:
            return SassPlan((), {self.kernel: _refused(error)})
        self.dump.write("original.cubin", data)
        return SassPlan((SassKernel(self.kernel, data, self.probes),), {})

    def write(self, plan: SassPlan) -> SassKernel:
        """Return the kernel of the plan: its code is written when that of the probes has been assembled."""
        return plan.kernels[0]

    def assemble(self, code: SassKernel) -> SassOutcome:
        """Assemble the probes' code, put it into the kernel's, and have the result checked.

        Raises ToolError, OSError for failures of the machine.
        """
        try:
            made = self._probe_code.twin_of(code.data, code.name, "cubin")
            twin = self._twin(code, made)
        except AssemblyError as error:
            return SassOutcome(None, (Reason.ASSEMBLER, str(error)))
        except (MachineCodeError, FormatError) as error:
            return SassOutcome(None, _refused(error))
        most = self.max_registers
        if most is not None and made.registers > max(most, twin.registers[0]):
            what = f"its twin needs {made.registers} registers, more than --max-registers {most}"
            return SassOutcome(None, (Reason.UNSUPPORTED, what))
        self.dump.write(TWIN_FILE, made.data)
        return SassOutcome(twin)

    def entries(self, code: SassKernel, outcomes: SassOutcome) -> BackendResult:
        """Return the kernel's cache entry, and the cubin of its twin."""
        twin = outcomes.twin
        if twin is None or outcomes.refusal is not None:
            return BackendResult({code.name: KernelEntry(code.name, *(outcomes.refusal or (Reason.UNSUPPORTED, "")))})
        before, after = twin.registers
        manifest = unassembled_manifest(twin, self.arch, FORMS[Emit.CODE]) | {
            "registers": {"original": before, "twin": after, "capped": None}, "assembler": self.assembler.name,
            "made_of": MADE_OF,
        }  # fmt: skip
        entry = probed_entry(twin, manifest, image=0, fewer_blocks=_fewer_blocks(code, self.arch, before, after))
        return BackendResult({twin.name: entry}, (twin.data,))

    @property
    def _probe_code(self) -> ProbeCode:
        """The code of the probes, for kernels of this architecture."""
        return _code_of(self.probes, self.arch, self.assembler)

    def _twin(self, code: SassKernel, made: ProbedTwin) -> SassTwin:
        """Return what the others have to know of a twin that was made."""
        kernel = read_cubin(code.data, "cubin").kernels[code.name]
        maps = self._probe_code.maps
        texts = {probe.name: probe.tracepoint.text for probe in self.probes.probes}
        sites = tuple(
            Site(probe, texts[probe], 1, instruction, number, function=code.name)
            for probe, instruction, number in self._probe_code.sites(code.data, code.name, "cubin", made)
        )
        if [entry.name for entry in maps] != [entry.name for entry in self.probes.maps]:
            raise MachineCodeError(code.name, "its twin would not have all maps of the probes")
        return SassTwin(
            code.name, tuple(_Place(offset, size) for _, offset, size in kernel.parameters), made.parameter_offset,
            self._probe_code.block_size, maps, sites, (kernel.registers, made.registers), made.data,
        )  # fmt: skip


_codes: dict[tuple[int, str, str], tuple[ProbeSet, ProbeCode]] = {}
"""Code of probes by their set, the architecture and the assembler; with the set, so that no other has its identity."""


def _code_of(probes: ProbeSet, arch: str, assembler: Assembler) -> ProbeCode:
    """Return the code of a set of probes, the same one each time, since assembling it takes long."""
    key = id(probes), arch, assembler.identity
    if key not in _codes:
        _codes[key] = probes, ProbeCode(probes, arch, assembler)
    return _codes[key][1]


def _fewer_blocks(code: SassKernel, arch: str, before: int, after: int) -> FewerBlocks:
    """Return which launches may run a twin (copy with probes) of which fewer blocks fit.

    arch: that it is for. before, after: registers of the original and of the twin; if they take as much of the register
    file, there is no such launch.
    """
    unit = SASS.registers.unit
    if -(-after // unit) <= -(-before // unit):
        return FewerBlocks.NONE
    whole = decode(code_of(code.data, code.name, "cubin"), ARCHITECTURES[arch], code.name)
    waits = may_wait(whole, aborts=calls_assertions(code.data, "cubin"))
    return FewerBlocks.ALL_FIT if waits else FewerBlocks.ANY


_cutters: weakref.WeakKeyDictionary[Cubin, Cutter] = weakref.WeakKeyDictionary()
"""What cuts kernels out of cubins, as long as these are kept."""


def _cutter_of(machine: Cubin) -> Cutter:
    """Return what cuts kernels out of a cubin. Raises FormatError for a damaged one."""
    cutter = _cutters.get(machine)
    if cutter is None:
        cutter = _cutters[machine] = Cutter(machine.data, "cubin", machine.elf)
    return cutter


def prepare_code(probes: ProbeSet, arch: str, assembler: Assembler) -> None:
    """Assemble the code of a set of probes for all kernels, and read the tables of instructions, so that processes that
    are forked need not do that. Probes that cannot be put into machine code are left for later."""
    if arch not in ARCHITECTURES:
        return
    with contextlib.suppress(MachineCodeError, AssemblyError):
        for offset in (0, BLOCK_ALIGNMENT):
            _code_of(probes, arch, assembler).prepare(offset)


def _refused(error: MachineCodeError | FormatError) -> tuple[Reason, str]:
    """Return the reason and detail of a kernel of which no twin can be made."""
    why = error.reason if isinstance(error, MachineCodeError) else str(error)
    return Reason.UNSUPPORTED, f"of its machine code no twin is made: {why}"
