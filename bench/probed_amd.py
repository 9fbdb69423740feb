"""Put the shipped probes into all kernels of AMD's corpus, and count: ``python -m bench.probed_amd``.

``--triton PYTHON`` takes Triton's kernels of the corpus of ``bench.corpus_amd``, ``--clang`` those of clang, ``--wheels
FOLDER`` the wheels', which take hours. For each code object whose processor has twins, and each probe: the twins of its
kernels, as the tools write them. The reader of ``tests/gcn``, which shares no code with what writes twins, maps each
instruction of a kernel to the twin's, and finds as much code in between as was inserted. Kernels without a twin are
counted by reason; of the others the sites that are left out, what was added, and how many waves fit on a SIMD before
and after. Writes ``bench/results/probed_amd.json``; ``verdicts`` judges it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.check_corpus import CorpusError
from bench.corpus_amd import BUILT, ROOT, of_clang, of_triton, of_wheels, print_verdicts
from bench.recorded import judge_files
from bench.tree import made_of
from bench.twins_amd import PROCESSORS
from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import GcnKernel, GcnTwin, copy_names
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_functions import CodeFunction, code_object_functions
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.code import split_target, wave_features
from neutrino.gcn.isa.registers import UnknownInstructionError
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.processors import PROCESSORS as KNOWN
from neutrino.gcn.snippets.meaning import typed
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.gcn.twin_reader import Listing, NotATwinError, listing_of, read_twin

Json = Any

RESULTS = ROOT / "bench" / "results" / "probed_amd.json"
COUNTING = ("block_sched", "gmem_bytes", "inst_count", "launch_skew", "opcode_mix", "work_per_warp")
"""Probes that count, or note when a block runs."""
PROBES = (
    *COUNTING, "atomic_contention", "barrier_wait", "coalescing", "dmat", "hot_lines", "latency", "nan_finder",
    "reuse_distance", "smem_bank_conflict", "value_watch", "warp_timeline",
)  # fmt: skip
"""Those that are portable: the others ask for what only PTX has."""
LEAST_KERNELS, LEAST_PROCESSORS = 140, 5
"""Of each probe. Triton has no compiler for gfx1030 any more."""
MOST_REFUSED, MOST_REFUSED_OF_OPERANDS = 3, 15
"""Per cent of kernels, for probes of COUNTING and for the others."""
LEAST_SAME_WAVES = 95
"""Per cent of the kernels with a probe of COUNTING."""
_MOST_EXAMPLES = 5
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_NAMES = re.compile(r"'[^']*'|\bfunction \S+")


@dataclass
class Tally:
    """Counts over the kernels of one processor and probe. without_site: kernels with nothing to probe. written,
    instructions, inserted: twins; instructions of their originals, and what was added. growth: sums over twins of the
    share by which their code grew. scalars, vectors: registers more, summed. waves: twins that keep their waves.
    sites, left_out: of all twins. seconds: of processor time for planning and writing."""

    kernels: int = 0
    without_site: int = 0
    written: int = 0
    instructions: int = 0
    inserted: int = 0
    growth: float = 0.0
    scalars: int = 0
    vectors: int = 0
    waves: int = 0
    sites: int = 0
    left_out: int = 0
    seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    left_out_for: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Json]:
        """Return the counts for JSON."""
        counts = dict(vars(self))
        counts |= {"seconds": round(self.seconds, 3), "growth": round(self.growth, 3)}
        counts["left_out_for"] = dict(self.left_out_for.most_common(_MOST_EXAMPLES))
        return counts | {"refused": dict(self.refused.most_common()), "wrong": self.wrong[:_MOST_EXAMPLES]}

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the corpus."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


Tallies = dict[tuple[str, str], Tally]


class Probed:
    """Writes and reads the twins of one part of the corpus."""

    def __init__(self, probes: Sequence[str]) -> None:
        """probes: names of shipped ones. Raises ToolMissingError without AMD's LLVM."""
        self.llvm = find_llvm()
        self.tallies: Tallies = {}
        self._target = GcnTarget()
        self._probes: dict[str, ProbeSet] = {name: load_probes([name], platform="hip") for name in probes}

    def add(self, data: bytes, name: str) -> None:
        """Write and read the twins of a code object's kernels. name: for messages."""
        target = code_object_functions(data, name).target
        processor, _ = split_target(target)
        if processor not in PROCESSORS:
            return
        source = CodeObjectSource(0, target, data)
        originals: dict[tuple[int, str], Listing] = {}
        for probe, probes in self._probes.items():
            tally = self.tallies.setdefault((processor, probe), Tally())
            able, left_out = able_probes(self._target, probes)
            backend = GcnTwins(source, typed(able), left_out)
            names = list(backend.kernels)
            tally.kernels += len(names)
            begin = time.process_time()
            plan = backend.plan(names)
            code = backend.write(plan)
            tally.seconds += time.process_time() - begin
            for why, detail in (*plan.refused.values(), *code.refused.values()):
                if why is Reason.NO_SITE:
                    tally.without_site += 1
                else:
                    tally.refused[_NUMBERS.sub("N", _NAMES.sub("NAME", f"{why.name.lower()}: {detail}"))] += 1
            planned = {kernel.name: kernel for kernel in plan.kernels}
            twins = [(planned[twin.name], twin) for twin in code.twins]
            self._read(tally, source, code.image, twins, originals, f"{name}: {probe}")

    def _read(
        self, tally: Tally, source: CodeObjectSource, image: bytes, twins: Sequence[tuple[GcnKernel, GcnTwin]],
        originals: dict[tuple[int, str], Listing], name: str,
    ) -> None:  # fmt: skip
        """Read the twins in a code object. originals: their originals, as far as these have been read. name: for
        messages."""
        after = {function.name: function for function in code_object_functions(image, name).functions}
        figures = read_code_object(image, name).kernels
        processor = KNOWN[source.processor]
        features = source.module.features
        places = {function.address: function for function in after.values()}
        for kernel, twin in twins:
            flags = wave_features(source.processor, features, twin.lanes)

            def listed(row: CodeFunction, flags: str = flags) -> Listing:
                rows = self.llvm.disassemble(row.code, source.processor, flags)
                return listing_of(row.name, row.address, row.code, rows)

            names = {one.function.address: copy for one, copy in zip(kernel.functions, copy_names(kernel), strict=True)}
            copies = {address: after[copy].address for address, copy in names.items()}
            inserted, size, instructions, problem = 0, 0, 0, ""
            for address, copy in names.items():
                function = places[address]
                if (address, flags) not in originals:
                    originals[address, flags] = listed(function)
                original = originals[address, flags]
                try:
                    reading = read_twin(original, listed(after[copy]), copies=copies)
                except NotATwinError as error:
                    problem = problem or str(error)
                    continue
                inserted += sum(map(len, reading.inserted.values()))
                size += len(function.code)
                instructions += len(original.rows)
            if problem or inserted != twin.inserted:
                tally.wrong.append(f"{name}: {twin.name}: {problem or 'something else is left than was inserted'}")
                continue
            tally.written += 1
            tally.instructions += instructions
            tally.inserted += twin.added
            tally.growth += inserted / max(size, 1)
            tally.sites += len(twin.sites)
            tally.left_out += len(twin.left_out)
            tally.left_out_for.update(_NUMBERS.sub("N", one.reason) for one in twin.left_out)
            before, now = figures[twin.name], figures[twin.twin_name]
            tally.scalars += now.sgprs - before.sgprs
            tally.vectors += now.vgprs - before.vgprs
            try:
                named = KernelRegisters(source.module, kernel.function, processor).scalar_count
            except UnknownInstructionError:
                named = before.sgprs
            waves = processor.waves(before.vgprs, twin.lanes, named)
            tally.waves += waves == processor.waves(now.vgprs, twin.lanes, max(named, twin.sgprs))


