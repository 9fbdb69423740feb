"""The corpus of AMD's code objects: what was recorded, and what its judge says of changed figures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bench.recorded import load
from bench.tree import ROOT
from neutrino.gcn.code import Instruction
from tests.gcn import corpus_text

Json = Any


@pytest.fixture(scope="module")
def recorded() -> Json:
    return load(corpus_text.RESULTS)


def test_all_verdicts_hold(recorded: Json) -> None:
    assert [text for text, holds in corpus_text.verdicts(recorded) if not holds] == []


def test_the_page_has_the_table(recorded: Json) -> None:
    page = (ROOT / "docs" / "extract.md").read_text()
    assert f"<!-- corpus-amd -->\n{corpus_text.table(recorded)}\n<!-- end -->" in page


def _less(row: Json) -> None:
    row["identical"] -= 1


def _unexplained(row: Json) -> None:
    row["data"]["unexplained"] = 1


def _refused(row: Json) -> None:
    row["refused"]["s_foo"] = 10**6


def _slow(row: Json) -> None:
    row["seconds"] = 10**6


def _other(row: Json) -> None:
    row["processor"] = "gfx906"


@pytest.mark.parametrize("change", [_less, _unexplained, _refused, _slow, _other])
def test_a_changed_figure_is_noticed(recorded: Json, change: Callable[[Json], None]) -> None:
    results = copy.deepcopy(recorded)
    # Of the one source with code for gfx950, which all sources have but clang.
    for row in results["rows"]:
        if row["processor"] == "gfx950":
            change(row)
    assert [text for text, holds in corpus_text.verdicts(results) if not holds]


@pytest.mark.parametrize(("mnemonic", "code", "encoded", "why"), [
    ("v_add_co_u32", "006a00d708000200", "006a00d708000202", "unused operand"),
    ("v_s_exp_f32", "050080d605000000", "050080d605000102", "unused operand"),
    ("v_mul_f32_e64", "010008d5ff0a00000000804f", "010008d5ff0a00020000804f", "unused operand"),
    ("s_waitcnt_depctr", "03ffa3bf", "83ffa3bf", "unused bits"),
    ("buffer_wbl2", "00c0a0e000000000", "0000a0e000000000", "unused bits"),
    ("v_mov_b16_e32", "ff38187e7fffffff", "ff38187e7fff0000", "16-bit literal"),
    ("v_cndmask_b32_e32", "00000000", "", "no instruction"),
    # The result's register, the first operand, another instruction, a literal, another length.
    ("v_add_co_u32", "016a00d708000200", "006a00d708000200", ""),
    ("v_add_co_u32", "006a00d709000200", "006a00d708000200", ""),
    ("v_mul_f32_e64", "010008d5ff0a00000000804e", "010008d5ff0a00000000804f", ""),
    ("s_waitcnt_depctr", "02ffa3bf", "83ffa3bf", ""),
    ("buffer_wbl2", "00c0a0e000000001", "0000a0e000000000", ""),
    ("v_mov_b16_e32", "ff38187e7fffffff", "ff38187e7ffe0000", ""),
    ("s_mov_b32", "ff0080be00000000", "800080be", ""),
])  # fmt: skip
def test_reasons_are_narrow(mnemonic: str, code: str, encoded: str, why: str) -> None:
    row = Instruction(0, len(code) // 2, mnemonic, (), (), mnemonic)
    assert corpus_text.reason(bytes.fromhex(code), row, bytes.fromhex(encoded)) == why
