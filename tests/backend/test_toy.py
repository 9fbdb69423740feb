"""A second target fits: probes on an invented assembly of 64 lanes, from image to entry, and what its twins record."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

import pytest

from neutrino.abi.probe_block import BLOCK_HEADER, BLOCK_PER_MAP
from neutrino.abi.reasons import Reason
from neutrino.backend import registry
from neutrino.cache.entry import Entry, KernelEntry, read_entry
from neutrino.errors import NeutrinoError
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.maps.regions import copies_of, copy_stride, region_layout
from neutrino.patch.image import patch_image
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.verification import load_all, load_probes
from tests.backend.toy_machine import LANES, Machine
from tests.backend.toy_target import GROUPS, ToyTarget

BLOCKS, THREADS = 5, 150
"""The last warp of a block has 22 lanes."""
DATA = 4096
"""Where the kernels' own data begin; what the probes record is before it."""
TEXT = """
.kernel squares 16
  block b                ; out[i] = sum of the squares below in[i], by a loop of as many turns
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
  jump few, EARLY
  atom out, 6000, 1
  exit
EARLY:
  exit

.kernel nothing 0
  exit
"""
VALUES = [(7 * index) % 11 for index in range(BLOCKS * THREADS)]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyTarget:
    target = ToyTarget()
    monkeypatch.setattr(registry, "TARGETS", (*registry.TARGETS, target))
    return target


def toy_image(arch: str) -> bytes:
    """The text in a container; the format has no kind of image for it."""
    return build_container([build_entry(ImageKind.NVVM, TEXT.lstrip().encode(), arch)])


def patched(probes: ProbeSet, *names: str) -> Entry:
    data = patch_image(
        toy_image("sm_90"), probes, "toy64", selection=Selection(names), assembler=None, key=bytes(32)
    )
    return read_entry(data, "entry")


@dataclass
class Run:
    """What a launch has left. data: of the program. region: of the only map."""

    machine: Machine
    data: bytes
    region: bytes


def run(text: str, name: str, entry: KernelEntry | None = None, probes: ProbeSet | None = None) -> Run:
    """Launch the original, or a twin with its entry and probes."""
    machine = Machine(bytearray(DATA + 2 * 8 * len(VALUES) + 8))
    out = DATA + 8 * len(VALUES)
    struct.pack_into(f"<{len(VALUES)}Q", machine.memory, DATA, *VALUES)
    parameters = struct.pack("<QQ", DATA, out)
    size = 0
    if entry is not None and probes is not None:
        warps = -(-THREADS // LANES)
        ((region,), size) = region_layout(probes.maps, BLOCKS, warps, LANES)
        assert (size <= DATA, entry.block_offset) == (True, 16)
        copies = copies_of(probes.maps[0], BLOCKS * warps)
        parameters += struct.pack("<IIIIQ", warps, BLOCKS * warps, 0, copies - 1, 0)
        parameters += struct.pack("<QQ", region.records, 0)
        assert len(parameters) == 16 + entry.block_size == 16 + BLOCK_HEADER + BLOCK_PER_MAP
    machine.launch(text, name, BLOCKS, THREADS, parameters)
    return Run(machine, bytes(machine.memory[DATA:]), bytes(machine.memory[:size]))


def probed(name: str) -> tuple[Run, Run]:
    """The original and the twin of the kernel, each run."""
    probes = load_probes([name])
    entry = patched(probes, "squares")
    (kernel,) = (kernel for kernel in entry.kernels if kernel.reason is Reason.PROBED)
    before = run(TEXT, "squares")
    after = run(entry.images[kernel.image].decode(), kernel.twin, kernel, probes)
    assert after.data == before.data
    assert struct.unpack_from("<Q", after.data, 8 * len(VALUES)) != (0,)
    return before, after


def test_block_sched_notes_each_warp(toy: ToyTarget) -> None:
    before, after = probed("block_sched")
    # What follows aligns the region.
    records = list(struct.iter_unpack("<QII", after.region))[: BLOCKS * 3]
    assert len(records) == len(after.machine.spans) == BLOCKS * 3
    for number, (start, elapsed, unit) in enumerate(records):
        first, last, where = after.machine.spans[number]
        own_first, own_last, _ = before.machine.spans[number]
        # One register is set before the clock is read; its last lanes record, then exit.
        assert (start, unit) == (first + 1, where)
        assert own_last - own_first <= elapsed <= last - start


def test_inst_count_counts_what_lanes_execute(toy: ToyTarget) -> None:
    before, after = probed("inst_count")
    probes = load_probes(["inst_count"])
    executed: Counter[str] = Counter()
    for opcode, count in before.machine.executed.items():
        executed["all"] += count
        executed[GROUPS.get(opcode, "")] += count
    stride = copy_stride(probes.maps[0].size)
    assert len(after.region) == copies_of(probes.maps[0], BLOCKS * 3) * stride
    fields = probes.maps[0].fields
    sums = {
        field.name: sum(struct.unpack_from("<Q", after.region, at + field.offset)[0]
                        for at in range(0, len(after.region), stride))
        for field in fields
    }  # fmt: skip
    assert sums == {field.name: executed[field.name] for field in fields}
    assert min(sums[name] for name in ("all", "load", "store", "atomic", "branch")) > 0


def test_kernels_without_a_site_and_not_selected_have_their_reasons(toy: ToyTarget) -> None:
    loads = load_all(source="import neutrino.language as nl\nfrom neutrino import probe, Map\nn: nl.u64 = 0\n\n"
                     "@Map(level='thread', type='sum')\nclass N:\n    n: nl.u64\n\n"
                     "@probe(pos='load', level='thread')\ndef loads():\n    N.save(1)\n")  # fmt: skip
    reasons = {kernel.name: kernel.reason for kernel in patched(loads).kernels}
    assert reasons == {"squares": Reason.PROBED, "nothing": Reason.NO_SITE}
    reasons = {kernel.name: kernel.reason for kernel in patched(loads, "nothing").kernels}
    assert reasons == {"squares": Reason.NOT_SELECTED, "nothing": Reason.NO_SITE}


@pytest.mark.parametrize(
    ("probe", "lacks"),
    [("gmem_bytes", "the value BYTES"), ("value_watch", "the value OUT")],
)
def test_what_it_lacks_is_refused_by_name(
    toy: ToyTarget, monkeypatch: pytest.MonkeyPatch, probe: str, lacks: str
) -> None:
    monkeypatch.setattr("tests.backend.toy_target.ToyTwins.plan", lambda *_: pytest.fail("it was planned"))
    with pytest.raises(NeutrinoError, match=f"not available for kernels in toy: .*{lacks}"):
        patched(load_probes([probe]))
