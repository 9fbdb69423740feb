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

import functools
import json
import os
import re
import shlex
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from neutrino import variant
from neutrino.device_kind import DeviceKind
from neutrino.entry import KernelEntry, write_entry
from neutrino.errors import FormatError, PtxError, ToolMissingError
from neutrino.fatbin import (
    Cubin,
    CubinKernel,
    ImageKind,
    build_container,
    build_entry,
    demangle,
    read_container,
    read_cubin,
)
from neutrino.fatbin.ptxscan import ptx_entries, with_ptx_version
from neutrino.numerics import FIRST_ARCHITECTURE, NumericsProof, compare, compare_kinds, count_arithmetic
from neutrino.parts import Judged, join, split
from neutrino.pinning import Pinned, pin_twins
from neutrino.probing.layout import Reason, align_up
from neutrino.probing.model import Map, ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.functions import FunctionCopy
from neutrino.ptx.module import Kind, Module, parse
from neutrino.ptx.module_twins import probe_module
from neutrino.ptx.twin import TwinKernel, TwinModule
from neutrino.same_code import SameCode
from neutrino.source import DEBUG_SECTION, Device, Source, find_source
from neutrino.toolchain import ASSEMBLER_HINT, LATEST_PTX, Assembled, Assembler, AssemblyError, Resources

_STACK_UNKNOWN = 0xFFFFFFFF
"""The stack that a cubin states for a kernel with recursion: it gets what the program has set as limit."""
NOT_SHOWN = "not shown to be the program that runs"
"""How the detail of a retargeted kernel begins that nothing speaks against, and nothing for."""
_REGISTER_UNIT = 8
"""Registers are handed out to threads in units of this many (CUDA occupancy calculator, all of sm_75 to sm_120)."""


class Emit(Enum):
    """In which form twins are handed to the driver."""

    SASS = "sass"
    """Machine code."""
    PTX = "ptx"
    """Text, which the driver compiles for whatever device it has."""
    BOTH = "both"
    """A container of both, of which the driver picks."""


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
            rewritten = _rewrite(source, source.text, probes, selected, version)
            rewritten = replace(rewritten, bounded_stack=device is not DeviceKind.EMBEDDED)
            form = Emit.PTX if device is DeviceKind.EMBEDDED else emit
            made, images = _make_twins(rewritten, assembler, form, _retargeting(source, unproven=unproven), dump)
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


