"""Learn the encoding of NVIDIA's machine code and write the tables of ``neutrino/sass/tables``.

    python -m bench.sass_tables ARCH CORPUS.npy [--base TABLE.json [--anew OPCODE]] [--out FILE]

CORPUS.npy: unique instructions of real kernels, [n, 2] of 64 bits, as ``python -m bench.corpus_sass --words`` saves
them. Nothing but NVIDIA's published tools says what a bit means: one bit of a real instruction is flipped, and what
``nvdisasm`` then prints tells whether it belongs to a register's number, to a modifier in the name, to an operand that
does not matter here (immediates, signs), or to none. Registers that an instruction defines and uses, and how many, are
those that ``nvdisasm -plr`` marks after each register field has got a number of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.nvdisasm_reading import Words, texts, unique, zero_numbers
from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Encoding
from neutrino.sass.fields import INSTRUCTION_BYTES
from tests.sass.learning import (
    Learned,
    ask,
    choose_samples,
    find_key,
    find_shapes,
    find_targets,
    flip,
    group,
    name_values,
)  # fmt: skip

_ROUNDS = 4
_MISSED = 2000
"""Instructions of an opcode that a table lacks, at most, of which each form is asked."""
TABLES = Path(__file__).resolve().parent.parent / "neutrino" / "sass" / "tables"


_NONE: Words = np.zeros((0, 2), np.uint64)


def by_opcode(words: Words) -> dict[int, Words]:
    """Instructions by their opcode."""
    opcodes = (words[:, 0] & np.uint64(0xFFF)).astype(int)
    return {int(opcode): words[opcodes == opcode] for opcode in np.unique(opcodes)}


def learn(words: Words, arch: str, only: Collection[int] = (), missed: Words = _NONE) -> list[Learned]:
    """Learn all opcodes of a corpus, or only some. missed: instructions of it of which samples are taken besides."""
    generator = np.random.default_rng(1)
    corpus = {opcode: own for opcode, own in by_opcode(words).items() if not only or opcode in only}
    chosen = {opcode: choose_samples(own, generator) for opcode, own in corpus.items()}
    for opcode, own in by_opcode(missed).items():
        chosen[opcode] = unique(np.concatenate([chosen[opcode], choose_samples(own, generator)]))
        corpus[opcode] = unique(np.concatenate([corpus[opcode], own[:_MISSED]]))
    readings = iter(ask(np.concatenate(list(chosen.values())), arch))
    table = []
    for opcode, samples in chosen.items():
        read = [next(readings) for _ in samples]
        good = [index for index, reading in enumerate(read) if reading is not None]
        if not good:
            _say(f"{opcode:03x}: nvdisasm reads none of {len(samples)}")
            continue
        table.append(Learned(opcode, samples[good], [reading for reading in read if reading is not None]))
    _say(f"{len(table)} opcodes, {sum(len(one.samples) for one in table)} samples")
    flip(table, arch)
    _say("bits flipped")
    for one in table:
        find_key(one, corpus[one.opcode])
    group(table, arch)
    _say("bits of the key grouped")
    name_values(table, corpus, arch)
    _say("names known")
    find_shapes(table, corpus, arch)
    _say("operands known")
    find_targets(table, arch)
    return table


def learn_all(
    words: Words, arch: str, base: dict[str, Any] | None = None, anew: Collection[int] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Learn a corpus, and again the opcodes of which the table that was made does not know all instructions.

    base: a stored table, of which the rows stay that know all of the corpus, but for the opcodes to learn anew. Returns
    the table as it is stored, and problems, in words.
    """
    some, barriers = fewer(words), count_barriers(words)
    problems: dict[int, list[str]] = {}

    def found(table: list[Learned]) -> dict[str, Any]:
        problems.update({one.opcode: one.problems for one in table})
        return as_json(table, arch, words, barriers)

    if base is None:
        made = found(learn(some, arch))
    else:
        made = merged(base, found(learn(some, arch, anew) if anew else []), barriers)
    missed = _NONE
    for _ in range(_ROUNDS):
        unknown = words[Code(words, Encoding(made), arch).unknown // INSTRUCTION_BYTES]
        # Data between functions is no instruction.
        few = np.concatenate([_NONE, *(own[:_MISSED] for own in by_opcode(unknown).values())])
        legal = few[[text is not None for text in texts(few, arch)]]
        before = len(missed)
        missed = unique(np.concatenate([missed, legal]))
        _say(f"{len(unknown)} words unknown, {len(legal)} of {len(few)} legal")
        again = set(by_opcode(legal))
        if not again or len(missed) == before:
            break
        own = missed[np.isin(missed[:, 0] & np.uint64(0xFFF), sorted(again))]
        made = merged(made, found(learn(some, arch, again, own)), barriers)
    return made, [f"{opcode:03x}: {text}" for opcode, texts_of in sorted(problems.items())
                  for text in list(dict.fromkeys(texts_of))[:4]]  # fmt: skip


def merged(table: dict[str, Any], newer: dict[str, Any], barriers: dict[int, tuple[int, int, int]]) -> dict[str, Any]:
    """A stored table with newer rows in place of its own, and the counts of another corpus."""
    shapes: dict[str, int] = {}
    rows: dict[str, Any] = {}
    for opcode in sorted({*table["opcodes"], *newer["opcodes"]}):
        source = newer if opcode in newer["opcodes"] else table
        row = dict(source["opcodes"][opcode])
        row["shapes"] = {key: shapes.setdefault(json.dumps(source["shapes"][number]), len(shapes))
                         for key, number in row["shapes"].items()}  # fmt: skip
        row["words"], row["write_barriers"], row["read_barriers"] = barriers.get(int(opcode, 16), (0, 0, 0))
        rows[opcode] = row
    return {**newer, "opcodes": rows, "shapes": [json.loads(shape) for shape in shapes]}


def fewer(words: Words, more: int = 500) -> Words:
    """One word for each setting of the bits that are not usually a register's, an immediate's or the control fields',
    and of each opcode so many more."""
    keys = words & np.array([0xFFE0_0000_0000_0FFF, 0x1FF_FFFF_FF00], np.uint64)
    order = np.lexsort((keys[:, 0], keys[:, 1]))
    first = np.ones(len(order), bool)
    first[1:] = (keys[order][1:] != keys[order][:-1]).any(axis=1)
    chosen = [order[first]]
    opcodes = (words[:, 0] & np.uint64(0xFFF)).astype(int)
    by_opcode = np.argsort(opcodes, kind="stable")
    for rows in np.split(by_opcode, np.flatnonzero(np.diff(opcodes[by_opcode])) + 1):
        chosen.append(rows[:: max(1, len(rows) // more)] if more else rows[:0])
    return words[np.unique(np.concatenate(chosen))]


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def as_json(table: list[Learned], arch: str, words: Words, barriers: dict[int, tuple[int, int, int]]) -> dict[str, Any]:
    """The tables as they are stored; ``neutrino/sass/encoding.py`` says what each part means."""
    shapes: dict[Any, int] = {}
    rows = {}
    for one in sorted(table, key=lambda one: one.opcode):
        fields = sorted(one.fields)
        count, writes, reads = barriers[one.opcode]
        groups = [(bits, values) for bits, values in one.groups]
        rows[f"{one.opcode:03x}"] = {
            "name": one.base, "guard": one.guard,
            "words": count, "write_barriers": writes, "read_barriers": reads,
            "fixed": [f"{one.fixed[0]:x}", f"{one.fixed[1]:x}"],
            "fields": [[kind, at, one.fields[kind, at], int((kind, at) in one.inverted)] for kind, at in fields]
            + [[kind, at, one.fields[kind, at], 0, 1] for kind, at in one.followed],
            "groups": [[list(bits), {str(number): list(names) for number, names in sorted(values.items())}]
                       for bits, values in groups],
            "ranks": [list(rank) for rank in one.ranks],
            "names": {str(_joined(range(len(form)), one, form)): name for form, name in sorted(one.names.items())}
            if one.misnamed else {},
            "target": one.target,
            "shaped_by": [bit for index in one.shape_groups for bit in one.groups[index][0]],
            "shapes": {
                str(_joined(one.shape_groups, one, key)): shapes.setdefault(shape, len(shapes))
                for key, shape in sorted(one.shapes.items())
            },
        }  # fmt: skip
    return {
        "generated": "by python -m bench.sass_tables: do not edit", "arch": arch, "words": len(words),
        "zero_uniform": zero_numbers(arch)["UR"], "opcodes": rows,
        "shapes": [{"operands": [list(operand) for operand in operands], "bytes": size} for operands, size in shapes],
    }  # fmt: skip


def _joined(groups: Iterable[int], one: Learned, key: tuple[int, ...]) -> int:
    """The values of some groups as one number, the first group's bits the lowest."""
    number, shift = 0, 0
    for index, part in zip(groups, key, strict=True):
        number |= part << shift
        shift += len(one.groups[index][0])
    return number


def count_barriers(words: Words) -> dict[int, tuple[int, int, int]]:
    """By opcode: instructions, those that set a write barrier, and those that set a read barrier."""
    opcodes = (words[:, 0] & np.uint64(0xFFF)).astype(int)
    write = (words[:, 1] >> np.uint64(110 - 64) & np.uint64(7)) != np.uint64(7)
    read = (words[:, 1] >> np.uint64(113 - 64) & np.uint64(7)) != np.uint64(7)
    counts = [np.bincount(opcodes[rows], minlength=1 << 12) for rows in (np.ones(len(words), bool), write, read)]
    return {opcode: (int(counts[0][opcode]), int(counts[1][opcode]), int(counts[2][opcode]))
            for opcode in np.flatnonzero(counts[0]).tolist()}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Learn a table and write it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.sass_tables", description=__doc__)
    parser.add_argument("arch")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--base", type=Path, help="a stored table: only opcodes of which it does not know all of the corpus are learned"
    )
    parser.add_argument(
        "--anew", type=lambda text: int(text, 16), action="append", default=[], metavar="OPCODE",
        help="learn this opcode, as 981, whatever the table of --base knows of it",
    )  # fmt: skip
    options = parser.parse_args(argv)
    words = unique(np.load(options.corpus))
    _say(f"{len(words)} words")
    base = None if options.base is None else json.loads(options.base.read_text())
    table, problems = learn_all(words, options.arch, base, options.anew)
    print(*problems, sep="\n" if problems else "")
    path = options.out or TABLES / f"{options.arch.removesuffix('a')}.json"
    text = json.dumps(table, separators=(",", ":")).replace('},"', '},\n"').replace("},{", "},\n{")
    path.write_text(text + "\n")
    counts = f"{len(table['opcodes'])} opcodes, {len(table['shapes'])} shapes, {len(text)} bytes"
    print(f"{path}: {counts}, {len(problems)} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
