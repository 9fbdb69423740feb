"""What ptxas says to a twin, and whether its arithmetic is fused as the original's."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

from neutrino.ptx.instrument.twin import TwinKernel, TwinModule
from neutrino.ptx.text.module import without_locations
from neutrino.sass.arithmetic import count_arithmetic
from neutrino.toolchain.location import find_tool


def assemble(text: str, *, quick: bool = True) -> tuple[bytes, str]:
    """The cubin, and all that ptxas says. quick: without optimising; the cubin is empty when it is refused."""
    arch = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)
    if arch is None:
        raise ValueError("no .target")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
        source.write_text(text)
        argv = [str(find_tool("ptxas")), f"-arch={arch[1]}", *(["-O0"] if quick else []), str(source), "-o", str(cubin)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        return cubin.read_bytes() if result.returncode == 0 else b"", result.stderr + result.stdout


def together(twins: Sequence[TwinModule]) -> str:
    """Twins of one module for several probe files, as one module: what they share once, the kernels renamed."""
    shared: dict[str, None] = {}
    entries = []
    for number, probed in enumerate(twins):
        for kernel in probed.kernels:
            for statement in probed.module.statements:
                if statement in kernel.statements:
                    shared[probed.module.source(statement)] = None
            name = re.escape(kernel.twin_name)
            text = "\n".join([*(copy.prototype for copy in kernel.copies), kernel.whole_text()])
            for copy in kernel.copies:
                text = re.sub(rf"{re.escape(copy.copy_name)}\b", f"{copy.copy_name}_{number}", text)
            entries.append(re.sub(rf"(?<![\w$]){name}\b", f"{kernel.twin_name}_{number}", text, count=1))
    version = max(kernel.version for probed in twins for kernel in probed.kernels)
    module = twins[0].module
    head = f".version {version[0]}.{version[1]}\n.target {module.target}\n.address_size 64\n"
    return without_locations("\n".join([head, *shared, *entries]), keep=False)


def arithmetic(text: str, kernel: str) -> dict[str, int]:
    """Fused and unfused floating-point instructions of one kernel's machine code."""
    cubin, said = assemble(text, quick=False)
    if not cubin:
        raise ValueError(said)
    arch = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)
    section = ELFFile(io.BytesIO(cubin)).get_section_by_name(f".text.{kernel}")
    return count_arithmetic(section.data(), arch[1] if arch else "")


def arithmetic_differs(original: str, twin: TwinKernel, text: str) -> str:
    """How a twin's arithmetic is not its original's and the probes' own, in words; empty when it is."""
    own = arithmetic(text, twin.twin_name)
    wanted = arithmetic(original, twin.name)
    for mnemonic, count in twin.own_arithmetic.items():
        wanted[mnemonic] = wanted.get(mnemonic, 0) + count
    kinds = sorted({*own, *wanted})
    return ", ".join(
        f"{kind}: {own.get(kind, 0)} in place of {wanted.get(kind, 0)}"
        for kind in kinds
        if own.get(kind, 0) != wanted.get(kind, 0)
    )
