"""The probe block as one more parameter of a kernel: where it lies, whether there is room, and the twin's header."""

from __future__ import annotations

from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.ptx.instrument.obstacles import SkipError
from neutrino.ptx.text.edits import Edits
from neutrino.ptx.text.module import Function, Module

_ALIGN = 8

# PTX ISA, "Kernel Function Parameters": bytes of parameter space, by version and architecture.
_SMALL = 4352
_LARGE = 32764
_LARGE_VERSION = (8, 1)
_LARGE_ARCHITECTURE = 70


def block_offset(used: int) -> int:
    """Where the block lies, in bytes. used: bytes of the kernel's own parameters."""
    return align_up(used, _ALIGN)


def version_with_room(
    needed: int, own: tuple[int, int], highest: tuple[int, int], architecture: int
) -> tuple[int, int]:
    """The lowest ``.version``, from own to highest, that has parameter space for that many bytes.

    Raises SkipError when none has.
    """
    large = architecture >= _LARGE_ARCHITECTURE
    if needed <= (_LARGE if large and own >= _LARGE_VERSION else _SMALL):
        return own
    if large and highest >= _LARGE_VERSION and needed <= _LARGE:
        return max(own, _LARGE_VERSION)
    limit = _LARGE if large and highest >= _LARGE_VERSION else _SMALL
    raise SkipError(Reason.PARAMETERS, f"{needed} bytes of parameters with the probe block, {limit} fit")


def twin_header(module: Module, kernel: Function, body_start: int, twin_name: str, block: str, size: int) -> str:
    """A kernel's text before its body with the twin's name, which begins with the kernel's, and its last parameter.

    block: the parameter's name; size: its bytes.
    """
    edits = Edits()
    edits.insert(kernel.name_end, twin_name[len(kernel.name) :])
    parameter = f".param .align {_ALIGN} .b8 {block}[{size}]"
    if kernel.parameters is None:
        edits.insert(kernel.name_end, f"(\n\t{parameter}\n)")
    else:
        start, end = kernel.parameters
        given = module.code[start:end].rstrip()
        separator = ",\n\t" if given else "\n\t"
        edits.insert(start + len(given), f"{separator}{parameter}\n")
    return edits.apply(module.text, kernel.statement.start, body_start)
