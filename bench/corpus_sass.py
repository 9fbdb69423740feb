"""Hold the decoder of machine code against ``nvdisasm``, over whole libraries: ``make corpus-sass LIBRARIES='…'``.

    python -m bench.corpus_sass [--arch sm_90 …] [--out FILE] [--words FILE.npy] [--most N] [--roles N] [--kept FOLDER]
                                FILE…

FILE…: wheels, shared libraries or cubins. Every different instruction of every kernel of the architecture is printed by
``nvdisasm`` and decoded here, and the two must say the same: the full name, the guard, every register in the order of
the text, how many operands are kept for the next instruction, and where a branch goes. Of instructions that differ only
in their stall, barriers and waits, of which ``nvdisasm`` prints nothing, one is compared. Of each form (and each
different setting of the bits above the operands) one instruction's definitions and uses must be those that ``nvdisasm
-plr`` marks. Prints the figures and writes ``build/corpus_sass.json``, or ``--out``'s file, as JSON: counts,
digests and the first differences; nothing of the libraries themselves. It is recorded by ``--out
bench/results/corpus_sass.json``. Exit status: 0 without a difference or an unknown instruction, 1 with,
2 when a file cannot be read. ``--words`` saves the different instructions instead, for ``bench.sass_tables``. With
``--kept`` what is found is stored in a folder, piece by piece, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.nvdisasm_reading import Reading, Roles, Words, parse, reused, roles, texts, unique, zero_numbers
from bench.recorded import save
from bench.sass_tables import fewer
from bench.tree import ROOT, judged_files, made_of
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import STO_CUDA_ENTRY, function_symbols, open_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import encoding
from neutrino.sass.instruction import Flow, Instruction, RegisterFile
from neutrino.toolchain.location import find_tool
from tests.corpus.wheels import libraries

RESULTS = ROOT / "bench" / "results" / "corpus_sass.json"
"""What is recorded. A run over other libraries leaves it as it is."""
OUTPUT = ROOT / "build" / "corpus_sass.json"
_CHUNK = 20_000
CONTROL = np.array([0, ((1 << 17) - 1 - (1 << 4)) << 41], np.uint64)
"""Stall, barriers and wait mask: bits 105 to 121 without 109, of which nvdisasm prints nothing. Bit 109 (yield) decides
whether it prints ``.reuse``."""
_EXAMPLES = 5
_LEAST = 50_000
_MERGE = 8_000_000
_PREDICATE_LIST = re.compile(r"\bPR\b")
_ADDRESS = re.compile(r"(?<![\w\[])-?0x[0-9a-f]+$")
_METADATA = re.compile(r"\.reuse(?=, 0x[0-9a-f]+$)")
_BIG = 1 << 63
_LAST_MARKED = 62
"""Of the uniform registers, the last that nvdisasm marks as defined or used, on sm_100 too, which has 255."""
_COMPARED = ("name", "guard", "registers", "reuse")
_WRONG = ("unknown", *_COMPARED, "predicate mask", "target", "role")
"""What a row of results counts, and should be none."""


@dataclass
class Library:
    """The instructions of one file for one architecture. sm: as 90. words: each different one once."""

    file: str
    sha256: str
    sm: int
    cubins: int = 0
    kernels: int = 0
    instructions: int = 0
    words: Words = field(default_factory=lambda: np.zeros((0, 2), np.uint64))


def read_library(path: Path, sms: Sequence[int], kept: Path | None = None) -> list[Library]:
    """Collect the instructions of a shared library or cubin, by architecture. sms: 90 takes sm_90 and sm_90a. kept: a
    folder with those of earlier runs. Raises FormatError."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = [Library(path.name, digest, sm) for sm in sms]
    if kept is not None and all(_kept_words(kept, library) for library in found):
        return found
    parts: dict[int, list[Words]] = {sm: [] for sm in sms}
    waiting = dict.fromkeys(sms, 0)
    for container in read_file(path):
        for image in container.images:
            match = re.fullmatch(r"sm_(\d+)[af]?", image.arch)
            if image.kind is not ImageKind.CUBIN or match is None or int(match[1]) not in parts:
                continue
            sm = int(match[1])
            library = found[sms.index(sm)]
            elf = open_cubin(image.data, f"{path.name} {image.arch}")
            library.cubins += 1
            library.kernels += sum(bool(symbol.other & STO_CUDA_ENTRY) for symbol in function_symbols(elf))
            for section in elf.sections:
                if section.name.startswith(".text."):
                    words = np.frombuffer(bytes(elf.contents(section)), "<u8").reshape(-1, 2)
                    library.instructions += len(words)
                    waiting[sm] += len(words)
                    parts[sm].append(words)
            if waiting[sm] > _MERGE:
                parts[sm], waiting[sm] = [unique(np.concatenate(parts[sm]))], 0
    for library in found:
        if parts[library.sm]:
            library.words = unique(np.concatenate(parts[library.sm]))
        if kept is not None:
            np.save(kept / f"{digest}.{library.sm}.npy", library.words)
            counts = [library.cubins, library.kernels, library.instructions]
            (kept / f"{digest}.{library.sm}.json").write_text(json.dumps(counts))
    return found


