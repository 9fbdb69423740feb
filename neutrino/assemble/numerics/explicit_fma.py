"""Twins with explicit FMA, for kernels where the counts of fused arithmetic in twin and original differ.

ptxas unrolls and repeats code as it sees fit, so the counts may differ although nothing is fused differently. Then the
twin's text is written with explicit FMA (``ptx/instrument/explicit_fma.py``), which leaves ptxas no choice. Which sums
to write as FMA is read from the original's machine code, by the line information of ``-lineinfo``. That is a guess. It
is proven by writing the original's text in the same way: ptxas must assemble it to the original's code, byte for byte,
with the same literals and references. Then the original's code computes what the explicit text says, and the twin is
that text with probes in it.

    text ─ apart, -lineinfo ─► Seen ─ guess ─► Fusions ─ prove ─► ExplicitTwins
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.errors import PtxError
from neutrino.ptx.analysis.contraction import FLOAT_TYPES, has_hidden_product, has_product, sums_reached
from neutrino.ptx.instrument.explicit_fma import (
    Definitions,
    Operation,
    UnpinnableError,
    apart,
    candidates,
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
from neutrino.toolchain.ptxas import Assembled
from neutrino.toolchain.refusal import AssemblyError

_FLOAT = re.compile(rf"\.{FLOAT_TYPES}(?![\w])")
Assemble = Callable[[str, Sequence[str]], Assembled]
"""Assembles a text, with these options in addition to its own; raises as ``Assembler``."""
Render = Callable[[TwinKernel], str]
"""A module of a twin."""


@dataclass(frozen=True)
class ExplicitTwins:
    """Twins with explicit FMA, and why others have none; both by the kernel's name.

    codes: for twins whose text still leaves ptxas a choice, the machine code in which it chose as in the original.
    """

    twins: Mapping[str, TwinKernel]
    refused: Mapping[str, str]
    codes: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ArithmeticText:
    """A text's functions with bodies, by name, and their operations."""

    module: Module
    bodies: Mapping[str, Body]
    operations: Mapping[str, Sequence[Operation]]

    @classmethod
    def read(cls, text: str) -> ArithmeticText:
        """Of a module's text. Raises PtxError."""
        module = parse(text)
        bodies = {
            function.name: Body(module.code, *function.body)
            for function in (*module.functions, *module.entries)
            if function.body is not None
        }
        return cls(module, bodies, {name: operations(body) for name, body in bodies.items()})

    def apart(self) -> str:
        """The text with each operation in lines of its own."""
        return apart(self.module.text, [operation for _, _, operation in self.in_order()])

    def in_order(self) -> list[tuple[str, int, Operation]]:
        """The operations of all functions in text order, with function and number."""
        found = ((name, number, operation) for name, own in self.operations.items()
                 for number, operation in enumerate(own))  # fmt: skip
        return sorted(found, key=lambda entry: entry[2].start)

    def shown(self, operation: Operation) -> str:
        """An operation, for messages."""
        return f"line {self.module.line(operation.start)}: {operation.kind}.{operation.type}"


def write_explicit(
    twins: Collection[TwinKernel], text: str, original: Assembled, assemble: Assemble, render: Render, arch: str
) -> ExplicitTwins:
    """Write what can be written of the twins of a module's kernels with explicit FMA.

    text: the originals'. original: that text, assembled. arch: the target, as ``sm_90a``. At most two runs of the
    assembler, and two more for each twin in which a product within a division may be fused with a sum. Raises as
    ``Assembler.assemble`` where the machine is at fault, and FormatError for a cubin that cannot be read.
    """
    found = ArithmeticText.read(text)
    refused = {twin.name: reason for twin in twins if (reason := _obstacle(twin)) is not None}
    left = [twin for twin in twins if twin.name not in refused]
    if not left:
        return ExplicitTwins({}, refused)
    try:
        lines = assemble(found.apart(), ("-lineinfo",))
        seen = Seen.read(found, lines.cubin, arch)
        made = prove(left, found, seen, guess(found, seen), (original, lines), assemble, render, arch)
    except (AssemblyError, UnpinnableError) as error:
        reason = error.reason if isinstance(error, AssemblyError) else str(error)
        return ExplicitTwins({}, refused | {twin.name: reason for twin in left})
    return replace(made, refused={**refused, **made.refused})


