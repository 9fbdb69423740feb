"""Device-linked code: which machine code a device runs, and the PTX of the translation units that it was linked from.

``nvcc -rdc=true`` stores relocatable cubins and PTX of each translation unit in ``__nv_relfatbin``. The driver runs
another container, in ``.nv_fatbin``: cubins that the device linker made from them, without PTX. Nothing in the file
says which units these were, so they are found by names and machine code: a unit's PTX is that of a linked kernel if the
unit's own cubin for the same architecture has the kernel's code, except where relocations changed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neutrino.abi.reasons import Reason
from neutrino.backend.ptx_source import runs_on, stored_options
from neutrino.elf.constants import ET_EXEC, STT_OBJECT
from neutrino.elf.reader import Elf
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.programs import Program, normalized_with_callees
from neutrino.ptx.text.module import Module, parse
from neutrino.sass.cubin import Cubin, cubin_kernel_names, read_cubin
from neutrino.sass.fields import INSTRUCTION_BYTES

RELOCATABLE_SECTION = "__nv_relfatbin"
"""Where nvcc puts the containers that the device linker reads."""

_VARIABLE_SECTIONS = (".nv.global", ".nv.constant3")
_PTXAS_PREFIXES = ("$", "__cuda_sm", ".nv")
"""Prefixes of the names of functions that ptxas adds and no PTX defines, such as ``__cuda_sm20_div_u64``."""

_WITHOUT_SCHEDULING = np.array([(1 << 64) - 1, (1 << 41) - 1], np.uint64)
"""Mask of a 128-bit instruction without its scheduling bits (105 and up), which nvlink changes from sm_100 on."""


@dataclass(frozen=True)
class Unit:
    """A translation unit of linked code.

    container: index in the file. text: its PTX. options: for ptxas. functions: names of the linked code's device
    functions whose machine code is that of this unit.
    """

    container: int
    text: str
    options: tuple[str, ...]
    functions: frozenset[str]


@dataclass(frozen=True)
class LinkedSource:
    """The machine code of a linked container that runs on a device, and its PTX.

    machine: the linked machine code that the driver picks, None if none fits. units: those whose PTX can be used.
    kernels: the index in units of the unit that defines each kernel. refused: for the other kernels, why there is none.
    variables: the names of the linked code's variables, with duplicates. missing: a message when the linked code has a
    function or variable that no unit defines, else empty. reason, detail: why there is no machine code. image: index in
    the container of the machine code's image, None where there is none. retargeted: "", since no text for another
    architecture is used.

    kernels and refused are None where there is no machine code, or it has no kernels.
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
    image: int | None = None
    retargeted: str = ""

    def summary(self) -> dict[str, object]:
        """Return what ``source.json`` of ``--save-temps`` says of it."""
        return {
            "image": self.image, "arch": self.arch, "units": [unit.container for unit in self.units],
            "has_machine_code": self.machine is not None, "reason": self.reason.word, "detail": self.detail,
        }  # fmt: skip


def is_linked(container: Container, units: Sequence[Container]) -> bool:
    """Whether a container was made by the device linker: it has executable cubins, and no PTX.

    units: the containers in RELOCATABLE_SECTION of the same file, from which the linker makes it; without any, the
    result is false. Raises FormatError for a damaged cubin.
    """
    if not units or container.section == RELOCATABLE_SECTION:
        return False
    cubins = [image for image in container.images if image.kind is ImageKind.CUBIN]
    if not cubins or any(image.kind is ImageKind.PTX for image in container.images):
        return False
    # The first cubin is enough: the device linker makes all of them.
    return bool(_elf(cubins[0]).type == ET_EXEC)


