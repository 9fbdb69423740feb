"""What docs/library.md quotes: the output of its commands.

``python -m tests.cli.library_page`` writes it into the page anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from neutrino.resources import shipped_probes
from tests.twin_costs import PROBES

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "library.md"
LIBRARY = [name for name in shipped_probes() if name not in PROBES]
EXAMPLE = re.compile(r"(?<=^```text\n)(?P<head>.*\n)(?:.*\n)*?(?=^```$)", re.MULTILINE)
"""Part of the output of the page's commands: a map's line, and its records up to the next map's."""
_COMMAND = re.compile(r"^\$ neutrino-probe (.*)", re.MULTILINE)
_MAP = re.compile(r"  \w+: ")


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


def renewed(page: str) -> str:
    """The page with its examples as they are now."""
    with tempfile.TemporaryDirectory() as home:
        lines = printed(page, Path(home))

    def example(match: re.Match[str]) -> str:
        first = next(number for number, line in enumerate(lines) if line.startswith(match["head"].split(":")[0] + ":"))
        last = first + 1
        while last < len(lines) and lines[last] and not _MAP.match(lines[last]):
            last += 1
        return "\n".join(lines[first:last]) + "\n"

    return EXAMPLE.sub(example, page)


if __name__ == "__main__":
    FILE.write_text(renewed(FILE.read_text()))
