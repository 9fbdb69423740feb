"""Merges several probe files into one set: registers and probes are renamed if their names clash, maps must differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from neutrino.abi.probe_block import MAX_MAPS
from neutrino.errors import Diagnostic, ProbeError
from neutrino.ir.operands import Register
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import Probe, ProbeSet, verified
from neutrino.probing.ir.renaming import with_registers
from neutrino.probing.maps import MAP_COUNT


class File(Protocol):
    """One probe file, verified or not. Its members have the same meaning as in ``ProbeSet``."""

    @property
    def file(self) -> str:
        """The path of the probe file that is merged with others, for messages."""

    @property
    def source(self) -> str:
        """The text of the probe file that is merged with others."""

    @property
    def maps(self) -> tuple[Map, ...]:
        """The maps (tables and logs that probes save to) that the file declares."""


def merge_faults(parts: Sequence[File]) -> list[Diagnostic]:
    """Return why probe files cannot be merged: two maps (tables and logs that probes save to) with the same name, or
    more of them than a run can have.

    parts: the files of a run, in their order.
    """
    file_by_map: dict[str, File] = {}
    faults: list[Diagnostic] = []
    for part in parts:
        for declared in part.maps:
            if declared.name in file_by_map:
                faults.append(_map_clash(part, declared, file_by_map[declared.name]))
                continue
            file_by_map[declared.name] = part
            # Equal, not greater: reported once, at the first map too many.
            if len(file_by_map) == MAX_MAPS + 1:
                faults.append(_at_map(part, declared, *MAP_COUNT, code="map-count"))
    return faults


def merge(parts: Sequence[ProbeSet]) -> ProbeSet:
    """Return one set with the probes of all parts, in this order. parts: one set for each probe file of a run.

    Registers with the same name in two files are different registers, and so are probes: the later one is renamed by
    appending a number. Raises ProbeError with the faults that ``merge_faults`` returns.
    """
    faults = merge_faults(parts)
    if faults:
        raise ProbeError(faults)
    # Of all parts so far, by their new names.
    registers: dict[str, Register] = {}
    probes: dict[str, Probe] = {}
    for part in parts:
        renamed: dict[str, Register] = {}  # name in the part → register with its new name
        register_names = {register.name for register in part.registers}
        for register in part.registers:
            name = _unused_name(register.name, registers, register_names)
            renamed[register.name] = registers[name] = replace(register, name=name)
        probe_names = {probe.name for probe in part.probes}
        for probe in part.probes:
            name = _unused_name(probe.name, probes, probe_names)
            probes[name] = replace(with_registers(probe, renamed), name=name)
    return verified(
        file=", ".join(part.file for part in parts),
        source="\n".join(f"# {part.file}\n{part.source}" for part in parts),
        reads_back=False,
        # All parts with hand-written instructions have one target; those without have none.
        target=next((part.target for part in parts if part.target), ""),
        maps=tuple(declared for part in parts for declared in part.maps),
        registers=tuple(registers.values()),
        probes=tuple(probes.values()),
        warnings=tuple(warning for part in parts for warning in part.warnings),
        parts=tuple(parts),
        # dict.fromkeys: a script that several files name runs once.
        analyze_hooks=tuple(dict.fromkeys(hook for part in parts for hook in part.analyze_hooks)),
        callbacks=tuple(dict.fromkeys(callback for part in parts for callback in part.callbacks)),
        platform=parts[0].platform,
    )


def _map_clash(part: File, declared: Map, other: File) -> Diagnostic:
    """Return the fault of a map whose name an earlier file uses too."""
    message = f"map '{declared.name}' is also in {other.file}"
    return _at_map(part, declared, message, "rename one of the two", code="map-exists")


def _at_map(part: File, declared: Map, message: str, hint: str, *, code: str) -> Diagnostic:
    """Return a fault that is reported at the declaration of a map in a probe file."""
    span = declared.span
    line = part.source.replace("\r\n", "\n").split("\n")[span.line - 1]
    return Diagnostic(part.file, span.line, span.column, line, message, hint, code=code)


def _unused_name(name: str, used: Collection[str], same_file: Collection[str]) -> str:
    """Return a name that no other file of the run uses: the name itself, or with a number appended.

    used: names of earlier files and, so far, of its own. same_file: all names of its own file, which a name with a
    number must not equal either.
    """
    candidate = name  # itself in same_file, of course
    number = 1
    while candidate in used or (number > 1 and candidate in same_file):
        number += 1
        candidate = f"{name}_{number}"
    return candidate
