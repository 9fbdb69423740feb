"""The plan for patching a file: which images get twins (instrumented copies of their kernels), for which devices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.device.kind import DeviceKind
from neutrino.device.linked_source import RELOCATABLE_SECTION, is_linked
from neutrino.device.source import Device, compiles_for, picked_image, runs_on
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.fatbin.container import FILE
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE

DEVICES = tuple(
    f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
)  # PTX ISA 9.0, ".target": the architectures from FIRST_ARCHITECTURE on.
EMBEDDED_DEVICE = "sm_90"
"""The architecture that the embedded device's driver names."""

_CUDA_IMAGES = (ImageKind.PTX, ImageKind.CUBIN)
"""Images with code that can be probed; other kinds are for AMD GPUs, or not compiled yet."""


@dataclass(frozen=True)
class Target:
    """The twins to make of one image for one architecture. They become one entry of the ``.neutrino`` section.

    container: index in the file's containers. arch: the architecture that they are made for. devices: architectures of
    all devices that can run them, arch included; each gets a row in the section. linked: whether the device linker made
    the container; then the PTX is in the file's relocatable translation units.
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

    archs: of the devices that twins are made for. copies: for a container that appears several times in the file, the
    indices of its repetitions, by the index of the first; twins are made once. identities: SHA-256 and size in bytes of
    each container that has a target, by index. notes: remarks for the user.
    """

    archs: tuple[str, ...]
    targets: tuple[Target, ...]
    skipped_images: tuple[SkippedImage, ...]
    copies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    identities: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def device_arch(word: str) -> str:
    """Return ``sm_90`` for a user's ``sm_90``, ``sm_90a`` or ``90``.

    Raises NeutrinoError for anything else, and for architectures that are too old.
    """
    device = Device.parse(word if word.startswith("sm_") else f"sm_{word}")
    if device is None:
        raise NeutrinoError(f"--arch {word}: not an architecture; write it as sm_90")
    if device.number < FIRST_ARCHITECTURE:
        raise NeutrinoError(f"--arch {word}: machine code is supported from sm_{FIRST_ARCHITECTURE} on")
    return f"sm_{device.number}"


