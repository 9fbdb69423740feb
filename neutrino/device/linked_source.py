"""Device-linked code: which machine code a device runs, and the PTX of the translation units that it was linked from.

``nvcc -rdc=true`` leaves relocatable cubins and PTX of each translation unit in ``__nv_relfatbin``. The driver runs
another container, in ``.nv_fatbin``: cubins that the device linker made of them, without PTX. Nothing in the file says
which units these were, so they are found by names and machine code: a unit's PTX stands for a linked kernel if the
unit's own cubin for the same architecture has the kernel's code, up to relocations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neutrino.abi.reasons import Reason
from neutrino.device.source import runs_on, stored_options
from neutrino.elf.constants import ET_EXEC, STT_OBJECT
from neutrino.elf.reader import Elf
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.program import Program, shapes
from neutrino.ptx.text.module import Module, parse
from neutrino.sass.arithmetic import INSTRUCTION_SIZE
from neutrino.sass.cubin import Cubin, cubin_kernel_names, read_cubin

RELOCATABLE_SECTION = "__nv_relfatbin"
"""Where nvcc puts the containers that the device linker reads."""

_VARIABLE_SECTIONS = (".nv.global", ".nv.constant3")
_OWN_NAMES = ("$", "__cuda_sm", ".nv")
"""The prefix of functions that ptxas adds and no PTX defines, such as ``__cuda_sm20_div_u64``."""

_INSTRUCTION = np.array([(1 << 64) - 1, (1 << 41) - 1], np.uint64)
"""The bits of an instruction without its scheduling (105 and up), which nvlink sets anew from sm_100 on."""


@dataclass(frozen=True)
class Unit:
    """A translation unit of linked code. container: its index in the file. options: for ptxas.

    functions: of the linked code's functions, those whose code is this unit's.
    """

    container: int
    text: str
    options: tuple[str, ...]
    functions: frozenset[str]


@dataclass(frozen=True)
class LinkedSource:
    """The machine code of a linked container that runs on a device, and its PTX.

    machine: the linked machine code that the driver picks, None without any. units: those whose PTX can be used.
    kernels: the unit that each kernel comes from, by its place in units. refused: why a kernel has none. variables:
    the names of the linked code's variables, as often as they occur. missing: what of it no unit defines, in words.
    """

    machine: Cubin | None
    arch: str
    units: tuple[Unit, ...] = ()
    kernels: Mapping[str, int] | None = None
    refused: Mapping[str, tuple[Reason, str]] | None = None
    variables: tuple[str, ...] = ()
    missing: str = ""
    reason: Reason = Reason.PROBED
    detail: str = ""


def is_linked(container: Container, units: Sequence[Container]) -> bool:
    """Whether a container holds what the device linker made of units: executable cubins, and no PTX of its own.

    units: the file's containers of RELOCATABLE_SECTION. Raises FormatError for a damaged cubin.
    """
    if not units or container.section == RELOCATABLE_SECTION:
        return False
    cubins = [image for image in container.images if image.kind is ImageKind.CUBIN]
    if not cubins or any(image.kind is ImageKind.PTX for image in container.images):
        return False
    return all(_elf(image).type == ET_EXEC for image in cubins[:1])


def find_linked_source(linked: Container, units: Sequence[Container], device: str) -> LinkedSource:
    """The linked machine code that the driver would run on device (``sm_90``), and the PTX of the units in it.

    linked: a container for which is_linked is true. Raises FormatError for damaged images.
    """
    fitting = [(rank, image) for image in linked.images
               if image.kind is ImageKind.CUBIN and (rank := runs_on(image.arch, device)) is not None]  # fmt: skip
    if not fitting:
        found = ", ".join(sorted({image.arch or "unknown" for image in linked.images})) or "nothing"
        detail = f"nothing for {device}: the linked image holds {found}, and the driver would link its units itself"
        return LinkedSource(None, device, reason=Reason.NO_PTX, detail=detail)
    image = max(fitting, key=lambda pair: pair[0])[1]
    data = image.data
    machine = read_cubin(data, f"linked {image.arch} cubin")
    arch = machine.arch or image.arch
    if not machine.kernels:
        # nvcc links a stub of this kind into every file, relocatable code or not.
        return LinkedSource(machine, arch)
    candidates = [unit for container in units if (unit := _candidate(container, arch)) is not None]
    usable = [unit for unit in candidates if not unit.refusal]
    chosen: dict[str, int] = {}
    refused: dict[str, tuple[Reason, str]] = {}
    others = _Others(units, arch)
    for name in machine.kernels:
        verdict = _unit_of(name, machine, candidates, others, arch)
        if isinstance(verdict, _Candidate):
            chosen[name] = usable.index(verdict)
        else:
            refused[name] = verdict
    variables = _variables(Elf(memoryview(data), image.file))
    return LinkedSource(
        machine,
        arch,
        tuple(
            Unit(
                unit.container,
                unit.module.text,
                unit.options,
                frozenset(name for name, code in machine.functions.items() if _has_code(unit, name, code)),
            )
            for unit in usable
        ),
        chosen,
        refused,
        variables,
        _missing(machine, variables, usable),
    )


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A unit with PTX for the architecture. refusal: why it cannot be assembled. elf: its own machine code."""

    container: int
    module: Module
    options: tuple[str, ...]
    refusal: str | None
    elf: Elf | None
    machine: Cubin | None


