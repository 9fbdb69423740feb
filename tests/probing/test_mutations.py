"""Whatever is typed into a probe file, the answer is a ProbeSet, which can be written, or a ProbeError with places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.faults import FAULTS, WARNINGS
from neutrino.ptx.isa.form_table import FAULTS as SNIPPET_FAULTS
from neutrino.targets import written as write
from neutrino.verification import load_probe_file, read_probes

HAND = Path(__file__).parents[1] / "fixtures" / "probes" / "hand"
SCHED = (HAND / "block_sched.toml").read_text()
DRAFTS = [path.read_text() for path in sorted((Path(__file__).parents[1] / "fixtures" / "probes").glob("*.toml"))]
GMEM = (HAND / "gmem_bytes.toml").read_text()
HELPERS = """[map.M]
level = "thread"
cap = "dynamic"
data = { a = "u64", l = "u32", s = "u32" }
[probe.p]
position = "ld.global | st.global !v4 | atomic func:f k.cu:7"
level = "thread"
lanes = "reaching"
before = \"\"\"
.reg .b32 %m, %n; .reg .pred %p, %q; .reg .f16x2 %h = 3;
match.any.sync.b64 %m, ADDR, LANES;
vote.sync.any.pred %p, !PRED, LANES;
shfl.sync.idx.b32 %n|%q, %m, 0, 31, LANES;
@!%p selp.b32 %m, 1, -2, PRED;
SAVE [ M ] { ADDR, LANES, SITE };
\"\"\"
"""
PIECES = st.sampled_from(
    ["", '"', '"""', "'", "\n", ";", ",", "{", "}", "[", "]", "=", ":", "%", "%x", "SAVE", ".reg", "//", "/*", "@",
     "|", "!", "\\", "\\u00", "é", "0x", "1", "<2>", "OUT", "ADDR", ".x", "true", "#", "\r\n", "\t", "[map.X]",
     "add.u64 ", "_", ".",
     "LANES", "PRED", "func:f", "|%p", ".sync", "bra", "IN9.127", "\0", "cap = 1",
     "mov", "kernel", "thread", "dynamic", "datamodel", "SAVE.u64 {", ":16", "hip", "999999999999999999999"]
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.sampled_from([SCHED, GMEM, HELPERS, *DRAFTS]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES), min_size=1, max_size=4),
)
def test_mutated_files(tmp_path_factory, text: str, edits: list[tuple[float, int, str]]) -> None:  # type: ignore[no-untyped-def]
    for share, removed, piece in edits:
        start = int(share * len(text))
        text = text[:start] + piece + text[start + removed :]
    path: Path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_bytes(text.encode())
    faults = _faults(path)
    if faults is None:
        return
    assert faults
    lines = text.replace("\r\n", "\n").split("\n")
    assert {fault.code for fault in faults} <= {*FAULTS, *WARNINGS, *SNIPPET_FAULTS}
    for fault in faults:
        assert 1 <= fault.line <= len(lines)
        assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1
        assert fault.source == lines[fault.line - 1]
    assert [fault.line for fault in faults] == sorted(fault.line for fault in faults)


def _faults(path: Path) -> list[Diagnostic] | None:
    try:
        probes = load_probe_file(path)
    except ProbeError as error:
        return error.diagnostics
    assert read_probes("back.toml", write(probes)).digest == probes.digest
    return None


def test_a_file_of_thousands_of_faults(tmp_path: Path) -> None:
    """All of them are reported; a guess at what was meant costs much, and only the first get one."""
    path = tmp_path / "faults.toml"
    lines = "\n".join(f"mov.b32 %m, %mm{number};" for number in range(3000))
    path.write_text(HELPERS.replace("match.any", f"{lines}\nmatch.any"))
    with pytest.raises(ProbeError) as caught:
        load_probe_file(path)
    faults = caught.value.diagnostics
    assert [fault.code for fault in faults] == ["undeclared-register"] * 3000
    assert "did you mean" in faults[0].hint
    assert "did you mean" not in faults[-1].hint