def driver_bytes(container: Container) -> Iterator[bytes | memoryview]:
    """Yield the bytes that a program hands to the driver, in parts: the container without trailing bytes."""
    # A bare PTX file has no headers: the driver gets its text.
    if container.kind == FILE and container.images[0].kind is ImageKind.PTX:
        yield container.images[0].data
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
    # Relocatable units are inputs of the device linker: their PTX is used, but the driver never loads them. loadable:
    # indices of all other containers.
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    loadable = [
        index for index, container in enumerate(containers)
        if container.section != RELOCATABLE_SECTION and container.images
    ]  # fmt: skip
    notes: list[str] = []
    archs = tuple(dict.fromkeys(wanted)) or _archs_of((containers[index] for index in loadable), notes)
    targets: list[Target] = []
    skipped: list[SkippedImage] = []
    for index in loadable:
        container = containers[index]
        unsupported = _not_cuda(container)
        if unsupported:
            skipped += [SkippedImage(index, image.index, Reason.UNSUPPORTED, unsupported) for image in container.images]
            continue
        # The embedded device runs PTX, so it never takes what the device linker made.
        linked = kind is DeviceKind.GPU and is_linked(container, units)
        # Linked twins are machine code only.
        form = Emit.SASS if linked else emit
        container_targets = [
            Target(index, arch, devices, linked) for arch, devices in _device_groups(container, archs, kind, form)
        ]
        targets += container_targets
        if not container_targets:
            skipped += _skip_without_device(index, container, archs)

    # Equal containers get the same twins, so only the first of them stays a target.
    with_targets = dict.fromkeys(target.container for target in targets)
    identities = {index: image_identity(containers[index]) for index in with_targets}
    copies = _find_copies(identities)
    repeated = {index for repetitions in copies.values() for index in repetitions}
    return Plan(
        archs=archs,
        targets=tuple(target for target in targets if target.container not in repeated),
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


def _not_cuda(container: Container) -> str:
    """Return why a container cannot be probed as CUDA code, "" if it can."""
    if any(image.kind in _CUDA_IMAGES for image in container.images):
        # Images of other kinds beside them do not matter: this driver does not pick them.
        return ""
    if any(image.kind in (ImageKind.CODE_OBJECT, ImageKind.BITCODE) for image in container.images):
        return "code for AMD GPUs cannot be probed yet"
    return "neither PTX nor machine code: it is compiled when the program runs"


def _archs_of(containers: Iterable[Container], notes: list[str]) -> tuple[str, ...]:
    """Return the supported architectures of all CUDA images, as ``sm_90``, in ascending order.

    Appends a note that names the architectures that are too old.
    """
    numbers = set()
    for container in containers:
        for image in container.images:
            # Other images, and names that are no architecture, are left out.
            device = Device.parse(image.arch) if image.kind in _CUDA_IMAGES else None
            if device is not None:
                numbers.add(device.number)
    old = sorted(number for number in numbers if number < FIRST_ARCHITECTURE)
    if old:
        names = ", ".join(f"sm_{number}" for number in old)
        notes.append(f"{names}: left out, machine code is supported from sm_{FIRST_ARCHITECTURE} on")
    return tuple(f"sm_{number}" for number in sorted(numbers) if number >= FIRST_ARCHITECTURE)


def _device_groups(
    container: Container, archs: Sequence[str], kind: DeviceKind, emit: Emit
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each architecture that a container's twins (instrumented kernels) are made for, with all that can run them.

    archs: the architectures that the user asked for. Other known ones are added to a group where its twins also run.
    kind: whether the twins are for GPUs or the emulator. emit: the form of the twins, on which it depends where they
    run. Nothing is yielded for an architecture for which the driver finds no image in the container.
    """
    if kind is DeviceKind.EMBEDDED:
        # There is one embedded device, so its twins need not serve other architectures.
        for arch in archs:
            if picked_image(container, arch, kind) is not None:
                yield arch, (arch,)
        return
    picked = {arch: picked_image(container, arch) for arch in dict.fromkeys((*archs, *DEVICES))}
    # By the architecture that the group's twins are made for: those that can run them.
    groups: dict[str, list[str]] = {}

    # The architectures that were asked for. Those that run the same machine code share twins.
    for arch in archs:
        image = picked[arch]
        if image is None:
            continue
        if image.kind is ImageKind.CUBIN:
            same_code = next((group for group in groups if picked[group] is image), None)
            groups.setdefault(same_code or arch, []).append(arch)
        else:
            # PTX is compiled for each architecture, which may give different code.
            groups[arch] = [arch]

    # All other known ones, where the twins of a group serve them.
    for arch, image in picked.items():
        if arch in archs or image is None:
            continue
        candidates = [group for group in groups if _can_serve(container, picked[group], group, image, arch, emit)]
        if candidates:
            groups[_nearest(candidates, arch)].append(arch)
    for arch, devices in groups.items():
        yield arch, tuple(devices)


def _can_serve(
    container: Container, arch_image: Image | None, arch: str, device_image: Image, device: str, emit: Emit
) -> bool:
    """Whether twins (instrumented kernels) that are made for arch are also right for another architecture, device.

    They must run on it, and be made from the code that the program runs there. arch_image, device_image: the images
    that the driver picks from the container for the two. emit: the form of the twins.
    """
    if arch_image is device_image and device_image.kind is ImageKind.CUBIN:
        return True
    # Twins in PTX form are compiled by the driver, as the PTX that they were made from would be. But a container with
    # both forms must not serve a device that would pick the twins' machine code, where it runs the original's PTX.
    return (
        emit is not Emit.SASS
        and device_image.kind is ImageKind.PTX
        and arch_image is not None
        and _ptx_of(container, arch_image) is device_image
        and compiles_for(device_image.arch, device) is not None
        and not (emit is Emit.BOTH and runs_on(arch, device) is not None)
    )


def _ptx_of(container: Container, picked: Image) -> Image | None:
    """Return the PTX that an image is or was compiled from: the one of the same architecture. None without one."""
    if picked.kind is ImageKind.PTX:
        return picked
    same_arch = (image for image in container.images if image.kind is ImageKind.PTX and image.arch == picked.arch)
    return next(same_arch, None)


def _nearest(candidates: Sequence[str], arch: str) -> str:
    """Return the highest candidate architecture that is not above arch; if all are above, the lowest.

    It decides which of several groups of twins (instrumented kernels), all of which run on arch, it gets.
    """

    def number(name: str) -> int:
        """Return 90 for ``sm_90``."""
        device = Device.parse(name)
        return device.number if device else 0

    not_above = [candidate for candidate in candidates if number(candidate) <= number(arch)]
    return max(not_above, key=number) if not_above else min(candidates, key=number)


def _skip_without_device(index: int, container: Container, archs: Sequence[str]) -> Iterator[SkippedImage]:
    """Yield one skipped image of a container that has nothing for the architectures archs.

    index: of the container. One image is enough, since all of them hold the same kernels.
    """
    found = ", ".join(sorted({image.arch or "unknown" for image in container.images}))
    wanted = ", ".join(archs) or f"an architecture from sm_{FIRST_ARCHITECTURE} on"
    for image in container.images:
        if image.kind in _CUDA_IMAGES:
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
