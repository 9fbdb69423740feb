"""A target for the invented assembly of ``toy_machine.py``: that a second one fits, and what it takes.

It does probes that count and note times: of u32 and u64, in sums and a record for each warp. Twins are text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import BLOCK_HEADER, BLOCK_PER_MAP, BLOCK_WARPS_PER_BLOCK, BLOCK_ZERO, block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.scalars import ScalarType
from neutrino.abi.structures import align_up
from neutrino.assemble.emit import Emit
from neutrino.backend.kernel_entries import unassembled_entries
from neutrino.backend.manifest import unassembled_manifest
from neutrino.backend.protocol import BackendResult, Options, PlannedKernel, Shipped, ShownTwin, Target, Tools, TwinText
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container, Image, ImageKind
from neutrino.ir.memory import AccumulateSaved, MapStatement, StoreRecord
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Convert, Operation, Operator
from neutrino.maps.builder import Combining, Lanes, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copy_stride
from neutrino.probing.capabilities import Capabilities
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save
from neutrino.twins.able import able_probes
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import SUFFIX, LeftOut, Site

LANES = 64
GROUPS = {"load": "load", "store": "store", "store32": "store", "atom": "atomic", "jump": "branch"}
SPECIALS = {Special.CLOCK: "time", Special.CUID: "unit", Special.LANE: "lane"}
WORDS = {ScalarType.U32, ScalarType.U64}
OPERATORS = {Operator.MOVE: "set", Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul"}


def refuses_map(entry: Map) -> str:
    types = {cell.type for cell in entry.fields}
    if entry.kind.name == "array" and (entry.level is not Level.WARP or entry.cap > 1 or not types <= WORDS):
        return "an array but one with a record of u32 and u64 for each warp"
    if entry.kind.name == "sum" and (entry.per is not Per.LAUNCH or types != {ScalarType.U64}):
        return "a sum but one of u64 for each launch"
    return ""


CAPABILITIES = Capabilities(
    tracepoints=frozenset({"kernel", "any", *GROUPS.values(), "barrier", "tensor", "convert", "special"}),
    operands=frozenset(),
    helpers=frozenset({*(word.value for word in OPERATORS), *(word.value for word in SPECIALS)}),
    maps=frozenset({"array", "sum"}),
    statements=frozenset({"convert"}),
    types=frozenset({"u32", "u64"}),
    levels=frozenset({"thread", "group"}),
    refuses_map=refuses_map,
)


class Kernel(NamedTuple):
    """A kernel's text. lines: with their numbers in the module's text, the header first."""

    name: str
    bytes: int
    line: int
    lines: list[tuple[int, str]]


def kernels_of(text: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(".kernel"):
            _, name, size = line.split()
            kernels.append(Kernel(name, int(size), number, []))
        if kernels:
            kernels[-1].lines.append((number, line))
    return kernels


def instruction_of(line: str) -> tuple[str, str, str]:
    """Return the guard of a line's instruction with its "if", its opcode and its text; all "" without one."""
    text = line.partition(";")[0].strip()
    if not text or text.endswith(":") or text.startswith("."):
        return "", "", ""
    words = text.split()
    return (f"if {words[1]} ", words[2], text) if words[0] == "if" else ("", words[0], text)


class Place(NamedTuple):
    offset: int
    size: int


class ToyKernel(NamedTuple):
    """A ``PlannedKernel``, and with its text a ``Twin``. at: by line, the probes there."""

    kernel: Kernel
    original: str
    probes: ProbeSet
    at: Mapping[int, list[Probe]]
    name: str
    twin_name: str
    lines: Mapping[str, int]
    parameters: tuple[Place, ...]
    block_offset: int
    block_size: int
    maps: tuple[Map, ...]
    sites: list[Site]
    site_count: int
    left_out: list[LeftOut]
    probes_left_out: tuple[ProbeLeftOut, ...]
    text: str = ""
    lanes: int = LANES
    variables: tuple[str, ...] = ()
    length_warning: str = ""

    def files(self, cap: int | None) -> dict[str, bytes]:
        return {"original.toy": self.original.encode(), "probed.toy": self.text.encode()}


class ToyPlan(NamedTuple):
    kernels: list[ToyKernel]
    refused: dict[str, tuple[Reason, str]]


