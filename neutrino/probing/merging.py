"""Several probe files as one set: names of registers and probes stay apart, those of maps must."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from neutrino.abi.probe_block import MAX_MAPS
from neutrino.errors import Diagnostic, ProbeError
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.probe_set import Probe, ProbeSet, verified
from neutrino.probing.ir.renaming import with_registers
from neutrino.probing.maps import MAP_COUNT


class File(Protocol):
    """One probe file, verified or not. Members are as of ``ProbeSet``."""

    @property
    def file(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def maps(self) -> tuple[Map, ...]: ...


def merge_faults(parts: Sequence[File]) -> list[Diagnostic]:
    """Why files cannot be one set: maps of one name, or more maps than a run has room for."""
    maps: dict[str, File] = {}
    faults: list[Diagnostic] = []
    for part in parts:
        for entry in part.maps:
            if entry.name in maps:
                faults.append(_map_clash(part, entry, maps[entry.name]))
            maps.setdefault(entry.name, part)
            if len(maps) == MAX_MAPS + 1:
                faults.append(_at_map(part, entry, *MAP_COUNT, code="map-count"))
                break
    return faults


def merge(parts: Sequence[ProbeSet]) -> ProbeSet:
    """One set of several, in this order.

    Registers of one name in two files are two registers, probes two probes: the later is renamed, with a number after
    its name. Raises ProbeError for what ``merge_faults`` finds.
    """
    faults = merge_faults(parts)
    if faults:
        raise ProbeError(faults)
    registers: dict[str, Register] = {}
    probes: dict[str, Probe] = {}
    for part in parts:
        renamed: dict[str, Register] = {}
        own = {register.name for register in part.registers}
        for register in part.registers:
            name = _free(register.name, registers, own)
            renamed[register.name] = registers[name] = replace(register, name=name)
        names = {probe.name for probe in part.probes}
        for probe in part.probes:
            name = _free(probe.name, probes, names)
            probes[name] = replace(with_registers(probe, renamed), name=name)
    return verified(
        ", ".join(part.file for part in parts),
        "\n".join(f"# {part.file}\n{part.source}" for part in parts),
        False,
        next((part.target for part in parts if part.target), ""),
        tuple(entry for part in parts for entry in part.maps),
        tuple(registers.values()),
        tuple(probes.values()),
        tuple(warning for part in parts for warning in part.warnings),
        tuple(parts),
        tuple(dict.fromkeys(hook for part in parts for hook in part.analyze_hooks)),
        tuple(dict.fromkeys(callback for part in parts for callback in part.callbacks)),
    )


def _map_clash(part: File, entry: Map, other: File) -> Diagnostic:
    message = f"map '{entry.name}' is also in {other.file}"
    return _at_map(part, entry, message, "rename one of the two", code="map-exists")


def _at_map(part: File, entry: Map, message: str, hint: str, *, code: str) -> Diagnostic:
    span = entry.span
    line = part.source.replace("\r\n", "\n").split("\n")[span.line - 1]
    return Diagnostic(part.file, span.line, span.column, line, message, hint, code=code)


def _free(name: str, taken: Collection[str], own: Collection[str]) -> str:
    """The name, or with a number that makes it none of those taken or of its own file's."""
    candidate = name
    number = 1
    while candidate in taken or (number > 1 and candidate in own):
        number += 1
        candidate = f"{name}_{number}"
    return candidate
