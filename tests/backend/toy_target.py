"""A target for the invented assembly of ``toy_machine.py``: that a second one fits, and what it takes.

It does the probes that count instructions and note when warps run: typed operations, ``array`` and ``sum``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import BLOCK_HEADER, BLOCK_PER_MAP, BLOCK_WARPS_PER_BLOCK, BLOCK_ZERO, block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.assemble.emit import Emit
from neutrino.backend.entries import unassembled_entries
from neutrino.backend.manifest import unassembled_manifest
from neutrino.backend.protocol import BackendResult, Options, Tools
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.ir.memory import AccumulateSaved, StoreRecord
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Convert, Operation, Operator
from neutrino.maps.builder import Combining, Lanes
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copy_stride
from neutrino.probing.capabilities import Capabilities
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import SUFFIX, LeftOut, Site

LANES = 64
class Place(NamedTuple):
    offset: int
    size: int
GROUPS = {"load": "load", "store": "store", "store32": "store", "atom": "atomic", "jump": "branch"}
SPECIALS = {Special.CLOCK: "time", Special.CUID: "unit", Special.WARP: "warp", Special.LANE: "lane"}
OPERATORS = {Operator.MOVE: "set", Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul"}


@dataclass(frozen=True)
class Kernel:
    """A kernel's text. lines: with their numbers in the module's text, the header first."""

    name: str
    bytes: int
    lines: tuple[tuple[int, str], ...]

    def instructions(self) -> Iterator[tuple[int, str, str]]:
        """Yield the line number, the opcode and the text of each instruction."""
        for number, line in self.lines[1:]:
            text = line.split(";")[0].strip()
            if text and not text.endswith(":"):
                yield number, text.split()[2 if text.startswith("if ") else 0], text


def kernels_of(text: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(".kernel"):
            _, name, size = line.split()
            kernels.append(Kernel(name, int(size), ()))
        if kernels:
            kernels[-1] = replace(kernels[-1], lines=(*kernels[-1].lines, (number, line)))
    return kernels


@dataclass(frozen=True)
class ToyPlan:
    """The plan of one kernel. at: by line, the probes there."""

    kernel: Kernel
    probes: ProbeSet
    sites: tuple[Site, ...]
    at: Mapping[int, tuple[Probe, ...]]
    left_out: tuple[LeftOut, ...] = ()
    probes_left_out: tuple[ProbeLeftOut, ...] = ()

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def site_count(self) -> int:
        return len(self.sites)

    @property
    def lines(self) -> Mapping[str, int]:
        return {self.name: self.kernel.lines[0][0]}


class Plans(NamedTuple):
    kernels: tuple[ToyPlan, ...]
    refused: Mapping[str, tuple[Reason, str]]
"""The ``Plan``."""


@dataclass(frozen=True)
class ToyTwin:
    """One kernel's twin; a ``Twin``."""

    name: str
    original: str
    parameters: tuple[Place, ...]
    block_offset: int
    maps: tuple[Map, ...]
    sites: tuple[Site, ...]
    text: str = ""
    lanes: int = LANES
    # Nothing is assembled, so nothing is compared.
    variables = calls = all_copies = left_out = probes_left_out = ()
    length_warning, own_arithmetic, loose = "", MappingProxyType({}), None
    contractible, self_contained, may_wait = False, True, False

    @property
    def twin_name(self) -> str:
        return self.name + SUFFIX

    @property
    def block_size(self) -> int:
        return block_size(len(self.maps), 0)

    def files(self, cap: int | None) -> Mapping[str, bytes]:
        return {"original.toy": self.original.encode(), "probed.toy": self.text.encode()}


