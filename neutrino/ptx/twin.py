"""From a module and a probe set to the twins' text.

A twin is the kernel's own text with a list of edits: a new name, one parameter more, private registers at the
entry, inserted code at sites and ends, and module variables replaced by registers that hold their addresses.
Nothing else of the kernel changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from neutrino.errors import PtxError
from neutrino.probing.layout import Reason, align_up, block_size, has_counts
from neutrino.probing.model import Lanes, Level, MapKind, Probe, ProbeSet, Save, ScalarType, Snippet
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx import opcodes
from neutrino.ptx.additions import Additions, Parted, Run, Runs, amounts, with_amounts
from neutrino.ptx.body import Body
from neutrino.ptx.contraction import PRODUCT, Contractions, has_product, may_contract
from neutrino.ptx.emission import HELPER, Emission, Guard, Scratch, UnsupportedError, Value, bits
from neutrino.ptx.functions import (
    FunctionCopy,
    State,
    around_call,
    concerned,
    copy_header,
    copy_name,
    pass_address,
    reach,
)
from neutrino.ptx.instruction import REGISTER, Instruction, read_instruction
from neutrino.ptx.linkage import Call, Callee, Linkage, Needs, ObstacleError
from neutrino.ptx.matching import Found, Hit, matcher
from neutrino.ptx.module import Kind, Module, Parameter, Statement, Variable
from neutrino.ptx.near_misses import near_misses
from neutrino.ptx.operands import SiteOperands
from neutrino.ptx.snippet_forms import is_collective
from neutrino.ptx.source import without_locations

SUFFIX = "__neutrino"
BLOCK_NAME = "__neutrino_block"
_BLOCK_ALIGN = 8

# PTX ISA, "Kernel Function Parameters": bytes of parameter space, by version and architecture.
_PARAMETERS_SMALL = 4352
_PARAMETERS_LARGE = 32764
_LARGE_VERSION = (8, 1)
_LARGE_ARCHITECTURE = 70

_MAXNREG = re.compile(r"\.maxnreg\s+\d+", re.ASCII)
_LOAD_CONST = re.compile(
    r"(?<=[;{}:\s])ld(?:\.[\w:]+)*?(?P<space>\.const)\b(?P<bank>\s*\[\d+\]\s*\.)?", re.ASCII
)
_TO_CONST = re.compile(r"(?<=[;{}:\s])cvta(?:\.to)?(?P<space>\.const)\b", re.ASCII)
_TO_GENERIC = re.compile(r"(?<=[;{}:\s])cvta\.const\b", re.ASCII)
_ASKS_CONST = re.compile(r"(?<=[;{}:\s])isspacep\.const\b", re.ASCII)
_CONST_POINTER = re.compile(r"\.ptr\s*\.const\b", re.ASCII)
_ENDS_BODY = re.compile(r"(?:ret|exit|trap|bra)\b", re.ASCII)
_DECLARATIONS = re.compile(r"(?:\s*\.(?:reg|shared|local|param|pragma)\b[^;{}]*;)*", re.ASCII)
_SPECIAL = re.compile(
    rf"(?:{'|'.join(sorted({re.escape(name.partition('.')[0]) for name in SPECIAL_REGISTERS}))})(?![\w$])", re.ASCII
)
_STATEMENT = re.compile(r"(?<=[;{}:\s])((?:@\s*!?\s*[\w$%]+\s+)?[a-z]\w*(?:\.[\w:]+)*\b[^;:]*)(?=;)", re.ASCII)
_MOVES_ADDRESSES = frozenset({"mov", "add", "sub", "mad", "selp"})
_MOVES = ("mov.u64", "mov.b64", "mov.s64")


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

    variables: module variables passed by address, in the order of the probe block. own_arithmetic:
    floating-point instructions that the probes add, by SASS mnemonic. version: the ``.version`` that the twin
    needs. statements: what of the module it needs. statement: the original. header: characters of probed_text
    before the body. bodies: its body and those of the functions that it calls. can_cap: ``render`` may put the
    twin under a register cap (``.maxnreg`` goes with every other directive). calls: names of the functions that it
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
    sites: tuple[Site, ...]
    own_arithmetic: dict[str, int]
    original_text: str
    probed_text: str
    version: tuple[int, int]
    statements: frozenset[Statement]
    statement: Statement
    header: int
    bodies: tuple[Body, ...]
    can_cap: bool = True
    calls: tuple[str, ...] = ()
    elsewhere: Mapping[int, frozenset[Statement]] = field(default_factory=dict)
    self_contained: bool = False
    left_out: tuple[LeftOut, ...] = ()
    copies: tuple[FunctionCopy, ...] = ()
    copies_elsewhere: Mapping[int, tuple[FunctionCopy, ...]] = field(default_factory=dict)

    @property
    def all_copies(self) -> tuple[FunctionCopy, ...]:
        """Those of its own module and of others."""
        return (*self.copies, *(copy for copies in self.copies_elsewhere.values() for copy in copies))

    @property
    def whole_text(self) -> str:
        """The twin's text behind those of the functions that have copies for it."""
        return "\n\n".join([*(copy.text for copy in self.all_copies), self.probed_text])

    @cached_property
    def contractible(self) -> bool:
        """Some product may be fused with a sum; where not, inserted code cannot change what comes out."""
        if len(self.bodies) == 1:
            return may_contract(self.bodies[0].code, self.bodies[0].start, self.bodies[0].end)
        # Called functions may be inlined; then a product and its sum can come from either side of the call.
        return any(has_product(body.code, body.start, body.end) for body in self.bodies)

    def capped_text(self, registers: int) -> str:
        """The twin under ``.maxnreg``. header: length of the text before the body."""
        head, body = self.probed_text[: self.header], self.probed_text[self.header :]
        if _MAXNREG.search(head):
            return _MAXNREG.sub(f".maxnreg {registers}", head) + body
        return f"{head.rstrip()}\n.maxnreg {registers}\n{body}"


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
        statements: Iterable[Statement],
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
        copied_functions: dict[Statement, list[FunctionCopy]] = {}
        for copy in (*(copy for kernel in chosen for copy in kernel.copies), *copies):
            copied_functions.setdefault(copy.statement, []).append(copy)
            pieces.append(copy.prototype + "\n")
        pieces += [copy.external_prototype + "\n" for copy in external]
        has_files = False
        for statement in module.statements:
            twin = twins.get(statement)
            if twin is not None:
                text = twin.capped_text(caps[twin.name]) if twin.name in caps else twin.probed_text
                pieces.append(text + "\n\n")
            elif statement in copied_functions:
                pieces += [copy.text + "\n\n" for copy in copied_functions[statement]]
            elif statement in copied or statement.kind in {Kind.FILE, Kind.PRAGMA}:
                has_files = has_files or statement.kind is Kind.FILE
                pieces.append(module.source(statement) + "\n")
        return without_locations("".join(pieces), keep=has_files)