def _part(job: tuple[Sequence[tuple[str, bytes]], Sequence[str]]) -> Tallies:
    """Return the counts of a part of the corpus, in a process of its own."""
    objects, names = job
    probed = Probed(names)
    for name, data in objects:
        probed.add(data, name)
    return probed.tallies


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    asked = {row["probe"] for row in results["rows"]}
    found = [(f"{len(asked)} of {len(PROBES)} probes", asked == set(PROBES))]
    for probe in filter(asked.__contains__, PROBES):
        rows = [row for row in results["rows"] if row["probe"] == probe]
        kernels, written, empty = (sum(row[key] for row in rows) for key in ("kernels", "written", "without_site"))
        refused = Counter[str]()
        for row in rows:
            refused.update(row["refused"])
        wrong = [problem for row in rows for problem in row["wrong"]]
        most = MOST_REFUSED if probe in COUNTING else MOST_REFUSED_OF_OPERANDS
        count = refused.total()
        share = 100 * count / max(kernels, 1)
        ran_for = {row["processor"] for row in rows}
        found += [
            (f"{probe}: {kernels} kernels, at least {LEAST_KERNELS}, for {len(ran_for)} processors",
             kernels >= LEAST_KERNELS and len(ran_for) >= LEAST_PROCESSORS),
            (f"{probe}: {written} twins less their originals are what was inserted; {len(wrong)} are not", not wrong),
            (f"{probe}: {written + count + empty} of {kernels} are accounted for", written + count + empty == kernels),
            (f"{probe}: {share:.1f} % refused, {most} % at most", share <= most),
        ]  # fmt: skip
        if probe in COUNTING:
            same = 100 * sum(row["waves"] for row in rows) / max(written, 1)
            found.append(
                (f"{probe}: {same:.1f} % keep their waves, {LEAST_SAME_WAVES} % at least", same >= LEAST_SAME_WAVES)
            )
    return found