def _kept_words(kept: Path, library: Library) -> bool:
    """Fill in a library's instructions from a folder. False where it does not have them."""
    counts = kept / f"{library.sha256}.{library.sm}.json"
    if not counts.exists():
        return False
    library.cubins, library.kernels, library.instructions = json.loads(counts.read_text())
    library.words = np.load(counts.with_suffix(".npy"))
    return True


def read_all(paths: Sequence[Path], sms: Sequence[int], kept: Path | None = None) -> Iterator[Library]:
    """Every library in these files that has code for the architectures. Raises FormatError, OSError."""
    for path in paths:
        if zipfile.is_zipfile(path):
            with tempfile.TemporaryDirectory(prefix="corpus_sass_") as folder:
                for library in libraries(path, Path(folder)):
                    try:
                        found = read_library(library, sms, kept)
                    except FormatError:
                        # Libraries without device code, and those that only the CPU runs.
                        continue
                    finally:
                        library.unlink()
                    yield from (one for one in found if one.instructions)
        else:
            yield from (one for one in read_library(path, sms, kept) if one.instructions)


def said(reading: Reading, text: str) -> tuple[Any, ...]:
    """What is compared of nvdisasm's text, but for branches' targets."""
    # The fourth register of a sparse product is always printed as kept, whatever the fields for it hold.
    text = _METADATA.sub("", text) if "SP" in reading.fragments else text
    return ".".join(reading.fragments), reading.guard, reading.registers, reused(text)


def decoded(one: Instruction) -> tuple[Any, ...]:
    """The same of a decoded instruction."""
    guard = ""
    if one.guard is not None:
        letter = one.guard.file.value
        guard = f"@{'!' if one.guard.negated else ''}{letter}{'T' if one.guard.number == 7 else one.guard.number}"
    registers = [(operand.file.value, operand.number) for operand in one.operands
                 if operand.printed
                 and not (operand.file is RegisterFile.PREDICATE and one.opcode in {0x803, 0x804})]  # fmt: skip
    if one.guard is not None and one.guard.number != 7:
        registers.insert(0, (one.guard.file.value, one.guard.number))
    # nvdisasm prints the marks of three operands; the fourth bit is of one more, which it leaves out.
    return one.name, guard, tuple(registers), (one.control.reuse & 7).bit_count()


