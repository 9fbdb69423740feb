"""What makes twins of any target knows no assembly language: neither by import nor by a word in its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from neutrino.maker.keys import imports_of
from neutrino.ptx.isa.opcodes import OPCODES

PACKAGE = Path(__file__).resolve().parents[2] / "neutrino"
NEUTRAL = ("assemble", "device", "maker", "maps", "patched_files", "run", "twins")
"""Packages that hold nothing of one assembly language, as ``backend`` but for its modules of one (``OF_ONE``)."""
OF_ONE = ("ptx_", "gcn_", "sass_")
PUBLISHED = {
    "patched_files/patch_plan.py": {"NO_PTX"},  # the name of a reason, as it is in files
    "backend/registry.py": {"PtxTarget", "GcnTarget"},  # the row of the target
    "patched_files/image_twins.py": {"NO_PTX"},
    "maker/passed.py": {"PTX", ".ptx", "--ptx"},  # what its files hold, and the option
    "device/machine_code.py": {"sm_90", "sm_90a"},  # what a GPU has shown
}
"""Words that may stand in a module."""

_NAMES = sorted({opcode.text.partition(".")[0] for opcode in OPCODES})
WORDS = (
    ("an architecture", r"\bsm_"),
    ("a register", r"%(?:p|r|rd|f|fd|h|tid|ntid|ctaid|nctaid|laneid|warpid|smid|clock|globaltimer|lanemask)\d*\b"),
    ("a type", r"\.(?:pred|[bsuf](?:8|16|32|64|128)|bf16|tf32|f16x2|bf16x2)\b"),
    ("a directive", r"\.(?:entry|visible|reg|param|maxnreg|maxntid|reqntid|func|extern|version|target)\b"),
    ("an opcode", rf"(?:^|[\s;])(?:{'|'.join(_NAMES)})\.[a-z]"),
    ("the language", r"(?i)ptx(?!as)"),
)


def modules() -> list[Path]:
    found = [path for package in NEUTRAL for path in sorted((PACKAGE / package).rglob("*.py"))]
    ways = [path for path in sorted((PACKAGE / "backend").glob("*.py")) if path.name.startswith(OF_ONE)]
    found += [path for path in sorted((PACKAGE / "backend").glob("*.py")) if path not in ways]
    return found


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each string and name in a source, without comments and docstrings."""
    tree = ast.parse(source)
    told = {
        id(node.body[at].value)  # type: ignore[attr-defined]
        for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)
        for at in range(len(node.body))
        if isinstance(node.body[at], ast.Expr) and isinstance(node.body[at].value, ast.Constant)
    }  # fmt: skip
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)) and id(node) not in told:
            yield line, node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        elif isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.arg, ast.keyword)):
            yield line, str(getattr(node, "name", None) or getattr(node, "arg", None) or "")


def found_in(source: str, allowed: Collection[str] = ()) -> list[str]:
    return [
        f"{line}: {what}: {text}"
        for line, text in texts(source) if text not in allowed
        for what, pattern in WORDS if re.search(pattern, text)
    ]  # fmt: skip


def test_no_word_of_an_assembly_language() -> None:
    names = {path.relative_to(PACKAGE).as_posix(): path for path in modules()}
    found = {name: found_in(path.read_text(), PUBLISHED.get(name, ())) for name, path in names.items()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_may_stand_there_does(name: str) -> None:
    assert PUBLISHED[name] <= {text for _, text in texts((PACKAGE / name).read_text())}


@pytest.mark.parametrize(
    "source",
    [
        'ARCH = "sm_90"', 'line = f"  mov.u32 {register}, %laneid;"', 'name = "%r1"', 'type_ = ".f16x2"',
        'if text.startswith(".maxnreg"): pass', 'op = binary("mul.lo")', 'text = "\\n\\tld.global.nc"',
        "image.kind is ImageKind.PTX", "def read_ptx(): pass",
    ],
)  # fmt: skip
def test_words_are_found(source: str) -> None:
    assert found_in(source)


def test_comments_are_free() -> None:
    assert not found_in('"""The PTX for sm_90."""\n# mov.u32 %r1, 0;\nX = "text"\n"""As .reg .u32."""\n')


def test_no_assembly_language_is_imported() -> None:
    """Within functions and for types alone neither. The registry names the targets, and nobody a way of probing."""
    targets = {"neutrino.backend.ptx_target", "neutrino.backend.gcn_target"}
    for path in modules():
        imported = {module for _, module, _ in imports_of(path.read_text())}
        languages = {module for module in imported if module.split(".")[1:2] in (["ptx"], ["gcn"])}
        ways = {module for module in imported if module.startswith(("neutrino.backend.ptx_", "neutrino.backend.gcn_"))}
        assert not languages, path
        assert ways == (targets if path.parts[-2:] == ("backend", "registry.py") else set()), path
