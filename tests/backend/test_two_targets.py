"""Files of two targets, AMD's and CUDA's, are listed and patched ahead of time: each container by its own target."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend import registry
from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container
from neutrino.patched_files.entry_spool import EntrySpool
from neutrino.patched_files.image_twins import Settings, Task, _run_task, _TwinMaker
from neutrino.patched_files.patch_plan import PlannedImage, image_identity, make_plan
from neutrino.patched_files.preview import default_architecture, preview
from neutrino.patched_files.probeable_kernels import architectures, find_coverage
from neutrino.patched_files.workers import Slots
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.backend.lesser_target import DEVICE, lessen, library
from tests.gcn.objects import need_llvm

PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }"


@pytest.fixture(autouse=True)
def llvm() -> None:
    need_llvm()


def containers() -> list[Container]:
    """A file's: one of AMD's, of which the other device's image is left out, and one of CUDA's."""
    amd = library()
    (image,) = (image for image in amd.images if image.arch == DEVICE)
    cuda = read_container(build_container([build_entry(ImageKind.PTX, PTX, "sm_90")]), "file").images
    return [
        replace(amd, index=0, images=(image,)),
        Container(1, "cuda-fatbin", ".nv_fatbin", 0, 0, cuda, b"header"),
    ]


def test_each_container_is_planned_by_its_own_target() -> None:
    assert architectures(containers()) == ("sm_90", DEVICE)
    plan = make_plan(containers(), (), DeviceKind.GPU, Emit.CODE)
    assert plan.images == (PlannedImage(0, DEVICE, (DEVICE,)), PlannedImage(1, "sm_90", ("sm_90",)))
    assert registry.device_arch(DEVICE) == DEVICE
    plan = make_plan(containers(), (DEVICE,), DeviceKind.GPU, Emit.CODE)
    assert [image.arch for image in plan.images] == [DEVICE]
    (skipped,) = plan.skipped_images
    assert (skipped.container, skipped.detail) == (1, f"nothing for {DEVICE}: the image holds sm_90")


def test_sites_and_coverage_are_the_target_s(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = load_probes(["block_sched"])
    # Of two with code for one container each, the last.
    assert default_architecture(containers()) == DEVICE
    shown = [kernel for kernel in preview(containers(), DEVICE, probes, Selection()) if kernel.plan is not None]
    assert [(kernel.name, kernel.container, kernel.plan.site_count) for kernel in shown if kernel.plan] == [
        ("saxpy", 0, 2), ("sum", 0, 2),
    ]  # fmt: skip
    twin = registry.target_of_device(DEVICE).show(shown[0].plan, None)
    (part,) = twin.parts
    assert (part.original, part.probed) == (twin.original, twin.probed)
    # Each line of the original is there, in the same order; the others are what was inserted, and its labels.
    assert part.pairs is not None
    original, written = part.original.splitlines(), part.probed.splitlines()
    pairs = [at for at in part.pairs if at is not None]
    assert pairs == sorted(set(pairs))
    assert len(pairs) == len(original)
    assert [(line, written[at]) for line, at in zip(original, pairs, strict=True) if line != written[at]] == [
        ("saxpy:", "saxpy__neutrino:")
    ]
    inserted = [line for at, line in enumerate(written) if at not in pairs and line.startswith(" ")]
    assert len(inserted) == twin.added > 10
    known: dict[tuple[int, int], list[object]] = {}
    coverage = find_coverage(containers(), DEVICE, probes, Selection(), known=known)  # type: ignore[arg-type]
    assert {(row.name, row.reason) for row in coverage.kernels} == {
        ("saxpy", Reason.PROBED), ("sum", Reason.PROBED), ("k", Reason.NO_PTX),
    }  # fmt: skip
    lessen(monkeypatch)
    with pytest.raises(NeutrinoError, match="not available for kernels in gcn"):
        list(preview(containers(), DEVICE, load_probes(["gmem_bytes"]), Selection()))


def test_a_file_s_twins_are_made_by_the_target_s_backend() -> None:
    made = containers()
    plan = make_plan(made, (DEVICE,), DeviceKind.GPU, Emit.CODE)
    digest, _ = image_identity(made[0])
    with closing(Slots(1)) as slots, closing(EntrySpool(None)) as spool:
        maker = _TwinMaker(made, Settings(load_probes(["inst_count"])), slots, spool)
        result = _run_task(maker, Task(plan.images[0], digest))
        assert result.entry is not None
        (data,) = spool.entries([result.entry])
        entry = read_entry(bytes(data), "entry")
    assert result.notes == ()
    assert [(kernel.name, kernel.reason) for kernel in result.kernels] == [
        ("saxpy", Reason.PROBED), ("sum", Reason.PROBED),
    ]  # fmt: skip
    assert all(kernel.registers is not None for kernel in result.kernels)
    assert (entry.key, len(entry.images)) == (result.key, 1)
    files = registry.target_of_device(DEVICE).files
    assert {*entry.kernels[0].files} == {"manifest.json", *files}
    assert b"saxpy:" in entry.kernels[0].files["original.s"]
