"""How many kernels of whole libraries get a twin of their machine code: ``make coverage-sass LIBRARIES='…'``.

    python -m bench.sass_coverage [--most N] [--probe NAME …] [--out FILE] [--kernels FILE] [--kept FOLDER] FILE…

FILE…: wheels, shared libraries or cubins. Every kernel of sm_90 is cut out of its cubin, grown, gets the probes' code,
and goes past the checker, as in a program; of a kernel that several cubins of a file have, each one; none of cubins
that are not linked, which are never loaded. With ``--most N`` about so many kernels of each file are tried, spread
evenly: the row says of how many each is one, and the shares count it so often. Counts what was twinned, and each
refusal by its reason, without places, registers and names. Kernels without an access of memory are no part of a probe's
share that is at accesses. Prints the shares and writes ``build/sass_coverage.json``, or ``--out``'s file: counts,
digests, and one kernel as an example of each reason. It is recorded by ``--out bench/results/sass_coverage.json``.
``--kernels`` saves what became of each kernel. With ``--kept`` what is found of a
file is stored in a folder, from which a run that was stopped goes on. Exit status: 0 if the shares are reached, 1 if
not, 2 when a file cannot be read.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.recorded import save
from bench.tree import ROOT, judged_files, made_of
from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.elf.constants import ET_REL
from neutrino.errors import FormatError, MachineCodeError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import STO_CUDA_ENTRY, function_symbols, open_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.toolchain.tool_choice import find_assembler
from tests.corpus.wheels import libraries

RESULTS = ROOT / "bench" / "results" / "sass_coverage.json"
"""What is recorded. A run over other libraries leaves it as it is."""
OUTPUT = ROOT / "build" / "sass_coverage.json"
SHARES = {"block_sched": 0.9, "gmem_bytes": 0.8}
"""Probe → the share of kernels that have to get a twin."""
ARCHITECTURES = ("sm_90", "sm_90a")
TWINNED, NOTHING = "twinned", "has no access of memory that the probes are for"
_PLACE = re.compile(r"\b0x[0-9a-f]+\b")
_REGISTERS = re.compile(r"\b(U?[RP]|UP)\d+(, (U?[RP]|UP)\d+)*\b")
_NUMBER = re.compile(r"\b\d+\b(?!\))")
_NAMES = re.compile(r"(uses the variable|calls|refers to the symbol) (?!vprintf|malloc|free)\S+")
_SECTION = re.compile(r"(\.(?:text|nv\.\w+)\.)_?\w+")
_OPCODE = re.compile(r"\b([A-Z][A-Z0-9]{1,9})(\.[A-Z0-9_]+)+\b", re.IGNORECASE)
_PROCESSES = 2
_LEAST_SHOWN = 0.001
_SHORT = {
    "^moves registers": "registers moved between warps", r"over N\b": "more than 255 registers",
    "for N threads": "more registers than a block may have", "generic": "accesses by generic addresses",
    "bulk_copy|uncounted": "bulk and tensor copies, multimem", "second predicate": "LDGSTS under a second predicate",
    "^uses the variable": "variables of the module", "bank N": "constants of the module",
    "which registers instructions use": "an attribute that names registers", "relocations": "relocations",
}  # fmt: skip
"""Part of a reason → the same in short."""
Rows = list[tuple[str, int, dict[str, str]]]
"""Name of a kernel, bytes of its code section, and by probe what became of it."""


def reason_of(text: str) -> str:
    """Return a refusal without what is of one kernel only: places, numbers, registers, names."""
    text = _NAMES.sub(r"\1 …", text)
    text = _SECTION.sub(r"\1…", text)
    text = _REGISTERS.sub(lambda match: f"{match[1]}…", text)
    text = _OPCODE.sub(lambda match: match[1].upper(), text)
    return _NUMBER.sub("N", _PLACE.sub("N", text))


def attempt(data: bytes, kernel: str, cutter: Cutter, codes: dict[str, ProbeCode]) -> tuple[int, dict[str, str]]:
    """Make the twins of a kernel. Returns the bytes of its cubin, and by probe ``TWINNED`` or why there is none."""
    try:
        cut = cutter.cut(kernel)
    except (MachineCodeError, FormatError) as error:
        return 0, dict.fromkeys(codes, _why(error))
    found = {}
    for probe, code in codes.items():
        try:
            code.twin_of(cut, kernel, "cubin")
            found[probe] = TWINNED
        except (MachineCodeError, FormatError) as error:
            found[probe] = _why(error)
    return len(cut), found


def _why(error: MachineCodeError | FormatError) -> str:
    return error.reason if isinstance(error, MachineCodeError) else f"damaged: {error}"


@functools.cache
def _codes(arch: str, probes: tuple[str, ...]) -> dict[str, ProbeCode]:
    """The code of each probe, in each process once."""
    return {name: ProbeCode(load_probes([name]), arch, find_assembler()) for name in probes}


def of_image(task: tuple[bytes, str, tuple[str, ...], int, int]) -> Rows:
    """Make the twins of the kernels of one cubin. task: the cubin, its architecture, names of the probes, and which of
    its kernels: the first, and every so many-th."""
    data, arch, probes, first, every = task
    cutter = Cutter(data, "cubin")
    return [
        (kernel, *attempt(data, kernel, cutter, _codes(arch, probes)))
        for kernel in cutter.kernels[first::every]
    ]  # fmt: skip


def kernels_of(path: Path) -> Iterator[tuple[memoryview, str, int]]:
    """Yield the cubins of a library that are linked, with their architecture and number of kernels. Raises FormatError,
    OSError."""
    for container in read_file(path):
        for image in container.images:
            if image.kind is not ImageKind.CUBIN or image.arch not in ARCHITECTURES:
                continue
            elf = open_cubin(image.data, path.name)
            # What is not linked (nvcc -rdc=true) is never loaded: its kernels are in a linked cubin as well.
            if elf.type != ET_REL:
                symbols = function_symbols(elf)
                yield memoryview(image.data), image.arch, sum(bool(one.other & STO_CUDA_ENTRY) for one in symbols)


def tasks(path: Path, probes: tuple[str, ...], every: int) -> Iterator[tuple[bytes, str, tuple[str, ...], int, int]]:
    """Yield what ``of_image`` takes, for all cubins of a library. Raises FormatError, OSError."""
    number = 0
    for data, arch, count in kernels_of(path):
        first = -number % every
        number += count
        if first < count:
            yield bytes(data), arch, probes, first, every


def cover(path: Path, probes: tuple[str, ...], most: int, kept: Path | None) -> dict[str, Any]:
    """Return the row of a library: counts, reasons, and what became of each kernel that was tried."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    of = f"{digest} {probes} {most} {judged_files('sass_coverage')}"
    stored = None if kept is None else kept / f"coverage.{hashlib.sha256(of.encode()).hexdigest()}.json"
    if stored is not None and stored.exists():
        row: dict[str, Any] = json.loads(stored.read_text())
        return row
    count = sum(number for _, _, number in kernels_of(path))
    every = max(-(-count // most), 1) if most else 1
    rows: Rows = []
    with ProcessPoolExecutor(_PROCESSES) as pool:
        waiting: list[Any] = []
        for task in tasks(path, probes, every):
            waiting.append(pool.submit(of_image, task))
            # Not all cubins of a library in memory at once.
            while len(waiting) > 2 * _PROCESSES:
                rows += waiting.pop(0).result()
                if len(rows) % 100 < 2:
                    print(f"{path.name}: {len(rows)}", file=sys.stderr, flush=True)
        for one in waiting:
            rows += one.result()
    row = {"file": path.name, "sha256": digest, "of": count, "every": every, "kernels": len(rows), "rows": rows}
    if stored is not None:
        stored.write_text(json.dumps(row))
    return row


def summed(row: dict[str, Any], probes: Sequence[str]) -> dict[str, Any]:
    """Return a library's row as it is recorded: by probe the counts, and each reason with an example."""
    out = {name: row[name] for name in ("file", "sha256", "of", "every", "kernels")}
    for probe in probes:
        reasons: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for kernel, _, found in row["rows"]:
            reason = reason_of(found[probe])
            reasons[reason] += 1
            examples.setdefault(reason, kernel if found[probe] == TWINNED else f"{kernel}: {found[probe]}")
        twinned, nothing = reasons.pop(TWINNED, 0), reasons.pop(NOTHING, 0)
        out[probe] = {
            "twinned": twinned, "nothing_to_probe": nothing,
            "refused": [{"count": count, "reason": reason, "example": examples[reason][:400]}
                        for reason, count in reasons.most_common()],
        }  # fmt: skip
    return out


def share(rows: Sequence[dict[str, Any]], probe: str) -> float:
    """Return the share of kernels with a twin, of those that have something to probe. rows: as they are recorded; a
    sampled library counts as often as its kernels are."""
    twinned = sum(row[probe]["twinned"] * row["every"] for row in rows)
    tried = sum((row["kernels"] - row[probe]["nothing_to_probe"]) * row["every"] for row in rows)
    return twinned / tried if tried else 0.0


def verdicts(results: dict[str, Any]) -> list[str]:
    """Which shares are not reached, in words."""
    return [
        f"{probe}: {found:.2%} of the kernels, not {least:.0%}"
        for probe, least in SHARES.items() if probe in results["shares"]
        for found in [share(results["rows"], probe)] if found < least
    ]  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The tables of docs/machine-code.md: the libraries, and why kernels are left alone."""
    rows, probes = results["rows"], list(results["shares"])
    lines = [f"{'library':<30} {'kernels':>7} {'tried':>6}" + "".join(f" {probe:>12}" for probe in probes)]
    for row in rows:
        shares = "".join(f" {share([row], probe):>12.1%}" for probe in probes)
        lines.append(f"{row['file'].partition('.')[0]:<30} {row['of']:>7,} {row['kernels']:>6,}{shares}")
    lines.append(f"{'all, by their kernels':<30} {sum(row['of'] for row in rows):>7,} "
                 f"{sum(row['kernels'] for row in rows):>6,}" + "".join(
                     f" {results['shares'][probe]:>12.1%}" for probe in probes))  # fmt: skip
    lines += ["", f"{'left alone':<44}" + "".join(f" {probe:>12}" for probe in probes)]
    parts = {probe: _left_alone(rows, probe) for probe in probes}
    reasons = sorted({reason for part in parts.values() for reason in part},
                     key=lambda reason: -sum(part[reason] for part in parts.values()))  # fmt: skip
    return "\n".join(lines + [
        f"{reason[:44]:<44}" + "".join(f" {parts[probe][reason]:>12.1%}" for probe in probes)
        for reason in reasons if any(part[reason] >= _LEAST_SHOWN for part in parts.values())
    ])  # fmt: skip


def _left_alone(rows: Sequence[dict[str, Any]], probe: str) -> Counter[str]:
    """The share of all kernels that are left alone, by reason."""
    whole = sum(row["kernels"] * row["every"] for row in rows)
    found: Counter[str] = Counter()
    for row in rows:
        for refusal in row[probe]["refused"]:
            found[_in_short(refusal["reason"])] += refusal["count"] * row["every"] / whole
    return found


def _in_short(reason: str) -> str:
    """A reason in a few words."""
    return next((short for start, short in _SHORT.items() if re.search(start, reason)), reason.partition(",")[0])


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """All libraries in these files. Raises OSError."""
    for path in paths:
        if zipfile.is_zipfile(path):
            with tempfile.TemporaryDirectory(prefix="sass_coverage_") as folder:
                yield from libraries(path, Path(folder))
        else:
            yield path


def main(argv: Sequence[str] | None = None) -> int:
    """Make the twins of libraries. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.sass_coverage", description="How many kernels get a twin.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=0, help="try about so many kernels of each file; 0 for all")
    parser.add_argument("--probe", action="append", help=f"{' and '.join(SHARES)} without one")
    parser.add_argument("--out", type=Path, default=OUTPUT, help=f"the results; default: {OUTPUT.relative_to(ROOT)}")
    parser.add_argument("--kernels", type=Path, help="save each kernel with what became of it (JSON)")
    parser.add_argument("--kept", type=Path, help="a folder for what is found, from which a stopped run goes on")
    options = parser.parse_args(argv)
    probes = tuple(options.probe or SHARES)
    if options.kept is not None:
        options.kept.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    try:
        for path in _files(options.files):
            row = cover(path, probes, options.most, options.kept)
            if row["kernels"]:
                found.append(row)
    except (NeutrinoError, OSError) as error:
        print(f"coverage-sass: {error}", file=sys.stderr)
        return 2
    if options.kernels is not None:
        options.kernels.write_text(json.dumps(found))
    rows = [summed(row, probes) for row in found]
    if not rows:
        print("coverage-sass: no kernel of sm_90 in these files", file=sys.stderr)
        return 2
    results = {**made_of("sass_coverage"), "shares": {probe: round(share(rows, probe), 4) for probe in probes},
               "rows": rows}  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save(options.out, results)
    print(f"written: {options.out}", file=sys.stderr)
    for row in rows:
        for probe in probes:
            part = row[probe]
            print(f"{row['file']}: {probe}: {part['twinned']} of {row['kernels']} (of {row['of']}), "
                  f"{part['nothing_to_probe']} without an access, {share([row], probe):.1%}")  # fmt: skip
            for refusal in part["refused"][:12]:
                print(f"    {refusal['count']:6} {refusal['reason']}")
    missed = [verdict.partition(":")[0] for verdict in verdicts(results)]
    for probe in probes:
        print(f"{probe}: {share(rows, probe):.2%}" + (", not reached" if probe in missed else ""))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
