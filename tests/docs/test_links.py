"""Links between the pages: each leads to a file that is there, and to a heading of it."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NOT_OURS = {".venv", "build", ".corpus", ".hypothesis", ".pytest_cache", "node_modules"}
PAGES = sorted(path for path in ROOT.rglob("*.md") if not _NOT_OURS & set(path.relative_to(ROOT).parts))
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_IN_TEXT = re.compile(r"docs/[\w-]+\.md(?:#[\w-]+)?")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: of equal ones the second ends in -1."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    text = _CODE.sub("", _FENCED.sub("", page.read_text()))
    return [target for target in _LINK.findall(text) if ":" not in target and not leads_somewhere(page, target)]


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a relative link of a page leads to a file, and to a heading of it if it names one."""
    path, _, anchor = target.partition("#")
    file = (page.parent / unquote(path)).resolve() if path else page
    if not file.exists():
        return False
    return not anchor or (file.suffix == ".md" and anchor in anchors(file.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n\n## a\n\n## a\n[x](#a-b-c) [y](#a-1) [z](#a-2) [v](none.md) [w](https://x.example)\n")
    assert broken(page) == ["#a-2", "none.md"]


def test_pages_that_the_sources_name_are_there() -> None:
    folders = ("neutrino", "bench", "probes", "probes_amd", "examples", "tests", "Makefile", "pyproject.toml")
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [ROOT / name for name in listed.stdout.split()] or [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    sources = [path for path in files if path.suffix in {".py", ".c", ".h", ".js", ".toml", ""} and path.is_file()]
    assert len(sources) > 100
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources for name in _IN_TEXT.findall(path.read_text(errors="replace"))
        if not leads_somewhere(ROOT / "README.md", name)
    }  # fmt: skip
    assert not wrong
