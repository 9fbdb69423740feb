"""The recipes of the pages: one-liners, shipped probes and probe files, as they stand there."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    ROOT / name
    for name in (
        "README.md", "docs/running.md", "docs/tutorial.md", "docs/one-liners.md", "docs/cookbook.md", "docs/probes.md",
        "docs/library.md", "docs/python.md",
    )
)  # fmt: skip
_COMMAND = re.compile(r"^(?:\$ |    )(neutrino .*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+ \{ [^`]*\})`")
_CLAUSE = re.compile(r"@\w*(?:\[.*\])? = |\b(?:save|print)\(")
_OPTIONS = ("--every", "--launches")
"""Options that change figures, each with a value."""


@dataclass(frozen=True)
class Recipe:
    """A one-liner. options: of the command, those that change its figures."""

    page: str
    text: str
    options: tuple[str, ...] = ()

    @property
    def maps(self) -> frozenset[str]:
        """The names of its maps: one-liners that share none can run together."""
        return frozenset(re.findall(r"@(\w+)", self.text)) | frozenset(re.findall(r"(?<!= )\b(print)\(", self.text))


def one_liners() -> list[Recipe]:
    """Each one-liner of each page, also those in sentences."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for command in _COMMAND.findall(text):
            words = shlex.split(command, comments=True)
            options = tuple(
                word
                for place, option in enumerate(words) if option in _OPTIONS
                for word in words[place : place + 2]
            )  # fmt: skip
            texts = [words[place + 1] for place, option in enumerate(words[:-1]) if option == "-e"]
            # TEXT is a placeholder.
            found += [Recipe(page.name, one, options) for one in texts if one != "TEXT"]
        prose = _BLOCK.sub("", text)
        found += [Recipe(page.name, one) for one in _INLINE.findall(prose) if _CLAUSE.search(one)]
    # Clauses that print what others have saved have a test of their own: tests/session/test_intervals.py.
    return [recipe for recipe in found if not recipe.text.startswith("interval:")]


def shipped() -> set[str]:
    """The shipped probes that commands of the pages use."""
    commands = [command for page in PAGES for command in _COMMAND.findall(page.read_text())]
    return {name for command in commands for name in re.findall(r" -p ([a-z_]+)(?= )", command)}


def files() -> dict[tuple[str, str, str], str]:
    """The probe files of the pages, each whole: (page, language, the first of its maps) → text.

    Without those for AMD's GPUs, which tests/gcn/test_pages.py has.
    """
    found = {}
    for page in PAGES:
        for language, text in _BLOCK.findall(page.read_text()):
            maps = re.findall(r"^class (\w+):" if language == "python" else r"^\[map\.(\w+)\]", text, re.MULTILINE)
            is_of_amd = re.search(r'^platform = "hip"$', text, re.MULTILINE)
            if maps and not is_of_amd and re.search(r"^@probe\(|^\[probe\.", text, re.MULTILINE):
                assert (page.name, language, maps[0]) not in found
                found[page.name, language, maps[0]] = text
    return found


def script(page: str, name: str) -> str:
    """The Python program of a page whose first line is its name."""
    text = next(path for path in PAGES if path.name == page).read_text()
    return next(code for _, code in _BLOCK.findall(text) if code.startswith(f"# {name}\n"))
