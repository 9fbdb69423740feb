"""Assembled originals and twins, with what the assembler reports of each."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from neutrino.assemble.assembly import Assembly
from neutrino.assemble.emit import Emit
from neutrino.assemble.machine_code import CodeComparison, CodeReader, MachineCode, MachineKernel
from neutrino.toolchain.assembled import Assembled, Resources
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.values import AssembledTwin


@dataclass(frozen=True)
class TwinBuild:
    """Twins (instrumented copies of kernels) that were assembled together.

    image: what is loaded into the driver, in the form emit. kernels, resources: by the twin's name, its machine code,
    and what ptxas reports of it. functions: the code of separate functions, by name. warnings: with their counts.
    failed: by the original kernel's name, why its twin was refused. caps: by the original kernel's name, the registers
    per thread that its twin was limited to.
    """

    image: bytes = b""
    kernels: Mapping[str, MachineKernel] = field(default_factory=dict)
    functions: Mapping[str, bytes] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    failed: Mapping[str, str] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    emit: Emit = Emit.CODE


@dataclass(frozen=True)
class OriginalBuild:
    """The original kernels.

    machine: the machine code that runs. reader: reads and compares such code. assembled: what their text assembles to,
    if that is for another architecture than machine or there is no other machine code; else None. assemble: returns
    what ptxas makes of their text, and reports of it; called at most once, and only if that is needed. failed: by the
    kernel's name, why its text is refused, if only some kernels' is. What needs the assembled text raises as
    ``assemble``.
    """

    machine: MachineCode
    assembled: MachineCode | None
    assemble: Callable[[], Assembled]
    reader: CodeReader
    failed: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def of_text(self) -> Assembled:
        """The text of the original kernels, assembled; made once."""
        return self.assemble()

    @functools.cached_property
    def rebuilt(self) -> MachineCode:
        """What their text assembles to. It is parsed on first use, since most comparisons do not need it."""
        return self.assembled or self.reader.read(self.of_text.cubin, "assembled original")

    @functools.cached_property
    def warnings(self) -> Counter[str]:
        """The assembler's warnings that their text makes slow code, with their counts."""
        return self.reader.warnings(self.of_text)

    def spills(self, name: str) -> dict[str, int]:
        """Return the bytes of a kernel's spill stores and loads, per thread. Without a stack frame there are none."""
        if self.assembled is None and not self.machine.kernels[name].frame:
            return {"stores": 0, "loads": 0}
        return spills(self.of_text.resources[name])

    def unlike_in_code(self, twin: AssembledTwin) -> str | None:
        """Return what differs between a kernel's machine code and its assembled text; None if nothing does.

        None also if the text is not for another architecture, so that it need not be compared.
        """
        if self._comparison is None:
            # The same text for the same architecture: assembled is None.
            return None
        return self._comparison.difference(twin.name, self_contained=twin.self_contained)

    @functools.cached_property
    def _comparison(self) -> CodeComparison | None:
        """Compares the kernels in the machine code that runs with those of the assembled text; None if there is no such
        text.
        """
        return self.reader.same_code(self.machine.data, self.assembled.data) if self.assembled else None


