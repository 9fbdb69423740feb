"""Twins with one fault each, held against the checker and run by the interpreter.

``python -m tests.sass_machine.mutants [--every N] [--probes PROBE…] CASE…`` prints what one of the two judges sees
alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.fields import NO_BARRIER, READ_BARRIER, STALL, WAIT, WRITE_BARRIER
from neutrino.sass.twin.checking import check_code
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probe_code import packed
from tests.kernels.cases import cases
from tests.sass_machine.launching import Host, code_of, cut_of, records_of, twin_of, twin_program
from tests.sass_machine.machine import HazardError, MachineError, MemoryFaultError, Program, UnknownMachineCodeError
from tests.sass_machine.text import read

_NOP = 0x918
_FIELDS = {
    "wait": (WAIT, 0), "write barrier": (WRITE_BARRIER, NO_BARRIER), "read barrier": (READ_BARRIER, NO_BARRIER),
    "stall": (STALL, 1),
}  # fmt: skip


@dataclass
class Tally:
    """What became of the mutants, by kind. tried: all. checked: the checker refuses. ran: the interpreter reports.
    other: it computes or records something else without a report. missed: what the interpreter saw and the checker did
    not: (kind, place, what). unseen: the reverse, places by kind."""

    tried: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    ran: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    missed: list[tuple[str, int, str]] = field(default_factory=list)
    unseen: list[tuple[str, int, str]] = field(default_factory=list)


def _mutants(program: Program, begin: int) -> Iterator[tuple[str, int, int]]:
    """(kind, number of the instruction, its word): a wait or a scoreboard dropped, a stall of one cycle; from an
    instruction on."""
    for at, word in enumerate(program.words[begin:], begin):
        for kind, (place, value) in _FIELDS.items():
            if place.get(word) == value or word & 0xFFF == _NOP or (kind == "stall" and STALL.get(word) < 2):
                continue
            yield kind, at, place.put(word, value)


def _surroundings(host: Host, probe: str) -> tuple[bytes, Surroundings]:
    case, twin, code = host.case, twin_of(host.case.path, host.case.kernel, probe), code_of(probe)
    old = read_cubin(cut_of(case.path, case.kernel), "cut").kernels[case.kernel]
    new = read_cubin(twin.data, "twin").kernels[case.kernel]
    base = new.parameter_base + twin.parameter_offset
    around = Surroundings(
        old.registers, (base, base + code.block_size), new.parameter_base, twin.counted, twin.reference,
    )  # fmt: skip
    return old.code, around


def tally(host: Host, probe: str, every: int = 1) -> Tally:
    """Try the mutants of the code that a twin has after the kernel's. every: only each so many-th."""
    found, case = Tally(), host.case
    program = twin_program(case.path, case.kernel, probe)
    old, around = _surroundings(host, probe)
    if check_code(old, packed(program.words), around):
        raise ValueError(f"{case.name}: the checker refuses the twin itself")
    records, results = records_of(host.run_twin(probe, in_graph=True)), _contents(host)
    mutants = list(_mutants(program, len(old) // 16))[::every]
    # One that nvdisasm does not read is no instruction.
    read(word for _, _, word in mutants)
    for kind, at, word in mutants:
        words = [*program.words[:at], word, *program.words[at + 1 :]]
        found.tried[kind] += 1
        rules = check_code(old, packed(words), around)
        found.checked[kind] += bool(rules)
        changed = Program(
            dataclasses.replace(program.kernel, code=packed(words)), len(old), program.fresh, program.banks
        )
        said = ""
        try:
            views = host.run_twin(probe, program=changed, in_graph=True)
            if (records_of(views), _contents(host)) != (records, results):
                found.other[kind] += 1
        except (HazardError, MachineError, MemoryFaultError, UnknownMachineCodeError) as error:
            said = str(error)
        found.ran[kind] += bool(said)
        if said and not rules:
            found.missed.append((kind, 16 * at, said))
        if rules and not said:
            found.unseen.append((kind, 16 * at, rules[0].rule))
    return found


def _contents(host: Host) -> list[bytes]:
    return [array.tobytes() for array in host.results().values()]


def main(arguments: list[str]) -> int:
    """Print what both judges say of the twins of cases; return the exit status: 1 if the checker missed anything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--probes", nargs="+", default=["block_sched", "gmem_bytes", "dmat"])
    given = parser.parse_args(arguments)
    status = 0
    for case in (one for one in cases() if one.name in given.cases):
        host = Host(dataclasses.replace(case, grid=(1, 1, 1), block=(min(32, case.block[0]), *case.block[1:])))
        for probe in given.probes:
            try:
                found = tally(host, probe, given.every)
            except MachineCodeError as error:
                print(f"{case.name} {probe}: no twin: {error.reason}")
                continue
            for kind, tried in found.tried.items():
                print(f"{case.name} {probe} {kind}: {tried} tried, {found.checked[kind]} refused by the checker, "
                      f"{found.ran[kind]} by running, {found.other[kind]} with other results", flush=True)  # fmt: skip
            for kind, place, said in found.missed:
                print(f"  the checker misses {kind} at {place:#x}: {said}")
            for kind, place, rule in found.unseen:
                print(f"  running misses {kind} at {place:#x}: {rule}")
            status |= bool(found.missed)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
