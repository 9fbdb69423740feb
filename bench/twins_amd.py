"""Put code into all kernels of AMD's corpus, and read it back: ``python -m bench.twins_amd``.

It is part of ``make corpus-amd``. For each code object of the corpus of ``bench.corpus_amd`` whose processor has twins:
twins with marks, which is code that does nothing at half of all places, drawn by chance, in the kernel and in copies of
the functions that it calls. The reader of ``tests/gcn``,
which shares no code with what writes twins, maps each original instruction to the twin's: equal bytes but for fields of
branches and literals that are added to a program counter, which lead where they led; what is left is what was inserted.
Writes ``bench/results/twins_amd.json``; ``verdicts`` judges it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.check_corpus import CorpusError
from bench.corpus_amd import ROOT, WHEELS, corpus, print_verdicts
from bench.packed import unpacked
from bench.recorded import judge_files, save
from bench.tree import made_of
from neutrino.errors import PatchError
from neutrino.fatbin.code_object import descriptor_bytes, descriptors_of, open_code_object
from neutrino.fatbin.code_object_append import Appended, Part, append_kernels, place
from neutrino.fatbin.code_object_functions import CodeFunction, code_object_functions
from neutrino.gcn.analysis.calls import Calls, UnknownCallError
from neutrino.gcn.code import Function, decode, split_target, wave_features
from neutrino.gcn.isa.registers import UnknownInstructionError
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.processors import PROCESSORS as KNOWN
from neutrino.gcn.splice import Insertion, Member, Spliced, SplicedGroup, SpliceError, group_size, splice_group
from tests.gcn.twin_reader import Listing, NotATwinError, listing_of, read_twin

Json = Any

RESULTS = ROOT / "bench" / "results" / "twins_amd.json"
PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
LEAST_KERNELS = 1500
LEAST_COPIES = 500
MOST_REFUSED = 3
"""Per cent of kernels."""
_SEED = 7
_SHARE = 0.5
_LONGEST = 4
"""Instructions at one place."""
_PRELOAD, _PRELOAD_LENGTH, _HEADER = 58, 0x7F, 256
"""Offset in a descriptor of what says how many arguments are preloaded; its bits; bytes of a header that such a kernel
has."""
_MOST_EXAMPLES = 20


@dataclass
class Tally:
    """Counts over the code objects of one processor. copies: of functions that kernels call. pointers: kernels that may
    call functions by pointers. inserted, code: bytes. digest: over the objects' bytes."""

    objects: int = 0
    kernels: int = 0
    copies: int = 0
    pointers: int = 0
    read: int = 0
    code: int = 0
    inserted: int = 0
    seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def document(self) -> dict[str, Json]:
        """Return the counts for JSON."""
        counts = {name: value for name, value in vars(self).items() if name not in ("refused", "digest", "wrong")}
        counts |= {"seconds": round(self.seconds, 3), "wrong": self.wrong[:_MOST_EXAMPLES]}
        return counts | {"refused": dict(self.refused), "digest": self.digest.hexdigest()}


