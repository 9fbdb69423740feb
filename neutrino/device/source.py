"""Which machine code the driver runs on a device, and which PTX it stands for.

A twin may only be made from PTX of the same container and the architecture, suffix included, of the machine
code that the driver picks; or from the PTX that the driver itself would compile. Any other PTX is another
program: a variant, which is used only on request, and then compared with the machine code (``variant.py``). The
embedded device runs PTX only and ignores machine code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.fatbin.ptxscan import with_ptx_target
from neutrino.sass.cubin import Cubin, read_cubin

DEBUG_SECTION = ".nv_debug_ptx_txt"
"""The cubin's section that keeps the PTX when line information was asked for."""

_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(sm_\w+)", re.MULTILINE)
_ARCH = re.compile(r"sm_(\d+)([af]?)$")
_ALONE = frozenset({101})


@dataclass(frozen=True)
class Device:
    """An architecture: 90 and ``a`` of ``sm_90a``. The first digits are the major number, the last the minor."""

    number: int
    suffix: str

    @classmethod
    def parse(cls, arch: str) -> Device | None:
        """From ``sm_90a``; None when arch is not of this form."""
        match = _ARCH.match(arch)
        return cls(int(match[1]), match[2]) if match else None

    @property
    def major(self) -> int:
        """9 of ``sm_90a``, 10 of ``sm_103``."""
        return self.number // 10


def runs_on(code: str, device: str) -> tuple[int, int] | None:
    """How well machine code for one architecture suits a device: None when it does not run there, else the
    higher the better.

    Code runs on the same major and a minor that is not lower; with ``a`` on this architecture alone, with
    ``f`` on its family (PTX ISA manual, ".target"): the same, but that sm_101 is a family of its own. The exact
    architecture is best, ``a`` before ``f`` before none.
    """
    image, target = Device.parse(code), Device.parse(device)
    if image is None or target is None or image.major != target.major or image.number > target.number:
        return None
    if image.number != target.number and (image.suffix == "a" or (image.suffix == "f" and target.number in _ALONE)):
        return None
    return image.number, {"a": 2, "f": 1, "": 0}[image.suffix]


def compiles_for(text: str, device: str) -> tuple[int, int] | None:
    """As runs_on, for PTX that the driver would compile: without a suffix it suits every later architecture too."""
    image, target = Device.parse(text), Device.parse(device)
    if image is None or target is None:
        return None
    if image.suffix:
        return runs_on(text, device)
    return (image.number, 0) if image.number <= target.number else None


@dataclass(frozen=True)
class Source:
    """What runs on the device, and the PTX it was made from.

    machine: the machine code that the driver picks, None where it compiles PTX. text: the PTX, None where
    there is none of the same architecture; then reason and detail say so. arch: to assemble for. options: for
    ptxas. found: where the PTX was. retargeted: ``sm_120 → sm_90``, when it is a variant. own: then whether the machine
    code says that it was made of this very PTX, by keeping it or by the architecture of its PTX. image: index in the
    container of what the driver picks, machine code or PTX; None where nothing fits.
    """

    machine: Cubin | None
    text: str | None
    arch: str
    options: tuple[str, ...] = ()
    reason: Reason = Reason.PROBED
    detail: str = ""
    found: str = ""
    retargeted: str = ""
    own: bool = False
    image: int | None = None


_FLAGS_DROPPED = frozenset({"-v", "--verbose", "-w", "--disable-warnings"})
_COMPILE_ONLY = frozenset({"-c", "--compile-only"})
_FLAGS_RELOCATABLE = frozenset({*_COMPILE_ONLY, "-ewp", "--extensible-whole-program", "-preserve-relocs"})
_FLAGS_KEPT = frozenset({
    "-g", "--device-debug", "-lineinfo", "--generate-line-info", "-sp-bounds-check", "--sp-bounds-check",
    "-ret-end", "--return-at-end", "-disable-optimizer-consts", "--disable-optimizer-constants",
    "-no-bb-merge", "--dont-merge-basicblocks",
    "-opt-fp-atomics", "--optimize-float-atomics", "-suppress-debug-info", "--suppress-debug-info",
})  # fmt: skip
_OPTIONS_KEPT = frozenset({
    "-O", "--opt-level", "-maxrregcount", "--maxrregcount", "-fmad", "--fmad", "-dlcm", "--def-load-cache",
    "-dscm", "--def-store-cache", "-flcm", "--force-load-cache", "-fscm", "--force-store-cache",
    "-allow-expensive-optimizations", "--allow-expensive-optimizations", "-regUsageLevel", "--register-usage-level",
    "-maxntid", "--maxntid", "-minnctapersm", "--minnctapersm", "-pic", "--position-independent-code",
    "-device-stack-protector", "--device-stack-protector",
})  # fmt: skip
_OPTIONS_DROPPED = frozenset({"-m", "--machine"})


