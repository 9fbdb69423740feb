"""The bench that compares instruction by instruction: PTX is read as the assembler reads it, executions are what
threads did, the verdicts notice what is wrong, and the recorded run is judged again."""

from __future__ import annotations

import copy
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from bench import lines_verdicts
from bench.counted_causes import BESIDE, OWN
from bench.counted_groups import BY_NAME
from bench.counted_lines import (
    UnlikeError,
    executions,
    is_of,
    join,
    listings,
    numbered,
    probe_text,
    read_code,
    read_lines,
    to_json,
)
from neutrino.errors import ToolMissingError
from neutrino.ptx.text.module import parse
from neutrino.toolchain.location import find_tool
from neutrino.verification import read_probes
from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.kernels import BRANCHES, MEMORY, PRODUCTS
from tests.oracle.marked import plain_kernel
from tests.oracle.probes import Probe
from tests.oracle.random_kernels import kernels

Json = Any
_SCOPES = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry scopes(.param .u64 scopes_out)
{
.reg .u32 %r<4>; .reg .u64 %rd<3>; .reg .pred %p<3>;
.loc 1 7 0
ld.param.u64 %rd1, [scopes_out]; mov.u32 %r1, %tid.x;  // two; here
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
mov.u32 %r2, 0;
{
.reg .pred p;
AGAIN: setp.ge.u32 p, %r2, %r1;
@p bra DONE;
add.u32 %r2, %r2, 1;
bra AGAIN;
DONE:
}
{
AGAIN:
DONE: add.u32 %r2, %r2, 3;
setp.lt.u32 %p1, %r2, 40;
@!%p1 exit;
@%p1 bra.uni OUT;
}
OUT:
st.global.u32 [%rd1],
    %r2;
ret;
}
"""


def test_instructions_of_blocks_and_lines() -> None:
    (lines,) = read_lines(parse(_SCOPES)).values()
    opcodes = " ".join(line.instruction.parts[0] for line in lines)
    assert opcodes == "ld mov mul add mov setp bra add bra add setp exit bra st ret"
    assert [line.target for line in lines if line.instruction.parts[0] == "bra"] == [9, 5, 13]
    assert lines[13].text == "st.global.u32 [%rd1], %r2"
    assert executions(_shape(lines), 10, [10, 45, 4, 6])[4:] == [10, 55, 10, 45, 45, 10, 10, 4, 6, 6, 6]


@pytest.mark.parametrize(
    ("sites", "said"),
    [([10, 45, 4], "3 sites for 4"), ([9, 45, 4, 6], "executed 45 times, and 46 come"), ([10, 45, 11, 6], "11 times")],
)
def test_numbers_of_another_kernel_are_refused(sites: list[int], said: str) -> None:
    (lines,) = read_lines(parse(_SCOPES)).values()
    with pytest.raises(UnlikeError, match=said):
        executions(_shape(lines), 10, sites)


def _shape(lines: Any) -> list[tuple[str, bool, int | None]]:
    return [(line.instruction.opcode, line.instruction.predicate is not None, line.target) for line in lines]


def _check(kernel: Kernel) -> None:
    """Executions of each instruction, from the probe's records, beside those that the embedded device tells."""
    assume(kernel.entry in read_lines(parse(kernel.text)))
    plain, statements = plain_kernel(kernel)
    lines = read_lines(parse(plain.text))[kernel.entry]
    probe = Probe("lines", (), text=probe_text(300))
    bench = Bench(plain, (probe,), (None,))
    twins = bench.twins(probe)
    threads = kernel.geometry.blocks * kernel.geometry.threads
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason.word == "no-site", skip
        sites = []
    else:
        (twin,) = twins.kernels
        views, results = bench.run(probe, twin, twins.render(), None)
        assert results == bench.results(None)
        assert views["Sites"].dropped == 0
        saved = Counter(views["Sites"].valid()["site"].tolist())
        sites = [saved[number] for number in range(len(twin.sites))]
    own = [statement for statement in statements if statement.function == kernel.entry]
    expected = [statement.count("runs", "thread", kernel.geometry.threads) for statement in own]
    assert executions(_shape(lines), threads, sites) == expected


def test_branches_by_tables_are_left_out() -> None:
    assert BRANCHES.entry not in read_lines(parse(BRANCHES.text))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(kernels())
