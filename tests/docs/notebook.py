"""The notebook of the examples: its cells run one after the other in a process, as Jupyter would run them.

    python -m tests.docs.notebook       runs them and writes what they print into the notebook
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "demo.ipynb"
_RUNNER = """
import ast, contextlib, io, json, linecache, sys
names = {"__name__": "__main__"}
printed = []
for number, source in enumerate(json.load(sys.stdin)):
    file = f"<cell {number}>"
    # As IPython does, so that the source of a probe is found.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(tree, file, "exec"), names)
        result = eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None
    printed.append([stream.getvalue(), "" if result is None else repr(result)])
json.dump(printed, sys.stdout)
"""


def read() -> dict[str, Any]:
    """The notebook as JSON."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Its cells with code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any]) -> list[list[str]]:
    """Run the cells in a copy of the examples: what each prints, and the text of the value that it ends with."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(NOTEBOOK.parent, folder, ignore=shutil.ignore_patterns("build", "trace"))
        sources = ["".join(cell["source"]) for cell in code_cells(notebook)]
        finished = subprocess.run(
            [sys.executable, "-c", _RUNNER], input=json.dumps(sources), cwd=folder, text=True, check=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": scratch},
        )  # fmt: skip
        printed: list[list[str]] = json.loads(finished.stdout.replace(str(folder), "."))
        return printed


def outputs(printed: list[str]) -> list[dict[str, Any]]:
    """A cell's outputs in the notebook's form."""
    text, result = printed
    stream = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []
    value = {
        "data": {"text/plain": result.splitlines(keepends=True)}, "execution_count": None, "metadata": {},
        "output_type": "execute_result",
    }  # fmt: skip
    return [*stream, value] if result else stream


def main() -> None:
    """Write what the cells print into the notebook."""
    notebook = read()
    for cell, printed in zip(code_cells(notebook), run(notebook), strict=True):
        cell["outputs"] = outputs(printed)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