class Dump:
    """What ``--save-temps`` keeps; nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes | str) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / name).write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)

    def sites(self, twins: Sequence[TwinKernel]) -> None:
        """What the probes matched."""
        self.write("sites.json", json.dumps({twin.name: _sites(twin) for twin in twins}, indent=1))

    def kernels(self, entries: Iterable[KernelEntry]) -> None:
        """What became of each kernel."""
        self.write("kernels.txt", "".join(
            f"{entry.name}: {entry.reason.word}{': ' if entry.detail else ''}{entry.detail}\n" for entry in entries
        ))  # fmt: skip


@dataclass(frozen=True)
class _Rewritten:
    """A module with its twins, none of them assembled yet, and the entries of the selected kernels that got none.

    bounded_stack: as for ``Assembly``.
    """

    source: Source
    probes: ProbeSet
    module: Module
    twins: TwinModule
    entries: Mapping[str, KernelEntry]
    bounded_stack: bool = True


@dataclass(frozen=True)
class Retargeting:
    """Twins whose text is for another architecture than the machine code that runs. target: ``sm_120 → sm_90``.

    own: the machine code says that it was made of this text. unproven: kernels are taken that nothing shows to be the
    ones that run, unless something shows that they are not.
    """

    target: str
    own: bool = False
    unproven: bool = False


def _retargeting(source: Source, *, unproven: bool) -> Retargeting | None:
    return Retargeting(source.retargeted, source.own, unproven) if source.retargeted else None


def _make_twins(
    rewritten: _Rewritten, assembler: Assembler | None, emit: Emit, retargeting: Retargeting | None, dump: Dump
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
        made, images = _in_parts(parts, rewritten, assembler, emit, retargeting, dump)
    except _CutError:
        made, images = _in_parts([twins.kernels], rewritten, assembler, emit, retargeting, dump)
    # A cubin does not say how it was assembled. Triton's enable_fp_fusion=False passes --fmad=false.
    unlike = {Reason.NUMERICS, Reason.VARIANT} if source.retargeted else {Reason.NUMERICS}
    if source.found == DEBUG_SECTION and {entry.reason for entry in (entries | made).values()} <= unlike:
        unfused = replace(rewritten, source=replace(source, options=("--fmad=false",)))
        again, images_again = _in_parts([twins.kernels], unfused, assembler, emit, retargeting, dump)
        if any(entry.reason is Reason.PROBED for entry in again.values()):
            made, images = again, images_again
    return entries | made, images


def _unassembled(part: Sequence[TwinKernel], rewritten: _Rewritten, emit: Emit) -> Judged:
    text = rewritten.twins.render({twin.name for twin in part})
    made = {
        twin.name: _probed(twin, _manifest(twin, rewritten.source.arch, rewritten.probes, emit), capped=False)
        for twin in part
    }
    return made, (_emitted(rewritten, text, None, emit),)


_PARTS_AT_ONCE = 32
"""Parts under way, each with a text or two in memory; how many of them are being assembled the assembler tells."""


def _in_parts(
    parts: Sequence[tuple[TwinKernel, ...]],
    rewritten: _Rewritten,
    assembler: Assembler,
    emit: Emit,
    retargeting: Retargeting | None,
    dump: Dump,
) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
    """As judge_twins, of each part by itself. Raises _CutError when a part of several cannot be."""

    slots = _Slots(assembler.slots)
    stoppable = replace(assembler, slots=slots)

    def judged(number: int) -> Judged:
        is_part = len(parts) > 1
        assembly = _OneModule(rewritten, stoppable, emit, dump, f"-{number}" if is_part else "", is_part)
        made = judge_twins(parts[number], assembly, rewritten.probes, retargeting=retargeting)
        return _with_pinned(made, parts[number], assembly, rewritten.probes, retargeting)

    with ThreadPoolExecutor(min(len(parts), _PARTS_AT_ONCE)) as pool:
        try:
            if len(parts) == 1:
                # It needs no thread, and an interrupt reaches it in this one.
                return join([judged(0)])
            jobs = [pool.submit(judged, number) for number in range(len(parts))]
            ended = wait(jobs, return_when=FIRST_EXCEPTION).done
            return join([job.result() for job in jobs if job in ended])
        except BaseException:
            slots.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _with_pinned(
    made: Judged, twins: Sequence[TwinKernel], assembly: _OneModule, probes: ProbeSet, retargeting: Retargeting | None
) -> Judged:
    """The same, with the twins refused for their numbers of fused instructions pinned, where that can be."""
    refused = [twin for twin in twins if made[0][twin.name].reason is Reason.NUMERICS]
    if not refused or not assembly.can_pin:
        return made
    names = {twin.name for twin in refused}
    try:
        pins = pin_twins(
            refused, assembly.originals_text(names), assembly.originals(names), assembly.assemble,
            lambda twin: assembly.pinned((twin,)).text([twin.name]), assembly.arch,
        )  # fmt: skip
    except (AssemblyError, _CutError):
        return made
    except (FormatError, PtxError) as error:
        # An assembler may come to write line information, or a twin's text, in a form that is not known here.
        pins = Pinned({}, {twin.name: str(error) for twin in refused})
    entries = {
        name: replace(entry, detail=f"{entry.detail}; {pins.refused[name]}") if name in pins.refused else entry
        for name, entry in made[0].items()
    }
    if not pins.twins:
        return entries, made[1]
    pinned = tuple(pins.twins.values())
    again = _Attempt(pinned, assembly.pinned(pinned), probes, retargeting, pins).run()
    return join([({name: entry for name, entry in entries.items() if name not in pins.twins}, made[1]), again])


class _Slots:
    """The slots of an assembler until stop: from then on those that wait for one begin nothing."""

    def __init__(self, slots: AbstractContextManager[object]) -> None:
        self._slots = slots
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def __enter__(self) -> None:
        self._slots.__enter__()
        if self._is_stopped:
            self._slots.__exit__(None, None, None)
            raise _StoppedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slots.__exit__(kind, error, traceback)


class _StoppedError(Exception):
    """Another thread failed, whose error is raised."""


class _CutError(Exception):
    """The originals of a part are refused without the module's other kernels."""


