"""Twins with explicit FMA, for kernels where the counts of fused arithmetic in twin and original differ.

ptxas unrolls and repeats code as it sees fit, so the counts may differ although nothing is fused differently. Then the
twin's text is written with explicit FMA (``ptx/instrument/explicit_fma.py``), which leaves ptxas no choice. Which sums
to write as FMA is read from the original's machine code, by the line information of ``-lineinfo``. That is a guess. It
is proven by writing the original's text in the same way: ptxas must assemble it to the original's code, byte for byte,
with the same literals and references. Then the original's code computes what the explicit text says, and the twin is
that text with probes in it.

    text ─ apart, -lineinfo ─► LineArithmetic ─ guess ─► Fusions ─ prove ─► ExplicitTwins
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.assemble.assembly import ExplicitTwins
from neutrino.errors import PtxError
from neutrino.ptx.analysis.contraction import FLOATS, has_hidden_product, has_product, sums_reached
from neutrino.ptx.instrument.explicit_fma import (
    Definitions,
    Operation,
    UnpinnableError,
    candidates,
    on_own_lines,
    operations,
    pinned,
)
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import Module, parse
from neutrino.sass.arithmetic import FUSED, PRODUCTS, SUMS, arithmetic_at
from neutrino.sass.cubin import Cubin, read_cubin
from neutrino.sass.lines import sass_lines
from neutrino.sass.same_code import SameCode
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.refusal import AssemblyError

_FLOAT = re.compile(rf"\.(?:{'|'.join(sorted(FLOATS))})(?!\w)", re.ASCII)
"""A floating-point type of an instruction."""
Assemble = Callable[[str, Sequence[str]], Assembled]
"""Assembles a text with additional options; raises as ``Assembler``."""
Render = Callable[[TwinKernel], str]
"""Returns the text of a module with this twin only."""


@dataclass(frozen=True)
class ArithmeticText:
    """A PTX text with its floating-point products and sums.

    bodies: of kernels and functions, by name. operations: their unrounded products and sums in text order, by name. An
    operation's index in this sequence is its number, by which ``LineArithmetic`` and ``Fusions`` refer to it.
    """

    module: Module
    bodies: Mapping[str, Body]
    operations: Mapping[str, Sequence[Operation]]

    @classmethod
    def read(cls, text: str) -> ArithmeticText:
        """Parse a module's text and find its floating-point operations. Raises PtxError."""
        module = parse(text)
        bodies = {
            function.name: Body(module.code, *function.body)
            for function in (*module.functions, *module.entries)
            if function.body is not None
        }
        return cls(module, bodies, {name: operations(body) for name, body in bodies.items()})

    def apart(self) -> str:
        """Return the text with each operation on lines of its own, so that line information tells them apart."""
        return on_own_lines(self.module.text, [operation for _, _, operation in self.in_order()])

    def in_order(self) -> list[tuple[str, int, Operation]]:
        """Return the operations of all functions in text order, as (function name, number in it from 0, operation)."""
        numbered = [
            (name, number, operation)
            for name, operations_of_body in self.operations.items()
            for number, operation in enumerate(operations_of_body)
        ]
        return sorted(numbered, key=lambda entry: entry[2].start)

    def shown(self, operation: Operation) -> str:
        """Describe a floating-point operation, for messages: its line, kind and type."""
        return f"line {self.module.line(operation.start)}: {operation.kind}.{operation.type}"


