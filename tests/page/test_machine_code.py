"""Machine code in the source view: what ptxas and nvdisasm make of the kept text, and its lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from neutrino.errors import ToolMissingError
from neutrino.page import machine_code as module
from neutrino.page.machine_code import machine_code
from neutrino.page.source import KeptBlocks, Source
from neutrino.page.sources import prepare_sources
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.tracing import Trace, summarize
from tests.page.browser import chromium, opened
from tests.page.made_pages import page_of, probed_patterns


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_assembler()
        find_tool("nvdisasm")
    except ToolMissingError as error:
        pytest.skip(f"{error} (pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm)")
    return probed_patterns(tmp_path_factory.mktemp("code") / "trace")


def code_of(trace: Path, lines: list[str] | None = None, **changes: Any) -> Any:
    """The machine code of the only kernel. lines: other ones than those in the trace. changes: of the manifest."""
    path = trace / "kernel/1/manifest.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | changes))
    try:
        (kernel,) = Trace(trace).kernels
        manifest = kernel.manifest
        assert manifest is not None
        return machine_code(manifest, lines or (trace / "kernel/1/original.ptx").read_text().split("\n"), None)
    finally:
        path.write_text(before)


KINDS = {
    "LDG": "ld.global", "STG": "st.global", "ATOMG": "atom.global", "BAR": "bar.sync", "EXIT": "ret",
    "S2R": "%tid.x", "MUFU": "sqrt",
}  # fmt: skip


def test_instructions_are_of_the_lines_that_they_do(trace: Path) -> None:
    found = code_of(trace)
    text = (trace / "kernel/1/original.ptx").read_text().split("\n")
    seen = set()
    for _, instruction, line in found["lines"]:
        opcode = re.sub(r"^@!?U?P\d\s+", "", instruction).partition(".")[0].partition(" ")[0]
        # Functions of ptxas after the kernel's end have no line.
        if opcode in KINDS and line:
            seen.add(opcode)
            assert KINDS[opcode] in text[line - 1], (instruction, line)
    assert {"LDG", "STG", "BAR", "EXIT", "S2R"} <= seen
    assert "17 registers, as the original does" in found["says"]
    assert f"by {find_assembler().name} for sm_90" in found["says"]


def test_all_instructions_are_there(trace: Path, tmp_path: Path) -> None:
    """As many as nvdisasm prints of a cubin of the same text, with the same opcodes."""
    assembler = find_assembler()
    head = ".version {}.{}\n.target sm_90\n.address_size 64\n".format(*assembler.ptx_version)
    cubin = assembler.assemble(head + (trace / "kernel/1/original.ptx").read_text(), "sm_90").cubin
    (tmp_path / "x.cubin").write_bytes(cubin)
    printed = run_tool([find_tool("nvdisasm"), "-c", tmp_path / "x.cubin"], timeout=600).stdout.decode()
    expected = re.findall(r"/\*([0-9a-f]{4})\*/\s+([^;]*?)\s*;", printed)
    assert len(expected) > 40
    assert [(offset, text) for offset, text, _ in code_of(trace)["lines"] if offset] == expected


def test_other_registers_are_other_code(trace: Path) -> None:
    registers = {"original": 40, "twin": 93, "capped": None}
    assert "17 registers, the original 40: that is other code" in code_of(trace, registers=registers)["says"]


def test_variables_of_the_module_are_declared(trace: Path) -> None:
    """Triton's shared memory, and a variable in global memory, are no part of a kernel's text."""
    lines = [
        ".visible .entry patterns(.param .u64 out)", "{", ".reg .b32 %r<4>;", ".reg .b64 %rd<4>;", ".shared .b32 own;",
        "mov.b32 %r1, global_smem;", "mov.u64 %rd1, table;", "mov.u32 %r3, own;", "ld.shared.u32 %r2, [%r1];",
        "st.global.u32 [%rd1], %r2;", "st.shared.u32 [%r3], %r2;", "ret;", "}",
    ]  # fmt: skip
    found = code_of(trace, lines)
    assert found["says"].endswith("what the text lacks: global_smem, table.")
    lines_of = {text.partition(" ")[0]: line for _, text, line in found["lines"]}
    assert lines_of["LDS"] == 1 + lines.index("ld.shared.u32 %r2, [%r1];")
    assert lines_of["EXIT"] == 1 + lines.index("ret;")


@pytest.mark.parametrize(
    ("lines", "changes", "fault"),
    [
        (["call nothing;"], {}, "ptxas"),
        (None, {"arch": "sm_90 --output-file=/tmp/x"}, "no architecture"),
        (None, {"arch": "gfx942"}, "no architecture"),
    ],
)
def test_what_has_no_code_says_why(trace: Path, lines: Any, changes: dict[str, str], fault: str) -> None:
    found = code_of(trace, lines, **changes)
    assert list(found) == ["fault"]
    assert fault in found["fault"]


def test_a_crash_over_lines_leaves_the_code(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Assembler.assemble

    def crashing(self: Assembler, text: str, arch: str, options: Any = (), **more: Any) -> Any:
        if "-lineinfo" in options:
            raise AssemblyError(["ptxas"], -6, "")
        return whole(self, text, arch, options, **more)

    monkeypatch.setattr(Assembler, "assemble", crashing)
    found = code_of(trace)
    assert len(found["lines"]) > 40
    assert {line for _, _, line in found["lines"]} == {0}
    assert found["says"].endswith("Which line an instruction is of is not known.")


def test_without_the_tools_the_page_says_which_is_missing(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_version: int | None) -> None:
        raise ToolMissingError("ptxas", "install it")

    monkeypatch.setattr(module, "find_assembler", missing)
    kept = KeptBlocks()
    source = Source(summarize(Trace(trace)), {}, is_assembled=True)
    (row,) = prepare_sources(source, kept)["kernels"]
    assert "ptxas" in kept.json(row["block"])["code"]["fault"]


def test_machine_code_is_marked_by_the_line_of_the_text(trace: Path, tmp_path: Path) -> None:
    plain = page_of(trace, tmp_path)
    with chromium() as browser, opened(browser, plain) as found:
        found.go("source")
        assert found.page.query_selector(".machine") is None
        assert "--sass adds machine code" in found.page.inner_text("main")
    page = page_of(trace, tmp_path, "--sass")
    with chromium() as browser, opened(browser, page) as found:
        found.go("source")
        found.page.click("button.line:has-text('st.global.f32')")
        marked = found.page.eval_on_selector_all(".machine .marked .text", "all => all.map(one => one.textContent)")
        assert any("STG" in text for text in marked)
        assert not any("LDG" in text for text in marked)
        found.page.click(".machine .line:has-text('BAR.SYNC')")
        texts = found.page.eval_on_selector_all(
            ".pane:not(.machine) .marked .text", "all => all.map(one => one.textContent)"
        )
        assert [text.strip() for text in texts] == ["bar.sync 0;"]
        assert found.said == []