class Writer:
    """Lowers snippets to lines of assembly; what a SAVE becomes is the map type's statements, one by one."""

    lanes = Lanes(LANES, Combining.NOTHING)
    may_branch = False
    is_conditional = True

    def __init__(self, maps: Sequence[Map], block: int) -> None:
        self.maps, self.block = maps, block

    def constant(self, number: int) -> None:
        """None is asked for by the map types that this target takes."""

    choices = site_key = constant

    def snippet(self, snippet: Snippet | None, level: Level) -> Iterator[str]:
        for statement in snippet.statements if snippet is not None else ():
            if isinstance(statement, Save):
                yield from self._save(statement, level)
            elif isinstance(statement, Operation) and (special := SPECIALS.get(statement.sources[0])):
                yield f"{special} {_word(statement.destination)}"
            elif isinstance(statement, Operation):
                words = map(_word, (statement.destination, *statement.sources))
                yield f"{OPERATORS[statement.operator]} {', '.join(words)}"
                if statement.destination.type.bits == 32:
                    yield f"low {_word(statement.destination)}, {_word(statement.destination)}"
            elif isinstance(statement, Convert):
                opcode = "low" if statement.destination.type.bits == 32 else "set"
                yield f"{opcode} {_word(statement.destination)}, {_word(statement.source)}"
            else:
                raise NotImplementedError(type(statement).__name__)

    def _save(self, save: Save, level: Level) -> Iterator[str]:
        number = self.maps.index(save.map)
        yield "set n_saves, 1" if level is Level.THREAD else "lowest n_saves"
        for statement in save.map.kind.save(save.map, self):
            if isinstance(statement, StoreRecord):
                # A slot of the warp: its number in the launch, times the size.
                yield from (f"param n_warps, {self.block + BLOCK_WARPS_PER_BLOCK}", "low n_warps, n_warps")
                yield from ("block n_at", "mul n_at, n_at, n_warps", "warp n_warp", "add n_at, n_at, n_warp")
                stride, opcodes = save.map.size, {4: "store32", 8: "store"}
            elif isinstance(statement, AccumulateSaved):
                # Warps take turns with the copies of the record.
                yield from (f"param n_mask, {self.block + BLOCK_ZERO}", "high n_mask, n_mask")
                yield from ("block n_at", "and n_at, n_at, n_mask")
                stride, opcodes = copy_stride(save.map.size), {8: "atom"}
            else:
                raise NotImplementedError(type(statement).__name__)
            of_map = self.block + BLOCK_HEADER + number * BLOCK_PER_MAP
            yield from (f"mul n_at, n_at, {stride}", f"param n_map, {of_map}", "add n_at, n_at, n_map")
            for cell, operand in zip(save.map.fields, save.operands, strict=True):
                yield f"if n_saves {opcodes[cell.type.size]} n_at, {cell.offset}, {_word(operand)}"


def _word(operand: object) -> str:
    if isinstance(operand, Register):
        return "n" + operand.name.replace("%", "_").replace("$", "_")
    assert isinstance(operand, Constant)
    return str(operand.bits)