def test_executions_of_random_kernels(kernel: Kernel) -> None:
    _check(kernel)


def test_probe_is_sound() -> None:
    read_probes("lines.toml", probe_text(8))


@pytest.fixture(scope="module")
def tools() -> tuple[str, str]:
    """The assembler and the disassembler."""
    try:
        return str(find_tool("ptxas")), str(find_tool("nvdisasm"))
    except ToolMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("text", [_SCOPES, MEMORY.text, PRODUCTS.text])
def test_numbers_change_no_code(text: str, tools: tuple[str, str], tmp_path: Path) -> None:
    module = parse(text)
    lines = read_lines(module)
    (tmp_path / "plain.ptx").write_text(text)
    (tmp_path / "copy.ptx").write_text(numbered(module, lines))
    for name, options in (("plain", []), ("copy", ["-lineinfo"])):
        output = str(tmp_path / f"{name}.cubin")
        subprocess.run([tools[0], "-arch=sm_80", *options, str(tmp_path / f"{name}.ptx"), "-o", output], check=True)
    cubin = tmp_path / "copy.cubin"
    said = subprocess.run([tools[1], "-g", str(cubin)], check=True, capture_output=True, text=True).stdout
    found = listings(module, cubin, said, [tmp_path / "plain.cubin"])
    assert {listing.name for listing in found} == set(lines) != set()
    for listing in found:
        assert all(0 <= place < len(listing.lines) for _, place in listing.machine)
        stores = [place for text, place in listing.machine if "STG" in text]
        assert stores
        assert all(listing.lines[place].instruction.opcode.startswith("st") for place in stores)
        assert is_of(listing, [text for text, _ in listing.machine])
        assert not is_of(listing, [text for text, _ in listing.machine][1:])
    other = tmp_path / "other.cubin"
    subprocess.run([tools[0], "-arch=sm_80", "-O1", str(tmp_path / "plain.ptx"), "-o", str(other)], check=True)
    assert read_code(other)
    if text == MEMORY.text:
        assert listings(module, cubin, said, [other, tmp_path / "absent"]) == []
    profile = {"kernel": found[0].name, "rows": [(text, 1, 32, 31) for text, _ in found[0].machine]}
    (row,) = join(found, [profile], [])
    assert row["machine"][0] == [found[0].machine[0][0][:48], found[0].machine[0][1], 31]
    assert json.loads(to_json({"programs": {"x": [row]}})) == {"programs": {"x": [row]}}
    assert "why" in join([], [profile], [])[0]


def _good() -> tuple[Json, Json]:
    """64 threads, of which 40 load, add and store; the assembler made a predicate of the branch."""
    ptx = [
        "ld.param.u64 %rd1, [p]", "mov.u32 %r1, %tid.x", "setp.ge.u32 %p1, %r1, 40", ["@%p1 bra $END", 7],
        "ld.global.u32 %r2, [%rd1]", "add.s32 %r2, %r2, %r1", "st.global.u32 [%rd1], %r2", "ret",
    ]  # fmt: skip
    machine = [
        ["LDC R1, c[0x0][0x28]", 0, 64], ["S2R R0, SR_TID.X", 1, 64], ["ISETP.GE.U32.AND P0, PT, R0, 0x28, PT", 2, 64],
        ["@P0 EXIT", 3, 24], ["LDC.64 R2, c[0x0][0x210]", 4, 40], ["LDG.E R3, desc[UR4][R2.64]", 4, 40],
        ["IADD3 R3, R3, R0, RZ", 5, 40], ["STG.E desc[UR4][R2.64], R3", 6, 40], ["EXIT", 7, 40], ["NOP", 7, 0],
    ]  # fmt: skip
    groups = dict.fromkeys(BY_NAME, 0) | {
        "load_constant": 64, "move": 64, "compare": 64, "branch": 24, "load_global": 40, "integer": 40,
        "store_global": 40, "end": 64,
    }  # fmt: skip
    row = {"kernel": "k", "reason": "probed", "detail": "", "grid": [1, 1, 1], "block": [64, 1, 1],
           "registers": {"original": 8, "twin": 12}}
    opcodes = {"LDC": 104, "S2R": 64, "ISETP": 64, "EXIT": 64, "LDG": 40, "IADD3": 40, "STG": 40}
    profile = {"kernel": "k", "metrics": {}, "machine": {name: [2, count, count] for name, count in opcodes.items()},
               "shared": {}, "accessed": {}}  # fmt: skip
    runs = {name: {"outputs": {"k": "1"}, "launches": [{**row, "maps": maps}], "unprobed": []} for name, maps in {
        "memory": {"GmemBytes": {}}, "shared": {}, "branches": {"BranchDivergence": {"taken": 24}},
        "instructions": {"InstCount": {"all": sum(groups.values())}, "Groups": groups},
    }.items()}  # fmt: skip
    about = {"tree": "t", "started": 1}
    counters = {**about, "programs": {"p": {"outputs": {"k": "1"}, "ncu": [profile], **runs,
                                            "lines": {"outputs": {"k": "1"}}}}}  # fmt: skip
    launch = {"kernel": "k", "ptx": ptx, "machine": machine, "sites": [24], "dropped": 0}
    return {**about, "programs": {"p": [launch]}}, counters


