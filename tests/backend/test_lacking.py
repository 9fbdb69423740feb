"""Probes that a target cannot do are left out by name, with what depends on them, before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend.protocol import Target
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, Image
from neutrino.maker.patcher import patch_image
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace
from neutrino.twins.cache_entry import Entry, read_entry
from neutrino.verification import load_all, load_probes
from tests.backend.lesser_target import DEVICE, forbid_planning, lessen, library
from tests.gcn.objects import need_llvm
from tests.tracing.trace_writer import TraceWriter

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
LEFT_OUT = "not available for kernels in gcn: "


@pytest.fixture
def less(monkeypatch: pytest.MonkeyPatch) -> None:
    need_llvm()
    lessen(monkeypatch)


def read(source: str) -> ProbeSet:
    return load_all(source=source, platform="hip")


def patched(probes: ProbeSet, *names: str) -> Entry:
    container = library()
    (image,) = (image for image in container.images if image.arch == DEVICE)
    data = patch_image(bytes(image.data), probes, DEVICE, selection=Selection(names), assembler=None, key=bytes(32))
    return read_entry(data, "entry")


@pytest.mark.usefixtures("less")
def test_kernels_without_a_site_and_not_selected_have_their_reasons() -> None:
    atomics = read(HEAD.replace("pos='load'", "pos='store'"))
    saxpy, total = patched(atomics).kernels
    assert json.loads(saxpy.files["manifest.json"])["emit"] == "code"
    assert (total.lanes, dict(total.files)) == (0, {})
    reasons = {kernel.name: kernel.reason for kernel in (saxpy, total)}
    assert reasons == {"saxpy": Reason.PROBED, "sum": Reason.NO_SITE}
    reasons = {kernel.name: kernel.reason for kernel in patched(atomics, "sum").kernels}
    assert reasons == {"saxpy": Reason.NOT_SELECTED, "sum": Reason.NO_SITE}


LACKING = {
    "a map of type histogram": ("type='histogram', scale='log2'", "store", "nl.u32(1)", "thread"),
    "the value BYTES": ("type='sum'", "store", "nl.u64(nl.bytes)", "thread"),
    "the operation ballot": ("type='sum'", "store", "nl.u64(nl.warp.ballot(n > 1))", "thread"),
    "the statement select": ("type='sum'", "store", "n if n > 1 else 2", "thread"),
    "a value of type f64": ("type='sum'", "store", "nl.u64(nl.f64(n))", "thread"),
    "the tracepoint opcode": ("type='sum'", "ld.global", "n", "thread"),
    "the tracepoint functions": ("type='sum'", "store func:saxpy", "n", "thread"),
    "level warp": ("type='sum'", "store", "n", "warp"),
    "an array but one": ("type='array', cap=2", "store", "n", "thread"),
    "a sum but one": ("type='sum', per='block'", "store", "n", "thread"),
}


@pytest.mark.usefixtures("less")
@pytest.mark.parametrize("lacks", LACKING)
def test_what_it_lacks_is_left_out_by_name_and_others_go_in(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    kind, position, value, level = LACKING[lacks]
    field = "nl.u32" if "histogram" in kind else "nl.u64"
    other = (
        f"\n@Map(level='{level}', {kind})\nclass Other:\n    value: {field}\n\n"
        f"@probe(pos='{position}', level='{level}', before=True)\ndef other():\n    Other.save({value})\n"
    )
    saxpy, _ = patched(read(HEAD + other)).kernels
    assert saxpy.detail.startswith(f"probe 'other' is left out: {LEFT_OUT}")
    assert lacks in saxpy.detail
    alone = read(HEAD.partition("@Map")[0] + other)
    forbid_planning(monkeypatch)
    with pytest.raises(NeutrinoError, match=f"{LEFT_OUT}.*{lacks}"):
        patched(alone)


@pytest.mark.usefixtures("less")
def test_the_manifest_says_which_maps_are_whole(tmp_path: Path) -> None:
    source = HEAD + "\n@probe(pos='store', level='thread')\ndef other():\n    Other.save(nl.u32(1))\n\n" \
        "@Map(level='thread', type='sum')\nclass Other:\n    value: nl.u32\n"  # fmt: skip
    probes = read(source)
    saxpy, _ = patched(probes).kernels
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "saxpy", maps=probes.maps)
    for name, data in saxpy.files.items():
        (writer.path / "kernel/1" / name).write_bytes(data)
    (kernel,) = Trace(writer.write()).kernels
    assert kernel.manifest is not None
    (left_out,) = kernel.manifest.probes_left_out
    assert (left_out.probe, left_out.reason, left_out.maps) == ("other", Reason.UNSUPPORTED.word, ("Other",))
    assert [entry.name for entry in kernel.manifest.probed_maps] == ["N"]


@pytest.mark.usefixtures("less")
def test_what_reads_the_values_of_one_left_out_is_left_out_too() -> None:
    source = HEAD + "\nwide: nl.u64 = 0\n\n@Map(level='thread', type='sum')\nclass Wide:\n    value: nl.u64\n\n" \
        "@probe(pos='store', level='thread', before=True)\ndef widths():\n    global wide\n    if n < 9:\n" \
        "        wide += 1\n\n" \
        "@probe(pos='kernel', level='thread', after=True)\ndef saved():\n    Wide.save(wide)\n"  # fmt: skip
    saxpy, _ = patched(read(source)).kernels
    assert saxpy.detail == (
        f"probe 'widths' is left out: {LEFT_OUT}the statement compare; a value of type pred; "
        "the statement if; probe 'saved' is left out: it reads what probe 'widths' computes, which is left out"
    )


@pytest.mark.usefixtures("less")
@pytest.mark.parametrize(("probe", "lacks"), [("gmem_bytes", "the value BYTES"), ("latency", "clock\\(after\\)")])
def test_a_shipped_probe_that_it_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, probe: str, lacks: str) -> None:
    forbid_planning(monkeypatch)
    with pytest.raises(NeutrinoError, match=f"{LEFT_OUT}.*{lacks}"):
        patched(load_probes([probe], platform="hip"))


class Least(Target):
    """A target that has no more than one must have."""

    name, language, devices = "least", "least text", ("one", "two")

    def takes(self, image: Image) -> bool:
        return image.arch in self.devices

    def find(self, container: Container, units: Sequence[Container], arch: str, *_: object, **__: object) -> None:  # type: ignore[override]
        return None


def test_what_a_target_does_not_say_is_so_of_complete_images_that_nothing_assembles() -> None:
    least = Least()
    assert (least.rank("two"), least.supports("one"), least.supports("three")) == (1, True, False)
    assert (least.device_named("two"), least.device_named("three")) == ("two", None)
    assert (least.warps_by_registers(32, "one"), least.embedded_device, least.sample) == (0, "", b"")
    assert not least.may_hold_text(b"code")
    assert (least.is_text_shipped, least.code_alone) == (True, frozenset())
    least.check_text("anything")
    with pytest.raises(NeutrinoError, match="kernels in least text cannot be tried"):
        least.kernel_text("anything")
