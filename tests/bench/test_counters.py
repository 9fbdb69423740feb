"""The bench that compares with Nsight Compute: its pages are read, its verdicts notice what is wrong, and the recorded
run is judged again."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bench import counted_ncu, counters_verdicts
from bench.counted_groups import BY_NAME, GROUPS, machine_opcode, probe_text
from neutrino.ptx.analysis.matching import Matcher
from neutrino.ptx.isa.opcodes import OPCODES
from neutrino.verification import read_probes

Json = Any

# As ncu 2025.3.1 prints them on an H200; it prints the source page of each launch twice.
_RAW = """==PROF== Connected to process 851 (/tmp/k)
"ID","Kernel Name","Block Size","Grid Size","smsp__inst_executed.sum","sm__ops_path_tensor_src_fp8.sum","smsp__thread_inst_executed_pred_on.sum"
"","","","","inst","","inst"
"0","vadd","(256, 1, 1)","(1000, 1, 1)","159,964","n/a","4,862,900"
"1","bank","(128, 1, 1)","(4, 1, 1)","480","0","15360"
"""  # noqa: E501
_TITLE = (
    '"Address","Source","# Samples","Instructions Executed","Thread Instructions Executed",'
    '"Predicated-On Thread Instructions Executed","Address Space","Access Operation","Access Size",'
    '"L1 Wavefronts Shared","L1 Wavefronts Shared Ideal"'
)
_VADD = f""""Kernel Name","vadd"
{_TITLE}
"0x00","@P0   EXIT","0","8000","256000","100","-","-","-","0","0"
"0x10","      LDG.E R3, desc[UR4][R2.64]","0","7997","255900","255900","Global","Load","32","0","0"
"0x20","      IMAD.MOV.U32 R7, RZ, RZ, RZ","0","7997","255900","255900","-","-","-","0","0"
"0x30","      NOP","0","0","0","0","-","-","-","0","0"
"""
_BANK = f""""Kernel Name","bank"
{_TITLE}
"0x40","      LDS R7, [R4]","0","16","512","512","Shared","Load","32","64","16"
"0x50","      LDS.128 R8, [R4]","0","16","512","512","Shared","Load","128","96","64"
"""


def test_pages_are_read() -> None:
    vadd, bank = counted_ncu.read(_RAW, _VADD + _VADD + _BANK + _BANK)
    assert vadd.kernel == "vadd"
    assert vadd.metrics["smsp__inst_executed"] == 159964
    assert vadd.metrics["sm__ops_path_tensor_src_fp8"] is None
    assert vadd.machine == {
        "EXIT": [8000, 256000, 100], "LDG": [7997, 255900, 255900], "MOV": [7997, 255900, 255900],
    }  # fmt: skip
    assert vadd.accessed == {"LDG": 4 * 255900}
    assert bank.shared == {"load": [16, 64, 16], "load_128": [16, 96, 64]}
    assert bank.accessed == {"LDS": 20 * 512}
    once = counted_ncu.read(_RAW, _VADD + _BANK)
    assert once == [vadd, bank]


def test_pages_of_other_launches_are_refused() -> None:
    with pytest.raises(ValueError, match="the pages differ"):
        counted_ncu.read(_RAW, _VADD)
    with pytest.raises(ValueError, match="no CSV"):
        counted_ncu.read("==ERROR== no permission", _VADD)


@pytest.mark.parametrize(
    ("text", "opcode"),
    [
        ("@!UP0 UTMALDG.2D [UR8], [UR4]", "UTMALDG"),
        ("IMAD.MOV.U32 R5, RZ, RZ, 0x7", "MOV"),
        ("IMAD.WIDE R2, R9, 0x4, R2", "IMAD"),
        ("HFMA2.MMA R7, -RZ, RZ, 0, 5.364418029785e-07", "MOV"),
        ("HFMA2.MMA R7, R1, R2, R3", "HFMA2"),
        ("FADD.FTZ R1, -R2, -RZ", "MOV"),
        ("", ""),
    ],
)
def test_machine_opcodes(text: str, opcode: str) -> None:
    assert machine_opcode(text)[0] == opcode


def test_no_instruction_is_in_two_groups() -> None:
    probes = read_probes("groups.toml", probe_text())
    assert Matcher(probes.probes)
    machine = [opcode for group in GROUPS for opcode in group.machine]
    assert len(machine) == len(set(machine))
    patterns = {probe.name: probe.tracepoint for probe in probes.probes if probe.name in BY_NAME}
    for kind in ("f32", "f64", "bf16x2", "u32"):
        for row in OPCODES:
            if row.section.startswith("9.7.5 "):
                continue  # Sums of two types, of sm_100.
            parts = [alternatives[0] for alternatives in row.name]
            parts += [] if parts[-1] in {"f32", "f64", "f16", "bf16"} else [kind]
            found = [name for name, tracepoint in patterns.items() if tracepoint.matches(parts, row.classes)]
            assert len(found) <= 1, (parts, found)


def _kernel(index: int, program: str) -> tuple[Json, dict[str, Json]]:
    """A launch of 64 threads that load, multiply and end; the first ones also use matrices."""
    groups = dict.fromkeys(BY_NAME, 0) | {"load_global": 128, "load_constant": 64, "single": 64, "end": 64}
    machine = {"LDG": [4, 128, 128], "FFMA": [2, 64, 64], "EXIT": [2, 64, 64], "LDC": [2, 64, 64], "IADD3": [2, 64, 64]}
    operations = dict.fromkeys(("f64", "tf32", "f16", "bf16", "f8", "f4", "i8", "i4", "b1"), 0)
    metrics: dict[str, int | None] = {
        "sm__sass_data_bytes_mem_global_op_ld": 512, "smsp__thread_inst_executed_pred_on": 384,
        "smsp__inst_executed": 12, "smsp__thread_inst_executed": 384,
        "sm__ops_path_tensor_src_fp8": None,
    }  # fmt: skip
    if index < 2:
        name, opcode = (("mma", "HMMA"), ("wgmma", "HGMMA"))[index]
        groups[name] = 64
        machine[opcode] = [2, 64, 64]
        operations["f16"] = metrics["sm__ops_path_tensor_src_fp16"] = 8192
        metrics["smsp__thread_inst_executed_pred_on"] = metrics["smsp__thread_inst_executed"] = 448
        metrics["smsp__inst_executed"] = 14
    kernel = f"{program}_{index}"
    row = {"kernel": kernel, "reason": "probed", "detail": "", "grid": [1, 1, 1], "block": [64, 1, 1],
           "registers": {"original": 8, "twin": 12}}
    fields = {"all": sum(groups.values()), "load": 192, "store": 0, "atomic": 0, "barrier": 0, "branch": 64,
              "tensor": groups["mma"] + groups["wgmma"], "convert": 0, "special": 0}  # fmt: skip
    branches = dict.fromkeys(("branches", "diverged", "taken", "passed"), 0)
    shared = {f"{name}{part}": 0 for name in ("load", "store", "matrix") for part in ("", "_wavefronts", "_least")}
    memory = {"load": 512, "store": 0, "atomic": 0, "async": 0, "uncounted": 0}
    return {"kernel": kernel, "metrics": metrics, "machine": machine, "shared": {}, "accessed": {}}, {
        "memory": {**row, "maps": {"GmemBytes": memory, "TensorOps": operations, "TensorIssued": {"tcgen05": 0},
                                   "TensorInstructions": {"mma_m16n8k8": groups["mma"] // 32,
                                                          "wgmma_n64": groups["wgmma"] // 32}}},
        "shared": {**row, "maps": {"SmemBankConflict": shared}},
        "branches": {**row, "maps": {"BranchDivergence": branches}},
        "instructions": {
            **row,
            "maps": {"InstCount": fields, "Groups": groups, "SharedBytes": {"load": 0, "store": 0}},
        },
    }


def _good() -> Json:
    programs = {}
    for name in ("counted", "counted_cutlass", "counted_triton"):
        kernels = [_kernel(index, name) for index in range(4)]
        runs = {run: {"outputs": {"x": "1"}, "launches": [rows[run] for _, rows in kernels], "unprobed": []}
                for run in counters_verdicts.RUNS}  # fmt: skip
        programs[name] = {"outputs": {"x": "1"}, "ncu": [profile for profile, _ in kernels], **runs}
    return {"programs": programs}


def test_good_results_are_good() -> None:
    judged = counters_verdicts.judge(_good())
    assert [verdict for verdict in judged if not verdict.good] == []
    lines = "\n".join(counters_verdicts.report(_good()))
    assert "integer                     0           64           64" in lines


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("counted", "outputs", "x"), "2"),
        (("counted", "branches", "outputs", "x"), "2"),
        (("counted_triton", "memory", "launches", 2, "maps"), {}),
        (("counted", "shared", "launches", 2, "maps", "SmemBankConflict", "load_wavefronts"), 1),
        (("counted", "instructions", "launches", 2, "maps", "SharedBytes", "load"), 4),
        (("counted_triton", "memory", "launches", 2, "kernel"), "another"),
        (("counted", "ncu", 3, "metrics", "sm__sass_data_bytes_mem_global_op_ld"), 508),
        (("counted", "ncu", 0, "metrics", "sm__ops_path_tensor_src_fp16"), 4096),
        (("counted", "ncu", 1, "machine", "HGMMA"), [1, 32, 32]),
        (("counted", "ncu", 2, "machine", "EXIT"), [2, 64, 63]),
        (("counted", "instructions", "launches", 2, "maps", "InstCount", "all"), 319),
        (("counted", "ncu", 2, "machine", "EXIT"), [3, 64, 64]),
        (("counted", "ncu", 2, "machine", "EXIT"), [2, 63, 64]),
        (("counted", "ncu", 2, "machine", "FFMA"), [2, 63, 63]),
        (("counted", "memory", "launches", 2, "grid"), [2, 1, 1]),
        (("counted", "memory", "launches", 0, "maps", "TensorInstructions", "mma_m16n8k8"), 3),
        (("counted", "memory", "launches", 0, "maps", "TensorOps", "i4"), 1),
        (("counted", "memory", "launches", 2, "maps", "TensorIssued", "tcgen05"), 1),
        (("counted", "memory", "launches", 2, "maps", "GmemBytes", "uncounted"), 1),
        (("counted", "branches", "launches", 2, "maps", "BranchDivergence", "branches"), 1),
        (("counted", "branches", "launches", 2, "maps", "BranchDivergence", "taken"), 1),
        (("counted", "instructions", "launches", 2, "maps", "InstCount", "branch"), 65),
        (("counted", "shared", "launches", 2, "maps", "SmemBankConflict", "load"), 1),
        (("counted", "shared", "launches", 2, "maps", "SmemBankConflict", "store"), 1),
        (("counted", "shared", "launches", 2, "maps", "SmemBankConflict", "matrix_least"), 1),
        (("counted", "memory", "launches", 2, "maps"), {}),
        (("counted", "instructions", "launches", 2, "maps", "Groups", "end"), 65),
    ],
)
def test_what_is_wrong_is_noticed(path: tuple[Any, ...], value: Json) -> None:
    result = copy.deepcopy(_good())
    place = result["programs"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert not all(verdict.good for verdict in counters_verdicts.judge(result))


def test_too_few_kernels_are_noticed() -> None:
    result = _good()
    del result["programs"]["counted_cutlass"]
    assert not all(verdict.good for verdict in counters_verdicts.judge(result))


@pytest.mark.skipif(not counters_verdicts.RESULTS.exists(), reason="no run on a GPU has been recorded")
def test_recorded_run() -> None:
    result = json.loads(counters_verdicts.RESULTS.read_text())
    assert "H200" in result["device"]
    wrong = [verdict for verdict in counters_verdicts.judge(result) if not verdict.good]
    assert wrong == []


def test_merged_and_predicated_accesses_are_bounded() -> None:
    """A launch with loads of 4 bytes that ptxas merges by four, and stores of some warps only."""
    result = _good()
    profile, rows = (result["programs"]["counted"][side] for side in ("ncu", "shared"))
    fields = rows["launches"][3]["maps"]["SmemBankConflict"]
    groups = result["programs"]["counted"]["instructions"]["launches"][3]["maps"]["Groups"]
    groups |= {"load_shared": 8 * 32, "store_shared": 96}
    profile[3]["machine"] |= {"LDS": [2, 64, 64], "STS": [4, 128, 96]}
    profile[3]["shared"] = {"load_128": [2, 8, 8], "store": [4, 3, 3]}
    good = {"load": 8, "load_least": 8, "load_wavefronts": 9, "store": 3, "store_least": 3, "store_wavefronts": 3}
    fields |= good

    def said() -> list[bool]:
        return [verdict.good for verdict in counters_verdicts.judge(result)
                if verdict.case == "counted 3 counted_3 smem_bank_conflict"]  # fmt: skip

    assert said() == [True]
    for name, value in (("load", 7), ("load", 9), ("load_least", 10), ("store", 5), ("store", 0), ("store_least", 4)):
        fields |= good | {name: value}
        assert said() == [False], (name, value)


def test_reasons_of_missing_records_are_told() -> None:
    result = _good()
    run = result["programs"]["counted"]["instructions"]
    (name,) = {row["kernel"] for row in run["launches"][2:3]}
    del run["launches"][2]
    for unprobed, words in (([[name, "occupancy", ""]], "occupancy"), ([], "the results do not say why")):
        run["unprobed"] = unprobed
        (verdict,) = (verdict for verdict in counters_verdicts.judge(result) if verdict.case == "counted launches")
        assert verdict.figure.endswith(f"{name}: no record of instructions: {words}")
        assert f"  no record of instructions: {words}" in counters_verdicts.report(result, name)