def find_linked_source(linked: Container, units: Sequence[Container], device: str) -> LinkedSource:
    """Find the linked machine code that the driver would run on a device, and the PTX of its translation units.

    linked: a container for which is_linked is true. units: the containers in RELOCATABLE_SECTION of the same file.
    device: such as ``sm_90``. Raises FormatError for damaged images.
    """
    # The cubin that the driver picks.
    ranked = [(rank, image) for image in linked.images
              if image.kind is ImageKind.CUBIN and (rank := runs_on(image.arch, device)) is not None]  # fmt: skip
    if not ranked:
        found = ", ".join(sorted({image.arch or "unknown" for image in linked.images})) or "nothing"
        detail = f"nothing for {device}: the linked image holds {found}, and the driver would link its units itself"
        return LinkedSource(None, device, reason=Reason.NO_PTX, detail=detail)
    _, image = max(ranked, key=lambda pair: pair[0])
    data = image.data
    machine = read_cubin(data, f"linked {image.arch} cubin")
    arch = machine.arch or image.arch
    if not machine.kernels:
        # nvcc links a stub of this kind into every file, relocatable code or not.
        return LinkedSource(machine, arch, image=image.index)

    # The unit that each of its kernels comes from.
    candidates = [unit for container in units if (unit := _candidate(container, arch)) is not None]
    usable = [unit for unit in candidates if not unit.refusal]
    unit_by_kernel: dict[str, int] = {}
    refused: dict[str, tuple[Reason, str]] = {}
    units_without_ptx = _UnitsWithoutPtx(units, arch)
    for name in machine.kernels:
        result = _unit_of(name, machine, candidates, units_without_ptx, arch)
        # Candidates are compared by identity, so index finds this very one.
        if isinstance(result, _Candidate):
            unit_by_kernel[name] = usable.index(result)
        else:
            refused[name] = result
    variables = _variables(Elf(memoryview(data), image.file))
    return LinkedSource(
        machine,
        arch,
        units=tuple(
            Unit(
                container=unit.container,
                text=unit.module.text,
                options=unit.options,
                functions=frozenset(name for name, code in machine.functions.items() if _has_code(unit, name, code)),
            )
            for unit in usable
        ),
        kernels=unit_by_kernel,
        refused=refused,
        variables=variables,
        missing=_missing(machine, variables, usable),
        image=image.index,
    )


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A translation unit with PTX for the linked code's architecture.

    container: index in the file. module: the PTX. options: for ptxas. refusal: why the PTX cannot be assembled, None if
    it can. elf, machine: the unit's own machine code for the architecture, None if there is none.
    """

    container: int
    module: Module
    options: tuple[str, ...]
    refusal: str | None
    elf: Elf | None
    machine: Cubin | None


def _candidate(container: Container, arch: str) -> _Candidate | None:
    """Read the translation unit in a container; None if it has no PTX for the architecture."""
    text = next((image for image in container.images if image.kind is ImageKind.PTX and image.arch == arch), None)
    if text is None:
        return None
    options, refusal = stored_options(text.options, relocatable=True)
    cubin = next((image for image in container.images if image.kind is ImageKind.CUBIN and image.arch == arch), None)
    elf = _elf(cubin) if cubin is not None else None
    return _Candidate(
        container=container.index,
        module=parse(text.data.decode("latin-1")),
        options=options,
        refusal=refusal,
        elf=elf,
        machine=read_cubin(elf.data, f"{arch} cubin of unit {container.index}") if elf is not None else None,
    )


def _elf(image: Image) -> Elf:
    """Return an image's machine code as an ELF file, with a name for errors."""
    return Elf(memoryview(image.data), f"{image.file}, {image.arch} cubin")


def _unit_of(
    name: str, machine: Cubin, candidates: Sequence[_Candidate], units_without_ptx: _UnitsWithoutPtx, arch: str
) -> _Candidate | tuple[Reason, str]:
    """Find the translation unit that a kernel of the linked machine code comes from, or the reason why there is none.

    name: of the kernel. machine: the linked code. candidates: the units with PTX for arch. units_without_ptx: the
    others, for the message. A unit must define the kernel in its PTX, and its own machine code of the kernel must be
    the linked code. Of several such units any can be used, if the PTX of the kernel, and of the functions that it
    calls, has the same text in all.
    """
    defining = []
    for unit in candidates:
        entries = [entry for entry in unit.module.entries if entry.name == name and entry.body is not None]
        defining += [(unit, entry) for entry in entries]
    if not defining:
        return units_without_ptx.reason(name)
    # Without machine code of its own, nothing shows that a unit is the one that was linked.
    with_code = [(unit, entry) for unit, entry in defining if unit.machine is not None]
    if not with_code:
        detail = f"the unit that defines it has no machine code for {arch} to compare with the linked code"
        return Reason.VARIANT, detail
    matching = [(unit, entry) for unit, entry in with_code if _has_code(unit, name, machine.kernels[name].code)]
    if not matching:
        count = len(with_code)
        which = "the unit that defines it has" if count == 1 else f"the {count} units that define it have"
        return Reason.VARIANT, f"{which} machine code for {arch} that differs from the linked code"
    has_several = len(matching) > 1
    if has_several and len({normalized_with_callees(Linkage(unit.module), entry) for unit, entry in matching}) > 1:
        return Reason.VARIANT, f"{len(matching)} units define it differently, with the same machine code"
    # All that match are equivalent, so the first will do.
    usable = [unit for unit, _ in matching if not unit.refusal]
    if usable:
        return usable[0]
    first_unit, _ = matching[0]
    return Reason.UNSUPPORTED, first_unit.refusal or ""