class Unknown(SavedValues):
    """A SAVE of values of which nothing is known."""

    lanes = Lanes(LANES, Combining.NOTHING)
    may_branch = False
    is_conditional = True


def lower(snippet: Snippet | None, level: Level, plan: ToyKernel, guard: str = "") -> Iterator[str]:
    """Yield a snippet's lines, for the lanes of a guard."""
    for statement in snippet.statements if snippet is not None else ():
        if isinstance(statement, Operation):
            (first, *_), to = statement.sources, word(statement.destination)
            if isinstance(first, Special):
                yield f"{guard}{SPECIALS[first]} {to}"
            else:
                yield f"{guard}{OPERATORS[statement.operator]} {', '.join([to, *map(word, statement.sources)])}"
        elif isinstance(statement, Convert):
            # The upper half of a u32's word means nothing.
            yield f"{guard}low {word(statement.destination)}, {word(statement.source)}"
        else:
            assert isinstance(statement, Save)
            # The other lanes may have saved before.
            yield "set $saves, 0"
            yield f"{guard}set $saves, 1" if level is Level.THREAD else f"{guard}lowest $saves"
            for step in statement.map.kind.save(statement.map, Unknown()):
                yield from lower_save(step, statement, plan.block_offset, plan.maps.index(statement.map))


def lower_save(step: MapStatement, save: Save, block: int, number: int) -> Iterator[str]:
    """Yield the lines of one statement of a map's type. block: where the probe block is. number: of the map."""
    yield from ("gridx $grid", "blocky $at", "mul $at, $at, $grid", "blockx $x", "add $at, $at, $x")
    if isinstance(step, StoreRecord):
        # The slot of the warp, by its number in the launch.
        yield from (f"param $warps, {block + BLOCK_WARPS_PER_BLOCK}", "low $warps, $warps")
        yield from ("mul $at, $at, $warps", "warp $warp", "add $at, $at, $warp")
        stride, opcodes = save.map.size, {4: "store32", 8: "store"}
    else:
        assert isinstance(step, AccumulateSaved)
        # Blocks take turns with the copies of the record; the mask is the upper half of its word.
        yield from (f"param $mask, {block + BLOCK_ZERO}", "high $mask, $mask", "and $at, $at, $mask")
        stride, opcodes = copy_stride(save.map.size), {8: "atom"}
    of_map = block + BLOCK_HEADER + number * BLOCK_PER_MAP
    yield from (f"mul $at, $at, {stride}", f"param $map, {of_map}", "add $at, $at, $map")
    for cell, operand in zip(save.map.fields, save.operands, strict=True):
        yield f"if $saves {opcodes[cell.type.size]} $at, {cell.offset}, {word(operand)}"


def word(operand: object) -> str:
    assert isinstance(operand, (Register, Constant))
    return "$" + operand.name if isinstance(operand, Register) else str(operand.bits)


def write_twin(plan: ToyKernel) -> ToyKernel:
    whole = [probe for probe in plan.probes.probes if probe.tracepoint.is_kernel]
    lines = [f".kernel {plan.twin_name} {plan.block_offset + plan.block_size}"]
    lines += [f"set {word(one)}, {one.initial}" for one in plan.probes.registers if not one.is_local]
    for probe in whole:
        lines += lower(probe.before, probe.level, plan)
    for number, line in plan.kernel.lines[1:]:
        guard, opcode, _ = instruction_of(line)
        for probe in plan.at.get(number, ()):
            lines += lower(probe.before, probe.level, plan, guard)
        for probe in whole if opcode == "exit" else ():
            lines += lower(probe.after, probe.level, plan, guard)
        lines.append(line)
        for probe in plan.at.get(number, ()):
            lines += lower(probe.after, probe.level, plan, guard)
    return plan._replace(text="\n".join(lines) + "\n")


class ToyShipped(NamedTuple):
    text: str
    image: int | None
    arch: str = "toy64"
    retargeted: str = ""

    def summary(self) -> dict[str, object]:
        return {"arch": self.arch}


