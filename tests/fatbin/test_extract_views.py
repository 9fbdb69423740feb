"""What ``neutrino-extract`` says of kernels: figures, machine code, whether they can be probed. Judged by NVIDIA's and
LLVM's tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from amd_inputs import DEVICE_ONLY, compile_hip, need_clang, need_llvm
from fatbin_inputs import PTX, need, run

from neutrino.cli.extract import main
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry

USAGE = re.compile(r"^ Function (\S+):\n\s+(.*)$", re.MULTILINE)
OTHER = PTX.replace("add_one", "other").replace("second", "_Z5thirdv")


@pytest.fixture
def library(tmp_path, cubins) -> Path:
    """Two architectures with their PTX, and one with another architecture's."""
    text = PTX.format(arch="sm_90a").encode()
    path = tmp_path / "kernels.fatbin"
    path.write_bytes(
        build_container([
            build_entry(ImageKind.CUBIN, cubins["sm_90a"], "sm_90a"),
            build_entry(ImageKind.PTX, text, "sm_90a", options="", compression=Compression.ZSTD),
        ])
        + build_container([
            build_entry(ImageKind.CUBIN, cubins["sm_75"], "sm_75"),
            build_entry(ImageKind.PTX, OTHER.format(arch="sm_70").encode(), "sm_70", options=""),
        ])
    )  # fmt: skip
    return path