def stored_options(line: str, *, relocatable: bool = False) -> tuple[tuple[str, ...], str | None]:
    """The ptxas options stored with an image that affect its code, and why they cannot be used, or None.

    relocatable: accept ``--compile-only``, and leave it out like options that do not affect code.
    An option that is not known is not passed on: it might name a file, or change what the code means.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        return (), f"the ptxas options stored with the image cannot be read ({error}): {line}"
    kept: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        name, equals, _ = word.partition("=")
        position += 1
        if relocatable and word in _COMPILE_ONLY:
            continue
        if word in _FLAGS_RELOCATABLE:
            return (), f"relocatable PTX ({word}): its machine code is made by the device linker"
        if word in _FLAGS_DROPPED or re.fullmatch(r"-m(32|64)", word):
            continue
        if word in _FLAGS_KEPT or re.fullmatch(r"-O\d", word):
            kept.append(word)
        elif name in _OPTIONS_KEPT | _OPTIONS_DROPPED and (equals or position < len(words)):
            value = [] if equals else [words[position]]
            position += len(value)
            kept += [word, *value] if name in _OPTIONS_KEPT else []
        else:
            return (), f"the image was assembled with an unknown ptxas option: {word}"
    return tuple(kept), None


def picked_image(container: Container, device: str, kind: DeviceKind = DeviceKind.GPU) -> Image | None:
    """The image that the driver picks from a container: machine code, else PTX that it compiles.

    device: ``sm_90``. None when nothing fits. The embedded device takes PTX only, that of the highest architecture.
    """
    if kind is DeviceKind.GPU and (
        cubins := _best(container.images, ImageKind.CUBIN, lambda arch: runs_on(arch, device))
    ):
        return cubins[0]
    texts = _best(container.images, ImageKind.PTX, lambda arch: compiles_for(arch, device))
    return texts[0] if texts else None


def find_source(
    container: Container, device: str, kind: DeviceKind = DeviceKind.GPU, *, retarget: bool = False
) -> Source:
    """The machine code that the driver would run on device (``sm_90``) and the PTX that it stands for.

    retarget: where there is none, the PTX of another architecture that stands closest to the machine code: that which
    the cubin itself keeps; else of the same number with another suffix; else of the same major, else below, else above,
    in each case the nearest. Its ``.target`` is lowered where the assembler would not take it for the machine code's
    architecture.
    On the embedded device there is no machine code, and the PTX is the one of the highest architecture that it takes.
    """
    picked = picked_image(container, device, kind)
    if picked is None:
        found = ", ".join(sorted({image.arch or "unknown" for image in container.images})) or "nothing"
        lacking = "nothing" if kind is DeviceKind.GPU else "no PTX"
        return Source(None, None, device, (), Reason.NO_PTX, f"{lacking} for {device}: the image holds {found}")
    several = _alike(container, picked)
    if picked.kind is ImageKind.PTX:
        target = Device.parse(picked.arch)
        suffix = target.suffix if target else ""
        # The driver compiles for the device itself; with a suffix only when the PTX asks for it.
        arch = device if suffix in ("", "f") else device.rstrip("af") + suffix
        source = _with_text(None, picked, arch)
    else:
        source = _of_machine_code(container, picked, retarget)
    if several > 1:
        what = "cubins" if picked.kind is ImageKind.CUBIN else "PTX texts"
        detail = f"the image holds {several} {what} for {picked.arch}: it is not known which one the driver uses"
        source = replace(source, reason=Reason.VARIANT, detail=detail, retargeted="")
    return replace(source, image=picked.index)


def _alike(container: Container, picked: Image) -> int:
    """How many different images the driver may pick."""
    same = [image for image in container.images if image.kind is picked.kind and image.arch == picked.arch]
    return len({image.data for image in same}) if len(same) > 1 else 1


def _of_machine_code(container: Container, picked: Image, retarget: bool) -> Source:
    machine = read_cubin(picked.data, f"{picked.arch} cubin")
    arch = machine.arch or picked.arch
    texts = [image for image in container.images if image.kind is ImageKind.PTX]
    wanted = Device.parse(arch)
    # compute_80 can be made into sm_86, and beside it lie PTX for sm_86 that was compiled by itself.
    is_own = machine.virtual is None or wanted is None or machine.virtual == wanted.number
    fitting = [image for image in texts if image.arch == arch]
    if fitting and is_own:
        return _only(machine, fitting, arch)
    if machine.debug_ptx is not None:
        match = _TARGET.search(machine.debug_ptx)
        target_name = match[1] if match else "an unknown target"
        if target_name == arch:
            return Source(machine, machine.debug_ptx, arch, found=DEBUG_SECTION)
        if retarget and match:
            source = Source(machine, machine.debug_ptx, arch, found=DEBUG_SECTION, own=True)
            return _retargeted(source, target_name)
        detail = f"the PTX in the cubin is for {target_name}, the machine code that runs is {arch}"
        return Source(machine, None, arch, (), Reason.VARIANT, detail)
    source_arch = "" if is_own else f"sm_{machine.virtual}{wanted.suffix if wanted else ''}"
    named = [image for image in texts if image.arch == source_arch]
    if retarget and len(named) == 1:
        return _retargeted(replace(_with_text(machine, named[0], arch), own=True), source_arch)
    nearest = _nearest(texts, arch) if retarget else None
    if nearest is not None:
        return _retargeted(_with_text(machine, nearest, arch), nearest.arch)
    if texts:
        others = ", ".join(sorted({image.arch or "unknown" for image in texts}))
        made_of = f", compiled from PTX for {source_arch}" if source_arch else ""
        detail = f"the PTX is for {others}, the machine code that runs is {arch}{made_of}"
        return Source(machine, None, arch, (), Reason.VARIANT, detail)
    return Source(machine, None, arch, (), Reason.NO_PTX, f"{arch} machine code without PTX")


def _only(machine: Cubin, texts: Sequence[Image], arch: str) -> Source:
    """The text of the machine code's architecture; with several it is not known from which it was compiled."""
    if len({(image.data, image.options) for image in texts}) > 1:
        count = len(texts)
        detail = f"the image holds {count} PTX texts for {arch}: it is not known from which one the code was compiled"
        return Source(machine, None, arch, (), Reason.VARIANT, detail)
    return _with_text(machine, texts[0], arch)


