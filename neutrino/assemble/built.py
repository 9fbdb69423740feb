"""Originals and twins as an assembler made them, and what it said of each."""

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
class Built:
    """Twins assembled together: their image, and per twin's name what ptxas and the cubin say.

    failed: kernel → why. caps: kernel → the registers of a thread that its twin was assembled with at most.
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
class Original:
    """The originals: their machine code as it runs, what their text is assembled to where that was looked at, and what
    ptxas says of it. failed: kernel → why its text is refused, where others' is not.
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
        """What of a kernel's machine code its text, assembled, gives otherwise; None when nothing."""
        if self._comparison is None:
            return None
        return self._comparison.difference(twin.name, self_contained=twin.self_contained)

    @functools.cached_property
    def _comparison(self) -> SameCode | None:
        return SameCode(self.machine.data, self.assembled.data) if self.assembled else None


class OriginalsRefusedError(Exception):
    """The assembler takes the text of none of the originals. reasons: by the kernel's name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


def build_originals(assembly: Assembly, names: Sequence[str], *, is_variant: bool) -> Original:
    """The named kernels' originals. is_variant: their text is for another architecture than what runs, so that both are
    looked at; then only the bad ones of several are lost when it is refused.

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
            raise OriginalsRefusedError(dict.fromkeys(names, "only together with other kernels")) from error
        if not left:
            raise OriginalsRefusedError(failed) from error
        assembled = assembly.originals(left)
    shipped = assembly.machine
    warnings = performance_warnings(assembled)
    if shipped is not None and not is_variant:
        return Original(shipped, None, assembled.resources, warnings, assembled.cubin)
    cubin = read_cubin(assembled.cubin, "assembled original")
    return Original(shipped or cubin, cubin, assembled.resources, warnings, assembled.cubin, failed)


def build_twins(
    assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None = None
) -> Built:
    """The named kernels' twins; when that fails, one by one, to lose only the bad ones. stage: dumped under that name.

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
        return Built(failed=failed)
    try:
        built = _built(assembly, left, stage, registers)
    except AssemblyError as error:
        return Built(failed=failed | dict.fromkeys(left, f"only together with other twins: {error.reason}"))
    return replace(built, failed=failed)


def _refused(names: Sequence[str], attempt: Callable[[str], object]) -> dict[str, str]:
    """Those that are refused alone, and why."""

    def reason(name: str) -> str | None:
        try:
            attempt(name)
        except AssemblyError as error:
            return error.reason
        return None

    with ThreadPoolExecutor(2) as pool:
        return {name: found for name, found in zip(names, pool.map(reason, names), strict=True) if found}


def _built(assembly: Assembly, names: Sequence[str], stage: str, registers: Mapping[str, int] | None) -> Built:
    twins = assembly.twins(names, registers, stage=stage)
    cubin = read_cubin(twins.assembled.cubin, stage)
    return Built(
        twins.image,
        cubin.kernels,
        cubin.functions,
        twins.assembled.resources,
        performance_warnings(twins.assembled),
        caps=registers or {},
        emit=twins.emit,
    )


def spills(resources: Resources) -> dict[str, int]:
    """Bytes that a kernel's threads store to and load from local memory for want of registers."""
    return {"stores": resources.spill_stores, "loads": resources.spill_loads}