def probe_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> TwinModule:
    """Write the twins of a module's kernels.

    names: only these kernels, the others are left out without a word. version: the highest ``.version`` that
    may be raised to where the probe block needs parameter space; None: the module's own. linkage: of a module that
    is linked with others. demangle: gives a function's name as people write it, for ``func:``. Raises PtxError when
    the text has no ``.version`` or no ``.target sm_``.
    """
    return _ModuleProber(module, probes, version, linkage or Linkage(module), demangle).run(names)


def _target(module: Module) -> str:
    """The target without ``debug``: ptxas wants debug sections with it, and a twin has none."""
    return ", ".join(part for part in module.target.split(",") if part != "debug")


def _places(code: str, text: str, body: Body) -> Iterator[int]:
    at = code.find(text, body.start, body.end)
    while at >= 0:
        yield at
        at = code.find(text, at + 1, body.end)


def _register_of(guard: str) -> str:
    return guard.strip("@! \t\r\n\v\f")


def _check_constant_space(callee: Callee) -> None:
    """Refuse code that takes addresses in the constant space from elsewhere: what the twin names there lies in global
    memory. Raises UnsupportedError."""
    function, code = callee.function, callee.module.code
    if function.parameters and _CONST_POINTER.search(code, *function.parameters):
        raise UnsupportedError(
            f"{function.name} takes a pointer into the constant space, beside constant variables that move"
        )
    if any(variable.space == "const" for variable in callee.variables):
        return
    for pattern in (_LOAD_CONST, _TO_CONST, _ASKS_CONST):
        found = pattern.search(code, callee.body.start, callee.body.end)
        if found is not None:
            shown = " ".join(code[found.start() : code.find(";", found.start())].split())
            raise UnsupportedError(
                f"line {callee.module.line(found.start())}: {shown!r} in {function.name} may be about a constant "
                "variable that it does not name, which lies elsewhere for the twin"
            )


def _white_space(module: Module) -> list[str]:
    return [space for space in " \t\n\r\v\f" if space in module.code]


class _SkipError(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass
class _Edits:
    """Replacements and insertions in the module's text, by position."""

    found: list[tuple[int, int, str]] = field(default_factory=list)

    def insert(self, at: int, text: str) -> None:
        if text:
            self.found.append((at, at, text))

    def replace(self, start: int, end: int, text: str) -> None:
        self.found.append((start, end, text))

    def apply(self, text: str, start: int, end: int) -> str:
        """The text from start to end with the edits in it; those at one position keep their order."""
        pieces = []
        at = start
        for begin, stop, new in sorted(self.found, key=lambda edit: edit[0]):
            pieces += [text[at:begin], new]
            at = stop
        pieces.append(text[at:end])
        return "".join(pieces)


class _ModuleProber:
    def __init__(
        self,
        module: Module,
        probes: ProbeSet,
        version: tuple[int, int] | None,
        linkage: Linkage,
        demangle: Callable[[str], str] | None,
    ) -> None:
        if module.version is None or module.architecture is None:
            raise PtxError(1, module.text[:80], "no .version, or no .target sm_; not a PTX module for a GPU")
        self.module = module
        self.probes = probes
        self.version = module.version
        self.highest = max(version or module.version, module.version)
        self.architecture = module.architecture
        self.linkage = linkage
        self.prefix = "%neutrino_"
        while self.prefix in module.text:
            self.prefix = self.prefix[:-1] + "x_"
        self.block = BLOCK_NAME
        while self.block in module.text:
            self.block += "_"
        self.state = f"__{self.prefix[1:]}state"
        while self.state in module.text:
            self.state += "_"
        # What functions hold, with sites numbered from 0: several kernels may call one.
        self.found_in: dict[tuple[int, str], Found] = {}
        self.label = f"$L__{self.prefix[1:]}"
        self.matcher = matcher(probes.probes, demangle)
        self.additions = Additions(self.matcher.probes)
        self.order = {id(probe): index for index, probe in enumerate(self.matcher.probes)}
        self.white_space = _white_space(module)
        self._clear: dict[int, bool] = {}
        self._reads: dict[int, bool] = {}
        self._collective: dict[int, bool] = {}
        self.has_end_work = any(probe.tracepoint.is_kernel and probe.after for probe in probes.probes) or any(
            isinstance(statement, Save) and (statement.map.kind is MapKind.SUM or has_counts(statement.map))
            for probe in probes.probes
            for snippet in (probe.before, probe.after)
            if snippet
            for statement in snippet.statements
        )

    def run(self, names: Collection[str] | None) -> TwinModule:
        kernels = []
        skipped = []
        for entry in self.module.entries:
            if entry.body is None or (names is not None and entry.name not in names):
                continue
            try:
                if self.obstacle is not None:
                    raise _SkipError(Reason.UNSUPPORTED, self.obstacle)
                kernels.append(_KernelProber(self, self.linkage.needs(entry)).run())
            except _SkipError as skip:
                skipped.append(SkippedKernel(entry.name, skip.reason, skip.detail))
            except (ObstacleError, UnsupportedError, PtxError) as error:
                skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, str(error)))
        return TwinModule(self.module, tuple(kernels), tuple(skipped))

    @cached_property
    def obstacle(self) -> str | None:
        """What makes every kernel of the module impossible."""
        if self.module.address_size != 64:
            return f".address_size is {self.module.address_size}, not 64"
        for statement in self.module.statements:
            known = statement in {directive for _, directive in self.linkage.aliases.values()}
            if statement.kind is Kind.UNKNOWN or (statement.kind is Kind.ALIAS and not known):
                line = self.module.line(statement.start)
                source = self.module.source(statement).strip().split("\n")[0]
                return f"line {line}: {source!r} at module level is not supported"
        for entry in self.probes.maps:
            refused = [field.type.value for field in entry.fields if field.type not in _SUMMED]
            if entry.kind is MapKind.SUM and refused:
                return f"map {entry.name}: sums over {refused[0]} are not supported"
        return None

    def check_text(self, module: Module, body: Body) -> None:
        """Refuse what ptxas reads otherwise than we do. Raises UnsupportedError."""
        code = module.code
        for space in self.white_space if module is self.module else _white_space(module):
            for at in _places(code, f"{space}.", body):
                if code.endswith(".reg", 0, at) or code.startswith(".reg", at + 1):
                    continue
                statement = body.statement_start(at + 1)
                if code[statement] != "." and code[at + 2].isalpha():
                    line = module.line(statement)
                    raise UnsupportedError(f"line {line}: white space within an opcode")
        for at in _places(code, ".reg", body):
            special = _SPECIAL.search(code, at, code.find(";", at))
            if special is not None:
                line = module.line(at)
                raise UnsupportedError(f"line {line}: a register of its own is called {special[0]}")

    def must_be_clear(self, probe: Probe) -> bool:
        """It holds code that must not stand between a product and its sum."""
        known = self._clear.get(id(probe))
        if known is None:
            snippets = [snippet for snippet in (probe.before, probe.after) if snippet]
            known = any(self.is_collective(snippet) for snippet in snippets) or any(
                isinstance(statement, Save) and statement.map.kind is MapKind.ARRAY
                for snippet in snippets
                for statement in snippet.statements
            )
            self._clear[id(probe)] = known
        return known

    def reads_operands(self, probe: Probe) -> bool:
        """It names an operand of its instructions."""
        known = self._reads.get(id(probe))
        if known is None:
            known = any(
                match["name"].startswith(("OUT", "IN", "ADDR"))
                for snippet in (probe.before, probe.after) if snippet
                for statement in snippet.statements
                for text in (statement.operands if isinstance(statement, Save) else (statement.text,))
                for match in HELPER.finditer(text)
            )  # fmt: skip
            self._reads[id(probe)] = known
        return known

    def is_collective(self, snippet: Snippet) -> bool:
        """It holds an instruction between lanes, which ends a basic block."""
        known = self._collective.get(id(snippet))
        if known is None:
            known = any(
                not isinstance(statement, Save) and is_collective(statement.text) for statement in snippet.statements
            )
            self._collective[id(snippet)] = known
        return known

    def in_order(self, probes: Iterable[Probe]) -> list[Probe]:
        """Each probe once, in file order."""
        return sorted({id(probe): probe for probe in probes}.values(), key=lambda probe: self.order[id(probe)])


