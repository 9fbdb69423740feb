"""Machine code as a text that assembles to the same bytes: with labels, symbols and source lines.

It is a view. Every instruction whose text an assembler would encode in another way is a ``.long`` with its text beside
it: older compilers leave bits differently that do not matter, and padding may decode to anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.gcn.code import Function, Instruction, Module, wave_features
from neutrino.gcn.llvm import TRIPLE, WORD, AssemblyError, Llvm

_PLAIN_NAME = re.compile(r"(?!\.L)[A-Za-z_.$][\w.$]*", re.ASCII)
_REGISTER_LIKE = re.compile(
    r"(s|v|a|ttmp)\d+|m0|null|off|scc|(vcc|exec|tba|tma|flat_scratch|xnack_mask|src)\w*|lit\w*|abs|neg|sext|hwreg|sendmsg|depctr",
    re.IGNORECASE,
)
"""Names that an operand would not be read as a symbol by."""
_MOST_ENCODINGS = 500_000
_LEAST_FILL = 8
"""Equal words, such as ``s_nop`` in padding, that become one line."""
_SHORT_BRANCH_BUG, _ASIDE = "gfx101", 0x3F
"""On these an assembler puts an ``s_nop`` behind a branch of that many words, if it knows where it leads."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What is written beside the code.

    symbols: names by address, of what is not code. sources: ``FILE:LINE`` by address, which hold up to the next.
    comments: lines in front of a function, by its name. names: how to show a function's name, beside the mangled one.
    """

    symbols: Mapping[int, str] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)
    comments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


class Encodings:
    """What texts of single instructions assemble to: kept, since most occur more than once and in many code objects."""

    def __init__(self, llvm: Llvm) -> None:
        """Set up an empty cache of what texts of instructions assemble to. llvm: assembles them."""
        self._llvm = llvm
        self._known: dict[tuple[str, str], dict[str, bytes]] = {}

    def of(self, sizes: Mapping[str, int], processor: str, features: str) -> Mapping[str, bytes]:
        """Return the bytes of each text, none for one that the assembler refuses; others are there too.

        sizes: of the instructions that the texts are of, in bytes. processor, features: as ``Llvm.assemble``.
        """
        known = self._known.setdefault((processor, features), {})
        if len(known) > _MOST_ENCODINGS:
            known.clear()
        missing = [text for text in sizes if text not in known]
        self._assemble(missing, sizes, processor, features, known)
        return known

    def _assemble(
        self, texts: Sequence[str], sizes: Mapping[str, int], processor: str, features: str, known: dict[str, bytes]
    ) -> None:
        """Assemble texts together, and add what they give to ``known``."""
        if not texts:
            return
        refused: set[int] = set()
        try:
            code = self._llvm.assemble("\n".join(texts), processor, features)
        except AssemblyError as error:
            refused = {complaint.line - 1 for complaint in error.complaints if 0 < complaint.line <= len(texts)}
            code = None
        if code is not None and len(code) == sum(sizes[text] for text in texts):
            at = 0
            for text in texts:
                known[text] = code[at : at + sizes[text]]
                at += sizes[text]
        elif len(texts) == 1:
            # Another size than that of the instruction, or refused.
            known[texts[0]] = code or b""
        elif refused:
            known.update((texts[index], b"") for index in refused)
            rest = [text for index, text in enumerate(texts) if index not in refused]
            self._assemble(rest, sizes, processor, features, known)
        else:
            middle = len(texts) // 2
            self._assemble(texts[:middle], sizes, processor, features, known)
            self._assemble(texts[middle:], sizes, processor, features, known)


def listing(
    module: Module, target: str, encodings: Encodings, notes: Notes | None = None, *, only: Iterable[str] | None = None
) -> Iterator[str]:
    """Yield the lines of a module's text, without line ends.

    target: the target id, such as ``gfx942:sramecc+``. encodings: whose LLVM's texts the module has. only: names of
    functions; others, and what is between them, are left out.
    """
    chosen = None if only is None else set(only)
    functions = [function for function in module.functions if chosen is None or function.name in chosen]
    yield f'\t.amdgcn_target "{TRIPLE}--{target}"'
    if functions:
        yield from _Writer(module, functions, encodings, notes or Notes()).lines()


class _Writer:
    """Writes the functions of a listing. The first one's wave is that of the listing: instructions of functions with
    another wave are data where that makes a difference."""

    def __init__(self, module: Module, functions: Sequence[Function], encodings: Encodings, notes: Notes) -> None:
        """Prepare to write functions as assembly text. functions: in the order of their addresses, not empty."""
        self._functions = functions
        self._notes = notes
        self._base = functions[0].address
        self._processor = module.processor
        waves = [function.wave for function in functions if function.is_kernel] or [functions[0].wave]
        self._features = wave_features(module.processor, module.features, waves[0])
        self._wave = waves[0]
        self._labels = self._labels_of()
        sizes = {
            instruction.text: instruction.size
            for function in functions
            for instruction in function.instructions
            if instruction.text
        }
        self._encodings = encodings.of(sizes, module.processor, self._features)

    def lines(self) -> Iterator[str]:
        """Yield the lines of all functions."""
        if self._features:
            yield f"\t; assembled with -mattr={self._features}"
        yield "\t.text"
        yield "\t.p2align 8"
        starts = {function.address for function in self._functions} | self._inside
        outside = {address: name for address, name in self._labels.items() if address not in starts}
        for address, name in sorted(outside.items()):
            yield f"\t.set {name}, .Ltext{address - self._base:+#x}"
        if outside:
            yield ".Ltext:"
        previous: Function | None = None
        for function in self._functions:
            if previous is None or function.address >= previous.address + len(previous.code):
                yield from self._function(function)
            else:
                # A second name of the same code.
                yield f"\t.set {_symbol(function)}, {_symbol(previous)}"
            previous = function

    def _function(self, function: Function) -> Iterator[str]:
        """Yield the lines of one function: comments, its name as a label, and its instructions."""
        name = _symbol(function)
        if function.name:
            yield ""
            shown = self._notes.names.get(function.name, function.name)
            if shown != function.name or name.startswith(".L"):
                yield f"\t; {_comment(shown)}"
            for line in self._notes.comments.get(function.name, ()):
                yield f"\t; {_comment(line)}"
            if function.refused:
                yield f"\t; cannot be probed: {_comment(function.refused)}"
            if function.is_kernel and not name.startswith(".L"):
                yield f"\t.globl {name}"
            yield f"\t.type {name},@function"
            yield f"{name}:"
            yield from self._body(function)
            yield f"\t.size {name}, .-{name}"
        else:
            yield ""
            yield from self._body(function)

    def _body(self, function: Function) -> Iterator[str]:
        """Yield the instructions with their labels, and the lines of source code that they come from."""
        sources, labels = self._notes.sources, self._labels
        literals = {
            at: (literal, half)
            for literal in function.literals
            for half, at in (("lo", literal.low), ("hi", literal.high))
            # The two halves of a literal of 64 bits are written as one.
            if half == "lo" or literal.high != literal.low + WORD
        }
        get_pcs = {instruction.offset: instruction.end for instruction in function.instructions}
        skip_to = 0
        for index, instruction in enumerate(function.instructions):
            address = function.address + instruction.offset
            if (source := sources.get(address)) is not None:
                yield f"\t; {_comment(source)}"
            if instruction.offset and address in labels:
                yield f"{labels[address]}:"
            if instruction.offset < skip_to:
                continue
            if (end := self._run(function, index)) is not None:
                words = (end - instruction.offset) // WORD
                value = int.from_bytes(function.code[instruction.offset : instruction.offset + WORD], "little")
                said = f"\t; {instruction.text}" if instruction.text else ""
                yield f"\t.fill {words}, {WORD}, {value:#x}{said}"
                skip_to = end
                continue
            literal = literals.get(instruction.offset + WORD)
            if literal is not None:
                row, half = literal
                relocation = "rel64" if row.high == row.low + WORD else f"rel32@{half}"
                place = (row.low if half == "lo" else row.high) - get_pcs[row.get_pc]
                operands = ", ".join(instruction.operands[:2])
                yield f"\t{instruction.mnemonic} {operands}, {labels[row.target]}@{relocation}+{place}"
            elif instruction.target is not None and self._is_named(function, instruction):
                operands = ", ".join((*instruction.operands[:-1], labels[function.address + instruction.target]))
                yield f"\t{instruction.mnemonic} {operands}"
            else:
                yield self._plain(function, instruction)

    def _plain(self, function: Function, instruction: Instruction) -> str:
        """Return the line of an instruction that names no symbol: its text, or its words."""
        code = function.code[instruction.offset : instruction.end]
        if instruction.text and self._encodings.get(instruction.text) == code:
            return f"\t{instruction.text}"
        said = f"\t; {instruction.text}" if instruction.text else ""
        if len(code) % WORD:
            return f"\t.byte {', '.join(f'{byte:#04x}' for byte in code)}{said}"
        words = (int.from_bytes(code[at : at + WORD], "little") for at in range(0, len(code), WORD))
        return f"\t.long {', '.join(f'{word:#010x}' for word in words)}{said}"

    def _run(self, function: Function, index: int) -> int | None:
        """Return where a run of equal words ends that begins with an instruction, None if it is too short."""
        first = function.instructions[index]
        word = function.code[first.offset : first.end]
        end = first.offset
        behind = function.code[first.end : first.offset + _LEAST_FILL * WORD]
        if len(word) != WORD or first.target is not None or behind != word * (_LEAST_FILL - 1):
            return None
        for instruction in function.instructions[index:]:
            if function.code[instruction.offset : instruction.end] != word:
                break
            if instruction.offset > first.offset and function.address + instruction.offset in self._labels:
                break
            end = instruction.end
        return end if end - first.offset >= _LEAST_FILL * WORD else None

    def _is_named(self, function: Function, instruction: Instruction) -> bool:
        """Whether a branch's operand is a label: it leads to an instruction of the listing."""
        if instruction.target is None or function.address + instruction.target not in self._inside:
            return False
        words = (instruction.target - instruction.end) // WORD
        return not (self._processor.startswith(_SHORT_BRANCH_BUG) and words == _ASIDE)

    def _labels_of(self) -> dict[int, str]:
        """Return the names of all addresses that instructions refer to, and of the functions."""
        self._inside = {
            function.address + instruction.offset
            for function in self._functions
            for instruction in function.instructions
        }
        labels: dict[int, str] = {}
        for function in self._functions:
            if function.name:
                labels.setdefault(function.address, _symbol(function))
        taken = set(labels.values())
        for function in self._functions:
            for instruction in function.instructions:
                if instruction.target is not None:
                    address = function.address + instruction.target
                    if address in self._inside:
                        labels.setdefault(address, f".L{address:x}")
            for literal in function.literals:
                name = self._notes.symbols.get(literal.target, "")
                is_free = _PLAIN_NAME.fullmatch(name) and not _REGISTER_LIKE.fullmatch(name) and name not in taken
                if literal.target not in labels:
                    labels[literal.target] = (
                        name if is_free and literal.target not in self._inside else f".L{literal.target:x}"
                    )
                    taken.add(name)
        return labels


def _symbol(function: Function) -> str:
    """Return a function's name as the assembler reads it."""
    name = function.name
    if _PLAIN_NAME.fullmatch(name) and not _REGISTER_LIKE.fullmatch(name):
        return name
    return f".Lfunction_{function.address:x}" if name else f".L{function.address:x}"


def _comment(text: str) -> str:
    """Return a text for a comment: on one line, whatever it holds."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
