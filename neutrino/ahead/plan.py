"""The plan for a file: which containers get twins, for which devices, and which rows of the section name them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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


@dataclass(frozen=True)
class Target:
    """Twins to make of one image for one architecture: one entry.

    container: index in the file's containers. arch: of the device that they are made for. devices: those that they
    serve, each a row. linked: a container that the device linker made, whose PTX lies in the file's units.
    """

    container: int
    arch: str
    devices: tuple[str, ...]
    linked: bool = False


@dataclass(frozen=True)
class SkippedImage:
    """An image whose kernels get no twins, and why."""

    container: int
    image: int
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Plan:
    """What to do with a file's containers.

    archs: of the devices that twins are made for. copies: containers with the same bytes as the first of them, by its
    index; twins are made once. identities: SHA-256 and size of each image that has a target. notes: for the user.
    """

    archs: tuple[str, ...]
    targets: tuple[Target, ...]
    skipped_images: tuple[SkippedImage, ...]
    copies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    identities: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def device_arch(word: str) -> str:
    """``sm_90`` of ``sm_90``, ``sm_90a`` or ``90``, as users write it. Raises NeutrinoError for anything else."""
    device = Device.parse(word if word.startswith("sm_") else f"sm_{word}")
    if device is None:
        raise NeutrinoError(f"--arch {word}: not an architecture; write it as sm_90")
    if device.number < FIRST_ARCHITECTURE:
        raise NeutrinoError(f"--arch {word}: machine code is supported from sm_{FIRST_ARCHITECTURE} on")
    return f"sm_{device.number}"


def driver_bytes(container: Container) -> Iterator[bytes | memoryview]:
    """The bytes that a program hands to the driver, in parts: a container without any bytes after it."""
    # A bare PTX file has no headers: the driver gets its text.
    if container.kind == FILE and container.images[0].kind is ImageKind.PTX:
        yield container.images[0].data
        return
    yield container.header
    for image in container.images:
        yield image.header
        yield image.payload


def make_plan(containers: Sequence[Container], wanted: Sequence[str], kind: DeviceKind, emit: Emit) -> Plan:
    """Plan the twins of a file.

    wanted: devices, as ``sm_90``; none: every architecture that the file's images are for.
    """
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    images = [
        position for position, container in enumerate(containers)
        if container.section != RELOCATABLE_SECTION and container.images
    ]  # fmt: skip
    notes: list[str] = []
    archs = tuple(dict.fromkeys(wanted)) or _archs_of((containers[index] for index in images), notes)
    targets: list[Target] = []
    listed: list[SkippedImage] = []
    for index in images:
        container = containers[index]
        foreign = _foreign(container)
        if foreign:
            listed += [SkippedImage(index, image.index, Reason.UNSUPPORTED, foreign) for image in container.images]
            continue
        linked = kind is DeviceKind.GPU and is_linked(container, units)
        # Linked twins are machine code only.
        form = Emit.SASS if linked else emit
        made = [Target(index, *group, linked) for group in _groups(container, archs, kind, form)]
        targets += made
        if not made:
            listed += _without_device(index, container, archs)
    identities: dict[int, tuple[bytes, int]] = {}
    firsts: dict[tuple[bytes, int], int] = {}
    copies: dict[int, tuple[int, ...]] = {}
    for index in dict.fromkeys(target.container for target in targets):
        identity = identities[index] = image_identity(containers[index])
        first = firsts.setdefault(identity, index)
        if first != index:
            copies[first] = (*copies.get(first, ()), index)
    repeated = {index for others in copies.values() for index in others}
    return Plan(
        archs,
        tuple(target for target in targets if target.container not in repeated),
        tuple(listed),
        copies,
        identities,
        tuple(notes),
    )


def _foreign(container: Container) -> str:
    """Why a container cannot be probed as CUDA code, "" if it can."""
    if any(image.kind in _CUDA_IMAGES for image in container.images):
        return ""
    if any(image.kind in (ImageKind.CODE_OBJECT, ImageKind.BITCODE) for image in container.images):
        return "code for AMD GPUs cannot be probed yet"
    return "neither PTX nor machine code: it is compiled when the program runs"


def _archs_of(containers: Iterable[Container], notes: list[str]) -> tuple[str, ...]:
    numbers = set()
    for container in containers:
        for image in container.images:
            device = Device.parse(image.arch) if image.kind in _CUDA_IMAGES else None
            if device is not None:
                numbers.add(device.number)
    old = sorted(number for number in numbers if number < FIRST_ARCHITECTURE)
    if old:
        names = ", ".join(f"sm_{number}" for number in old)
        notes.append(f"{names}: left out, machine code is supported from sm_{FIRST_ARCHITECTURE} on")
    return tuple(f"sm_{number}" for number in sorted(numbers) if number >= FIRST_ARCHITECTURE)


def _groups(
    container: Container, archs: Sequence[str], kind: DeviceKind, emit: Emit
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The devices that twins are made for, each with all that they serve."""
    if kind is DeviceKind.EMBEDDED:
        for arch in archs:
            if picked_image(container, arch, kind) is not None:
                yield arch, (arch,)
        return
    picked = {arch: picked_image(container, arch) for arch in dict.fromkeys((*archs, *DEVICES))}
    served: dict[str, list[str]] = {}
    for arch in archs:
        image = picked[arch]
        if image is None:
            continue
        if image.kind is ImageKind.CUBIN:
            # The driver runs the same machine code on all of them, and would run the twins' likewise.
            same = next((other for other in served if picked[other] is image), None)
            served.setdefault(same or arch, []).append(arch)
        else:
            served[arch] = [arch]
    for arch, image in picked.items():
        if arch in archs or image is None:
            continue
        hosts = [other for other in served if _serves(container, picked[other], other, image, arch, emit)]
        if hosts:
            served[_nearest(hosts, arch)].append(arch)
    for arch, devices in served.items():
        yield arch, tuple(devices)


