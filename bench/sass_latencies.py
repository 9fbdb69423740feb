"""Learn how many cycles ``ptxas`` leaves between a producer of fixed latency and its consumer, and hold the rules on
hazards against whole libraries.

    python -m bench.sass_latencies learn [--most N] [--counts FILE] [--out FILE] FILE…
    python -m bench.sass_latencies check [--most N] FILE…

FILE…: wheels, shared libraries or cubins. NVIDIA says nothing of latencies; but ``ptxas`` knows them, and fills them
with stalls. ``learn`` writes ``neutrino/sass/tables/latencies_90.json``: of each producer, register file and consumer
the least number of cycles between the two in all kernels of the files for sm_90 and sm_90a. Consumers that were seen
under 1,000 times may all have been far off by chance: they stand apart. ``*``, for consumers that were not seen, is the
largest of the others'. ``check`` prints the findings of the rules on
hazards over all kernels (``neutrino/sass/twin/hazards.py``), which should be none; ``learn`` does so, too, but for
latencies. ``--most`` takes so many kernels of each library, evenly chosen. ``--counts`` saves what the table was made
of. Exit status: 0 without findings, 1 with, 2 when a file cannot be read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.check_corpus import libraries
from bench.sass_tables import TABLES
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import open_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.twin.hazards import hazards

_SM = 90
_SEEN_ENOUGH = 1000
_BATCH = 20
Rows = dict[str, dict[str, dict[str, int]]]
"""Producer → register file → consumer → cycles."""
Ages = dict[tuple[str, str, str], Counter[int]]
"""(producer, register file, consumer) → cycles between them → how often."""


def kernels(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and code of each different code section for sm_90 and sm_90a. Raises FormatError, OSError."""
    seen: set[bytes] = set()
    for container in read_file(path):
        for image in container.images:
            if image.kind is not ImageKind.CUBIN or re.fullmatch(rf"sm_{_SM}a?", image.arch) is None:
                continue
            elf = open_cubin(image.data, f"{path.name} {image.arch}")
            for section in elf.sections:
                if section.name.startswith(".text."):
                    code = bytes(elf.contents(section))
                    digest = hashlib.sha256(code).digest()
                    if digest not in seen:
                        seen.add(digest)
                        yield section.name.removeprefix(".text."), code


def all_kernels(paths: Sequence[Path], most: int) -> Iterator[tuple[str, bytes]]:
    """Yield the kernels of all files, of wheels those of each library in them. most: of each library, evenly chosen; 0
    for all. Raises FormatError, OSError."""
    for path in paths:
        if not zipfile.is_zipfile(path):
            yield from _some(list(kernels(path)), most)
            continue
        with tempfile.TemporaryDirectory(prefix="sass_latencies_") as folder:
            for library in libraries(path, Path(folder)):
                try:
                    yield from _some(list(kernels(library)), most)
                except FormatError:
                    # A library without device code.
                    continue
                finally:
                    library.unlink()


def _some(found: list[tuple[str, bytes]], most: int) -> list[tuple[str, bytes]]:
    return found[:: max(1, -(-len(found) // most))] if most else found


def ages(batch: Sequence[tuple[str, bytes]]) -> tuple[Ages, list[str], int]:
    """Return the cycles between producers and consumers in these kernels, findings that are not of latencies, in lines,
    and how many instructions they have."""
    found: Ages = defaultdict(Counter)

    def note(producer: str, file: str, consumer: str, age: int) -> int:
        found[producer, file, consumer][age] += 1
        return 0

    lines = [
        f"{name[:80]} at {finding.place:#x}: {finding.rule}"
        for name, code in batch for finding in hazards(decode(code, _SM, name), note)
    ]  # fmt: skip
    return dict(found), lines, sum(len(code) // 16 for _, code in batch)


def tables(found: Ages) -> tuple[Rows, Rows]:
    """Return the least cycles by producer, register file and consumer: of what was often seen, and of what was seldom
    seen and with less than the ``*`` of the first, which stands for all other consumers. A predicate's consumers differ
    by much, so all are kept."""
    often: Rows = {}
    seldom: Rows = {}
    least = {key: min(counts) for key, counts in found.items()}
    for producer, file in sorted({key[:2] for key in found}):
        own = {consumer: cycles for (one, other, consumer), cycles in least.items() if (one, other) == (producer, file)}
        seen = {consumer for consumer in own if found[producer, file, consumer].total() >= _SEEN_ENOUGH}
        plain = own.keys() - {"guard", "over"}
        row = {consumer: own[consumer] for consumer in sorted(seen)}
        row["*"] = max((own[consumer] for consumer in plain & seen), default=max(own.values()))
        often.setdefault(producer, {})[file] = row
        rest = {
            consumer: cycles for consumer, cycles in sorted(own.items())
            if consumer not in seen and (cycles < row["*"] or consumer not in plain or file in {"P", "UP"})
        }  # fmt: skip
        if rest:
            seldom.setdefault(producer, {})[file] = rest
    return often, seldom


def findings(batch: Sequence[tuple[str, bytes]]) -> tuple[list[str], int]:
    """Return what the rules on hazards say of these kernels, in lines, and how many instructions they have."""
    lines = [
        f"{name[:80]} at {finding.place:#x}: {finding.rule}"
        for name, code in batch for finding in hazards(decode(code, _SM, name))
    ]  # fmt: skip
    return lines, sum(len(code) // 16 for _, code in batch)


def _batches(paths: Sequence[Path], most: int) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    for kernel in all_kernels(paths, most):
        batch.append(kernel)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main(argv: Sequence[str] | None = None) -> int:
    """Learn or check. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.sass_latencies", description="Latencies in ptxas' output.")
    parser.add_argument("what", choices=("learn", "check"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=TABLES / f"latencies_{_SM}.json")
    parser.add_argument("--counts", type=Path, help="save how often each number of cycles was seen")
    parser.add_argument("--most", type=int, default=0, help="so many kernels of each library; 0 for all")
    options = parser.parse_args(argv)
    count, instructions = 0, 0
    lines: list[str] = []
    found: Ages = defaultdict(Counter)
    try:
        batches = list(_batches(options.files, options.most))
    except (NeutrinoError, OSError) as error:
        print(f"sass-latencies: {error}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(2) as pool:
        if options.what == "learn":
            for more, texts, size in pool.map(ages, batches):
                lines += texts
                for key, counts in more.items():
                    found[key] += counts
                instructions += size
        else:
            for texts, size in pool.map(findings, batches):
                lines += texts
                instructions += size
    count = sum(len(batch) for batch in batches)
    print(f"{count} kernels, {instructions} instructions, {len(lines)} findings")
    print("\n".join(lines[:40]))
    if options.what == "learn":
        if options.counts is not None:
            rows = [[*key, sorted(counts.items())] for key, counts in sorted(found.items())]
            options.counts.write_text(json.dumps(rows))
        often, seldom = tables(found)
        made = {
            "arch": f"sm_{_SM}", "kernels": count, "instructions": instructions, "cycles": often, "seldom": seldom,
        }  # fmt: skip
        options.out.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
