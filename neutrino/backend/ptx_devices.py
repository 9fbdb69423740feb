"""Which architectures CUDA's devices have, which images run on them, and which twins serve several of them."""

from __future__ import annotations

from neutrino.assemble.emit import Emit
from neutrino.backend.ptx_source import Device, compiles_for, runs_on
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE

LANGUAGE = "PTX"
"""What the target's text is called in messages."""

DEVICES = tuple(
    f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
)  # PTX ISA 9.0, ".target": the architectures from FIRST_ARCHITECTURE on.
FORMS = {Emit.CODE: "sass", Emit.TEXT: "ptx", Emit.BOTH: "both"}
"""As ``Target.forms``."""
EMBEDDED_DEVICE = "sm_90"
"""The architecture that the embedded device's driver names."""

IMAGES = (ImageKind.PTX, ImageKind.CUBIN)
"""Kinds of images with code that can be probed; what is LTO IR is not compiled yet."""


SUPPORTED = f"from sm_{FIRST_ARCHITECTURE} on"


def device_of(arch: str) -> str | None:
    """Return ``sm_90`` for ``sm_90a``; None for what is no architecture of CUDA's."""
    device = Device.parse(arch)
    return f"sm_{device.number}" if device is not None else None


def rank(device: str) -> int:
    """Return 90 for ``sm_90``, 0 for what is no architecture of CUDA's."""
    parsed = Device.parse(device)
    return parsed.number if parsed is not None else 0


def device_named(word: str) -> str | None:
    """Return ``sm_90`` for a user's ``sm_90``, ``sm_90a`` or ``90``; None for anything else."""
    return device_of(word if word.startswith("sm_") else f"sm_{word}")


def serves(container: Container, made_for: str, made_from: Image, device: str, runs: Image, emit: Emit) -> bool:
    """Whether twins (instrumented kernels) that are made for one architecture are also right for another one, device.

    They must run on it, and be made from the code that the program runs there. made_from, runs: the images that the
    driver picks from the container for the two. emit: the form of the twins.
    """
    if made_from is runs and runs.kind is ImageKind.CUBIN:
        return True
    # Twins in PTX form are compiled by the driver, as the PTX that they were made from would be. But a container with
    # both forms must not serve a device that would pick the twins' machine code, where it runs the original's PTX.
    return (
        emit is not Emit.CODE
        and runs.kind is ImageKind.PTX
        and _ptx_of(container, made_from) is runs
        and compiles_for(runs.arch, device) is not None
        and not (emit is Emit.BOTH and runs_on(made_for, device) is not None)
    )


def _ptx_of(container: Container, picked: Image) -> Image | None:
    """Return the PTX that an image is or was compiled from: the one of the same architecture. None without one."""
    if picked.kind is ImageKind.PTX:
        return picked
    same_arch = (image for image in container.images if image.kind is ImageKind.PTX and image.arch == picked.arch)
    return next(same_arch, None)
