"""Where the code at the instructions of one body goes that probes match: next to them, or around the call that they
are part of; and what cannot be written there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe
from neutrino.ptx.analysis.additions import Added, SiteGroups
from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.analysis.matching import Found, Hit, OpcodeHits, Spot
from neutrino.ptx.analysis.surroundings import Locations
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.module_parts import check_load
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.site_writer import Placed, SiteWriter
from neutrino.ptx.instrument.twin import Shown, SiteList
from neutrino.ptx.isa.instruction import Instruction, Mnemonic, guard_register
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Statement
from neutrino.ptx.text.inserted import Edits

_NOT_BY_OPCODE = Added((), 0)  # stands for instructions whose opcode does not decide what is added

def _position(entry: Hit | Spot) -> int:
    """Return the position in the text of a matched instruction, or of a matched place between instructions."""
    return entry.position if isinstance(entry, Spot) else entry.statement.start


_NEXT = re.compile(r"\n\s*(?:@|[a-z]\w*\.[a-z]|(?:ret|exit|trap)\s*\Z)", re.ASCII)
"""A line that begins as an instruction, within what goes on to the next semicolon. No operand looks so."""

# In an operand: a name, or an integer other than 0.
_TOKEN = re.compile(r"(?P<name>[A-Za-z_$%][\w$%]*)|(?<![\w.$%])[1-9]\d*(?![\w.])", re.ASCII)


class SitePlanner:
    """Decides where the code at one body's instructions goes, in text order, and refuses what cannot be written.

    places: the source lines of the body. sites: what it lists them in. emission: gives the emission for trials.
    variables: see ``SiteWriter``. parameters_shape: what of the kernel's parameters decides about code.
    points_to_constants: a generic load may read a constant, which lies elsewhere for the twin.
    """

    def __init__(
        self,
        rewriting: Rewriting,
        callee: Callee,
        places: Locations,
        sites: SiteList,
        emission: Callable[[], Emission],
        variables: Mapping[str, str],
        parameters_shape: Hashable,
        *,
        points_to_constants: bool,
    ) -> None:
        """Prepare to decide where the probes' code at each instruction of one body goes. sites: gets the list of these
        places.

        emission: gives what writes code on trial. parameters_shape: equal for kernels whose parameters lead to equal
        code. points_to_constants: a generic load may read a constant.
        """
        self._rewriting = rewriting
        self._callee = callee
        self._module = callee.module
        self._code = callee.module.code
        self._body = callee.body
        self._facts = rewriting.facts
        self._additions = rewriting.additions
        self._sites = sites
        self._places = places
        self._emission = emission
        self._variables = variables
        self._parameters_shape = parameters_shape
        self._points_to_constants = points_to_constants
        self._calls = bool(self._body.call_sequences)
        # Instructions where writing has been tried: by opcode, guard and probes, where more than these does not matter.
        self._tried: set[tuple[str, str | None, tuple[int, ...]]] = set()
        # By declaration, the beginning of what `_shape` writes for its registers.
        self._words: dict[object, str] = {}

    @lazy
    def _trial(self) -> SiteWriter:
        """A writer whose code is thrown away, to see whether the code of probes can be written."""
        edits = Edits()  # thrown away
        return SiteWriter(
            self._callee, self._facts, self._emission(), edits, variables=self._variables, places=self._places,
            together=0,
        )  # fmt: skip

    def place_all(self, found: Found, groups: SiteGroups) -> tuple[tuple[Placed, ...], tuple[Spot, ...]]:
        """Decide where the code of all matched instructions (hits) and matched places between them (spots) of the body
        goes.

        Returns those that get code; what probes only add is counted in groups. Instructions at which probes only add
        constants, most of them as a rule, are counted by their opcodes, without looking at each. Raises
        UnsupportedError, PtxError.
        """
        hits = found.hits
        if not isinstance(hits, OpcodeHits):
            # Some hits depend on what is around them. In text order, as groups need them; places come before what
            # begins there.
            entries: list[Hit | Spot] = sorted([*found.spots, *hits], key=_position)
            placed_here: list[Placed] = []
            spots: list[Spot] = []
            for entry in entries:
                if isinstance(entry, Spot):
                    spots.append(self._place_spot(entry, groups))
                else:
                    placed_here.append(self._place(entry, groups))
            for place in found.unreachable:
                self._sites.leave_out(self._shown_at(place.at, place.text), place.probes, place.reason)
            with_probes = tuple(spot for spot in spots if spot.probes)
            return tuple(placed for placed in placed_here if placed.has_code), with_probes
        indices, mnemonics = hits.indices, self._body.mnemonics
        by_opcode = self._added_by_opcode(hits)
        added = [by_opcode.get(mnemonics[index], _NOT_BY_OPCODE) for index in indices]
        not_by_opcode = self._not_by_opcode(indices)
        # Indices of the hits that need a look at each; those between them are counted all at once, in text order.
        one_by_one = [at for at, index in enumerate(indices) if index in not_by_opcode or added[at] is _NOT_BY_OPCODE]
        with_code = []
        start = 0
        for at in one_by_one:
            groups.add_all(indices, added, start, at)
            placed = self._place(hits[at], groups)
            if placed.has_code:
                with_code.append(placed)
            start = at + 1
        groups.add_all(indices, added, start, len(indices))
        # `_place` has listed its sites itself; the rest is listed here, with how many probes they have.
        count = sum([len(one.amounts) * sites for one, sites in Counter(added).items()])
        self._sites.add_hits(hits, one_by_one, count - sum([len(added[at].amounts) for at in one_by_one]))
        return tuple(with_code), ()

    def _place_spot(self, spot: Spot, groups: SiteGroups) -> Spot:
        """List a place between instructions as a site; return it with only those of its probes that need code there.

        Constants that the others add are left to groups of sites. Raises UnsupportedError.
        """
        self._sites.add(self._shown_at(spot.at, spot.text), spot.probes, spot.number)
        if spot.before is not None:
            statement = self._body.statement(spot.before)
            split = self._additions.split(spot.probes)
            added = self._additions.added(split, statement) if split.adding else None
            if added is not None:
                # As at the instruction, but under the place's own predicate: the first is for all probes together.
                groups.group_of(spot.guard, statement).add(added[0])
                spot = spot._replace(probes=split.others)
        if spot.probes:
            self._check_spot(spot)
        return spot

    def _shown_at(self, position: int, text: str) -> Shown:
        """Return how a place is shown in manifests: its line, the given text, and the source line."""
        source = self._places.place(position) if self._places else None
        return Shown(self._module.line(position), text, str(source) if source else "")

    def _check_spot(self, spot: Spot) -> None:
        """Raise UnsupportedError for a place where the code of probes cannot be written, found out by a trial."""
        clear = None
        if any(map(self._facts.holds_collective, spot.probes)):
            clear = self._trial.is_clear(spot.position), self._trial.may_exchange(spot.position)
        tried = self._rewriting.tried.shapes
        shape = ("spot", spot.guard is None, spot.is_end, tuple(map(id, spot.probes)), clear, self._parameters_shape)
        if shape not in tried:
            self._trial.write_spot(spot)
            tried[shape] = True

    def _not_by_opcode(self, indices: Sequence[int]) -> set[int]:
        """Return the instructions, by index, at which the opcode does not determine the code of probes.

        These have a guard, or several lines, or are in a call sequence. indices: of the sites.
        """
        body = self._body
        result = {*body.guarded, *body.multiline(indices)}
        for start, end in body.call_sequences:
            result.update(range(body.index_at(start), body.index_at(end) + 1))
        return result

    def _added_by_opcode(self, hits: OpcodeHits) -> dict[Mnemonic | None, Added]:
        """Return, by opcode, the constants that probes add at its unpredicated instructions, where they do nothing
        else."""
        added: dict[Mnemonic | None, Added] = {}
        for opcode, probes in hits.unguarded.items():
            # Such loads are looked at one by one, in `_place`, as is what ends a block or calls.
            is_checked_load = self._points_to_constants and opcode.text.startswith("ld")
            if opcode.flow is None and not is_checked_load:
                alone = self._additions.added_by_opcode(probes, self._body, opcode)
                if alone is not None:
                    added[opcode] = alone
        return added

    def _place(self, hit: Hit, groups: SiteGroups) -> Placed:
        """Decide where the code of one instruction's probes goes: next to it, or around the call sequence that it is
        part of.

        Lists the site, and leaves to groups what its probes only add. Raises UnsupportedError, PtxError.
        """
        statement = hit.statement
        decoded, start, end = statement.mnemonic, statement.start, statement.end
        if decoded is None:
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        if self._code.find("\n", start, end - 1) >= 0:
            # A statement of several lines may be two, the first of which lacks its semicolon.
            self._check_end(statement)
        if self._points_to_constants and decoded.text.startswith("ld"):
            check_load(statement, self._module.line(start))
        probes = hit.probes
        in_call = self._calls and self._body.call_sequence(statement.position) is not None
        # The probes that have a site here.
        shown: Collection[Probe] = probes
        # Whether its additions are no part of a group of sites: a called function may end the thread, so that a thread
        # may execute the sites before a call and not those after it.
        stands_alone = False
        if decoded.flow is not None or in_call or hit.opens or hit.closes:
            if in_call:
                start, end, probes = self._around_call(hit)
            stands_alone = start != statement.start or decoded.flow is Flow.CALL
            # After a branch, ``ret`` or ``exit`` no code runs: only ``before`` snippets go there.
            if decoded.ends_block and any(probe.after for probe in probes):
                self._sites.leave_out(
                    self._shown(statement), [probe for probe in probes if probe.after], "nothing runs after it"
                )
                probes = tuple(probe for probe in probes if probe.before)
                stands_alone = True
            shown = self._facts.in_order((*probes, *hit.opens)) if hit.opens else probes
        self._sites.add(statement, tuple(shown), hit.number)
        split = self._additions.split(probes)
        added = self._additions.added(split, statement) if split.adding and not stands_alone else None
        if added is not None:
            groups.add_site(statement, added)
        placed = Placed(hit, start, end, split.all if added is None else split.others)
        if placed.has_code:
            self._check(placed)
        return placed

    def _check_end(self, statement: Statement) -> None:
        """Raises PtxError when a line of a statement looks like another instruction: a semicolon is missing."""
        text = statement.text
        after_opcode = statement.position - statement.start + len(statement.opcode)
        if next_instruction := _NEXT.search(text, after_opcode):
            line = self._module.line(statement.start)
            raise PtxError(line, text[: next_instruction.start()], "no ';' before the next instruction")

    def _around_call(self, hit: Hit) -> tuple[int, int, tuple[Probe, ...]]:
        """Return the positions before and after a whole call where code of probes on one of its instructions goes, and
        these probes.

        Leaves out probes that read operands of a move of arguments or results, which are not known there. Raises
        UnsupportedError when the call sequence holds other instructions.
        """
        statement = hit.statement
        sequence = self._body.call_sequence(statement.position)
        if sequence is None:
            return statement.start, statement.end, hit.probes
        is_call = statement.word == "call"
        if not self._body.is_plain_call(sequence):
            detail = "shares its braces with other instructions" if is_call else "is part of a call sequence"
            shown = self._shown(statement)
            raise UnsupportedError(f"line {shown.line}: {shown.text!r} {detail}")
        if is_call:
            return sequence[0], sequence[1], hit.probes
        # A move of an argument goes before the call, one of a result after it: not all threads come back from calls.
        side = sequence[0] if statement.opcode.startswith("st") else sequence[1]
        lacking = [probe for probe in hit.probes if self._facts.reads_operands(probe)]
        reason = "it is part of a call, around which its operands are not known"
        self._sites.leave_out(self._shown(statement), lacking, reason)
        return side, side, tuple(probe for probe in hit.probes if probe not in lacking) if lacking else hit.probes

    def _shown(self, statement: Statement) -> Shown:
        """Return how messages and manifests show an instruction: its line, text and source line."""
        return Shown.of(statement, self._module, self._places)

    def _check(self, placed: Placed) -> None:
        """Raise UnsupportedError for a site at which probes lack what they name, or PtxError, found out by a trial.

        One trial is made per opcode, guard and probes where these decide about the code, else per shape of the
        instruction.
        """
        hit = placed.hit
        statement, guard = hit.statement, hit.statement.guard
        probes = tuple(map(id, placed.probes))
        # Not plain: code of source lines, or an instruction that names its own predicate.
        plain = not hit.opens and not hit.closes and not (
            guard and guard_register(guard) in self._code[statement.position : statement.end]
        )  # fmt: skip
        key = (statement.opcode, guard, probes)
        if plain and key in self._tried:
            return
        instruction = statement.instruction
        if instruction is None or not self._code.startswith(";", statement.end - 1):
            start = statement.start
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        if not plain and (hit.opens or hit.closes):
            self._trial.write_snippets(placed)
            return
        # Shared with all modules of these probes. The value: whether opcode and guard alone decide about the code.
        tried_shapes = self._rewriting.tried.shapes
        # Code between lanes is refused at some places between a product and its sum, so that the places matter.
        clear = None
        if any(map(self._facts.holds_collective, placed.probes)):
            sides = placed.start, placed.end
            clear = tuple((self._trial.is_clear(side), self._trial.may_exchange(side)) for side in sides)
        around = clear, self._parameters_shape
        shape = (statement.opcode, guard is None, probes, around, *self._shape(instruction, statement.position))
        if shape not in tried_shapes:
            tried_shapes[shape] = self._trial.write_snippets(placed)
        if plain and tried_shapes[shape]:
            self._tried.add(key)

    def _shape(self, instruction: Instruction, position: int) -> Iterator[str]:
        """Yield an instruction's operands with each register's name replaced by how it is declared and whether it is
        written.

        Instructions for which this is equal get equal code of probes, but for names.
        """
        written = instruction.written
        declared = self._body.declaration

        def replacement(match: re.Match[str]) -> str:
            """Return what stands for a name or number in the text of an operand: of a register how it is declared."""
            name = match["name"]
            if name is None:
                return "1"  # for every integer other than 0: only an offset of 0 needs no addition
            declaration = declared(name, position)
            if declaration is None:
                return f"[{name in self._variables}]{name}"
            known = self._words.get(declaration)
            if known is None:
                known = f"<{declaration.space} {declaration.type} {declaration.is_vector}"
                self._words[declaration] = known
            return f"{known} {name in written}>"

        return (_TOKEN.sub(replacement, operand) for operand in instruction.operands)
