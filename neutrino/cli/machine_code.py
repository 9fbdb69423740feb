"""``--machine-code`` of commands that read files, and what they say where it decides about kernels without PTX."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from neutrino.abi.reasons import Reason
from neutrino.device.machine_code import PROVEN, MachineCode

if TYPE_CHECKING:
    from neutrino.patched_files.patch_report import KernelReport
    from neutrino.patched_files.preview import Preview

_NO_TWIN = "of its machine code no twin is made"
"""How the detail of a kernel begins whose machine code was tried."""


def add_machine_code(parser: argparse._ActionsContainer) -> None:
    """Add ``--machine-code`` to the options of a command that reads files."""
    parser.add_argument(
        "--machine-code", choices=[code.value for code in MachineCode if code is not MachineCode.ONLY],
        default=MachineCode.AUTO.value,
        help="whether kernels without PTX of their own get twins of their machine code: auto (the default), with "
        f"probes that a GPU has shown, one of them at a time ({proven()}); off: none; unproven: also with others, "
        "and with several, at kernels' entries and ends, before accesses of global memory and around loads, and with "
        "those that count instructions (docs/machine-code.md)",
    )  # fmt: skip


def proven() -> str:
    """Return in words for which architectures and probes ``--machine-code auto`` makes twins (copies with probes)."""
    probes = sorted({name for shown in PROVEN.values() for name in shown})
    return f"{', '.join(sorted(PROVEN))}, with {' and '.join(probes)}" if PROVEN else "none yet"


def machine_code_notes(kernels: Iterable[KernelReport], choice: str, probes: Sequence[str]) -> Iterator[str]:
    """Yield what helps kernels that have no twin (copy with probes) of their machine code.

    choice: the value of --machine-code. probes: as the user names them.
    """
    kernels = tuple(kernels)
    code = MachineCode(choice)
    without_text = any(one.reason in (Reason.NO_PTX, Reason.VARIANT) and one.arch in PROVEN for one in kernels)
    if without_text and code is MachineCode.AUTO and code.for_probes(probes) is MachineCode.OFF:
        if all(code.for_probes([name]) is code for name in probes):
            yield (
                f"kernels without PTX: no GPU has shown twins of machine code with {', '.join(probes)} together; name "
                "one at a time with -p, or --machine-code unproven"
            )
            return
        yield (
            f"kernels without PTX: no GPU has shown twins of machine code with {', '.join(probes)}; where the probes "
            "can be put there, --machine-code unproven makes them"
        )
    if len(probes) > 1 and any(one.detail.startswith(_NO_TWIN) for one in kernels):
        yield "kernels without PTX: not all probes can be in machine code; name one at a time with -p"


def text_alone_notes(kernels: Iterable[Preview], device: str) -> Iterator[str]:
    """Yield what is said where sites (instructions that probes match) are looked for in PTX alone: that kernels without
    it may get twins (copies with probes) all the same. device: its architecture.
    """
    if device in PROVEN and any(one.reason in (Reason.NO_PTX, Reason.VARIANT) for one in kernels):
        yield (
            "sites are looked for in PTX; neutrino-extract --coverage says which kernels without it get twins of their "
            "machine code"
        )
