"""The targets, and the choice of one: by the device that runs a kernel, or by what a container ships."""

from __future__ import annotations

from neutrino.backend.protocol import Target
from neutrino.backend.ptx_target import PtxTarget
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container, ImageKind

TARGETS: tuple[Target, ...] = (PtxTarget(),)
"""In the order in which they are asked."""


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


def untaken(container: Container) -> str:
    """Return why no target can probe a container's kernels."""
    if any(image.kind in (ImageKind.CODE_OBJECT, ImageKind.BITCODE, ImageKind.TEXT) for image in container.images):
        return "code for AMD GPUs cannot be probed yet"
    languages = " nor ".join(target.language for target in TARGETS)
    return f"neither {languages} nor machine code: it is compiled when the program runs"


def is_unit(container: Container) -> bool:
    """Return whether a container is an input of some devices' linker, which no program loads."""
    return any(target.is_unit(container) for target in TARGETS)


def device_arch(word: str) -> str:
    """Return the architecture of a device (``sm_90``) that a user's word names, which may be ``sm_90a`` or ``90``.

    Raises NeutrinoError for anything else, and for one that is not supported.
    """
    for target in TARGETS:
        device = target.device_named(word)
        if device is not None:
            if not target.supports(device):
                raise NeutrinoError(f"--arch {word}: machine code is supported {target.supported}")
            return device
    raise NeutrinoError(f"--arch {word}: not an architecture; write it as {EMBEDDED_DEVICE}")


def supported_device(arch: str) -> str | None:
    """Return the architecture as twins are made for it, of one that a driver names; None if no target supports it."""
    devices = ((target, target.device_of(arch)) for target in TARGETS)
    return next((device for target, device in devices if device is not None and target.supports(device)), None)


EMBEDDED_DEVICE = next(target.embedded_device for target in TARGETS if target.embedded_device)
"""The architecture that the embedded device's driver names."""
