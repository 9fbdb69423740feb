"""A second target fits: probes on an invented assembly of 64 lanes, from image to entry, and what traces of it say."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.probe_block import BLOCK_HEADER, BLOCK_PER_MAP
from neutrino.abi.reasons import Reason
from neutrino.backend import registry
from neutrino.backend.protocol import Target
from neutrino.errors import NeutrinoError
from neutrino.maker.patcher import patch_image
from neutrino.maps.regions import copies_of, region_layout
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace
from neutrino.twins.cache_entry import Entry, KernelEntry, read_entry
from neutrino.verification import load_all, load_probes
from tests.backend.toy_machine import LANES, UNITS, Machine
from tests.backend.toy_target import ToyBackend, ToyTarget
from tests.tracing.trace_writer import TraceWriter

GRID, THREADS = (3, 2), 150
"""The last warp of a block has 22 lanes."""
BLOCKS, WARPS = GRID[0] * GRID[1], -(-THREADS // LANES)
DATA = 4096
"""Where the kernels' own data begin; what the probes record is before it."""
TEXT = """
.amdgcn_target "toy--toy64"
.kernel squares 16
  blocky b               ; out[i] = sum of the squares below in[i], by a loop of as many turns
  gridx wide
  mul b, b, wide
  blockx x
  add b, b, x
  mul i, b, 150
  thread t
  add i, i, t
  mul at, i, 8
  param in, 0
  param out, 8
  add from, in, at
  add to, out, at
  load n, from, 0
  set k, 0
  set s, 0
  jump 1, TEST
BODY:
  mul q, k, k
  add s, s, q
  add k, k, 1
TEST:
  below more, k, n
  jump more, BODY
  store to, 0, s
  below few, n, 3
  if few store32 to, 4, 7
  if few exit
  below many, 9, n
  jump many, EARLY
  atom out, 7200, 1
  exit
EARLY:
  exit

.kernel nothing 0
  exit
"""
VALUES = [(7 * index) % 11 for index in range(BLOCKS * THREADS)]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Target:
    # The type checker sees that it is one.
    target: Target = ToyTarget()
    monkeypatch.setattr(registry, "TARGETS", (*registry.TARGETS, target))
    return target


def patched(probes: ProbeSet, *names: str) -> Entry:
    data = patch_image(
        TEXT.encode(), probes, "toy64", selection=Selection(names), assembler=None, key=bytes(32)
    )
    return read_entry(data, "entry")


@dataclass
class Run:
    """What a launch has left. data: of the program. regions: of the maps."""

    machine: Machine
    data: bytes
    regions: bytes


def run(text: str, name: str, entry: KernelEntry | None = None, probes: ProbeSet | None = None) -> Run:
    """Launch the original, or a twin with its entry and probes, as a driver and the hook do."""
    memory = bytearray(DATA + 2 * 8 * len(VALUES) + 8)
    out = DATA + 8 * len(VALUES)
    struct.pack_into(f"<{len(VALUES)}Q", memory, DATA, *VALUES)
    parameters = struct.pack("<QQ", DATA, out)
    size = 0
    if entry is not None and probes is not None:
        assert (entry.lanes, entry.block_offset) == (LANES, 16)
        regions, size = region_layout(probes.maps, BLOCKS, WARPS, entry.lanes)
        assert size <= DATA
        (copies,) = {copies_of(one, BLOCKS * WARPS) for one in probes.maps}
        parameters += struct.pack("<IIIIQ", WARPS, BLOCKS * WARPS, 0, copies - 1, 0)
        parameters += b"".join(struct.pack("<QQ", region.records, 0) for region in regions)
        assert len(parameters) == 16 + entry.block_size == 16 + BLOCK_HEADER + BLOCK_PER_MAP * len(regions)
    machine = Machine(memoryview(memory))
    machine.launch(text, name, GRID, THREADS, parameters)
    assert not any(memory[size:DATA]), "something was written beyond the regions"
    return Run(machine, bytes(memory[DATA:]), bytes(memory[:size]))


