"""Learn how many cycles ``ptxas`` leaves between a producer of fixed latency and its consumer, and hold the rules on
hazards against whole libraries.

    python -m bench.sass_latencies learn [--sm N] [--most N] [--share I/N] [--from COUNTS] [--counts FILE] [FILE…]
    python -m bench.sass_latencies check [--sm N] [--most N] [--share I/N] FILE…

FILE…: wheels, shared libraries or cubins. NVIDIA says nothing of latencies; but ``ptxas`` knows them, and fills them
with stalls. ``learn`` writes ``neutrino/sass/tables/latencies_90.json``: of each producer, register file and use the
least number of cycles between the two in all kernels of the files for sm_90 and sm_90a (``--sm``: for others). A use is
the consumer, with the modifiers that matter (``kind`` in ``neutrino/sass/twin/hazards.py``), and whether it reads the
register as its third operand, as its guard or otherwise, or writes it again. What was seen under 1,000 times, or
hardly ever with its least number, may always have been far off by chance: it stands apart. ``*``, for uses that were
not seen, is the largest of the others'. ``check`` prints the findings of the rules on hazards over all kernels
(``neutrino/sass/twin/hazards.py``), which should be none; ``learn``
does so, too, but for latencies. ``--most`` takes so many kernels of each library, evenly chosen; ``--share 1/4`` those
of each fourth cubin from the second on, so that kernels can be asked that were not learned from. ``--counts`` saves
what the table was made of; to that ``--from`` adds. Exit status: 0 without findings, 1 with, 2 when a file cannot be
read.
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

from bench.sass_tables import TABLES
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import open_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.twin.hazards import OTHERS, OVER, hazards
from tests.corpus.wheels import libraries

_SEEN_ENOUGH, _OF_ALL = 1000, 100
"""A least number of cycles is a limit if a use was seen so often, and one in so many had just that number."""
_BATCH = 20
Rows = dict[str, dict[str, dict[str, int]]]
"""Producer → register file → use → cycles."""
Ages = dict[tuple[str, str, str], Counter[int]]
"""(producer, register file, use) → cycles between them → how often. Producers and uses are as in ``required``."""
Share = tuple[int, int]
"""Which cubins are taken, and of how many: the first of four is (0, 4)."""


def kernels(path: Path, sm: int, share: Share = (0, 1), most: int = 0) -> Iterator[tuple[str, int, bytes]]:
    """Yield name, architecture and code of each different code section. sm: of the architecture, as 90.

    share: of the cubins, by their number in the file. most: so many kernels, evenly chosen from all of these; 0 for
    all. Raises FormatError, OSError.
    """
    seen: set[bytes] = set()
    found: list[tuple[str, int, bytes]] = []
    images = (image for container in read_file(path) for image in container.images)
    cubins = (one for one in images if one.kind is ImageKind.CUBIN and re.fullmatch(rf"sm_{sm}[af]?", one.arch))
    for number, image in enumerate(cubins):
        if number % share[1] != share[0]:
            continue
        elf = open_cubin(image.data, f"{path.name} {image.arch}")
        for section in elf.sections:
            if section.name.startswith(".text."):
                code = bytes(elf.contents(section))
                digest = hashlib.sha256(code).digest()
                if digest not in seen:
                    seen.add(digest)
                    found.append((section.name.removeprefix(".text."), sm, code))
    yield from found[:: max(1, -(-len(found) // most))] if most else found


def all_kernels(paths: Sequence[Path], sm: int, most: int, share: Share) -> Iterator[tuple[str, int, bytes]]:
    """Yield the kernels of all files, of wheels those of each library in them. sm, most, share: as of ``kernels``, of
    each library. Raises FormatError, OSError."""
    for path in paths:
        if not zipfile.is_zipfile(path):
            yield from kernels(path, sm, share, most)
            continue
        with tempfile.TemporaryDirectory(prefix="sass_latencies_") as folder:
            for library in libraries(path, Path(folder)):
                try:
                    yield from kernels(library, sm, share, most)
                except FormatError:
                    # A library without device code.
                    continue
                finally:
                    library.unlink()


def ages(batch: Sequence[tuple[str, int, bytes]]) -> tuple[Ages, list[str], int]:
    """Return the cycles between producers and consumers in these kernels, findings that are not of latencies, in lines,
    and how many instructions they have."""
    found: Ages = defaultdict(Counter)

    def note(producer: str, file: str, consumer: str, age: int) -> int:
        found[producer, file, consumer][age] += 1
        return 0

    lines = [
        f"{name[:80]} at {finding.place:#x}: {finding.rule}"
        for name, sm, code in batch for finding in hazards(decode(code, sm, name), note)
    ]  # fmt: skip
    return dict(found), lines, sum(len(code) // 16 for *_, code in batch)


def _is_limit(counts: Counter[int], least: int) -> bool:
    """Whether the least number of cycles is what ptxas has to leave: it was seen again and again. counts: by cycles."""
    return counts.total() >= _SEEN_ENOUGH and counts[least] * _OF_ALL >= counts.total()


def tables(found: Ages) -> tuple[Rows, Rows]:
    """Return the least cycles by producer, register file and use: of what was often seen, and of the rest what was seen
    with less than the ``*`` of the first, which stands for all other uses. A predicate's uses differ by much, so
    all are kept."""
    often: Rows = {}
    seldom: Rows = {}
    least = {key: min(counts) for key, counts in found.items()}
    for producer, file in sorted({key[:2] for key in found}):
        own = {use: cycles for (one, other, use), cycles in least.items() if (one, other) == (producer, file)}
        seen = {use for use, least in own.items() if _is_limit(found[producer, file, use], least)}
        row = {use: own[use] for use in sorted(seen)}
        reads = own.keys() - {"guard", *(use for use in own if use.startswith(OVER))}
        row[OTHERS] = most = max(own[use] for use in reads & seen or reads or own)
        # What may be read may be written.
        row = {use: min(cycles, most) if use.startswith(OVER) else cycles for use, cycles in row.items()}
        often.setdefault(producer, {})[file] = row
        rest = {
            use: cycles for use, cycles in sorted(own.items())
            if use not in seen and (cycles < most or use == "guard" or (file in {"P", "UP"} and use in reads))
        }  # fmt: skip
        if rest:
            seldom.setdefault(producer, {})[file] = rest
    return often, seldom


def findings(batch: Sequence[tuple[str, int, bytes]]) -> tuple[list[str], int]:
    """Return what the rules on hazards say of these kernels, in lines, and how many instructions they have."""
    lines = [
        f"{name[:80]} at {finding.place:#x}: {finding.rule}"
        for name, sm, code in batch for finding in hazards(decode(code, sm, name))
    ]  # fmt: skip
    return lines, sum(len(code) // 16 for *_, code in batch)


def _share(text: str) -> Share:
    """Read ``0/4``. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"{text}: expected I/N, I from 0 to N - 1, as 0/4")
    return int(match[1]), int(match[2])


