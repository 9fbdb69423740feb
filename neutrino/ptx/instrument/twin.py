"""What a twin is: a kernel's text with probes in it, what the host has to know of it, and what it needs to be a module.

A twin is the kernel's own text with a list of edits: a new name, one more parameter, private registers at the
entry, inserted code at sites and ends, and module variables replaced by registers that hold their addresses.
Nothing else of the kernel changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import Probe
from neutrino.ptx.analysis.contraction import has_product, loose_sums, may_contract
from neutrino.ptx.analysis.flow_graph import may_wait
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.analysis.surroundings import Locations
from neutrino.ptx.instrument.module_parts import FunctionCopy
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.module import Kind, Module, ModuleStatement, Parameter, blank, without_locations
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import LeftOut, Site, SkippedKernel, Twin


class Shown(NamedTuple):
    """An instruction as manifests show it: line, text, source are ``line``, ``instruction``, ``source`` of a Site."""

    line: int
    text: str
    source: str = ""

    @classmethod
    def of(cls, statement: Statement, module: Module, places: Locations) -> Shown:
        """Return how messages show a statement of a module's body: its line, text and source line.

        places: the source lines of the body.
        """
        source = places.place(statement.position) if places else None
        return cls(module.line(statement.start), " ".join(statement.text.split()), str(source) if source else "")


class SiteList:
    """Where probes went in one kernel or function, for manifests and listings. There may be many sites: their lines and
    texts are made only when ``sites`` is first asked for.

    function: its name. module, places: its module, and the source lines of its body. left_out: instructions that probes
    match and do not go to.
    """

    def __init__(self, function: str, module: Module, places: Locations) -> None:
        """Begin the list of places where probes went in a kernel or function. function: its name. places: its source
        lines."""
        self._function = function
        self._module = module
        self._places = places
        # From `add`: the instruction, its probes, and what SITE is there, None at entries and ends.
        self._added: list[tuple[Statement | Shown, Sequence[Probe], int | None]] = []
        # From `add_hits`: hits, the indices in this sequence of those that `add` was called for or that have no site,
        # and how many probes the other hits have together.
        self._hits: Sequence[Hit] = ()
        self._except_at: frozenset[int] = frozenset()
        self._probes_of_hits = 0
        self.left_out: list[LeftOut] = []

    def __bool__(self) -> bool:
        """Whether any probe went into the kernel or function."""
        return bool(self._added or self._probes_of_hits)

    def add(self, where: Statement | Shown, probes: Sequence[Probe], number: int | None = None) -> None:
        """List an instruction or place as a site of the probes that went there. number: of an instruction, what SITE is
        there."""
        if probes:
            self._added.append((where, probes, number))

    def add_hits(self, hits: Sequence[Hit], except_at: Sequence[int], count: int) -> None:
        """List many matched instructions as sites of all their probes at once. Called at most once.

        except_at: the indices in hits of those to leave out. count: how many probes the others have together.
        """
        self._hits, self._except_at, self._probes_of_hits = hits, frozenset(except_at), count

    def leave_out(self, shown: Shown, probes: Iterable[Probe], reason: str) -> None:
        """Note that probes match an instruction and yet do not go there, with the reason."""
        self.left_out += [
            LeftOut(probe.name, probe.tracepoint.text, shown.line, shown.text, shown.source, reason, self._function)
            for probe in probes
        ]

    @property
    def count(self) -> int:
        """How many sites (pairs of a probe and a place where its code went) there are, without making the list of them.
        """
        return self._probes_of_hits + sum(len(probes) for _, probes, _ in self._added)

    @lazy
    def sites(self) -> list[Site]:
        """All sites (a probe and a place where its code went), sorted by line; those on one line in the order of the
        text."""
        sites = []
        others = (self._hits[at] for at in range(len(self._hits)) if at not in self._except_at)
        of_hits = ((hit.statement, hit.probes, hit.number) for hit in others)
        for where, probes, number in (*self._added, *of_hits):
            shown = where if isinstance(where, Shown) else Shown.of(where, self._module, self._places)
            sites += [
                Site(probe.name, probe.tracepoint.text, shown.line, shown.text, number, shown.source, self._function)
                for probe in probes
            ]
        # Back in text order: instructions by their numbers, then where the body ends, which has no number.
        sites.sort(key=lambda site: (site.number is None, site.number or 0))
        # A stable sort: on one line that order stays.
        return sorted(sites, key=lambda site: site.line)


_MAXNREG = re.compile(r"\.maxnreg\s+(\w+)", re.ASCII)
LONG = 20_000
"""Lines of a twin from which on one is warned of ptxas, which takes some 10 s for them, and longer than in proportion
for more."""
_REGISTERS = 65_536
"""Of a multiprocessor; as many as a block may have."""
_MOST_THREADS = 1024
"""Of a block."""


@dataclass(frozen=True)
class TwinKernel:
    """One kernel's twin, a ``Twin``. Offsets and sizes are bytes of its parameter space.

    name, original_text, statement: of the original kernel; twin_name, probed_text: of the twin. maps: the probes', with
    cap 0 for logs that nothing in the twin saves to. variables: module
    variables passed by address, in the order of the probe block. site_lists: where probes went, of the kernel and then
    of each function with a copy. own_arithmetic: how many floating-point instructions the probes add, by SASS mnemonic.
    version: the ``.version`` that the twin needs. statements: of the module, to copy with the twin. header: characters
    of probed_text before the body. bodies: the original's body and those of the functions that it calls. calls: names
    of the functions that it calls, directly or not. elsewhere: statements to copy of the modules that its own is linked
    with, by their number. self_contained: whether it names nothing of its module that is in global or constant memory,
    and no function. left_out: instructions that were to be probed and are not. copies: of functions of its module, with
    probes in them; copies_elsewhere: of functions of other modules, by the module's number. original_bodies: the bodies
    of the original where those of a rewritten twin take their place, else (). probes_left_out: those of the set that
    cannot be placed in this kernel.
    """

    name: str
    twin_name: str
    parameters: tuple[Parameter, ...]
    block_offset: int
    block_size: int
    maps: tuple[Map, ...]
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
    original_bodies: tuple[Body, ...] = ()
    probes_left_out: tuple[ProbeLeftOut, ...] = ()

    @lazy
    def sites(self) -> tuple[Site, ...]:
        """The sites (places where probes went), of the kernel and of its functions' copies."""
        return tuple(site for one in self.site_lists for site in one.sites)

    @property
    def lanes(self) -> int:
        """How many lanes (threads) a warp of the target has."""
        return WARP_LANES

    @property
    def all_copies(self) -> tuple[FunctionCopy, ...]:
        """The copies of functions, of any module, that the kernel with probes calls in place of the originals."""
        return (*self.copies, *(copy for copies in self.copies_elsewhere.values() for copy in copies))

    @lazy
    def may_wait(self) -> bool:
        """Whether a thread of the original kernel may wait for threads of another block."""
        kernel, *functions = self.original_bodies or self.bodies
        return bool(functions) or "cluster" in self.original_text or may_wait(kernel)

    def text(self, cap: int | None = None) -> str:
        """Return the text of the kernel's twin (the copy with probes) as it is assembled.

        cap: the most registers per thread that it may have, as a ``.maxnreg`` directive, which takes the place of the
        kernel's own; None leaves the text as it is. That directive can be combined with any other.
        """
        if cap is None:
            return self.probed_text
        # The original may have the directive already; another one goes after all others, right before the body.
        head, body = self.probed_text[: self.header], self.probed_text[self.header :]
        if _MAXNREG.search(head):
            return _MAXNREG.sub(f".maxnreg {cap}", head) + body
        return f"{head.rstrip()}\n.maxnreg {cap}\n{body}"

    def cap_within(self, limit: int) -> int | None:
        """Return the cap for ``text`` that limits the twin to ``limit`` registers per thread; None if no cap may be
        set.

        It allows no more than the kernel's own directives do: ``ptxas`` lets ``.maxnreg`` win over what ``.maxntid``
        implies, and a block of as many threads could not be launched then. A kernel that moves registers between its
        warps (``setmaxnreg``) gets none: with fewer at its start than it counts on it would wait for ever. None also if
        its own cap cannot be read.
        """
        if "setmaxnreg" in self.original_text:
            return None
        caps = [limit]
        # Each directive with what follows it up to the next one.
        for directive in blank(self.probed_text[: self.header]).split(".")[1:]:
            word, *numbers = directive.replace(",", " ").split()
            if word in {"maxntid", "reqntid"}:
                # Where the numbers cannot be read, for as many threads as there can be.
                extents = [_decimal(text) or _MOST_THREADS for text in numbers[:3] or ("",)]
                caps.append(registers_of_blocks(math.prod(extents)))
            elif word == "maxnreg" and numbers:
                number = _decimal(numbers[0])
                if number is None:
                    return None
                caps.append(number)
        return min(caps)

    def whole_text(self, cap: int | None = None) -> str:
        """Return the texts of the functions' copies that the twin calls, then its own. cap: see ``text``."""
        return "\n\n".join([*(copy.text for copy in self.all_copies), self.text(cap)])

    def files(self, cap: int | None) -> dict[str, bytes]:
        """Return the PTX of the original and of the instrumented kernel, by file name, for users to look at. cap: see
        ``text``."""
        return {
            "original.ptx": self.original_text.encode("latin-1"), "probed.ptx": self.whole_text(cap).encode("latin-1"),
        }  # fmt: skip

    @lazy
    def lines(self) -> int:
        """How many lines the twin has, with the copies of functions that it calls."""
        return self.probed_text.count("\n") + sum(copy.text.count("\n") for copy in self.all_copies)

    @property
    def length_warning(self) -> str:
        """A warning that a very long instrumented kernel may take minutes to assemble; empty for others."""
        if self.lines < LONG:
            return ""
        before = self.original_text.count("\n")
        return f"the twin has {self.lines:,} lines, its original {before:,}: ptxas may take minutes"

    @lazy
    def contractible(self) -> bool:
        """Whether ptxas may fuse some product with a sum; if not, inserted code cannot change any result."""
        if len(self.bodies) == 1:
            return may_contract(self.bodies[0])
        # Called functions may be inlined; then a product and its sum can come from either side of the call.
        return any(has_product(body) for body in self.bodies)

    @lazy
    def loose(self) -> str | None:
        """The first sum, as text, that ptxas (NVIDIA's assembler) may fuse with either of two products; None without
        one.

        With one the text does not say what the kernel computes. See ``contraction.loose_sums``.
        """
        for body in self.bodies:
            for position in loose_sums(body):
                return body.statement(body.index_at(position)).text.strip()
        return None


