"""Writes twins: a plan's code goes between a kernel's instructions, and the result to the end of its code object.

Original instructions keep their bytes, and the code object its kernels: what is appended has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_text import Piece, function_text, line_numbers, original_text, paired_lines, twin_text
from neutrino.backend.gcn_values import ORIGINAL, PROBED, GcnCode, GcnKernel, GcnTwin, block_of, copy_names, twin_name
from neutrino.backend.protocol import TwinText
from neutrino.errors import PatchError
from neutrino.twins.probe_units import Refusal
from neutrino.twins.spool import Spool
from neutrino.twins.values import LeftOut

if TYPE_CHECKING:
    from neutrino.fatbin.code_object_append import Appended, Part
    from neutrino.gcn.llvm import Llvm
    from neutrino.gcn.splice import Insertion, Member, SplicedGroup


@dataclass(frozen=True)
class Inserted:
    """What goes into one kernel and into the functions that it calls. insertions: for each of ``GcnKernel.functions``,
    in their order, code by the offset of the instruction that it is before. sgprs, vgprs: how many registers the twin
    names, the highest number and 1; what the original has it has in any case. header: bytes at the kernel's beginning
    that keep their place. left_out: sites that cannot be probed, kinds: a
    word for each."""

    insertions: Sequence[Sequence[Insertion]]
    sgprs: int
    vgprs: int
    header: int = 0
    left_out: tuple[LeftOut, ...] = ()
    kinds: tuple[str, ...] = ()
    descriptor: bytes | None = None


def inserted_into(kernel: GcnKernel, llvm: Llvm) -> Inserted | Refusal:
    """Return the code of the probes in a planned kernel and in the functions that it calls, or why there is none."""
    from neutrino.gcn.instrument.compute import CannotError
    from neutrino.gcn.instrument.twin import Request, write

    source = kernel.source
    request = Request(
        source.module, tuple((one.function, one.at) for one in kernel.functions), kernel.probes,
        source.descriptors[kernel.name], block_of(kernel).offset, kernel.figures.vgprs, kernel.named,
    )  # fmt: skip
    try:
        found = write(request, llvm)
    except CannotError as error:
        return Refusal(Reason.UNSUPPORTED, str(error), kind=error.kind)
    tracepoints = {probe.name: probe.tracepoint.text for probe in kernel.probes.probes}
    left_out = []
    for member, not_probed in zip(kernel.functions, found.not_probed, strict=True):
        if not not_probed:
            continue
        texts = {row.offset: row.text for row in member.function.instructions}
        places = line_numbers(member.function, member.first)
        left_out += [
            LeftOut(
                one.probe, tracepoints[one.probe], places[one.offset], texts[one.offset], "", one.reason,
                member.function.name,
            )
            for one in not_probed
        ]  # fmt: skip
    kinds = tuple(one.kind for not_probed in found.not_probed for one in not_probed)
    return Inserted(found.insertions, found.sgprs, found.vgprs, found.header, tuple(left_out), kinds, found.descriptor)


def write_twins(source: CodeObjectSource, kernels: Sequence[GcnKernel], *, parts: bool = False) -> GcnCode:
    """Write the twins (instrumented copies) of planned kernels, and the code object that has them.

    parts: whether the twins are to have the texts of their functions. Of one kernel after the other, so that no more
    is in memory than its code. Raises ToolMissingError without AMD's assembler,
    FormatError for a damaged code object.
    """
    from neutrino.fatbin.code_object_append import Appender, next_place, place
    from neutrino.gcn.llvm import find_llvm
    from neutrino.gcn.splice import SpliceError, group_size, splice_group

    llvm = find_llvm(source.processor)
    refused: dict[str, Refusal] = {}
    spool = Spool()
    pieces: dict[str, dict[bytes, Piece]] = {}
    twins: list[GcnTwin] = []
    appended: list[Appended] = []
    appender, problem = None, ""
    try:
        appender = Appender(source.data) if kernels else None
    except PatchError as error:
        problem = error.reason
    address = None
    for kernel in kernels:
        code = inserted_into(kernel, llvm)
        if isinstance(code, Refusal):
            refused[kernel.name] = code
            continue
        members = _members(kernel, code)
        try:
            size = group_size(members)
            # What cannot be appended has no place.
            why = problem if appender is None else appender.refusal(_appended(kernel, code, b"", _unplaced(kernel)))
            if why:
                refused[kernel.name] = Refusal(Reason.UNSUPPORTED, why, kind="append")
                continue
            if address is None:
                (address,) = place(source.data, [0])
            spliced = splice_group(members, address)
        except SpliceError as error:
            # Those after it move up.
            refused[kernel.name] = Refusal(Reason.UNSUPPORTED, str(error), kind="branch")
            continue
        address = next_place(address, size)
        appended.append(_appended(kernel, code, spliced.code, _parts(kernel, spliced)))
        twins.append(_twin(kernel, code, spliced, llvm, spool, pieces, parts=parts))
    image = source.data
    try:
        if appender is not None and appended:
            image = appender.appended(appended)
    except PatchError as error:
        refused |= {twin.name: Refusal(Reason.UNSUPPORTED, error.reason, kind="append") for twin in twins}
        twins = []
    reasons = {name: (refusal.reason, refusal.detail) for name, refusal in refused.items()}
    kinds = {name: refusal.kind for name, refusal in refused.items()}
    return GcnCode(tuple(twins), image, reasons, llvm.name, spool, kinds)


def _appended(kernel: GcnKernel, code: Inserted, written: bytes, parts: tuple[Part, ...]) -> Appended:
    """Return what is appended of a twin. written: its code; parts: where its functions are in that."""
    from neutrino.fatbin.code_object_append import Appended

    return Appended(
        twin_name(kernel), kernel.name, written, code.sgprs, code.vgprs, block_of(kernel).size, parts, code.descriptor
    )


def _members(kernel: GcnKernel, code: Inserted) -> list[Member]:
    """Return the functions of a twin, with the code that goes into them."""
    from neutrino.gcn.splice import Member

    return [
        Member(one.function, tuple(insertions), code.header if one is kernel.functions[0] else 0, one.redirected)
        for one, insertions in zip(kernel.functions, code.insertions, strict=True)
    ]


def _parts(kernel: GcnKernel, spliced: SplicedGroup) -> tuple[Part, ...]:
    """Return where a twin's functions are in its code."""
    from neutrino.fatbin.code_object_append import Part

    rows = zip(copy_names(kernel), spliced.offsets, spliced.members, strict=True)
    return tuple(Part(name, offset, len(one.code)) for name, offset, one in rows)


