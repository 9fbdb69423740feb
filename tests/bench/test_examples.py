"""The examples of the README and the documents: those that need no GPU run here, the others were recorded on one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.examples import DOCUMENTS, README, RECORDING, Block, blocks, figures, is_as_shown, run_block
from neutrino.errors import ToolMissingError
from neutrino.gcn.llvm import find_llvm

ALL = [block for document in DOCUMENTS for block in blocks(document.read_text())]


def need_amd() -> None:
    """Without the extra ``amd`` the test is skipped, with the reason."""
    pytest.importorskip("elftools")
    try:
        find_llvm("gfx942")
    except ToolMissingError as error:
        pytest.skip(error.hint)


def _name(block: Block) -> str:
    return block.examples[0].command


def test_the_readme_has_examples_of_both_sorts() -> None:
    assert {block.is_here for block in ALL} == {True, False}


@pytest.mark.parametrize("block", [block for block in ALL if block.is_here], ids=_name)
def test_the_output_is_what_the_commands_print(block: Block, tmp_path: Path) -> None:
    if block.is_built and not shutil.which("make"):
        pytest.skip("make is not on this machine")
    if block.is_of_amd:
        need_amd()
    for example, printed in zip(block.examples, run_block(block, tmp_path), strict=True):
        assert is_as_shown(printed, example.output), f"$ {example.command}\n{printed}"


@pytest.mark.parametrize("block", [block for block in ALL if not block.is_here], ids=_name)
def test_the_output_is_what_was_recorded(block: Block) -> None:
    recorded = json.loads(RECORDING.read_text())["outputs"]
    assert {example.command: example.output for example in block.examples} == {
        example.command: recorded[example.command] for example in block.examples
    }


def test_the_figures_are_those_of_the_raw_samples() -> None:
    assert figures() in README.read_text()