def prove(
    twins: Collection[TwinKernel],
    found: ArithmeticText,
    seen: Seen,
    fusions: Fusions,
    originals: tuple[Assembled, Assembled],
    assemble: Assemble,
    render: Render,
    arch: str,
) -> ExplicitTwins:
    """The twins with these fusions, for kernels whose original text with them assembles to the original's code.

    originals: the text assembled, without and with line information. Raises AssemblyError, UnpinnableError.
    """
    original, lines = originals
    prefix = _prefix(found.module.text, twins)
    again = assemble(_explicit_text(found, fusions.fused, prefix), ())
    with_lines, with_fusions = SameCode(original.cubin, lines.cubin), SameCode(original.cubin, again.cubin)
    refused: dict[str, str] = {}
    made: dict[str, TwinKernel] = {}
    codes: dict[str, bytes] = {}
    for twin in twins:
        names = {twin.name, *twin.calls}
        lineless, other = with_lines.difference(twin.name), with_fusions.difference(twin.name)
        if lineless is not None:
            refused[twin.name] = f"line information changes {lineless}"
        elif found_mixed := [reason for name in sorted(names) for reason in fusions.mixed.get(name, ())]:
            refused[twin.name] = found_mixed[0]
        elif other is not None:
            refused[twin.name] = f"{other} of the original differ from those of its text with explicit FMA"
        else:
            try:
                explicit = _explicit_twin(twin, found, fusions.fused, prefix)
                if explicit.contractible:
                    codes[twin.name] = _code_fused_alike(
                        explicit, found, seen, fusions.fused[twin.name], assemble, render, arch
                    )
                made[twin.name] = explicit
            except (AssemblyError, UnpinnableError) as error:
                refused[twin.name] = error.reason if isinstance(error, AssemblyError) else str(error)
    return ExplicitTwins(made, refused, codes)


def unlike_originals(
    twins: Collection[TwinKernel], machine: Cubin | None, original: Assembled, assembler: str
) -> dict[str, str]:
    """Twins with loose sums whose originals' code is not what the assembler makes of their text, and what differs.

    Their text then does not show what is fused in the code that runs. machine: that code, None if it is what the
    assembler makes.
    """
    loose = [twin for twin in twins if twin.loose is not None]
    if not loose or machine is None:
        return {}
    comparison = SameCode(machine.data, original.cubin)
    found = {twin.name: comparison.difference(twin.name, self_contained=twin.self_contained) for twin in loose}
    return {
        name: f"{difference} of the code that runs differ from those that {assembler} makes of its text"
        for name, difference in found.items() if difference is not None
    }  # fmt: skip


def _obstacle(twin: TwinKernel) -> str | None:
    """Why a kernel's text cannot be written with explicit FMA; None if it can."""
    copied = {copy.name for copy in twin.copies}
    if twin.copies_elsewhere or twin.elsewhere:
        return "it calls functions of other modules"
    if any(name not in copied for name in twin.calls) and any(
        has_product(body) for body in twin.bodies[1:]
    ):
        return "it calls functions that multiply"
    if len(twin.bodies) > 1 and any(has_hidden_product(body) for body in twin.bodies):
        return "it calls functions, and the product within a division may be fused with a sum"
    return None


@dataclass(frozen=True)
class Seen:
    """The arithmetic machine instructions of each operation of a text, by function and number.

    stray: by function, an instruction from a line without floating-point arithmetic, in words.
    """

    mnemonics: Mapping[tuple[str, int], frozenset[str]]
    stray: Mapping[str, str]

    @classmethod
    def read(cls, found: ArithmeticText, cubin: bytes, arch: str) -> Seen:
        """cubin: the text of ``apart``, assembled with line information. Raises FormatError."""
        built = read_cubin(cubin, "code with line information")
        codes = {name: kernel.code for name, kernel in built.kernels.items()} | dict(built.functions)
        text = found.apart().split("\n")
        at_line: dict[int, set[str]] = {}
        stray: dict[str, str] = {}
        rows = sass_lines(cubin, "code with line information")
        for name, code in codes.items():
            own = rows.get(name, [])
            starts = [offset for offset, _ in own]
            for offset, mnemonic in arithmetic_at(code, arch).items():
                at = bisect_right(starts, offset) - 1
                line = own[at][1] if at >= 0 else 0
                at_line.setdefault(line, set()).add(mnemonic)
                if not 0 < line <= len(text) or not _FLOAT.search(text[line - 1]):
                    stray[name] = f"{mnemonic} at {offset:#x} comes from a line without floating-point arithmetic"
        mnemonics = {}
        line, position = 1, 0
        for name, number, operation in found.in_order():
            line += found.module.text.count("\n", position, operation.start) + 1
            last = line + found.module.text.count("\n", operation.start, operation.end)
            mnemonics[name, number] = frozenset().union(*(at_line.get(at, ()) for at in range(line, last + 1)))
            line, position = last + 1, operation.end
        return cls(mnemonics, stray)