def differences(words: Words, arch: str, sm: int) -> tuple[Counter[str], list[str]]:
    """Compare readings of words. Returns counts (``read``, ``refused`` by nvdisasm, ``unknown``, and by what differs),
    and the first examples."""
    counts: Counter[str] = Counter()
    examples: list[str] = []
    code = decode(words, sm)
    zeros = zero_numbers(arch)
    unknown = {int(offset) // 16 for offset in code.unknown}
    for index, text in enumerate(texts(words, arch, 1)):
        if text is None:
            # Nothing that runs: data between functions, and the filling of an old assembler.
            counts["refused"] += 1
            continue
        counts["read"] += 1
        what = ""
        if index in unknown:
            what = "unknown"
        else:
            one, reading = code[index], parse(text, zeros)
            for name, a, b in zip(_COMPARED, said(reading, text), decoded(one), strict=True):
                if a != b:
                    what = name
                    break
            else:
                what = "" if _same_mask(one, text) else "predicate mask"
        if what:
            counts[what] += 1
            if counts[what] <= _EXAMPLES:
                low, high = (int(half) for half in words[index])
                made = "" if index in unknown else f" != {decoded(code[index])}"
                examples.append(f"{what}: {high:016x}{low:016x} {text}{made}")
    return counts, examples


def _same_mask(one: Instruction, text: str) -> bool:
    """Whether the predicates that P2R and R2P touch are those of the mask in the text."""
    if _PREDICATE_LIST.search(text) is None:
        return True
    mask = int(text.rsplit(", ", 1)[1], 16)
    named = {operand.number for operand in one.operands
             if operand.file is RegisterFile.PREDICATE}  # fmt: skip
    return named == {number for number in range(7) if mask >> number & 1}


def target_differences(words: Words, arch: str, sm: int) -> tuple[Counter[str], list[str]]:
    """Compare the targets of branches. In a file of their own, since a target is printed as an address."""
    counts: Counter[str] = Counter()
    examples: list[str] = []
    code = decode(words, sm)
    chosen = [index for index in range(len(words))
              if (form := code.form(index)) is not None and (form.target or form.flow is Flow.BRANCH)]  # fmt: skip
    words = words[chosen]
    words = words[[index for index, text in enumerate(texts(words, arch, 1)) if text is not None]]
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        for one, text in zip(decode(part, sm), texts(part, arch, 1), strict=True):
            # BRX and the like name a place in a table, not where they go.
            match = None if text is None or one.base_name.startswith(("BRX", "JM")) else _ADDRESS.search(text)
            counts["targets"] += 1
            printed = None if match is None else (int(match[0], 16) + _BIG) % (1 << 64) - _BIG
            if printed != one.target:
                counts["target"] += 1
                if counts["target"] <= _EXAMPLES:
                    examples.append(f"target: {text} != {one.target}")
    return counts, examples


def role_differences(words: Words, arch: str, sm: int, most: int) -> tuple[Counter[str], list[str]]:
    """Compare definitions and uses: of each form and setting of the bits above the operands, one instruction.

    most: of how many of them, chosen evenly; 0 for all.
    """
    counts: Counter[str] = Counter()
    examples: list[str] = []
    code = decode(words, sm)
    table = encoding(sm)
    masks = np.zeros((1 << 12, 2), np.uint64)
    for number, opcode in table.opcodes.items():
        fields = 0
        for _, at, width, *_ in opcode.row["fields"]:
            fields |= (1 << width) - 1 << at
        mask = (opcode.mask | (1 << 105) - (1 << 72)) & ~fields
        masks[number] = mask & (1 << 64) - 1, mask >> 64
    opcodes = (words[:, 0] & np.uint64(0xFFF)).astype(int)
    keys = words & masks[opcodes]
    order = np.lexsort((keys[:, 0], keys[:, 1]))
    first = np.ones(len(order), bool)
    first[1:] = (keys[order][1:] != keys[order][:-1]).any(axis=1)
    chosen = np.sort(order[first])
    straight = [int(index) for index in chosen
                if (form := code.form(int(index))) is not None
                and (form.flow not in {Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT, Flow.CONVERGENCE})]  # fmt: skip
    if most and len(straight) > most:
        straight = straight[:: -(-len(straight) // most)]
    words = words[straight]
    words = words[[index for index, text in enumerate(texts(words, arch)) if text is not None]]
    for one, marks in zip(decode(words, sm), roles(words, arch), strict=True):
        if marks is None:
            counts["roles refused"] += 1
            continue
        counts["roles"] += 1
        made = _roles(one)
        if made != marks:
            counts["role"] += 1
            if counts["role"] <= _EXAMPLES:
                examples.append(f"role: {one.high:016x}{one.low:016x} {one.name} {marks} != {made}")
    return counts, examples


def _roles(one: Instruction) -> Roles:
    """Definitions and uses as nvdisasm marks them."""
    reads, writes = one.reads(), one.writes()
    if one.opcode in {0x803, 0x804}:
        # It marks none of those that a mask names.
        kept = {(one.guard.file, one.guard.number)} if one.guard is not None else set()
        reads = frozenset(key for key in reads if key[0] is not RegisterFile.PREDICATE or key in kept)
        writes = frozenset(key for key in writes if key[0] is not RegisterFile.PREDICATE)
    return {(file.value, number): "x" if (file, number) in reads and (file, number) in writes
            else "^" if (file, number) in writes else "v" for file, number in reads | writes
            if file is not RegisterFile.UNIFORM or number <= _LAST_MARKED}  # fmt: skip


def printed_alike(words: Words) -> Words:
    """Of words that differ only in control fields, one."""
    masked = words & ~CONTROL
    order = np.lexsort((masked[:, 0], masked[:, 1]))
    first = np.ones(len(order), bool)
    first[1:] = (masked[order][1:] != masked[order][:-1]).any(axis=1)
    return words[np.sort(order[first])]


def some(words: Words, most: int, sm: int) -> Words:
    """Of the words, those that the table lacks, those of ``fewer``, and so many others, chosen evenly. most: 0 for all
    words."""
    if not most or len(words) <= most:
        return printed_alike(words)
    unknown = words[decode(words, sm).unknown // 16]
    return printed_alike(unique(np.concatenate([unknown, fewer(words, 0), words[:: -(-len(words) // most)]])))


def _kept(kept: Path | None, ask: Callable[..., tuple[Counter[str], list[str]]], words: Words, *rest: Any) -> Any:
    """What a comparison says of words, from a folder where it has been made before by the same decoder and table."""
    if kept is None:
        return ask(words, *rest)
    made = hashlib.sha256(f"{ask.__name__} {rest} {_made_by(rest[1])}".encode() + words.tobytes()).hexdigest()
    path = kept / f"piece.{made}.json"
    if not path.exists():
        counts, examples = ask(words, *rest)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps([counts, examples]))
        unfinished.replace(path)
    counts, examples = json.loads(path.read_text())
    return Counter(counts), examples


@functools.cache
def _made_by(sm: int) -> str:
    """A digest of what a comparison depends on besides the words."""
    return f"{judged_files('corpus_sass')} {table_hash(sm)}"


def table_hash(sm: int) -> str:
    """The digest (SHA-256, in hex) of an architecture's table."""
    return hashlib.sha256((ROOT / "neutrino" / "sass" / "tables" / f"sm_{sm}.json").read_bytes()).hexdigest()


def tool_arch(sm: int) -> str:
    """What nvdisasm calls an architecture with all its instructions. sm: as 90."""
    return f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"


def judge(library: Library, most: int, most_roles: int, kept: Path | None = None) -> dict[str, Any]:
    """Compare a library, all of it or the most important part. kept: a folder for what was found. Returns its row of
    the results."""
    counts: Counter[str] = Counter()
    examples: list[str] = []
    sm, arch = library.sm, tool_arch(library.sm)
    words = some(library.words, most, sm)
    parts = [words[start : start + _CHUNK] for start in range(0, len(words), _CHUNK)]
    with ProcessPoolExecutor(2) as pool:
        results = pool.map(functools.partial(_kept, kept, differences), parts, [arch] * len(parts), [sm] * len(parts))
        for number, (more, texts_of) in enumerate(results):
            counts += more
            examples += texts_of
            if number % 10 == 9:
                print(f"{library.file}: {number + 1} of {len(parts)}, {dict(counts)}", file=sys.stderr, flush=True)
    branches, texts_of = _kept(kept, target_differences, words, arch, sm)
    examples += texts_of
    marked, texts_of = _kept(kept, role_differences, words, arch, sm, most_roles)
    examples += texts_of
    kinds: Counter[str] = Counter()
    for example in examples:
        kinds[example.partition(":")[0]] += 1
    return {
        "file": library.file, "sha256": library.sha256, "arch": f"sm_{sm}",
        "cubins": library.cubins, "kernels": library.kernels, "instructions": library.instructions,
        "different": len(library.words), "read": counts["read"],
        "refused_by_nvdisasm": counts["refused"], "unknown": counts["unknown"],
        **{name: counts[name] for name in (*_COMPARED, "predicate mask")},
        "targets": branches["targets"], "target": branches["target"],
        "roles": marked["roles"], "role": marked["role"], "roles_refused": marked["roles refused"],
        "examples": [example for example in examples[:200] if kinds[example.partition(":")[0]]],
    }  # fmt: skip


def _judged(library: Library, most: int, most_roles: int, kept: Path | None) -> dict[str, Any]:
    """``judge``, or its row of an earlier run with the same decoder and table."""
    if kept is None:
        return judge(library, most, most_roles)
    of = f"{library.sha256} {library.sm} {most} {most_roles} {_made_by(library.sm)}"
    path = kept / f"row.{hashlib.sha256(of.encode()).hexdigest()}.json"
    if not path.exists():
        path.write_text(json.dumps(judge(library, most, most_roles, kept)))
    row: dict[str, Any] = json.loads(path.read_text())
    return row


def verdicts(results: dict[str, Any]) -> list[str]:
    """What is wrong with recorded results, in words: differences, unknown instructions, or too small a corpus."""
    found = [
        f"{row['file']} {row['arch']}: {name}: {row[name]}" for row in results["rows"] for name in _WRONG if row[name]
    ]
    for arch in results["tables"]:
        if sum(row["read"] for row in results["rows"] if row["arch"] == arch) < _LEAST:
            found.append(f"fewer than {_LEAST:,} different instructions of {arch} were read")
    return found


def speed(words: Words, sm: int) -> dict[str, float]:
    """Megabytes of code a second of processor time, by ``decode``: the best of three."""
    words = np.resize(words, (1 << 18, 2))
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        Code(words, encoding(sm), "speed")
        best = min(best, time.process_time() - before)
    return {"bytes": float(words.nbytes), "seconds": round(best, 3), "mb_a_second": round(words.nbytes / best / 1e6, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare libraries. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.corpus_sass", description="The decoder against nvdisasm.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--arch", action="append", help="an architecture with a table; sm_90 without one")
    parser.add_argument("--out", type=Path, default=OUTPUT, help=f"the results; default: {OUTPUT.relative_to(ROOT)}")
    parser.add_argument("--words", type=Path, help="save the different instructions, and compare nothing")
    parser.add_argument(
        "--most", type=int, default=0, help="compare so many instructions of each file, and one of each form; 0 for all"
    )
    parser.add_argument("--roles", type=int, default=0, help="judge definitions and uses of so many forms; 0 for all")
    parser.add_argument("--kept", type=Path, help="a folder for what is found, from which a stopped run goes on")
    options = parser.parse_args(argv)
    sms = [int(arch.removeprefix("sm_")) for arch in options.arch or ["sm_90"]]
    if options.kept is not None:
        options.kept.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    collected: list[Words] = []
    try:
        for library in read_all(options.files, sms, options.kept):
            print(
                f"{library.file} sm_{library.sm}: {library.instructions} instructions, {len(library.words)} different",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            if options.words is not None or not collected:
                collected.append(library.words)
            if options.words is None:
                rows.append(_judged(library, options.most, options.roles, options.kept))
    except (NeutrinoError, OSError) as error:
        print(f"corpus-sass: {error}", file=sys.stderr)
        return 2
    if not collected:
        print(f"corpus-sass: no code for {', '.join(f'sm_{sm}' for sm in sms)} in these files", file=sys.stderr)
        return 2
    if options.words is not None:
        np.save(options.words, unique(np.concatenate(collected)))
        return 0
    argv = [str(find_tool("nvdisasm", "")), "--version"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    results = {
        **made_of("corpus_sass"), "tables": {f"sm_{sm}": table_hash(sm) for sm in sms},
        "nvdisasm": " ".join(version.split()[-2:]), "speed": speed(collected[0], int(rows[0]["arch"][3:])),
        "rows": rows,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save(options.out, results)
    print(f"written: {options.out}", file=sys.stderr)
    for row in rows:
        print(", ".join(f"{name} {row[name]}" for name in row if name not in {"examples", "sha256"}))
        print("\n".join(row["examples"][:20]))
    wrong = verdicts(results)
    for line in wrong:
        print(f"not met: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