def write_explicit(
    twins: Collection[TwinKernel], text: str, original: Assembled, assemble: Assemble, render: Render, arch: str
) -> ExplicitTwins:
    """Write twins (instrumented kernels) with their fused multiply-adds spelled out, where it is proven how to.

    Such a text leaves ptxas no choice of which products to fuse with sums, so that probes cannot change it. text: of
    the module's originals. original: that text, assembled. arch: the target, as ``sm_90a``. Runs the assembler at most
    twice, and twice more for each twin in which a product within a division may be fused with a sum. Raises as
    ``Assembler.assemble`` for failures of the machine, and FormatError for a cubin that cannot be read.
    """
    original_text = ArithmeticText.read(text)
    obstacles = {twin.name: _obstacle(twin) for twin in twins}
    refused = {name: reason for name, reason in obstacles.items() if reason is not None}
    possible = [twin for twin in twins if twin.name not in refused]
    if not possible:
        return ExplicitTwins({}, refused)
    try:
        lines = assemble(original_text.apart(), ("-lineinfo",))
        by_line = LineArithmetic.read(original_text, lines.cubin, arch)
        fusions = guess(original_text, by_line)
        proven = prove(possible, original_text, by_line, fusions, (original, lines), assemble, render, arch)
    except (AssemblyError, UnpinnableError) as error:
        reason = error.reason if isinstance(error, AssemblyError) else str(error)
        return ExplicitTwins({}, refused | {twin.name: reason for twin in possible})
    return replace(proven, refused={**refused, **proven.refused})


def prove(
    twins: Collection[TwinKernel],
    original_text: ArithmeticText,
    by_line: LineArithmetic,
    fusions: Fusions,
    originals: tuple[Assembled, Assembled],
    assemble: Assemble,
    render: Render,
    arch: str,
) -> ExplicitTwins:
    """Write twins (instrumented kernels) with these fusions, if they are proven to be the fusions of the original.

    The original's text with the same fusions must assemble to the original's code. Equal code proves that the fusions
    are those of the original. by_line: the machine instructions of the original's operations. fusions: the guess that
    was made from these. originals: the original text assembled, without and with line information. Twins for which the
    proof fails are refused in the result. Raises AssemblyError, UnpinnableError for what concerns all of them.
    """
    original, with_lines = originals
    # Of the new registers that hold the factors of fused products.
    prefix = _unused_prefix(original_text.module.text, twins)
    with_fusions = assemble(_explicit_text(original_text, fusions.fused, prefix), ())
    line_comparison = SameCode(original.cubin, with_lines.cubin)
    fusion_comparison = SameCode(original.cubin, with_fusions.cubin)
    refused: dict[str, str] = {}
    explicit_twins: dict[str, TwinKernel] = {}
    codes: dict[str, bytes] = {}
    for twin in twins:
        # Line information must not have changed the code that the fusions were read from.
        line_difference = line_comparison.difference(twin.name)
        if line_difference is not None:
            refused[twin.name] = f"line information changes {line_difference}"
            continue
        # A sum of the kernel, or of a function that it calls, about which the guess has no one answer.
        mixed = [reason for name in sorted({twin.name, *twin.calls}) for reason in fusions.mixed.get(name, ())]
        if mixed:
            refused[twin.name] = mixed[0]
            continue
        fusion_difference = fusion_comparison.difference(twin.name)
        if fusion_difference is not None:
            refused[twin.name] = f"{fusion_difference} of the original differ from those of its text with explicit FMA"
            continue
        try:
            explicit = _explicit_twin(twin, original_text, fusions.fused, prefix)
            if explicit.contractible:
                # Products within divisions cannot be written explicitly, so what ptxas does with them is compared.
                codes[twin.name] = _code_fused_alike(
                    explicit, original_text, by_line, fusions.fused[twin.name], assemble, render, arch
                )
            explicit_twins[twin.name] = explicit
        except (AssemblyError, UnpinnableError) as error:
            refused[twin.name] = error.reason if isinstance(error, AssemblyError) else str(error)
    return ExplicitTwins(explicit_twins, refused, codes)


def unlike_originals(
    twins: Collection[TwinKernel], machine: Cubin | None, original: Assembled, assembler: str
) -> dict[str, str]:
    """Return why the original text of some twins does not show what is fused in the code that runs, by kernel name.

    That is so for twins (instrumented kernels) with a loose sum (its text does not determine with which product it is
    fused) if the assembler makes other code from the original text than the code that runs. machine: the code that
    runs; None if it is the assembler's. original: the original text, assembled. assembler: its name.
    """
    loose = [twin for twin in twins if twin.loose is not None]
    if not loose or machine is None:
        return {}
    comparison = SameCode(machine.data, original.cubin)
    reasons = {}
    for twin in loose:
        difference = comparison.difference(twin.name, self_contained=twin.self_contained)
        if difference is not None:
            reasons[twin.name] = (
                f"{difference} of the code that runs differ from those that {assembler} makes of its text"
            )
    return reasons


