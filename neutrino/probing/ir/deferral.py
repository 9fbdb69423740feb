"""Which code of probes may run later than at its site: what stands under a condition that is unlikely.

On targets that defer code, ``if nl.unlikely(condition):`` becomes a test of the condition at the site, and its code
after a later site, for several sites under one branch: if none of the conditions was true, none of the code would have
done anything. There each condition is computed again, in the order of the sites, so that each sees what the code before
it has changed. What of a condition does not depend on the site is tested once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from neutrino.abi.levels import Level
from neutrino.ir.operands import Constant, Inverted, Pair, Register, SiteOperand, Special
from neutrino.ir.statements import (
    Assembly,
    ClockAfter,
    Collective,
    Compare,
    Computation,
    Convert,
    Load,
    Operation,
    Operator,
    Reinterpret,
    Relation,
    Shuffle,
)
from neutrino.ir.types import Type
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import For, If, Save, Statement, While, walk

_NOT_LATER = frozenset({"LANES", "LEADER", "ELECTED", "HAS", "ELEMENTS", "SECTORS", "DISTINCT"})
"""Values of a site that other lanes have a part in; and those that snippets are specialized for."""


_INFINITY = Constant(Type.F32, 0x7F800000)
_SIZE = 0x7FFF
"""The bits of half a word that are not its sign."""
_PAIRS = {0x7C00: "f16x2", 0x7F80: "bf16x2"}
"""By the infinity of a half, the type of both."""


@dataclass(frozen=True)
class Parts:
    """The typed statements of a snippet with an unlikely ``If``, by where they go.

    here: what stays at the site. test: what computes there whether the ``If`` may be taken: if all of ``conditions``
    are true. state: the same of what does not depend on the site, and is computed where ``later`` stands, the ``If``
    itself with all that it reads. once, extremes, nan, of_out, halves, is_counting: see
    ``Deferral``.
    """

    here: tuple[Statement, ...]
    test: tuple[Statement, ...]
    conditions: tuple[Register, ...]
    state: tuple[Statement, ...]
    state_conditions: tuple[Register, ...]
    later: tuple[Statement, ...]
    once: tuple[Statement, ...] | None
    extremes: tuple[Register, Register] | None = None
    nan: str | None = None
    of_out: bool = False
    halves: str | None = None
    is_counting: bool = False


def deferrable(probes: ProbeSet) -> dict[int, Parts]:
    """Return the parts of the snippets of a set whose unlikely code may run later, by the snippet's id.

    It may if nothing else at sites reads or writes what it writes, nor writes what it reads: registers, and maps in
    which the order of records counts. Code at a kernel's entry and ends comes before and after all of it.
    """
    found: dict[int, Parts] = {}
    others: list[Statement] = []
    for probe in probes.probes:
        if probe.tracepoint.is_kernel:
            continue
        for snippet in (probe.before, probe.after):
            parts = _parts(snippet.statements) if snippet is not None and probe.level is Level.THREAD else None
            if snippet is not None and parts is not None:
                found[id(snippet)] = parts
            others += parts.here if parts is not None else snippet.statements if snippet is not None else ()
    # What has to stay at its site may touch what others would do later.
    while bad := [key for key, parts in found.items() if not _is_apart(parts.later, others)]:
        for key in bad:
            others += found.pop(key).later
    return {key: _without_reset(parts, found.values()) for key, parts in found.items()}


def _without_reset(parts: Parts, every: Iterable[Parts]) -> Parts:
    """Return parts without ``nan`` if other parts that run later may make their state hold again. every: all parts."""
    if parts.nan is None:
        return parts
    read = _shared(parts.state)[0] | {register.name for register in parts.state_conditions if not register.is_local}
    written = (_shared(each.later)[1] for each in every if each.once != parts.once)
    return parts if read.isdisjoint(set().union(*written)) else replace(parts, nan=None)


def branching(statements: Sequence[Statement]) -> tuple[Sequence[Statement], If, bool] | None:
    """Return what comes before a snippet's last statement, and that: an unlikely ``If`` which shares no local register
    but its condition with the rest, and whether it reads a clock; None for other snippets.

    If it reads a clock, its condition is computed from registers alone: a clock that waits for a value shall not wait
    where that is false. Else no lanes exchange values, some of which are not there.
    """
    *others, last = statements or (None,)
    if not isinstance(last, If) or not last.unlikely or last.otherwise:
        return None
    inside = {each.name for one in walk(last.then) for each in (*_read(one), *_written(one)) if each.is_local}
    outside = {each.name for one in walk(others) for each in (*_read(one), *_written(one)) if each.is_local}
    if not inside.isdisjoint({*outside, last.condition.name}):
        return None
    if any(map(_reads_clock, walk(last.then))):
        asks = any(isinstance(node, SiteOperand) for each in others for node in _nodes(each))
        return None if asks else (others, last, True)
    stays = last.condition.is_local and all(map(_may_wait, walk((*others, last))))
    return (others, last, False) if stays else None


def _reads_clock(statement: Statement) -> bool:
    """Return whether a statement reads the cycles of the multiprocessor."""
    return isinstance(statement, ClockAfter) or any(node is Special.CLOCK for node in _nodes(statement))


def _is_apart(later: Sequence[Statement], others: Sequence[Statement]) -> bool:
    """Whether deferred code shares nothing with code that stays at its sites."""
    read, written = _shared(later)
    others_read, others_written = _shared(others)
    if not written.isdisjoint(others_read) or not (read | written).isdisjoint(others_written):
        return False
    return not any(_is_ordered(entry) and name in _saved(others) for name, entry in _saved(later).items())


def _saved(statements: Iterable[Statement]) -> dict[str, Map]:
    """The maps that statements save to, by name."""
    return {each.map.name: each.map for each in walk(statements) if isinstance(each, Save)}


def _is_ordered(entry: Map) -> bool:
    """Whether the order in which a thread saves to a map counts. Each addition of floats rounds."""
    return entry.kind.layout is not Layout.COPIES or any(kind.type.value[0] == "f" for kind in entry.fields)


def _shared(statements: Iterable[Statement]) -> tuple[set[str], set[str]]:
    """Return the registers, by name, that statements read, and that they write, of those that all snippets share."""
    read: set[str] = set()
    written: set[str] = set()
    for statement in walk(statements):
        read |= {register.name for register in _read(statement) if not register.is_local}
        written |= {register.name for register in _written(statement) if not register.is_local}
    return read, written


def _parts(statements: Sequence[Statement]) -> Parts | None:
    """Return the parts of a snippet; None if it has no unlikely ``If`` that may run later."""
    branches = [statement for statement in statements if isinstance(statement, If) and statement.unlikely]
    if branches and all(branch.otherwise for branch in branches):
        return _extremes(statements, branches)
    if len(branches) != 1 or branches[0].otherwise:
        return None
    (branch,) = branches
    others = [statement for statement in statements if statement is not branch]
    inside = {register.name for each in walk(branch.then) for register in _written(each) if register.is_local}
    outside = {register.name for each in walk(others) for register in (*_read(each), *_written(each))}
    read = {register.name for each in walk((branch,)) for register in _read(each) if register.is_local} - inside
    values = _Values(others)
    needed = values.of(read)
    if needed is None or not inside.isdisjoint(outside) or not all(map(_may_wait, walk((*needed, branch)))):
        return None
    site: list[Register] = []
    state: list[Register] = []
    for leaf in values.conjuncts(branch.condition):
        computed = values.of({leaf.name}) if leaf.is_local else ()
        asks = any(isinstance(node, SiteOperand) for each in computed or () for node in _nodes(each))
        (site if asks else state).append(leaf)
    tests = values.of({leaf.name for leaf in site})
    states = values.of({leaf.name for leaf in state if leaf.is_local})
    if not site or tests is None or states is None:
        return None
    is_once = any(values.ends(leaf, branch.then) for leaf in state) and all(
        node == SiteOperand("SITE") or (not isinstance(node, SiteOperand) and getattr(node, "name", "") not in read)
        for each in walk(branch.then) for node in _nodes(each)
    )  # fmt: skip
    return Parts(
        _with_effect(others), tests, tuple(site), states, tuple(state), (*needed, branch),
        branch.then if is_once else None, None, values.type_of_nan(site) if is_once else None,
    )  # fmt: skip


def _with_effect(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return statements, or none if they only compute local values."""
    has_effect = any(not isinstance(each, Computation) or not each.destination.is_local for each in statements)
    return tuple(statements) if has_effect else ()


