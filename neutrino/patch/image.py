"""From an image that a program loads to the cache entry with its twins: one linear driver over the other packages.

    image ─ read_container ─► Container ─ find_source ─► Source ─ backend.plan ─► sites, and why kernels have none
          ─ backend.write ─► twins' text ─ backend.assemble ─► verified outcomes ─ backend.entries ─► entry

Each arrow gives an immutable value, and ``--save-temps`` keeps each. All retries after a refusal are in one
loop, in ``assemble/attempts.py``.

What depends on the image alone (a kernel that cannot be probed, text that the assembler refuses) becomes a
reason in the entry. What depends on the machine (no assembler, a full disk, a process killed) is raised, so
that nothing that could be different tomorrow is ever stored.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.backend.linked_twin import LinkedTwins
from neutrino.backend.manifest import site_rows
from neutrino.backend.protocol import Backend, Plan
from neutrino.backend.ptx_twin import PtxTwins
from neutrino.cache.entry import KernelEntry, write_entry
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.device.linked_source import LinkedSource
from neutrino.device.source import Source, find_source
from neutrino.errors import NeutrinoError, ToolMissingError
from neutrino.fatbin import read_container
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.toolchain.choice import ASSEMBLER_HINT
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import LATEST_PTX


@dataclass(frozen=True)
class Twins:
    """What is made of one image for one device. kernels: all of the image's, with their reasons.

    images: those that twins are launched from, then those under a register cap that are a second choice: what the
    driver is given, as in an entry. A twin that would take more of the register file than its original is there under a
    cap alone where that spills no more than the original, else both ways.
    """

    kernels: tuple[KernelEntry, ...]
    images: tuple[bytes, ...]


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
    dump.write("source.json", json.dumps(_described(source), indent=1))
    twins = make_twins(source, probes, selection=selection, assembler=assembler, device=device, dump=dump)
    entry = write_entry(key, probes.maps, twins.kernels, twins.images)
    dump.write("entry.twins", entry)
    return entry


def _described(source: Source) -> dict[str, object]:
    """What was picked of the container, for people; its PTX is in a file of its own."""
    return {
        "image": source.image, "arch": source.arch, "options": source.options, "found": source.found,
        "retargeted": source.retargeted or None, "has_machine_code": source.machine is not None,
        "reason": source.reason.word, "detail": source.detail,
    }  # fmt: skip


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
    is_embedded = device is DeviceKind.EMBEDDED
    if assembler is None and source.text is not None and not is_embedded:
        raise ToolMissingError("ptxas", ASSEMBLER_HINT)
    dump = dump or Dump()
    backend = PtxTwins(
        source, probes, LATEST_PTX if assembler is None else assembler.ptx_version, assembler,
        Emit.PTX if is_embedded else emit, bounded_stack=not is_embedded, unproven=unproven, dump=dump,
    )  # fmt: skip
    return _probed(backend, probes, selection, dump)


def make_linked_twins(
    source: LinkedSource,
    probes: ProbeSet,
    *,
    selection: Selection,
    assembler: Assembler,
    linker: Linker,
    dump: Dump | None = None,
) -> Twins:
    """The same of linked code, whose units' PTX source has. The images are cubins."""
    dump = dump or Dump()
    backend = LinkedTwins(source, probes, assembler.ptx_version, (assembler, linker), dump)
    return _probed(backend, probes, selection, dump)


_Plan = TypeVar("_Plan", bound=Plan)
_Code = TypeVar("_Code")
_Outcomes = TypeVar("_Outcomes")


def _probed(
    backend: Backend[_Plan, _Code, _Outcomes], probes: ProbeSet, selection: Selection, dump: Dump
) -> Twins:
    """What a way of probing makes of the selected kernels: its steps, one after the other."""
    if probes.target not in ("", backend.target):
        raise NeutrinoError(f"{probes.file}: its assembly is {probes.target}, and these kernels take {backend.target}")
    kernels = {name: KernelEntry(name, Reason.NOT_SELECTED) for name in backend.kernels}
    selected = [name for name in kernels if selection.selects(name, demangle(name))]
    images: tuple[bytes, ...] = ()
    if backend.refusal is not None:
        kernels |= {name: KernelEntry(name, *backend.refusal) for name in selected}
    elif selected:
        plan = backend.plan(selected)
        kernels |= {name: KernelEntry(name, *refusal) for name, refusal in plan.refused.items()}
        if dump.folder is not None:
            rows = {kernel.name: site_rows(kernel.sites) for kernel in plan.kernels}
            dump.write("sites.json", json.dumps(rows, indent=1))
        if plan.kernels:
            code = backend.write(plan)
            outcomes = backend.assemble(code)
            made = backend.entries(code, outcomes)
            kernels |= made.entries
            images = made.images
    dump.write("kernels.txt", "".join(
        f"{entry.name}: {entry.reason.word}{': ' if entry.detail else ''}{entry.detail}\n"
        for entry in kernels.values()
    ))  # fmt: skip
    return Twins(tuple(kernels.values()), images)
