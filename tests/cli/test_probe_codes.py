"""``neutrino-probe codes`` has every code that verification of probes can report."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from neutrino.cli.probe import main
from neutrino.fault_codes import CODES

PACKAGE = Path(__file__).resolve().parents[2] / "neutrino"
_REPORTS = re.compile("report|warn|stop|fault|diagnostic|error", re.IGNORECASE)
_CODE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+")


def reported(path: Path) -> set[str]:
    """The codes with a hyphen that a module gives to what reports faults."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    values = [
        value.value
        for call in calls if _REPORTS.search(ast.unparse(call.func))
        for value in (*call.args, *(word.value for word in call.keywords if word.arg == "code"))
        if isinstance(value, ast.Constant)
    ]  # fmt: skip
    return {value for value in values if isinstance(value, str) and _CODE.fullmatch(value)}


def test_all_that_is_reported_is_a_code() -> None:
    folders = ("probing", "language", "ptx/snippets", "gcn/snippets")
    found = {code for folder in folders for path in (PACKAGE / folder).rglob("*.py") for code in reported(path)}
    assert len(found) > 50
    assert found <= {code for codes in CODES.values() for code in codes}


def test_every_code_is_printed_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codes"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for where, codes in CODES.items():
        for code, meaning in codes.items():
            (line,) = (line for line in lines if line.split()[0] == code)
            assert line.split(maxsplit=1)[1].startswith(where)
            assert line.endswith(meaning)


def test_one_code_and_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codes", "early-clock"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["codes", "early-clok"]) == 2
    assert capsys.readouterr().err == "neutrino-probe: early-clok: no code of a diagnostic; did you mean early-clock?\n"