def _candidate(container: Container, arch: str) -> _Candidate | None:
    text = next((image for image in container.images if image.kind is ImageKind.PTX and image.arch == arch), None)
    if text is None:
        return None
    options, refusal = stored_options(text.options, relocatable=True)
    own = next((image for image in container.images if image.kind is ImageKind.CUBIN and image.arch == arch), None)
    elf = _elf(own) if own is not None else None
    return _Candidate(
        container.index,
        parse(text.data.decode("latin-1")),
        options,
        refusal,
        elf,
        read_cubin(elf.data, f"{arch} cubin of unit {container.index}") if elf is not None else None,
    )


def _elf(image: Image) -> Elf:
    return Elf(memoryview(image.data), f"{image.file}, {image.arch} cubin")


def _unit_of(
    name: str, machine: Cubin, candidates: Sequence[_Candidate], others: _Others, arch: str
) -> _Candidate | tuple[Reason, str]:
    """The unit that a linked kernel comes from, or why there is none."""
    defining = []
    for unit in candidates:
        entries = [entry for entry in unit.module.entries if entry.name == name and entry.body is not None]
        defining += [(unit, entry) for entry in entries]
    if not defining:
        return others.why(name)
    own = [(unit, entry) for unit, entry in defining if unit.machine is not None]
    if not own:
        detail = f"the unit that defines it has no machine code for {arch} to compare with the linked code"
        return Reason.VARIANT, detail
    same = [(unit, entry) for unit, entry in own if _has_code(unit, name, machine.kernels[name].code)]
    if not same:
        where = "the unit that defines it has" if len(own) == 1 else f"the {len(own)} units that define it have"
        return Reason.VARIANT, f"{where} machine code for {arch} that differs from the linked code"
    if len(same) > 1 and len({shapes(Linkage(unit.module), entry) for unit, entry in same}) > 1:
        return Reason.VARIANT, f"{len(same)} units define it differently, with the same machine code"
    usable = [unit for unit, _ in same if not unit.refusal]
    return usable[0] if usable else (Reason.UNSUPPORTED, same[0][0].refusal or "")


class _Others:
    """The units without PTX for an architecture: why a kernel has none."""

    def __init__(self, units: Sequence[Container], arch: str) -> None:
        self._arch = arch
        self._intermediate = any(image.kind is ImageKind.NVVM for unit in units for image in unit.images)
        self._texts: dict[str, set[str]] = {}
        for unit in units:
            texts = {image.arch for image in unit.images if image.kind is ImageKind.PTX}
            for image in unit.images if texts and arch not in texts else ():
                if image.kind is ImageKind.CUBIN and image.arch == arch:
                    for name in cubin_kernel_names(image.data, image.file):
                        self._texts.setdefault(name, set()).update(texts)

    def why(self, name: str) -> tuple[Reason, str]:
        """Why a kernel that no PTX for the architecture defines has none."""
        if name in self._texts:
            found = ", ".join(sorted(self._texts[name]))
            return Reason.VARIANT, f"its unit's PTX is for {found}, the linked machine code for {self._arch}"
        detail = f"no unit in the file has its PTX for {self._arch}"
        return Reason.NO_PTX, detail + ("; there is LTO IR, which is not supported" if self._intermediate else "")


def _has_code(unit: _Candidate, name: str, linked: bytes) -> bool:
    """Whether the unit's own machine code of a kernel or function is the one that was linked."""
    if unit.machine is None or unit.elf is None:
        return False
    kernel = unit.machine.kernels.get(name)
    own = kernel.code if kernel is not None else unit.machine.functions.get(name)
    if own is None or len(own) != len(linked) or len(own) % INSTRUCTION_SIZE:
        return False
    if own == linked:
        return True
    before, after = (np.frombuffer(code, "<u8").reshape(-1, 2) & _INSTRUCTION for code in (own, linked))
    differing = {int(row) * INSTRUCTION_SIZE for row in np.nonzero((before != after).any(axis=1))[0]}
    return differing <= _relocated(unit.elf, name)


def _relocated(elf: Elf, name: str) -> set[int]:
    """Offsets of the instructions of a kernel or function that the linker fills something into."""
    section = elf.section(f".text.{name}")
    tables = () if section is None else elf.relocation_tables.get(section.index, ())
    offsets = {relocation.offset for table in tables for relocation in elf.relocations(table)}
    return {offset - offset % INSTRUCTION_SIZE for offset in offsets}


def _variables(elf: Elf) -> tuple[str, ...]:
    """The names of the variables in global and constant memory."""
    places = {section.index for section in elf.sections if section.name.startswith(_VARIABLE_SECTIONS)}
    return tuple(symbol.name for symbol in elf.symbols() if symbol.type == STT_OBJECT and symbol.section in places)


def _missing(machine: Cubin, variables: Collection[str], units: Sequence[_Candidate]) -> str:
    """What the linked code has and no unit defines, in words."""
    defined: set[str] = set()
    for unit in units:
        defined |= {entry.name for entry in (*unit.module.entries, *unit.module.functions) if entry.body is not None}
        defined |= {variable.name for variable in unit.module.variables}
    lacking = {*machine.kernels, *machine.functions, *variables} - defined
    first = min((name for name in lacking if not name.startswith(_OWN_NAMES)), default=None)
    return "" if first is None else f"no unit in the file has the PTX that defines {first}"


def program(source: LinkedSource) -> Program:
    """The units of linked code as modules, each with the number of its place in source.units."""
    return Program(
        [parse(unit.text) for unit in source.units],
        functions=source.machine.functions if source.machine is not None else (),
        own=[unit.functions for unit in source.units],
        variables=source.variables,
        missing=source.missing,
    )
