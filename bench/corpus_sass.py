"""Hold the decoder of machine code against ``nvdisasm``, over whole libraries: ``make corpus-sass LIBRARIES='…'``.

    python -m bench.corpus_sass [--arch sm_90] [--out FILE] [--words FILE.npy] [--most N] [--roles N] FILE…

FILE…: wheels, shared libraries or cubins. Every different instruction of every kernel of the architecture is printed by
``nvdisasm`` and decoded here, and the two must say the same: the full name, the guard, every register in the order of
the text, how many operands are kept for the next instruction, and where a branch goes. Of each form (and each different
setting of the bits above the operands) one instruction's definitions and uses must be those that ``nvdisasm -plr``
marks. Prints the figures and writes ``bench/results/corpus_sass.json``: counts, digests and the first differences;
nothing of the libraries themselves. Exit status: 0 without a difference or an unknown instruction, 1 with, 2 when a
file cannot be read. ``--words`` saves the different instructions instead, for ``bench.sass_tables``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.check_corpus import libraries
from bench.nvdisasm_reading import DEFAULTS, Reading, Roles, Words, parse, reused, roles, texts, unique
from bench.recorded import save
from bench.sass_tables import fewer
from bench.tree import ROOT, made_of
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import STO_CUDA_ENTRY, function_symbols, open_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import encoding
from neutrino.sass.instruction import Flow, Instruction, RegisterFile
from neutrino.toolchain.location import find_tool

RESULTS = ROOT / "bench" / "results" / "corpus_sass.json"
_CHUNK = 20_000
_EXAMPLES = 5
_MERGE = 8_000_000
_PREDICATE_LIST = re.compile(r"\bPR\b")
_ADDRESS = re.compile(r"(?<![\w\[])-?0x[0-9a-f]+$")
_BIG = 1 << 63
_COMPARED = ("name", "guard", "registers", "reuse")
_WRONG = ("unknown", *_COMPARED, "predicate mask", "target", "role")
"""What a row of results counts, and should be none."""


@dataclass
class Library:
    """The instructions of one file for one architecture. words: each different one once."""

    file: str
    sha256: str
    cubins: int = 0
    kernels: int = 0
    instructions: int = 0
    words: Words = field(default_factory=lambda: np.zeros((0, 2), np.uint64))


def read_library(path: Path, sm: int) -> Library:
    """Collect the instructions of a shared library or cubin. sm: 90 takes sm_90 and sm_90a. Raises FormatError."""
    found = Library(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    parts: list[Words] = []
    waiting = 0
    for container in read_file(path):
        for image in container.images:
            if image.kind is not ImageKind.CUBIN or re.fullmatch(rf"sm_{sm}[af]?", image.arch) is None:
                continue
            elf = open_cubin(image.data, f"{path.name} {image.arch}")
            found.cubins += 1
            found.kernels += sum(bool(symbol.other & STO_CUDA_ENTRY) for symbol in function_symbols(elf))
            for section in elf.sections:
                if section.name.startswith(".text."):
                    words = np.frombuffer(bytes(elf.contents(section)), "<u8").reshape(-1, 2)
                    found.instructions += len(words)
                    waiting += len(words)
                    parts.append(words)
            if waiting > _MERGE:
                parts, waiting = [unique(np.concatenate(parts))], 0
    if parts:
        found.words = unique(np.concatenate(parts))
    return found


def read_all(paths: Sequence[Path], sm: int) -> Iterator[Library]:
    """Every library in these files that has code for the architecture. Raises FormatError, OSError."""
    for path in paths:
        if zipfile.is_zipfile(path):
            with tempfile.TemporaryDirectory(prefix="corpus_sass_") as folder:
                for library in libraries(path, Path(folder)):
                    try:
                        found = read_library(library, sm)
                    except FormatError:
                        # Libraries without device code, and those that only the CPU runs.
                        continue
                    finally:
                        library.unlink()
                    if found.instructions:
                        yield found
        else:
            yield read_library(path, sm)


def said(reading: Reading, text: str) -> tuple[Any, ...]:
    """What is compared of nvdisasm's text, but for branches' targets."""
    return ".".join(reading.fragments), reading.guard, reading.registers, reused(text)


def decoded(one: Instruction) -> tuple[Any, ...]:
    """The same of a decoded instruction."""
    guard = ""
    if one.guard is not None:
        letter = one.guard.file.value
        guard = f"@{'!' if one.guard.negated else ''}{letter}{'T' if one.guard.number == 7 else one.guard.number}"
    registers = [(operand.file.value, operand.number) for operand in one.operands
                 if not (operand.file is RegisterFile.PREDICATE and one.opcode in {0x803, 0x804})]  # fmt: skip
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
            one, reading = code[index], parse(text, {**DEFAULTS, "UR": code.zero_uniform})
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
        for _, at, width, _ in opcode.row["fields"]:
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
            else "^" if (file, number) in writes else "v" for file, number in reads | writes}  # fmt: skip


def some(words: Words, most: int) -> Words:
    """Of the words, those of ``fewer``, and so many others, chosen evenly. most: 0 for all words."""
    if not most or len(words) <= most:
        return words
    return unique(np.concatenate([fewer(words), words[:: -(-len(words) // most)]]))


def judge(library: Library, sm: int, arch: str, most: int, most_roles: int) -> dict[str, Any]:
    """Compare a library, all of it or the most important part. Returns its row of the results."""
    counts: Counter[str] = Counter()
    examples: list[str] = []
    words = some(library.words, most)
    parts = [words[start : start + _CHUNK] for start in range(0, len(words), _CHUNK)]
    with ProcessPoolExecutor(2) as pool:
        for number, (more, texts_of) in enumerate(pool.map(differences, parts, [arch] * len(parts), [sm] * len(parts))):
            counts += more
            examples += texts_of
            if number % 20 == 19:
                print(f"{library.file}: {number + 1} of {len(parts)}, {dict(counts)}", file=sys.stderr, flush=True)
    branches, texts_of = target_differences(words, arch, sm)
    examples += texts_of
    marked, texts_of = role_differences(words, arch, sm, most_roles)
    examples += texts_of
    kinds: Counter[str] = Counter()
    for example in examples:
        kinds[example.partition(":")[0]] += 1
    return {
        "file": library.file, "sha256": library.sha256, "cubins": library.cubins, "kernels": library.kernels,
        "instructions": library.instructions, "different": len(library.words), "read": counts["read"],
        "refused_by_nvdisasm": counts["refused"], "unknown": counts["unknown"],
        **{name: counts[name] for name in (*_COMPARED, "predicate mask")},
        "targets": branches["targets"], "target": branches["target"],
        "roles": marked["roles"], "role": marked["role"], "roles_refused": marked["roles refused"],
        "examples": [example for example in examples[:200] if kinds[example.partition(":")[0]]],
    }  # fmt: skip


def verdicts(results: dict[str, Any]) -> list[str]:
    """What is wrong with recorded results, in words: differences, unknown instructions, or too small a corpus."""
    found = [f"{row['file']}: {name}: {row[name]}" for row in results["rows"] for name in _WRONG if row[name]]
    if sum(row["different"] for row in results["rows"]) < 1000:
        found.append("fewer than 1000 different instructions were read")
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
    parser.add_argument("--arch", default="sm_90", help="an architecture with a table")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--words", type=Path, help="save the different instructions, and compare nothing")
    parser.add_argument(
        "--most", type=int, default=0, help="compare so many instructions of each file, and one of each form; 0 for all"
    )
    parser.add_argument("--roles", type=int, default=0, help="judge definitions and uses of so many forms; 0 for all")
    options = parser.parse_args(argv)
    sm = int(options.arch.removeprefix("sm_"))
    tool_arch = f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"
    try:
        found = list(read_all(options.files, sm))
    except (NeutrinoError, OSError) as error:
        print(f"corpus-sass: {error}", file=sys.stderr)
        return 2
    if options.words is not None:
        np.save(options.words, unique(np.concatenate([library.words for library in found])))
        return 0
    rows = []
    for library in found:
        print(f"{library.file}: {library.instructions} instructions, {len(library.words)} different", file=sys.stderr)
        rows.append(judge(library, sm, tool_arch, options.most, options.roles))
    argv = [str(find_tool("nvdisasm", "")), "--version"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    table = ROOT / "neutrino" / "sass" / "tables" / f"sm_{sm}.json"
    results = {
        **made_of("corpus_sass"), "arch": options.arch, "table": hashlib.sha256(table.read_bytes()).hexdigest(),
        "nvdisasm": " ".join(version.split()[-2:]), "speed": speed(found[0].words, sm),
        "rows": rows,
    }  # fmt: skip
    save(options.out, results)
    for row in rows:
        print(", ".join(f"{name} {row[name]}" for name in row if name not in {"examples", "sha256"}))
        print("\n".join(row["examples"][:20]))
    wrong = verdicts(results)
    for line in wrong:
        print(f"not met: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
