"""Which machine code the driver runs on a device, and which PTX that was compiled from.

A twin (the instrumented copy of a kernel) may only be made from PTX of the same container and the same architecture,
suffix included, as the machine code that the driver picks; or from the PTX that the driver itself would compile. Any
other PTX may be another program. It is called a variant, used only on request, and then compared with the machine code
(``sass/variant.py``). ``Reason.VARIANT`` is also the reason if it is not known which of several images runs, or which
of several PTX texts it was compiled from; then no twin is made even on request. The embedded device runs PTX only and
ignores machine code.
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
from neutrino.sass.source_lines import with_source_lines

DEBUG_SECTION = ".nv_debug_ptx_txt"
"""The section of a cubin that contains its PTX, if it was compiled with line information."""

_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(sm_\w+)", re.MULTILINE)
_ARCH = re.compile(r"sm_(\d+)([af]?)$")
_OWN_FAMILY = frozenset({101})
"""Architectures that do not belong to the family of the lower ones of their major number."""


@dataclass(frozen=True)
class Device:
    """An architecture: 90 and ``a`` of ``sm_90a``. The last digit of the number is the minor, the others the major."""

    number: int
    suffix: str

    @classmethod
    def parse(cls, arch: str) -> Device | None:
        """Parse an architecture such as ``sm_90a``; None when it is not of this form."""
        match = _ARCH.match(arch)
        return cls(int(match[1]), match[2]) if match else None

    @property
    def major(self) -> int:
        """The major number of the GPU architecture: 9 of ``sm_90a``, 10 of ``sm_103``."""
        return self.number // 10


def runs_on(code: str, device: str) -> tuple[int, int] | None:
    """Rank machine code for one architecture on a device of another, as the driver does to pick one of several images.

    code, device: such as ``sm_90a``. Returns the code's architecture number and 2, 1 or 0 for the suffix ``a``, ``f``
    or none; the highest rank is picked. None when the code does not run on the device. Code without a suffix runs on
    the same major and the same or a higher minor number; with ``a`` on this architecture alone; with ``f`` on its
    family (PTX ISA manual, ".target"), which is the same as without a suffix, except that sm_101 is a family of its
    own.
    """
    image, target = Device.parse(code), Device.parse(device)
    if image is None or target is None or image.major != target.major or image.number > target.number:
        return None
    if image.number != target.number and (
        image.suffix == "a" or (image.suffix == "f" and target.number in _OWN_FAMILY)
    ):
        return None
    return image.number, {"a": 2, "f": 1, "": 0}[image.suffix]


def compiles_for(text: str, device: str) -> tuple[int, int] | None:
    """Rank PTX for one architecture on a device of another, as runs_on; None when the driver cannot compile it.

    PTX without a suffix can be compiled for the same and every later architecture; with a suffix the rules are those
    of machine code.
    """
    image, target = Device.parse(text), Device.parse(device)
    if image is None or target is None:
        return None
    if image.suffix:
        return runs_on(text, device)
    # 0 is the rank of no suffix.
    return (image.number, 0) if image.number <= target.number else None


@dataclass(frozen=True)
class Source:
    """What runs on the device, and the PTX that it was compiled from.

    machine: the machine code that the driver picks, None where it compiles PTX. text: the PTX, None where there is none
    that can be used. arch: to assemble for. options: for ptxas. reason, detail: why no twin can be made; with a text,
    this is because its options are not supported, or because the driver may use another image. found: where the PTX
    was found, in words. retargeted: ``sm_120 → sm_90`` for a variant (PTX that may be another program), else empty.
    own: of a variant, whether the cubin shows that it was compiled from this very PTX, because it contains the text or
    states its architecture. image: index in the container of the image that the driver picks, machine code or PTX;
    None where nothing fits. uncertain: why it is not known which image the driver uses; "" where it is.
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
    uncertain: str = ""

    def summary(self) -> dict[str, object]:
        """Return what ``source.json`` of ``--save-temps`` says of it: everything but the text, which has a file."""
        return {
            "image": self.image, "arch": self.arch, "options": self.options, "found": self.found,
            "retargeted": self.retargeted or None, "has_machine_code": self.machine is not None,
            "reason": self.reason.word, "detail": self.detail,
        }  # fmt: skip


