"""The targets, and the choice of one: by the device that runs a kernel, or by what a container ships."""

from __future__ import annotations

import mmap
from pathlib import Path

from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.protocol import Target
from neutrino.backend.ptx_target import PtxTarget
from neutrino.elf.constants import EM_AMDGPU, MAGIC
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import Container, ImageKind
from neutrino.fatbin.container import BUNDLE_SECTION
from neutrino.fatbin.inputs import find_inputs
from neutrino.probing.model import DEFAULT_PLATFORM

TARGETS: tuple[Target, ...] = (PtxTarget(), GcnTarget())
"""In the order in which they are asked."""
_HIP_SECTION = ".hip_fatbin"


def target_of_device(arch: str) -> Target:
    """Return the target of devices of an architecture (``sm_90``).

    An architecture that no target knows is the first one's, which says what it lacks.
    """
    return next((target for target in TARGETS if target.device_of(arch) is not None), TARGETS[0])


def target_of_container(container: Container) -> Target | None:
    """Return the target that can probe kernels of a container; None if there is none, as ``untaken`` explains.

    Images of other kinds beside its own do not matter: its devices' driver does not pick them.
    """
    return next((target for target in TARGETS if any(map(target.takes, container.images))), None)


def platform_of_file(path: Path, arch: str | None = None) -> str:
    """Return what probe files call the platform of the devices that a file's code is for.

    arch: the architecture that the user names, None without one. A file with code for several platforms, without code,
    or that cannot be read is of the first one's: reading it says what is wrong.
    """
    if arch is not None:
        return next((target.platform for target in TARGETS if target.device_named(arch) is not None), DEFAULT_PLATFORM)
    if not _may_be_of_others(path):
        return DEFAULT_PLATFORM
    counts = dict.fromkeys((target.platform for target in TARGETS), 0)
    try:
        # A folder or a wheel goes by its first file with device code.
        for input_ in find_inputs([str(path)], lambda *_: None):
            for container in input_.read(input_.data(), search_data=False):
                target = target_of_container(container)
                if target is not None:
                    counts[target.platform] += 1
            if any(counts.values()):
                break
    except (FormatError, OSError):
        return DEFAULT_PLATFORM
    return next((platform for platform, count in counts.items() if count), DEFAULT_PLATFORM)


def _may_be_of_others(path: Path) -> bool:
    """Return whether a file may have code for another platform than the first one, by its first bytes and sections.

    So files of the first platform are not read twice.
    """
    try:
        if not path.is_file():
            return path.is_dir()
        with path.open("rb") as file:
            head = file.read(20)
            if head[:4] in (b"__CL", b"CCOB", b"!<ar", b"!<th") or head[:2] == b"PK":
                return True
            if head[:4] != MAGIC:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
                elf = Elf(view, str(path))
                # The view must not be held by what is returned.
                return elf.machine == EM_AMDGPU or elf.section(_HIP_SECTION) is not None or any(
                    section.name.startswith(BUNDLE_SECTION) for section in elf.sections
                )
    except (FormatError, OSError, ValueError):
        return False


def untaken(container: Container) -> str:
    """Return why no target can probe a container's kernels."""
    if any(image.kind in (ImageKind.BITCODE, ImageKind.TEXT) for image in container.images):
        return "it is compiled or assembled later: what that gives can be probed"
    texts = " nor ".join(target.language for target in TARGETS if target.is_text_shipped)
    return f"neither {texts} nor machine code: it is compiled when the program runs"


def is_unit(container: Container) -> bool:
    """Return whether a container is an input of some devices' linker, which no program loads."""
    return any(target.is_unit(container) for target in TARGETS)


def device_arch(word: str, option: str = "--arch") -> str:
    """Return the architecture of a device (``sm_90``) that a user's word names, which may be ``sm_90a`` or ``90``.

    option: what the word stands after, for messages. Raises NeutrinoError for anything else, for one that is not
    supported, and for one that no GPU has.
    """
    for target in TARGETS:
        device = target.device_named(word)
        if device is not None:
            if not target.supports(device):
                raise NeutrinoError(f"{option} {word}: machine code is supported {target.supported}")
            # AMD's may have features appended, such as gfx90a:xnack+.
            if device.partition(":")[0] not in target.devices:
                known = ", ".join(target.devices)
                raise NeutrinoError(f"{option} {word}: no GPU of this architecture is known; known are {known}")
            return device
    raise NeutrinoError(f"{option} {word}: not an architecture; write it as {EMBEDDED_DEVICE}")


def supported_device(arch: str) -> str | None:
    """Return the architecture as twins are made for it, of one that a driver names; None if no target supports it."""
    devices = ((target, target.device_of(arch)) for target in TARGETS)
    return next((device for target, device in devices if device is not None and target.supports(device)), None)


EMBEDDED_DEVICE = next(target.embedded_device for target in TARGETS if target.embedded_device)
"""The architecture that the embedded device's driver names."""