_SUMMED = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64})


class _Place(NamedTuple):
    """Where the code of one instruction's probes goes: before start and behind end. Else as of a ``Site``."""

    hit: Hit
    start: int
    end: int
    line: int
    shown: str
    source: str


@dataclass(frozen=True)
class _Repeated:
    """Code before and behind an instruction that may stand at others too. stores: where stores may stand."""

    before: str
    behind: str
    stores: bool


class _LineOperands:
    """Answers for the helpers at a source line, which has a number and lanes, and no operands."""

    def __init__(self, number: int | None, scratch: Scratch) -> None:
        self._number = number
        self._scratch = scratch
        self._lanes: Value | None = None
        self.here: list[str] = []

    def begin_snippet(self, guard: Guard | None) -> None:
        """Another snippet begins, which stands without a guard."""
        self._lanes = None

    def __call__(self, helper: str, element: str | None) -> Value:
        if helper == "SITE" and self._number is not None:
            return Value(str(self._number), None)
        if helper != "LANES":
            raise UnsupportedError(f"{helper} has no meaning at a source line")
        if self._lanes is None:
            self._lanes = Value(self._scratch.take("b32"), "b32")
            self.here.append(f"activemask.b32 {self._lanes.text};")
        return self._lanes


class _KernelProber:
    """Writes one twin."""

    def __init__(self, owner: _ModuleProber, needs: Needs, callee: Callee | None = None) -> None:
        self.owner = owner
        self.needs = needs
        self.callee = callee = callee or needs.kernel
        self.module = callee.module
        self.code = callee.module.code
        self.entry = callee.function
        self.body = callee.body
        self.found: Found | None = None
        self.edits = _Edits()
        self.head_edits = _Edits()
        self.sites: list[Site] = []
        self.emission = self._emission()
        # Where the state is that functions reach, and the register with its address.
        self.state = owner.state
        self.state_address = f"{owner.prefix}state"
        self.layout = State(0)
        self.state_declarations: list[str] = []
        self.state_setup: list[str] = []
        self.opening: list[str] = []
        self.labels = 0
        # Registers that have their values at ends of the thread alone.
        self.loaded_late: set[str] = set()
        self.variables: dict[str, str] = {}
        self.points_to_constants = False
        # Code of sites that depends on nothing but the opcode, the guard, the probes and the scratch registers in use.
        self.repeated: dict[tuple[str, str | None, int, tuple[int, ...]], _Repeated] = {}
        self.amounts: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        self.left_out: list[LeftOut] = []
        around = owner.in_order((
            *(probe for probe in owner.matcher.probes if probe.tracepoint.is_kernel),
            *owner.matcher.function_probes(self.entry.name),
        ))  # fmt: skip
        self.kernel_before = [(probe, probe.before) for probe in around if probe.before]
        self.kernel_after = [(probe, probe.after) for probe in around if probe.after]
        self.copies: dict[int, str] = {}
        self.has_calls = self.code.find("call", self.body.start, self.body.end) >= 0

    def _emission(self) -> Emission:
        return Emission(self.owner.probes, self.owner.prefix, self.owner.block, self.owner.architecture)

    @cached_property
    def runs(self) -> Runs:
        """Sites in a row where constants are added."""
        return Runs(self.body)

    @cached_property
    def contractions(self) -> Contractions:
        return Contractions(self.code, self.body.start, self.body.end)

    def run(self) -> TwinKernel:
        owner = self.owner
        twin_name = self.entry.name + SUFFIX
        if twin_name in self.module.symbols:
            raise _SkipError(Reason.UNSUPPORTED, f"the module has a {twin_name} already")
        needs = self.needs
        for callee in (self.callee, *needs.functions):
            owner.check_text(callee.module, callee.body)
        found = self.found = self._candidates()
        functions = self._functions()
        bodies = (self, *functions)
        at_all = bool(self.kernel_before or self.kernel_after) or any(body.is_tracepoint for body in functions)
        if not at_all and not any(body.found and body.found.hits for body in bodies):
            patterns = [pattern for probe in owner.probes.probes for pattern in probe.tracepoint.patterns]
            near = near_misses(self.code, self.body, patterns)
            raise _SkipError(
                Reason.NO_SITE,
                "no instruction matches "
                + ", ".join(sorted({probe.tracepoint.text for probe in owner.probes.probes}))
                + (f", but for the type: {', '.join(near)}" if near else "")
                + (": the text has no line information" if found.lacks_lines else ""),
            )
        parameters, used = self.module.parameter_layout(self.entry)
        size = block_size(len(owner.probes.maps), len(needs.by_address))
        offset = align_up(used, _BLOCK_ALIGN)
        version = self._version(offset + size)
        order = {variable.name: index for index, variable in enumerate(needs.by_address)}
        for body in bodies:
            body._pass_by_address(order)
        if any(variable.space == "const" for variable in needs.by_address):
            for callee in (self.callee, *needs.functions):
                _check_constant_space(callee)
        for body in bodies:
            body.points_to_constants = any(other.points_to_constants for other in bodies)
            body._note_snippets()
        version = max(version, *(body.emission.version for body in bodies))
        if version > owner.highest:
            raise UnsupportedError(f"a probe needs PTX ISA {version[0]}.{version[1]}, which the driver does not take")
        for body in bodies:
            for hit in body.found.hits if body.found else ():
                body._site(hit)
            body.write_runs()
        self.layout = State(size)
        for function in functions:
            function.run_tracepoints()
        left_out = [entry for body in bodies for entry in body.left_out]
        if not at_all and not any(body.sites for body in bodies):
            first = left_out[0]
            raise _SkipError(Reason.NO_SITE, f"line {first.line}: {first.instruction!r}: {first.reason}")
        self._close_ends(found.ends)
        for function in functions:
            function.close_exits()
        if functions:
            self._share_state(functions)
        self._open()
        copies = {function.callee.key: function.copy() for function in functions}
        self._header(twin_name, size)

        start, end = self.entry.statement.start, self.entry.statement.end
        head = self.head_edits.apply(self.module.text, start, self.body.start)
        probed = head + self.edits.apply(self.module.text, self.body.start, end)
        own_arithmetic: dict[str, int] = {}
        for body in bodies:
            for mnemonic, count in body.emission.arithmetic.items():
                own_arithmetic[mnemonic] = own_arithmetic.get(mnemonic, 0) + count
        elsewhere: dict[int, list[FunctionCopy]] = {}
        for (number, _), copy in copies.items():
            if number != self.callee.linkage.number:
                elsewhere.setdefault(number, []).append(copy)
        return TwinKernel(
            self.entry.name,
            twin_name,
            parameters,
            offset,
            size,
            tuple(variable.name for variable in needs.by_address),
            tuple(site for body in bodies for site in sorted(body.sites, key=lambda site: site.line)),
            own_arithmetic,
            self.module.text[start:end],
            probed,
            version,
            frozenset(needs.statements),
            self.entry.statement,
            len(head),
            (self.body, *(callee.body for callee in needs.functions)),
            calls=tuple(callee.function.name for callee in needs.functions),
            elsewhere={number: frozenset(statements) for number, statements in needs.elsewhere.items()},
            self_contained=not (
                needs.by_address or needs.functions or needs.elsewhere or needs.statements - self._of_blocks()
            ),
            left_out=tuple(left_out),
            copies=tuple(copy for (number, _), copy in copies.items() if number == self.callee.linkage.number),
            copies_elsewhere={number: tuple(found) for number, found in elsewhere.items()},
        )

    def _of_blocks(self) -> set[Statement]:
        """Variables of the module that each block or thread has for itself."""
        return {
            variable.statement for variable in self.module.variables if variable.space not in {"global", "const"}
        }

    def _candidates(self, first: int = 0) -> Found:
        """Instructions that probes match, the first of them with that number, and the ends of the body."""
        return self.owner.matcher.find(self.module, self.entry, self.body, first)

    def _functions(self) -> tuple[_FunctionProber, ...]:
        """The called functions that get copies: with sites, ends of the thread, module variables, or calls of such."""
        probers = {}
        number = self.found.next_number if self.found else 0
        for callee in self.needs.functions:
            prober = probers[callee.key] = _FunctionProber(self, callee)
            found = self.owner.found_in.get(callee.key)
            if found is None:
                found = self.owner.found_in[callee.key] = prober._candidates()
            if found.hits:
                found = prober._candidates(number)
                number = found.next_number
            prober.found = found
        direct = [key for key, prober in probers.items() if prober.is_concerned]
        keys = concerned(self.needs.functions, direct)
        chosen = tuple(prober for key, prober in probers.items() if key in keys)
        for prober in chosen:
            if prober.entry.name in self.needs.taken:
                what = f"{prober.concern or 'calls'} in the called function {prober.entry.name}"
                raise UnsupportedError(f"{what}, whose address is taken")
        for body in (self, *chosen):
            self._leave(body.callee.linkage, body.entry.name)
            for call in body.callee.calls:
                if call.callee in keys:
                    self._leave(body.callee.linkage, body.code[call.start : call.end])
        return chosen

    def _leave(self, linkage: Linkage, name: str) -> None:
        """Do not take along what declares a function of that name in a module: it gets a copy."""
        own = linkage.number == self.callee.linkage.number
        statements = self.needs.statements if own else self.needs.elsewhere.get(linkage.number, set())
        statements -= linkage.declarations(name)

    def _note_snippets(self) -> None:
        for probe, snippet in (*self.kernel_before, *self.kernel_after):
            self.emission.note_snippet(snippet, probe.level)
        for probe in self.owner.in_order(self.found.probes if self.found else ()):
            for side in (probe.before, probe.after):
                if side is not None:
                    self.emission.note_snippet(side, probe.level)

    def _share_state(self, functions: Sequence[_FunctionProber]) -> None:
        """Bring the kernel's state to its functions and back."""
        bodies: tuple[_KernelProber, ...] = (self, *functions)
        keys = {body.callee.key for body in functions}
        calls = {body.callee.key: {call.callee for call in body.callee.calls} & keys for body in bodies}
        kept = {body.callee.key: {entry.name for entry in body.emission.kept} for body in bodies}
        changed = {body.callee.key: body.emission.changed for body in bodies}
        state, names = self.layout, {body.callee.key: body.copy_name for body in functions}
        used, may_change = reach(calls, kept), reach(calls, changed)
        for body in bodies:
            body._pass_state(state, names, used, may_change)
        called = reach(calls, calls)
        for function in functions:
            function.is_recursive = function.callee.key in called[function.callee.key]
            function.load_and_store(state)
        known = {entry.name for entry in self.emission.kept}
        others = {entry.name: entry for function in functions for entry in function.emission.kept}
        for entry in (entry for name, entry in others.items() if name not in known):
            self.emission.keep(entry)
            self.state_setup += state.store(self.state, [entry], self.emission.scratch)
        reads = {offset: kind for function in functions for offset, kind in function.emission.block_reads.items()}
        self.state_setup += self.emission.copy_block(reads, self.state)
        self.state_setup.append(f"mov.u64 {self.state_address}, {self.state};")
        self.state_declarations = [
            f".reg .b64 {self.state_address};", f".local .align 16 .b8 {self.state}[{align_up(state.size, 16)}];",
        ]  # fmt: skip

    def _pass_state(
        self,
        state: State,
        names: Mapping[tuple[int, str], str],
        used: Mapping[tuple[int, str], set[str]],
        changed: Mapping[tuple[int, str], set[str]],
    ) -> None:
        """Have the calls go to copies, and the state stored before and loaded behind them."""
        sequences: dict[tuple[int, int], list[Call]] = {}
        for call in self.callee.calls:
            if call.callee in names:
                self.edits.replace(call.start, call.end, names[call.callee])
                self.edits.insert(*pass_address(self.body, call, self.state_address))
                sequences.setdefault(around_call(self.body, call), []).append(call)
        scratch = self.emission.scratch
        for (start, end), calls in sequences.items():
            mark = scratch.mark()
            needed = set().union(*(used[call.callee] for call in calls))
            touched = set().union(*(changed[call.callee] for call in calls))
            here = [entry for entry in self.emission.kept if entry.name not in self.loaded_late]
            stored = [entry for entry in here if entry.name in needed & self._stored]
            loaded = [entry for entry in here if entry.name in touched]
            before = state.store(self.state, stored, scratch)
            behind = state.load(self.state, loaded, scratch)
            if before:
                self.edits.insert(start, "\n\t".join([*before, ""]))
            if behind:
                self.edits.found.insert(0, (end, end, "\n\t" + "\n\t".join(behind)))
            scratch.release(mark)

    @property
    def _stored(self) -> set[str]:
        """What may be another value in the registers than in the state: in the kernel all that it keeps."""
        return {entry.name for entry in self.emission.kept}

    def _version(self, needed: int) -> tuple[int, int]:
        """The lowest version not below the module's that has parameter space for that many bytes."""
        owner = self.owner
        large = owner.architecture >= _LARGE_ARCHITECTURE
        if needed <= (_PARAMETERS_LARGE if large and owner.version >= _LARGE_VERSION else _PARAMETERS_SMALL):
            return owner.version
        if large and owner.highest >= _LARGE_VERSION and needed <= _PARAMETERS_LARGE:
            return max(owner.version, _LARGE_VERSION)
        limit = _PARAMETERS_LARGE if large and owner.highest >= _LARGE_VERSION else _PARAMETERS_SMALL
        raise _SkipError(Reason.PARAMETERS, f"{needed} bytes of parameters with the probe block, {limit} fit")

    def _header(self, twin_name: str, size: int) -> None:
        """The twin's name and its last parameter."""
        entry = self.entry
        self.head_edits.insert(entry.name_end, twin_name[len(entry.name) :])
        parameter = f".param .align {_BLOCK_ALIGN} .b8 {self.owner.block}[{size}]"
        if entry.parameters is None:
            self.head_edits.insert(entry.name_end, f"(\n\t{parameter}\n)")
            return
        start, end = entry.parameters
        given = self.code[start:end].rstrip()
        separator = ",\n\t" if given else "\n\t"
        self.head_edits.insert(start + len(given), f"{separator}{parameter}\n")

    def _pass_by_address(self, order: Mapping[str, int]) -> None:
        """Put registers in the place of module variables; what is in ``.const`` is read through global memory.

        order: of the variables in the probe block.
        """
        for variable in sorted(self.callee.variables, key=lambda variable: order[variable.name]):
            register = self.emission.variable(order[variable.name])
            self.variables[variable.name] = register
            for start, end in self.callee.linkage.references(self.entry, variable.name):
                self._replace_reference(variable, register, start, end)
        constant = {variable.name for variable in self.callee.variables if variable.space == "const"}
        if not constant:
            return
        self.points_to_constants = _TO_GENERIC.search(self.code, self.body.start, self.body.end) is not None
        if _ASKS_CONST.search(self.code, self.body.start, self.body.end):
            raise UnsupportedError(
                "it asks for the constant space (isspacep.const) and uses constant variables"
            )
        for pattern in (_LOAD_CONST, _TO_CONST):
            for match in pattern.finditer(self.code, self.body.start, self.body.end):
                if match.groupdict().get("bank"):
                    raise UnsupportedError(
                        f"line {self.module.line(match.start())}: it names a constant bank"
                    )
                self.edits.replace(*match.span("space"), ".global")
        self._check_constant_addresses(constant)

    def _check_constant_addresses(self, names: set[str]) -> None:
        """Refuse where a number computed from an address in the constant space goes elsewhere than into loads.

        The twin has another address. Registers are followed by name, whatever the order of instructions.
        """
        used = []
        for match in _STATEMENT.finditer(self.code, self.body.start, self.body.end):
            instruction = read_instruction(match[1])
            if instruction is not None and len(instruction.operands) > 1:
                read = REGISTER.findall(",".join(instruction.sources))
                used.append((instruction, match.start(1), read))
        moved = {
            instruction.operands[0]
            for instruction, _, read in used
            if instruction.parts[0] == "mov" and not names.isdisjoint(read)
        }
        known = 0
        while len(moved) != known:
            known = len(moved)
            for instruction, _, read in used:
                if instruction.parts[0] in _MOVES_ADDRESSES and not moved.isdisjoint(read):
                    moved.add(instruction.operands[0])
        for instruction, at, read in used:
            loads = instruction.parts[0] in {"ld", "cvta", *_MOVES_ADDRESSES}
            if not (loads or moved.isdisjoint(read) or (instruction.parts[0] == "setp" and moved.issuperset(read))):
                line, shown = self.module.line(at), " ".join(self.code[at : self.code.find(";", at)].split())
                raise UnsupportedError(f"line {line}: {shown!r} depends on the address of a constant")

    def _replace_reference(self, variable: Variable, register: str, start: int, end: int) -> None:
        at = self.body.statement_start(start)
        before = self.code[at:start]
        while before.rstrip().endswith("{"):
            at = self.body.statement_start(at - 1)
            before = self.code[at:start]
        behind = self.code[end : end + 32].lstrip()
        if before.count("[") > before.count("]"):
            self.edits.replace(start, end, register)
            return
        opcode = re.search(r"[a-z]\w*(?:\.[\w:]+)+", before)
        if behind.startswith((";", ",")) and opcode and opcode[0].startswith((*_MOVES, "cvta.")):
            self.edits.replace(start, end, register)
            return
        if behind.startswith("+") and opcode and opcode[0] in _MOVES:
            plus = self.code.index("+", end)
            self.edits.replace(at + opcode.start(), at + opcode.end(), "add.s64")
            self.edits.replace(start, plus + 1, f"{register}, ")
            return
        source = " ".join(self.code[at : self.code.find(";", start)].split())
        raise UnsupportedError(f"line {self.module.line(start)}: it uses {variable.name} in {source!r}")

    def _site(self, hit: Hit) -> None:
        """Insert the snippets of the matching probes around one instruction, or around a call that it is part of."""
        match = hit.match
        guard_start = match.start("guard")
        position = match.start("opcode")
        start = guard_start if guard_start >= 0 else position
        end = self.code.find(";", position) + 1
        text = self.code[start : end - 1]
        source = self.found.places.place(position) if self.found else None
        place = _Place(
            hit, start, end, self.module.line(start), " ".join(text.split()), str(source) if source else ""
        )
        if self.points_to_constants and match["opcode"].startswith("ld"):
            self._check_load(text, place)
        probes = hit.probes
        if self.has_calls:
            place, probes = self._around_call(place)
        # A function may end the thread, so that nothing behind its call runs.
        stands_alone = place.start != start or match["opcode"].partition(".")[0] == "call"
        if match["opcode"].partition(".")[0] in opcodes.NO_AFTER and any(probe.after for probe in probes):
            self._leave_out(place, [probe for probe in probes if probe.after], "nothing runs behind it")
            probes = tuple(probe for probe in probes if probe.before)
            stands_alone = True
        noted = self.owner.in_order((*probes, *hit.opens)) if hit.opens else probes
        parted = self.owner.additions.part(probes)
        probes = self._add_up(place, parted, text) if parted.adding and not stands_alone else parted.all
        if not probes and not hit.opens and not hit.closes:
            self._note(place.line, place.shown, noted, hit.number, place.source)
            return
        # Behind an instruction that writes its own predicate other code goes than behind one that does not.
        guard = match["guard"]
        plain = not hit.opens and not hit.closes and not (guard and _register_of(guard) in self.code[position : end])
        key = (match["opcode"], match["guard"], id(probes), tuple(self.emission.scratch.mark().values()))
        repeated = self.repeated.get(key) if plain else None
        if repeated is not None and (not repeated.stores or self._is_clear(place)):
            self.edits.insert(place.start, repeated.before)
            self.edits.insert(place.end, repeated.behind)
            self._note(place.line, place.shown, noted, hit.number, place.source)
            return
        instruction = read_instruction(text)
        if instruction is None or not end:
            raise PtxError(place.line, self.code[start : start + 80], "not an instruction")
        code = self._insert(place, instruction, probes)
        if plain and code is not None:
            self.repeated[key] = code
        self._note(place.line, place.shown, noted, hit.number, place.source)

    def _add_up(self, place: _Place, parted: Parted, text: str) -> tuple[Probe, ...]:
        """Leave what only adds constants to the runs of such sites; the other probes."""
        adding = parted.adding
        opcode, guard = place.hit.match["opcode"], place.hit.match["guard"]
        key = (opcode, id(adding))
        added = self.amounts.get(key)
        if added is None:
            instruction = read_instruction(text)
            found = [amounts(probe, instruction) if instruction is not None else None for probe in adding]
            added = self.amounts[key] = [amount for amount in found if amount is not None]
        if len(added) < len(adding):
            return parted.all
        for probe, amount in zip(adding, added, strict=True):
            under = guard if probe.lanes is Lanes.EXECUTING else None
            self.runs.at(under, place.start, place.hit.match.start("opcode")).add(probe, amount)
        return parted.others

    def write_runs(self) -> None:
        """Insert what sites in a row add up to; the last code of sites that is written."""
        known: dict[tuple[str | None, tuple[tuple[int, tuple[int, ...]], ...]], str] = {}
        for run in self.runs.found:
            key = (run.guard, tuple((probe, tuple(totals)) for probe, (_, totals) in run.totals.items()))
            if key not in known:
                known[key] = self._run_code(run)
            self.edits.insert(run.start, known[key])

    def _run_code(self, run: Run) -> str:
        lines: list[str] = []
        guard = None
        if run.guard is not None:
            guard = Guard(_register_of(run.guard), "!" in run.guard)
        mark = self.emission.scratch.mark()
        for probe in self.owner.in_order(probe for probe, _ in run.totals.values()):
            snippet = with_amounts(probe, run.totals[id(probe)][1])
            lines += self.emission.snippet(snippet, guard=guard, level=probe.level).all
        self.emission.scratch.release(mark)
        return "\n\t".join([*lines, ""])

    def _check_load(self, text: str, place: _Place) -> None:
        instruction = read_instruction(text)
        if instruction is not None and instruction.parts[0] == "ld" and not instruction.state_space:
            raise UnsupportedError(
                f"line {place.line}: {place.shown!r} may read a constant, which lies elsewhere for the twin"
            )

    def _around_call(self, place: _Place) -> tuple[_Place, tuple[Probe, ...]]:
        """Where code goes, and of which probes, when the instruction belongs to a call: nothing goes inside."""
        hit = place.hit
        sequence = self.body.call_sequence(hit.match.start("opcode"))
        if sequence is None:
            return place, hit.probes
        what = f"line {place.line}: {place.shown!r}"
        is_call = hit.match["opcode"].partition(".")[0] == "call"
        if not self.body.is_plain_call(sequence):
            detail = "shares its braces with other instructions" if is_call else "is part of a call sequence"
            raise UnsupportedError(f"{what} {detail}")
        if is_call:
            return place._replace(start=sequence[0], end=sequence[1]), hit.probes
        # Not all threads that pass arguments come back: what moves them counts on its own side of the call.
        side = sequence[0] if hit.match["opcode"].startswith("st") else sequence[1]
        around = place._replace(start=side, end=side)
        lacking = [probe for probe in hit.probes if self.owner.reads_operands(probe)]
        self._leave_out(place, lacking, "it is part of a call, around which its operands are not known")
        return around, tuple(probe for probe in hit.probes if probe not in lacking) if lacking else hit.probes

    def _is_clear(self, place: _Place) -> bool:
        """Stores may stand right before and right behind an instruction."""
        return self._clear_of(place.start) == place.start and self._clear_of(place.end) == place.end

    def _insert(self, place: _Place, instruction: Instruction, probes: tuple[Probe, ...]) -> _Repeated | None:
        """Insert the code at one site; the code when it depends on opcode, guard and free registers alone."""
        hit, start, end = place.hit, place.start, place.end
        position = hit.match.start("opcode")
        mark = self.emission.scratch.mark()
        counted = dict(self.emission.arithmetic)
        waited = False
        before = self._operands(instruction, position, hit.number, after=False)
        after = self._operands(instruction, position, hit.number, after=True)
        guard = Guard(instruction.predicate, instruction.negated) if instruction.predicate else None
        after_guard = guard
        early: list[str] = []
        overwrites = guard is not None and guard.register in instruction.written
        if guard is not None and overwrites and any(probe.after for probe in probes):
            copy = self.emission.scratch.take("pred")
            early.append(f"mov.pred {copy}, {guard.register};")
            after_guard = Guard(copy, guard.negated)
        first: list[str] = []
        last: list[str] = []
        leaves = instruction.parts[0] in opcodes.NO_AFTER
        own = {id(probe) for probe in probes}
        closing = {id(probe): number for probe, number in hit.closes}
        try:
            for probe in self.owner.in_order((*probes, *hit.opens)) if hit.opens else probes:
                if probe.before is None:
                    continue
                if id(probe) in own:
                    mask = guard if probe.lanes is Lanes.EXECUTING else None
                    waited |= self._snippet(probe.before, before, mask, start, first, level=probe.level)
                else:
                    at_line = _LineOperands(hit.number, self.emission.scratch)
                    waited |= self._snippet(probe.before, at_line, None, start, first, level=probe.level)
            ended = (probe for probe, _ in hit.closes)
            for probe in self.owner.in_order((*probes, *ended)) if closing else probes:
                if probe.after is None or (leaves and id(probe) in own):
                    continue
                if id(probe) in own:
                    mask = after_guard if probe.lanes is Lanes.EXECUTING else None
                    waited |= self._snippet(probe.after, after, mask, end, last, level=probe.level)
                else:
                    # Of lines that end with a branch the last place is before it.
                    at, lines = (start, first) if leaves else (end, last)
                    at_line = _LineOperands(closing[id(probe)], self.emission.scratch)
                    waited |= self._snippet(probe.after, at_line, None, at, lines, level=probe.level)
        except UnsupportedError as error:
            raise UnsupportedError(f"line {place.line}: {place.shown!r}: {error}") from None
        early += after.early
        ahead = "\n\t".join([*first, *early, ""]) if first or early else ""
        behind = "\n\t" + "\n\t".join(last) if last else ""
        self.edits.insert(start, ahead)
        self.edits.insert(end, behind)
        if waited:
            return None
        self.emission.scratch.release(mark)
        reads = before.reads_operands or after.reads_operands or early
        if reads or counted != self.emission.arithmetic:
            return None
        return _Repeated(ahead, behind, any(self.owner.must_be_clear(probe) for probe in probes))

    def _note(
        self, line: int, shown: str, probes: Iterable[Probe], number: int | None = None, source: str = ""
    ) -> None:
        function = self.entry.name
        self.sites += [
            Site(probe.name, probe.tracepoint.text, line, shown, number, source, function) for probe in probes
        ]

    def _leave_out(self, place: _Place, probes: Iterable[Probe], reason: str) -> None:
        self.left_out += [
            LeftOut(probe.name, probe.tracepoint.text, place.line, place.shown, place.source, reason, self.entry.name)
            for probe in probes
        ]

    def _operands(self, instruction: Instruction, position: int, number: int | None, *, after: bool) -> SiteOperands:
        def product(name: str, is_out: bool) -> str | None:
            here = self.contractions.at(position)
            found = here if is_out else self.contractions.open_product(name, position)
            declared = self.body.declaration
            if found and not is_out and declared(name, found.start) != declared(name, position):
                found = None
            return self._private_product(found.start) if found else None

        return SiteOperands(
            instruction,
            self.body,
            position,
            self.emission.scratch,
            after=after,
            module_addresses=self.variables,
            product=product,
            site=number or 0,
        )

    def _snippet(
        self,
        snippet: Snippet,
        operands: SiteOperands | _LineOperands,
        guard: Guard | None,
        at: int,
        lines: list[str],
        *,
        level: Level,
    ) -> bool:
        """Append one snippet's code; True when its stores wait further down for a product to be consumed."""
        spot = at
        saves = [statement for statement in snippet.statements if isinstance(statement, Save)]
        if any(save.map.kind is MapKind.ARRAY for save in saves):
            spot = self._clear_of(at)
        if self.owner.is_collective(snippet) and self._clear_of(at) != at:
            raise UnsupportedError("an instruction between lanes would stand between a product and its sum")
        waits = spot != at
        operands.begin_snippet(guard)
        known = len(operands.here)
        code = self.emission.snippet(snippet, operands, guard, level=level, waits=waits)
        lines += operands.here[known:]
        lines += code.lines
        if waits:
            self.edits.insert(spot, "\n\t" + "\n\t".join(code.stores))
        else:
            lines += code.stores
        return waits

    def _clear_of(self, position: int) -> int:
        """The first place from position on for predicated stores: within no product and sum, no call
        sequence."""
        if not self.contractions:
            return position
        while True:
            spot = self.contractions.clear_of(position)
            sequence = self.body.call_sequence(spot) if self.has_calls else None
            if sequence is not None and spot > sequence[0]:
                spot = sequence[1]
            if spot == position:
                return spot
            position = spot

    def _private_product(self, position: int) -> str:
        """A register with the rounded product of the ``mul`` at a position, for probes alone."""
        if position in self.copies:
            return self.copies[position]
        start = self.body.statement_start(position)
        instruction = read_instruction(self.code[start : self.code.find(";", position)])
        kind = PRODUCT.match(instruction.opcode) if instruction else None
        if instruction is None or kind is None:
            raise PtxError(self.module.line(position), self.code[start : start + 80], "not a multiplication")
        name = self.emission.product_copy(kind["type"])
        self.copies[position] = name
        opcode = "mul.rn" + instruction.opcode[len("mul") :]
        sources = ", ".join(instruction.operands[1:])
        lines = [f"{opcode} {name}, {sources};"]
        if instruction.predicate is not None:
            guard = Guard(instruction.predicate, instruction.negated)
            lines = [f"mov.b{bits(kind['type'])} {name}, {instruction.operands[0]};", guard.prefix + lines[0]]
        self.edits.insert(start, "\n\t".join([*lines, ""]))
        self.emission.count_arithmetic(opcode)
        return name

    def _close_ends(self, ends: Sequence[re.Match[str]]) -> None:
        """Code at the kernel's ends, behind the snippets at its entry."""
        scratch = self.emission.scratch
        mark = scratch.mark()
        for probe, snippet in self.kernel_before:
            self.opening += self.emission.snippet(snippet, level=probe.level).all
            line = self.module.line(self.entry.name_end)
            self._note(line, f".entry {self.entry.name}", [probe])
        scratch.release(mark)
        counted = dict(self.emission.arithmetic)
        closing: list[str] = []
        for probe, snippet in self.kernel_after:
            closing += self.emission.snippet(snippet, level=probe.level).all
        if self.emission.has_end:
            closing += self.emission.end()
        places = self._ends(ends) if closing or self.kernel_after else []
        self._close_all(places, closing, [probe for probe, _ in self.kernel_after], counted)

    def _close_all(
        self,
        places: Sequence[tuple[int, str | None, str]],
        closing: list[str],
        probes: Sequence[Probe],
        counted: Mapping[str, int],
    ) -> None:
        """The same code before each of some ends. counted: the arithmetic before that code was written."""
        for mnemonic, count in self.emission.arithmetic.items():
            self.emission.arithmetic[mnemonic] += (count - counted.get(mnemonic, 0)) * (len(places) - 1)
        for at, guard, shown in places:
            if closing:
                self._close(at, guard, closing, f"{self.owner.label}{self.labels}")
                self.labels += 1
            self._note(self.module.line(at), shown, probes)

    def _open(self) -> None:
        """Code at the kernel's entry, the last that is written: the declarations say what was used."""
        declarations, first = self.emission.entry()
        self._insert_entry(declarations + self.state_declarations + first + self.state_setup + self.opening)

    def _insert_entry(self, lines: list[str]) -> None:
        if lines:
            match = _DECLARATIONS.match(self.code, self.body.start + 1, self.body.end)
            at = match.end() if match else self.body.start + 1
            self.edits.found.insert(0, (at, at, "\n\t" + "\n\t".join(lines)))

    def _ends(self, matches: Sequence[re.Match[str]]) -> list[tuple[int, str | None, str]]:
        """(position, guard, text) of every end of a thread, falling off the body included."""
        found: list[tuple[int, str | None, str]] = []
        for match in matches:
            guard = match["guard"]
            start = match.start("guard") if guard else match.start("opcode")
            shown = " ".join(self.code[start : self.code.find(";", start)].split())
            found.append((start, guard, shown))
        closing = self.body.end - 1
        text = self.code[self.body.start : closing].rstrip().rstrip("}").rstrip()
        while text.endswith("}"):
            text = text.rstrip("}").rstrip()
        last = self.body.statement_start(self.body.start + len(text) - 1)
        if not (text.endswith(";") and _ENDS_BODY.match(self.code, last)):
            found.append((closing, None, "}"))
        return found

    def _close(self, at: int, guard: str | None, closing: list[str], label: str) -> None:
        """Put the closing code before an end; around it a branch for the threads that do not end here."""
        lines = closing
        if guard:
            predicate = guard.strip()[1:].strip()
            other = predicate[1:].strip() if predicate.startswith("!") else f"!{predicate}"
            lines = [f"@{other} bra {label};", *closing]
            self.edits.insert(self.code.find(";", at) + 1, f"\n{label}:")
        self.edits.insert(at, "\n\t".join([*lines, ""]))