def _nearest(texts: Iterable[Image], arch: str) -> Image | None:
    """What is for an architecture below assembles for one above as it is, while the other way the text must do without
    what is new there: so below goes before above."""
    wanted = Device.parse(arch)
    ranked = []
    for image in texts:
        target = Device.parse(image.arch)
        if target is not None and wanted is not None:
            far = abs(target.number - wanted.number)
            above = target.number > wanted.number
            group = 0 if not far else 1 if target.major == wanted.major else 2 + above
            ranked.append(((group, far, above, target.suffix), image))
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _retargeted(source: Source, target: str) -> Source:
    """The source whose text is for target, made to be assembled for the machine code's architecture."""
    text, own, wanted = source.text, Device.parse(target), Device.parse(source.arch)
    if text is not None and own is not None and wanted is not None and (own.suffix or own.number > wanted.number):
        text = with_ptx_target(text.encode("latin-1"), source.arch).decode("latin-1")
    return replace(source, text=text, retargeted=f"{target} → {source.arch}")


def _best(images: Iterable[Image], kind: ImageKind, rank: Callable[[str], tuple[int, int] | None]) -> list[Image]:
    ranked = [(found, image) for image in images if image.kind is kind and (found := rank(image.arch)) is not None]
    return [image for _, image in sorted(ranked, key=lambda pair: pair[0], reverse=True)]


def _with_text(machine: Cubin | None, image: Image, arch: str) -> Source:
    text = image.data.decode("latin-1")
    options, refusal = stored_options(image.options)
    if refusal:
        return Source(machine, text, arch, (), Reason.UNSUPPORTED, refusal, "PTX image")
    return Source(machine, text, arch, options, found="PTX image")
