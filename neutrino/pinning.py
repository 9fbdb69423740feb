"""A second chance for twins whose machine code holds other numbers of fused instructions than their originals'.

ptxas unrolls and repeats code as it sees fit, so the numbers may differ although nothing is fused otherwise. Then the
twin's text is pinned: it says itself what is fused (``ptx/pinning.py``), and ptxas has no choice left. What to write is
read from the original: which machine instructions a sum of its text became, by the lines that ``-lineinfo`` notes. That
is a guess, and what proves it is that ptxas makes the same code of the original's text when that is pinned alike: byte
for byte, with the same literals and references. So the code that ptxas makes of the original computes what the pinned
text says, and the twin is that text with probes in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.errors import PtxError
from neutrino.fatbin import read_cubin
from neutrino.fatbin.sass_lines import sass_lines
from neutrino.numerics import FUSED, PRODUCTS, SUMS, arithmetic_at
from neutrino.ptx.body import Body
from neutrino.ptx.contraction import has_hidden_product, has_product, reaches_sum
from neutrino.ptx.module import Module, parse
from neutrino.ptx.pinning import Definitions, Operation, UnpinnableError, apart, candidates, operations, pinned
from neutrino.ptx.twin import TwinKernel
from neutrino.same_code import SameCode
from neutrino.toolchain import Assembled, AssemblyError

Assemble = Callable[[str, Sequence[str]], Assembled]
"""Assembles a text, with these options beside those that it is assembled with anyway; raises as ``Assembler``."""


@dataclass(frozen=True)
class Pinned:
    """Twins with pinned text, and why others have none; both by the kernel's name."""

    twins: Mapping[str, TwinKernel]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class _Text:
    """A text's functions with bodies, by name, and their operations."""

    module: Module
    bodies: Mapping[str, Body]
    operations: Mapping[str, Sequence[Operation]]

    @classmethod
    def read(cls, text: str) -> _Text:
        module = parse(text)
        bodies = {
            function.name: Body(module.code, *function.body)
            for function in (*module.functions, *module.entries)
            if function.body is not None
        }
        return cls(module, bodies, {name: operations(body) for name, body in bodies.items()})


def pin_twins(twins: Collection[TwinKernel], text: str, original: Assembled, assemble: Assemble, arch: str) -> Pinned:
    """Pin what can be pinned of the twins of a module's kernels.

    text: the originals', which original was made of. arch: for which, as ``sm_90a``. Raises as ``Assembler.assemble``
    where the machine is at fault, and FormatError for a cubin that cannot be read.
    """
    found = _Text.read(text)
    refused = {twin.name: reason for twin in twins if (reason := _obstacle(twin)) is not None}
    left = [twin for twin in twins if twin.name not in refused]
    if not left:
        return Pinned({}, refused)
    try:
        lines = assemble(_apart(found), ("-lineinfo",))
        fused, mixed = _decisions(found, lines.cubin, arch)
        prefix = _prefix(text, left)
        again = assemble(_pinned_text(found, fused, prefix), ())
    except (AssemblyError, UnpinnableError) as error:
        reason = error.reason if isinstance(error, AssemblyError) else str(error)
        return Pinned({}, refused | {twin.name: reason for twin in left})
    with_lines, with_pins = SameCode(original.cubin, lines.cubin), SameCode(original.cubin, again.cubin)
    made = {}
    for twin in left:
        names = {twin.name, *twin.calls}
        lineless, other = with_lines.difference(twin.name), with_pins.difference(twin.name)
        if lineless is not None:
            refused[twin.name] = f"line information changes {lineless}"
        elif found_mixed := [reason for name in sorted(names) for reason in mixed.get(name, ())]:
            refused[twin.name] = found_mixed[0]
        elif other is not None:
            refused[twin.name] = f"{other} of the original are not those of its text with each fusion written down"
        else:
            try:
                made[twin.name] = _pinned_twin(twin, found, fused, prefix)
            except UnpinnableError as error:
                refused[twin.name] = str(error)
    return Pinned(made, refused)


