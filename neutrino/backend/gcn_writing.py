"""Writes twins: a plan's code goes between a kernel's instructions, and the result to the end of its code object.

Original instructions keep their bytes, and the code object its kernels: what is appended has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_text import function_text
from neutrino.backend.gcn_values import GcnCode, GcnKernel, GcnTwin, block_of, copy_names, twin_name
from neutrino.backend.protocol import TwinText
from neutrino.errors import PatchError
from neutrino.twins.probe_units import Refusal
from neutrino.twins.values import LeftOut

if TYPE_CHECKING:
    from neutrino.fatbin.code_object_append import Part
    from neutrino.gcn.llvm import Llvm
    from neutrino.gcn.splice import Insertion, Member, SplicedGroup


@dataclass(frozen=True)
class Inserted:
    """What goes into one kernel and into the functions that it calls. insertions: for each of ``GcnKernel.functions``,
    in their order, code by the offset of the instruction that it is before. sgprs, vgprs: how many registers the twin
    names, the highest number and 1; what the original has it has in any case. header: bytes at the kernel's beginning
    that keep their place. left_out: sites that cannot be probed."""

    insertions: Sequence[Sequence[Insertion]]
    sgprs: int
    vgprs: int
    header: int = 0
    left_out: tuple[LeftOut, ...] = ()
    descriptor: bytes | None = None


def inserted_into(kernel: GcnKernel, llvm: Llvm) -> Inserted | Refusal:
    """Return the code of the probes in a planned kernel and in the functions that it calls, or why there is none."""
    from neutrino.gcn.instrument.compute import CannotError
    from neutrino.gcn.instrument.twin import Request, write

    source = kernel.source
    request = Request(
        source.module, tuple((one.function, one.at) for one in kernel.functions), kernel.probes,
        source.descriptors[kernel.name], block_of(kernel).offset, kernel.figures.vgprs,
    )  # fmt: skip
    try:
        found = write(request, llvm)
    except CannotError as error:
        return Refusal(Reason.UNSUPPORTED, str(error))
    tracepoints = {probe.name: probe.tracepoint.text for probe in kernel.probes.probes}
    left_out = []
    for member, not_probed in zip(kernel.functions, found.not_probed, strict=True):
        texts = {row.offset: row.text for row in member.function.instructions}
        left_out += [
            LeftOut(
                one.probe, tracepoints[one.probe], member.text.places[one.offset], texts[one.offset], "", one.reason,
                member.function.name,
            )
            for one in not_probed
        ]  # fmt: skip
    return Inserted(found.insertions, found.sgprs, found.vgprs, found.header, tuple(left_out), found.descriptor)


def write_twins(source: CodeObjectSource, kernels: Sequence[GcnKernel]) -> GcnCode:
    """Write the twins (instrumented copies) of planned kernels, and the code object that has them.

    Raises ToolMissingError without AMD's assembler, FormatError for a damaged code object.
    """
    from neutrino.fatbin.code_object_append import Appended, KernelRefusedError, append_kernels, place
    from neutrino.gcn.llvm import find_llvm
    from neutrino.gcn.splice import SpliceError, group_size, splice_group

    llvm = find_llvm(source.processor)
    refused: dict[str, tuple[Reason, str]] = {}
    written: list[tuple[GcnKernel, Inserted]] = []
    for kernel in kernels:
        code = inserted_into(kernel, llvm)
        if isinstance(code, Refusal):
            refused[kernel.name] = code.reason, code.detail
        else:
            written.append((kernel, code))

    # Where a twin's code will be follows from the sizes of those before it, so that one that cannot be spliced is taken
    # out and the others are placed anew.
    while written:
        groups = [_members(kernel, code) for kernel, code in written]
        spliced: list[SplicedGroup] = []
        try:
            for members, address in zip(groups, place(source.data, list(map(group_size, groups))), strict=True):
                spliced.append(splice_group(members, address))
            appended = [
                Appended(
                    twin_name(kernel), kernel.name, twin.code, code.sgprs, code.vgprs, block_of(kernel).size,
                    _parts(kernel, twin), code.descriptor,
                )
                for (kernel, code), twin in zip(written, spliced, strict=True)
            ]  # fmt: skip
            image = append_kernels(source.data, appended)
        except SpliceError as error:
            failed, _ = written.pop(len(spliced))
            refused[failed.name] = Reason.UNSUPPORTED, str(error)
        except KernelRefusedError as error:
            failed = next(kernel for kernel, _ in written if twin_name(kernel) == error.kernel)
            refused[failed.name] = Reason.UNSUPPORTED, error.reason
            written = [pair for pair in written if pair[0] is not failed]
        except PatchError as error:
            refused |= {kernel.name: (Reason.UNSUPPORTED, error.reason) for kernel, _ in written}
            written = []
        else:
            figures = _figures(image)
            twins = tuple(
                _twin(kernel, code, twin, llvm, figures[twin_name(kernel)])
                for (kernel, code), twin in zip(written, spliced, strict=True)
            )
            return GcnCode(twins, image, refused, llvm.name)
    return GcnCode((), source.data, refused, llvm.name)


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


def _figures(image: bytes) -> dict[str, int]:
    """Return how many vector registers (VGPRs) each kernel of a code object has."""
    from neutrino.fatbin.code_object import read_code_object

    return {name: kernel.vgprs for name, kernel in read_code_object(image, "twins").kernels.items()}


def _twin(kernel: GcnKernel, code: Inserted, spliced: SplicedGroup, llvm: Llvm, vgprs: int) -> GcnTwin:
    """Return a twin (instrumented copy of a kernel) with its assembly text.

    vgprs: how many vector registers it has.
    """
    from neutrino.gcn.code import decode_each

    module = kernel.source.module
    # By the originals' addresses, which nothing of the text shows.
    rows = [
        (name, one.function.address, part.code, one.function.is_kernel, one.function.wave)
        for name, one, part in zip(copy_names(kernel), kernel.functions, spliced.members, strict=True)
    ]
    probed = list(decode_each(rows, module.processor, module.features, llvm))
    texts = [function_text(one, part.moved).text for one, part in zip(probed, spliced.members, strict=True)]
    lines = kernel.lines
    parts = tuple(
        TwinText(one.name, lines[one.name], one.text.text, text, is_kernel=one.function.is_kernel)
        for one, text in zip(kernel.functions, texts, strict=True)
    )
    block = block_of(kernel)
    return GcnTwin(
        kernel.name, twin_name(kernel), kernel.parameters, block.offset, block.size, kernel.function.wave,
        kernel.probes.maps, kernel.sites, (*kernel.left_out, *code.left_out), kernel.probes_left_out,
        "".join(part.original for part in parts), "".join(texts), code, (kernel.figures.vgprs, vgprs),
        sum(len(one.instructions) for one in probed) - sum(len(one.function.instructions) for one in kernel.functions),
        parts,
    )  # fmt: skip