def _unplaced(kernel: GcnKernel) -> tuple[Part, ...]:
    """Return a twin's functions, of which only the names are known."""
    from neutrino.fatbin.code_object_append import Part

    return tuple(Part(name, 0, 0) for name in copy_names(kernel))


def _by_place(insertions: Sequence[Insertion], islands: Mapping[int, bytes]) -> dict[int, list[bytes]]:
    """Return what is inserted in front of each instruction, by its offset, in order. islands: as of ``Spliced``."""
    found = {offset: [island] for offset, island in islands.items()}
    for one in sorted(insertions, key=lambda one: one.ahead_of_label):
        found.setdefault(one.before, []).append(one.code)
    return found


def _twin(
    kernel: GcnKernel, code: Inserted, spliced: SplicedGroup, llvm: Llvm, spool: Spool,
    pieces: dict[str, dict[bytes, Piece]], *, parts: bool,
) -> GcnTwin:  # fmt: skip
    """Return a twin (instrumented copy of a kernel) with its assembly text, which the spool keeps.

    pieces: what is known of inserted code, by LLVM's features. parts: whether it is to have the texts of its functions.
    """
    from neutrino.gcn.code import instructions_of, wave_features

    module = kernel.source.module
    original, probed, added = [], [], 0
    shown: list[TwinText] = []
    for index, (name, one, part) in enumerate(zip(copy_names(kernel), kernel.functions, spliced.members, strict=True)):
        features = wave_features(module.processor, module.features, one.function.wave)
        if not parts:
            decode = partial(llvm.decode, processor=module.processor, features=features)
            inserted = _by_place(code.insertions[index], part.islands)
            text, count = twin_text(one.function, name, inserted, part, decode, pieces.setdefault(features, {}))
            original.append(original_text(one.function))
            probed.append(text)
            added += count
            continue
        rows = instructions_of(part.code, module.processor, features, llvm)
        function = replace(one.function, name=name, code=part.code, decoded=rows, literals=())
        before, after = one.text(), function_text(function, part.moved)
        original.append(before.text)
        probed.append(after.text)
        added += len(rows) - len(one.function.instructions)
        if parts:
            pairs = paired_lines(before, after, part.moved, one.first)
            shown.append(
                TwinText(one.name, one.first, before.text, after.text, one.function.is_kernel, pairs)
            )
    block = block_of(kernel)
    texts = {ORIGINAL: "".join(original), PROBED: "".join(probed)}
    # As its metadata have them.
    vgprs = max(kernel.figures.vgprs, code.vgprs)
    return GcnTwin(
        kernel.name, twin_name(kernel), kernel.parameters, block.offset, block.size, kernel.function.wave,
        kernel.probes.maps, kernel.sites, (*kernel.left_out, *code.left_out), kernel.probes_left_out,
        {name: spool.put(text.encode()) for name, text in texts.items()}, code.sgprs, (kernel.figures.vgprs, vgprs),
        added, _inserted_size(code, spliced), tuple(shown),
        (*("address" for _ in kernel.left_out), *code.kinds),
    )  # fmt: skip


def _inserted_size(code: Inserted, spliced: SplicedGroup) -> int:
    """Return how many bytes a twin has more than its original: probes' code, and detours of branches that it parts."""
    probes = sum(len(one.code) for rows in code.insertions for one in rows)
    return probes + sum(len(island) for part in spliced.members for island in part.islands.values())