def _obstacle(twin: TwinKernel) -> str | None:
    """Return why a twin (instrumented kernel) cannot be written with explicit FMA; None if it can.

    Only the twin's own text is rewritten: the kernel, and copies of the functions of its module that have probes.
    """
    copied = {copy.name for copy in twin.copies}
    if twin.copies_elsewhere or twin.elsewhere:
        return "it calls functions of other modules"
    # bodies: the kernel's, then those of the functions that it calls.
    if any(name not in copied for name in twin.calls) and any(has_product(body) for body in twin.bodies[1:]):
        return "it calls functions that multiply"
    if len(twin.bodies) > 1 and any(has_hidden_product(body) for body in twin.bodies):
        return "it calls functions, and the product within a division may be fused with a sum"
    return None


@dataclass(frozen=True)
class LineArithmetic:
    """The arithmetic machine instructions that the operations of a text became, found by line information.

    mnemonics: by (function name, number of the operation in it). stray: by function name, a sentence about an
    arithmetic instruction from a line without floating-point arithmetic.
    """

    mnemonics: Mapping[tuple[str, int], frozenset[str]]
    stray: Mapping[str, str]

    @classmethod
    def read(cls, text: ArithmeticText, cubin: bytes, arch: str) -> LineArithmetic:
        """Read the cubin that was assembled from ``text.apart()`` with line information.

        arch: of the machine code, as ``sm_90a``. Raises FormatError.
        """
        built = read_cubin(cubin, "code with line information")
        codes = {name: kernel.code for name, kernel in built.kernels.items()} | dict(built.functions)
        text_lines = text.apart().split("\n")
        line_tables = sass_lines(cubin, "code with line information")

        # The arithmetic instructions of each line, counted from 1; 0 stands for no line.
        by_line: dict[int, set[str]] = {}
        stray: dict[str, str] = {}
        for name, code in codes.items():
            line_table = line_tables.get(name, [])
            starts = [offset for offset, _ in line_table]
            for offset, mnemonic in arithmetic_at(code, arch).items():
                # A row of the table holds from its offset to that of the next.
                row = bisect_right(starts, offset) - 1
                line = line_table[row][1] if row >= 0 else 0
                by_line.setdefault(line, set()).add(mnemonic)
                if not 0 < line <= len(text_lines) or not _FLOAT.search(text_lines[line - 1]):
                    stray[name] = f"{mnemonic} at {offset:#x} comes from a line without floating-point arithmetic"

        # The lines of each operation: ``apart`` puts a line break before and after each. line: the one on which the
        # text from position on continues; position: in the text without these line breaks.
        mnemonics = {}
        line, position = 1, 0
        source = text.module.text
        for name, number, operation in text.in_order():
            first = line + source.count("\n", position, operation.start) + 1
            last = first + source.count("\n", operation.start, operation.end)
            mnemonics[name, number] = frozenset().union(*(by_line.get(row, ()) for row in range(first, last + 1)))
            line, position = last + 1, operation.end
        return cls(mnemonics, stray)


