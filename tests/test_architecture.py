"""What the documents say of the modules, and how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_of_modules_is_that_of_the_sources() -> None:
    script = ROOT / "docs" / "modules_page.py"
    page = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "modules.md").read_text() == page, "python docs/modules_page.py > docs/modules.md"


def test_every_module_says_what_it_is_for() -> None:
    script = ROOT / "docs" / "modules_page.py"
    listed = subprocess.run([sys.executable, script, "--all"], capture_output=True, text=True, check=True).stdout
    for path in (ROOT / "neutrino").rglob("[!_]*.py"):
        assert f"| `{path.name}` | " in listed, path


def test_each_walk_has_ten_lines() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for walk in ("probe", "image", "launch"):
        lines = text.split(f"## The path of a{'n' * (walk == 'image')} {walk}\n", 1)[1].split("\n\n", 1)[0].splitlines()
        assert [line.partition(".")[0] for line in lines] == [str(number) for number in range(1, 11)]


def test_ptx_has_few_modules() -> None:
    """Each has a reason of its own to be read; what is smaller belongs to another."""
    assert len(list((ROOT / "neutrino" / "ptx").rglob("[!_]*.py"))) <= 52


_PATTERN = frozenset(
    f"re.{name}" for name in ("compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer")
)


def test_ptx_has_few_patterns() -> None:
    """Text is taken apart once, where it is read; after that its parts are asked."""
    by_package: Counter[str] = Counter()
    for path in (ROOT / "neutrino" / "ptx").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        by_package[path.parent.name] += sum(ast.unparse(call.func) in _PATTERN for call in calls)
    assert by_package["text"]
    assert by_package["instrument"] <= 6
    assert by_package.total() <= 60


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string, with a space-free word in place of what an f-string computes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_inserted_code_is_no_text() -> None:
    """It is made of values (``ptx/text/inserted.py``), which one place prints: nothing else writes an instruction."""
    instruction = re.compile(r"(@!?\S+ )?X?[a-z][\w.:]*(\.\w+| [\[{%X])[^\n]*;", re.ASCII)
    files = sorted((ROOT / "neutrino" / "ptx" / "instrument").glob("*.py"))
    found = [
        f"{path.name}:{line}: {text}"
        for path in files
        for line, text in _texts(ast.parse(path.read_text()))
        if instruction.fullmatch(text)
    ]
    assert files
    assert found == []
    assert instruction.fullmatch("@!X setp.eq.u32 X, X, 0;")


MOST_LINES = {".py": 700, ".c": 700, ".h": 600}
"""Lines of a file that one reads from top to bottom, with what each function says about itself."""
LONGER = ("neutrino/loader/csrc/base/neutrino_layout.h", "tools/read.py")
"""A header that is generated; a file that stands alone in each trace, and is half generated."""


def test_no_file_is_too_long() -> None:
    folders = ("neutrino", "bench", "tests", "tools", "probes", "probes_amd", "examples")
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines())
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in MOST_LINES and "generated" not in path.parts
    }
    assert len(lines) > 400
    longer = {name for name, count in lines.items() if count > MOST_LINES[Path(name).suffix]}
    assert longer == set(LONGER)


@pytest.mark.parametrize("package", ["loader", "emulator", "tracing", "gcn"])
def test_builds_do_not_take_an_option_for_a_folder(package: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"neutrino.{package}.build", "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("usage: ")
    assert not list(tmp_path.iterdir())