def own_twin(twin: Twin) -> TwinKernel:
    """Return a twin (instrumented kernel) as one of PTX, with its type. Raises TypeError for one of another target."""
    if not isinstance(twin, TwinKernel):
        raise TypeError(f"{twin.twin_name} is no twin in PTX")
    return twin


@dataclass(frozen=True)
class TwinModule:
    """The twins of a module's kernels, and the kernels that got none."""

    module: Module
    kernels: tuple[TwinKernel, ...]
    skipped: tuple[SkippedKernel, ...]

    def render(self, names: Collection[str] | None = None, max_registers: Mapping[str, int] | None = None) -> str:
        """Return a complete PTX module of the named kernels' twins (all by default).

        names: the originals' names. max_registers: the most registers per thread, by the original's name.
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
        """Return a complete PTX module with these twins (instrumented kernels) and all that they need of this module.

        It is in the order of the module's text. chosen: twins of this module's kernels. statements: of this module,
        that twins of other modules need. max_registers: see ``render``. copies: copies of this module's functions for
        twins of other modules. external: copies of other modules' functions that code of this module calls, to be
        declared.
        """
        caps = max_registers or {}
        # By the statement that each takes the place of; and the statements to copy as they are.
        twins = {kernel.statement: kernel for kernel in chosen}
        copied = frozenset(statements).union(*(kernel.statements for kernel in chosen))
        module = self.module
        version = max((kernel.version for kernel in chosen), default=module.version or (0, 0))
        pieces = [
            f".version {version[0]}.{version[1]}\n.target {_target(module)}\n.address_size {module.address_size}\n\n"
        ]
        # Copies may call each other in any order: all of them are declared first.
        copied_functions: dict[ModuleStatement, list[FunctionCopy]] = {}
        for copy in (*(copy for kernel in chosen for copy in kernel.copies), *copies):
            copied_functions.setdefault(copy.statement, []).append(copy)
            pieces.append(copy.prototype + "\n")
        pieces += [copy.external_prototype + "\n" for copy in external]
        has_files = False
        # In the order of the original, so that what is declared there before its use is here, too.
        for statement in module.statements:
            twin = twins.get(statement)
            if twin is not None:
                pieces.append(twin.text(caps.get(twin.name)) + "\n\n")
            elif statement in copied_functions:
                pieces += [copy.text + "\n\n" for copy in copied_functions[statement]]
            elif statement in copied or statement.kind is Kind.FILE or statement.kind is Kind.PRAGMA:
                has_files = has_files or statement.kind is Kind.FILE
                pieces.append(module.source(statement) + "\n")
        # A ``.loc`` refers to a ``.file`` by its number: without any, they are removed.
        return without_locations("".join(pieces), keep=has_files)


def registers_of_blocks(threads: int) -> int:
    """The most registers per thread with which a block of so many threads can be launched."""
    warps = -(-min(max(threads, 1), _MOST_THREADS) // 32)
    return _REGISTERS // (32 * warps) // 8 * 8


def _decimal(text: str) -> int | None:
    """The value of a decimal number from 1; None for any other text, as a hexadecimal or octal number."""
    return int(text) if text.isdecimal() and text[0] != "0" else None


def _target(module: Module) -> str:
    """The module's ``.target`` without ``debug``: with it ptxas wants debug sections, and an instrumented kernel has
    none."""
    return ", ".join(part for part in module.target.split(",") if part != "debug")