@dataclass(frozen=True)
class Fusions:
    """Which sums of a text are fused with a product, and with which of their operands.

    fused: by function name and the sum's number in it, which of the sum's two operands is the fused product: 0 or 1.
    mixed: by function name, sentences about sums that have no one answer.
    """

    fused: Mapping[str, Mapping[int, int]]
    mixed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def guess(text: ArithmeticText, by_line: LineArithmetic) -> Fusions:
    """Guess which sums of a text ptxas fused with a product, from the machine instructions of each operation.

    A fused instruction has the line of its sum. Which of the sum's operands is the product does not show, so ``prove``
    verifies the guess. by_line: the machine instructions, found by line information.
    """
    fused: dict[str, dict[int, int]] = {name: {} for name in text.operations}
    mixed: dict[str, list[str]] = {}
    for name, body_operations in text.operations.items():
        body = text.bodies[name]
        definitions: Definitions | None = None  # made on first use, since few bodies need it
        sums_of_divisions = sums_reached(body, hidden_alone=True)
        for number, operation in enumerate(body_operations):
            mnemonics = by_line.mnemonics[name, number]
            if operation.is_product or not mnemonics & FUSED:
                continue
            shown = text.shown(operation)
            if mnemonics & SUMS:
                mixed.setdefault(name, []).append(f"{shown} is fused in only some of its copies")
                continue

            # The operands that may be fused products; most likely those whose product left no instruction of its own.
            definitions = definitions or Definitions(body, body_operations)
            fusible = candidates(body_operations, definitions, number)
            vanished = []
            for operand in fusible:
                # The sum's operands are its result, then the two that are added: 0 and 1 in fusible.
                writers = definitions.writers(operation.operands[1 + operand], operation.start)
                if not any(writer is not None and by_line.mnemonics[name, writer] & PRODUCTS for writer in writers):
                    vanished.append(operand)
            if fusible:
                fused[name][number] = (vanished or fusible)[0]
            elif operation.start not in sums_of_divisions:
                mixed.setdefault(name, []).append(f"{shown} is fused with a product that is not one of its operands")
            # Else it is fused with a product within a division, which ``_code_fused_alike`` compares.
    return Fusions(fused, mixed)


def _code_fused_alike(
    twin: TwinKernel,
    original_text: ArithmeticText,
    by_line: LineArithmetic,
    fused: Mapping[int, int],
    assemble: Assemble,
    render: Render,
    arch: str,
) -> bytes:
    """Return a twin's machine code, if its sums are fused with products within divisions where the original's are.

    With explicit FMA, ptxas may still fuse such a product with a sum that reads it. Whether it did shows in the machine
    instructions of the sum's line, in all copies. twin: the instrumented kernel, with explicit FMA. by_line: the
    instructions of the original. fused: the original's sums that are explicit in the twin, by number. assemble, render,
    arch: as for ``write_explicit``. Raises UnpinnableError if the two differ.
    """
    # Assemble the twin without and with line information, which must give the same code.
    twin_text = ArithmeticText.read(render(twin))
    plain, with_lines = assemble(twin_text.module.text, ()), assemble(twin_text.apart(), ("-lineinfo",))
    changed = SameCode(plain.cubin, with_lines.cubin).difference(twin.twin_name)
    if changed is not None:
        raise UnpinnableError(f"line information changes {changed} of the twin")
    twin_by_line = LineArithmetic.read(twin_text, with_lines.cubin, arch)
    for line_arithmetic, name in ((by_line, twin.name), (twin_by_line, twin.twin_name)):
        if name in line_arithmetic.stray:
            raise UnpinnableError(line_arithmetic.stray[name])

    # The twin's only operations are the original's sums that are not explicit, in the same order: products and fused
    # sums are written so that they are no candidates any more.
    implicit_sums = [
        (number, operation)
        for number, operation in enumerate(original_text.operations[twin.name])
        if not operation.is_product and number not in fused
    ]
    twin_operations = twin_text.operations[twin.twin_name]
    if [operation.words for _, operation in implicit_sums] != [operation.words for operation in twin_operations]:
        raise UnpinnableError("the twin has different sums than the original")

    # Compare those that a product within a division reaches. reaching: by the sum's start, how many of its operands may
    # be such products.
    reaching = sums_reached(original_text.bodies[twin.name], hidden_alone=True)
    for twin_number, (number, operation) in enumerate(implicit_sums):
        if operation.start not in reaching:
            continue
        before = by_line.mnemonics[twin.name, number]
        after = twin_by_line.mnemonics[twin.twin_name, twin_number]
        shown = original_text.shown(operation)
        # All copies of the sum must be the same instruction: fused in each, or in none.
        if before != after or len(before) > 1:
            words = [" and ".join(sorted(names)) or "nothing" for names in (before, after)]
            raise UnpinnableError(f"{shown} is {words[0]} in the original, {words[1]} in the twin")
        if before & FUSED and reaching[operation.start] > 1:
            raise UnpinnableError(f"{shown} may be fused with either of two divisions")
    return read_cubin(plain.cubin, "twin with explicit FMA").kernels[twin.twin_name].code


