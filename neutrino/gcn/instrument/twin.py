"""The code of all probes in one kernel: where it goes, and the registers that it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from neutrino.abi.levels import Level, Per
from neutrino.gcn.analysis.exec_regions import ExecRegions
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.analysis.scratch_buffers import scratch_accesses
from neutrino.gcn.code import Function, Instruction, Module, wave_features
from neutrino.gcn.instrument.additions import Additions, additions_of
from neutrino.gcn.instrument.code import Mask, NoRegistersError, Vector
from neutrino.gcn.instrument.compute import CannotError, varying
from neutrino.gcn.instrument.counting import Counted, has_amounts, sums_of
from neutrino.gcn.instrument.counting import count as count_in
from neutrino.gcn.instrument.fences import Fences
from neutrino.gcn.instrument.frame import Build, Frame, Here, Needs, add_home, words_of
from neutrino.gcn.instrument.hazard_facts import SGPRS
from neutrino.gcn.instrument.hazards import read_by_vectors
from neutrino.gcn.instrument.kernel_facts import EntryState
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.probe_registers import names_in, saves_in, shared_in, written_in
from neutrino.gcn.instrument.saves import Total, kept_registers, lower_entry, lower_settle, why_not
from neutrino.gcn.instrument.site_snippets import NotProbed, Piece, SiteSnippets
from neutrino.gcn.instrument.snippet import SnippetCode
from neutrino.gcn.isa.effects import effects_of
from neutrino.gcn.isa.registers import SCC, VCC
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.operation_names import operations_of
from neutrino.gcn.processors import processor_named
from neutrino.gcn.snippets.opcodes import Part
from neutrino.gcn.splice import Insertion
from neutrino.ir.operands import Register, Special
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save
from neutrino.probing.model import Lanes

_DEALLOCATION = "DEALLOC_VGPRS"
_ARCHITECTED_SCRATCH = ("gfx94", "gfx95", "gfx11", "gfx12")


@dataclass(frozen=True)
class TwinCode:
    """Code for one kernel and the functions that it calls. insertions: of each function. sgprs, vgprs: how many
    registers the twin names. header: bytes of the kernel that keep their place. descriptor: the original's, with what
    the hardware gives the twin besides."""

    insertions: tuple[tuple[Insertion, ...], ...]
    sgprs: int
    vgprs: int
    header: int
    descriptor: bytes
    not_probed: tuple[tuple[NotProbed, ...], ...] = ()


@dataclass(frozen=True)
class Request:
    """What is asked for. functions: the kernel and those that it calls, each with the probes at its instructions, by
    their offsets. descriptor: the kernel's. block: where the probe block is among the twin's arguments. vgprs: that the
    kernel has. named: the functions whose registers must be left alone, the kernel among them, if they are known."""

    module: Module
    functions: tuple[tuple[Function, Mapping[int, Sequence[Probe]]], ...]
    probes: ProbeSet
    descriptor: bytes
    block: int
    vgprs: int
    named: tuple[Function, ...] = ()


def write(request: Request, llvm: Llvm) -> TwinCode:
    """Return the code of probes in a kernel. Raises CannotError with what is not possible."""
    try:
        # Once for what the probes take, and once with the registers for that.
        with _Writer(request, llvm) as measuring:
            measuring.written()
            with _Writer(request, llvm, measuring) as writer:
                return writer.written()
    except NoRegistersError as error:
        raise CannotError(str(error), "registers") from None


_Amounts = frozenset[tuple[Counted, object]]


class _CountedPlace(NamedTuple):
    """A place where something is added. place: the offset. sums: what. names: what without amounts, but for whether
    these are 1; amounts: with them. scc, vcc: whether these are in use there."""

    place: int
    sums: Mapping[Counted, int]
    names: _Amounts
    amounts: _Amounts
    scc: bool
    vcc: bool


_SnippetSite = tuple[Instruction, Probe, int, Additions | None]
"""A site with code of its own: the arguments of ``SiteSnippets.code``."""


class _Member:
    """A function of a twin. at: the probes at its instructions. begins: where it begins to run."""

    def __init__(
        self, liveness: Liveness, at: Mapping[int, Sequence[Probe]], machine: Machine, begins: int, named: int,
        properties: int,
    ) -> None:  # fmt: skip
        """Find the ends of waves in it. named: registers that the kernel and what it calls name. properties: as of
        ``scratch_accesses``. Raises CannotError for what cannot be probed."""
        self.function, self.at, self.liveness = liveness.function, at, liveness
        self.regions = ExecRegions(liveness.graph, machine.generation, begins)
        self.instructions = {one.offset: one for one in self.function.instructions}
        self.ends = dict(_ends(self.function))
        self.fences = Fences(liveness.graph, machine, begins, named)
        self.scratch = scratch_accesses(liveness.graph, machine.processor, machine.generation, properties) if at else ()
        different = {id(probes): probes for probes in at.values()}
        self.probes = {id(probe): probe for probes in different.values() for probe in probes}
        """Those at some instruction, by their identity."""
        self.sites: tuple[Sequence[_CountedPlace], Sequence[_SnippetSite]] | None = None
        self.problems: dict[tuple[int, int, Part], str] = {}
        self.snippets: SiteSnippets

    def place(self, offset: int) -> int:
        """Return where code goes whose place is in front of an instruction: ahead of the end of a wave, too."""
        for at, stop in self.ends.items():
            if at <= offset <= stop:
                return at
        return offset


class _Writer:
    """Writes the code of one kernel."""

    def __init__(self, request: Request, llvm: Llvm, measuring: _Writer | None = None) -> None:
        """Find what is known of the kernel. measuring: has found out what probes take, by its ``written``; None to find
        that out."""
        self._request, self._llvm = request, llvm
        self._function, _ = request.functions[0]
        processor = processor_named(request.module.processor)
        if processor is None or not processor.is_probed:
            raise CannotError(f"kernels for {request.module.processor} get no probes", "code")
        self._machine = Machine(processor, self._function.wave)
        self._features = wave_features(processor.name, request.module.features, self._function.wave)
        # What is found out of the kernel itself holds for both.
        self._registers: KernelRegisters = (
            KernelRegisters(request.module, self._function, processor, request.named)
            if measuring is None else measuring._registers
        )  # fmt: skip
        if self._registers.refused:
            raise CannotError(self._registers.refused, "code")
        generation = processor.generation
        entry = EntryState(
            request.descriptor, generation == 12, not processor.name.startswith(_ARCHITECTED_SCRATCH)
        )  # fmt: skip
        self._frame = Frame(
            self._machine, self._registers, entry, request.block, len(request.probes.maps), request.vgprs,
            None if measuring is None else measuring.needs,
        )
        self._is_measuring = measuring is None
        self._vectors: set[str] = set()
        self._read_at_sites: set[str] = set()
        self._known_additions: dict[int, Additions | None] = {}
        self._passing: dict[str, bool] = {}
        self._kept_in_passing: dict[bool, list[Register]] = {False: [], True: []}
        self._members: list[_Member] = [copy(member) for member in measuring._members] if measuring is not None else [
            _Member(self._registers.liveness, at, self._machine, entry.begins, self._registers.named,
                    int(entry.has_scratch_buffer))
            if function is self._function
            else _Member(Liveness(function, generation), at, self._machine, 0, self._registers.named, 1)
            for function, at in request.functions
        ]  # fmt: skip
        for member in self._members:
            member.snippets = SiteSnippets(
                self._frame, member.function, member.liveness, request.probes, place=member.place,
                vectors=self._vectors, label=self._label, scratch=member.scratch, problems=member.problems,
            )  # fmt: skip
        self._site_count = 0
        self._read_by_vectors = SGPRS
        self._labels = 0

    def __enter__(self) -> _Writer:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free what refers to this in a circle: it would wait for the garbage collector, with all that is known of the
        kernel."""
        for member in self._members:
            del member.snippets

    @property
    def needs(self) -> Needs:
        """The registers and memory that the probes in the kernel take, once they have been written."""
        return self._frame.found

    def written(self) -> TwinCode:
        """Return the code of the probes in a kernel."""
        frame = self._frame
        kernel = [probe for probe in self._request.probes.probes if probe.tracepoint.is_kernel]
        self._choose_homes(kernel)
        sites = [list(self._site_code(member)) for member in self._members]
        befores = [
            *self._first_in_passing(is_end=False), *self._maps_code(lower_entry, (None, False)),
            *(line for probe in kernel for line in self._kernel_code(probe.before, probe.level)),
            *self._maps_code(lower_settle, (False,)),
        ]  # fmt: skip
        afters = [
            *self._first_in_passing(is_end=True), *self._maps_code(lower_entry, (True,), is_end=True),
            *(line for probe in kernel for line in self._kernel_code(probe.after, probe.level, is_end=True)),
            *self._maps_code(lower_settle, (None, True), is_end=True),
        ]  # fmt: skip
        end = []
        if afters:
            machine = self._machine
            execute = frame.lowered(self._set_exec, labels=self._label(), offset=None)
            end = [*machine.wait_all_loads, *execute, *afters]
        begins = frame.entry.begins
        # The entry's code comes last, when it is known what it keeps.
        start = [*frame.entry_lines(), *self._initial(), *befores]
        self._read_by_vectors = self._vector_reads(start, (piece for code in sites for piece in code))
        fenced = []
        for member, code in zip(self._members, sites, strict=True):
            found = []
            if member.function is self._function:
                found.append(Piece(begins, start, ahead_of_label=False))
            found += [*code, *(Piece(at, end) for at in member.ends if end)]
            fenced.append(list(self._fenced(member, found)))
        return TwinCode(
            self._assembled(fenced), frame.scalars_named, frame.vectors_named, begins, frame.twin_entry.descriptor,
            tuple(tuple(member.snippets.not_probed) for member in self._members),
        )  # fmt: skip

    def _fenced(self, member: _Member, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield code, all of a place together, with the wait states that it needs. pieces: in order."""
        if self._is_measuring:
            return
        together: dict[tuple[int, bool], list[str]] = {}
        for piece in pieces:
            together.setdefault((piece.offset, piece.ahead_of_label), []).extend(piece.lines)
        for (offset, ahead_of_label), lines in together.items():
            if member.function is self._function and offset == self._frame.entry.begins and not ahead_of_label:
                fenced = member.fences.at_start(offset, lines, self._read_by_vectors)
            else:
                # The code of ends reads what others keep.
                read = SGPRS if offset in member.ends else self._read_by_vectors
                fenced = member.fences.around(offset, lines, self._frame.taken, read)
            yield Piece(offset, fenced, ahead_of_label)

    def _vector_reads(self, start: Sequence[str], pieces: Iterable[Piece]) -> int:
        """Return the SGPRs that vector instructions of the kernel and of the probes may have read anywhere but at its
        ends, where that matters. start: the entry's code. pieces: that of sites."""
        generation = self._machine.generation
        if generation != 12 or self._is_measuring:
            return SGPRS
        lines = {*start, *(line for piece in pieces for line in piece.lines)}
        found = read_by_vectors(lines, generation)
        for function in self._registers.functions:
            for row in function.instructions:
                if row.mnemonic.startswith("v_"):
                    found |= effects_of(row.text, generation).reads
        return found & SGPRS

    def _set_exec(self, here: Here) -> None:
        """Append code that makes EXEC what it was at the kernel's entry."""
        here.code.emit(f"s_mov_{self._machine.mask} {self._machine.exec}, {here.kept('exec').text}")

    # Registers

    def _choose_homes(self, kernel: Iterable[Probe]) -> None:
        """Choose where shared registers are: in SGPRs where all lanes have the same, or only the sum over them is
        saved; else in VGPRs."""
        probes = self._request.probes
        shared = [register for register in probes.registers if not register.is_local]
        sites = {key: probe for member in self._members for key, probe in member.probes.items()}
        present = [*kernel, *sites.values()]
        named = {name for probe in present for snippet in (probe.before, probe.after) if snippet is not None
                 for name in shared_in(snippet)}  # fmt: skip
        names = {register.name for register in shared}
        for probe in sites.values():
            for snippet in (probe.before, probe.after):
                if snippet is not None and (
                    not _is_counted(probe) or snippet is probe.after or self._additions(snippet) is None
                ):
                    self._read_at_sites |= names & shared_in(snippet)
        totals = {register.name for register in shared if self._is_total(register, kernel, sites.values())}
        site_written = {name for probe in sites.values() for snippet in (probe.before, probe.after)
                        if snippet is not None for name in written_in(snippet)}  # fmt: skip
        vectors: set[str] = {name for name in site_written if name not in totals}
        for probe in kernel:
            for snippet in (probe.before, probe.after):
                if snippet is not None:
                    vectors |= varying(snippet.statements, vectors)
        self._vectors |= vectors
        for register in shared:
            if register.name not in named:
                continue
            if register.name in totals:
                self._frame.add_home(register.name, Total, 2)
            else:
                add_home(self._frame, register, is_vector=register.name in vectors)
        self._shared = {register.name: register for register in shared if register.name in named}
        self._keep_for_maps(present)

    def _keep_for_maps(self, present: Iterable[Probe]) -> None:
        """Have VGPRs for what maps keep to which probes save."""
        maps = self._request.probes.maps
        statements = [statement for probe in present for snippet in (probe.before, probe.after) if snippet is not None
                      for statement in snippet.statements]  # fmt: skip
        saved = {save.map.name for save in saves_in(statements)}
        # What is saved to at the entry alone, or at ends alone, keeps nothing in between.
        elsewhere: dict[bool, set[str]] = {}
        for is_end in (False, True):
            elsewhere[is_end] = {
                save.map.name for probe in present for snippet in (probe.before, probe.after)
                if snippet is not None
                and not (probe.tracepoint.is_kernel and snippet is (probe.after if is_end else probe.before))
                for save in saves_in(snippet.statements)
            }  # fmt: skip
        self._saved = [(index, entry) for index, entry in enumerate(maps) if entry.name in saved]
        for index, entry in self._saved:
            if reason := why_not(entry, self._machine):
                raise CannotError(reason, "map")
            registers = kept_registers(entry, index, self._machine.wave)
            passing = [is_end for is_end, names in elsewhere.items() if entry.name not in names]
            if passing and all(register.type is not Type.PRED for register in registers):
                self._passing[entry.name] = passing[0]
                self._kept_in_passing[passing[0]] += registers
                continue
            for register in registers:
                add_home(self._frame, register, is_vector=True)
                self._shared[register.name] = register
        for is_end, registers in self._kept_in_passing.items():
            for register in registers:
                words = words_of(register.type, self._machine)
                self._frame.add_passing_home(register.name, words, is_end=is_end)

    def _is_total(self, register: Register, kernel: Iterable[Probe], sites: Iterable[Probe]) -> bool:
        """Return whether of a register only the sum over all lanes matters: probes add the same to it in all lanes, and
        save it in sums that are not those of threads."""
        if register.type is not Type.U64 or register.initial:
            return False
        is_added = False
        for probe in sites:
            for snippet in (probe.before, probe.after):
                if snippet is None or register.name not in shared_in(snippet):
                    continue
                if not _is_counted(probe) or self._additions(snippet) is None:
                    return False
                is_added = True
        for probe in kernel:
            if probe.before is not None and register.name in shared_in(probe.before):
                return False
            for statement in probe.after.statements if probe.after is not None else ():
                if register.name not in names_in(statement):
                    continue
                if not isinstance(statement, Save) or statement.guard is not None or probe.level is not Level.THREAD:
                    return False
                entry = statement.map
                fields = [cell for operand, cell in zip(statement.operands, entry.fields, strict=True)
                          if operand == register]  # fmt: skip
                if entry.kind.name != "sum" or entry.per is Per.THREAD or any(
                    cell.type.value not in ("u64", "s64") for cell in fields
                ):
                    return False
        return is_added

    def _additions(self, snippet: Snippet) -> Additions | None:
        """Return what a snippet adds, if it does nothing else, as ``additions_of``."""
        if id(snippet) not in self._known_additions:
            self._known_additions[id(snippet)] = additions_of(snippet)
        return self._known_additions[id(snippet)]

    def _initial(self) -> Iterator[str]:
        """Yield code that gives the probes' shared registers their first values."""
        for register in self._shared.values():
            yield from self._frame.lowered(partial(self._first, register), labels=self._label())

    def _first(self, register: Register, here: Here) -> None:
        """Append what gives a shared register its first value."""
        place = here.home(register)
        if isinstance(place, Mask):
            here.code.emit(f"s_mov_{self._machine.mask} {place.text}, {'-1' if register.initial else '0'}")
            return
        bits = 0 if isinstance(place, Total) else register.initial
        name = "v_mov_b32_e32" if isinstance(place, Vector) else "s_mov_b32"
        for number in range(place.words):
            here.code.emit(f"{name} {place.word(number)}, {bits >> 32 * number & 0xFFFFFFFF:#x}")

    # Code

    def _label(self) -> str:
        """Return what the labels of the next snippet begin with, so that they differ from those of all others."""
        self._labels += 1
        return f"n{self._labels}_"

    def _kernel_code(self, snippet: Snippet | None, level: Level, *, is_end: bool = False) -> list[str]:
        """Return the code of a snippet at the kernel's entry or its ends."""
        if snippet is None:
            return []

        def build(here: Here) -> None:
            """Append the snippet."""
            varies = varying(snippet.statements, self._vectors)
            snippet_code = SnippetCode(here, varies, self._request.probes, level)
            if level is not Level.BLOCK:
                snippet_code.lower(snippet.statements)
                return
            # The work-group's first wave alone.
            code, end = here.code, here.code.label()
            with code.scope():
                code.emit(f"s_cmp_lg_u32 {snippet_code.word(here.special(Special.WARP), 0)}, 0")
            code.emit(f"s_cbranch_scc1 {end}")
            snippet_code.lower(snippet.statements)
            code.emit(f"{end}:")

        return self._of_kernel(build, is_end=is_end)

    def _of_kernel(self, build: Build, *, is_end: bool) -> list[str]:
        """Return code at the kernel's entry or its ends, with what must be around it."""
        return self._frame.lowered(
            build, labels=self._label(), offset=None if is_end else 0, vectors=self._kernel_vectors(is_end=is_end)
        )

    def _first_in_passing(self, *, is_end: bool) -> Iterator[str]:
        """Yield what gives registers their first values that are kept within the entry's code, or within an end's."""
        for register in self._kept_in_passing[is_end]:
            yield from self._of_kernel(partial(self._first, register), is_end=is_end)

    def _maps_code(
        self, lower: Callable[[Here, Map, int], None], which: tuple[bool | None, ...], *, is_end: bool = False
    ) -> Iterator[str]:
        """Yield the code of maps that are saved to, for the kernel's entry or its ends. which: of those that are saved
        to at the entry alone (False), at ends alone (True), or elsewhere (None)."""
        for index, entry in self._saved:
            if self._passing.get(entry.name) not in which:
                continue

            def build(here: Here, entry: Map = entry, index: int = index) -> None:
                """Append the map's code."""
                lower(here, entry, index)

            yield from self._of_kernel(build, is_end=is_end)

    def _kernel_vectors(self, *, is_end: bool) -> int:
        """Return the VGPRs that code at the kernel's entry or its ends may use, as a set."""
        if not is_end:
            return self._frame.vectors_at_entry
        # At ends no value of the program is needed any more. The lowest ones are taken first.
        return (1 << 256) - 1

    def _site_code(self, member: _Member) -> Iterator[Piece]:
        """Yield the code of probes at a function's instructions."""
        if member.sites is None:
            member.sites = self._sites_of(member)
        counted, others = member.sites
        for site in others:
            yield from member.snippets.code(*site)
        if self._is_measuring:
            # What it takes does not depend on the amounts, nor on the place.
            seen: set[object] = set()
            for one in counted:
                key = one.names, one.scc, one.vcc
                if key not in seen:
                    seen.add(key)
                    self._counting(member, one, one.names)
            return
        for one in counted:
            yield Piece(member.place(one.place), self._counting(member, one, one.amounts))

    def _sites_of(self, member: _Member) -> tuple[Sequence[_CountedPlace], Sequence[_SnippetSite]]:
        """Return what is counted in a function, by the place where its code goes, and the sites with code of their
        own."""
        counted: defaultdict[int, dict[Counted | int, int]] = defaultdict(dict)
        others: list[_SnippetSite] = []
        parts_of, regions = member.snippets.parts, member.regions
        instructions, wave = member.instructions, self._machine.wave
        # Of probes whose amounts no instruction has a say in, by what is at an instruction.
        plain = {key: found for key, found in ((id(each), self._plain(each)) for each in
                 {id(probes): probes for probes in member.at.values()}.values()) if found is not None}  # fmt: skip
        heads = regions.heads if plain else {}
        several = _of_several(member.function) if plain else set()
        first, self._site_count = self._site_count, self._site_count + len(member.at)
        for number, (offset, probes) in enumerate(sorted(member.at.items()), first):
            key = id(probes)
            if key in plain and offset not in several:
                sums = counted[heads[offset]]
                sums[key] = sums.get(key, 0) + 1
                continue
            instruction = instructions[offset]
            for probe in probes:
                if probe.tracepoint.is_kernel:
                    continue
                additions = self._counted(probe)
                if additions is None or not has_amounts(additions, instruction, wave):
                    others.append((instruction, probe, number, None))
                    continue
                if additions.conditions:
                    others.append((instruction, probe, number, additions))
                    continue
                sums, parts = counted[regions.heads[offset]], len(parts_of(instruction, probe))
                for name, amount in sums_of(additions, instruction, wave).items():
                    sums[name] = sums.get(name, 0) + parts * amount
        return self._counted_places(member, counted, plain), others

    def _plain(self, probes: Sequence[Probe]) -> Mapping[Counted, int] | None:
        """Return what probes add at an instruction that is one operation; None if that depends on the instruction, or
        if one of them has code of its own."""
        found: dict[Counted, int] = {}
        for probe in probes:
            additions = None if probe.tracepoint.is_kernel else self._counted(probe)
            if additions is None or additions.conditions:
                return None
            for row in additions.rows:
                if isinstance(row.amount, str):
                    return None
                name = Counted(row.name, is_of_lanes=True)
                found[name] = found.get(name, 0) + row.amount
        return found

    @staticmethod
    def _counted_places(
        member: _Member, counted: Mapping[int, Mapping[Counted | int, int]],
        plain: Mapping[int, Mapping[Counted, int]],
    ) -> list[_CountedPlace]:  # fmt: skip
        """Return the places where something is added. counted: by a place, amounts, or how often something of ``plain``
        is added, in order."""
        found: list[_CountedPlace] = []
        # Places where the same is added share it: it is compared with itself.
        shared: dict[_Amounts, _Amounts] = {}
        known: dict[tuple[tuple[Counted | int, int], ...], tuple[Mapping[Counted, int], _Amounts, _Amounts]] = {}
        before = member.liveness.before
        for place, rows in counted.items():
            all_rows = tuple(rows.items())
            one = known.get(all_rows)
            if one is None:
                sums: dict[Counted, int] = {}
                for key, often in all_rows:
                    amounts = {key: 1} if isinstance(key, Counted) else plain[key]
                    for name, amount in amounts.items():
                        sums[name] = sums.get(name, 0) + amount * often
                names = frozenset((name, amount == 1) for name, amount in sums.items())
                amounts_too = frozenset(sums.items())
                one = known[all_rows] = (
                    sums, shared.setdefault(names, names), shared.setdefault(amounts_too, amounts_too)
                )  # fmt: skip
            live = before(place)
            found.append(_CountedPlace(place, *one, bool(live & SCC), bool(live & VCC)))
        return found

    def _counted(self, probe: Probe) -> Additions | None:
        """Return what a probe adds to registers, if it does nothing else, and no probe at an instruction does anything
        else with these, so that it does not matter when."""
        if not _is_counted(probe) or probe.after is not None or probe.before is None:
            return None
        return None if names_in(probe.before.statements) & self._read_at_sites else self._additions(probe.before)

    def _counting(self, member: _Member, one: _CountedPlace, key: object) -> list[str]:
        """Return the code that adds to registers at a place. key: places where that is equal have the same code, but
        for registers."""
        return self._frame.lowered_once(
            key, partial(count_in, sums=one.sums), label=self._label, offset=one.place, liveness=member.liveness,
            scc=one.scc, vcc=one.vcc,
        )  # fmt: skip

    def _assembled(self, members: Sequence[Sequence[Piece]]) -> tuple[tuple[Insertion, ...], ...]:
        """Return the code of each member as machine code; that of equal lines is assembled once."""
        texts = [["\n".join(piece.lines) for piece in pieces] for pieces in members]
        different = list(dict.fromkeys(text for each in texts for text in each))
        codes = self._llvm.assemble_each(different, self._machine.processor, self._features)
        code_of = dict(zip(different, codes, strict=True))
        return tuple(
            tuple(
                Insertion(piece.offset, code_of[text], piece.ahead_of_label)
                for piece, text in zip(pieces, each, strict=True)
            )
            for pieces, each in zip(members, texts, strict=True)
        )


def _is_counted(probe: Probe) -> bool:
    """Return whether what a probe adds may be added for several sites together, by the lanes of EXEC there."""
    return probe.level is Level.THREAD and probe.lanes is Lanes.EXECUTING


def _of_several(function: Function) -> set[int]:
    """Return the offsets of a function's instructions that consist of several operations: their names tell."""
    rows = function.instructions
    return {
        rows[index].offset for name in rows.names if operations_of(rows.first_named(name)) for index in rows.named(name)
    }


def _ends(function: Function) -> Iterator[tuple[int, int]]:
    """Yield before which instructions a wave's end is probed: its end or the release of its VGPRs; and where that end
    is. Raises CannotError."""
    rows = function.instructions
    targets = {one.target for one in rows if one.target is not None}
    for index, one in enumerate(rows):
        if one.mnemonic == "s_endpgm_saved":
            raise CannotError("it ends by s_endpgm_saved", "end")
        if one.mnemonic != "s_endpgm":
            continue
        place = one.offset
        for before in reversed(rows[max(index - 3, 0) : index]):
            if _DEALLOCATION in before.text:
                place = before.offset
            elif before.mnemonic != "s_nop":
                break
        if any(place < target <= one.offset for target in targets):
            raise CannotError("something leads between the release of its vector registers and its end", "end")
        yield place, one.offset