def test_good_results_are_good() -> None:
    result, counters = _good()
    assert [verdict for verdict in lines_verdicts.judge(result, counters) if not verdict.good] == []
    told = "\n".join(lines_verdicts.report(result, counters, "k"))
    assert "   4         24         24         +0  @%p1 bra $END" in told
    assert "-24    became predicates of what it jumped over" in told
    assert "+40    LDC loads a parameter or constant" in told
    assert "-24    the other threads end at the branch that goes here" in told


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sites",), [23]),
        (("sites",), []),
        (("dropped",), 1),
        (("kernel",), "another"),
        (("why",), "no text"),
        (("machine", 5, 2), 39),
        (("machine", 5, 1), 5),
        (("machine", 7, 0), "ATOMG.ADD R0"),
        (("machine", 4, 0), "IDP.4A R0, R1, R2, R3"),
        (("ptx", 4), "ld.shared.u32 %r2, [%rd1]"),
        (("ptx", 3, 1), 6),
        (("machine",), []),
    ],
)
def test_what_is_wrong_is_noticed(path: tuple[Any, ...], value: Json) -> None:
    result, counters = _good()
    place = result["programs"]["p"][0]
    for step in path[:-1]:
        place = place[step]
    assert copy.deepcopy(place.get(path[-1]) if isinstance(place, dict) else place[path[-1]]) != value
    place[path[-1]] = value
    assert not all(verdict.good for verdict in lines_verdicts.judge(result, counters))


def test_each_opcode_is_compared_with_the_profile() -> None:
    """Also where their sum is right, and where loops wait."""
    for more, less in (("LDC", "S2R"), ("IADD3", "EXIT"), ("SYNCS", "LDG")):
        result, counters = _good()
        machine = counters["programs"]["p"]["ncu"][0]["machine"]
        machine.setdefault(more, [0, 0, 0])[2] += 1
        machine[less][2] -= 1
        wrong = [verdict for verdict in lines_verdicts.judge(result, counters) if not verdict.good]
        assert any(f"{more}: " in verdict.figure and f"{less}: " in verdict.figure for verdict in wrong), more


def test_other_branches_are_noticed() -> None:
    result, counters = _good()
    counters["programs"]["p"]["branches"]["launches"][0]["maps"]["BranchDivergence"]["taken"] = 25
    assert [verdict.case for verdict in lines_verdicts.judge(result, counters) if not verdict.good] == ["p 0 k lines"]


def test_another_run_is_noticed() -> None:
    result, counters = _good()
    counters["started"] = 2
    assert not all(verdict.good for verdict in lines_verdicts.judge(result, counters))
    result, counters = _good()
    counters["programs"]["p"]["lines"]["outputs"] = {"k": "2"}
    assert not all(verdict.good for verdict in lines_verdicts.judge(result, counters))


@pytest.mark.skipif(not lines_verdicts.RESULTS.exists(), reason="no run on a GPU has been recorded")
def test_recorded_run() -> None:
    result = json.loads(lines_verdicts.RESULTS.read_text())
    counters = json.loads(lines_verdicts.RESULTS.with_name("counters_h200.json").read_text())
    assert "H200" in result["device"]
    wrong = [verdict for verdict in lines_verdicts.judge(result, counters) if not verdict.good]
    assert wrong == []


def test_causes_are_of_groups() -> None:
    assert {group for group, _ in OWN} <= set(BY_NAME)
    assert all(OWN.values())
    assert all(BESIDE.values())
