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
from neutrino.backend.gcn_values import GcnCode, GcnKernel, GcnTwin, block_of, twin_name
from neutrino.errors import PatchError
from neutrino.twins.probe_units import Refusal
from neutrino.twins.values import LeftOut

if TYPE_CHECKING:
    from neutrino.fatbin.code_object_append import Appended
    from neutrino.gcn.llvm import Llvm
    from neutrino.gcn.splice import Insertion, Spliced


@dataclass(frozen=True)
class Inserted:
    """What goes into one kernel. insertions: code by the offset of the instruction that it is before. sgprs, vgprs: how
    many registers the twin names. header: bytes at the kernel's beginning that keep their place. left_out: sites that
    cannot be probed."""

    insertions: Sequence[Insertion]
    sgprs: int
    vgprs: int
    header: int = 0
    left_out: tuple[LeftOut, ...] = ()


def inserted_into(kernel: GcnKernel, llvm: Llvm) -> Inserted | Refusal:
    """Return the code of the probes in a planned kernel, or why there is none."""
    from neutrino.gcn.scalar_sums import CannotError, sums

    source = kernel.source
    module = source.module
    try:
        found = sums(
            kernel.function, kernel.at, kernel.probes, processor=source.processor, features=module.features,
            descriptor=source.descriptors[kernel.name], block_offset=block_of(kernel).offset, llvm=llvm,
            sgprs=kernel.figures.sgprs,
        )  # fmt: skip
    except CannotError as error:
        return Refusal(Reason.UNSUPPORTED, str(error))
    return Inserted(found.insertions, found.sgprs, found.vgprs, found.header)


def write_twins(source: CodeObjectSource, kernels: Sequence[GcnKernel]) -> GcnCode:
    """Write the twins (instrumented copies) of planned kernels, and the code object that has them.

    Raises ToolMissingError without AMD's assembler, FormatError for a damaged code object.
    """
    from neutrino.fatbin.code_object_append import Appended, append_kernels, place
    from neutrino.gcn.llvm import find_llvm
    from neutrino.gcn.splice import SpliceError, splice, spliced_size

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
        sizes = [spliced_size(kernel.function, code.insertions) for kernel, code in written]
        spliced: list[Spliced] = []
        try:
            for (kernel, code), address in zip(written, place(source.data, sizes), strict=True):
                spliced.append(splice(kernel.function, code.insertions, address, header=code.header))
            appended = [
                Appended(twin_name(kernel), kernel.name, twin.code, code.sgprs, code.vgprs, block_of(kernel).size)
                for (kernel, code), twin in zip(written, spliced, strict=True)
            ]
            image = append_kernels(source.data, appended)
        except SpliceError as error:
            failed, _ = written.pop(len(spliced))
            refused[failed.name] = Reason.UNSUPPORTED, str(error)
        except PatchError as error:
            # Those that cannot be appended alone, either; else what the object lacks, it lacks for all of its kernels.
            alone = {one.like: _why_not_appended(source.data, one) for one in appended}
            failing = {name: why for name, why in alone.items() if why} or dict.fromkeys(alone, error.reason)
            refused |= {name: (Reason.UNSUPPORTED, why) for name, why in failing.items()}
            written = [pair for pair in written if pair[0].name not in failing]
        else:
            figures = _figures(image)
            twins = tuple(
                _twin(kernel, code, twin, llvm, figures[twin_name(kernel)])
                for (kernel, code), twin in zip(written, spliced, strict=True)
            )
            return GcnCode(twins, image, refused, str(llvm.path))
    return GcnCode((), source.data, refused, str(llvm.path))


def _why_not_appended(data: bytes, kernel: Appended) -> str:
    """Return why a kernel cannot be appended to a code object, "" if it can."""
    from neutrino.fatbin.code_object_append import append_kernels

    try:
        append_kernels(data, [kernel])
    except PatchError as error:
        return error.reason
    return ""


def _figures(image: bytes) -> dict[str, int]:
    """Return how many vector registers each kernel of a code object has."""
    from neutrino.fatbin.code_object import read_code_object

    return {name: kernel.vgprs for name, kernel in read_code_object(image, "twins").kernels.items()}


def _twin(kernel: GcnKernel, code: Inserted, spliced: Spliced, llvm: Llvm, vgprs: int) -> GcnTwin:
    """Return a twin with its text. vgprs: that it has."""
    from neutrino.gcn.code import decode

    source, original = kernel.source, kernel.function
    module = source.module
    rows = [(twin_name(kernel), original.address, spliced.code, True, original.wave)]
    (function,) = decode(rows, module.processor, module.features, llvm).functions
    block = block_of(kernel)
    return GcnTwin(
        kernel.name, twin_name(kernel), kernel.parameters, block.offset, block.size, original.wave, kernel.probes.maps,
        kernel.sites, (*kernel.left_out, *code.left_out), kernel.probes_left_out, kernel.text.text,
        function_text(function, spliced.moved).text, code, (kernel.figures.vgprs, vgprs),
        len(function.instructions) - len(original.instructions),
    )  # fmt: skip
