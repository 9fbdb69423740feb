"""The README's examples: those that need no GPU run here, the others were recorded on one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.examples import HERE, README, RECORDING, ROOT, Example, examples, figures, run

ALL = examples(README.read_text())


def test_the_readme_has_examples_of_both_sorts() -> None:
    assert [example for example in ALL if example.command.startswith(HERE)]
    assert [example for example in ALL if not example.command.startswith(HERE)]


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.command)
def test_the_output_is_what_the_command_prints(example: Example, tmp_path: Path) -> None:
    if example.command.startswith(HERE):
        shutil.copytree(ROOT / "tools", tmp_path / "tools")
        assert run(example.command, tmp_path) == example.output
    else:
        assert json.loads(RECORDING.read_text())["outputs"][example.command] == example.output


def test_the_figures_are_those_of_the_raw_samples() -> None:
    assert figures() in README.read_text()
