"""What docs/library.md quotes: the output of its commands, and what ``ptxas`` says that the probes cost.

``python -m tests.cli.library_page`` writes both into the page anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.resources import shipped_probes
from neutrino.sass.cubin import read_cubin
from neutrino.verification import load_probes
from tests.oracle.assembling import assemble, together
from tests.twin_costs import PROBES, instructions

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "library.md"
LIBRARY = [name for name in shipped_probes() if name not in PROBES]
EXAMPLE = re.compile(r"(?<=^```text\n)(?P<head>.*\n)(?:.*\n)*?(?=^```$)", re.MULTILINE)
"""Part of the output of the page's commands: a map's line, and its records up to the next map's."""
_COMMAND = re.compile(r"^\$ neutrino-probe (.*)", re.MULTILINE)
_MAP = re.compile(r"  \w+: ")
_PRICES = re.compile(r"(?<=\n\| --- \| ---: \| ---: \| ---: \| ---: \| ---: \| ---: \|\n)(?:\|.*\n)+")
_KERNELS = (("examples/patterns.ptx", "patterns"), ("examples/embedded/kernels.ptx", "saxpy"))


def printed(page: str, home: Path) -> list[str]:
    """The lines that the commands of the page print. home: an empty folder."""
    lines: list[str] = []
    for command in _COMMAND.findall(page):
        result = subprocess.run(
            [sys.executable, "-m", "neutrino.cli.probe", *shlex.split(command)], cwd=ROOT, capture_output=True,
            text=True, check=False, env={**os.environ, "XDG_CACHE_HOME": str(home), "COLUMNS": "120"},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        lines += [*(line.rstrip() for line in result.stdout.splitlines()), ""]
    return lines


def prices() -> list[str]:
    """The rows of the table: the machine instructions and registers that each probe adds to each of the kernels."""
    probes = {f"`{name}`": load_probes([name]) for name in LIBRARY}
    probes["`coalescing`, `-D PER_SITE=0`"] = load_probes(["coalescing"], defines={"PER_SITE": 0})
    rows = {name: [name] for name in sorted(probes)}
    for file, kernel in _KERNELS:
        text = (ROOT / file).read_text().replace(".target sm_75", ".target sm_80")
        original = _kernels(text)[kernel]
        made = {name: probe_module(parse(text), probes[name], names=[kernel]) for name in rows}
        probed = [name for name in rows if made[name].kernels]
        twins = _kernels(together([made[name] for name in probed]))
        for name, row in rows.items():
            if name not in probed:
                row += ["", "", ""]
                continue
            (twin,) = made[name].kernels
            found = twins[f"{twin.twin_name}_{probed.index(name)}"]
            sites = len({site.number for site in twin.sites if site.number is not None})
            row += [str(sites), str(found[0] - original[0]), str(found[1] - original[1])]
    return [f"| {' | '.join(row)} |" for row in rows.values()]


def _kernels(text: str) -> dict[str, tuple[int, int]]:
    """Machine instructions and registers of each kernel of a text."""
    cubin, said = assemble(text, quick=False)
    assert cubin, said
    kernels = read_cubin(cubin, "page").kernels.values()
    return {kernel.name: (instructions(kernel.code), kernel.registers) for kernel in kernels}


def renewed(page: str) -> str:
    """The page with both as they are now."""
    with tempfile.TemporaryDirectory() as home:
        lines = printed(page, Path(home))

    def example(match: re.Match[str]) -> str:
        first = next(number for number, line in enumerate(lines) if line.startswith(match["head"].split(":")[0] + ":"))
        last = first + 1
        while last < len(lines) and lines[last] and not _MAP.match(lines[last]):
            last += 1
        return "\n".join(lines[first:last]) + "\n"

    page = EXAMPLE.sub(example, page)
    return _PRICES.sub("\n".join(prices()) + "\n", page)


if __name__ == "__main__":
    FILE.write_text(renewed(FILE.read_text()))