def table(results: Mapping[str, Json]) -> str:
    """Return recorded results as a table in Markdown, with a row for each probe and processor."""
    lines = [
        "| probe | processor | kernels | twins | refused | sites, left out | instructions | registers | waves kept |",
        "|" + " --- |" * 9,
    ]
    for row in results["rows"]:
        twins = max(row["written"], 1)
        lines.append(
            f"| {row['probe']} | {row['processor']} | {row['kernels']} | {row['written']} "
            f"| {sum(row['refused'].values())} | {row['sites']}, {row['left_out']} "
            f"| +{100 * row['inserted'] / max(row['instructions'], 1):.0f} % "
            f"| +{row['scalars'] / twins:.1f}, +{row['vectors'] / twins:.1f} | {100 * row['waves'] / twins:.0f} % |"
        )
    return "\n".join(lines)


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def record(sources: Iterable[tuple[str, str, bytes]], probes: Sequence[str], jobs: int) -> dict[str, Json]:
    """Write and read twins of all code objects, in several processes; return the results."""
    digest = hashlib.sha256()
    parts: list[list[tuple[str, bytes]]] = [[] for _ in range(jobs)]
    sizes = [0] * jobs
    objects = [(name, bytes(data)) for _, name, data in sources]
    for _, data in objects:
        digest.update(hashlib.sha256(data).digest())
    # The largest first, each to the part with the least.
    for name, data in sorted(objects, key=lambda row: -len(row[1])):
        least = min(range(jobs), key=sizes.__getitem__)
        parts[least].append((name, data))
        sizes[least] += len(data)
    tallies: Tallies = {}
    with get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(_part, [(part, probes) for part in parts]):
            for key, tally in found.items():
                tallies.setdefault(key, Tally()).add(tally)
    rows = [
        {"probe": probe, "processor": processor, **tallies[processor, probe].document()}
        for probe in probes for processor in PROCESSORS if (processor, probe) in tallies
    ]  # fmt: skip
    return {**made_of("probed_amd"), "llvm": find_llvm().identity, "corpus": digest.hexdigest(), "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the corpus and judge it; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m bench.probed_amd", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    parser.add_argument("--table", action="store_true", help="print them as a table")
    parser.add_argument("--triton", type=Path, metavar="PYTHON", help="of an environment with Triton for AMD's GPUs")
    parser.add_argument("--clang", action="store_true", help="what clang 19 makes of HIP")
    parser.add_argument("--wheels", type=Path, help="the folder where the wheels are, or go")
    parser.add_argument("--folder", type=Path, help="code objects, instead of the corpus")
    parser.add_argument("--probes", default=",".join(PROBES), help="their names, with commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.judge:
        return judge_files([options.out], "make corpus-amd", ["rows"], say)
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return 0

    def sources() -> Iterator[tuple[str, str, bytes]]:
        if options.folder is not None:
            for path in sorted(options.folder.rglob("*.hsaco")):
                yield "folder", path.name, path.read_bytes()
            return
        if options.clang:
            yield from of_clang(BUILT / "clang")
        if options.triton is not None:
            yield from of_triton(options.triton, BUILT / "triton")
        if options.wheels is not None:
            yield from of_wheels(options.wheels)

    try:
        results = record(sources(), options.probes.split(","), options.jobs)
    except (CorpusError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
