"""docs/opcodes.md, from the table of opcodes."""

from __future__ import annotations

from neutrino.probing.model import CLASSES
from neutrino.ptx.isa.opcodes import FIRST_PARTS, OPCODES, Measure, Opcode, Role, in_class

_PAGE = """\
# Instructions of PTX, as probes see them

Written by `python docs/opcodes_page.py` from the table in `neutrino/ptx/isa/opcodes.py`, which tracepoints,
operands and the verifier of snippets read. [probes.md](probes.md) says what the helpers mean.

{count} rows hold every instruction of chapter 9 of the PTX ISA 9.0 manual: the {keywords} keywords that its section
4.3.1 lists, and `clusterlaunchcontrol`. `ptxas` 13.0 judges them (`tests/ptx/test_opcodes.py`): of each row at least
one instruction is assembled with a probe that reads all that it has, what it lacks is refused, and the version and the
architecture since which there is one are the first that `ptxas` takes (it takes PTX from 6.3 and architectures from
sm_75 on; older ones are the manual's word).

| what is not there, or not so | why |
| --- | --- |
{gaps}

## Classes
| class | instructions |
| --- | --- |
{classes}

## Instructions
since: version of PTX and first architecture. inputs, in the order of `IN1` …: `v` a value, `a` an address (`ADDR` where
the column says so), `p` a predicate, `c` a constant, `n` a number of bytes, `o` an object and coordinates, `d` an
instruction descriptor, `l` a label or function; `?` may be absent, `*` any number of them. `OUT`: `yes`, `pair` (the
first of two), `later` (asynchronous).

{sections}
"""

_GAPS = (
    ("`shfl` and `vote` without `.sync`", "in the table; there is no code for them from sm_70 on, so nothing judges"),
    ("instructions of PTX ISA 9.1 and later",
     "not in the table; patterns find them by their opcode, helpers but `PRED`, `LANES` and `SITE` are refused"),
    ("operands of 128 bits", "no register of a probe holds them; refused"),
    ("`OUT` of asynchronous instructions", "not there yet when the next instruction runs; refused"),
    ("`ADDR` and `BYTES` of textures and tensor copies, `ADDR` of surfaces",
     "an object and coordinates name the memory; of such an operand `IN1.0` is what names the object, `IN1.1` … the "
     "coordinates"),
    ("`BYTES` of `sust.p`", "the surface's format says it; refused"),
    ("`BYTES` of bulk copies with `.cp_mask`", "the bytes named, not those that the mask lets through"),
    ("`a.h10`, `b.b3210` of video instructions on several parts",
     "a choice of parts is no value; refused. `a.b1` and `a.h0` of the others are values"),
    ("`OPS` of sparse products", "with the full depth that the shape names, zeros included"),
    ("`ADDR` of `tcgen05` instructions", "an address in tensor memory, where they have one"),
    ("names of textures, surfaces, functions and labels", "have no value; refused"),
)  # fmt: skip

_LETTERS = {
    Role.SOURCE: "v", Role.PREDICATE: "p", Role.CONSTANT: "c", Role.SIZE: "n", Role.DESCRIPTOR: "d", Role.ADDRESS: "a",
    Role.OTHER_ADDRESS: "a", Role.OBJECT: "o", Role.LABEL: "l",
}  # fmt: skip

_BYTES = {
    Measure.ACCESS: "type × vector",
    Measure.COPY: "those read",
    Measure.MATRIX: "matrix / 32",
    Measure.FRAGMENT: "4 × registers",
}

_OPERATIONS = {
    Measure.WARP: "2·m·n·k / 32",
    Measure.WARPGROUP: "2·m·n·k / 128",
    Measure.DESCRIPTOR: "2·m·n·k by the descriptor",
}

_HEAD = (
    "| instruction | since | OUT | inputs | ADDR | BYTES | OPS |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)  # fmt: skip


def page() -> str:
    """The whole page."""
    classes = "\n".join(
        f"| `{group}` | {', '.join(_name(opcode) for opcode in in_class(group))} |" for group in CLASSES
    )
    sections = []
    for section in dict.fromkeys(opcode.section for opcode in OPCODES):
        rows = [_row(opcode) for opcode in OPCODES if opcode.section == section]
        sections.append("\n".join([f"### {section}", _HEAD, *rows]))
    gaps = "\n".join(f"| {what} | {why} |" for what, why in _GAPS)
    return _PAGE.format(
        count=len(OPCODES),
        keywords=len(FIRST_PARTS) - 1,
        gaps=gaps,
        classes=classes,
        sections="\n\n".join(sections),
    )


def _name(opcode: Opcode) -> str:
    text = opcode.text.replace("|", "\\|")
    return f"`{text}`"


def _row(opcode: Opcode) -> str:
    words = opcode.syntax.split()[opcode.destinations :]
    inputs = " ".join(_LETTERS[Role(word.rstrip("?*"))] + word[len(word.rstrip("?*")) :] for word in words)
    result = ""
    if opcode.destinations:
        result = "pair" if opcode.operands[0] is Role.DESTINATION_PAIR else "yes"
        result = "later" if opcode.asynchronous else result
    size = "an operand" if Role.SIZE in opcode.operands else _BYTES.get(opcode.measure, "") if opcode.measure else ""
    operations = _OPERATIONS.get(opcode.measure, "") if opcode.measure else ""
    since = f"{opcode.version[0]}.{opcode.version[1]} {opcode.architecture}"
    address = "yes" if Role.ADDRESS in opcode.operands else ""
    return "| " + " | ".join((_name(opcode), since, result, inputs, address, size, operations)) + " |"


if __name__ == "__main__":
    print(page(), end="")
