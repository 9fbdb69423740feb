"""Tallies: from few counters come the sums that adding everything up gives, also over a warp, for any counts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.ptx.analysis.counter_placement import CounterPlan, Fork, Row, SumFormula, plan_counters
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.text.body import Body

_LANES = 32
_RANDOM = st.integers(0, 2**32 - 1).map(Random)
"""Not ``st.randoms``: a failure would be made smaller in thousands of numbers, for longer than a test may take."""
_AMOUNTS = st.one_of(st.integers(1, 9), st.sampled_from([16, 4096, 1 << 20, (1 << 30) - 1]))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Row], dict[Hashable, int], list[Fork]]:
    """Rows, widths of the sums, and forks between rows."""
    widths: dict[Hashable, int] = {key: draw(st.sampled_from((32, 64))) for key in range(draw(st.integers(1, 6)))}
    shapes = draw(st.lists(st.dictionaries(st.sampled_from(sorted(widths)), _AMOUNTS), min_size=1, max_size=4))
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        shape, times = draw(st.sampled_from(shapes)), draw(st.integers(1, 3))
        how = draw(st.sampled_from(("often", "once", "always")))
        rows.append(Row({key: amount * times for key, amount in shape.items()}, how != "often", how == "always"))
    # Threads that come to a branch, that take it, and that stay: no row is in two of these pairs.
    forks = []
    for start in range(0, len(rows) - 2, 3):
        if draw(st.booleans()):
            come, take, stay = rows[start : start + 3]
            rows[start + 1] = Row(take.amounts, come.once, False)
            rows[start + 2] = Row(stay.amounts, come.once, False)
            forks.append(Fork(start, start + 1, start + 2))
    return rows, widths, forks


def _counts(rows: Sequence[Row], forks: Sequence[Fork], random: Random) -> list[int]:
    """How often one thread comes by each row."""
    often, once = (0, 1, 5, 10**7), (0, 1)
    counts = [1 if row.always else random.choice(once if row.once else often) for row in rows]
    for come, take, stay in forks:
        counts[stay] = random.randint(0, counts[come])
        counts[take] = counts[come] - counts[stay]
    return counts


def _value(formula: SumFormula, words: Sequence[int], threads: int) -> int:
    total = formula.constant * threads
    for part in formula.terms:
        word = words[part.counter] >> part.shift
        total += (word & ((1 << part.width) - 1) if part.width else word) * part.factor
    return total


def _counted(plan: CounterPlan, counts: Sequence[int]) -> list[int]:
    words = [0] * len(plan.counters)
    for count, adds in zip(counts, plan.adds, strict=True):
        for counter, amount in adds:
            assert 0 < amount < 1 << plan.counters[counter].bits
            words[counter] = (words[counter] + count * amount) % (1 << plan.counters[counter].bits)
    return words


@given(_cases(), _RANDOM)
@settings(max_examples=150, deadline=None)
def test_sums_come_out(case: tuple[list[Row], dict[Hashable, int], list[Fork]], random: Random) -> None:
    rows, widths, forks = case
    plan = plan_counters(rows, widths, forks)
    lanes = [_counts(rows, forks, random) for _ in range(_LANES)]
    wanted = {
        key: [sum(n * row.amounts.get(key, 0) for n, row in zip(counts, rows, strict=True)) for counts in lanes]
        for key in widths
    }
    words = [_counted(plan, counts) for counts in lanes]
    over_warp = [sum(column) for column in zip(*words, strict=True)]
    for counter, total in zip(plan.counters, over_warp, strict=True):
        assert not counter.packed or total < 1 << 32
    for key, width in widths.items():
        formula = plan.formulas.get(key, SumFormula())
        for own, value in zip(words, wanted[key], strict=True):
            assert (_value(formula, own, 1) - value) % (1 << width) == 0
            assert formula.most is None or value <= formula.most
        assert (_value(formula, over_warp, _LANES) - sum(wanted[key])) % (1 << width) == 0


def test_what_is_cheap() -> None:
    """Sums in one proportion have one counter, as have rows; what runs once at most shares a word."""
    loop = Row({"loads": 8, "stores": 4}, False, False)
    plan = plan_counters([loop, loop], {"loads": 64, "stores": 64})
    assert ([counter.bits for counter in plan.counters], plan.adds) == ([64], (((0, 4),), ((0, 4),)))
    once = [Row({"loads": 8, "atomics": 1}, True, False), Row({"stores": 4}, True, False)]
    plan = plan_counters(once, {"loads": 64, "stores": 64, "atomics": 64})
    assert [counter.bits for counter in plan.counters] == [32]
    always = Row({"loads": 8, "stores": 4}, True, True)
    plan = plan_counters([always, always], {"loads": 64, "stores": 64})
    assert (plan.counters, plan.formulas["loads"]) == ((), SumFormula(16))


def test_a_taken_branch_is_no_counter() -> None:
    rows = [Row({"all": 5}, False, False), Row({"all": 1, "branch": 1}, False, False), Row({"all": 2}, True, False)]
    plan = plan_counters(rows, {"all": 64, "branch": 64}, [Fork(0, 1, 2)])
    assert plan.adds[1] == ()
    assert sum(counter.bits for counter in plan.counters) == 96
    assert len(plan_counters(rows, {"all": 64, "branch": 64}).counters) == 2


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """Instructions, labels, and branches to any of these."""
    statement = st.one_of(
        st.just("add.u32 %r1, %r1, 1;"), st.integers(0, 3).map(lambda label: f"@%p1 bra L{label};"),
        st.integers(0, 3).map(lambda label: f"bra.uni L{label};"), st.sampled_from(["@%p1 ret;", "ret;", "@%p1 trap;"]),
    )  # fmt: skip
    statements = draw(st.lists(statement, min_size=3, max_size=14))
    for label in range(4):
        at = draw(st.integers(0, len(statements) - 1))
        statements[at] = f"L{label}: {statements[at]}"
    return f"{{ {' '.join(statements)} ret; }}"


@given(_texts(), _RANDOM)
@settings(max_examples=200, deadline=None)
def test_how_often_threads_come_by(text: str, random: Random) -> None:
    """Against walks that take branches by chance."""
    body = Body(text, 0, len(text))
    found = [statement for statement in body if statement.mnemonic is not None]
    places = [statement.start for statement in found]
    graph = FlowGraph(body)
    for _ in range(20):
        visits = [0] * len(found)
        at = 0
        for _ in range(200):
            visits[at] += 1
            runs = found[at].guard is None or random.random() < 0.5
            word = found[at].word
            if runs and word in {"ret", "trap"}:
                break
            if runs and word == "bra":
                label = found[at].text.split()[-1]
                at = next(index for index, place in enumerate(places) if place > text.index(f"{label}:"))
            else:
                at += 1
        assert all(count <= 1 for count, place in zip(visits, found, strict=True) if graph.runs_once(place.index))
        if found[at].word == "ret":
            for count, place in zip(visits, found, strict=True):
                assert count == 1 or not graph.runs_always(place.index)


def test_branches_by_a_table() -> None:
    """They go to the labels of their table; to any label if that is not found."""
    text = "{ add.u32 %r1, %r1, 1; T: .branchtargets A, B; brx.idx %r3, T; A: add.u32 %r1, %r1, 1; B: ret; }"
    first, table, branch, jumped, end = range(5)
    for name, is_known in (("T", True), ("U", False)):
        changed = text.replace("%r3, T", f"%r3, {name}")
        body = Body(changed, 0, len(text))
        graph = FlowGraph(body)
        assert [body.statement(at).word for at in (first, branch, jumped)] == ["add", "brx", "add"]
        assert not graph.runs_always(jumped)
        assert [graph.runs_once(at) for at in (table, branch)] == [is_known] * 2
        assert graph.runs_always(first)
        after = [graph.block(jumped), graph.block(end)]
        assert graph.successors[graph.block(branch)] == (after if is_known else [graph.block(table), *after])


def test_code_behind_the_end_is_no_loop() -> None:
    """As compilers lay it out: what branches back there does not run after it."""
    text = "{ @%p1 bra A; bra.uni C; A: add.u32 %r1, %r1, 1; ret; C: add.u32 %r1, %r1, 1; @%p2 bra C; bra.uni A; }"
    body = Body(text, 0, len(text))
    graph = FlowGraph(body)
    first, second = (statement.index for statement in body if statement.word == "add")
    assert (graph.runs_once(first), graph.runs_always(first)) == (True, True)
    assert (graph.runs_once(second), graph.runs_always(second)) == (False, False)