class _UnitsWithoutPtx:
    """The translation units without PTX for an architecture, to say why a kernel has none."""

    def __init__(self, units: Sequence[Container], arch: str) -> None:
        """Collect the kernels that the units' cubins for an architecture have, if their PTX is for other ones only.

        units: containers with the images of one translation unit each. arch: such as ``sm_90``.
        """
        self._arch = arch
        self._has_lto_ir = any(image.kind is ImageKind.NVVM for unit in units for image in unit.images)
        # For kernels of units that have PTX, but for other architectures: these architectures.
        self._ptx_archs: dict[str, set[str]] = {}
        for unit in units:
            archs = {image.arch for image in unit.images if image.kind is ImageKind.PTX}
            # Only a unit with PTX, none of which is for this architecture, makes a better message than the usual one.
            if not archs or arch in archs:
                continue
            for image in unit.images:
                if image.kind is ImageKind.CUBIN and image.arch == arch:
                    for name in cubin_kernel_names(image.data, image.file):
                        self._ptx_archs.setdefault(name, set()).update(archs)

    def reason(self, name: str) -> tuple[Reason, str]:
        """Return the reason why no PTX for the architecture defines a kernel, and a message."""
        if name in self._ptx_archs:
            found = ", ".join(sorted(self._ptx_archs[name]))
            return Reason.VARIANT, f"its unit's PTX is for {found}, the linked machine code for {self._arch}"
        detail = f"no unit in the file has its PTX for {self._arch}"
        return Reason.NO_PTX, detail + ("; there is LTO IR, which is not supported" if self._has_lto_ir else "")


def _has_code(unit: _Candidate, name: str, linked: bytes) -> bool:
    """Whether linked machine code is the unit's own code of a kernel or function, after linking.

    This shows that the code comes from the unit, and so from its PTX. name: of the kernel or function. linked: its
    code in the linked cubin. The two may differ in scheduling bits, and in instructions that have relocations, since
    the linker changes both.
    """
    if unit.machine is None or unit.elf is None:
        return False
    kernel = unit.machine.kernels.get(name)
    code = kernel.code if kernel is not None else unit.machine.functions.get(name)
    if code is None or len(code) != len(linked) or len(code) % INSTRUCTION_BYTES:
        return False
    # The usual case, for which nothing needs to be computed.
    if code == linked:
        return True
    # One row of two 64-bit words for each instruction.
    before, after = (np.frombuffer(part, "<u8").reshape(-1, 2) & _WITHOUT_SCHEDULING for part in (code, linked))
    differing = {int(index) * INSTRUCTION_BYTES for index in np.flatnonzero((before != after).any(axis=1))}
    # A subset: every instruction that differs has a relocation.
    return differing <= _relocated(unit.elf, name)


def _relocated(elf: Elf, name: str) -> set[int]:
    """Return the offsets in bytes of the instructions of a kernel or function that have relocations."""
    section = elf.section(f".text.{name}")
    tables = () if section is None else elf.relocation_tables.get(section.index, ())
    offsets = {relocation.offset for table in tables for relocation in elf.relocations(table)}
    return {offset - offset % INSTRUCTION_BYTES for offset in offsets}


def _variables(elf: Elf) -> tuple[str, ...]:
    """Return the names of the variables in global and constant memory, with duplicates."""
    sections = {section.index for section in elf.sections if section.name.startswith(_VARIABLE_SECTIONS)}
    return tuple(symbol.name for symbol in elf.symbols() if symbol.type == STT_OBJECT and symbol.section in sections)


def _missing(machine: Cubin, variables: Collection[str], units: Sequence[_Candidate]) -> str:
    """Return a message that names something of the linked code that no unit's PTX defines; empty if there is nothing.

    A call by pointer could then reach code whose PTX is not known. variables: names of the linked code's variables.
    Functions that ptxas adds are in no PTX and do not count.
    """
    defined: set[str] = set()
    for unit in units:
        defined |= {entry.name for entry in (*unit.module.entries, *unit.module.functions) if entry.body is not None}
        defined |= {variable.name for variable in unit.module.variables}
    undefined = {*machine.kernels, *machine.functions, *variables} - defined
    first = min((name for name in undefined if not name.startswith(_PTXAS_PREFIXES)), default=None)
    return "" if first is None else f"no unit in the file has the PTX that defines {first}"


def program(source: LinkedSource) -> Program:
    """Return the program that the translation units of linked code form, with their PTX parsed.

    The modules are in the order of source.units.
    """
    return Program(
        [parse(unit.text) for unit in source.units],
        functions=source.machine.functions if source.machine is not None else (),
        own=[unit.functions for unit in source.units],
        variables=source.variables,
        missing=source.missing,
    )
