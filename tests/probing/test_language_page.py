"""docs/language.md: every file, expression and statement on the page is compiled and run."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutrino
from neutrino.errors import ProbeError
from neutrino.language import __all__ as names_of_the_language
from neutrino.language.expressions import MOST_ELEMENTS
from neutrino.language.reader import PROBE_KEYS
from neutrino.language.vocabulary import HELPERS, PLACES, REDUCTIONS
from neutrino.probing.ir.verifier import BUDGET
from neutrino.verification import load_probe_file
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, make_twins
from tests.oracle.kernels import KERNELS
from tests.oracle.typed import BLOCK, kernel, run
from tests.probing.test_dialects import records

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text()
FILES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WORDS = np.arange(BLOCK, dtype=np.uint32)

TEMPLATE = """import neutrino.language as nl
total: nl.u32 = 0
@nl.probe(pos="xor", level="thread", after=True)
def p():
    n: nl.u32 = nl.in1
    m: nl.u32 = nl.u32(nl.in2) + 1
    s: nl.s32 = nl.out
    x: nl.f32 = nl.f32(n)
    wide = nl.u64(n)
    {code}
    nl.save({saved}, dtype=nl.u32)
"""


def rows(section: str) -> list[list[str]]:
    """The cells of the tables of a section, without their heads."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.split("\n") if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = [index - 1 for index, row in enumerate(cells) if set(row[0]) == {"-"}]
    return [row for index, row in enumerate(cells) if index not in heads and index - 1 not in heads]


def codes(section: str) -> list[str]:
    """What stands in code in the first cells of a section's tables."""
    found = [code.replace("\\|", "|") for row in rows(section) for code in re.findall(r"`([^`]+)`", row[0])]
    assert found
    return found


def compiled(folder: Path, code: str, saved: str) -> Any:
    path = folder / "p.py"
    path.write_text(TEMPLATE.format(code=code, saved=saved))
    return load_probe_file(path)


@pytest.mark.parametrize("text", FILES, ids=lambda text: re.findall(r"def (\w+)", text)[-1])
def test_each_file_records_something(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(text)
    probes = load_probe_file(path)
    assert probes.warnings == ()
    probed = [place for place in KERNELS if make_twins(place, probes).kernels]
    assert probed
    cubin, said = assemble(make_twins(probed[0], probes).render())
    assert cubin, said
    found = [data for place in probed for _, data, _ in records(Bench(place, ()), probes)]
    assert any(map(any, found))


@pytest.mark.parametrize("code", [*codes("Expressions"), *codes("Values of the hardware")])
def test_each_expression_is_computed(code: str, tmp_path: Path) -> None:
    probes = compiled(tmp_path, f"value = {code}", "(value, 7)")
    saved = run(probes, kernel(WORDS, WORDS))["p"].records
    assert set(saved["value_2"].reshape(-1).tolist()) == {7}


@pytest.mark.parametrize("code", codes("Statements"))
def test_each_statement_is_taken(code: str, tmp_path: Path) -> None:
    run(compiled(tmp_path, code, "n"), kernel(WORDS, WORDS))


@pytest.mark.parametrize(("code", "words"), [
    ("k = wide // nl.u64(n)", "64-bit integers have no '//'"),
    ("k = n / m", "'/' in a probe"),
    ("k = n + s", "u32 and s32"),
    ("k = 5", "k has no type"),
    ("while n > 0: n -= 1", "a while of a probe has a bound"),
    ("for i in range(n): pass", "whole numbers that are known here"),
    ("print(n)", "'print' is called"),
    ("k = min(n, m)", "'min' is called"),
    ("return", "'return' in a probe"),
    ("k = [1, 2]", "in a probe"),
    ("k = nl.warp.sum(x)", "no 'sum' between lanes"),
])  # fmt: skip
def test_what_is_refused(code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ProbeError) as caught:
        compiled(tmp_path, code, "n")
    (fault,) = caught.value.diagnostics
    assert words in fault.message
    assert (fault.line, fault.source) == (10, f"    {code}")


def test_each_value_of_an_instruction_is_taken() -> None:
    names = {code.partition(".")[2] for code in codes("Values of the instruction")}
    assert names == {
        "out", *(f"in{number}" for number in range(1, 10)), "addr", "bytes", "ops", "pred", "lanes", "leader",
        "elected", "thread", "block", "site", "line", "elements", "sectors", "distinct",
    }  # fmt: skip


def test_functions_of_a_program_are_the_probes_of_their_text() -> None:
    probe = """import neutrino.language as nl
@nl.probe(pos="ld.global", level="thread", cap=2)
def loads():
    nl.save(nl.addr, dtype=nl.u64)
"""
    program = f"import neutrino\n{probe}\nprobes = neutrino.load_probes(loads)\n"
    linecache.cache["<page>"] = (len(program), None, program.splitlines(keepends=True), "<page>")
    names: dict[str, Any] = {}
    exec(compile(program, "<page>", "exec"), names)
    assert names["probes"].digest == neutrino.load_probes(source=probe).digest


def test_the_page_is_complete() -> None:
    """It has every name of the language, and argument of a probe."""
    classes = {"Array", "Place", "Value", "Vector", "Warp"}
    for name in set(names_of_the_language) - classes - {"probe", "Map"}:
        assert f"nl.{name}" in PAGE, name
    for name in (*HELPERS, *PLACES, *(f"warp.{name}" for name in REDUCTIONS)):
        assert f"nl.{name}" in PAGE, name
    for key in PROBE_KEYS:
        assert f"{key}=" in PAGE, key
    assert f"at most {BUDGET} statements" in PAGE
    assert f"up to {MOST_ELEMENTS} elements" in PAGE


def test_the_arguments_of_probes(tmp_path: Path) -> None:
    """Each of the table, on a probe."""
    given = [code for row in rows("Probes") for code in re.findall(r"`(\w+=[^`]+)`", row[0])]
    assert {code.partition("=")[0] for code in given} == set(PROBE_KEYS) - {"position"}
    for code in given:
        others = {"pos": 'pos="ld.global"', "level": 'level="thread"'}
        others.pop(code.partition("=")[0], None)
        path = tmp_path / "p.py"
        save = "nl.save((nl.addr, 1), dtype=nl.u64)"
        decorator = ", ".join([*others.values(), code])
        path.write_text(f"import neutrino.language as nl\n@nl.probe({decorator})\ndef p():\n    {save}\n")
        assert load_probe_file(path).probes
