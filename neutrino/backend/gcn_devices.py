"""Which architectures AMD's devices have, which code objects run on them, and which of a container's is picked."""

from __future__ import annotations

from neutrino.assemble.emit import Emit
from neutrino.fatbin import Container, Image, ImageKind

LANGUAGE = "GCN"
"""What the target's text is called in messages."""

DEVICES = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
"""Those whose kernels can be probed: CDNA2, CDNA3, CDNA4, RDNA2, RDNA3, RDNA4."""
SUPPORTED = "for gfx90a, gfx942, gfx950, gfx1030, gfx1100 and gfx1201"
FORMS = {Emit.CODE: "code", Emit.TEXT: "code", Emit.BOTH: "code"}
"""As ``Target.forms``: whatever is asked for, twins are code objects."""
_FEATURES = ("sramecc", "xnack")


def device_of(arch: str) -> str | None:
    """Return the target id of the devices that a code object for one runs on; None for what is none of AMD's.

    arch: a target id, such as ``gfx90a:sramecc+:xnack-``. Its features are a part of what a device is set to, so that
    one with other signs is another device.
    """
    processor, *features = arch.split(":")
    number = processor.removeprefix("gfx")
    if number == processor or not number[:1].isdigit() or not number.replace("-", "").isalnum():
        return None
    if any(feature[:-1] not in _FEATURES or feature[-1:] not in ("+", "-") for feature in features):
        return None
    return arch


def processor_of(arch: str) -> str:
    """Return the processor of a target id: ``gfx942`` of ``gfx942:sramecc+``."""
    return arch.partition(":")[0]


def rank(device: str) -> int:
    """Return a number by which processors are sorted: their generations, then their numbers."""
    number = processor_of(device).removeprefix("gfx").partition("-")[0]
    try:
        # The last two digits are the minor number and the stepping, which may be a letter.
        return (int(number[:-2] or "0") << 8) + int(number[-2:], 16)
    except ValueError:
        return 0


def picked_image(container: Container, arch: str) -> Image | None:
    """Return the code object that a device of an architecture runs; None when nothing fits.

    A code object that states a sign of a feature runs only on devices that are set so. For an architecture without
    signs, which may be set in either way, that is the first of its processor.
    """
    processor, *signs = arch.split(":")
    fitting = []
    for image in container.images:
        if image.kind is not ImageKind.CODE_OBJECT:
            continue
        other, *required = image.arch.split(":")
        if other == processor and (not signs or {*required} <= {*signs}):
            fitting.append((len(required), image))
    if not fitting:
        return None
    # The one that states most of what the device is set to, as ROCm's runtime picks it.
    most = max(count for count, _ in fitting) if signs else fitting[0][0]
    return next(image for count, image in fitting if count == most or not signs)