# The ptxas options that may be stored with PTX. Flags stand alone; the other options have a value.
# Dropped ones do not affect the code, kept ones do; relocatable ones make code that needs the device linker.
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
    """Return the ptxas options that affect the code, from the command line stored with a PTX image.

    A twin (instrumented kernel) is assembled with them, as its original was. line: the command line, as shell words.
    The second value is None, or a message why the image cannot be assembled in the same way: an unknown option is never
    passed on, because it might name a file or change the meaning of the code. relocatable: ignore ``--compile-only``,
    which otherwise is a reason to refuse.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        return (), f"the ptxas options stored with the image cannot be read ({error}): {line}"
    options: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        name, equals, _ = word.partition("=")
        position += 1
        # The caller assembles with --compile-only itself.
        if relocatable and word in _COMPILE_ONLY:
            continue
        if word in _FLAGS_RELOCATABLE:
            return (), f"relocatable PTX ({word}): its machine code is made by the device linker"
        if word in _FLAGS_DROPPED or re.fullmatch(r"-m(32|64)", word):
            continue
        if word in _FLAGS_KEPT or re.fullmatch(r"-O\d", word):
            options.append(word)
        elif name in _OPTIONS_KEPT | _OPTIONS_DROPPED and (equals or position < len(words)):
            # The value is part of the word (--name=value), or the next word.
            value = [] if equals else [words[position]]
            position += len(value)
            if name in _OPTIONS_KEPT:
                options += [word, *value]
        else:
            return (), f"the image was assembled with an unknown ptxas option: {word}"
    return tuple(options), None


def picked_image(container: Container, device: str, kind: DeviceKind = DeviceKind.GPU) -> Image | None:
    """Return the image that the driver picks from a container: machine code, else PTX that it compiles.

    device: such as ``sm_90``. None when nothing fits. The embedded device takes PTX only, that of the highest
    architecture.
    """
    if kind is DeviceKind.GPU:
        cubins = _by_rank(container.images, ImageKind.CUBIN, lambda arch: runs_on(arch, device))
        if cubins:
            return cubins[0]
    texts = _by_rank(container.images, ImageKind.PTX, lambda arch: compiles_for(arch, device))
    return texts[0] if texts else None


def find_source(
    container: Container, device: str, kind: DeviceKind = DeviceKind.GPU, *, retarget: bool = False, kernel: str = ""
) -> Source:
    """Find the image that the driver picks for a device, and the PTX that its machine code was compiled from.

    Twins (instrumented kernels) are made from that PTX, so it must be the same program as the code that runs. device:
    such as ``sm_90``. retarget: if there is no such PTX, use that of another architecture which is closest to the
    machine code's: the text in the cubin itself; else the same number with another suffix; else the same major number,
    else a lower one, else a higher one, in each case the nearest. Its ``.target`` is changed where the assembler would
    not accept it for the machine code's architecture. The embedded device has no machine code: it takes the PTX of the
    highest architecture. Where no PTX can be used, the result's reason and detail say why. kernel: the only one
    that is asked for, "" for all: of machine code without a text of its own each is then read when it is looked up.
    Raises FormatError for damaged images.
    """
    picked = picked_image(container, device, kind)
    if picked is None:
        found = ", ".join(sorted({image.arch or "unknown" for image in container.images})) or "nothing"
        lacking = "nothing" if kind is DeviceKind.GPU else "no PTX"
        detail = f"{lacking} for {device}: the image holds {found}"
        return Source(machine=None, text=None, arch=device, reason=Reason.NO_PTX, detail=detail)
    candidates = _candidate_count(container, picked)
    if picked.kind is ImageKind.PTX:
        target = Device.parse(picked.arch)
        suffix = target.suffix if target else ""
        # The driver compiles for the device itself, and with the suffix "a" only if the PTX has it.
        arch = device if suffix in ("", "f") else device.rstrip("af") + suffix
        source = _source_with_text(machine=None, image=picked, arch=arch)
    else:
        data, name = picked.data, f"{picked.arch} cubin"
        source = _source_of_machine_code(container, picked, read_cubin(data, name, one_by_one=bool(kernel)), retarget)
        if kernel and source.text is not None:
            source = replace(source, machine=read_cubin(data, name))
    if candidates > 1:
        # The driver may run any of them, so what PTX was found may be that of another program.
        images = "cubins" if picked.kind is ImageKind.CUBIN else "PTX texts"
        detail = f"the image holds {candidates} {images} for {picked.arch}: it is not known which one the driver uses"
        # No twin is made from any of them, so none is retargeted to another architecture.
        source = replace(source, reason=Reason.VARIANT, detail=detail, retargeted="", uncertain=detail)
    return replace(source, image=picked.index)


def _candidate_count(container: Container, picked: Image) -> int:
    """Count the different images of the picked one's kind and architecture: the driver may use any of them."""
    same = [image for image in container.images if image.kind is picked.kind and image.arch == picked.arch]
    # A single image, the usual case, need not be decoded.
    return len({image.data for image in same}) if len(same) > 1 else 1