def _with_version(text: str, highest: tuple[int, int]) -> str:
    match = _VERSION.search(text)
    if match is None or (int(match[1]), int(match[2])) <= highest:
        return text
    return with_ptx_version(text.encode("latin-1"), highest).decode("latin-1")


def _rewrite(
    source: Source, text: str, probes: ProbeSet, selected: Sequence[str], version: tuple[int, int]
) -> _Rewritten:
    if source.retargeted:
        # The text may be a later toolkit's than the machine code; the assembler says whether that matters.
        text = _with_version(text, version)
    module = parse(text)
    lacking = set(selected) - {entry.name for entry in module.entries}
    wanted = [name for name in selected if name not in lacking]
    twins = probe_module(module, probes, names=wanted, version=version, demangle=demangle)
    entries = {
        name: KernelEntry(name, Reason.NO_PTX, f"the PTX in the {source.found} lacks this kernel") for name in lacking
    }
    entries |= {skip.name: KernelEntry(skip.name, skip.reason, skip.detail) for skip in twins.skipped}
    return _Rewritten(source, probes, module, twins, entries)


@dataclass(frozen=True)
class AssembledTwins:
    """Twins assembled together. image: what the driver is given, in the form emit."""

    image: bytes
    assembled: Assembled
    emit: Emit = Emit.SASS


class Assembly(Protocol):
    """How the originals and the twins of one image become machine code.

    name: of what assembles, with its version. arch: what for. machine: the originals as they run, None where that
    is what assembling their text gives. bounded_stack: a thread has no more stack than the program has asked for, as on
    every GPU. Both methods raise as ``Assembler.assemble`` and may run at the same time.
    """

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    @property
    def machine(self) -> Cubin | None: ...

    @property
    def bounded_stack(self) -> bool: ...

    def originals(self, names: Collection[str]) -> Assembled:
        """The named kernels' own text assembled, possibly with others."""

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """The named kernels' twins, under a register cap where registers has one. stage: dumped under that name."""


