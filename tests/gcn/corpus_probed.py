"""Put the shipped probes into the kernels of AMD's corpus, and count: ``python -m tests.gcn.corpus_probed``.

``--triton PYTHON`` takes Triton's kernels of the corpus of ``tests.gcn.corpus_text``, ``--clang`` those of clang,
``--wheels FOLDER`` those of the wheels, XLA's of JAX among them. Triton's are taken whole; of the others a part, chosen
by the digest of the kernel's and its file's name (``SHARES``), since each probe in each kernel would take days. For
each code object whose processor has twins, and each probe: the twins of its kernels, as the tools write them. The
reader of ``tests/gcn``, which shares no code with what writes twins, maps each instruction of a kernel to the twin's,
and finds as much code in between as was inserted. Kernels without a twin are counted by the kind of the refusal; of the
others the sites that are left out, what was added, and how many waves fit on a SIMD before and after.

Writes ``build/probed_amd.json``, which ``--out bench/results/probed_amd.json`` records; ``verdicts`` judges it. What is
counted of a code object is kept beside it until all are: a run that was ended goes on where it was, unless the sources
or the code object have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, load
from bench.tree import ROOT, made_of
from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import ORIGINAL, GcnKernel, GcnTwin, copy_names
from neutrino.errors import NeutrinoError
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_functions import CodeFunction, code_object_functions
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.code import split_target, wave_features
from neutrino.gcn.isa.registers import UnknownInstructionError
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.processors import PROCESSORS as KNOWN
from neutrino.gcn.snippets.meaning import typed
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.resources import shipped_probes
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.corpus.outputs import OUT_HELP, output, write
from tests.corpus.wheels import CorpusError, Package, fetch
from tests.gcn.corpus_text import (
    BUILT,
    code_objects_in,
    of_clang,
    of_triton,
    of_wheels,
    print_verdicts,
)
from tests.gcn.packed import pack, unpacked
from tests.gcn.twin_reader import Listing, NotATwinError, listing_of, read_twin

Json = Any

PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
RESULTS = ROOT / "bench" / "results" / "probed_amd.json"
COUNTING = ("block_sched", "gmem_bytes", "inst_count", "launch_skew", "opcode_mix", "work_per_warp")
"""Probes that count, or note when a block runs."""
SHARES = {"triton": (1.0, 1.0), "clang": (0.5, 0.06), "wheels": (0.08, 0.012), "xla": (0.2, 0.04)}
"""Of each part of the corpus the share of kernels into which probes of COUNTING are put, and of those that get all."""
XLA_OBJECTS = 0.08
"""The share of the code objects of XLA's library in which these are chosen: they take seconds to read."""
XLA = Package("jax-rocm7-pjrt==0.12.0", "jax_rocm7_pjrt-0.12.0-*.whl")
LEAST_KERNELS, LEAST_PROCESSORS = 140, 5
"""Of each probe. Triton has no compiler for gfx1030 any more."""
MOST_REFUSED, MOST_REFUSED_OF_OPERANDS = 3, 15
"""Per cent of kernels, for probes of COUNTING and for the others."""
LEAST_SAME_WAVES = 95
"""Per cent of the kernels with a probe of COUNTING."""
_MOST_EXAMPLES = 5
_MOST_NAME = 60
_LARGE, _AT_ONCE = 1_000_000, 3
"""Bytes of a code object from which on its probes are counted in several processes, and how many in each."""
_CHOSEN_BY = 1 << 32


@cache
def portable() -> tuple[str, ...]:
    """Return the shipped probes that AMD's target can do whole, those of COUNTING first. The others ask for what only
    PTX has."""
    names = (*COUNTING, *(name for name in shipped_probes("hip") if name not in COUNTING))
    return tuple(name for name in names if _is_portable(name))


def _is_portable(name: str) -> bool:
    """Return whether AMD's target can do a shipped probe."""
    try:
        _, left_out = able_probes(GcnTarget(), load_probes([name], platform="hip"))
    except NeutrinoError:
        return False
    return not left_out


