"""Ranges that are marked in Triton kernels, in PTX that Triton made of the form that docs/tracepoints.md has."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from neutrino.verification import load_all
from tests.oracle.assembling import assemble
from tests.oracle.bench import Kernel, make_twins, skip_of
from tests.oracle.typed import run

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "tests" / "fixtures" / "marks"
_ROWS, _COLUMNS, _BLOCK, _THREADS = 3, 443, 512, 128
_M, _N, _K, _TILE, _DEPTH = 64, 128, 96, 64, 32
_HEAD = "from neutrino import probe, Map\nimport neutrino.language as nl\n"


def _kernel(name: str, entry: str) -> Kernel:
    random = np.random.default_rng(3)
    text = (_FOLDER / f"{name}.ptx").read_text()
    # Triton's own parameters at the end: scratch memory, which these kernels do not use.
    scratch = (np.uint64(0), np.uint64(0))
    if entry == "softmax":
        values = random.standard_normal((_ROWS, _COLUMNS)).astype(np.float32)
        vectors = (values, np.zeros_like(values), np.int32(_COLUMNS), *scratch)
        return Kernel(name, text, entry, (_ROWS, 1, 1), (_THREADS, 1, 1), vectors, shared=16)
    left, right = random.standard_normal((_M, _K)), random.standard_normal((_K, _N))
    result = np.zeros((_M, _N), np.float32)
    arguments = (left.astype(np.float16), right.astype(np.float16), result, np.int32(_N), np.int32(_K), *scratch)
    return Kernel(name, text, entry, (_M // _TILE, _N // _TILE, 1), (_THREADS, 1, 1), arguments, shared=16384)


def _counted(kernel: Kernel, positions: dict[str, str]) -> dict[str, int]:
    """How many threads were at each position: in a sum, the field of that name."""
    source = f'{_HEAD}@Map(level="thread", type="sum")\nclass Sums:\n'
    source += "".join(f"    {name}: nl.u64\n" for name in positions)
    for at, (name, position) in enumerate(positions.items()):
        amounts = ", ".join(str(int(other == at)) for other in range(len(positions)))
        source += f'@probe(pos="{position}", level="thread", before=True)\ndef at_{name}():\n    Sums.save({amounts})\n'
    totals: dict[str, int] = run(load_all(source=source), kernel)["Sums"].total()
    return totals


def test_ranges_of_a_softmax() -> None:
    threads = _ROWS * _THREADS
    assert _counted(_kernel("softmax_sm_90", "softmax"), {
        "load_marks": "range:load", "softmax_marks": "range:softmax", "loads": "ld.global range:load",
        "others": "ld.global !range:load", "powers": "ex2 range:softmax", "other_powers": "ex2 !range:softmax",
        "stores": "st.global !range:*", "inner_stores": "st.global range:*",
    }) == {
        "load_marks": threads, "softmax_marks": threads, "loads": _ROWS * _COLUMNS, "others": 0,
        "powers": _ROWS * _BLOCK, "other_powers": 0, "stores": _ROWS * _COLUMNS, "inner_stores": 0,
    }  # fmt: skip


def test_ranges_in_a_pipelined_loop() -> None:
    """Copies are issued ahead, outside of the range that the source has them in; the wait for them is in it."""
    threads, turns = _M // _TILE * (_N // _TILE) * _THREADS, _K // _DEPTH
    # A warp has a quarter of the tile, and an mma is m16n8k16.
    products = _TILE // 16 * (_TILE // 8) * (_DEPTH // 16) // (_THREADS // 32)
    assert _counted(_kernel("matmul_sm_80", "matmul"), {
        "fetches": "range:fetch", "dots": "range:dot", "products": "mma range:dot", "others": "mma !range:dot",
        "copies": "cp.async.cg range:fetch", "waits": "cp.async.wait_group range:fetch",
    }) == {
        "fetches": threads * turns, "dots": threads * turns, "products": threads * turns * products, "others": 0,
        "copies": 0, "waits": threads * turns,
    }  # fmt: skip


@pytest.mark.usefixtures("ptxas")
def test_clocks_around_wgmma_assemble() -> None:
    """``ptxas`` warns where something serialises them."""
    source = f"""{_HEAD}
start: nl.u64 = 0
@Map(level="warp", type="hash")
class Cycles:
    site: nl.u32
    cycles: nl.u64
@probe(pos="range:dot", level="warp", before=True)
def begin():
    start = nl.clock()
@probe(pos="range:dot", level="warp", after=True)
def end():
    Cycles.save(nl.site, nl.clock() - start)
"""
    twins = make_twins(_kernel("matmul_sm_90", "matmul"), load_all(source=source))
    assert skip_of(twins) is None, skip_of(twins)
    cubin, said = assemble(twins.render(), quick=False)
    assert said == ""
    assert cubin


def test_the_page_has_this_source() -> None:
    page = (ROOT / "docs" / "tracepoints.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = [block for block in blocks if "inline_asm_elementwise" in block]
    source = (_FOLDER / "kernels.py").read_text()
    for function in block.strip().split("\n\n\n"):
        assert function.removeprefix("import triton\nimport triton.language as tl\n").strip() in source
    for path in _FOLDER.glob("*.ptx"):
        names = set(re.findall(r"// neutrino begin (\w+)", path.read_text()))
        assert names
        assert all(f'"// neutrino begin {name}"' in source for name in names)