def _batches(paths: Sequence[Path], sm: int, most: int, share: Share) -> Iterator[list[tuple[str, int, bytes]]]:
    batch: list[tuple[str, int, bytes]] = []
    for kernel in all_kernels(paths, sm, most, share):
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
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--from", dest="before", action="append", type=Path, default=[], help="what --counts saved")
    parser.add_argument("--sm", type=int, default=90, help="of the architecture; default: 90")
    parser.add_argument("--counts", type=Path, help="save how often each number of cycles was seen")
    parser.add_argument("--most", type=int, default=0, help="so many kernels of each library; 0 for all")
    parser.add_argument("--share", type=_share, default=(0, 1), metavar="I/N", help="only each N-th cubin, from I on")
    options = parser.parse_intermixed_args(argv)
    if (options.what == "check" and options.before) or not (options.files or options.before):
        parser.error("expected files, or --from with learn")
    count, instructions = 0, 0
    lines: list[str] = []
    found: Ages = defaultdict(Counter)
    try:
        for path in options.before:
            before = json.loads(path.read_text())
            count, instructions = count + before["kernels"], instructions + before["instructions"]
            for producer, file, use, cycles in before["uses"]:
                found[producer, file, use] += Counter(dict(cycles))
        batches = list(_batches(options.files, options.sm, options.most, options.share))
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
    count += sum(len(batch) for batch in batches)
    print(f"{count} kernels, {instructions} instructions, {len(lines)} findings")
    print("\n".join(lines[:40]))
    if options.what == "learn":
        made: dict[str, object] = {"arch": f"sm_{options.sm}", "kernels": count, "instructions": instructions}
        if options.counts is not None:
            uses = [[*key, sorted(counts.items())] for key, counts in sorted(found.items())]
            options.counts.write_text(json.dumps(made | {"uses": uses}))
        often, seldom = tables(found)
        made |= {"cycles": often, "seldom": seldom}
        (TABLES / f"latencies_{options.sm}.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