def chosen(kernels: Iterable[str], file: str, share: float) -> list[str]:
    """Return a share of a file's kernels, the same in each run."""
    def number(kernel: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{file} {kernel}".encode()).digest()[:4], "little")

    return [kernel for kernel in kernels if number(kernel) < share * _CHOSEN_BY]


@dataclass
class Tally:
    """Counts over the kernels of one processor and probe. without_site: kernels with nothing to probe. written,
    instructions, inserted: twins; instructions of their originals, and what was added. growth: sums over twins of the
    share by which their code grew. scalars, vectors: registers more, summed. waves: twins that keep their waves.
    sites, left_out: of all twins. seconds: of processor time for planning and writing, text: bytes of the originals'
    assembly text. refused, left_out_for: how many
    for each kind of reason. examples: one of each kind, in words."""

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
    text: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left_out_for: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Json]:
        """Return the counts for JSON, without the examples."""
        counts = {name: value for name, value in vars(self).items() if name != "examples"}
        counts |= {"seconds": round(self.seconds, 3), "growth": round(self.growth, 3)}
        counts["left_out_for"] = dict(self.left_out_for.most_common())
        wrong = [shortened(problem) for problem in self.wrong[:_MOST_EXAMPLES]]
        return counts | {"refused": dict(self.refused.most_common()), "wrong": wrong}

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the corpus."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif isinstance(value, dict):
                setattr(self, name, {**value, **getattr(self, name)})
            else:
                setattr(self, name, getattr(self, name) + value)


    @classmethod
    def of(cls, counts: Mapping[str, Json]) -> Tally:
        """Return the counts that were kept as JSON."""
        counters: Json = {name: Counter(counts[name]) for name in ("refused", "left_out_for")}
        return cls(**{**counts, **counters})


def shortened(problem: str) -> str:
    """Return a problem with the names of files instead of their paths, and the beginning of mangled names."""
    words = (word.rpartition("/")[2] for word in problem.split(" "))
    return " ".join(word if len(word) <= _MOST_NAME else f"{word[:_MOST_NAME]}…{word[-1]}" for word in words)


Tallies = dict[tuple[str, str, str], Tally]
"""By part of the corpus, processor and probe."""


class Probed:
    """Writes and reads the twins of one part of the corpus."""

    def __init__(self, probes: Sequence[str]) -> None:
        """probes: names of shipped ones. Raises ToolMissingError without AMD's LLVM."""
        self.llvm = find_llvm()
        self.tallies: Tallies = {}
        self._target = GcnTarget()
        self._probes: dict[str, ProbeSet] = {name: load_probes([name], platform="hip") for name in probes}

    def add(self, data: bytes, name: str, part: str) -> None:
        """Write and read the twins of a code object's kernels. name: of the file. part: of the corpus."""
        target = code_object_functions(data, name).target
        processor, _ = split_target(target)
        if processor not in PROCESSORS:
            return
        source = CodeObjectSource(0, target, data)
        # For empty kernels, of processors that they are not made for, there is nothing to write.
        filled = [function.name for function in source.module.functions if function.is_kernel and function.code]
        of_counting, of_all = (chosen(filled, name, share) for share in SHARES[part])
        originals: dict[tuple[int, str], Listing] = {}
        for probe, probes in self._probes.items():
            names = of_counting if probe in COUNTING else of_all
            if not names:
                continue
            tally = self.tallies.setdefault((part, processor, probe), Tally())
            able, left_out = able_probes(self._target, probes)
            backend = GcnTwins(source, typed(able), left_out)
            tally.kernels += len(names)
            begin = time.process_time()
            plan = backend.plan(names)
            code = backend.write(plan)
            tally.seconds += time.process_time() - begin
            for found in (plan, code):
                for kernel, (why, detail) in found.refused.items():
                    if why is Reason.NO_SITE:
                        tally.without_site += 1
                        continue
                    kind = found.kinds[kernel]
                    tally.refused[kind] += 1
                    tally.examples.setdefault(kind, f"{name}: {kernel}: {detail}")
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
            tally.text += twin.texts[ORIGINAL].size
            tally.growth += inserted / max(size, 1)
            tally.sites += len(twin.sites)
            tally.left_out += len(twin.left_out)
            tally.left_out_for.update(twin.left_out_kinds)
            for one, kind in zip(twin.left_out, twin.left_out_kinds, strict=True):
                tally.examples.setdefault(f"left out: {kind}", f"{name}: {twin.name}: {one.instruction}: {one.reason}")
            before, now = figures[twin.name], figures[twin.twin_name]
            tally.scalars += now.sgprs - before.sgprs
            tally.vectors += now.vgprs - before.vgprs
            try:
                named = KernelRegisters(source.module, kernel.function, processor, kernel.named).scalar_count
            except UnknownInstructionError:
                named = before.sgprs
            waves = processor.waves(before.vgprs, twin.lanes, named)
            tally.waves += waves == processor.waves(now.vgprs, twin.lanes, max(named, twin.sgprs))


