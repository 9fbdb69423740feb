"""The patcher: makes the cache entry, with twins, of an image that a program loads, by calling other packages in turn.

A twin is the instrumented copy of a kernel, which the hook launches in its place.

    image ─ read_container ─► Container ─ target.find ─► Shipped ─ backend.plan ─► sites, and why kernels have none
          ─ backend.write ─► twins' text ─ backend.assemble ─► verified outcomes ─ backend.entries ─► entry

Each step returns an immutable value, and ``--save-temps`` writes each to a file. All retries after a refusal are in one
loop, in ``assemble/attempts.py``.

A problem that depends only on the image (a kernel that cannot be probed, text that the assembler refuses) becomes a
reason in the entry. A problem of the machine (no assembler, a full disk, a killed process) is raised as an exception,
because it may be gone at the next attempt, and entries are kept.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.backend.manifest import site_rows
from neutrino.backend.protocol import Backend, Options, Plan, Shipped, Target, Tools
from neutrino.backend.registry import target_of_device
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.fatbin import read_container
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.able import check_able
from neutrino.twins.cache_entry import KernelEntry, write_entry
from neutrino.twins.values import Twin, ignore


@dataclass(frozen=True)
class Twins:
    """The twins of one image's kernels for one device.

    kernels: all of the image's, with the reason for those that have no twin. images: for the driver, in the order of
    the entry: first those that twins are launched from, then alternatives with a register cap. A twin that would need
    more of the register file than its original is only compiled with a cap if that spills no more than the original;
    otherwise with and without.
    """

    kernels: tuple[KernelEntry, ...]
    images: tuple[bytes, ...]


def patch_image(
    image: bytes,
    probes: ProbeSet,
    arch: str,
    *,
    selection: Selection,
    assembler: Tools | None,
    key: bytes,
    device: DeviceKind = DeviceKind.GPU,
    retarget: bool = False,
    max_registers: int | None = None,
    machine_code: MachineCode = MachineCode.OFF,
    kernel: str = "",
    save_temps: Path | None = None,
    notice: Callable[[Twin], None] = ignore,
    shipped: Shipped | None = None,
) -> bytes:
    """Make the cache entry for an image that a program loads: the twins (instrumented copies) of its kernels.

    The entry also says why other kernels have no twin. image: fatbin, cubin or PTX text. arch: the device's, such as
    ``sm_90``. key: 32 bytes, stored in the entry. device: for the embedded device the entry's images are PTX text that
    ends with NUL, and assembler may be None. retarget: also use PTX for another architecture than the machine code's.
    max_registers: a cap of twins' registers per thread, from ``LEAST_CAP`` to ``MOST_CAP``; nothing for the embedded
    device. machine_code: of which machine code twins are made, where one kernel of the image is asked for. kernel: its
    mangled name, then the entry has that kernel alone; "" for all. save_temps: a folder in which the result of each
    step is written, in a folder per image.

    notice: is told of each long twin, for which the assembler may take minutes, before that starts. shipped: what
    ``find_shipped`` has found in the image, if that was called.

    Raises FormatError for a damaged image, and ProbeError when a probe uses a value that an instruction does not have.
    Problems of the machine are raised too, since they must not be stored in an entry: ToolMissingError without an
    assembler for a GPU, ToolError when it was killed or took too long, OSError when a file could not be written.
    """
    # The folder's name is the beginning of the key, which is long enough to tell images apart.
    dump = Dump(save_temps / key.hex()[:16] if save_temps else None)
    dump.write("image.bin", image)
    if assembler is not None:
        # At most one assembler process at a time for each CPU that this process may use.
        assembler = assembler.limited(threading.BoundedSemaphore(len(os.sched_getaffinity(0))))
    target = target_of_device(arch)
    if shipped is None:
        shipped = find_shipped(image, arch, device=device, retarget=retarget, kernel=kernel)
    if dump.folder is not None:
        dump.write("source.json", json.dumps(shipped.summary(), indent=1))
    options = Options(
        device=device, max_registers=max_registers, notice=notice, dump=dump, kernel=kernel, machine_code=machine_code
    )
    twins = make_twins(target, shipped, probes, selection=selection, tools=assembler, options=options)
    entry = write_entry(key, probes.maps, twins.kernels, twins.images)
    dump.write("entry.twins", entry)
    return entry


def find_shipped(
    image: bytes, arch: str, *, device: DeviceKind = DeviceKind.GPU, retarget: bool = False, kernel: str = ""
) -> Shipped:
    """Return what a device runs of an image that a program loads. Parameters: of ``patch_image``; with kernel, what is
    found also serves other kernels of the image. Raises FormatError for a damaged image."""
    return target_of_device(arch).find(
        read_container(image, "image"), (), arch, device, retarget=retarget, kernel=kernel
    )  # fmt: skip


def code_alone(shipped: Shipped, arch: str) -> bytes | memoryview | None:
    """Return the machine code that stands for a whole image where single kernels are asked for, None without such.

    shipped: of ``find_shipped``. arch: of the device."""
    return target_of_device(arch).alone(shipped)


def make_twins(
    target: Target, shipped: Shipped, probes: ProbeSet, *, selection: Selection, tools: Tools | None, options: Options
) -> Twins:
    """Make twins (instrumented copies) of the kernels that a program ships; the result says why others have none.

    shipped: as the target has found it. tools: the target's; None where nothing is to be assembled. Raises as
    ``patch_image``.
    """
    return _run_backend(target, target.backend(shipped, probes, tools, options), probes, selection, options)


_Plan = TypeVar("_Plan", bound=Plan)
_Code = TypeVar("_Code")
_Outcomes = TypeVar("_Outcomes")


def _run_backend(
    target: Target, backend: Backend[_Plan, _Code, _Outcomes], probes: ProbeSet, selection: Selection, options: Options
) -> Twins:
    """Make twins (instrumented copies) of the selected kernels by a backend's steps: plan, write, assemble, entries.

    The result also has the other kernels, with the reason why they have no twin. options: name the only kernel that is
    wanted, if one is, and say where files of the steps go. Raises NeutrinoError when the target can do none of the
    probes, and what the steps raise.
    """
    dump = options.dump
    check_able(target, probes)
    # An entry for each kernel in the image's order; each step replaces those about which it knows more.
    wanted = [name for name in backend.kernels if not options.kernel or name == options.kernel]
    kernels = {name: KernelEntry(name, Reason.NOT_SELECTED) for name in wanted}
    selected = [name for name in kernels if selection.selects(name, demangle(name))]
    images: tuple[bytes, ...] = ()
    # A refusal is a reason and a detail: why none of the image's kernels, or not this kernel, can have a twin.
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
            # Of an image with a thousand kernels it takes more memory than all that follows.
            del plan
            outcomes = backend.assemble(code)
            result = backend.entries(code, outcomes)
            kernels |= result.entries
            images = result.images
    dump.write("kernels.txt", "".join(
        f"{entry.name}: {entry.reason.word}{': ' if entry.detail else ''}{entry.detail}\n"
        for entry in kernels.values()
    ))  # fmt: skip
    return Twins(tuple(kernels.values()), images)
