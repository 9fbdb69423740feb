"""Tables whose keys are constants in the probes: each has its place when the twin is written, without a search."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from neutrino.cli.probe import main as probe_main
from neutrino.maps.hash import Hash
from neutrino.tracing import Trace
from neutrino.tracing.recorded import RecordedMap

# Of a grid of 3 × 2 blocks of 9 × 5 threads those below n go on; odd ones store.
KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry part(.param .u64 x, .param .u32 n)
{
.reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %d<4>;
ld.param.u64 %d1, [x]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mad.lo.u32 %r4, %r3, 9, %r2;
mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mad.lo.u32 %r7, %r6, 3, %r5; mad.lo.u32 %r8, %r7, 45, %r4;
setp.ge.u32 %p1, %r8, %r1;
@%p1 exit;
mul.wide.u32 %d2, %r8, 4; add.u64 %d3, %d1, %d2;
ld.global.u32 %r9, [%d3];
and.b32 %r10, %r8, 1; setp.eq.u32 %p2, %r10, 0;
@%p2 bra END;
st.global.u32 [%d3], %r8;
END:
ret;
}
"""
N = 251
THREADS = range(N)
MANY = 70


def tried(folder: Path, captured: pytest.CaptureFixture[str], table: str, field: str, before: dict[str, str]) -> Any:
    """Return what ``try`` prints of the table By, and the trace's folder. before: SAVEs by the position."""
    probes = [f"[map.By]\n{table}\nlevel = 'thread'\ndata = {{ what = '{field}', value = 'u32' }}\n"]
    for number, (position, saves) in enumerate(before.items()):
        text = f".reg .u32 %x; .reg .u64 %y;\nmov.u32 %x, %tid.x;\nmov.u64 %y, 5;\n{saves}"
        probes.append(f"[probe.p{number}]\nposition = '{position}'\nlevel = 'thread'\nbefore = '''\n{text}\n'''\n")
    (folder / "part.ptx").write_text(KERNEL)
    (folder / "probes.toml").write_text("\n".join(probes))
    command = ["try", str(folder / "probes.toml"), str(folder / "part.ptx"), "--grid", "3,2", "--block", "9,5"]
    assert probe_main([*command, "--arg", f"n={N}", "--json", "--tracedir", str(folder / "trace")]) == 0
    (trace,) = (folder / "trace").iterdir()
    document = json.loads(captured.readouterr().out)
    assert document["identical"]
    return document["maps"][0]["columns"], trace


def searches(trace: Path) -> bool:
    return "cas.b64" in (trace / "kernel/1/probed.ptx").read_text()


def aggregated(saved: list[tuple[int, int]]) -> list[tuple[int, int, int, int, int]]:
    by_key = defaultdict(list)
    for key, value in saved:
        by_key[key].append(value)
    return [(key, len(of), sum(of), min(of), max(of)) for key, of in sorted(by_key.items())]


@pytest.mark.parametrize(
    ("field", "keys"), [("u64", (7, 2**64 - 1)), ("s32", (-7, 90)), ("u32", (0, 0x80000000)), ("s64", (-(2**63), 0))]
)
def test_constants_have_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, keys: tuple[int, int]
) -> None:
    saves = {"ld.global": f"SAVE [ By ] {{ {keys[0]}, %x }};", "st.global": f"SAVE [ By ] {{ {keys[1]}, %x }};"}
    columns, trace = tried(tmp_path, capsys, "type = 'hash'\nkeep = ['sum', 'min', 'max']", field, saves)
    odd = [thread for thread in THREADS if thread % 2]
    wanted = aggregated([(keys[0], t % 45 % 9) for t in THREADS] + [(keys[1], t % 45 % 9) for t in odd])
    names = ("what", "count", "sum", "min", "max")
    assert list(zip(*(columns[name] for name in names), strict=True)) == wanted
    assert not searches(trace)
    (rows,) = RecordedMap(Trace(trace).kernels, "By").rows()
    assert list(zip(*(rows.columns[name].tolist() for name in names), strict=True)) == wanted
    # The script in the trace, which knows no other module.
    spec = importlib.util.spec_from_file_location("read", trace / "read.py")
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    (data,) = (trace / "result").glob("*.bin")
    _, _, records = reader.parse(str(data))
    assert [tuple(row)[:5] for row in records["By"].tolist()] == wanted


@pytest.mark.parametrize(
    ("table", "saves", "wanted"),
    [
        ("type = 'hash'", "SAVE [ By ] { 7, %x };\nSAVE [ By ] { %y, %x };", [5, 7]),
        ("type = 'hash'", "SAVE [ By ] { 7, %x };\nSAVE [ By ] { SITE, %x };", [0, 7]),
        ("type = 'hash'\nroom = 1", "SAVE [ By ] { 7, %x };\nSAVE [ By ] { 8, %x };", [7, 8]),
    ],
)
def test_others_are_searched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, saves: str, wanted: list[int]
) -> None:
    columns, trace = tried(tmp_path, capsys, table, "u64", {"ld.global": saves})
    assert (columns["key"], columns["count"]) == (wanted, [N, N])
    assert searches(trace)


def test_many_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than lanes hold."""
    saves = "\n".join(f"SAVE [ By ] {{ {3 * number}, %x }};" for number in range(MANY))
    columns, trace = tried(tmp_path, capsys, "type = 'topk'\nn = 70", "u32", {"st.global": saves})
    total = sum(thread % 45 % 9 for thread in THREADS if thread % 2)
    assert sorted(columns["what"]) == [3 * number for number in range(MANY)]
    assert set(columns["count"]) == {N // 2}
    assert set(columns["sum"]) == {total}
    assert not searches(trace)


@pytest.mark.parametrize("numbered", ["7", 7, [True], [7.0], [2**64], [-(2**63) - 1], [None], list(range(5000))])
def test_damaged_keys_are_refused(numbered: object) -> None:
    kind = Hash(8)
    assert kind.for_keys((7, 9)).as_made({"numbered": numbered}) is None
    made = kind.as_made({"numbered": [7, 9], "stride": 1})
    assert made is not None
    assert made == kind.for_keys((7, 9))
    assert (made.number_of(9), made.number_of(8)) == (1, None)