def _source_of_machine_code(container: Container, picked: Image, machine: Cubin, retarget: bool) -> Source:
    """Find the PTX that machine code was compiled from.

    In this order: PTX images of the same architecture, the PTX in the cubin, and, if retarget is set, other PTX images.
    PTX images of the same architecture that differ are refused, even if the cubin contains its PTX. container: of the
    machine code, whose image is picked. retarget: as for find_source.
    """
    arch = machine.arch or picked.arch
    texts = [image for image in container.images if image.kind is ImageKind.PTX]
    target = Device.parse(arch)
    # Machine code for sm_86 may be compiled from PTX for compute_80. PTX for sm_86 in the same container was then
    # compiled from the source separately, so it may be another program: it is a variant, too.
    has_same_arch_source = machine.virtual is None or target is None or machine.virtual == target.number
    same_arch = [image for image in texts if image.arch == arch]
    if same_arch and has_same_arch_source:
        # Before the PTX in the cubin, since only with an image are the assembler's options stored.
        return _source_of_same_arch(machine, same_arch, arch)

    # If the cubin contains its PTX, no other is used from here on.
    if machine.debug_ptx is not None:
        text = with_source_lines(machine.debug_ptx, machine.data, f"{arch} cubin")
        match = _TARGET.search(text)
        target_name = match[1] if match else "an unknown target"
        if target_name == arch:
            return Source(machine, text, arch, found=DEBUG_SECTION)
        if retarget and match:
            source = Source(machine, text, arch, found=DEBUG_SECTION, own=True)
            return _retargeted(source, target_name)
        detail = f"the PTX in the cubin is for {target_name}, the machine code that runs is {arch}"
        return Source(machine, text=None, arch=arch, reason=Reason.VARIANT, detail=detail)

    # The architecture of the PTX that the code was compiled from, if that is another one; else empty.
    source_arch = "" if has_same_arch_source else f"sm_{machine.virtual}{target.suffix if target else ''}"
    # Of several it is not known which one is its own; then the nearest is used, as for any other variant. An entry may
    # state no architecture (""), which is not that of the source.
    of_source_arch = [image for image in texts if source_arch and image.arch == source_arch]
    if retarget and len(of_source_arch) == 1:
        return _retargeted(replace(_source_with_text(machine, of_source_arch[0], arch), own=True), source_arch)
    nearest = _nearest(texts, arch) if retarget else None
    if nearest is not None:
        return _retargeted(_source_with_text(machine, nearest, arch), nearest.arch)
    if texts:
        text_archs = ", ".join(sorted({image.arch or "unknown" for image in texts}))
        made_of = f", compiled from PTX for {source_arch}" if source_arch else ""
        detail = f"the PTX is for {text_archs}, the machine code that runs is {arch}{made_of}"
        return Source(machine, text=None, arch=arch, reason=Reason.VARIANT, detail=detail)
    return Source(machine, text=None, arch=arch, reason=Reason.NO_PTX, detail=f"{arch} machine code without PTX")