class Twins:
    """What is counted: a Tally for each processor."""

    def __init__(self) -> None:
        """Find AMD's LLVM. Raises ToolMissingError without one."""
        self.llvm = find_llvm()
        self.tallies: dict[str, Tally] = {}
        self._chance = random.Random(_SEED)

    def add(self, data: bytes, name: str) -> None:
        """Write twins with marks of all kernels of a code object, and read them. name: for messages."""
        functions = code_object_functions(data, name)
        processor, features = split_target(functions.target)
        if processor not in PROCESSORS:
            return
        tally = self.tallies.setdefault(processor, Tally())
        tally.digest.update(hashlib.sha256(data).digest())
        tally.objects += 1
        module = decode(functions.functions, processor, features, self.llvm)
        calls = Calls(replace(module, pointed=functions.pointed), KNOWN[processor].generation)
        kernels = [function for function in module.functions if function.is_kernel]
        tally.kernels += len(kernels)
        headers = _headers(data)
        nops = [self.llvm.assemble(f"s_nop {number}", processor) for number in range(8)]
        asked: list[list[Member]] = []
        for kernel in kernels:
            try:
                reach = calls.reach(kernel)
            except (UnknownCallError, UnknownInstructionError) as error:
                tally.refused[str(error).split(" at ")[0]] += 1
                continue
            if kernel.refused:
                tally.refused[kernel.refused.split(" at ")[0]] += 1
                continue
            tally.copies += len(reach.copied) - 1
            tally.pointers += bool(reach.originals)
            asked.append([
                Member(function, tuple(self._marks(function, header, nops)), header, redirected)
                for function, redirected in zip(reach.copied, reach.redirected, strict=True)
                for header in [headers[function.name] if function.is_kernel else 0]
            ])  # fmt: skip
        begin = time.process_time()
        places = place(data, list(map(group_size, asked)))
        written: list[tuple[list[Member], SplicedGroup, Appended]] = []
        for members, address in zip(asked, places, strict=True):
            kernel = members[0].function
            try:
                group = splice_group(members, address)
            except SpliceError as error:
                tally.refused[str(error).removeprefix(f"{kernel.name}: ").split(" at ")[0]] += 1
                continue
            names = [f"{kernel.name}__neutrino", *(f"__neutrino_{kernel.name}_{at:x}" for at in group.offsets[1:])]
            parts = tuple(
                Part(name, at, len(one.code))
                for name, at, one in zip(names, group.offsets, group.members, strict=True)
            )
            written.append((members, group, Appended(names[0], kernel.name, group.code, 40, 4, 128, parts)))
        if len(written) < len(asked):
            # The others would be somewhere else; what was refused is counted.
            return
        try:
            image = append_kernels(data, [appended for _, _, appended in written], name)
        except PatchError as error:
            tally.wrong.append(str(error))
            return
        tally.seconds += time.process_time() - begin
        after = code_object_functions(image, name).functions
        by_name, by_address = ({row[key]: row for row in after} for key in (0, 1))
        for members, group, appended in written:
            tally.code += sum(len(member.function.code) for member in members)
            tally.inserted += sum(len(code.code) for member in members for code in member.insertions)
            flags = wave_features(processor, features, members[0].function.wave)
            pairs = [
                tuple(self._listing(row, processor, flags) for row in rows)
                for rows in ((by_address[member.function.address], by_name[part.name])
                             for member, part in zip(members, appended.functions, strict=True))
            ]  # fmt: skip
            tally.read += self._reads(tally, name, members, group, pairs)

    def _reads(
        self, tally: Tally, name: str, members: Sequence[Member], group: SplicedGroup,
        pairs: Sequence[tuple[Listing, ...]],
    ) -> bool:  # fmt: skip
        """Return whether a twin and its copies of functions are what they should be; else it is noted why. pairs: of
        originals and copies."""
        copies = {original.rows[0].address: copy.rows[0].address for original, copy in pairs[1:]}
        for member, one, (original, copy) in zip(members, group.members, pairs, strict=True):
            kernel = members[0].function.name
            try:
                reading = read_twin(original, copy, one.moved, copies)
                # By itself, it comes to what may be the same.
                read_twin(original, copy, None, copies)
            except NotATwinError as error:
                tally.wrong.append(f"{name}: {kernel}: {error}")
                return False
            if reading.inserted != _expected(one, member.insertions) or reading.to_copies != member.redirected:
                tally.wrong.append(f"{name}: {kernel}: something else is left than was inserted in {original.name}")
                return False
        return True

    def _marks(self, function: Function, header: int, nops: Sequence[bytes]) -> list[Insertion]:
        """Return code for half of the places of a function at which some may be. header: bytes without any."""
        marks = []
        in_clause = 0
        for instruction in function.instructions:
            if in_clause:
                in_clause -= 1
            elif instruction.offset >= header and self._chance.random() < _SHARE:
                code = b"".join(self._chance.choices(nops, k=self._chance.randint(1, _LONGEST)))
                marks.append(Insertion(instruction.offset, code, self._chance.random() < _SHARE))
            if instruction.mnemonic == "s_clause":
                in_clause = int(instruction.operands[0], 0) + 1
        return marks

    def _listing(self, function: CodeFunction, processor: str, flags: str) -> Listing:
        """Return a function as the reader reads it."""
        rows = self.llvm.disassemble(function.code, processor, flags)
        return listing_of(function.name, function.address, function.code, rows)


def _headers(data: bytes) -> Mapping[str, int]:
    """Return the bytes at the beginning of each kernel that the hardware jumps over."""
    elf = open_code_object(data, "")
    return {
        name.removesuffix(".kd"): _HEADER if descriptor_bytes(elf, symbol)[_PRELOAD] & _PRELOAD_LENGTH else 0
        for name, symbol in descriptors_of(elf).items()
    }


def _expected(spliced: Spliced, marks: Iterable[Insertion]) -> Mapping[int, bytes]:
    """Return what should be in front of each instruction: detours of branches, and the mark."""
    found = dict(spliced.islands)
    for mark in marks:
        found[mark.before] = found.get(mark.before, b"") + mark.code
    return found


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    rows: Sequence[Json] = results["rows"]
    kernels, read = (sum(row[key] for row in rows) for key in ("kernels", "read"))
    refused = Counter[str]()
    for row in rows:
        refused.update(row["refused"])
    count = refused.total()
    reasons = ", ".join(f"{why} {number}" for why, number in refused.items()) or "none"
    wrong = [problem for row in rows for problem in row["wrong"]]
    return [
        (f"{kernels} kernels, at least {LEAST_KERNELS}", kernels >= LEAST_KERNELS),
        (f"for {', '.join(row['processor'] for row in rows)}", {row["processor"] for row in rows} == set(PROCESSORS)),
        (f"{sum(row['copies'] for row in rows)} copies of functions in them, at least {LEAST_COPIES}",
         sum(row["copies"] for row in rows) >= LEAST_COPIES),
        (f"{read} twins less their originals are what was inserted; {len(wrong)} are not", not wrong),
        (f"{count} are refused ({reasons})", count * 100 <= MOST_REFUSED * kernels),
        (f"{read + count} of {kernels} are accounted for", read + count == kernels),
    ]


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def record(sources: Iterable[tuple[str, str, bytes]]) -> dict[str, Json]:
    """Write and read twins of all code objects; return the results."""
    twins = Twins()
    for number, (source, name, data) in enumerate(sources):
        if number % 50 == 0:
            print(f"{number} code objects; {source}", file=sys.stderr)
        twins.add(bytes(data), name)
    rows = [{"processor": processor, **tally.document()} for processor, tally in sorted(twins.tallies.items())]
    return {**made_of("twins_amd"), "llvm": twins.llvm.identity, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the corpus and judge it; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m bench.twins_amd", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="where the wheels are, or go")
    parser.add_argument("--triton", type=Path, metavar="PYTHON", help="of an environment with Triton for AMD's GPUs")
    parser.add_argument("--packed", type=Path, metavar="FILE", help="the code objects that bench.corpus_amd packed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.judge:
        return judge_files([options.out], "make corpus-amd", ["rows"], say)
    try:
        found = corpus(options.triton, options.wheels) if options.packed is None else unpacked(options.packed)
        results = record(found)
    except (CorpusError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    save(options.out, results)
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
