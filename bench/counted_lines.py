"""Each PTX instruction of a kernel beside the machine instructions that ptxas made of it, with executions of both.

ptxas says which: a copy of the PTX in which every instruction has a line number of its own is assembled with
``-lineinfo``, and ``nvdisasm -g`` names the number of each machine instruction. The code of the copy has to be that of
the program's image, byte for byte, and that which Nsight Compute saw, so that executions by address are the copy's.

Executions of the PTX side are counted by a probe at branches and at instructions with a predicate: all others are
executed as often as what stands before them, less who left there, and more by who came to a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from bench.counted_groups import machine_opcode
from neutrino.ptx.isa.instruction import Instruction, read_instruction
from neutrino.ptx.text.module import Kind, Module
from neutrino.ptx.text.source import LOCATION

Json = Any

# In order: blocks, labels, and statements, of which those that begin with a dot are directives.
_TOKEN = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|\.[^;]*;|(?P<statement>[^\s;][^;]*);)", re.ASCII
)
_LEAVES = frozenset({"bra", "ret", "exit", "trap"})
_ELSEWHERE = frozenset({"call", "brx"})

# What nvdisasm -g prints.
_FUNCTION = re.compile(r"\.text\.([\w$]+):\Z")
_LINE = re.compile(r'//## File "[^"]*", line (\d+)')
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")


def probe_text(cap: int) -> str:
    """A probe that keeps the sites of taken branches and of instructions whose predicate held, up to cap a thread."""
    return f'''# Which branches each thread takes, and which instructions with a predicate it executes.
[map.Sites]
type = "array"
level = "thread"
size = 2
cap = {cap}
data = {{ site = "u16" }}

[probe.taken]
position = "bra | * @"
level = "thread"
before = """
.reg .u32 %number;
.reg .u16 %site;
mov.u32 %number, SITE;
cvt.u16.u32 %site, %number;
SAVE [ Sites ] {{ %site }};
"""
'''


LENGTH = 48
"""Characters of an instruction that results keep."""


class UnlikeError(Exception):
    """Two listings that are to be of one kernel are not."""


@dataclass(frozen=True)
class Line:
    """One PTX instruction.

    statement: its words, a space between them. start: in the module's text. target: the place of the instruction that a
    branch goes to.
    """

    instruction: Instruction
    statement: str
    start: int
    target: int | None = None

    @property
    def text(self) -> str:
        """``@%p1 bra $L1``, cut off behind the first operands."""
        return self.statement[:LENGTH]


@dataclass(frozen=True)
class Listing:
    """A kernel's PTX instructions in order, and its machine instructions in order, each with the place of its line.

    That is of the PTX instruction in ``lines``; -1: of none.
    """

    name: str
    lines: tuple[Line, ...]
    machine: tuple[tuple[str, int], ...]


def executions(rows: Sequence[tuple[str, bool, int | None]], threads: int, sites: Sequence[int]) -> list[int]:
    """How many threads execute each PTX instruction. Those who come to the end of the text end there.

    rows: opcode, whether it has a predicate, the place that it branches to. threads: of the launch. sites: how many
    executed each counted instruction, in order. Raises UnlikeError where these cannot be one kernel's numbers.
    """
    counted = [place for place, (opcode, guarded, _) in enumerate(rows) if guarded or opcode.split(".")[0] == "bra"]
    if len(sites) != len(counted):
        raise UnlikeError(f"{len(sites)} sites for {len(counted)} instructions")
    taken = dict(zip(counted, sites, strict=True))
    came = [0] * (len(rows) + 1)
    for place, (_, _, target) in enumerate(rows):
        if target is not None:
            came[target] += taken[place]
    found = []
    here = threads
    for place, (opcode, guarded, _) in enumerate(rows):
        here += came[place]
        count = taken.get(place, here)
        if not 0 <= count <= here or (not guarded and count != here):
            raise UnlikeError(f"instruction {place} is executed {count} times, and {here} come to it")
        found.append(count)
        if opcode.split(".")[0] in _LEAVES:
            here -= count
    return found


def read_lines(module: Module) -> dict[str, tuple[Line, ...]]:
    """The instructions of each kernel. Those that call functions or branch by tables are left out."""
    found = {}
    for entry in module.entries:
        if entry.body is None:
            continue
        lines = tuple(_lines(module.code, entry.body[0] + 1, entry.body[1] - 1))
        if not any(line.instruction.parts[0] in _ELSEWHERE for line in lines):
            found[entry.name] = lines
    return found


def _lines(code: str, start: int, end: int) -> list[Line]:
    found: list[tuple[Instruction, str, int]] = []
    blocks = [0]  # Those that are open, from the outside in, by their number.
    within: list[tuple[int, ...]] = []
    labels: dict[tuple[int, str], int] = {}
    count = 0
    for token in _TOKEN.finditer(code, start, end):
        if token["brace"] == "{":
            count += 1
            blocks.append(count)
        elif token["brace"] == "}":
            blocks.pop()
        elif token["label"]:
            labels[blocks[-1], token["label"]] = len(found)
        elif token["statement"]:
            instruction = read_instruction(token["statement"])
            if instruction is not None:
                found.append((instruction, " ".join(token["statement"].split()), token.start("statement")))
                within.append(tuple(blocks))
    return [Line(*entry, _target(entry[0], open_, labels)) for entry, open_ in zip(found, within, strict=True)]


def _target(instruction: Instruction, blocks: Sequence[int], labels: Mapping[tuple[int, str], int]) -> int | None:
    """A label is known in its block and those inside; the innermost counts."""
    if instruction.parts[0] != "bra":
        return None
    name = instruction.operands[0]
    return next(labels[block, name] for block in reversed(blocks) if (block, name) in labels)


def numbered(module: Module, kernels: Mapping[str, Sequence[Line]]) -> str:
    """The module's text with a line number before each instruction of the kernels, from 1 on in each, and no other."""
    edits = [(match.start(), match.end(), "") for match in LOCATION.finditer(module.text)]
    for statement in module.statements:
        if statement.kind in {Kind.FILE, Kind.SECTION}:
            edits.append((statement.start, statement.end, ""))
        if statement.kind is Kind.ADDRESS_SIZE:
            edits.append((statement.end, statement.end, '\n.file 1 "kernel.ptx"'))
    for lines in kernels.values():
        edits += [(line.start, line.start, f"\n.loc 1 {number} 0\n") for number, line in enumerate(lines, 1)]
    edits.sort()
    pieces = []
    at = 0
    for start, end, text in edits:
        if start < at:
            continue  # Line information inside a debug section, which is gone.
        pieces += [module.text[at:start], text]
        at = end
    return "".join((*pieces, module.text[at:]))