class _OneModule:
    """The originals of one module, and the twins that were made of it.

    mark: in the names of what is dumped. is_part: there are several, with other kernels.
    """

    def __init__(
        self, rewritten: _Rewritten, assembler: Assembler, emit: Emit, dump: Dump, mark: str, is_part: bool
    ) -> None:
        self._rewritten = rewritten
        self._source = rewritten.source
        self._module = rewritten.module
        self._twins = rewritten.twins
        self._assembler = assembler
        self._emit = emit
        self._dump = dump
        self._is_part = is_part
        self._mark = mark
        self.name = assembler.name
        self.arch = rewritten.source.arch
        self.machine = rewritten.source.machine
        self.bounded_stack = rewritten.bounded_stack

    @property
    def can_pin(self) -> bool:
        """The twins are used as machine code: what else makes code of their text, or runs it, may not fuse at all."""
        return self._emit is Emit.SASS

    def pinned(self, twins: tuple[TwinKernel, ...]) -> _OneModule:
        """The same, of these twins."""
        rewritten = replace(self._rewritten, twins=replace(self._twins, kernels=twins))
        return _OneModule(rewritten, self._assembler, self._emit, self._dump, f"{self._mark}-pinned", self._is_part)

    def originals_text(self, names: Collection[str]) -> str:
        """What ``originals`` assembles."""
        # Of a variant all is assembled, so that the code refers to variables as that of the whole does.
        return self._module.text if self._source.retargeted else only_kernels(self._module, names)

    def originals(self, names: Collection[str]) -> Assembled:
        text = self.originals_text(names)
        try:
            assembled = self.assemble(text)
        except AssemblyError as error:
            if self._is_part:
                raise _CutError from error
            # A kernel that was cut out may be named by what is left; or one that was not is all that is refused.
            other = only_kernels(self._module, names) if self._source.retargeted else self._module.text
            if text == other:
                raise
            assembled = self.assemble(other)
        self._dump.write(f"original{self._mark}.cubin", assembled.cubin)
        self._dump.write(f"original{self._mark}.warnings.txt", "\n".join(assembled.warnings))
        return assembled

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        text = self.text(names, registers)
        if stage:
            self._dump.write(f"{stage}{self._mark}.ptx", text.encode("latin-1"))
        assembled = self.assemble(text)
        if stage:
            self._dump.write(f"{stage}{self._mark}.cubin", assembled.cubin)
            self._dump.write(f"{stage}{self._mark}.warnings.txt", "\n".join(assembled.warnings))
        return AssembledTwins(_emitted(self._rewritten, text, assembled.cubin, self._emit), assembled, self._emit)

    def text(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> str:
        """What ``twins`` assembles."""
        return self._twins.render(names, registers)

    def assemble(self, text: str, options: Sequence[str] = ()) -> Assembled:
        """Assemble a text as the module's, with further options. Raises as ``Assembler.assemble``."""
        return self._assembler.assemble(text, self._source.arch, (*self._source.options, *options))


@dataclass(frozen=True)
class _Built:
    """Twins assembled together: their image, and per twin's name what ptxas and the cubin say.

    failed: kernel → why. caps: kernel → the registers of a thread that its twin was assembled with at most.
    """

    image: bytes = b""
    kernels: Mapping[str, CubinKernel] = field(default_factory=dict)
    functions: Mapping[str, bytes] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    failed: Mapping[str, str] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    emit: Emit = Emit.SASS


@dataclass(frozen=True)
class _Original:
    """The originals: their machine code as it runs, what their text is assembled to where that was looked at, and what
    ptxas says of it.
    """

    machine: Cubin
    assembled: Cubin | None
    resources: Mapping[str, Resources]
    warnings: Counter[str]
    cubin: bytes

    @functools.cached_property
    def rebuilt(self) -> Cubin:
        """What their text is assembled to; read when first asked for."""
        return self.assembled or read_cubin(self.cubin, "assembled original")

    def unlike_in_code(self, twin: TwinKernel) -> str | None:
        """What of a kernel's machine code its text, assembled, gives otherwise; None when nothing."""
        if self._comparison is None:
            return None
        return self._comparison.difference(twin.name, self_contained=twin.self_contained)

    @functools.cached_property
    def _comparison(self) -> SameCode | None:
        return SameCode(self.machine.data, self.assembled.data) if self.assembled else None


def judge_twins(
    twins: Sequence[TwinKernel], assembly: Assembly, probes: ProbeSet, *, retargeting: Retargeting | None = None
) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
    """Assemble twins and hold them against their originals.

    retargeting: where the twins' text is for another architecture; then the originals' own text is held against their
    machine code as well.

    Gives entries of all kernels with twins, good or not, and the images that the good ones are in.
    """
    return _Attempt(twins, assembly, probes, retargeting).run()


class _Attempt:
    """The twins of one image, assembled and judged. All state that several steps of it need."""

    def __init__(
        self,
        twins: Sequence[TwinKernel],
        assembly: Assembly,
        probes: ProbeSet,
        retargeting: Retargeting | None,
        pins: Pinned | None = None,
    ) -> None:
        self._pins = pins
        self._twins = twins
        self._assembly = assembly
        self._probes = probes
        self._retargeting = retargeting
        self._counts: dict[bytes, dict[str, int]] = {}

    def run(self) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
        twins = self._twins
        with ThreadPoolExecutor(2) as pool:
            # The original's spills are only known by assembling its text; ptxas has a process of its own
            # meanwhile.
            original_job = pool.submit(self._assemble_original, {twin.name for twin in twins})
            built = self._assemble_twins("probed", None)
            try:
                original = original_job.result()
            except AssemblyError as error:
                if self._retargeting and len(twins) > 1:
                    return self._without_refused()
                reason = Reason.VARIANT if self._retargeting else Reason.ASSEMBLER
                detail = self._variant(f"{self._assembly.name} refuses the original: {error.reason}")
                return {twin.name: KernelEntry(twin.name, reason, detail) for twin in twins}, ()
        warned = self._warned(original, built)
        verdicts = {twin.name: self._judge(twin, original, built, warned) for twin in twins}
        good = [twin for twin in twins if verdicts[twin.name] is None]
        capped = self._cap(good, original, built)
        # A cap that costs nothing is no second choice: the twin takes no more of the register file than the original.
        free = {twin.name for twin in good if _spills_no_more(capped, twin, original)}
        images = () if len(free) == len(good) else (built.image,)
        entries = {}
        for twin in twins:
            verdict = verdicts[twin.name]
            if verdict is not None:
                entries[twin.name] = KernelEntry(twin.name, *verdict)
            elif twin.name in free:
                entry = self._probed(twin, original, capped, _Built())
                entries[twin.name] = replace(entry, image=len(images))
            else:
                entries[twin.name] = self._probed(twin, original, built, capped)
        return entries, (*images, capped.image) if capped.kernels else images

    def _without_refused(self) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
        """Again without those whose own text is refused by itself: one variant must not take the others with it."""
        def attempt(twin: TwinKernel) -> str | None:
            try:
                self._assembly.originals([twin.name])
            except AssemblyError as error:
                return error.reason
            return None

        with ThreadPoolExecutor(2) as pool:
            reasons = list(pool.map(attempt, self._twins))
        left = [twin for twin, reason in zip(self._twins, reasons, strict=True) if reason is None]
        if len(left) == len(self._twins):
            reasons = ["only together with other kernels"] * len(left)
            left = []
        refused = {
            twin.name: KernelEntry(
                twin.name, Reason.VARIANT, self._variant(f"{self._assembly.name} refuses the original: {reason}")
            )
            for twin, reason in zip(self._twins, reasons, strict=True)
            if reason is not None
        }
        if not left:
            return refused, ()
        made, images = judge_twins(left, self._assembly, self._probes, retargeting=self._retargeting)
        return refused | made, images

    def _variant(self, detail: str) -> str:
        return f"retargeted {self._retargeting.target}: {detail}" if self._retargeting else detail

    def _assemble_original(self, names: Collection[str]) -> _Original:
        assembled = self._assembly.originals(names)
        shipped = self._assembly.machine
        if shipped is not None and not self._retargeting:
            return _Original(shipped, None, assembled.resources, _performance_warnings(assembled), assembled.cubin)
        cubin = read_cubin(assembled.cubin, "assembled original")
        return _Original(
            shipped or cubin, cubin, assembled.resources, _performance_warnings(assembled), assembled.cubin
        )

    def _assemble_twins(self, stage: str, registers: Mapping[str, int] | None) -> _Built:
        """Assemble the twins of registers' kernels, or all; when that fails, one by one, to lose only the bad ones."""
        names = list(registers) if registers is not None else [twin.name for twin in self._twins]
        try:
            return self._built(names, registers, stage)
        except AssemblyError as error:
            failed = {names[0]: error.reason} if len(names) == 1 else self._refused(names, registers)
        left = [name for name in names if name not in failed]
        if not left:
            return _Built(failed=failed)
        try:
            built = self._built(left, registers, stage)
        except AssemblyError as error:
            return _Built(failed=failed | dict.fromkeys(left, f"only together with other twins: {error.reason}"))
        return replace(built, failed=failed)

    def _refused(self, names: Sequence[str], registers: Mapping[str, int] | None) -> dict[str, str]:
        def attempt(name: str) -> str | None:
            try:
                self._assembly.twins([name], registers)
            except AssemblyError as error:
                return error.reason
            return None

        with ThreadPoolExecutor(2) as pool:
            return {name: reason for name, reason in zip(names, pool.map(attempt, names), strict=True) if reason}

    def _built(self, names: Sequence[str], registers: Mapping[str, int] | None, stage: str) -> _Built:
        twins = self._assembly.twins(names, registers, stage=stage)
        cubin = read_cubin(twins.assembled.cubin, stage)
        return _Built(
            twins.image,
            cubin.kernels,
            cubin.functions,
            twins.assembled.resources,
            _performance_warnings(twins.assembled),
            caps=registers or {},
            emit=twins.emit,
        )

    def _warned(self, original: _Original, built: _Built) -> dict[str, str]:
        """Kernels whose twins ptxas warns of where it did not warn of the original, and the warning."""
        warned: dict[str, str] = {}
        unnamed = False
        for text in (built.warnings - original.warnings).elements():
            match = _FUNCTION.search(text)
            if match:
                warned[match[1]] = text
            else:
                unnamed = True
        if unnamed:
            # It does not say which kernel it is about, so each is assembled alone.
            for twin in self._twins:
                if twin.twin_name in built.kernels:
                    alone = _performance_warnings(self._assembly.twins([twin.name]).assembled)
                    before = _performance_warnings(self._assembly.originals([twin.name]))
                    for text in alone - before:
                        warned[twin.name] = text
        return warned

    def _judge(
        self, twin: TwinKernel, original: _Original, built: _Built, warned: Mapping[str, str]
    ) -> tuple[Reason, str] | None:
        """What stands against using a twin, None when nothing does."""
        if twin.name in built.failed:
            return Reason.ASSEMBLER, f"{self._assembly.name}: {built.failed[twin.name]}"
        if twin.name in warned:
            return Reason.ASSEMBLER, f"{self._assembly.name} warns: {warned[twin.name]}"
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        if self._retargeting and original.assembled is not None:
            other = variant.difference(before, original.assembled.kernels[twin.name], self._assembly.arch)
            if other is None and not (self._retargeting.own or self._retargeting.unproven):
                unlike = original.unlike_in_code(twin)
                other = f"{NOT_SHOWN}: {self._assembly.name} makes other code of the PTX ({unlike})" if unlike else None
            if other is not None:
                return Reason.VARIANT, self._variant(other)
        expected = [(parameter.offset, parameter.size) for parameter in twin.parameters]
        shipped = [(offset, size) for _, offset, size in before.parameters]
        if shipped != expected:
            return (
                Reason.UNSUPPORTED,
                f"parameters (offset, size) of the machine code {shipped}, of the PTX {expected}",
            )
        assembled = [(offset, size) for _, offset, size in after.parameters]
        if assembled != [*expected, (twin.block_offset, twin.block_size)]:
            return Reason.UNSUPPORTED, f"the assembler placed the twin's parameters at {assembled}"
        if before.stack == _STACK_UNKNOWN and after.frame > before.frame:
            grown = f"its stack frame grows from {before.frame} to {after.frame} bytes"
            return Reason.UNSUPPORTED, f"what stack it needs is not known beforehand, and {grown}"
        if self._assembly.bounded_stack:
            for copy in twin.all_copies:
                deeper = _deeper(copy, original.resources[twin.name], built.resources[twin.twin_name])
                if deeper is not None:
                    return Reason.UNSUPPORTED, deeper
        difference = self._difference(twin, original, built)
        seen = self._pins.codes.get(twin.name) if self._pins is not None else None
        if seen is not None:
            as_seen = count_arithmetic(seen, self._assembly.arch) == self._count(after)
            difference = self._unlike(twin, original) if as_seen else difference or "not the code that was compared"
        elif difference is not None and not twin.contractible:
            # Where nothing can be fused, code may be there more or less often, if the assembler is known to make of the
            # original's text what runs.
            difference = self._unlike(twin, original) or self._other_kinds(twin, original, built)
        return None if difference is None else (Reason.NUMERICS, difference)

    def _unlike(self, twin: TwinKernel, original: _Original) -> str | None:
        """What arithmetic of the original's machine code its text, assembled here, has otherwise; None when nothing."""
        if original.rebuilt is original.machine:
            return None
        rebuilt = original.rebuilt.kernels.get(twin.name)
        if rebuilt is None:
            return f"{self._assembly.name} leaves the original out"
        differing = compare(self._count(original.machine.kernels[twin.name]), self._count(rebuilt), {})
        return differing and f"in the original's text as {self._assembly.name} assembles it: {differing}"

    def _difference(self, twin: TwinKernel, original: _Original, built: _Built) -> str | None:
        """Where original and twin hold other numbers of fused and unfused instructions; None when nowhere."""
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        # Functions with code of their own, as linked code has them; all others lie in the kernel's.
        copies = [copy for copy in twin.all_copies if copy.copy_name in built.functions]
        own = Counter(twin.own_arithmetic)
        for copy in copies:
            own.subtract(copy.own_arithmetic)
        difference = compare(self._count(before), self._count(after), own)
        if difference is not None:
            return difference
        # A function that only one of them calls is inlined in the other, whose count shows it.
        called: dict[str, tuple[str, Mapping[str, int]]] = {name: (name, {}) for name in twin.calls}
        called |= {copy.name: (copy.copy_name, copy.own_arithmetic) for copy in copies}
        for name, (built_name, own_in_it) in sorted(called.items()):
            if name not in original.machine.functions or built_name not in built.functions:
                continue
            difference = compare(
                count_arithmetic(original.machine.functions[name], self._assembly.arch),
                count_arithmetic(built.functions[built_name], self._assembly.arch),
                own_in_it,
            )
            if difference is not None:
                return f"in the called function {name}: {difference}"
        return None

    def _other_kinds(self, twin: TwinKernel, original: _Original, built: _Built) -> str | None:
        """What kinds of arithmetic the machine code of only one of both holds, whatever the text promises."""
        if twin.calls:
            return None  # they may be inlined in one of both
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return compare_kinds(self._count(before), self._count(after), twin.own_arithmetic)

    def _proof(self, twin: TwinKernel, original: _Original, built: _Built) -> NumericsProof:
        """What shows that a twin that was judged good computes as its original."""
        if self._pins is not None:
            return NumericsProof.LINES if twin.name in self._pins.codes else NumericsProof.PINNED
        return NumericsProof.COUNTS if self._difference(twin, original, built) is None else NumericsProof.NO_PAIR

    def _count(self, kernel: CubinKernel) -> dict[str, int]:
        # Asked for by each judgement of an original's twins, and by the manifest.
        if kernel.code not in self._counts:
            self._counts[kernel.code] = count_arithmetic(kernel.code, self._assembly.arch)
        return self._counts[kernel.code]

    def _cap(self, good: Sequence[TwinKernel], original: _Original, built: _Built) -> _Built:
        """Again, under the original's register count, the twins that need more; only those that came out well."""
        limits = {}
        for twin in good:
            limit = align_up(original.machine.kernels[twin.name].registers, _REGISTER_UNIT)
            if align_up(built.kernels[twin.twin_name].registers, _REGISTER_UNIT) > limit:
                limits[twin.name] = limit
        if not limits:
            return _Built()
        capped = self._assemble_twins("capped", limits)
        warned = self._warned(original, capped)
        sound = {
            twin.twin_name: capped.kernels[twin.twin_name]
            for twin in good
            if twin.name in limits
            and twin.twin_name in capped.kernels
            and self._judge(twin, original, capped, warned) is None
            and capped.kernels[twin.twin_name].registers <= limits[twin.name]
        }
        return replace(capped, kernels=sound)

    def _probed(self, twin: TwinKernel, original: _Original, built: _Built, capped: _Built) -> KernelEntry:
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        under_cap = capped.kernels.get(twin.twin_name)
        manifest = _manifest(twin, self._assembly.arch, self._probes, built.emit) | {
            "retargeted": {
                "target": self._retargeting.target,
                "same_code": original.unlike_in_code(twin) is None,
                "own_text": self._retargeting.own,
            } if self._retargeting and original.assembled else None,
            "registers": {
                "original": before.registers,
                "twin": after.registers,
                "capped": under_cap.registers if under_cap else None,
            },
            "spills": {
                "original": _spills(original.resources[twin.name]),
                "twin": _spills(built.resources[twin.twin_name]),
                "capped": _spills(capped.resources[twin.twin_name]) if under_cap else None,
            },
            "frame": {"original": before.frame, "twin": after.frame},
            "numerics": {
                "original": self._count(before), "twin": self._count(after), "own": dict(twin.own_arithmetic),
                "contractible": twin.contractible, "proof": self._proof(twin, original, built).value,
            },
            "assembler": self._assembly.name,
            "maxnreg": built.caps.get(twin.name),
        }  # fmt: skip
        return _probed(twin, manifest, capped=under_cap is not None)


def _spills_no_more(capped: _Built, twin: TwinKernel, original: _Original) -> bool:
    """Whether the twin under a register cap is there, and spills no more than the original."""
    if twin.twin_name not in capped.kernels:
        return False
    own, others = _spills(capped.resources[twin.twin_name]), _spills(original.resources[twin.name])
    return all(own[kind] <= others[kind] for kind in others)


def _manifest(twin: TwinKernel, arch: str, probes: ProbeSet, emit: Emit) -> dict[str, Any]:
    """What a manifest holds of a twin that no assembler has seen."""
    return {
        "name": twin.name,
        "demangled": demangle(twin.name),
        "twin": twin.twin_name,
        "arch": arch,
        "parameters": [{"offset": item.offset, "size": item.size} for item in twin.parameters],
        "block": {"offset": twin.block_offset, "size": twin.block_size},
        "maps": [_map(entry) for entry in probes.maps],
        "variables": list(twin.variables),
        "registers": None,
        "spills": None,
        "frame": None,
        "sites": _sites(twin),
        "sites_left_out": [asdict(left) for left in twin.left_out],
        "numerics": None,
        "assembler": None,
        "maxnreg": None,
        "emit": emit.value,
        "retargeted": None,
    }


def _probed(twin: TwinKernel, manifest: dict[str, Any], *, capped: bool) -> KernelEntry:
    return KernelEntry(
        twin.name,
        Reason.PROBED,
        twin=twin.twin_name,
        parameters=tuple((item.offset, item.size) for item in twin.parameters),
        variables=twin.variables,
        block_offset=twin.block_offset,
        block_size=twin.block_size,
        capped=int(capped),
        files={
            "manifest.json": json.dumps(manifest, indent=1).encode(),
            "original.ptx": twin.original_text.encode("latin-1"),
            "probed.ptx": twin.whole_text(manifest["maxnreg"]).encode("latin-1"),
        },
    )


def _emitted(rewritten: _Rewritten, text: str, cubin: bytes | None, emit: Emit) -> bytes:
    """Twins as the driver takes them. cubin: of the text, None where nothing has assembled it.

    A container where there is more to say than the text: the options that the original was assembled with.
    """
    source, module = rewritten.source, rewritten.module
    if emit is Emit.SASS and cubin is not None:
        return cubin
    image = _ptx_image(module, text)
    if emit is Emit.PTX and not source.options:
        return image
    version = _VERSION.search(text)
    entry = build_entry(
        ImageKind.PTX,
        image,
        module.target.partition(",")[0].strip(),
        version=(int(version[1]), int(version[2])) if version else (0, 0),
        options=shlex.join(source.options),
    )
    if emit is Emit.PTX or cubin is None:
        return build_container([entry])
    return build_container([entry, build_entry(ImageKind.CUBIN, cubin, source.arch)])


_VERSION = re.compile(r"^[ \t]*\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)


def _ptx_image(module: Module, text: str) -> bytes:
    """Twins' text as the driver takes it, ended by NUL.

    Under the comments of the original's head: they say who made it, and the embedded device does not run everyone's.
    """
    first = module.statements[0] if module.statements else None
    head = module.source(first) if first is not None and first.kind is Kind.BLANK else ""
    return (head + text).encode("latin-1") + b"\0"


_TWIN_SUFFIX = "__neutrino"
_PERFORMANCE = re.compile(r"\(C75\d\d\)")
_FUNCTION = re.compile(r"in (?:the )?function '([^']+)'")


def _performance_warnings(assembled: Assembled) -> Counter[str]:
    """The warnings that a pipeline is serialised or a register hint ignored, alike for original and twin."""
    return Counter(
        re.sub(r"\bline \d+", "line …", warning.replace(f"{_TWIN_SUFFIX}'", "'"))
        for warning in assembled.warnings
        if _PERFORMANCE.search(warning)
    )


def only_kernels(module: Module, names: Collection[str]) -> str:
    """The module's text without other kernels than these."""
    pieces, position = [], 0
    for entry in module.entries:
        if entry.name not in names:
            pieces.append(module.text[position : entry.statement.start])
            position = entry.statement.end
    return "".join([*pieces, module.text[position:]]) if pieces else module.text


def _map(entry: Map) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind.value,
        "level": entry.level.value,
        "size": entry.size,
        "cap": entry.cap,
        "fields": [{"name": item.name, "type": item.type.value, "offset": item.offset} for item in entry.fields],
    }


def _sites(twin: TwinKernel) -> list[dict[str, Any]]:
    return [
        {
            "probe": site.probe,
            "tracepoint": site.tracepoint,
            "site": site.number,
            "function": site.function,
            "line": site.line,
            "source": site.source or None,
            "instruction": site.instruction,
        }
        for site in twin.sites
    ]


def _deeper(copy: FunctionCopy, before: Resources, after: Resources) -> str | None:
    """What speaks against a recursive function's copy: nobody knows how deep it goes, and how much stack is left."""
    if not copy.is_recursive:
        return None
    frame, own_frame = before.functions.get(copy.name), after.functions.get(copy.copy_name)
    if frame is not None and own_frame is not None and own_frame <= frame:
        return None
    told = " to ".join("an unknown number of" if size is None else str(size) for size in (frame, own_frame))
    return f"{copy.name} calls itself, how deep is not known, and its stack frame grows from {told} bytes"


def _spills(resources: Resources) -> dict[str, int]:
    return {"stores": resources.spill_stores, "loads": resources.spill_loads}