def probed(probes: ProbeSet, path: Path) -> tuple[Run, Run, Trace]:
    """The original and the twin of the kernel, each run, and a trace of the latter."""
    entry = patched(probes, "squares")
    (kernel,) = (kernel for kernel in entry.kernels if kernel.reason is Reason.PROBED)
    before = run(TEXT, "squares")
    after = run(entry.images[kernel.image].decode(), kernel.twin, kernel, probes)
    assert after.data == before.data
    writer = TraceWriter(path / "trace")
    writer.kernel(1, "squares", maps=probes.maps)
    for name, data in kernel.files.items():
        (writer.path / "kernel/1" / name).write_bytes(data)
    writer.launch(1, (*GRID, 1), (THREADS, 1, 1), after.regions, lanes=kernel.lanes)
    return before, after, Trace(writer.write())


def records(trace: Trace, name: str) -> Any:
    """What a reader of the trace gets of a map of the only launch."""
    (kernel,) = trace.kernels
    (launch,) = kernel.launches()
    return launch.maps[name]


def test_no_device_here_runs_its_kernels_to_try_them(toy: Target) -> None:
    toy.check_text(TEXT)
    with pytest.raises(NeutrinoError, match="kernels in toy text cannot be tried"):
        toy.kernel_text(TEXT)


def test_the_original_computes_what_it_says() -> None:
    few = [value < 3 for value in VALUES]
    sums = [sum(k * k for k in range(value)) + (7 << 32) * is_few for value, is_few in zip(VALUES, few, strict=True)]
    out = struct.unpack_from(f"<{len(VALUES) + 1}Q", run(TEXT, "squares").data, 8 * len(VALUES))
    assert list(out) == [*sums, sum(3 <= value <= 9 for value in VALUES)]