def read_code(cubin: Path) -> dict[str, bytes]:
    """The machine code of each kernel of an image. {} where the file is none."""
    try:
        with cubin.open("rb") as file:
            return {
                section.name.removeprefix(".text."): section.data()
                for section in ELFFile(file).iter_sections() if section.name.startswith(".text.")
            }  # fmt: skip
    except (ELFError, OSError):
        return {}


def read_machine(text: str) -> dict[str, list[tuple[str, int]]]:
    """Of each function in what ``nvdisasm -g`` printed: the machine instructions and their line, 0 without one."""
    found: dict[str, list[tuple[str, int]]] = {}
    here: list[tuple[str, int]] | None = None
    line = 0
    for row in text.splitlines():
        row = row.strip()
        if row.startswith((".text.", ".section", "//-----")):
            function = _FUNCTION.match(row)
            here, line = (found.setdefault(function[1], []) if function else None), 0
        elif here is not None:
            place, code = _LINE.match(row), _CODE.match(row)
            if place:
                line = int(place[1])
            elif code:
                here.append((code[2], line))
    return found


def listings(module: Module, cubin: Path, disassembly: str, images: Sequence[Path]) -> list[Listing]:
    """What the numbered copy of a module tells of each kernel that is in one of the images, byte for byte.

    cubin: the copy assembled; disassembly: what ``nvdisasm -g`` printed of it.
    """
    code, machine = read_code(cubin), read_machine(disassembly)
    real = [read_code(image) for image in images]
    return [
        Listing(name, lines, tuple((text, line - 1) for text, line in machine[name]))
        for name, lines in read_lines(module).items()
        if name in code and any(image.get(name) == code[name] for image in real)
    ]


def is_of(listing: Listing, texts: Sequence[str]) -> bool:
    """Whether what Nsight Compute listed is the code of a listing."""
    return [machine_opcode(text) for text, _ in listing.machine] == [machine_opcode(text) for text in texts]


def join(found: Sequence[Listing], profiles: Sequence[Json], probed: Sequence[Json]) -> list[Json]:
    """Each profiled launch with its instructions on both sides, in plain numbers.

    profiles: ``counted_ncu.Profile`` as a mapping. probed: launches of the run with the probe of this module. Of each
    machine instruction: text, line, threads that executed it with the predicate on.
    """
    rows = []
    for index, profile in enumerate(profiles):
        name = profile["kernel"]
        before = sum(other["kernel"] == name for other in profiles[:index])
        texts = [row[0] for row in profile["rows"]]
        listing = next((listing for listing in found if listing.name == name and is_of(listing, texts)), None)
        launches = [launch for launch in probed if launch["kernel"] == name]
        row: Json = {"kernel": name}
        if listing is None:
            row["why"] = "no text from which the assembler makes the code that ran"
        else:
            row["ptx"] = [line.text if line.target is None else [line.text, line.target] for line in listing.lines]
            on = [counts[-1] for _, *counts in profile["rows"]]
            row["machine"] = [
                [text[:LENGTH], line, count] for (text, line), count in zip(listing.machine, on, strict=True)
            ]
        if before < len(launches):
            row |= {name: launches[before].get(name) for name in ("grid", "block", "sites", "dropped")}
        rows.append(row)
    return rows


def to_json(result: Json) -> str:
    """One kernel a line."""
    return json.dumps(result, separators=(",", ":")).replace('{"kernel"', '\n{"kernel"') + "\n"