_Job = tuple[str, str, bytes, tuple[str, ...]]
"""Part of the corpus, name and bytes of a code object, and the probes."""


def _counted(job: _Job) -> tuple[str, list[Json]]:
    """Return the counts of a code object, with its key, in a process of its own."""
    part, name, data, probes = job
    probed = _probed(probes)
    probed.tallies = {}
    probed.add(data, name, part)
    return key_of(job), [[*key, vars(tally)] for key, tally in probed.tallies.items()]


@cache
def _probed(probes: tuple[str, ...]) -> Probed:
    """Return what writes and reads twins in this process."""
    return Probed(probes)


def key_of(job: _Job) -> str:
    """Return what the counts of a code object depend on, but for the sources."""
    part, name, data, probes = job
    return hashlib.sha256(repr((part, name, probes, SHARES[part])).encode() + data).hexdigest()


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    asked = {row["probe"] for row in results["rows"]}
    parts = {row.get("part", "triton") for row in results["rows"]}
    found = [
        (f"{len(asked)} of {len(portable())} probes", asked == set(portable())),
        (f"kernels of {', '.join(sorted(parts))}", parts == set(SHARES)),
    ]
    for probe in filter(asked.__contains__, portable()):
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
        "| probe | corpus | processor | kernels | twins | refused | sites, left out | instructions | registers "
        "| waves kept | text a second |",
        "|" + " --- |" * 11,
    ]
    for row in results["rows"]:
        twins = max(row["written"], 1)
        lines.append(
            f"| {row['probe']} | {row.get('part', 'triton')} | {row['processor']} "
            f"| {row['kernels']} | {row['written']} "
            f"| {sum(row['refused'].values())} | {row['sites']}, {row['left_out']} "
            f"| +{100 * row['inserted'] / max(row['instructions'], 1):.0f} % "
            f"| +{row['scalars'] / twins:.1f}, +{row['vectors'] / twins:.1f} | {100 * row['waves'] / twins:.0f} % "
            f"| {row.get('text', 0) / 1e6 / max(row['seconds'], 0.001):.2f} MB |"
        )
    return "\n".join(lines)


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def read_kept(kept: Path, begin: str) -> dict[str, list[Json]]:
    """Return the counts that an ended run has kept, by the keys of code objects. begin: the file's first line, if it is
    of these sources."""
    found: dict[str, list[Json]] = {}
    first, *lines = kept.read_text().split("\n") if kept.is_file() else [""]
    # What follows the last line end was being written.
    for line in lines[:-1] if first == begin else ():
        key, rows = json.loads(line)
        found[key] = rows
    return found


def record(
    sources: Iterable[tuple[str, str, bytes]], probes: Sequence[str], jobs: int, kept: Path
) -> dict[str, Json]:
    """Write and read twins of all code objects, in several processes; return the results. sources: part of the corpus,
    name and bytes of each. kept: where counts are, and go, as long as not all are there."""
    made = made_of("probed_amd")
    begin = json.dumps({"files": made["files"], "llvm": find_llvm().identity}, sort_keys=True)
    known = read_kept(kept, begin)
    digest = hashlib.sha256()
    work: list[_Job] = []
    order: list[str] = []
    for part, name, data in chosen_once(sources):
        digest.update(hashlib.sha256(data).digest())
        # Large ones in several processes, so that none is left to the end.
        step = _AT_ONCE if len(data) > _LARGE else len(probes)
        for at in range(0, len(probes), step):
            job = part, name, data, tuple(probes[at : at + step])
            order.append(key := key_of(job))
            work += [job] if key not in known else []
    with kept.open("w") as file:
        print(begin, *(json.dumps([key, known[key]]) for key in order if key in known), sep="\n", file=file, flush=True)
        with get_context("spawn").Pool(jobs, maxtasksperchild=16) as pool:
            # The largest first, for the same reason.
            for key, rows in pool.imap_unordered(_counted, sorted(work, key=lambda job: -len(job[2]))):
                known[key] = rows
                print(json.dumps([key, rows]), file=file, flush=True)
    tallies: Tallies = {}
    for key in order:
        for part, processor, probe, counts in known[key]:
            tallies.setdefault((part, processor, probe), Tally()).add(Tally.of(counts))
    rows = [
        {"probe": probe, "part": part, "processor": processor, **tallies[part, processor, probe].document()}
        for probe in probes for part in SHARES for processor in PROCESSORS if (part, processor, probe) in tallies
    ]  # fmt: skip
    for (part, processor, probe), tally in tallies.items():
        for kind, example in tally.examples.items():
            print(f"{part}, {processor}, {probe}: {kind}: {shortened(example)}", file=sys.stderr)
    kept.unlink()
    shares = {part: list(share) for part, share in SHARES.items()}
    return {**made, "llvm": find_llvm().identity, "corpus": digest.hexdigest(), "shares": shares, "rows": rows}


