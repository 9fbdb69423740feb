"""Machine code for the source view: a kernel's text, assembled here by ptxas and taken apart by nvdisasm.

A trace has no machine code. What is assembled here is that of the same text, and says by what and for what it was made;
the program's own may be of another assembler, or have had other options.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from neutrino.errors import NeutrinoError
from neutrino.page.source import Json
from neutrino.sass.lines import sass_lines
from neutrino.toolchain.nvdisasm import disassemble
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.tracing.manifest import Manifest

_SECONDS = 60.0
"""That a kernel may take to assemble."""
_MOST_LINES = 20_000
_MOST_MISSING = 64
_ARCH = re.compile(r"sm_[0-9]{2,3}[af]?")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,8})\*/\s+(.*?)\s*;?\s*$")
_LABEL = re.compile(r"^\s*((?:\.L_|\$)[\w.$]+:)\s*$")
_ADDRESS = re.compile(r"^\s*(?:@!?%\w+\s+)?mov\.[ub](32|64)\s+%\w+,\s*([A-Za-z_][\w$]*)\s*;")
_SYSTEM = {
    "vprintf": ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);",
    "__assertfail": ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, "
    ".param .b64 e);",
}
"""CUDA C++ Programming Guide: formatted output, assertion."""
_WORD = re.compile(r"[A-Za-z_][\w$]*")
_NO_CODE = re.compile(r"^\s*\.(loc|file|version|target|address_size)\b")


def machine_code(manifest: Manifest, lines: Sequence[str], driver_version: int | None) -> Json:
    """Return the machine code of a kernel's text, ``lines`` and what it is, ``says``; or why there is none, ``fault``.

    A line has the offset in the code, "" for a label; the instruction; and the number, from 1, of the line of the text
    that it comes from, 0 if that is not known. lines: of the text in the trace. driver_version: as the driver said it,
    None if that is not known.
    """
    if not _ARCH.fullmatch(manifest.arch):
        return {"fault": f"{manifest.arch[:40]!r} is no architecture that ptxas assembles for"}
    try:
        assembler = find_assembler(driver_version)
        missing = _missing(lines)
        text, registers = _assembled(assembler, manifest, lines, list(missing.values()))
    except AssemblyError as error:
        return {"fault": f"there is no machine code: {assembler.name}: {error.reason[:400]}"}
    except (NeutrinoError, OSError) as error:
        return {"fault": f"there is no machine code: {str(error).strip().splitlines()[0][:400]}"}
    original = manifest.assembly.registers_original if manifest.assembly else None
    of_it = f"It takes {registers} registers" if registers is not None else ""
    if of_it and original is not None:
        of_it += ", as the original does" if registers == original else f", the original {original}: that is other code"
    if missing:
        of_it += ". " if of_it else ""
        of_it += f"It has other addresses for what the text lacks: {', '.join(missing)}"
    if not any(line for _, _, line in text):
        of_it += f"{'. ' if of_it else ''}Which line an instruction is of is not known"
    return {
        "lines": text,
        "says": f"The original’s text, assembled here by {assembler.name} for {manifest.arch}, and disassembled by "
        f"nvdisasm: what ran is not in a trace. {of_it}{'.' if of_it else ''}".strip(),
    }


def _missing(lines: Sequence[str]) -> dict[str, str]:
    """Return declarations, by name, of what a text uses and only its module declares: functions that every GPU has, and
    variables whose address is taken, of shared memory if it is of 32 bits, as Triton's is, else of global memory."""
    directives = {word for line in lines if line.lstrip().startswith(".") for word in _WORD.findall(line)}
    calls = {word for line in lines if "call" in line for word in _WORD.findall(line)}
    found = {name: prototype for name, prototype in _SYSTEM.items() if name in calls and name not in directives}
    for line in lines:
        taken = _ADDRESS.match(line)
        if taken and taken[2] not in directives and len(found) < _MOST_MISSING:
            found[taken[2]] = (
                f".extern .shared .align 16 .b8 {taken[2]}[];" if taken[1] == "32"
                else f".global .align 16 .b8 {taken[2]}[16];"
            )  # fmt: skip
    return found


def _assembled(
    assembler: Assembler, manifest: Manifest, lines: Sequence[str], variables: Sequence[str]
) -> tuple[list[Json], int | None]:
    """Assemble a kernel's text and take it apart; return the lines, and how many registers it takes.

    variables: declarations of those that the text lacks. Raises NeutrinoError, OSError.
    """
    major, minor = assembler.ptx_version
    head = [f".version {major}.{minor}", f".target {manifest.arch}", ".address_size 64", *variables]
    # Lines of the source would be those of its files; what is wanted is the lines of this text.
    body = ["" if _NO_CODE.match(line) else line for line in lines]
    whole = "\n".join([*head, *body])
    try:
        made = assembler.assemble(whole, manifest.arch, ["-lineinfo"], timeout=_SECONDS)
    except AssemblyError:
        # ptxas 13.0 crashes over the lines of some texts that it assembles.
        made = assembler.assemble(whole, manifest.arch, timeout=_SECONDS)
    known = sass_lines(made.cubin, "machine code").get(manifest.name, [])
    offsets = [offset for offset, _ in known]
    found: list[Json] = []
    is_of_ptxas = False
    for row in disassemble(made.cubin, [manifest.name]).split("\n"):
        instruction, label = _INSTRUCTION.match(row), _LABEL.match(row)
        if instruction:
            at = bisect_right(offsets, int(instruction[1], 16)) - 1
            line = known[at][1] - len(head) if at >= 0 and not is_of_ptxas else 0
            found.append([instruction[1], instruction[2], line if 0 < line <= len(lines) else 0])
        elif label:
            # Its own functions, such as for the rare cases of a square root, have no lines.
            is_of_ptxas |= label[1].startswith("$")
            found.append(["", label[1], 0])
    resources = made.resources.get(manifest.name)
    return found[:_MOST_LINES], resources.registers if resources else None
