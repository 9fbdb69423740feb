"""Assembled originals and twins, with what the assembler reports of each."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from neutrino.assemble.assembly import Assembly
from neutrino.assemble.emit import Emit
from neutrino.assemble.warnings import performance_warnings
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.cubin import Cubin, CubinKernel, read_cubin
from neutrino.sass.same_code import SameCode
from neutrino.toolchain.ptxas import Resources
from neutrino.toolchain.refusal import AssemblyError


@dataclass(frozen=True)
class TwinBuild:
    """Twins assembled together: their image, and by twin's name what ptxas and the cubin report.

    failed: kernel → why. caps: kernel → the register cap, per thread, that its twin was assembled with.
    """

    image: bytes = b""
    kernels: Mapping[str, CubinKernel] = field(default_factory=dict)
    functions: Mapping[str, bytes] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    failed: Mapping[str, str] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    emit: Emit = Emit.SASS


@dataclass(frozen=True)
class OriginalBuild:
    """The originals: the machine code that runs, what their text assembles to where that was needed, and what ptxas
    reports of it. failed: kernel → why its text is refused, if only some are.
    """

    machine: Cubin
    assembled: Cubin | None
    resources: Mapping[str, Resources]
    warnings: Counter[str]
    cubin: bytes
    failed: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def rebuilt(self) -> Cubin:
        """What their text is assembled to; read when first asked for."""
        return self.assembled or read_cubin(self.cubin, "assembled original")

    def unlike_in_code(self, twin: TwinKernel) -> str | None:
        """What differs between a kernel's machine code and its text, assembled; None if nothing does."""
        if self._comparison is None:
            return None
        return self._comparison.difference(twin.name, self_contained=twin.self_contained)

    @functools.cached_property
    def _comparison(self) -> SameCode | None:
        return SameCode(self.machine.data, self.assembled.data) if self.assembled else None


class OriginalsRefusedError(Exception):
    """The assembler refuses the text of all originals. reasons: by the kernel's name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


def build_originals(assembly: Assembly, names: Sequence[str], *, is_variant: bool) -> OriginalBuild:
    """The named kernels' originals. is_variant: their text is for another architecture than what runs, so both are
    compared; if it is refused, only the kernels that are refused alone are lost.

    Raises OriginalsRefusedError, and else as ``Assembly.originals``.
    """
    failed: dict[str, str] = {}
    try:
        assembled = assembly.originals(names)
    except AssemblyError as error:
        if not is_variant or len(names) == 1:
            raise OriginalsRefusedError(dict.fromkeys(names, error.reason)) from error
        failed = _refused(names, lambda name: assembly.originals([name]))
        left = [name for name in names if name not in failed]
        if not failed:
            raise OriginalsRefusedError(dict.fromkeys(names, "refused only together with other kernels")) from error
        if not left:
            raise OriginalsRefusedError(failed) from error
        assembled = assembly.originals(left)
    shipped = assembly.machine
    warnings = performance_warnings(assembled)
    if shipped is not None and not is_variant:
        return OriginalBuild(shipped, None, assembled.resources, warnings, assembled.cubin)
    cubin = read_cubin(assembled.cubin, "assembled original")
    return OriginalBuild(shipped or cubin, cubin, assembled.resources, warnings, assembled.cubin, failed)


def build_twins(
    assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None = None
) -> TwinBuild:
    """The named kernels' twins; if that fails, one by one, to lose only those that are refused. stage: name in dumps.

    registers: caps, by the kernel's name. Raises as ``Assembler.assemble`` where the machine is at fault.
    """
    try:
        return _built(assembly, names, stage, registers)
    except AssemblyError as error:
        failed = {names[0]: error.reason}
        if len(names) > 1:
            failed = _refused(names, lambda name: assembly.twins([name], registers))
    left = [name for name in names if name not in failed]
    if not left:
        return TwinBuild(failed=failed)
    try:
        built = _built(assembly, left, stage, registers)
    except AssemblyError as error:
        return TwinBuild(failed=failed | dict.fromkeys(left, f"refused only together with other twins: {error.reason}"))
    return replace(built, failed=failed)


def _refused(names: Sequence[str], attempt: Callable[[str], object]) -> dict[str, str]:
    """The kernels that are refused when assembled alone, and why."""

    def reason(name: str) -> str | None:
        try:
            attempt(name)
        except AssemblyError as error:
            return error.reason
        return None

    with ThreadPoolExecutor(2) as pool:
        return {name: found for name, found in zip(names, pool.map(reason, names), strict=True) if found}


def _built(assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None) -> TwinBuild:
    twins = assembly.twins(names, registers, stage=stage)
    cubin = read_cubin(twins.assembled.cubin, stage)
    return TwinBuild(
        twins.image,
        cubin.kernels,
        cubin.functions,
        twins.assembled.resources,
        performance_warnings(twins.assembled),
        caps=registers or {},
        emit=twins.emit,
    )


def spills(resources: Resources) -> dict[str, int]:
    """Bytes of spill stores and loads, per thread."""
    return {"stores": resources.spill_stores, "loads": resources.spill_loads}