class _FunctionProber(_KernelProber):
    """Writes the copy of a function that a kernel calls."""

    def __init__(self, kernel: _KernelProber, callee: Callee) -> None:
        self.kernel = kernel
        super().__init__(kernel.owner, kernel.needs, callee)
        self.state = self.state_address
        self.at_exit = [(probe, snippet) for probe, snippet in kernel.kernel_after if probe.tracepoint.is_kernel]
        around = self.owner.matcher.function_probes(self.entry.name)
        self.kernel_before = [(probe, probe.before) for probe in around if probe.before]
        self.kernel_after = [(probe, probe.after) for probe in around if probe.after]
        self.is_tracepoint = bool(around)
        self.is_recursive = False

    def _emission(self) -> Emission:
        address = f"{self.owner.prefix}state"
        return Emission(
            self.owner.probes, self.owner.prefix, address, self.owner.architecture, self.kernel.emission
        )

    @property
    def concern(self) -> str | None:
        """What of it asks for a copy; None when nothing does."""
        first = self._first
        if first is not None:
            return f"line {self.module.line(first.start('opcode'))}: {first['opcode']}"
        if self.callee.variables:
            return f"the variable {self.callee.variables[0].name}"
        return "a tracepoint" if self.is_tracepoint else None

    @cached_property
    def copy_name(self) -> str:
        """The copy's name."""
        return copy_name(self.callee, self.kernel.callee)

    def run_tracepoints(self) -> None:
        """The snippets at its entry and its returns."""
        if self.owner.prefix in self.module.text:
            raise UnsupportedError(f"the module of {self.entry.name} has names with {self.owner.prefix}")
        scratch = self.emission.scratch
        mark = scratch.mark()
        for probe, snippet in self.kernel_before:
            self.opening += self.emission.snippet(snippet, level=probe.level).all
            self._note(self.module.line(self.entry.name_end), f".func {self.entry.name}", [probe])
        scratch.release(mark)
        counted = dict(self.emission.arithmetic)
        closing: list[str] = []
        for probe, snippet in self.kernel_after:
            closing += self.emission.snippet(snippet, level=probe.level).all
        if self.kernel_after:
            self._close_all(self._returns, closing, [probe for probe, _ in self.kernel_after], counted)
        scratch.release(mark)

    def close_exits(self) -> None:
        """The code at ends of the thread."""
        exits = [place for place in self._places if place not in self._returns]
        if not exits:
            return
        counted = dict(self.emission.arithmetic)
        known = {entry.name for entry in self.emission.kept}
        closing: list[str] = []
        for probe, snippet in self.at_exit:
            closing += self.emission.snippet(snippet, level=probe.level).all
        if self.emission.has_end:
            closing += self.emission.end()
        # What only the ends name is loaded there: most calls return.
        only_here = [entry for entry in self.emission.kept if entry.name not in known]
        self.loaded_late = {entry.name for entry in only_here}
        closing = self.kernel.layout.load(self.state, only_here, self.emission.scratch) + closing
        self._close_all(exits, closing, [probe for probe, _ in self.at_exit], counted)

    def load_and_store(self, state: State) -> None:
        """Load at the entry what it keeps, and store at the returns what may have changed."""
        kept = [entry for entry in self.emission.kept if entry.name not in self.loaded_late]
        scratch = self.emission.scratch
        mark = scratch.mark()
        loads = state.load(self.state, kept, scratch)
        scratch.release(mark)
        stores = state.store(self.state, [entry for entry in kept if entry.name in self._stored], scratch)
        declarations, first = self.emission.function_entry()
        for at, _, _ in self._returns if stores else ():
            self.edits.insert(at, "\n\t".join([*stores, ""]))
        self._insert_entry(declarations + first + loads + self.opening)

    def copy(self) -> FunctionCopy:
        """What it came to."""
        kernel = self.kernel
        numbers = {
            user.linkage.number
            for user in (kernel.callee, *kernel.needs.functions)
            if any(call.callee == self.callee.key for call in user.calls)
        }
        callers = frozenset(numbers - {self.callee.linkage.number})
        header, prototype = copy_header(self.callee, self.copy_name, self.state_address, visible=bool(callers))
        statement, text = self.entry.statement, self.module.text
        return FunctionCopy(
            self.entry.name,
            self.copy_name,
            text[statement.start : statement.end],
            header + self.edits.apply(text, self.body.start, statement.end),
            prototype,
            statement,
            callers,
            dict(self.emission.arithmetic),
            self.is_recursive,
        )

    @property
    def _stored(self) -> set[str]:
        return self.emission.changed

    @cached_property
    def _places(self) -> list[tuple[int, str | None, str]]:
        return self._ends(self.found.ends) if self.found else []

    @cached_property
    def _returns(self) -> list[tuple[int, str | None, str]]:
        return [place for place in self._places if not place[2].split()[-1].startswith("exit")]

    @property
    def is_concerned(self) -> bool:
        """It needs a copy whatever it calls."""
        return self._first is not None or bool(self.callee.variables) or self.is_tracepoint

    @property
    def _first(self) -> re.Match[str] | None:
        """The first instruction that asks for a copy."""
        if self.found is None or self.found.hits or not self.owner.has_end_work:
            return self.found.hits[0].match if self.found and self.found.hits else None
        return next((match for match in self.found.ends if match["opcode"].startswith("exit")), None)