class ToyBackend(NamedTuple):
    text: str
    kernels: list[str]
    probes: ProbeSet
    probes_left_out: tuple[ProbeLeftOut, ...]
    target: str = "toy"
    refusal: tuple[Reason, str] | None = None

    def plan(self, kernels: Sequence[str]) -> ToyPlan:
        plans = [self._plan(kernel) for kernel in kernels_of(self.text) if kernel.name in kernels]
        refused = {plan.name: (Reason.NO_SITE, "") for plan in plans if not plan.sites}
        return ToyPlan([plan for plan in plans if plan.sites], refused)

    def _plan(self, kernel: Kernel) -> ToyKernel:
        at: dict[int, list[Probe]] = {}
        sites: list[Site] = []
        left_out: list[LeftOut] = []
        for probe in self.probes.probes:
            where = (probe.name, probe.tracepoint.text)
            if probe.tracepoint.is_kernel:
                sites.append(Site(*where, kernel.line, "", function=kernel.name))
            for site, (number, line) in enumerate(kernel.lines):
                guard, opcode, text = instruction_of(line)
                matches = opcode and probe.tracepoint.matches((opcode,), {GROUPS.get(opcode, "")})
                if matches and probe.after is not None and (guard or opcode in ("jump", "exit")):
                    left_out.append(LeftOut(*where, number, text, "", "other lanes may be after it", kernel.name))
                elif matches:
                    sites.append(Site(*where, number, text, site, function=kernel.name))
                    at.setdefault(number, []).append(probe)
        maps, places = self.probes.maps, (Place(0, kernel.bytes),) if kernel.bytes else ()
        return ToyKernel(
            kernel, "\n".join(line for _, line in kernel.lines), self.probes, at, kernel.name, kernel.name + SUFFIX,
            {kernel.name: kernel.line}, places, align_up(kernel.bytes, 8), block_size(len(maps), 0), maps, sites,
            len(sites), left_out, self.probes_left_out,
        )  # fmt: skip

    def write(self, plan: ToyPlan) -> list[ToyKernel]:
        return [write_twin(kernel) for kernel in plan.kernels]

    def assemble(self, code: list[ToyKernel]) -> None:
        return None

    def entries(self, code: list[ToyKernel], outcomes: None) -> BackendResult:
        return unassembled_entries(
            [code], lambda twin: unassembled_manifest(twin, "toy64", ToyTarget().forms[Emit.TEXT]),
            lambda part: "".join(twin.text for twin in part).encode(),
        )  # fmt: skip


class ToyTarget(Target):
    """The ``Target``."""

    name = "toy"
    language = "toy text"
    lanes = (LANES,)
    capabilities = CAPABILITIES
    files = ("original.toy", "probed.toy")
    devices = ("toy64",)
    supported = "of any kind"
    judges = "nothing"

    def device_of(self, arch: str) -> str | None:
        return arch if arch in self.devices else None

    def takes(self, image: Image) -> bool:
        return image.kind is ImageKind.TEXT and image.arch in self.devices

    def picked(self, container: Container, arch: str, device: DeviceKind = DeviceKind.GPU) -> Image | None:
        fits = arch in self.devices and device is DeviceKind.GPU
        return next(filter(self.takes, container.images), None) if fits else None

    def parameters(self, image: Image, name: str) -> dict[str, list[tuple[int, int]]]:
        kernels = kernels_of(image.data.rstrip(b"\0").decode())
        return {kernel.name: [(0, kernel.bytes)] if kernel.bytes else [] for kernel in kernels}

    def find(
        self, container: Container, units: Sequence[Container], arch: str, device: DeviceKind, *, retarget: bool = False
    ) -> ToyShipped:
        image = self.picked(container, arch, device)
        return ToyShipped("", None) if image is None else ToyShipped(image.data.rstrip(b"\0").decode(), image.index)

    def backend(self, shipped: Shipped, probes: ProbeSet, tools: Tools | None, options: Options) -> ToyBackend:
        assert isinstance(shipped, ToyShipped)
        names = [kernel.name for kernel in kernels_of(shipped.text)]
        return ToyBackend(shipped.text, names, *able_probes(self, probes))

    def show(self, kernel: PlannedKernel, entry: KernelEntry | None) -> ShownTwin:
        assert isinstance(kernel, ToyKernel)
        twin = write_twin(kernel)
        part = TwinText(twin.name, kernel.kernel.line, twin.original, twin.text, is_kernel=True)
        return ShownTwin(twin, twin.text, (part,), twin.text.count("\n") - len(kernel.kernel.lines))
