"""A second target fits where files are listed and patched ahead of time, beside CUDA's."""

from __future__ import annotations

from contextlib import closing

import pytest

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend import registry
from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container
from neutrino.patched_files.image_twins import Settings, Task, _run_task, _TwinMaker
from neutrino.patched_files.patch_plan import PlannedImage, image_identity, make_plan
from neutrino.patched_files.preview import default_architecture, preview
from neutrino.patched_files.probeable_kernels import architectures, find_coverage
from neutrino.patched_files.workers import Slots
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.backend.test_toy import TEXT
from tests.backend.toy_target import ToyTarget

PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }"


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TARGETS", (*registry.TARGETS, ToyTarget()))
    monkeypatch.setattr("neutrino.patched_files.patch_plan.TARGETS", registry.TARGETS)


def containers() -> list[Container]:
    """A file's: one of the toy's, and one of CUDA's."""
    toy = read_container(TEXT.encode(), "file").images
    cuda = read_container(build_container([build_entry(ImageKind.PTX, PTX, "sm_90")]), "file").images
    return [
        Container(index, "cuda-fatbin", ".nv_fatbin", 0, 0, images, b"header")
        for index, images in enumerate((toy, cuda))
    ]


def test_each_container_is_planned_by_its_own_target() -> None:
    assert architectures(containers()) == ("sm_90", "toy64")
    plan = make_plan(containers(), (), DeviceKind.GPU, Emit.CODE)
    assert plan.images == (PlannedImage(0, "toy64", ("toy64",)), PlannedImage(1, "sm_90", ("sm_90",)))
    assert registry.device_arch("toy64") == "toy64"
    plan = make_plan(containers(), ("toy64",), DeviceKind.GPU, Emit.CODE)
    assert [image.arch for image in plan.images] == ["toy64"]
    (skipped,) = plan.skipped_images
    assert (skipped.container, skipped.detail) == (1, "nothing for toy64: the image holds sm_90")


def test_sites_and_coverage_are_the_target_s() -> None:
    probes = load_probes(["block_sched"])
    # Of two with a text for one container each, the last.
    assert default_architecture(containers()) == "toy64"
    shown = [kernel for kernel in preview(containers(), "toy64", probes, Selection()) if kernel.plan is not None]
    assert [(kernel.name, kernel.container, kernel.plan.site_count) for kernel in shown if kernel.plan] == [
        ("squares", 0, 2), ("nothing", 0, 2),
    ]  # fmt: skip
    twin = registry.target_of_device("toy64").show(shown[0].plan, None)
    assert twin.original in TEXT
    assert twin.probed.count("\n") - (twin.original.count("\n") + 1) == twin.added > 10
    known: dict[tuple[int, int], list[object]] = {}
    coverage = find_coverage(containers(), "toy64", probes, Selection(), known=known)  # type: ignore[arg-type]
    assert {(row.name, row.reason) for row in coverage.kernels} == {
        ("squares", Reason.PROBED), ("nothing", Reason.PROBED), ("k", Reason.NO_PTX),
    }  # fmt: skip
    with pytest.raises(NeutrinoError, match="not available for kernels in toy"):
        list(preview(containers(), "toy64", load_probes(["gmem_bytes"]), Selection()))


def test_a_file_s_twins_are_made_by_the_target_s_backend() -> None:
    made = containers()
    plan = make_plan(made, ("toy64",), DeviceKind.GPU, Emit.CODE)
    digest, _ = image_identity(made[0])
    with closing(Slots(1)) as slots:
        maker = _TwinMaker(made, Settings(load_probes(["inst_count"])), slots)
        result = _run_task(maker, Task(plan.images[0], digest))
    assert result.notes == ()
    assert [(kernel.name, kernel.reason, kernel.registers) for kernel in result.kernels] == [
        ("squares", Reason.PROBED, None), ("nothing", Reason.PROBED, None),
    ]  # fmt: skip
    assert result.entry is not None
    entry = read_entry(result.entry, "entry")
    assert (entry.key, len(entry.images)) == (result.key, 1)
    assert {*entry.kernels[0].files} == {"manifest.json", *ToyTarget().files}
    assert entry.kernels[0].files["original.toy"].decode() in TEXT
