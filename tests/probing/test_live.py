"""Probes of a running program: in a cell, a module, an interpreter, and from text."""

from __future__ import annotations

import importlib.util
import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutrino
from neutrino.errors import NeutrinoError, ProbeError
from neutrino.verification import load_probe_file
from tests.oracle.typed import BLOCK, kernel, run

CELL = """import neutrino.language as nl
from neutrino import Map, probe

data = [1, 2, 3]
LIMIT = 1 << 2
LIMIT_NAME = "four"
print_it = len(data)

@Map(level="thread")
class Seen:
    value: nl.u32

count: nl.u32 = 0
total: int = 0

def twice(x):
    return x * 2

def of_the_program(rows):
    return [row for row in rows]

of_the_program(data)

@probe(pos="xor", level="thread", before=True)
def seen():
    Seen.save(twice(nl.u32(nl.in1)) + LIMIT)

@nl.probe(pos="nowhere at all", level="thread")
def unfinished():
    nl.save(1, dtype=nl.u32)

for item in data:
    total += item
"""


def cell(text: str, name: str, names: dict[str, Any]) -> None:
    """Run a cell as notebooks do: its text is in ``linecache`` under the name of its code."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)


def values(probes: neutrino.ProbeSet) -> list[int]:
    """What the probe of ``CELL`` saves of the numbers from 0 on."""
    words = np.arange(BLOCK, dtype=np.uint32)
    found: list[int] = run(probes, kernel(words, words))["Seen"].records["value"].reshape(-1).tolist()
    return found


WANTED = [2 * number + 4 for number in range(BLOCK)]


def test_a_cell_of_a_notebook() -> None:
    names: dict[str, Any] = {}
    cell(CELL, "<cell 1>", names)
    assert names["total"] == 6
    assert names["print_it"] == 3
    probes = neutrino.load_probes(names["seen"])
    assert [probe.name for probe in probes.probes] == ["seen"]
    assert values(probes) == WANTED
    with_three = neutrino.load_probes([names["seen"]], defines={"LIMIT": 3})
    assert values(with_three) == [number - 1 for number in WANTED]
    # Its faults are at its lines.
    with pytest.raises(ProbeError) as caught:
        neutrino.load_probes(names["unfinished"])
    (fault,) = caught.value.diagnostics
    assert (fault.file, fault.line, fault.source) == ("<cell 1>", 28, '@nl.probe(pos="nowhere at all", level="thread")')


def test_the_language_may_be_imported_in_another_cell() -> None:
    names: dict[str, Any] = {}
    cell("import neutrino.language as lang\n", "<cell 2>", names)
    text = (
        'step: lang.u32 = 2\n@lang.probe(pos="xor", level="thread")\ndef Seen():\n'
        "    value = lang.u32(lang.in1)\n    lang.save(value * step + 4, dtype=lang.u32)\n"
    )
    cell(text, "<cell 3>", names)
    assert values(neutrino.load_probes(names["Seen"])) == WANTED


def test_two_cells_and_a_file(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    cell(CELL, "<cell 4>", names)
    other = '@nl.probe(pos="xor", level="thread")\ndef other():\n    nl.save(7, dtype=nl.u32)\n'
    cell(other, "<cell 5>", names)
    probes = neutrino.load_probes([names["seen"], "block_sched", names["other"]])
    assert {item.name for item in probes.maps} == {"BlockSched", "Seen", "other"}


def test_a_map_and_constants_of_other_cells() -> None:
    """As notebooks have it: one cell for the map, one for numbers, and two whose probes save to the map."""
    names: dict[str, Any] = {}
    cell("import neutrino\nimport neutrino.language as nl\nBASE, STEP = 3, 2\ntotal: int = 5\n", "<cell 20>", names)
    cell("CAP = 2\nMASKED = 1 << 2\n", "<cell 21>", names)
    head = '# the map\n@neutrino.Map(\n    level="thread",\n    cap=CAP)\n'
    cell(head + "class Seen:\n    value: nl.u32\n\nshown = [1]\n", "<cell 22>", names)
    head = '@neutrino.probe(pos="xor", level="thread", before=True)\n'
    cell(head + "def first():\n    Seen.save(nl.u32(nl.in1) * STEP + MASKED)\n", "<cell 23>", names)
    assert values(neutrino.load_probes(names["first"]))[0] == WANTED[0]
    cell(head + "def second():\n    Seen.save(BASE)\n", "<cell 24>", names)
    both = neutrino.load_probes([names["first"], names["second"]])
    (seen,) = both.maps
    assert (seen.name, seen.cap) == ("Seen", 2)
    assert [item.name for item in both.probes] == ["first", "second"]
    # A map that ran again has other fields.
    cell('@neutrino.Map(level="thread")\nclass Seen:\n    value: nl.u32\n    more: nl.u32\n', "<cell 25>", names)
    with pytest.raises(ProbeError, match="1 values for the 2 fields of Seen") as caught:
        neutrino.load_probes(names["first"])
    assert (caught.value.diagnostics[0].file, caught.value.diagnostics[0].line) == ("<cell 23>", 3)


def test_a_map_of_another_cell_whose_text_is_gone() -> None:
    names: dict[str, Any] = {}
    text = 'import neutrino.language as nl\n@nl.Map(level="thread")\nclass Seen:\n    value: nl.u32\n'
    cell(text, "<cell 26>", names)
    cell('@nl.probe(pos="xor", level="thread")\ndef save():\n    Seen.save(1)\n', "<cell 27>", names)
    linecache.cache["<cell 26>"] = (0, None, [], "<cell 26>")
    with pytest.raises(NeutrinoError, match="the text of the map Seen is not known"):
        neutrino.load_probes(names["save"])


def test_a_map_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    head = "from neutrino import Map\nimport neutrino.language as nl\n\n\n"
    tmp_path.joinpath("kept_maps.py").write_text(head + '@Map(level="thread")\nclass Seen:\n    value: nl.u32\n')
    names: dict[str, Any] = {}
    text = 'import neutrino.language as nl\nfrom kept_maps import Seen\n@nl.probe(pos="xor", level="thread")\n'
    cell(text + "def save():\n    Seen.save(nl.u32(nl.in1) * 2 + 4)\n", "<cell 28>", names)
    assert values(neutrino.load_probes(names["save"])) == WANTED
    cell(text.replace("Seen", "Seen as S") + "def save():\n    S.save(1)\n", "<cell 30>", names)
    with pytest.raises(NeutrinoError, match="the map Seen is called S here"):
        neutrino.load_probes(names["save"])


def test_a_function_of_a_cell_without_a_decorator() -> None:
    names: dict[str, Any] = {}
    cell(CELL, "<cell 31>", names)
    with pytest.raises(ProbeError, match="function twice is no probe"):
        neutrino.load_probes([names["seen"], names["twice"]])


def test_what_is_of_probes_alone_says_so() -> None:
    names: dict[str, Any] = {}
    cell(CELL, "<cell 29>", names)
    with pytest.raises(TypeError, match=r"Seen\.save is for probes, which are compiled and not run"):
        names["Seen"].save(1)


def test_a_cell_that_ran_again() -> None:
    """Under its old name there is other text: the function of the first run has none."""
    names: dict[str, Any] = {}
    cell(CELL, "<cell 6>", names)
    first = names["seen"]
    cell("\n\n" + CELL, "<cell 6>", names)
    assert values(neutrino.load_probes(names["seen"])) == WANTED
    with pytest.raises(NeutrinoError, match="the text of seen is not known, or has changed"):
        neutrino.load_probes(first)


def test_a_module_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(CELL)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert values(neutrino.load_probes(module.seen)) == WANTED


def test_text() -> None:
    text = CELL.partition("@nl.probe")[0]
    program = ("data", "print_it", "LIMIT_NAME", "total", "def of_the", "    return [", "of_the")
    text = "\n".join(line for line in text.split("\n") if not line.startswith(program))
    assert values(neutrino.load_probes(source=text)) == WANTED
    with pytest.raises(ProbeError, match="<source>:1:1: error: 'import os'"):
        neutrino.load_probes(source="import os\n" + text)


def test_what_is_no_probe() -> None:
    with pytest.raises(NeutrinoError, match="is no probe: give a function"):
        neutrino.load_probes(len)  # type: ignore[arg-type]
    with pytest.raises(NeutrinoError, match="no probe is named"):
        neutrino.load_probes([])


@pytest.mark.parametrize("options", [["-c"], ["-"]])
def test_an_interpreter_without_the_text(options: list[str]) -> None:
    """``python -c`` may know the text, and a script on stdin has none: never another text than that which ran."""
    script = CELL.partition("@nl.probe")[0] + (
        "\nimport neutrino\ntry:\n    probes = neutrino.load_probes(seen)\n"
        "    print([item.name for item in probes.maps])\n"
        "except neutrino.NeutrinoError as error:\n    print(error)\n"
    )
    is_option = options == ["-c"]
    ended = subprocess.run(
        [sys.executable, *options, *([script] if is_option else [])], input=None if is_option else script,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout.startswith("the text of seen is not known") or ended.stdout == "['Seen']\n"


def test_a_probe_file_runs_as_a_program_too(tmp_path: Path) -> None:
    """It declares, and does nothing."""
    path = tmp_path / "p.py"
    path.write_text(CELL)
    subprocess.run([sys.executable, str(path)], check=True)
    with pytest.raises(TypeError, match=r"nl\.clock is for probes"):
        neutrino.language.clock()  # type: ignore[attr-defined]


def test_examples_can_be_imported() -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "probes"
    for path in sorted(folder.glob("*.py")):
        subprocess.run([sys.executable, str(path)], check=True)
        assert load_probe_file(path).probes
