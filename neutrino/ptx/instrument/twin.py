"""What a twin is: a kernel's text with probes in it, what the host has to know of it, and what it needs to be a module.

A twin is the kernel's own text with a list of edits: a new name, one parameter more, private registers at the
entry, inserted code at sites and ends, and module variables replaced by registers that hold their addresses.
Nothing else of the kernel changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from neutrino.abi.reasons import Reason
from neutrino.probing.ir.probe_set import Probe
from neutrino.ptx.analysis.contraction import has_product, loose_sums, may_contract
from neutrino.ptx.analysis.matching import Hit, Locations
from neutrino.ptx.instrument.functions import FunctionCopy
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.module import Kind, Module, ModuleStatement, Parameter, without_locations


class Shown(NamedTuple):
    """An instruction as manifests show it. line, text, source: as ``line``, ``instruction``, ``source`` of a Site."""

    line: int
    text: str
    source: str = ""

    @classmethod
    def of(cls, statement: Statement, module: Module, places: Locations) -> Shown:
        """A statement of a body of a module. places: the lines of the source."""
        source = places.place(statement.position) if places else None
        return cls(module.line(statement.start), " ".join(statement.text.split()), str(source) if source else "")


class SiteList:
    """In the order in which they were added. Lines and texts are made when the list is first asked for.

    function: the name of the one that they are in. module, places: its module and the lines of the source.
    left_out: instructions that probes match and do not go to.
    """

    def __init__(self, function: str, module: Module, places: Locations) -> None:
        self._function = function
        self._module = module
        self._places = places
        self._added: list[tuple[Statement | Shown, Sequence[Probe], int | None]] = []
        self._hits: Sequence[Hit] = ()
        self._but: frozenset[int] = frozenset()
        self._probes_of_hits = 0
        self.left_out: list[LeftOut] = []

    def __bool__(self) -> bool:
        return bool(self._added or self._probes_of_hits)

    def add(self, where: Statement | Shown, probes: Sequence[Probe], number: int | None = None) -> None:
        """Probes that went to an instruction. number: what SITE is there."""
        if probes:
            self._added.append((where, probes, number))

    def add_hits(self, hits: Sequence[Hit], but: Sequence[int], count: int) -> None:
        """Probes that all went to their instructions, for all hits but some. count: how many probes that is."""
        self._hits, self._but, self._probes_of_hits = hits, frozenset(but), count

    def leave_out(self, shown: Shown, probes: Iterable[Probe], reason: str) -> None:
        """Probes that match an instruction and do not go there."""
        self.left_out += [
            LeftOut(probe.name, probe.tracepoint.text, shown.line, shown.text, shown.source, reason, self._function)
            for probe in probes
        ]

    @property
    def count(self) -> int:
        """How many there are."""
        return self._probes_of_hits + sum(len(probes) for _, probes, _ in self._added)

    @cached_property
    def sites(self) -> list[Site]:
        """All of them, by their lines."""
        found = []
        others = (self._hits[at] for at in range(len(self._hits)) if at not in self._but)
        of_hits = ((hit.statement, hit.probes, hit.number) for hit in others)
        for where, probes, number in (*self._added, *of_hits):
            shown = where if isinstance(where, Shown) else Shown.of(where, self._module, self._places)
            found += [
                Site(probe.name, probe.tracepoint.text, shown.line, shown.text, number, shown.source, self._function)
                for probe in probes
            ]
        if self._hits:
            # Back in text order: instructions by their numbers, then where the body ends.
            found.sort(key=lambda site: (site.number is None, site.number or 0))
        return sorted(found, key=lambda site: site.line)


_MAXNREG = re.compile(r"\.maxnreg\s+\d+", re.ASCII)

@dataclass(frozen=True)
class Site:
    """A place where a probe went. line: in the module's text, from 1. instruction: its text, in one line.

    number: of an instruction, what ``SITE`` is there; None at entries and ends. source: the line of the source and
    those that it was inlined into, as ``file.cu:42, inlined at main.cu:7``; "" where the text does not say.
    function: the kernel or the called function that it is in.
    """

    probe: str
    tracepoint: str
    line: int
    instruction: str
    number: int | None = None
    source: str = ""
    function: str = ""


@dataclass(frozen=True)
class LeftOut:
    """An instruction that a probe matches and could not go to. reason: why. Else as of a ``Site``."""

    probe: str
    tracepoint: str
    line: int
    instruction: str
    source: str
    reason: str
    function: str = ""


@dataclass(frozen=True)
class SkippedKernel:
    """A kernel without a twin. detail: what exactly stood in the way."""

    name: str
    reason: Reason
    detail: str


@dataclass(frozen=True)
class TwinKernel:
    """One kernel's twin. Offsets and sizes are bytes of its parameter space.

    variables: module variables passed by address, in the order of the probe block. site_lists: where probes went, of
    the kernel and then of each function with a copy. own_arithmetic:
    floating-point instructions that the probes add, by SASS mnemonic. version: the ``.version`` that the twin
    needs. statements: what of the module it needs. statement: the original. header: characters of probed_text
    before the body. bodies: its body and those of the functions that it calls. calls: names of the functions that it
    calls, directly or not. elsewhere: what it needs of the modules that its own is linked with, by their number.
    self_contained: whether it names nothing of its module that is in global or constant memory, and no function.
    left_out: instructions that were to be probed and are not. copies: of functions of its module, with probes in
    them; copies_elsewhere: of functions of other modules, by their number.
    """

    name: str
    twin_name: str
    parameters: tuple[Parameter, ...]
    block_offset: int
    block_size: int
    variables: tuple[str, ...]
    site_lists: tuple[SiteList, ...]
    own_arithmetic: dict[str, int]
    original_text: str
    probed_text: str
    version: tuple[int, int]
    statements: frozenset[ModuleStatement]
    statement: ModuleStatement
    header: int
    bodies: tuple[Body, ...]
    calls: tuple[str, ...] = ()
    elsewhere: Mapping[int, frozenset[ModuleStatement]] = field(default_factory=dict)
    self_contained: bool = False
    left_out: tuple[LeftOut, ...] = ()
    copies: tuple[FunctionCopy, ...] = ()
    copies_elsewhere: Mapping[int, tuple[FunctionCopy, ...]] = field(default_factory=dict)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where probes went."""
        return tuple(site for one in self.site_lists for site in one.sites)

    @property
    def all_copies(self) -> tuple[FunctionCopy, ...]:
        """Those of its own module and of others."""
        return (*self.copies, *(copy for copies in self.copies_elsewhere.values() for copy in copies))

    def text(self, cap: int | None = None) -> str:
        """The kernel's twin as it is assembled.

        cap: registers of a thread that it gets at most, None as many as the assembler likes. ``.maxnreg`` goes with
        every other directive, and takes the place of the kernel's own.
        """
        if cap is None:
            return self.probed_text
        head, body = self.probed_text[: self.header], self.probed_text[self.header :]
        if _MAXNREG.search(head):
            return _MAXNREG.sub(f".maxnreg {cap}", head) + body
        return f"{head.rstrip()}\n.maxnreg {cap}\n{body}"

    def whole_text(self, cap: int | None = None) -> str:
        """The twin's text, after those of the functions that have copies for it. cap: as for ``text``."""
        return "\n\n".join([*(copy.text for copy in self.all_copies), self.text(cap)])

    @cached_property
    def contractible(self) -> bool:
        """Some product may be fused with a sum; where not, inserted code cannot change what comes out."""
        if len(self.bodies) == 1:
            return may_contract(self.bodies[0])
        # Called functions may be inlined; then a product and its sum can come from either side of the call.
        return any(has_product(body) for body in self.bodies)

    @cached_property
    def loose(self) -> str | None:
        """A sum of which the text does not say what it is fused with, in words; see ``contraction.loose_sums``."""
        for body in self.bodies:
            for position in loose_sums(body):
                return body.statement(body.index_at(position)).text.strip()
        return None


