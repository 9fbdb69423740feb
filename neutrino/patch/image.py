"""From an image that a program loads to the cache entry with its twins: one linear driver over the other packages.

    image ─ read_container ─► the machine code that runs, and its PTX ─ probe_module ─► twins' text
          ─ ptxas ─► cubins ─ warnings, parameters, numerics ─► entry

For the embedded device the entry holds the twins' text in place of the cubins. They are judged by the same
machine code where there is an assembler; without one they are used unjudged, and the manifests say so.

What depends on the image alone (a kernel that cannot be probed, text that the assembler refuses) becomes a
reason in the entry. What depends on the machine (no assembler, a full disk, a process killed) is raised, so
that nothing that could be different tomorrow is ever stored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit, driver_image
from neutrino.assemble.manifest import probed_entry, unassembled_manifest
from neutrino.assemble.one_module import CutError
from neutrino.assemble.parts import Judged, join, split
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.rewritten import Rewritten, rewrite
from neutrino.assemble.side_by_side import judge_parts
from neutrino.cache.entry import KernelEntry, write_entry
from neutrino.device.kind import DeviceKind
from neutrino.device.source import DEBUG_SECTION, Device, Source, find_source
from neutrino.errors import PtxError, ToolMissingError
from neutrino.fatbin import demangle, read_container
from neutrino.fatbin.ptxscan import ptx_entries
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.toolchain.choice import ASSEMBLER_HINT
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import LATEST_PTX


def patch_image(
    image: bytes,
    probes: ProbeSet,
    arch: str,
    *,
    selection: Selection,
    assembler: Assembler | None,
    key: bytes,
    device: DeviceKind = DeviceKind.GPU,
    retarget: bool = False,
    save_temps: Path | None = None,
) -> bytes:
    """The cache entry of what a program loads: twins of the kernels that can have one, and why the others cannot.

    image: fatbin, cubin or PTX text. arch: the device's, as ``sm_90``. key: 32 bytes, stored in the entry.
    device: what runs the program; for the embedded device the entry's images are PTX text that ends with NUL, and
    assembler may be None. retarget: as for ``find_source``. save_temps: a folder that gets what each stage made, in a
    folder of its own per image.

    Raises FormatError for a damaged image, ProbeError when a probe asks for what an instruction has not; and,
    since they say nothing of the image, ToolMissingError without an assembler for a GPU, ToolError when it was killed
    or took too long, OSError when a file could not be written. Nothing of this kind is in an entry.
    """
    dump = Dump(save_temps / key.hex()[:16] if save_temps else None)
    dump.write("image.bin", image)
    if assembler is not None:
        assembler = replace(assembler, slots=threading.BoundedSemaphore(len(os.sched_getaffinity(0))))
    source = find_source(read_container(image, "image"), arch, device, retarget=retarget)
    twins = make_twins(source, probes, selection=selection, assembler=assembler, device=device, dump=dump)
    return write_entry(key, probes.maps, twins.kernels, twins.images)


@dataclass(frozen=True)
class Twins:
    """What is made of one image for one device. kernels: all of the image's, with their reasons.

    images: those of the twins, then those of twins under a register cap: what the driver is given, as in an entry.
    A twin that would take more of the register file than its original is there under a cap alone where that spills no
    more than the original, else both ways.
    """

    kernels: tuple[KernelEntry, ...]
    images: tuple[bytes, ...]


def make_twins(
    source: Source,
    probes: ProbeSet,
    *,
    selection: Selection,
    assembler: Assembler | None,
    device: DeviceKind = DeviceKind.GPU,
    emit: Emit = Emit.SASS,
    unproven: bool = False,
    dump: Dump | None = None,
) -> Twins:
    """Twins of the kernels of source that can have one, and why the others cannot.

    assembler may be None where there is no PTX to assemble, and for the embedded device, to which emit means nothing:
    it takes text. unproven: of a retargeted source also kernels that are not shown to be what runs. Raises as
    patch_image.
    """
    if assembler is None and source.text is not None and device is DeviceKind.GPU:
        raise ToolMissingError("ptxas", ASSEMBLER_HINT)
    dump = dump or Dump(None)
    names = _kernel_names(source)
    kernels = {name: KernelEntry(name, Reason.NOT_SELECTED) for name in names}
    selected = [name for name in names if selection.selects(name, demangle(name))]
    images: tuple[bytes, ...] = ()
    architecture = Device.parse(source.arch)
    if architecture is None or architecture.number < FIRST_ARCHITECTURE:
        detail = f"{source.arch}: machine code is understood from sm_{FIRST_ARCHITECTURE} on"
        source = replace(source, text=None, reason=Reason.UNSUPPORTED, detail=detail)
    if source.text is None or source.reason is not Reason.PROBED:
        kernels |= {name: KernelEntry(name, source.reason, source.detail) for name in selected}
    elif selected:
        version = LATEST_PTX if assembler is None else assembler.ptx_version
        try:
            bounded = device is not DeviceKind.EMBEDDED
            rewritten = rewrite(source, source.text, probes, selected, version, bounded_stack=bounded)
            form = Emit.PTX if device is DeviceKind.EMBEDDED else emit
            made, images = _make_twins(rewritten, assembler, form, Retargeting.of(source, unproven=unproven), dump)
        except PtxError as error:
            made = {name: KernelEntry(name, Reason.UNSUPPORTED, str(error)) for name in selected}
        kernels |= made
    dump.kernels(kernels.values())
    return Twins(tuple(kernels.values()), images)


def _kernel_names(source: Source) -> list[str]:
    if source.machine is not None:
        return list(source.machine.kernels)
    if source.text is None:
        return []
    return list(ptx_entries(source.text.encode("latin-1")))


def _make_twins(
    rewritten: Rewritten, assembler: Assembler | None, emit: Emit, retargeting: Retargeting | None, dump: Dump
) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
    """Entries of the selected kernels, and the images that their twins are in."""
    source, twins = rewritten.source, rewritten.twins
    dump.write("original.ptx", rewritten.module.text.encode("latin-1"))
    dump.sites(twins.kernels)
    entries = dict(rewritten.entries)
    if not twins.kernels:
        return entries, ()
    if source.retargeted or source.found == DEBUG_SECTION:
        # The whole is held against the whole, here and where it is assembled in another way.
        parts = [twins.kernels]
    else:
        parts = split(rewritten.module, twins.kernels)
    if assembler is None:
        dump.write("probed.ptx", twins.render().encode("latin-1"))
        made, images = join([_unassembled(part, rewritten, emit) for part in parts])
        return entries | made, images
    try:
        made, images = judge_parts(parts, rewritten, assembler, emit, retargeting, dump)
    except CutError:
        made, images = judge_parts([twins.kernels], rewritten, assembler, emit, retargeting, dump)
    # A cubin does not say how it was assembled. Triton's enable_fp_fusion=False passes --fmad=false.
    unlike = {Reason.NUMERICS, Reason.VARIANT} if source.retargeted else {Reason.NUMERICS}
    if source.found == DEBUG_SECTION and {entry.reason for entry in (entries | made).values()} <= unlike:
        unfused = replace(rewritten, source=replace(source, options=("--fmad=false",)))
        again, images_again = judge_parts([twins.kernels], unfused, assembler, emit, retargeting, dump)
        if any(entry.reason is Reason.PROBED for entry in again.values()):
            made, images = again, images_again
    return entries | made, images


def _unassembled(part: Sequence[TwinKernel], rewritten: Rewritten, emit: Emit) -> Judged:
    source = rewritten.source
    text = rewritten.twins.render({twin.name for twin in part})
    made = {
        twin.name: probed_entry(twin, unassembled_manifest(twin, source.arch, rewritten.probes, emit), capped=False)
        for twin in part
    }
    return made, (driver_image(source, rewritten.module, text, None, emit),)
