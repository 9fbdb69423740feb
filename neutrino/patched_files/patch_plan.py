"""The plan for patching a file: which images get twins (instrumented copies of their kernels), for which devices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.protocol import Target
from neutrino.backend.registry import TARGETS, is_unit, target_of_container, untaken
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container


@dataclass(frozen=True)
class PlannedImage:
    """The twins to make of one image for one architecture. They become one entry of the ``.neutrino`` section.

    container: index in the file's containers. arch: the architecture that they are made for. devices: architectures of
    all devices that can run them, arch included; each gets a row in the section. linked: whether the device linker made
    the container; then the text is in the file's relocatable translation units.
    """

    container: int
    arch: str
    devices: tuple[str, ...]
    linked: bool = False


@dataclass(frozen=True)
class SkippedImage:
    """An image whose kernels get no twins, and why. container, image: its indices. detail: a sentence for reports."""

    container: int
    image: int
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Plan:
    """What to do with a file's containers.

    archs: of the devices that twins are made for. images: those that get twins. copies: for a container that appears
    several times in the file, the indices of its repetitions, by the index of the first; twins are made once.
    identities: SHA-256 and size in bytes of each container with such an image, by index. notes: remarks for the user.
    """

    archs: tuple[str, ...]
    images: tuple[PlannedImage, ...]
    skipped_images: tuple[SkippedImage, ...]
    copies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    identities: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def driver_bytes(container: Container) -> Iterator[bytes | memoryview]:
    """Yield the bytes that a program hands to the driver, in parts: the container without trailing bytes."""
    target = target_of_container(container)
    if target is not None and target.is_driver_text(container):
        yield container.images[0].data
        return
    if container.bundle is not None:
        yield container.bundle.stored
        return
    yield container.header
    for image in container.images:
        yield image.header
        yield image.payload


def make_plan(containers: Sequence[Container], wanted: Sequence[str], kind: DeviceKind, emit: Emit) -> Plan:
    """Plan the twins (instrumented copies of kernels) of a file: for which images, and for which architectures.

    containers: all of the file's. wanted: architectures of devices, as ``sm_90``; if empty, every one that the file's
    images are for. kind: whether the twins are for GPUs or the emulator. emit: the form of twins for the driver.
    """
    # Relocatable units are inputs of the device linker: their text is used, but the driver never loads them. loadable:
    # indices of all other containers.
    units = [container for container in containers if is_unit(container)]
    loadable = [index for index, container in enumerate(containers) if not is_unit(container) and container.images]
    notes: list[str] = []
    archs = tuple(dict.fromkeys(wanted)) or _archs_of((containers[index] for index in loadable), notes)
    images: list[PlannedImage] = []
    skipped: list[SkippedImage] = []
    for index in loadable:
        container = containers[index]
        target = target_of_container(container)
        if target is None:
            why = untaken(container)
            skipped += [SkippedImage(index, image.index, Reason.UNSUPPORTED, why) for image in container.images]
            continue
        # The embedded device runs text, so it never takes what the device linker made.
        linked = kind is DeviceKind.GPU and target.is_linked(container, units)
        # Linked twins are machine code only.
        form = Emit.CODE if linked else emit
        groups = _device_groups(target, container, archs, kind, form)
        planned = [PlannedImage(index, arch, devices, linked) for arch, devices in groups]
        images += planned
        if not planned:
            skipped += _skip_without_device(target, index, container, archs)

    # Equal containers get the same twins, so only the first of them stays.
    with_images = dict.fromkeys(image.container for image in images)
    identities = {index: image_identity(containers[index]) for index in with_images}
    copies = _find_copies(identities)
    repeated = {index for repetitions in copies.values() for index in repetitions}
    return Plan(
        archs=archs,
        images=tuple(image for image in images if image.container not in repeated),
        skipped_images=tuple(skipped),
        copies=copies,
        identities=identities,
        notes=tuple(notes),
    )


def _find_copies(identities: Mapping[int, tuple[bytes, int]]) -> dict[int, tuple[int, ...]]:
    """Return the indices of containers that repeat an earlier one, by the index of that first one.

    identities: SHA-256 and size of each container, by index.
    """
    first_index: dict[tuple[bytes, int], int] = {}
    copies: dict[int, tuple[int, ...]] = {}
    for index, identity in identities.items():
        first = first_index.setdefault(identity, index)
        if first != index:
            copies[first] = (*copies.get(first, ()), index)
    return copies


def _archs_of(containers: Iterable[Container], notes: list[str]) -> tuple[str, ...]:
    """Return the supported architectures of all images that a target takes, as ``sm_90``, in ascending order.

    Appends a note for each target that names the architectures that are too old.
    """
    devices: dict[str, set[str]] = {target.name: set() for target in TARGETS}
    for container in containers:
        if (target := target_of_container(container)) is None:
            continue
        # Other images, and names that are no architecture, are left out.
        found = {target.device_of(image.arch) for image in container.images if target.takes(image)}
        devices[target.name] |= {device for device in found if device is not None}
    archs: list[str] = []
    for target in TARGETS:
        in_order = sorted(devices[target.name], key=target.rank)
        if old := [device for device in in_order if not target.supports(device)]:
            notes.append(f"{', '.join(old)}: left out, machine code is supported {target.supported}")
        archs += [device for device in in_order if target.supports(device)]
    return tuple(archs)


def _device_groups(
    target: Target, container: Container, archs: Sequence[str], kind: DeviceKind, emit: Emit
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each architecture that a container's twins (instrumented kernels) are made for, with all that can run them.

    archs: the architectures that the user asked for. Other known ones are added to a group where its twins also run.
    kind: whether the twins are for GPUs or the emulator. emit: the form of the twins, on which it depends where they
    run. Nothing is yielded for an architecture for which the driver finds no image in the container.
    """
    if kind is DeviceKind.EMBEDDED:
        # There is one embedded device, so its twins need not serve other architectures.
        for arch in archs:
            if target.picked(container, arch, kind) is not None:
                yield arch, (arch,)
        return
    picked = {arch: target.picked(container, arch) for arch in dict.fromkeys((*archs, *target.devices))}
    # By the architecture that the group's twins are made for: those that can run them.
    groups: dict[str, list[str]] = {}

    # The architectures that were asked for. Those that run the same machine code share twins.
    for arch in archs:
        image = picked[arch]
        if image is None:
            continue
        if target.is_machine_code(image):
            same_code = next((group for group in groups if picked[group] is image), None)
            groups.setdefault(same_code or arch, []).append(arch)
        else:
            # Text is compiled for each architecture, which may give different code.
            groups[arch] = [arch]

    # All other known ones, where the twins of a group serve them.
    for arch, image in picked.items():
        if arch in archs or image is None:
            continue
        candidates = [
            group for group in groups
            if (made_from := picked[group]) and target.serves(container, group, made_from, arch, image, emit)
        ]  # fmt: skip
        if candidates:
            groups[_nearest(target, candidates, arch)].append(arch)
    for arch, devices in groups.items():
        yield arch, tuple(devices)


