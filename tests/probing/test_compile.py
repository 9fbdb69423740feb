"""``neutrino-probe compile``: the assembly of a Python probe is a probe file, and it records the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from neutrino.cli.probe import main
from neutrino.ptx.isa import opcodes
from neutrino.ptx.snippets import sites
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import written as write
from neutrino.verification import load_all, load_probe_file, read_probes
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, Kernel, make_twins
from tests.oracle.kernels import BRANCHES, KERNELS, MEMORY
from tests.probing.test_dialects import DRAFTS, records

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*DRAFTS.glob("*.py"), *(ROOT / "examples" / "probes").glob("*.py")])
CUDA = [path for path in sorted(DRAFTS.glob("*.toml")) if "hip" not in path.name]
LOCALS = """from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", cap=4)
class Seen:
    low: nl.u32
    turns: nl.u32

turns: nl.u32 = 0

@probe(pos="ld.global", level="thread", before=True)
def seen():
    low = nl.u32(nl.addr) & 0xff
    if low > 16:
        zähler = low * 2
        low = zähler + 1
    turns += 1
    Seen.save(low, turns)
"""


def both(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The file that ``compile`` writes of a probe: the same on stdout and with -o."""
    output = tmp_path / "compiled.toml"
    assert main(["compile", str(path), "--target", "sm_90", "-o", str(output)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["compile", str(path)]) == 0
    assert capsys.readouterr().out == output.read_text()
    return output


def test_there_are_examples() -> None:
    assert {"guide_block_sched.py", "website_block_sched.py", "loads.py"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_what_it_writes_records_the_same(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = both(path, tmp_path, capsys)
    found = []
    typed, assembly = load_probe_file(path), load_probe_file(output)
    for kernel in KERNELS:
        # Kernels without a site have no twin, of either form.
        is_probed = bool(make_twins(kernel, typed).kernels)
        assert is_probed == bool(make_twins(kernel, assembly).kernels), kernel.name
        if is_probed:
            bench = Bench(kernel, ())
            found.append(records(bench, typed))
            assert found[-1] == records(bench, assembly), kernel.name
    assert any(any(data) for maps in found for _, data, _ in maps)


@pytest.mark.parametrize("kernel", [MEMORY, BRANCHES], ids=lambda kernel: kernel.name)
def test_locals_and_names_beyond_ascii(
    kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.py"
    path.write_text(LOCALS)
    bench = Bench(kernel, ())
    typed = records(bench, load_probe_file(path))
    assert typed == records(bench, load_probe_file(both(path, tmp_path, capsys)))


def test_scratch_registers_stay_scratch(tmp_path: Path) -> None:
    """Variables of a function cost no register between two sites in the compiled file, either."""
    path = tmp_path / "p.py"
    path.write_text(LOCALS)
    typed = lower(load_probe_file(path))
    again = read_probes("p.toml", write(typed))
    assert {"%low$u32", "%z_hler$$0$u32", "%turns"} <= {item.name for item in again.registers}
    assert [(item.name, item.is_local) for item in again.registers] == [
        (item.name, item.is_local) for item in typed.registers
    ]
    assert [item.name for item in again.registers if not item.is_local] == ["%turns"]


@pytest.mark.parametrize("path", [*EXAMPLES, *CUDA], ids=lambda path: path.name)
def test_ptxas_takes_a_twin_with_each_example(path: Path) -> None:
    text = make_twins(MEMORY, load_probe_file(path)).render()
    cubin, said = assemble(text)
    assert cubin, said


def test_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.py"
    path.write_text(LOCALS)
    assert main(["compile", str(path), "-o", str(path)]) == 2
    assert "that is the probe itself" in capsys.readouterr().err
    assert path.read_text() == LOCALS
    assert main(["compile", str(path), "--target", "gfx90a"]) == 2
    assert "--target gfx90a: what probes become in GCN differs between processors" in capsys.readouterr().err
    assert main(["compile", str(path), "-o", str(tmp_path / "none" / "p.toml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    path.write_text(LOCALS.replace("turns += 1", "turns += two"))
    assert main(["compile", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "two has no value here" in captured.err


def test_several_probes_become_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.py"
    path.write_text(LOCALS)
    assert main(["compile", str(path), "block_sched"]) == 0
    merged = read_probes("m.toml", capsys.readouterr().out)
    assert {item.name for item in merged.maps} == {"Seen", "BlockSched"}


CALLS = """import neutrino.language as nl

def folded(value: nl.u32) -> nl.u32:
    half = value & 0xffff
    if half > 3:
        return half ^ value
    value += half
    return value

@nl.probe(pos="add | xor", level="thread", after=True)
def probed():
    total: nl.u32 = 0
{calls}
    nl.save(total, dtype=nl.u32)
"""


def work(calls: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often reading and verifying a probe of so many calls steps through syntax trees, and compares opcodes."""
    steps, rows = 0, 0
    children, find = ast.iter_child_nodes, opcodes.find

    def counted_children(node: ast.AST) -> object:
        nonlocal steps
        steps += 1
        return children(node)

    def counted_find(parts: tuple[str, ...]) -> opcodes.Opcode | None:
        nonlocal rows
        rows += 1
        return find(parts)

    line = "    x{0}: nl.u32 = nl.in1\n    total += folded(x{0})"
    text = CALLS.format(calls="\n".join(line.format(number) for number in range(calls)))
    sites.possible.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(ast, "iter_child_nodes", counted_children)
        patched.setattr(sites, "find", counted_find)
        load_all(source=text)
    return steps, rows


def test_a_further_call_repeats_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each call reads the function's statements again, but what they assign and where they end is found once; only the
    # names in its conditions, which may be constants in one call, are looked at in each.
    few, many = work(2, monkeypatch), work(12, monkeypatch)
    nodes = sum(1 for _ in ast.walk(ast.parse(CALLS.partition("@")[0])))
    assert many[0] - few[0] <= 10 * 2 < 10 * nodes < few[0] * 10
    # One search for each pattern of the tracepoint, however often the values of its instructions are read.
    assert few[1] == many[1] == 2
