"""Machine code as a text that assembles to the same bytes: with labels, symbols and source lines.

It is a view. Every instruction whose text an assembler would encode in another way is a ``.long`` with its text beside
it: older compilers leave bits differently that do not matter, and padding may decode to anything.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.gcn.code import Function, Instruction, split_target, wave_features
from neutrino.gcn.llvm import TRIPLE, WORD, AssemblyError, Llvm

_PLAIN_NAME = re.compile(r"(?!\.L)[A-Za-z_.$][\w.$]*", re.ASCII)
_REGISTER_LIKE = re.compile(
    r"(s|v|a|ttmp)\d+|m0|null|off|scc|(vcc|exec|tba|tma|flat_scratch|xnack_mask|src)\w*|lit\w*|abs|neg|sext|hwreg|sendmsg|depctr",
    re.IGNORECASE,
)
"""Names that an operand would not be read as a symbol by."""
_MOST_ENCODINGS = 200_000
"""Limit of the encodings that are kept, of all processors together."""
_TOGETHER = 20_000
"""Instructions of as many functions are assembled together."""
_LEAST_FILL = 8
"""Equal words, such as ``s_nop`` in padding, that become one line."""
_SHORT_BRANCH_BUG, _ASIDE = "gfx101", 0x3F
"""On these an assembler puts an ``s_nop`` after a branch of that many words, if it knows where it leads."""


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
        """Return the bytes that each instruction's text assembles to, none for one that the assembler refuses.

        The result has the texts of earlier calls, too. sizes: of the instructions that the texts are of, in bytes.
        processor, features: as ``Llvm.assemble``.
        """
        if sum(map(len, self._known.values())) > _MOST_ENCODINGS:
            self._known.clear()
        known = self._known.setdefault((processor, features), {})
        missing = [text for text in sizes if text not in known]
        self._assemble(missing, sizes, processor, features, known)
        return known

    def _assemble(
        self, texts: Sequence[str], sizes: Mapping[str, int], processor: str, features: str, known: dict[str, bytes]
    ) -> None:
        """Assemble texts of instructions, and add the bytes of each to ``known``: b"" for one that is refused.

        They are assembled together, which is fast; where one is refused, in halves.
        """
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


@dataclass(frozen=True, slots=True)
class Layout:
    """What a text is of, known before any of it is decoded.

    target: the target id, such as ``gfx942:sramecc+``. wave: lanes of the waves that the text is assembled for:
    instructions of functions with another are data where that makes a difference. runs: first addresses and ends of
    what lies together; an assembler puts one after the other. names: the functions' names by their addresses, as the
    assembler reads them.
    """

    target: str
    wave: int
    runs: tuple[tuple[int, int], ...]
    names: Mapping[int, str]

    @property
    def features(self) -> tuple[str, str]:
        """The processor, such as ``gfx942``, and the assembler's features that the text is assembled with."""
        processor, features = split_target(self.target)
        return processor, wave_features(processor, features, self.wave)


def layout_of(functions: Iterable[tuple[str, int, bytes, bool, int]], target: str) -> Layout:
    """Return the layout of a text of functions, given as to ``decode``, in the order of their addresses."""
    rows = list(functions)
    waves = [wave for _, _, _, is_kernel, wave in rows if is_kernel and wave] or [wave for *_, wave in rows if wave]
    names: dict[int, str] = {}
    runs: list[tuple[int, int]] = []
    for name, address, code, *_ in rows:
        if name:
            names.setdefault(address, _symbol(name, address))
        if runs and address <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], address + len(code))
        else:
            runs.append((address, address + len(code)))
    return Layout(target, waves[0] if waves else 32, tuple(runs), names)


def listing(
    functions: Iterable[Function], layout: Layout, encodings: Encodings, notes: Notes | None = None
) -> Iterator[str]:
    """Yield the lines of a text of functions, without line ends.

    functions: those of the layout, all or none of them between two; they are taken one after the other, and not kept.
    encodings: whose LLVM's texts the instructions have.
    """
    yield f'\t.amdgcn_target "{TRIPLE}--{layout.target}"'
    _, features = layout.features
    if features:
        yield f"\t; assembled with -mattr={features}"
    yield "\t.text"
    yield "\t.p2align 8"
    writer = _Writer(layout, encodings, notes or Notes())
    pending: list[Function] = []
    count = 0
    for function in functions:
        pending.append(function)
        count += len(function.instructions)
        if count > _TOGETHER:
            yield from writer.lines(pending)
            pending, count = [], 0
    yield from writer.lines(pending)
    yield from writer.ending()