@dataclass(frozen=True)
class TwinModule:
    """The twins of a module's kernels, and the kernels that got none."""

    module: Module
    kernels: tuple[TwinKernel, ...]
    skipped: tuple[SkippedKernel, ...]

    def render(
        self, names: Collection[str] | None = None, max_registers: Mapping[str, int] | None = None
    ) -> str:
        """A complete PTX module of the named kernels' twins (all by default).

        names: the originals' names. max_registers: register cap by the original's name.
        """
        chosen = [kernel for kernel in self.kernels if names is None or kernel.name in names]
        return self.render_unit(chosen, (), max_registers)

    def render_unit(
        self,
        chosen: Collection[TwinKernel],
        statements: Iterable[ModuleStatement],
        max_registers: Mapping[str, int] | None = None,
        *,
        copies: Iterable[FunctionCopy] = (),
        external: Iterable[FunctionCopy] = (),
    ) -> str:
        """A complete PTX module of these twins of its own, and of statements that twins of other modules need.

        copies: of its functions, for twins of other modules. external: copies of other modules that it calls.
        """
        caps = max_registers or {}
        twins = {kernel.statement: kernel for kernel in chosen}
        copied = frozenset(statements).union(*(kernel.statements for kernel in chosen))
        module = self.module
        version = max((kernel.version for kernel in chosen), default=module.version or (0, 0))
        pieces = [
            f".version {version[0]}.{version[1]}\n.target {_target(module)}\n"
            f".address_size {module.address_size}\n\n"
        ]
        copied_functions: dict[ModuleStatement, list[FunctionCopy]] = {}
        for copy in (*(copy for kernel in chosen for copy in kernel.copies), *copies):
            copied_functions.setdefault(copy.statement, []).append(copy)
            pieces.append(copy.prototype + "\n")
        pieces += [copy.external_prototype + "\n" for copy in external]
        has_files = False
        for statement in module.statements:
            twin = twins.get(statement)
            if twin is not None:
                pieces.append(twin.text(caps.get(twin.name)) + "\n\n")
            elif statement in copied_functions:
                pieces += [copy.text + "\n\n" for copy in copied_functions[statement]]
            elif statement in copied or statement.kind is Kind.FILE or statement.kind is Kind.PRAGMA:
                has_files = has_files or statement.kind is Kind.FILE
                pieces.append(module.source(statement) + "\n")
        return without_locations("".join(pieces), keep=has_files)


def _target(module: Module) -> str:
    """The target without ``debug``: ptxas wants debug sections with it, and a twin has none."""
    return ", ".join(part for part in module.target.split(",") if part != "debug")