def _nearest(target: Target, candidates: Sequence[str], arch: str) -> str:
    """Return the highest candidate architecture that is not above arch; if all are above, the lowest.

    It decides which of several groups of twins (instrumented kernels), all of which run on arch, it gets.
    """
    not_above = [candidate for candidate in candidates if target.rank(candidate) <= target.rank(arch)]
    return max(not_above, key=target.rank) if not_above else min(candidates, key=target.rank)


def _skip_without_device(
    target: Target, index: int, container: Container, archs: Sequence[str]
) -> Iterator[SkippedImage]:
    """Yield one skipped image of a container that has nothing for the architectures archs.

    index: of the container. One image is enough, since all of them hold the same kernels.
    """
    found = ", ".join(sorted({image.arch or "unknown" for image in container.images}))
    wanted = ", ".join(archs) or f"an architecture {target.supported}"
    for image in container.images:
        if target.takes(image):
            yield SkippedImage(index, image.index, Reason.NO_PTX, f"nothing for {wanted}: the image holds {found}")
            return


def image_identity(container: Container) -> tuple[bytes, int]:
    """Return the SHA-256 and the size of the bytes that a program hands to the driver for a container.

    By these the hook (which launches the instrumented kernels) finds the section's row for an image that the program
    loads.
    """
    digest = hashlib.sha256()
    size = 0
    for part in driver_bytes(container):
        digest.update(part)
        size += len(part)
    return digest.digest(), size
