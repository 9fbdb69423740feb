"""docs/emulator.md lists all instructions of the manual that the device does not run, and no other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from neutrino.emulator.code import module_code
from neutrino.emulator.kernel import kernel_of
from neutrino.errors import PtxRefusedError
from neutrino.ptx.isa.opcodes import OPCODES, find

_ROOT = Path(__file__).parents[2]
_REGISTERS = (
    ".reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<140>; .reg .f32 %f<140>;\n"
    ".reg .b64 %rd<16>; .reg .f64 %d<16>; .reg .b128 %q<4>; .shared .align 128 .b8 smem[256];"
)


def _examples() -> list[tuple[str, str, tuple[str, ...]]]:
    # One instruction at least for each row of the table of opcodes, which test_opcodes of tests/ptx sees to.
    sys.path.insert(0, str(_ROOT / "tests" / "ptx"))
    try:
        from isa_examples import EXAMPLES
    finally:
        sys.path.pop(0)
    return EXAMPLES


def _runs(instruction: str) -> bool:
    """Whether the device makes code for an instruction, whatever architecture it needs."""
    table = "table: .branchtargets L1;" if instruction.startswith("brx") else ""
    text = (
        ".version 9.0\n.target sm_90\n.address_size 64\n.func helper() { ret; }\n"
        f".entry k(.param .u64 a)\n{{\n{_REGISTERS}{table}\n{instruction};\nL1:\nret;\n}}\n"
    )
    try:
        kernel_of(module_code(text), "k").units(observed=False)
    except PtxRefusedError:
        return False
    return True


def _listed() -> tuple[set[str], set[str]]:
    """The instructions that the page says the device refuses in all forms, and those in some."""
    page = (_ROOT / "docs" / "emulator.md").read_text()
    section = page[page.index("## What it does not do") :]
    section = section[: section.index("\n## ", 1)]
    whole, _, partly = section.partition("Of these, some forms:")
    return set(re.findall(r"`([a-z][\w.:]*)`", whole)), set(re.findall(r"^- `([a-z][\w.]*)`", partly, re.MULTILINE))


def test_the_page_lists_what_is_refused() -> None:
    outcomes: dict[str, set[bool]] = {}
    for _, instruction, _ in _examples():
        row = find(tuple(instruction.split()[0].split(".")))
        assert row is not None
        outcomes.setdefault(row.text, set()).add(_runs(instruction))
    # The two that no assembler takes for what the device runs are not among the examples.
    assert {row.text for row in OPCODES} - outcomes.keys() == {"shfl", "vote"}
    whole, partly = _listed()
    assert whole == {name for name, runs in outcomes.items() if runs == {False}}
    assert partly == {name for name, runs in outcomes.items() if len(runs) == 2}


@pytest.mark.parametrize("instruction", ["add.u32 %r1, %r2, %r3", "unheard.of %r1"])
def test_what_runs_is_told_apart(instruction: str) -> None:
    assert _runs(instruction) == instruction.startswith("add")