def _unused_prefix(text: str, twins: Collection[TwinKernel]) -> str:
    """Return a prefix for new registers that occurs neither in the original text nor in the twins'."""
    prefix = "%pinned"
    texts = [text]
    for twin in twins:
        texts += [twin.probed_text, *(copy.text for copy in twin.copies)]
    while any(prefix in searched for searched in texts):
        prefix += "_"
    return prefix


def _apply_edits(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """Return a text after edits (start, end, replacement), which do not overlap."""
    pieces, position = [], 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[position:start], replacement]
        position = end
    return "".join([*pieces, text[position:]])


def _explicit_text(text: ArithmeticText, fused: Mapping[str, Mapping[int, int]], prefix: str) -> str:
    """Return a whole text with explicit FMA.

    fused: as in ``Fusions``. prefix: of the new registers that hold the factors of fused products.
    """
    return _apply_edits(
        text.module.text,
        [
            edit
            for name, body in text.bodies.items()
            for edit in pinned(body, text.operations[name], fused[name], prefix)
        ],
    )


def _explicit_twin(
    twin: TwinKernel, original_text: ArithmeticText, fused: Mapping[str, Mapping[int, int]], prefix: str
) -> TwinKernel:
    """Return a twin (instrumented kernel) with explicit FMA: its kernel and its copies of functions.

    fused: which sums the original's machine code fuses with which operand, as in ``Fusions``. prefix: of the new
    registers that hold the factors of fused products. Raises UnpinnableError if the arithmetic of the twin's text is
    not the original's, so that the fusions cannot be transferred.
    """
    # By the original function's name. The new twin's ``contractible`` is computed from these: whether ptxas could still
    # fuse anything.
    explicit_bodies: dict[str, Body] = {}

    def rewrite(text: str, name: str) -> str:
        """Return the probed text of one kernel or function with explicit FMA, and add its body to explicit_bodies.

        text: PTX of the twin's kernel or of the copy of one function, with no other body. name: of the original.
        """
        twin_text = ArithmeticText.read(text)
        ((twin_name, body),) = twin_text.bodies.items()
        twin_operations = twin_text.operations[twin_name]
        # ``fused`` refers to operations by their numbers in the original. Those of the twin have the same numbers only
        # if both texts have the same operations in the same order.
        twin_words = [operation.words for operation in twin_operations]
        if twin_words != [operation.words for operation in original_text.operations[name]]:
            raise UnpinnableError(f"the twin of {name} has different arithmetic than the original")
        explicit_text = _apply_edits(text, pinned(body, twin_operations, fused[name], prefix))
        explicit_bodies[name] = ArithmeticText.read(explicit_text).bodies[twin_name]
        return explicit_text

    try:
        # bodies comes last, after the calls of rewrite. Functions without a copy are called as they are.
        return replace(
            twin,
            probed_text=rewrite(twin.probed_text, twin.name),
            copies=tuple(replace(copy, text=rewrite(copy.text, copy.name)) for copy in twin.copies),
            bodies=tuple(explicit_bodies.get(name) or original_text.bodies[name] for name in (twin.name, *twin.calls)),
            original_bodies=twin.original_bodies or twin.bodies,
        )
    except (PtxError, ValueError, KeyError) as error:
        raise UnpinnableError(f"the twin's text cannot be read again: {error}") from error