def _source_of_same_arch(machine: Cubin, texts: Sequence[Image], arch: str) -> Source:
    """Return the source for machine code from PTX images of its architecture, which must not differ.

    If they do, it is not known which one the machine code was compiled from, and the source has no text.
    """
    if len({(image.data, image.options) for image in texts}) > 1:
        count = len(texts)
        detail = f"the image holds {count} PTX texts for {arch}: it is not known from which one the code was compiled"
        return Source(machine, text=None, arch=arch, reason=Reason.VARIANT, detail=detail)
    return _source_with_text(machine, texts[0], arch)


def _nearest(texts: Iterable[Image], arch: str) -> Image | None:
    """Return the PTX image whose architecture is nearest to ``arch``; None if no image has a valid architecture.

    First comes the same number with any suffix, then the same major number, then other major numbers. Lower
    architectures are preferred to higher ones: PTX for a lower one can be assembled unchanged for a higher one, but PTX
    for a higher one may use what the lower one lacks.
    """
    code_device = Device.parse(arch)
    ranked = []
    for image in texts:
        target = Device.parse(image.arch)
        if target is not None and code_device is not None:
            distance = abs(target.number - code_device.number)
            is_above = target.number > code_device.number
            if distance == 0:
                group = 0
            elif target.major == code_device.major:
                group = 1
            else:
                # Another major number: lower ones come before higher ones.
                group = 3 if is_above else 2
            # Of equal distance, the lower architecture; False sorts before True.
            ranked.append(((group, distance, is_above, target.suffix), image))
    if not ranked:
        return None
    # Images themselves cannot be compared.
    _, nearest = min(ranked, key=lambda pair: pair[0])
    return nearest


def _retargeted(source: Source, target: str) -> Source:
    """Return a source marked as a variant: its text is for the architecture ``target``, but will be assembled for
    ``source.arch``, that of the machine code.

    The text's ``.target`` is changed if it has a suffix or is higher, because the assembler would refuse it.
    """
    text, text_device, code_device = source.text, Device.parse(target), Device.parse(source.arch)
    if (
        text is not None
        and text_device is not None
        and code_device is not None
        and (text_device.suffix or text_device.number > code_device.number)
    ):
        text = with_ptx_target(text.encode("latin-1"), source.arch).decode("latin-1")
    return replace(source, text=text, retargeted=f"{target} → {source.arch}")


def _by_rank(images: Iterable[Image], kind: ImageKind, rank: Callable[[str], tuple[int, int] | None]) -> list[Image]:
    """Return the images of one kind, the highest rank first. rank: of an architecture; None leaves the image out."""
    ranked = [(found, image) for image in images if image.kind is kind and (found := rank(image.arch)) is not None]
    return [image for _, image in sorted(ranked, key=lambda pair: pair[0], reverse=True)]


def _source_with_text(machine: Cubin | None, image: Image, arch: str) -> Source:
    """Return the source with a PTX image's text, or with the reason why its stored options cannot be used.

    machine: the machine code that was compiled from it, None where the driver compiles the text. arch: to assemble for.
    """
    text = image.data.decode("latin-1")
    options, refusal = stored_options(image.options)
    # The text is kept all the same: the kernels' names are read from it.
    if refusal:
        return Source(machine, text, arch, reason=Reason.UNSUPPORTED, detail=refusal, found="PTX image")
    return Source(machine, text, arch, options, found="PTX image")
