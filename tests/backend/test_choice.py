"""Which target is chosen, and what one that can do less refuses, by name and before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend.ptx_target import PtxTarget
from neutrino.backend.registry import (
    TARGETS,
    device_arch,
    is_unit,
    supported_device,
    target_of_container,
    target_of_device,
    untaken,
)
from neutrino.device.kind import CODE_ALONE, DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container
from neutrino.maker.patcher import patch_image
from neutrino.probing.capabilities import Capabilities, lacking
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_all, load_probes

TEXT = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) { .reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [p]; ld.global.u32 %r, [%d]; ret; }
\0"""
TYPED = """
import neutrino.language as nl
from neutrino import probe, Map

@Map(level="warp", type="histogram", scale="log2")
class SIZES:
    lanes: nl.u32

@probe(pos="ld.global", level="warp")
def sizes():
    SIZES.save(nl.popc(nl.warp.ballot(nl.u32(nl.out) > 3)))
"""


def of(*kinds: ImageKind) -> Container:
    """A container of images of some kinds, as far as the choice looks."""
    (image,) = read_container(build_container([build_entry(ImageKind.PTX, b".version 8.0", "sm_80")]), "test").images
    images = tuple(replace(image, kind=kind, index=number) for number, kind in enumerate(kinds))
    return Container(0, "cuda-fatbin", ".nv_fatbin", 0, 0, images, b"header")


def typed() -> ProbeSet:
    return load_all(source=TYPED)


def patched(probes: ProbeSet) -> list[Reason]:
    data = patch_image(
        TEXT, probes, "sm_90", selection=Selection(), assembler=None, key=bytes(32), device=DeviceKind.EMBEDDED
    )
    return [kernel.reason for kernel in read_entry(data, "entry").kernels]


@pytest.mark.parametrize("kind", [ImageKind.PTX, ImageKind.CUBIN])
def test_a_container_goes_to_the_target_that_takes_one_of_its_images(kind: ImageKind) -> None:
    found = target_of_container(of(ImageKind.BITCODE, kind, ImageKind.NVVM))
    assert found is not None
    assert found.name == "ptx"
    found = target_of_container(of(ImageKind.BITCODE, ImageKind.CODE_OBJECT))
    assert found is not None
    assert found.name == "gcn"


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ((ImageKind.NVVM, ImageKind.BITCODE), "it is compiled or assembled later: what that gives can be probed"),
        ((ImageKind.NVVM,), "neither PTX nor machine code: it is compiled when the program runs"),
        ((), "neither PTX nor machine code: it is compiled when the program runs"),
    ],
)
def test_what_no_target_takes_has_a_reason(kinds: tuple[ImageKind, ...], why: str) -> None:
    assert target_of_container(of(*kinds)) is None
    assert untaken(of(*kinds)) == why


def test_a_device_has_a_target() -> None:
    assert target_of_device("sm_90").device_of("sm_90a") == "sm_90"
    assert target_of_device("gfx942:sramecc+").name == "gcn"
    # Nobody's: the first target says why nothing is made for it.
    assert target_of_device("toy64") is TARGETS[0]
    found = [supported_device(arch) for arch in ("sm_120a", "sm_70", "gfx90a:xnack-", "gfx906", "gfx")]
    assert found == ["sm_120", None, "gfx90a:xnack-", None, None]
    assert device_arch("100f") == "sm_100"


def test_units_are_told_by_their_section() -> None:
    assert is_unit(replace(of(ImageKind.CUBIN), section="__nv_relfatbin"))
    assert not is_unit(of(ImageKind.CUBIN))


def test_what_probes_ask_for_is_named_with_the_probe() -> None:
    none = frozenset[str]()
    assert lacking(typed(), Capabilities(none, none, none, none)) == [
        "probe 'sizes': the tracepoint opcode", "probe 'sizes': the value OUT", "probe 'sizes': the operation ballot",
        "probe 'sizes': the operation popc", "map 'SIZES': a map of type histogram",
    ]  # fmt: skip
    assert lacking(typed(), Capabilities()) == []
    # They were read for warps of 32 lanes.
    assert lacking(typed(), Capabilities(lane_sets=frozenset({"64"}))) == [
        "probe 'sizes': a set of lanes in 32 bits",
    ]
    assert lacking(typed(), Capabilities(lane_sets=frozenset({"32"}))) == []
    enough = Capabilities(
        frozenset({"opcode"}), frozenset({"OUT"}), frozenset({"popc", "ballot"}), frozenset({"histogram"})
    )
    assert lacking(typed(), enough) == []


def test_handwritten_operands_count(tmp_path: Path) -> None:
    found = lacking(load_probes(["gmem_bytes"]), Capabilities(operands=frozenset(), tracepoints=frozenset({"kernel"})))
    assert any("the value BYTES" in one for one in found)
    assert any("the tracepoint" in one for one in found)


def test_a_target_that_lacks_something_refuses_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = typed()
    assert patched(probes) == [Reason.PROBED]
    monkeypatch.setattr(PtxTarget, "capabilities", Capabilities(maps=frozenset({"array", "sum"})))

    def written(*_: object) -> None:
        raise AssertionError("it was written")

    monkeypatch.setattr("neutrino.backend.ptx_twin.PtxTwins.plan", written)
    with pytest.raises(NeutrinoError, match="not available for kernels in ptx: map 'SIZES': a map of type histogram"):
        patched(probes)


def test_the_hook_asks_for_machine_code_if_a_target_takes_it() -> None:
    assert frozenset[DeviceKind]().union(*(target.code_alone for target in TARGETS)) == CODE_ALONE


def test_a_sample_is_probed() -> None:
    """The maker makes its twin before the first request, so that what that computes is there for all."""
    for target in (target for target in TARGETS if target.sample):
        data = patch_image(
            target.sample, load_probes(["block_sched"]), target.embedded_device, selection=Selection(), assembler=None,
            key=bytes(32), device=DeviceKind.EMBEDDED,
        )  # fmt: skip
        assert [kernel.reason for kernel in read_entry(data, "entry").kernels] == [Reason.PROBED]