def _extremes(statements: Sequence[Statement], branches: Sequence[If]) -> Parts | None:
    """Return the parts of a snippet that lowers and raises two registers to values, but where these are not finite.

    Of several sites the least and the greatest value decide whether all are finite. None of any other snippet.
    """
    others = [statement for statement in statements if statement not in branches]
    values = _Values(others)
    found: list[Register] = []
    extremes: set[tuple[Register, Register]] = set()
    for branch in branches:
        value = values.unless_finite(branch.condition)
        raised = {each.operator: each.destination for each in branch.otherwise if isinstance(each, Operation)
                  and each.operator in {Operator.MIN, Operator.MAX} and value in each.sources
                  and each.destination in each.sources and not each.destination.is_local}  # fmt: skip
        if value is None or len(raised) != 2 or len(branch.otherwise) != 2:
            return None
        found.append(value)
        extremes.add((raised[Operator.MIN], raised[Operator.MAX]))
    inside = {register.name for each in walk(branches) for register in _written(each) if register.is_local}
    outside = {register.name for each in walk(others) for register in (*_read(each), *_written(each))}
    needed = values.of({each.name for branch in walk(branches) for each in _read(branch) if each.is_local} - inside)
    tests = values.of({value.name for value in found})
    if needed is None or tests is None or len(extremes) != 1 or not inside.isdisjoint(outside):
        return None
    if any(not each.is_local for statement in needed for each in _read(statement)):
        return None
    if not all(map(_may_wait, walk((*needed, *branches)))):
        return None
    (pair,) = extremes
    # What becomes of the two registers elsewhere in the branches would come too late.
    if any(register in (*_read(each), *_written(each)) for each in walk(
        [inner for branch in branches for inner in branch.then]) for register in pair):  # fmt: skip
        return None
    return Parts(
        _with_effect(others), tests, tuple(found), (), (), (*needed, *branches), None, pair,
        of_out=len(found) == 1 and values.is_out(found[0]), halves=values.type_of_halves(found),
        is_counting=all(_is_counting(each) for each in walk([inner for branch in branches for inner in branch.then])),
    )  # fmt: skip


