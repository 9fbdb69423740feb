"""Several probe files as one set: names of registers and probes stay apart, those of maps must."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.layout import MAX_MAPS
from neutrino.probing.maps import MAP_COUNT
from neutrino.probing.model import Instruction, Map, Probe, ProbeSet, Register, Save, Snippet
from neutrino.probing.platforms import platform_fault
from neutrino.probing.registers import REGISTER_WORD


def merge(parts: Sequence[ProbeSet]) -> ProbeSet:
    """One set of several, in this order.

    Registers of one name in two files are two registers, probes two probes: the later is renamed, with a number behind
    its name. Raises ProbeError for two maps of one name and for files of several platforms.
    """
    maps: dict[str, tuple[Map, ProbeSet]] = {}
    registers: dict[str, Register] = {}
    probes: dict[str, Probe] = {}
    faults: list[Diagnostic] = []
    for part in parts:
        if part.platform != parts[0].platform:
            message = f'platform is "{part.platform}", that of {parts[0].file} is "{parts[0].platform}"'
            faults.append(platform_fault(part, message, "probes of one run are for one platform"))
        for entry in part.maps:
            if entry.name in maps:
                faults.append(_map_clash(part, entry, maps[entry.name][1]))
            maps.setdefault(entry.name, (entry, part))
            if len(maps) == MAX_MAPS + 1:
                faults.append(_at_map(part, entry, *MAP_COUNT, code="map-count"))
                break
        renamed = {}
        own = {register.name for register in part.registers}
        for register in part.registers:
            if part.platform != "cuda":
                # Of AMD's assembly each probe has registers of its own under the same names.
                registers.setdefault(register.name, register)
                continue
            name = _free(register.name, registers, own)
            renamed[register.name] = name
            registers[name] = replace(register, name=name)
        names = {probe.name for probe in part.probes}
        for probe in part.probes:
            name = _free(probe.name, probes, names)
            probes[name] = replace(_rename(probe, renamed), name=name)
    if faults:
        raise ProbeError(faults)
    return ProbeSet(
        ", ".join(part.file for part in parts),
        "\n".join(f"# {part.file}\n{part.source}" for part in parts),
        tuple(entry for entry, _ in maps.values()),
        tuple(registers.values()),
        tuple(probes.values()),
        tuple(warning for part in parts for warning in part.warnings),
        tuple(parts),
        parts[0].platform,
        tuple(dict.fromkeys(hook for part in parts for hook in part.analyze_hooks)),
        tuple(dict.fromkeys(callback for part in parts for callback in part.callbacks)),
    )


def _map_clash(part: ProbeSet, entry: Map, other: ProbeSet) -> Diagnostic:
    message = f"map '{entry.name}' is also in {other.file}"
    return _at_map(part, entry, message, "rename one of the two", code="map-exists")


def _at_map(part: ProbeSet, entry: Map, message: str, hint: str, *, code: str) -> Diagnostic:
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


def _rename(probe: Probe, names: Mapping[str, str]) -> Probe:
    def word(text: str) -> str:
        return REGISTER_WORD.sub(lambda match: names.get(match.group(), match.group()), text)

    def snippet(side: Snippet | None) -> Snippet | None:
        if side is None:
            return None
        return Snippet(
            tuple(
                Instruction(word(statement.text), statement.span)
                if isinstance(statement, Instruction)
                else Save(statement.map, tuple(word(item) for item in statement.operands), statement.span)
                for statement in side.statements
            )
        )

    return replace(probe, before=snippet(probe.before), after=snippet(probe.after))