@dataclass(frozen=True)
class ToyTwins:
    """The ``Backend``: every image is text, and so are twins."""

    shipped: ToyShipped
    probes: ProbeSet
    target: str = "toy"
    refusal: tuple[Reason, str] | None = None

    @property
    def kernels(self) -> list[str]:
        return [kernel.name for kernel in kernels_of(self.shipped.text)]

    def plan(self, kernels: Sequence[str]) -> Plans:
        plans = [self._plan(kernel) for kernel in kernels_of(self.shipped.text) if kernel.name in kernels]
        without = {plan.name: (Reason.NO_SITE, "no probe matches") for plan in plans if not plan.sites}
        return Plans(tuple(plan for plan in plans if plan.sites), without)

    def _plan(self, kernel: Kernel) -> ToyPlan:
        at: dict[int, tuple[Probe, ...]] = {}
        sites: list[Site] = []
        for number, opcode, text in kernel.instructions():
            for probe in self.probes.probes:
                if probe.tracepoint.matches((opcode,), {GROUPS.get(opcode, "")}):
                    at[number] = (*at.get(number, ()), probe)
                    sites.append(Site(probe.name, probe.tracepoint.text, number, text, len(sites), "", kernel.name))
        ends = [Site(probe.name, "kernel", kernel.lines[0][0], "", None, "", kernel.name)
                for probe in self.probes.probes if probe.tracepoint.is_kernel]  # fmt: skip
        return ToyPlan(kernel, self.probes, (*ends, *sites), at)

    def write(self, plan: Plans) -> list[ToyTwin]:
        return [self._write(kernel) for kernel in plan.kernels]

    def _write(self, plan: ToyPlan) -> ToyTwin:
        kernel, size = plan.kernel, plan.kernel.bytes
        original = "\n".join(line for _, line in kernel.lines)
        places = (Place(0, size),) if size else ()
        twin = ToyTwin(plan.name, original, places, align_up(size, 8), plan.probes.maps, plan.sites)
        writer = Writer(twin.maps, twin.block_offset)
        whole = [probe for probe in plan.probes.probes if probe.tracepoint.is_kernel]
        lines = [f".kernel {twin.twin_name} {twin.block_offset + twin.block_size}"]
        lines += [f"set {_word(one)}, {one.initial}" for one in plan.probes.registers if not one.is_local]
        lines += [line for probe in whole for line in writer.snippet(probe.before, probe.level)]
        opcodes = {number: opcode for number, opcode, _ in kernel.instructions()}
        for number, line in kernel.lines[1:]:
            # For the lanes that execute the instruction: none of what is inserted there has a guard of its own.
            guard = f"if {line.split()[1]} " if line.strip().startswith("if ") else ""
            at = plan.at.get(number, ())
            lines += [guard + one for probe in at for one in writer.snippet(probe.before, probe.level)]
            if opcodes.get(number) == "exit":
                lines += [one for probe in whole for one in writer.snippet(probe.after, probe.level)]
            lines += [line, *(guard + one for probe in at for one in writer.snippet(probe.after, probe.level))]
        return replace(twin, text="\n".join(lines) + "\n")

    def assemble(self, code: list[ToyTwin]) -> dict[str, object]:
        return {}

    def entries(self, code: list[ToyTwin], outcomes: Mapping[str, object]) -> BackendResult:
        return unassembled_entries(
            [code], lambda twin: unassembled_manifest(twin, self.shipped.arch, Emit.TEXT),
            lambda part: "".join(twin.text for twin in part).encode(),
        )  # fmt: skip


@dataclass(frozen=True)
class ToyShipped:
    """The ``Shipped``: a text."""

    text: str
    image: int = 0
    arch: str = "toy64"
    retargeted: str = ""

    def summary(self) -> dict[str, object]:
        return {"arch": self.arch}


@dataclass(frozen=True)
class ToyTarget:
    """The ``Target``, as far as what a program loads is concerned."""

    name: str = "toy"
    language: str = "toy text"
    lanes: tuple[int, ...] = (LANES,)
    files: tuple[str, ...] = ("original.toy", "probed.toy")
    devices: tuple[str, ...] = ("toy64",)
    supported: str = "of any kind"
    embedded_device: str = ""
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(
            frozenset({"kernel", "any", *GROUPS.values(), "barrier", "tensor", "convert", "special"}), frozenset(),
            frozenset({*(word.value for word in OPERATORS), *(word.value for word in SPECIALS)}),
            frozenset({"array", "sum"}),
        )
    )  # fmt: skip

    def device_of(self, arch: str) -> str | None:
        return arch if arch in self.devices else None

    def takes(self, image: Image) -> bool:
        return image.kind is ImageKind.NVVM and image.data.startswith(b".kernel")

    def find(
        self, container: Container, units: Sequence[Container], arch: str, device: DeviceKind, *, retarget: bool = False
    ) -> ToyShipped:
        image = next(image for image in container.images if self.takes(image))
        return ToyShipped(image.data.rstrip(b"\0").decode(), image.index, arch)

    def backend(self, shipped: ToyShipped, probes: ProbeSet, tools: Tools | None, options: Options) -> ToyTwins:
        return ToyTwins(shipped, probes)