@dataclass(frozen=True)
class Fusions:
    """Which sums of a text are fused with a product, and with which of their operands.

    fused: by function and the sum's number, the operand's place. mixed: by function, sums that are fused in only some
    places, in words.
    """

    fused: Mapping[str, Mapping[int, int]]
    mixed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def guess(found: ArithmeticText, seen: Seen) -> Fusions:
    """The fusions that seen suggests; ``prove`` verifies them."""
    fused: dict[str, dict[int, int]] = {name: {} for name in found.operations}
    mixed: dict[str, list[str]] = {}
    for name, own in found.operations.items():
        body = found.bodies[name]
        definitions: Definitions | None = None
        reached = sums_reached(body, hidden_alone=True)
        for number, operation in enumerate(own):
            became = seen.mnemonics[name, number]
            if operation.is_product or not became & FUSED:
                continue
            shown = found.shown(operation)
            if became & SUMS:
                mixed.setdefault(name, []).append(f"{shown} is fused in only some of its copies")
                continue
            definitions = definitions or Definitions(body, own)
            fitting = candidates(own, definitions, number)
            vanished = [
                place
                for place in fitting
                if not any(
                    seen.mnemonics[name, writer] & PRODUCTS
                    for writer in definitions.writers(operation.operands[1 + place], operation.start)
                    if writer is not None
                )
            ]
            if not fitting and operation.start in reached:
                continue  # with a product within a division
            if not fitting:
                mixed.setdefault(name, []).append(f"{shown} is fused with a product that is not one of its operands")
            else:
                fused[name][number] = (vanished or fitting)[0]
    return Fusions(fused, mixed)


def _code_fused_alike(
    twin: TwinKernel,
    found: ArithmeticText,
    seen: Seen,
    fused: Mapping[int, int],
    assemble: Assemble,
    render: Render,
    arch: str,
) -> bytes:
    """The machine code of a twin, if its sums are fused with products within divisions where the original's are.

    With explicit FMA, ptxas may still fuse such a product with a sum that reads it. Whether it did shows in the machine
    instructions of the sum's line, in all copies. Raises UnpinnableError if they differ between original and twin.
    """
    again = ArithmeticText.read(render(twin))
    plain, lines = assemble(again.module.text, ()), assemble(again.apart(), ("-lineinfo",))
    changed = SameCode(plain.cubin, lines.cubin).difference(twin.twin_name)
    if changed is not None:
        raise UnpinnableError(f"line information changes {changed} of the twin")
    seen_again = Seen.read(again, lines.cubin, arch)
    for side, name in ((seen, twin.name), (seen_again, twin.twin_name)):
        if name in side.stray:
            raise UnpinnableError(side.stray[name])
    body = found.bodies[twin.name]
    reached = sums_reached(body, hidden_alone=True)
    left = [
        (number, operation)
        for number, operation in enumerate(found.operations[twin.name])
        if not operation.is_product and number not in fused
    ]
    here = again.operations[twin.twin_name]
    if [operation.words for _, operation in left] != [operation.words for operation in here]:
        raise UnpinnableError("the twin has different sums than the original")
    for place, (number, operation) in enumerate(left):
        if operation.start not in reached:
            continue
        before = seen.mnemonics[twin.name, number]
        after = seen_again.mnemonics[twin.twin_name, place]
        if before != after or len(before) > 1:
            words = [" and ".join(sorted(names)) or "nothing" for names in (before, after)]
            raise UnpinnableError(f"{found.shown(operation)} is {words[0]} in the original, {words[1]} in the twin")
        if before & FUSED and reached[operation.start] > 1:
            raise UnpinnableError(f"{found.shown(operation)} may be fused with either of two divisions")
    return read_cubin(plain.cubin, "twin with explicit FMA").kernels[twin.twin_name].code


def _prefix(text: str, twins: Collection[TwinKernel]) -> str:
    prefix = "%pinned"
    texts = [text]
    for twin in twins:
        texts += [twin.probed_text, *(copy.text for copy in twin.copies)]
    while any(prefix in known for known in texts):
        prefix += "_"
    return prefix


def _edited(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    pieces, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def _explicit_text(found: ArithmeticText, fused: Mapping[str, Mapping[int, int]], prefix: str) -> str:
    return _edited(
        found.module.text,
        [
            edit
            for name, body in found.bodies.items()
            for edit in pinned(body, found.operations[name], fused[name], prefix)
        ],
    )


def _explicit_twin(
    twin: TwinKernel, found: ArithmeticText, fused: Mapping[str, Mapping[int, int]], prefix: str
) -> TwinKernel:
    """A twin with explicit FMA, whose bodies are those of that text. Raises UnpinnableError."""
    bodies: dict[str, Body] = {}

    def again(text: str, name: str) -> str:
        own = ArithmeticText.read(text)
        ((built_name, body),) = own.bodies.items()
        here = own.operations[built_name]
        if [operation.words for operation in here] != [operation.words for operation in found.operations[name]]:
            raise UnpinnableError(f"the twin of {name} has different arithmetic than the original")
        edited = _edited(text, pinned(body, here, fused[name], prefix))
        bodies[name] = ArithmeticText.read(edited).bodies[built_name]
        return edited

    try:
        return replace(
            twin,
            probed_text=again(twin.probed_text, twin.name),
            copies=tuple(replace(copy, text=again(copy.text, copy.name)) for copy in twin.copies),
            bodies=tuple(bodies.get(name) or found.bodies[name] for name in (twin.name, *twin.calls)),
        )
    except (PtxError, ValueError, KeyError) as error:
        raise UnpinnableError(f"the twin's text cannot be read again: {error}") from error