class _Writer:
    """Writes the functions of a listing, some after others."""

    def __init__(self, layout: Layout, encodings: Encodings, notes: Notes) -> None:
        """Take what the text is of, and what is written beside the code; parameters as ``listing``."""
        self._layout = layout
        self._notes = notes
        self._encodings = encodings
        self._encoded: Mapping[str, bytes] = {}
        self._processor, self._features = layout.features
        self._outside: dict[int, str] = {}
        """Names of addresses outside of the function that refers to them, but for beginnings of functions; of one run,
        since what lies elsewhere is as far from the next one as it was in the file, not in the text."""
        self._runs = iter(layout.runs)
        self._run = -1, -1
        self._base = ".Ltext"
        self._taken = set(layout.names.values())
        self._previous: tuple[str, int] | None = None
        """Of the last function the symbol, and the address at which it ends."""

    def lines(self, functions: Sequence[Function]) -> Iterator[str]:
        """Yield the lines of functions, in the order of their addresses."""
        sizes = {
            instruction.text: instruction.size
            for function in functions
            for instruction in function.instructions
            if instruction.text
        }
        self._encoded = self._encodings.of(sizes, self._processor, self._features)
        for function in functions:
            symbol, end = _symbol(function.name, function.address), function.address + len(function.code)
            if self._previous is not None and function.address < self._previous[1]:
                # A second name of the same code.
                yield f"\t.set {symbol}, {self._previous[0]}"
                continue
            self._previous = symbol, end
            while not self._run[0] <= function.address <= self._run[1]:
                yield from self.ending()
                self._run = next(self._runs)
                self._base = f".Ltext_{self._run[0]:x}" if self._run != self._layout.runs[0] else ".Ltext"
                yield f"{self._base}:"
            yield from self._function(function, symbol)

    def ending(self) -> Iterator[str]:
        """Yield lines that define the symbols which the code of the last run (code that lies together) names and does
        not hold."""
        if self._outside:
            yield ""
        for address, name in sorted(self._outside.items()):
            yield f"\t.set {name}, {self._base}{address - self._run[0]:+#x}"
        self._outside = {}

    def _function(self, function: Function, symbol: str) -> Iterator[str]:
        """Yield the lines of a function: its label and what goes with it, its instructions, its size. symbol: its
        label.

        Bytes between two functions have no name: of them there are the instructions alone.
        """
        yield ""
        if not function.name:
            yield from self._body(function)
            return
        shown = self._notes.names.get(function.name, function.name)
        if shown != function.name or symbol.startswith(".L"):
            yield f"\t; {_comment(shown)}"
        for line in self._notes.comments.get(function.name, ()):
            yield f"\t; {_comment(line)}"
        if function.refused:
            yield f"\t; cannot be probed: {_comment(function.refused)}"
        if function.is_kernel and not symbol.startswith(".L"):
            yield f"\t.globl {symbol}"
        yield f"\t.type {symbol},@function"
        yield f"{symbol}:"
        yield from self._body(function)
        yield f"\t.size {symbol}, .-{symbol}"

    def _body(self, function: Function) -> Iterator[str]:
        """Yield the lines of a function's instructions, with labels and the lines of source code that they come from.
        """
        sources = self._notes.sources
        ends = {instruction.offset: instruction.end for instruction in function.instructions}
        branches = {row.target for row in function.instructions if row.target is not None and self._is_named(row, ends)}
        literals = {
            at: (literal, half)
            for literal in function.literals
            for half, at in (("lo", literal.low), ("hi", literal.high))
            # The two halves of a literal of 64 bits are written as one.
            if half == "lo" or literal.high != literal.low + WORD
        }
        labels = {at for at in branches | {row.target - function.address for row in function.literals} if at in ends}
        skip_to = 0
        for index, instruction in enumerate(function.instructions):
            address = function.address + instruction.offset
            if (source := sources.get(address)) is not None:
                yield f"\t; {_comment(source)}"
            if instruction.offset in branches or (instruction.offset in labels and address not in self._layout.names):
                yield f".L{address:x}:"
            if instruction.offset < skip_to:
                continue
            if (end := self._equal(function, index, labels)) is not None:
                value = int.from_bytes(function.code[instruction.offset : instruction.end], "little")
                said = f"\t; {instruction.text}" if instruction.text else ""
                yield f"\t.fill {(end - instruction.offset) // WORD}, {WORD}, {value:#x}{said}"
                skip_to = end
                continue
            literal = literals.get(instruction.offset + WORD)
            if literal is not None:
                row, half = literal
                relocation = "rel64" if row.high == row.low + WORD else f"rel32@{half}"
                place = (row.low if half == "lo" else row.high) - ends[row.get_pc]
                operands = ", ".join(instruction.operands[:2])
                name = self._name(function, row.target, ends)
                yield f"\t{instruction.mnemonic} {operands}, {name}@{relocation}+{place}"
            elif instruction.target in branches:
                # A branch to a global symbol would be for a linker, also to a kernel's beginning.
                name = f".L{function.address + (instruction.target or 0):x}"
                yield f"\t{instruction.mnemonic} {', '.join((*instruction.operands[:-1], name))}"
            else:
                yield self._plain(function, instruction)

    def _name(self, function: Function, address: int, inside: Mapping[int, int]) -> str:
        """Return the name of an address that an instruction refers to. inside: offsets of the function's instructions,
        which have labels."""
        begin, end = self._run
        if begin <= address <= end and address in self._layout.names:
            return self._layout.names[address]
        if address - function.address in inside:
            return f".L{address:x}"
        if address not in self._outside:
            name = self._layout.names.get(address) or self._notes.symbols.get(address, "")
            if not _PLAIN_NAME.fullmatch(name) or _REGISTER_LIKE.fullmatch(name):
                # A label of another function may have the usual name.
                name = f".Lat_{address:x}"
            if name in self._taken:
                name = f"{name}.from_{begin:x}"
            self._outside[address] = name
            self._taken.add(name)
        return self._outside[address]

    def _plain(self, function: Function, instruction: Instruction) -> str:
        """Return the line of an instruction that names no symbol: its text, or its words as data if that assembles to
        others."""
        code = function.code[instruction.offset : instruction.end]
        if instruction.text and self._encoded.get(instruction.text) == code:
            return f"\t{instruction.text}"
        said = f"\t; {instruction.text}" if instruction.text else ""
        if len(code) % WORD:
            return f"\t.byte {', '.join(f'{byte:#04x}' for byte in code)}{said}"
        words = (int.from_bytes(code[at : at + WORD], "little") for at in range(0, len(code), WORD))
        return f"\t.long {', '.join(f'{word:#010x}' for word in words)}{said}"

    def _equal(self, function: Function, index: int, labels: Container[int]) -> int | None:
        """Return where a run of equal words ends that begins with an instruction, None if it is too short. labels:
        offsets at which it must end."""
        first = function.instructions[index]
        word = function.code[first.offset : first.end]
        after = function.code[first.end : first.offset + _LEAST_FILL * WORD]
        if len(word) != WORD or first.target is not None or after != word * (_LEAST_FILL - 1):
            return None
        end = first.offset
        for instruction in function.instructions[index:]:
            if function.code[instruction.offset : instruction.end] != word:
                break
            if instruction.offset > first.offset and instruction.offset in labels:
                break
            end = instruction.end
        return end if end - first.offset >= _LEAST_FILL * WORD else None

    def _is_named(self, instruction: Instruction, inside: Container[int]) -> bool:
        """Whether a branch's operand is a label: it leads to an instruction of the function. inside: their offsets."""
        if instruction.target is None or instruction.target not in inside:
            return False
        words = (instruction.target - instruction.end) // WORD
        return not (self._processor.startswith(_SHORT_BRANCH_BUG) and words == _ASIDE)


def _symbol(name: str, address: int) -> str:
    """Return a function's name as the assembler reads it. name: mangled, empty without one."""
    if _PLAIN_NAME.fullmatch(name) and not _REGISTER_LIKE.fullmatch(name):
        return name
    return f".Lfunction_{address:x}" if name else f".L{address:x}"


def _comment(text: str) -> str:
    """Return a text, such as a name from the file, so that it can stand in a comment: on one line, whatever it holds.
    """
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