def of_xla(wheels: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the chosen code objects of XLA's library. Raises CorpusError for a wheel that cannot be had."""
    for name, image in code_objects_in(fetch(XLA, wheels)):
        if image.arch.partition(":")[0] in PROCESSORS and chosen([name], XLA.requirement, XLA_OBJECTS):
            yield "xla", name, image.data


def has_chosen(part: str, name: str, data: bytes) -> bool:
    """Return whether probes go into a kernel of a code object."""
    found = code_object_functions(data, name)
    if split_target(found.target)[0] not in PROCESSORS:
        return False
    filled = [function.name for function in found.functions if function.is_kernel and function.code]
    return any(chosen(filled, name, share) for share in SHARES[part])


def chosen_once(sources: Iterable[tuple[str, str, bytes]]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects into which probes go, each of a part of the corpus once: libraries for several versions
    of ROCm have the same."""
    seen: set[tuple[str, bytes]] = set()
    for part, name, data in sources:
        content = bytes(data)
        if (part, content) not in seen and has_chosen(part, name, content):
            seen.add((part, content))
            yield part, name, content


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the corpus and judge it; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m tests.gcn.corpus_probed", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    parser.add_argument("--table", action="store_true", help="print them as a table")
    parser.add_argument("--triton", type=Path, metavar="PYTHON", help="of an environment with Triton for AMD's GPUs")
    parser.add_argument("--clang", action="store_true", help="what clang 19 makes of HIP")
    parser.add_argument("--wheels", type=Path, help="the folder where the wheels are, or go")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the code objects to it, and count nothing")
    parser.add_argument("--packed", type=Path, metavar="FILE", help="the code objects that --pack wrote")
    parser.add_argument("--folder", type=Path, help="code objects, instead of the corpus")
    parser.add_argument("--probes", help="their names, with commas; else all that AMD's target can do")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    options = parser.parse_args(arguments)
    if options.judge:
        made_by = "python -m tests.gcn.corpus_probed --out bench/results/probed_amd.json"
        return judge_files([options.out or RESULTS], made_by, ["rows"], say)
    if options.table:
        print(table(load(options.out or RESULTS)))
        return 0

    def sources() -> Iterator[tuple[str, str, bytes]]:
        if options.packed is not None:
            yield from unpacked(options.packed)
            return
        if options.folder is not None:
            for path in sorted(options.folder.rglob("*.hsaco")):
                yield "triton", path.name, path.read_bytes()
            return
        if options.triton is not None:
            yield from (("triton", name, data) for _, name, data in of_triton(options.triton, BUILT / "triton"))
        if options.clang:
            yield from (("clang", name, data) for _, name, data in of_clang(BUILT / "clang"))
        if options.wheels is not None:
            yield from (("wheels", name, data) for _, name, data in of_wheels(options.wheels))
            yield from of_xla(options.wheels)

    try:
        if options.pack is not None:
            pack(chosen_once(sources()), options.pack)
            return 0
        part = (options.out or output(RESULTS)).with_suffix(".part.jsonl")
        part.parent.mkdir(parents=True, exist_ok=True)
        probes = portable() if options.probes is None else options.probes.split(",")
        results = record(sources(), probes, options.jobs, part)
    except (CorpusError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    write(options.out, RESULTS, results)
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
