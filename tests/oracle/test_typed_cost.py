"""Typed probes cost no more registers and machine instructions than the same ones in hand-written assembly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from bench.registers import COLUMNS, FIXTURES, examine
from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map
from neutrino.maps.registry import SUM
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.operands import Constant, Register, SiteOperand, Special
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import (
    Collective,
    Compare,
    If,
    Load,
    Operation,
    Operator,
    Reduction,
    Relation,
    Save,
    Statement,
)
from neutrino.probing.ir.types import Type
from neutrino.probing.model import Lanes
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.probing.writing import trace_text
from neutrino.ptx.snippets.lowering import lower
from neutrino.resources import shipped_probes
from neutrino.toolchain.choice import find_assembler
from tests.oracle.typed import HERE, a_map, local, sealed

FILES = (
    "clang/atomics.ptx", "clang/histograms.ptx", "hand/jumps.ptx", "hand/tensors.ptx", "triton/argmax.ptx",
    "triton/layernorm_bf16.ptx", "triton/softmax_sm_90.ptx",
)  # fmt: skip
HEAD = "from neutrino import probe, Map\nimport neutrino.language as nl\n"


def _shipped(name: str) -> str:
    return Path(shipped_probes()[name]).read_text()


def _counting(text: str) -> str:
    """A file of TOML whose probes but ``total`` each add ``BYTES`` or 1 to a register, in Python."""
    fields = re.search(r"^data = \{ (.*) \}", text, re.MULTILINE)
    saved = re.search(r"SAVE \[ (\w+) \] \{ (.*) \};", text)
    assert fields is not None
    assert saved is not None
    lines = [HEAD, '@Map(level="thread", type="sum")', f"class {saved[1]}:"]
    # Fields may be called as Python's keywords are.
    lines += [f"    f_{field.split(' = ')[0].strip()}: nl.u64" for field in fields[1].split(",")]
    # Some are called as functions of Python are.
    registers = [f"n_{register}" for register in saved[2].replace("%", "").split(", ")]
    lines += ["", *(f"{register}: nl.u64 = 0" for register in registers)]
    for name, position, body in re.findall(
        r'^\[probe\.(\w+)\]\nposition = "(.*)"\nlevel = "thread"\nbefore = "(.*)"$', text, re.MULTILINE
    ):
        added = re.fullmatch(r"add\.u64 %(\w+), %\1, (BYTES|1);", body)
        assert added is not None
        amount = {"BYTES": "nl.bytes()", "1": "1"}[added[2]]
        lines += ["", f'@probe(pos="{position}", level="thread", before=True)', f"def at_{name}():"]
        lines += [f"    n_{added[1]} += {amount}"]
    lines += ["", '@probe(pos="kernel", level="thread")', "def total():"]
    return "\n".join([*lines, f"    {saved[1]}.save({', '.join(registers)})"]) + "\n"


def _without_generic(text: str) -> str:
    """Without the probes whose snippets ask whether an address is global, which Python cannot."""
    return re.sub(r'^\[probe\.\w+_generic\]\n.*?"""\n.*?"""\n', "", text, flags=re.MULTILINE | re.DOTALL)


BLOCK_SCHED = f"""{HEAD}
start: nl.u64 = 0

@Map(level="warp", type="array", size=16, cap=1)
class BlockSched:
    start: nl.u64
    elapsed: nl.u32
    cuid: nl.u32

@probe(pos="kernel", level="warp", before=True)
def begins():
    start = nl.clock()

@probe(pos="kernel", level="warp")
def ends():
    elapsed: nl.u32 = nl.clock() - start
    BlockSched.save(start, elapsed, nl.cuid())