def _is_counting(statement: Statement) -> bool:
    """Whether a statement computes local values, or adds a constant to a register, and reads no other that is shared.

    The order in which such statements run makes no difference.
    """
    shared = [register for register in _read(statement) if not register.is_local]
    if isinstance(statement, If):
        return not shared
    if not isinstance(statement, Computation):
        return False
    if statement.destination.is_local:
        return not shared
    return (
        isinstance(statement, Operation) and statement.operator is Operator.ADD and shared == [statement.destination]
        and statement.destination.type.is_integer and any(isinstance(each, Constant) for each in statement.sources)
    )  # fmt: skip


class _Values:
    """The values that some statements of a snippet compute into local registers, each register by one statement."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        """Collect the statements that compute values. Registers that several assign have none that is known."""
        self._statements = statements
        names = Counter(register.name for each in walk(statements) for register in _written(each))
        self._known = {
            each.destination.name: each for each in statements
            if isinstance(each, Computation) and each.destination.is_local and names[each.destination.name] == 1
        }  # fmt: skip

    def of(self, names: Iterable[str]) -> tuple[Statement, ...] | None:
        """Return the statements that compute local registers, in order; None where one is not known."""
        work = list(names)
        needed: set[str] = set()
        while work:
            name = work.pop()
            if name in needed:
                continue
            if name not in self._known:
                return None
            needed.add(name)
            work += [register.name for register in _read(self._known[name]) if register.is_local]
        return tuple(self._known[name] for name in self._known if name in needed)

    def conjuncts(self, condition: Register) -> Iterator[Register]:
        """Yield the predicates all of which are true where a condition is."""
        statement = self._known.get(condition.name)
        if isinstance(statement, Operation) and statement.operator is Operator.AND:
            for source in statement.sources:
                if isinstance(source, Register):
                    yield from self.conjuncts(source)
        else:
            yield condition

    def type_of_nan(self, conditions: Sequence[Register]) -> str | None:
        """Return the type, as opcodes have it, of which ``OUT`` is a NaN, or has one, where conditions are true.

        None of other conditions.
        """
        if len(conditions) != 1:
            return None
        compare = self._known.get(conditions[0].name)
        if isinstance(compare, Compare) and compare.relation is Relation.NE and compare.left == compare.right:
            out = self._out(compare.left)
            return out.type.value if out is not None and out.type.is_float else None
        halves = [self._half(source) for source in compare.sources] if isinstance(compare, Operation) else []
        if len(halves) != 2 or not isinstance(compare, Operation) or compare.operator is not Operator.OR:
            return None
        (register, shift, least), other = halves
        is_pair = register is not None and {shift, other[1]} == {0, 16} and other[::2] == (register, least)
        return _PAIRS.get(least) if is_pair else None

    def is_out(self, value: Register) -> bool:
        """Whether a value is ``OUT`` as it is."""
        return self._out(value) is not None

    def type_of_halves(self, found: Sequence[Register]) -> str | None:
        """Return the type, as opcodes have it, of ``OUT``, if values are its two halves, widened; else None."""
        halves = [self._widened_half(value) for value in found]
        kinds = {half[0] for half in halves if half is not None}
        is_pair = len(kinds) == 1 and sorted(half[1] for half in halves if half is not None) == [0, 16]
        return kinds.pop() if is_pair and len(halves) == 2 else None

    def _widened_half(self, value: Register) -> tuple[str, int] | None:
        """Return the type of the pair that a value is half of, and by which bit the half begins; None if it is none."""
        statement = self._known.get(value.name)
        if isinstance(statement, Convert) and getattr(statement.source, "type", None) is Type.F16:
            word = self._unchanged(statement.source)
            shifted = self._with_constant(word, Operator.SHR) or (word, 0)
            return ("f16x2", shifted[1]) if self._out(shifted[0]) is not None else None
        # A bf16 is the upper half of an f32.
        word = self._unchanged(value)
        for operator, constant, begin in ((Operator.AND, 0xFFFF0000, 16), (Operator.SHL, 16, 0)):
            found = self._with_constant(word, operator)
            if found is not None and found[1] == constant and self._out(found[0]) is not None:
                return "bf16x2", begin
        return None

    def _unchanged(self, value: Any) -> Any:
        """Return the register of which a value has the bits, or the lower ones of a word."""
        statement = self._known.get(getattr(value, "name", ""))
        is_cut = (
            isinstance(statement, Convert) and statement.destination.type is Type.U16
            and getattr(statement.source, "type", None) is Type.U32
        )  # fmt: skip
        if isinstance(statement, Reinterpret) or (is_cut and isinstance(statement, Convert)):
            return self._unchanged(statement.source)
        if isinstance(statement, Operation) and statement.operator is Operator.MOVE:
            return self._unchanged(statement.sources[0])
        return value

    def _out(self, value: Any) -> Register | None:
        """Return the register that a value is, if ``OUT`` was loaded into it."""
        load = self._known.get(getattr(value, "name", ""))
        return load.destination if isinstance(load, Load) and load.operand == SiteOperand("OUT") else None

    def _half(self, condition: Any) -> tuple[Register | None, int, int]:
        """Return what a condition of the form ``(OUT >> shift & 0x7FFF) > least`` consists of; a None for any other."""
        compare = self._known.get(getattr(condition, "name", ""))
        if not isinstance(compare, Compare) or compare.relation is not Relation.GT:
            return None, 0, 0
        masked, least = self._with_constant(compare.left, Operator.AND), compare.right
        if masked is None or masked[1] != _SIZE or not isinstance(least, Constant):
            return None, 0, 0
        shifted = self._with_constant(masked[0], Operator.SHR) or (masked[0], 0)
        return self._out(shifted[0]), shifted[1], least.bits

    def _with_constant(self, value: Any, operator: Operator) -> tuple[Any, int] | None:
        """Return the operands of an operation with a constant that gives a value."""
        operation = self._known.get(getattr(value, "name", ""))
        if not isinstance(operation, Operation) or operation.operator is not operator:
            return None
        left, right = operation.sources
        return (left, right.bits) if isinstance(right, Constant) else None

    def unless_finite(self, condition: Register) -> Register | None:
        """Return the f32 of which a condition says that it is infinite or a NaN: ``not abs(value) < infinity``."""
        statement = self._known.get(condition.name)
        if not isinstance(statement, Operation) or statement.operator is not Operator.NOT:
            return None
        compare = self._known.get(getattr(statement.sources[0], "name", ""))
        if not isinstance(compare, Compare) or compare.relation is not Relation.LT:
            return None
        size = self._known.get(getattr(compare.left, "name", ""))
        if not isinstance(size, Operation) or size.operator is not Operator.ABS or compare.right != _INFINITY:
            return None
        (value,) = size.sources
        return value if isinstance(value, Register) and value.is_local else None

    def ends(self, condition: Register, statements: Sequence[Statement]) -> bool:
        """Whether a condition, that a register has some value, is false after statements, since they assign another."""
        compare = self._known.get(condition.name)
        if not isinstance(compare, Compare) or compare.relation is not Relation.EQ:
            return False
        register, wanted = compare.left, compare.right
        if isinstance(register, Constant):
            register, wanted = wanted, register
        if not isinstance(register, Register) or register.is_local or not isinstance(wanted, Constant):
            return False
        if wanted.type.is_float:
            return False
        assigned = [each for each in walk(statements) if register in _written(each)]
        return len(assigned) == 1 and assigned[0] in statements and _is_other(assigned[0], wanted)


def _is_other(statement: Statement, number: Constant) -> bool:
    """Whether a statement assigns a constant that is another one."""
    if not isinstance(statement, Operation) or statement.operator is not Operator.MOVE:
        return False
    (source,) = statement.sources
    return isinstance(source, Constant) and source.type == number.type and source.bits != number.bits


def _may_wait(statement: Statement) -> bool:
    """Whether a statement does the same some instructions later: but for times, which are those of then."""
    if isinstance(statement, (Assembly, Collective, Shuffle, ClockAfter)):
        return False
    if isinstance(statement, Save) and statement.map.kind.layout is Layout.CHUNKS:
        return False
    return not any(
        node is Special.CLOCK or (isinstance(node, SiteOperand) and node.name in _NOT_LATER)
        for node in _nodes(statement)
    )


def _written(statement: Statement) -> tuple[Register, ...]:
    """The registers that a statement itself assigns, not those inside it."""
    if isinstance(statement, Computation):
        return (statement.destination,)
    if isinstance(statement, For):
        return (statement.variable,)
    return statement.writes if isinstance(statement, Assembly) else ()


def _read(statement: Statement) -> list[Register]:
    """The registers that a statement itself reads, not those inside it. Assembly may read all that it names."""
    return [node for node in _nodes(statement) if isinstance(node, Register)]


def _nodes(statement: Statement) -> Iterator[Any]:
    """Yield the registers, constants and values of the site that a statement reads."""
    if isinstance(statement, (If, While)):
        yield statement.condition
        return
    work = [
        getattr(statement, name) for name in statement.__dataclass_fields__
        if name not in {"destination", "span", "map", "places", "body", "variable"}
    ]  # fmt: skip
    while work:
        node = work.pop()
        if isinstance(node, tuple):
            work += node
        elif isinstance(node, Inverted):
            work.append(node.operand)
        elif isinstance(node, Pair):
            work += [node.first, node.second]
        else:
            yield node