def documents(capsys, *arguments) -> dict:
    assert main([*map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    found: dict = json.loads(output.out)
    return found


def test_resources_are_those_of_cuobjdump(library, cuobjdump, capsys):
    expected = {}
    for name, line in USAGE.findall(run(cuobjdump, "-res-usage", library)):
        figures = {key: int(value) for key, value in re.findall(r"([A-Z]+(?:\[\d+\])?):(\d+)", line)}
        expected.setdefault(name, []).append(figures)
    found: dict[str, list[dict[str, int]]] = {}
    for container in documents(capsys, library, "--resources")["containers"]:
        for image in container["images"]:
            for usage in image.get("resources", []):
                found.setdefault(usage["name"], []).append({
                    "REG": usage["registers"], "STACK": usage["stack"], "SHARED": usage["shared"],
                    "LOCAL": usage["local"],
                    **{f"CONSTANT[{bank}]": size for bank, size in usage["constants"].items()},
                    "TEXTURE": usage["textures"], "SURFACE": usage["surfaces"], "SAMPLER": usage["samplers"],
                })  # fmt: skip
    assert {name: sorted(rows, key=str) for name, rows in found.items()} == {
        name: sorted(rows, key=str) for name, rows in expected.items()
    }
    assert set(found) == {"add_one", "second"}
    assert main([str(library), "--resources"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = next(row for row in rows if "REG" in row)
    for line in (row for row in rows if row[-1:] == ["add_one"]):
        shown = dict(zip(head, line, strict=True))
        assert {key: int(shown[key]) for key in ("REG", "STACK", "SHARED", "CONSTANT[0]")} in [
            {key: row[key] for key in ("REG", "STACK", "SHARED", "CONSTANT[0]")} for row in expected["add_one"]
        ]


def test_resources_of_amd_kernels_are_those_of_the_metadata(tmp_path, capsys):
    clang, readelf = need_clang(tmp_path), need_llvm("llvm-readelf")
    path = compile_hip(clang, tmp_path, "add.hsaco", *DEVICE_ONLY, "--offload-arch=gfx90a")
    notes = run(readelf, "--notes", path)
    (container,) = documents(capsys, path, "--resources")["containers"]
    (image,) = container["images"]
    assert image["arch"].startswith("gfx90a")
    assert len(image["resources"]) == 2
    for row in image["resources"]:
        named = re.compile(rf"\.name:\s+{row['name']}$", re.MULTILINE)
        part = next(part for part in notes.split("  - .a") if named.search(part))
        for key, field in (
            ("vgprs", "vgpr_count"), ("sgprs", "sgpr_count"), ("lds", "group_segment_fixed_size"),
            ("scratch", "private_segment_fixed_size"), ("kernarg", "kernarg_segment_size"),
            ("wavefront", "wavefront_size"), ("max_workgroup", "max_flat_workgroup_size"),
        ):  # fmt: skip
            said = re.search(rf"\.{field}:\s+(\d+)", part)
            assert said is not None
            assert row[key] == int(said[1]), key
    assert main([str(path), "--resources", "--kernels"]) == 0
    assert "void scratch<double>(double*, int)" in capsys.readouterr().out


def test_kernels_without_figures_are_named(tmp_path, capsys):
    path = tmp_path / "text.ptx"
    path.write_text(PTX.format(arch="sm_80"))
    assert main([str(path), "--resources"]) == 0
    plain = capsys.readouterr().out
    assert "1 image (ptx) without figures, which only machine code has" in plain
    assert "second" not in plain
    assert main([str(path), "--resources", "--kernels"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[-1] for line in listed.splitlines() if " ptx sm_80 " in line] == ["add_one", "second"]


def test_machine_code_is_what_nvdisasm_prints(library, cubins, tmp_path, capsys):
    nvdisasm = need("nvdisasm")
    (tmp_path / "one.cubin").write_bytes(cubins["sm_75"])
    expected = run(nvdisasm, "-c", tmp_path / "one.cubin")
    assert main([str(library), "--sass", "--arch", "sm_75"]) == 0
    assert expected in capsys.readouterr().out
    out = tmp_path / "out"
    assert main([str(library), "--sass", "-o", str(out), "-k", "second"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["kernels.0.0.sm_90a.sass", "kernels.1.0.sm_75.sass"]
    text = (out / "kernels.1.0.sm_75.sass").read_text()
    assert text in expected
    assert ".text.second" in text
    assert "BAR.SYNC" in text
    assert "add_one" not in text


def test_machine_code_of_vendors_is_not_shown(library, tmp_path, capsys):
    named = tmp_path / "libcublas.so.13"
    named.write_bytes(library.read_bytes())
    assert main([str(named), "--sass", "-o", str(tmp_path / "out")]) == 2
    output = capsys.readouterr()
    assert "vendor-licensed" in output.err
    assert output.out == ""
    assert list((tmp_path / "out").iterdir()) == []
    assert main([str(named)]) == 0
    assert "2 containers, 4 images" in capsys.readouterr().out


def test_without_a_disassembler(library, monkeypatch, capsys):
    monkeypatch.setenv("NEUTRINO_NVDISASM", "/nonexistent")
    assert main([str(library), "--sass"]) == 2
    assert "nvdisasm" in capsys.readouterr().err


def test_coverage_says_which_kernels_and_why_not_others(library, capsys):
    found = documents(capsys, library, "--coverage", "--arch", "sm_90", "--arch", "sm_75")
    hopper, ampere = found["coverage"]
    assert (found["probes"], hopper["arch"], ampere["arch"]) == (["block_sched"], "sm_90", "sm_75")
    said = {(one["container"], one["name"]): (one["can_be_probed"], one["reason"]) for one in hopper["kernels"]}
    # On sm_90 the sm_90a code of container 0 runs, and of container 1, which has none, the PTX for sm_70.
    assert said == {
        (0, "add_one"): (True, None), (0, "second"): (True, None),
        (1, "other"): (True, None), (1, "_Z5thirdv"): (True, None),
    }  # fmt: skip
    said = {(one["container"], one["name"]): one["reason"] for one in ampere["kernels"]}
    assert said == {
        (0, "add_one"): "no-ptx", (0, "second"): "no-ptx", (1, "add_one"): "variant", (1, "second"): "variant",
    }  # fmt: skip
    assert [(row["reason"], row["kernels"]) for row in ampere["reasons"]] == [("no-ptx", 2), ("variant", 2)]
    assert (ampere["total"], ampere["can_be_probed"]) == (4, 0)
    assert main([str(library), "--coverage", "--arch", "sm_75", "-k", "add"]) == 0
    output = capsys.readouterr().out
    assert "sm_75: 0 of 2 kernels can be probed" in output
    assert "the PTX is for sm_70, the machine code that runs is sm_75" in output
    assert "nothing was assembled" in output


LOADS = """\
platform = "cuda"
[map.Loads]
type = "array"
level = "thread"
size = 8
cap = 1
data = { address = "u64" }
[probe.loads]
position = "ld.global"
level = "thread"
before = "SAVE [ Loads ] { ADDR };"
"""


def test_coverage_of_a_probe_that_finds_no_instruction(library, capsys, tmp_path):
    (tmp_path / "loads.toml").write_text(LOADS)
    found = documents(capsys, library, "--coverage", "--arch", "sm_90", "-p", tmp_path / "loads.toml")
    (coverage,) = found["coverage"]
    said = {one["name"]: (one["reason"], one["sites"]) for one in coverage["kernels"]}
    assert said["add_one"] == (None, 1)
    assert said["second"] == ("no-site", 0)
    assert main([str(library), "-p", "gmem_bytes"]) == 2
    assert "--coverage" in capsys.readouterr().err
    assert main([str(library), "--coverage", "-p", "no_such_probe"]) == 2
    assert "no_such_probe" in capsys.readouterr().err


def test_coverage_without_arch_asks_for_this_machine_or_else_for_all(library, monkeypatch, capsys):
    monkeypatch.setattr("neutrino.loader.driver.machine_archs", lambda: ("sm_90",))
    assert [one["arch"] for one in documents(capsys, library, "--coverage")["coverage"]] == ["sm_90"]
    monkeypatch.setattr("neutrino.loader.driver.machine_archs", lambda: ())
    assert [one["arch"] for one in documents(capsys, library, "--coverage")["coverage"]] == ["sm_75", "sm_90"]


def test_coverage_of_vendors(library, tmp_path, capsys):
    named = tmp_path / "libcublasLt.so.13"
    named.write_bytes(library.read_bytes())
    (coverage,) = documents(capsys, named, "--coverage", "--arch", "sm_90")["coverage"]
    assert {one["reason"] for one in coverage["kernels"]} == {"vendor"}
    assert coverage["can_be_probed"] == 0


def test_coverage_says_of_an_image_what_patching_does(library, tmp_path, capsys, ptxas):
    """What cannot be probed by coverage has no twin, and what has a twin can be probed."""
    from neutrino.backend.protocol import Options
    from neutrino.backend.ptx_source import find_source
    from neutrino.backend.registry import target_of_device
    from neutrino.fatbin import read_file
    from neutrino.maker.patcher import make_twins
    from neutrino.probing.selection import Selection
    from neutrino.toolchain.tool_choice import find_assembler
    from neutrino.verification import load_probes

    found = documents(capsys, library, "--coverage", "--arch", "sm_90")
    said = {(one["container"], one["name"]): one["can_be_probed"] for one in found["coverage"][0]["kernels"]}
    for container in read_file(library):
        twins = make_twins(
            target_of_device("sm_90"), find_source(container, "sm_90"), load_probes(["block_sched"]),
            selection=Selection(), tools=find_assembler(), options=Options(),
        )  # fmt: skip
        for kernel in twins.kernels:
            assert said[container.index, kernel.name] >= (kernel.reason.word == "probed")


def test_questions_that_do_not_go_together(library, capsys):
    for arguments in (["--coverage", "--sass"], ["--sass", "--json"]):
        assert main([str(library), *arguments]) == 2
        assert capsys.readouterr().out == ""
    assert main([str(library), "--coverage", "--arch", "x86"]) == 2
    assert "write it as sm_90" in capsys.readouterr().err
