"""The page's own JavaScript: modules in ``web``, which are put together to one script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

WEB = Path(__file__).resolve().parent / "web"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|class) ([A-Za-z_$][\w$]*))", re.MULTILINE)


def one_script(modules: Sequence[str], main: str) -> str:
    """Put modules and those that they import together to one script, which runs ``main`` last.

    Each module is a function of its own, so that their names do not meet. modules, main: paths in ``web``, as
    ``views/launches.js``. A module has its imports as ``import { a, b } from "./x.js";`` and exports functions,
    constants and classes where they are declared. Raises ValueError for modules that import each other.
    """
    done: dict[str, str] = {}
    for module in (*modules, main):
        _add(module, done, ())
    return '"use strict";\n' + "".join(done.values())


def script_name(module: str) -> str:
    """Return the name in the script of the object that has what a module exports."""
    return "module_" + re.sub(r"\W", "_", module.removesuffix(".js"))


def _add(module: str, done: dict[str, str], within: tuple[str, ...]) -> None:
    """Add a module to those that are done, after those that it imports. within: the modules that import it."""
    if module in done:
        return
    if module in within:
        raise ValueError(f"{module} imports itself: {' -> '.join((*within, module))}")
    text = (WEB / module).read_text("utf-8")
    imports = []
    for found in _IMPORT.finditer(text):
        imported = _resolved(PurePosixPath(module).parent / found[2])
        _add(imported, done, (*within, module))
        imports.append(f"const {{{found[1]}}} = {script_name(imported)};\n")
    names = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub("", text))
    done[module] = (
        f"const {script_name(module)} = (() => {{\n{''.join(imports)}{body}\nreturn {{{', '.join(names)}}};\n}})();\n"
    )


def _resolved(path: PurePosixPath) -> str:
    """Return a path without ``.`` and ``..``."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