class OriginalsRefusedError(Exception):
    """The assembler refuses the text of all originals. reasons: by the kernel's name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        """Make the error that an assembler refuses the original kernels. reasons: why it refuses each, by its name."""
        # The message is that of the first kernel; all of them mostly have the same.
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


def build_originals(assembly: Assembly, names: Sequence[str], *, is_variant: bool) -> OriginalBuild:
    """Assemble the text of the named original kernels, for what ptxas reports of it and to compare with the twins
    (copies with probes).

    is_variant: whether their text is for another architecture than the machine code that runs. Then the two will be
    compared, and if the text is refused, only the kernels that are refused alone are given up. Raises
    OriginalsRefusedError if the whole text is refused, and else as ``Assembly.originals``.
    """
    failed: dict[str, str] = {}
    try:
        assembled = assembly.originals(names)
    except AssemblyError as error:
        if not is_variant or len(names) == 1:
            raise OriginalsRefusedError(dict.fromkeys(names, error.reason)) from error
        # Try without the kernels that are refused alone; the others were refused only because of them.
        failed = _refused_alone(names, lambda name: assembly.originals([name]))
        remaining = [name for name in names if name not in failed]
        if not failed:
            raise OriginalsRefusedError(dict.fromkeys(names, "refused only together with other kernels")) from error
        if not remaining:
            raise OriginalsRefusedError(failed) from error
        assembled = assembly.originals(remaining)
    shipped = assembly.machine
    if shipped is not None and not is_variant:
        # The twins are compared with the shipped code only, so the assembled code is not parsed.
        return OriginalBuild(shipped, None, lambda: assembled, assembly.reader)
    built = assembly.reader.read(assembled.cubin, "assembled original")
    return OriginalBuild(shipped or built, built, lambda: assembled, assembly.reader, failed)


def shipped_originals(assembly: Assembly, names: Sequence[str], machine: MachineCode) -> OriginalBuild:
    """Return the named original kernels as ``build_originals`` does, but assemble their text only if that is needed.

    machine: the machine code that runs.
    """

    def assemble() -> Assembled:
        """Assemble the originals' text. Raises OriginalsRefusedError if the assembler refuses it."""
        try:
            return assembly.originals(names)
        except AssemblyError as error:
            raise OriginalsRefusedError(dict.fromkeys(names, error.reason)) from error

    return OriginalBuild(machine, None, assemble, assembly.reader)


def build_twins(
    assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None = None
) -> TwinBuild:
    """Assemble the twins (instrumented copies) of the named kernels together.

    If that fails, those that are also refused alone are left out. stage: name of the files under ``--save-temps``.
    registers: limits per thread, by the kernel's name. A refusal is in the result. Raises as ``Assembler.assemble`` for
    failures of the machine.
    """
    try:
        return _assemble_twins(assembly, names, stage, registers)
    except AssemblyError as error:
        # A single kernel is refused alone, which need not be tried again.
        failed = {names[0]: error.reason}
        if len(names) > 1:
            failed = _refused_alone(names, lambda name: assembly.twins([name], registers))
    remaining = [name for name in names if name not in failed]
    if not remaining:
        return TwinBuild(failed=failed)
    try:
        built = _assemble_twins(assembly, remaining, stage, registers)
    except AssemblyError as error:
        reason = f"refused only together with other twins: {error.reason}"
        return TwinBuild(failed=failed | dict.fromkeys(remaining, reason))
    return replace(built, failed=failed)


def _refused_alone(names: Sequence[str], assemble_one: Callable[[str], object]) -> dict[str, str]:
    """Return why kernels are refused when each is assembled alone, by name, without those that are not.

    assemble_one: assembles the kernel of that name.
    """

    def refusal(name: str) -> str | None:
        """Assemble one kernel; return why it is refused, None if it is not."""
        try:
            assemble_one(name)
        except AssemblyError as error:
            return error.reason
        return None

    # Two at once: ptxas is a process of its own.
    with ThreadPoolExecutor(2) as pool:
        return {name: reason for name, reason in zip(names, pool.map(refusal, names), strict=True) if reason}


def _assemble_twins(
    assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None
) -> TwinBuild:
    """Assemble the twins (copies with probes) of the named kernels together. Raises AssemblyError if any is refused.

    stage: name of the files under ``--save-temps``. registers: limits per thread, by the kernel's name; None for none.
    """
    twins = assembly.twins(names, registers, stage=stage)
    code = assembly.reader.read(twins.assembled.cubin, stage)
    return TwinBuild(
        twins.image,
        code.kernels,
        code.functions,
        twins.assembled.resources,
        assembly.reader.warnings(twins.assembled),
        caps=assembly.caps(names, registers),
        emit=twins.emit,
    )


def spills(resources: Resources) -> dict[str, int]:
    """Return the bytes of spill stores and of spill loads, per thread, as in manifests."""
    return {"stores": resources.spill_stores, "loads": resources.spill_loads}