def test_block_sched_notes_each_warp(toy: Target, tmp_path: Path) -> None:
    before, after, trace = probed(load_probes(["block_sched"]), tmp_path)
    view = records(trace, "BlockSched")
    assert (view.geometry.lanes, view.records.shape) == (LANES, (BLOCKS, WARPS, 1))
    assert len(after.machine.spans) == BLOCKS * WARPS
    for number, (start, elapsed, unit) in enumerate(view.valid().tolist()):
        first, last, where = after.machine.spans[number]
        own_first, own_last, _ = before.machine.spans[number]
        # One register is set before the clock is read; its last lanes record, then exit.
        assert (start, unit) == (first + 1, where) == (first + 1, number // WARPS % UNITS)
        assert own_last - own_first <= elapsed <= last - start


def test_inst_count_counts_what_lanes_execute(toy: Target, tmp_path: Path) -> None:
    _, _, trace = probed(load_probes(["inst_count"]), tmp_path)
    (counted,) = records(trace, "InstCount").valid()
    few, many = (sum(map(test, VALUES)) for test in (lambda value: value < 3, lambda value: value > 9))
    # 17 instructions to the loop, 5 a turn and 2 for its last test; then 4, or 5 of lanes with many turns, or 6.
    expected = dict.fromkeys(counted.dtype.names, 0) | {
        "all": sum(17 + 5 * value + 2 + 6 for value in VALUES) - 2 * few - many, "load": len(VALUES),
        "store": len(VALUES) + few, "atomic": len(VALUES) - few - many,
        "branch": sum(value + 2 for value in VALUES) + len(VALUES) - few,
    }  # fmt: skip
    assert {name: int(counted[name]) for name in counted.dtype.names} == expected


HEAD = """
import neutrino.language as nl
from neutrino import probe, Map
n: nl.u64 = 0

@Map(level='thread', type='sum')
class N:
    n: nl.u64

@probe(pos='load', level='thread')
def loads():
    N.save(1)
"""


def test_kernels_without_a_site_and_not_selected_have_their_reasons(toy: Target) -> None:
    loads = load_all(source=HEAD)
    (squares, nothing) = patched(loads).kernels
    assert (squares.lanes, json.loads(squares.files["manifest.json"])["emit"]) == (LANES, "toy")
    assert (nothing.lanes, nothing.files) == (0, {})
    reasons = {kernel.name: kernel.reason for kernel in (squares, nothing)}
    assert reasons == {"squares": Reason.PROBED, "nothing": Reason.NO_SITE}
    reasons = {kernel.name: kernel.reason for kernel in patched(loads, "nothing").kernels}
    assert reasons == {"squares": Reason.NOT_SELECTED, "nothing": Reason.NO_SITE}


LACKING = {
    "a map of type histogram": ("type='histogram', scale='log2'", "store", "nl.u32(1)", "thread"),
    "the value BYTES": ("type='sum'", "store", "nl.u64(nl.bytes)", "thread"),
    "the operation ballot": ("type='sum'", "store", "nl.u64(nl.warp.ballot(n > 1))", "thread"),
    "the statement select": ("type='sum'", "store", "n if n > 1 else 2", "thread"),
    "a value of type f64": ("type='sum'", "store", "nl.u64(nl.f64(n))", "thread"),
    "the tracepoint opcode": ("type='sum'", "ld.global", "n", "thread"),
    "the tracepoint predicates": ("type='sum'", "store @", "n", "thread"),
    "the tracepoint loop-head": ("type='sum'", "loop-head", "n", "thread"),
    "level warp": ("type='sum'", "store", "n", "warp"),
    "an array but one": ("type='array', cap=2", "store", "n", "thread"),
    "a sum but one": ("type='sum', per='block'", "store", "n", "thread"),
}


@pytest.mark.parametrize("lacks", LACKING)
def test_what_it_lacks_is_left_out_by_name_and_others_go_in(
    toy: Target, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    kind, position, value, level = LACKING[lacks]
    field = "nl.u32" if "histogram" in kind else "nl.u64"
    other = (
        f"\n@Map(level='{level}', {kind})\nclass Other:\n    value: {field}\n\n"
        f"@probe(pos='{position}', level='{level}', before=True)\ndef other():\n    Other.save({value})\n"
    )
    probes = load_all(source=HEAD + other)
    (squares, _) = patched(probes).kernels
    assert squares.detail.startswith("probe 'other' is left out: not available for kernels in toy: ")
    assert lacks in squares.detail
    alone = load_all(source=HEAD.partition("@Map")[0] + other)
    monkeypatch.setattr(ToyBackend, "plan", lambda *_: pytest.fail("it was planned"))
    with pytest.raises(NeutrinoError, match=f"not available for kernels in toy: .*{lacks}"):
        patched(alone)


def test_the_others_figures_are_whole(toy: Target, tmp_path: Path) -> None:
    source = HEAD + "\n@probe(pos='store', level='thread')\ndef other():\n    Other.save(nl.u32(1))\n\n" \
        "@Map(level='thread', type='sum')\nclass Other:\n    value: nl.u32\n"  # fmt: skip
    _, _, trace = probed(load_all(source=source), tmp_path)
    assert records(trace, "N").valid()["n"].tolist() == [len(VALUES)]
    (kernel,) = trace.kernels
    assert kernel.manifest is not None
    (left_out,) = kernel.manifest.probes_left_out
    assert (left_out.probe, left_out.reason, left_out.maps) == ("other", Reason.UNSUPPORTED.word, ("Other",))
    assert [entry.name for entry in kernel.manifest.probed_maps] == ["N"]


def test_what_reads_the_values_of_one_left_out_is_left_out_too(toy: Target) -> None:
    source = HEAD + "\nwide: nl.u64 = 0\n\n@Map(level='thread', type='sum')\nclass Wide:\n    value: nl.u64\n\n" \
        "@probe(pos='store', level='thread', before=True)\ndef widths():\n    global wide\n    if n < 9:\n" \
        "        wide += 1\n\n" \
        "@probe(pos='kernel', level='thread', after=True)\ndef saved():\n    Wide.save(wide)\n"  # fmt: skip
    (squares, _) = patched(load_all(source=source)).kernels
    assert squares.detail == (
        "probe 'widths' is left out: not available for kernels in toy: the statement compare; a value of type pred; "
        "the statement if; probe 'saved' is left out: it reads what probe 'widths' computes, which is left out"
    )


@pytest.mark.parametrize(("probe", "lacks"), [("gmem_bytes", "the value BYTES"), ("value_watch", "the value OUT")])
def test_a_shipped_probe_that_it_lacks_is_refused(
    toy: Target, monkeypatch: pytest.MonkeyPatch, probe: str, lacks: str
) -> None:
    monkeypatch.setattr(ToyBackend, "plan", lambda *_: pytest.fail("it was planned"))
    with pytest.raises(NeutrinoError, match=f"not available for kernels in toy: .*{lacks}"):
        patched(load_probes([probe]))
