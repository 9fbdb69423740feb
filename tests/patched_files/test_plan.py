"""Which twins are made for which devices: every row leads to twins of what that device's driver picks."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import pytest

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.ptx_devices import DEVICES
from neutrino.backend.ptx_source import picked_image, runs_on
from neutrino.backend.registry import device_arch
from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container
from neutrino.patched_files.patch_plan import PlannedImage, image_identity, make_plan

IMAGES = {
    image.kind: image
    for image in read_container(
        build_container([
            build_entry(ImageKind.CUBIN, b"as far as the plan looks", "sm_90"),
            build_entry(ImageKind.PTX, b".version 8.0", "sm_90", options=""),
        ]),
        "container",
    ).images
}  # fmt: skip


def container(*, cubins: str = "", ptx: str = "", index: int = 0) -> Container:
    """What the plan sees of a container: architectures, by words such as ``80 90a``."""
    kinds = [(ImageKind.CUBIN, arch) for arch in cubins.split()] + [(ImageKind.PTX, arch) for arch in ptx.split()]
    images = tuple(
        replace(IMAGES[kind], arch=f"sm_{arch}", index=number, header=arch.encode())
        for number, (kind, arch) in enumerate(kinds)
    )
    return Container(index, "cuda-fatbin", ".nv_fatbin", 0, 0, images, b"header")


def targets(made: Container, *archs: str, emit: Emit = Emit.CODE) -> dict[str, tuple[str, ...]]:
    plan = make_plan([made], archs, DeviceKind.GPU, emit)
    assert not any(image.linked for image in plan.images)
    return {image.arch: image.devices for image in plan.images}


def test_machine_code_serves_every_device_that_runs_it() -> None:
    made = container(cubins="80 90a", ptx="80 90a")
    assert targets(made) == {"sm_80": ("sm_80", "sm_86", "sm_87", "sm_88", "sm_89"), "sm_90": ("sm_90",)}
    assert targets(made, "sm_86") == {"sm_86": ("sm_86", "sm_80", "sm_87", "sm_88", "sm_89")}
    assert targets(made, "sm_86", "sm_89") == {"sm_86": ("sm_86", "sm_89", "sm_80", "sm_87", "sm_88")}


def test_a_family_is_served_as_one() -> None:
    assert targets(container(cubins="100f"), "sm_100") == {"sm_100": ("sm_100", "sm_103")}
    assert targets(container(cubins="120f"), "sm_120") == {"sm_120": ("sm_120", "sm_121")}


def test_a_better_fit_takes_its_devices() -> None:
    made = container(cubins="80 86", ptx="80 86")
    assert targets(made) == {"sm_80": ("sm_80",), "sm_86": ("sm_86", "sm_87", "sm_88", "sm_89")}


def test_what_the_driver_compiles_is_made_for_each_device() -> None:
    made = container(ptx="80")
    assert targets(made, "sm_86", "sm_90") == {"sm_86": ("sm_86",), "sm_90": ("sm_90",)}
    assert targets(made) == {"sm_80": ("sm_80",)}


@pytest.mark.parametrize("emit", [Emit.TEXT, Emit.BOTH])
def test_text_serves_every_device_for_which_the_original_would_be_compiled(emit: Emit) -> None:
    later = tuple(arch for arch in DEVICES if int(arch[3:]) > 90)
    found = targets(container(cubins="90", ptx="90"), emit=emit)
    assert found == {"sm_90": ("sm_90", *later)}
    # What is for one architecture alone is compiled for no other.
    assert targets(container(cubins="90a", ptx="90a"), emit=emit) == {"sm_90": ("sm_90",)}
    found = targets(container(ptx="80"), "sm_86", "sm_100", emit=emit)
    if emit is Emit.TEXT:
        assert found["sm_86"] == ("sm_86", "sm_80", "sm_87", "sm_88", "sm_89", "sm_90")
        assert found["sm_100"] == tuple(arch for arch in DEVICES if int(arch[3:]) >= 100)
    else:
        # Where the driver would rather take the machine code for sm_86 or sm_100, the twins are the other's text.
        assert found["sm_86"] == ("sm_86", "sm_80", "sm_90", "sm_101", "sm_103")
        assert found["sm_100"] == ("sm_100", "sm_87", "sm_88", "sm_89", "sm_110", "sm_120", "sm_121")


ARCHS = ("80", "90", "90a", "100f")


@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("asked", [(), ("sm_80", "sm_120")])
def test_no_device_is_served_what_its_driver_would_not_pick(emit: Emit, asked: tuple[str, ...]) -> None:
    for cubins, ptx in itertools.product(itertools.combinations(ARCHS, 2), itertools.combinations(ARCHS, 2)):
        made = container(cubins=" ".join(cubins), ptx=" ".join(ptx))
        seen: set[str] = set()
        for arch, devices in targets(made, *asked, emit=emit).items():
            mine = picked_image(made, arch)
            assert mine is not None
            assert devices[0] == arch
            for device in devices:
                theirs = picked_image(made, device)
                assert theirs is not None
                same = theirs is mine and (mine.kind is ImageKind.CUBIN or device == arch or emit is not Emit.CODE)
                # The text of the machine code that was judged, which the driver compiles where that does not run.
                compiled = emit is not Emit.CODE and theirs.kind is ImageKind.PTX and theirs.arch == mine.arch
                if compiled and mine.kind is ImageKind.PTX and emit is Emit.BOTH and device != arch:
                    # The twins' container has machine code for arch.
                    assert runs_on(arch, device) is None
                assert same or compiled, (cubins, ptx, arch, device)
            assert not seen & {*devices}
            seen |= {*devices}
        assert {arch for arch in asked if picked_image(made, arch)} <= seen


def test_equal_images_are_made_once() -> None:
    one, other = container(cubins="80", ptx="80"), container(cubins="90", ptx="90")
    plan = make_plan([one, other, replace(one, index=2)], ["sm_80"], DeviceKind.GPU, Emit.CODE)
    assert [image.container for image in plan.images] == [0]
    assert plan.copies == {0: (2,)}
    assert plan.identities[0] == plan.identities[2]


def test_an_image_is_what_the_driver_is_given() -> None:
    data = build_container([build_entry(ImageKind.PTX, b".version 8.0", "sm_80", options="")])
    made = read_container(data + b"what follows it in memory", "container")
    assert image_identity(made) == (hashlib.sha256(data).digest(), len(data))
    text = b".version 8.0\n.target sm_80\n"
    # A text ends with NUL, which is not the text's.
    assert image_identity(read_container(text + b"\0", "text")) == (hashlib.sha256(text).digest(), len(text))


def test_what_does_not_run_on_a_device_is_listed_with_what_there_is() -> None:
    plan = make_plan([container(cubins="80", ptx="80a")], ["sm_90"], DeviceKind.GPU, Emit.CODE)
    assert plan.images == ()
    (listed,) = plan.skipped_images
    assert (listed.reason, listed.detail) == (Reason.NO_PTX, "nothing for sm_90: the image holds sm_80, sm_80a")


def test_architectures_that_are_too_old_are_left_out_and_named() -> None:
    plan = make_plan([container(cubins="50 70 80", ptx="80")], (), DeviceKind.GPU, Emit.CODE)
    assert plan.archs == ("sm_80",)
    assert plan.notes == ("sm_50, sm_70: left out, machine code is supported from sm_75 on",)


def test_the_embedded_device_takes_text_only() -> None:
    plan = make_plan([container(cubins="90", ptx="80")], ["sm_90"], DeviceKind.EMBEDDED, Emit.CODE)
    assert plan.images == (PlannedImage(0, "sm_90", ("sm_90",)),)
    plan = make_plan([container(cubins="90")], ["sm_90"], DeviceKind.EMBEDDED, Emit.CODE)
    assert (plan.images, len(plan.skipped_images)) == ((), 1)


def test_inputs_of_the_device_linker_are_nobody_s_images() -> None:
    unit = replace(container(cubins="90", ptx="90"), section="__nv_relfatbin")
    assert make_plan([unit], (), DeviceKind.GPU, Emit.CODE).images == ()


@pytest.mark.parametrize(("word", "arch"), [("sm_90", "sm_90"), ("90", "sm_90"), ("sm_100a", "sm_100")])
def test_how_an_architecture_may_be_written(word: str, arch: str) -> None:
    assert device_arch(word) == arch


@pytest.mark.parametrize("word", ["", "hopper", "sm_", "gfz90a", "sm_70", "50", "sm_90x"])
def test_what_is_no_architecture(word: str) -> None:
    with pytest.raises(NeutrinoError, match="--arch"):
        device_arch(word)