def _obstacle(twin: TwinKernel) -> str | None:
    """What of a kernel's text cannot be pinned, whatever ptxas makes of it."""
    copied = {copy.name for copy in twin.copies}
    if twin.copies_elsewhere or twin.elsewhere:
        return "it calls functions of other modules"
    if any(name not in copied for name in twin.calls) and any(
        has_product(body.code, body.start, body.end) for body in twin.bodies[1:]
    ):
        return "it calls functions that multiply"
    hidden = (
        any(has_hidden_product(body.code, body.start, body.end) for body in twin.bodies)
        if len(twin.bodies) > 1
        else any(reaches_sum(body.code, body.start, body.end, hidden_alone=True) for body in twin.bodies)
    )
    return "the product within a division may be fused with a sum" if hidden else None


def _all(found: _Text) -> list[tuple[str, int, Operation]]:
    """The operations of all functions in text order, with function and number."""
    return sorted(
        (
            (name, number, operation)
            for name, own in found.operations.items()
            for number, operation in enumerate(own)
        ),
        key=lambda entry: entry[2].start,
    )


def _apart(found: _Text) -> str:
    return apart(found.module.text, [operation for _, _, operation in _all(found)])


def _decisions(
    found: _Text, cubin: bytes, arch: str
) -> tuple[dict[str, dict[int, int]], dict[str, list[str]]]:
    """By function, which sums are fused by which operand; and what is fused in some places only, in words."""
    at_line = _mnemonics(cubin, arch)
    places: dict[tuple[str, int], frozenset[str]] = {}
    text = found.module.text
    line, position = 1, 0
    for name, number, operation in _all(found):
        line += text.count("\n", position, operation.start) + 1
        last = line + text.count("\n", operation.start, operation.end)
        places[name, number] = frozenset().union(*(at_line.get(at, ()) for at in range(line, last + 1)))
        line, position = last + 1, operation.end
    fused: dict[str, dict[int, int]] = {name: {} for name in found.operations}
    mixed: dict[str, list[str]] = {}
    for name, own in found.operations.items():
        definitions: Definitions | None = None
        for number, operation in enumerate(own):
            seen = places[name, number]
            if operation.is_product or not seen & FUSED:
                continue
            shown = f"line {found.module.line(operation.start)}: {operation.kind}.{operation.type}"
            if seen & SUMS:
                mixed.setdefault(name, []).append(f"{shown} is fused in some of its copies only")
                continue
            definitions = definitions or Definitions(found.bodies[name], own)
            fitting = candidates(own, definitions, number)
            vanished = [
                place
                for place in fitting
                if not any(
                    places[name, writer] & PRODUCTS
                    for writer in definitions.writers(operation.operands[1 + place], operation.start)
                    if writer is not None
                )
            ]
            if not fitting:
                mixed.setdefault(name, []).append(f"{shown} is fused with a product that it does not name")
            else:
                fused[name][number] = (vanished or fitting)[0]
    return fused, mixed


def _mnemonics(cubin: bytes, arch: str) -> dict[int, set[str]]:
    """What arithmetic the instructions of each line became."""
    built = read_cubin(cubin, "original with line information")
    codes = {name: kernel.code for name, kernel in built.kernels.items()} | dict(built.functions)
    found: dict[int, set[str]] = {}
    for name, rows in sass_lines(cubin, "original with line information").items():
        starts = [offset for offset, _ in rows]
        for offset, mnemonic in arithmetic_at(codes.get(name, b""), arch).items():
            at = bisect_right(starts, offset) - 1
            if at >= 0:
                found.setdefault(rows[at][1], set()).add(mnemonic)
    return found


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


def _pinned_text(found: _Text, fused: Mapping[str, Mapping[int, int]], prefix: str) -> str:
    return _edited(
        found.module.text,
        [
            edit
            for name, body in found.bodies.items()
            for edit in pinned(body, found.operations[name], fused[name], prefix)
        ],
    )


def _pinned_twin(
    twin: TwinKernel, found: _Text, fused: Mapping[str, Mapping[int, int]], prefix: str
) -> TwinKernel:
    """A twin with pinned text, whose bodies are those of that text. Raises UnpinnableError."""
    bodies: dict[str, Body] = {}

    def again(text: str, name: str) -> str:
        own = _Text.read(text)
        ((built_name, body),) = own.bodies.items()
        here = own.operations[built_name]
        if [operation.words for operation in here] != [operation.words for operation in found.operations[name]]:
            raise UnpinnableError(f"the twin of {name} holds other arithmetic than the original")
        edited = _edited(text, pinned(body, here, fused[name], prefix))
        bodies[name] = _Text.read(edited).bodies[built_name]
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