def _serves(container: Container, made: Image | None, arch: str, image: Image, device: str, emit: Emit) -> bool:
    """Whether twins of what the driver picks for arch stand for what it picks for device."""
    if made is image and image.kind is ImageKind.CUBIN:
        return True
    # Twins as text are compiled wherever the driver would compile the text that they were made from; but not where it
    # would rather take the twins' machine code, which is not the original's there.
    return (
        emit is not Emit.SASS
        and image.kind is ImageKind.PTX
        and made is not None
        and _text_of(container, made) is image
        and compiles_for(image.arch, device) is not None
        and not (emit is Emit.BOTH and runs_on(arch, device) is not None)
    )


def _text_of(container: Container, picked: Image) -> Image | None:
    if picked.kind is ImageKind.PTX:
        return picked
    same = (image for image in container.images if image.kind is ImageKind.PTX and image.arch == picked.arch)
    return next(same, None)


def _nearest(hosts: Sequence[str], arch: str) -> str:
    def number(name: str) -> int:
        device = Device.parse(name)
        return device.number if device else 0

    below = [host for host in hosts if number(host) <= number(arch)]
    return max(below, key=number) if below else min(hosts, key=number)


def _without_device(index: int, container: Container, archs: Sequence[str]) -> Iterator[SkippedImage]:
    found = ", ".join(sorted({image.arch or "unknown" for image in container.images}))
    wanted = ", ".join(archs) or f"an architecture from sm_{FIRST_ARCHITECTURE} on"
    for image in container.images:
        if image.kind in _CUDA_IMAGES:
            # One image's kernels stand for all.
            yield SkippedImage(index, image.index, Reason.NO_PTX, f"nothing for {wanted}: the image holds {found}")
            return


def image_identity(container: Container) -> tuple[bytes, int]:
    """SHA-256 of the bytes that a program hands to the driver, and how many they are."""
    digest = hashlib.sha256()
    size = 0
    for part in driver_bytes(container):
        digest.update(part)
        size += len(part)
    return digest.digest(), size
