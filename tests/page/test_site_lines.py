"""At which lines of its text a kernel's sites are, however the text is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neutrino.cli.probe import main as probe
from neutrino.page.site_lines import KernelText, site_lines
from neutrino.page.source import KeptBlocks, Source
from neutrino.page.sources import prepare_sources
from neutrino.tracing import Trace, summarize

ODD = """\
.version 8.0
.target sm_80
.address_size 64
// A module; with text.
.visible .entry odd(.param .u64 p)
{
    .reg .u64 %a<4>; .reg .u32 %x<4>; .reg .pred %q; .reg .f32 %f<4>;
    ld.param.u64 %a1, [p]; /* the; parameter */ cvta.to.global.u64 %a1, %a1;
    mov.u32 %x1, %tid.x; mul.wide.u32 %a2, %x1, 16; add.u64 %a1, %a1, %a2;
    ld.global.u32 %x2, [%a1]; // the value; is loaded
    /* before */ st.global.u32 [%a1], %x2; ld.global.u32 %x3, [%a1]; /* after
    goes on */ setp.eq.u32 %q, %x3, 0;
Again:  @%q st.global.u32
            [%a1],
            %x3;   { ld.global.v2.f32 {%f1, %f2}, [%a1]; }
    .loc 1 20 3
    ld.global.v2.f32
    {%f1, %f2}, [%a1]; ret;
}
"""
TWICE = """\
.version 8.0
.target sm_80
.address_size 64
.func first(.param .u64 p)
{
    .reg .u64 %a; .reg .u32 %x;
    ld.param.u64 %a, [p]; ld.global.u32 %x, [%a];
    st.global.u32 [%a], %x;
    ret;
}
.func second(.param .u64 p)
{
    .reg .u64 %a; .reg .u32 %x;
    ld.param.u64 %a, [p]; ld.global.u32 %x, [%a];
    st.global.u32 [%a], %x;
    ret;
}
.visible .entry twice(.param .u64 p) { .reg .u64 %a; ld.param.u64 %a, [p]; cvta.to.global.u64 %a, %a;
    { .param .u64 o; st.param.u64 [o], %a; call first, (o); }
    { .param .u64 o; st.param.u64 [o], %a; call second, (o); }
    ret; }
"""


def _tried(folder: Path, text: str, name: str) -> tuple[Any, KernelText]:
    """A kernel that ran with a probe at each instruction, and its text as the trace has it."""
    (folder / "k.ptx").write_text(text)
    words = [str(folder / "k.ptx"), "-k", name, "--grid", "1", "--block", "32", "--tracedir", str(folder / "trace")]
    assert probe(["try", "inst_count", "dmat", *words]) == 0
    (trace,) = (folder / "trace").iterdir()
    (kernel,) = summarize(Trace(trace)).kernels
    lines = (trace / "kernel" / str(kernel.kernel.id) / "original.ptx").read_text().split("\n")
    return kernel, KernelText("original.ptx", lines)


@pytest.mark.parametrize(("text", "name"), [(ODD, "odd"), (TWICE, "twice")])
def test_every_site_is_at_the_line_where_it_begins(text: str, name: str, tmp_path: Path) -> None:
    kernel, shown = _tried(tmp_path, text, name)
    sites = {site["site"]: site for site in kernel.kernel.manifest.sites if site["site"] is not None}
    # The trace has the text of the kernel alone: a function's instructions are not looked for in it.
    own = {number for number, site in sites.items() if site["function"] == name}
    found = site_lines(kernel.kernel.manifest, shown)
    assert found.keys() == own
    assert len(own) > 6
    whole = text.split("\n")
    for number, (line, _) in found.items():
        # The manifest's line is the module's, which is what pages call it.
        assert line + shown.later[line] == sites[number]["line"]
        assert shown.lines[line - 1] == whole[sites[number]["line"] - 1]
        assert str(sites[number]["instruction"]).split()[0] in shown.lines[line - 1]


def test_the_view_has_their_numbers(tmp_path: Path) -> None:
    kernel, _ = _tried(tmp_path, ODD, "odd")
    kept = KeptBlocks()
    (row,) = prepare_sources(Source(summarize(kernel.kernel.trace), {}), kept)["kernels"]
    (measure,) = (measure for measure in row["measures"] if measure["name"] == "GlobalAccesses: records")
    document = kept.json(row["block"])
    text, at = dict(document["lines"]), dict(document["sites"])
    assert {text[at[site]].strip(): count for site, count in measure["values"] if "value" in text[at[site]]} == {
        "ld.global.u32 %x2, [%a1]; // the value; is loaded": 32
    }


@pytest.mark.parametrize("text", ["", "ret", "{{{;;;}}}", ".entry", ".func (", "/* open", "L: L: L:;", "\x00;\x00"])
def test_any_text_has_lines(text: str, tmp_path: Path) -> None:
    kernel, _ = _tried(tmp_path, ODD, "odd")
    assert site_lines(kernel.kernel.manifest, KernelText("original.ptx", text.split("\n"))) == {}