"""


def _probe(name: str, position: str, body: Sequence[Statement], *, lanes: Lanes = Lanes.EXECUTING, after: bool = False):  # type: ignore[no-untyped-def]
    tracepoint, faults = parse_tracepoint(position)
    assert tracepoint is not None
    assert not faults
    snippet = Snippet(tuple(body))
    sides = (None, snippet) if after else (snippet, None)
    return Probe(name, tracepoint, Level.THREAD, *sides, HERE, lanes)


def _branch_divergence() -> str:
    """The shipped probe in typed statements, lowered and written as TOML."""
    sums = [Register(f"%{name}", Type.U64, 0, HERE) for name in ("branches", "diverged", "taken", "passed")]
    branches, diverged, taken, passed = sums
    entry = a_map("BranchDivergence", ["u64"] * 4, kind=SUM)
    words = ("here", "branching", "below", "lower", "others")
    here, branching, below, lower, others = numbers = [local(name, Type.U32) for name in words]
    takes, first, leads, split = predicates = [
        local(name, Type.PRED) for name in ("takes", "first", "leads", "split")
    ]

    def adds(register: Register) -> tuple[Statement, ...]:
        return (Operation(Operator.ADD, register, (register, Constant(Type.U64, 1)), HERE),)

    def of_lowest(lanes: Register, leads: Register, lower: Register) -> tuple[Statement, ...]:
        return (
            Operation(Operator.AND, lower, (lanes, below), HERE),
            Compare(Relation.EQ, leads, lower, Constant(Type.U32, 0), HERE),
        )

    body = (
        Load(here, SiteOperand("LANES"), HERE), Load(takes, SiteOperand("PRED"), HERE),
        Operation(Operator.MOVE, below, (Special.LANEMASK_LT,), HERE),
        *of_lowest(here, first, lower), If(first, adds(branches), (), HERE),
        If(
            takes,
            (
                Collective(Reduction.BALLOT, branching, Constant(Type.PRED, 1), HERE),
                *of_lowest(branching, leads, others), Compare(Relation.NE, split, branching, here, HERE),
                Operation(Operator.AND, split, (split, leads), HERE),
                If(split, adds(diverged), (), HERE), *adds(taken),
            ),
            adds(passed), HERE,
        ),
    )  # fmt: skip
    return _written((entry,), (*sums, *numbers, *predicates), (
        _probe("total", "kernel", (Save(entry, tuple(sums), HERE),), after=True),
        _probe("branch", "bra @", body, lanes=Lanes.REACHING),
    ))  # fmt: skip


def _operations() -> str:
    """Typed statements that add what matrix instructions compute, as ``tensorop`` does."""
    total, amount = Register("%total", Type.U64, 0, HERE), local("amount", Type.U64)
    entry = a_map("Operations", ["u64"], kind=SUM)
    body = (Load(amount, SiteOperand("OPS"), HERE), Operation(Operator.ADD, total, (total, amount), HERE))
    return _written((entry,), (total, amount), (
        _probe("total", "kernel", (Save(entry, (total,), HERE),), after=True), _probe("tensor", "mma", body),
    ))  # fmt: skip


OPERATIONS = """
[map.Operations]
type = "sum"
level = "thread"
data = { f0 = "u64" }
[probe.total]
position = "kernel"
level = "thread"
after = ".reg .u64 %total; SAVE [ Operations ] { %total };"
[probe.tensor]
position = "mma"
level = "thread"
before = "add.u64 %total, %total, OPS;"
"""


def _written(maps: tuple[Map, ...], registers: tuple[Register, ...], probes: tuple[Probe, ...]) -> str:
    return trace_text(lower(sealed(DraftProbes("p.py", "", maps, registers, probes))))


CASES = {
    "block_sched": (_shipped("block_sched"), BLOCK_SCHED, "py"),
    "inst_count": (_shipped("inst_count"), _counting(_shipped("inst_count")), "py"),
    "gmem_bytes": (
        _without_generic(_shipped("gmem_bytes")), _counting(_without_generic(_shipped("gmem_bytes"))), "py",
    ),
    "tensorop": (OPERATIONS, _operations(), "toml"),
    "branch_divergence": (_shipped("branch_divergence"), _branch_divergence(), "toml"),
}  # fmt: skip


MORE_REGISTERS = {"branch_divergence": 1.5}
"""By probe, how many more there may be in the mean over the kernels: its assembly keeps in registers of the whole
kernel what is scratch in the typed statements, and ptxas allocates a few differently, in both directions."""


@pytest.mark.parametrize("name", CASES)
def test_they_cost_no_more(name: str, tmp_path: Path, ptxas: object) -> None:
    """Machine instructions and registers of the twins of all kernels together, at most those with the assembly."""
    by_hand, typed, ending = CASES[name]
    paths = [tmp_path / "hand.toml", tmp_path / f"typed.{ending}"]
    paths[0].write_text(by_hand)
    paths[1].write_text(typed)
    by_kernel: list[tuple[str, int, int]] = []
    for file in FILES:
        text = (FIXTURES / file).read_bytes().decode("latin-1")
        found = examine(file, text, [str(path) for path in paths], find_assembler())
        hand, own = (
            {row[1]: dict(zip(COLUMNS, row, strict=True)) for row in found[str(path)] if row[2] == "probed"}
            for path in paths
        )
        # Of a sum, kernels without a site are left out where the file says so as TOML does.
        assert hand.keys() <= own.keys()
        for kernel, row in ((kernel, own[kernel]) for kernel in hand):
            more = (row[column] - hand[kernel][column] for column in ("with", "instructions_with"))
            by_kernel.append((kernel, *more))
    assert by_kernel
    assert sum(instructions for _, _, instructions in by_kernel) <= 0, by_kernel
    assert fmean(registers for _, registers, _ in by_kernel) <= MORE_REGISTERS.get(name, 0), by_kernel
