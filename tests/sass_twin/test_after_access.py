"""Code after loads: that of ``latency`` and of others in kernels, and mutants of it, which the checker has to refuse.

The mutants are made of what stands in the twin: the move that waits for the result, the clock, the branch to the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machine_code_sums import SOURCE
from neutrino.api import load_probes
from neutrino.backend.sass_access_code import AccessCode
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import NO_BARRIER, READ_BARRIER, STALL, WAIT, WRITE_BARRIER, Field
from neutrino.sass.twin import control
from neutrino.sass.twin.checking import check_code
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.hazards import Columns
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probe_code import packed
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.kernels.cases import cases
from tests.sass_machine.launching import cut_of
from tests.sass_twin.listing import assemble, tool

_TARGET, _FIRST, _SECOND, _CHOICE = Field(16, 8), Field(24, 8), Field(32, 8), Field(87, 4)
_DESTINATION = range(16, 24)
_MOVE, _BRANCH, _NOP = 0x202, 0x947, 0x918
_PUT_BY, _GIVE_BACK = 0x803, 0x804
_KERNELS = ("predicated", "calls")
"""Loads under predicates; loads in functions."""
_ALL_PREDICATES = "nested_loops"


class _Twin:
    """A kernel's twin, and where the parts of its trampolines are (numbers of instructions)."""

    def __init__(self, cut: bytes, kernel: str, code: ProbeCode) -> None:
        twin = code.twin_of(cut, kernel, "cut")
        self.old = read_cubin(cut, "cut").kernels[kernel]
        new = read_cubin(twin.data, "twin").kernels[kernel]
        self.words = instruction_words(new.code)
        base = new.parameter_base + twin.parameter_offset
        self.around = Surroundings(
            self.old.registers, (base, base + code.block_size), new.parameter_base, None, twin.reference
        )
        self.columns = Columns(decode(new.code, 90))
        self.sites = [place // 16 for place in twin.accesses]
        self.begins = [place // 16 for place in twin.accesses.values()]
        originals = instruction_words(self.old.code)
        self.loads = [
            next(at for at in range(begin, len(self.words)) if self.words[at] == originals[site] & ~(0xF << 122))
            for begin, site in zip(self.begins, self.sites, strict=True)
        ]
        self.backs = [
            next(at for at in range(load, len(self.words)) if self.words[at] & 0xFFFF == _BRANCH | 7 << 12)
            for load in self.loads
        ]

    def check(self, words: list[int]) -> list[str]:
        return [one.rule for one in check_code(self.old.code, packed(words), self.around)]

    def arrival(self, number: int = 0) -> int:
        """The move that waits for the result of a load."""
        load = self.loads[number]
        result = _TARGET.get(self.words[load])
        return next(
            at for at in range(load, self.backs[number])
            if self.words[at] & 0xFFF == _MOVE and _SECOND.get(self.words[at]) == result
        )  # fmt: skip

    def clock(self, number: int = 0) -> int:
        """The clock after a load."""
        return next(at for at in range(self.loads[number], self.backs[number]) if self.columns.names[at] == "CS2R")

    def leap(self, number: int = 0) -> int:
        """The branch to the end."""
        return next(at for at in range(self.loads[number], self.backs[number]) if self.columns.names[at] == "BRA")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return Cutter(assemble(SOURCE.read_text(), "sm_90", tmp_path_factory.mktemp("kernels")), "kernels")


@pytest.fixture(scope="module")
def codes() -> dict[int, ProbeCode]:
    """The code that measures one load in 16, and that which measures all."""
    tool("ptxas")
    assembler = find_assembler()
    return {one: ProbeCode(load_probes(["latency"], defines={"SAMPLE": one}), "sm_90", assembler) for one in (16, 1)}


@pytest.fixture(scope="module", params=[(kernel, sample) for kernel in _KERNELS for sample in (16, 1)])
def twin(request: pytest.FixtureRequest, kernels: Cutter, codes: dict[int, ProbeCode]) -> _Twin:
    kernel, sample = request.param
    return _Twin(kernels.cut(kernel), kernel, codes[sample])


@pytest.fixture(scope="module", params=_KERNELS)
def sampled(request: pytest.FixtureRequest, kernels: Cutter, codes: dict[int, ProbeCode]) -> _Twin:
    return _Twin(kernels.cut(request.param), request.param, codes[16])


def _with(words: list[int], changes: dict[int, int]) -> list[int]:
    return [changes.get(at, word) for at, word in enumerate(words)]


def _moved(words: list[int], what: int, to: int) -> list[int]:
    """An instruction elsewhere; those between move by one."""
    out = list(words)
    out.insert(to, out.pop(what))
    return out


def test_the_twin_itself_passes(twin):
    assert len(twin.loads) >= 2
    assert twin.check(twin.words) == []
    assert all(WAIT.get(twin.words[twin.arrival(one)]) >> WRITE_BARRIER.get(twin.words[twin.loads[one]]) & 1
               for one in (0, 1))  # fmt: skip


def test_the_wait_for_the_result(twin):
    at = twin.arrival()
    barrier = WRITE_BARRIER.get(twin.words[twin.loads[0]])
    early = "is read before its scoreboard says that it is there"
    # Dropped, and on each other scoreboard.
    for wait in (0, *(1 << other for other in range(6) if other != barrier)):
        rules = twin.check(_with(twin.words, {at: WAIT.put(twin.words[at], wait)}))
        assert any(early in rule for rule in rules), wait
    # Only after the register was read.
    later = at + 1
    changes = {at: WAIT.put(twin.words[at], 0), later: WAIT.put(twin.words[later], 1 << barrier)}
    assert any(early in rule for rule in twin.check(_with(twin.words, changes)))
    # In the cycle after the load took it.
    load = twin.loads[0]
    soon = {load: STALL.put(twin.words[load], 1), load + 1: WAIT.put(twin.words[load + 1], 1 << barrier)}
    assert "a scoreboard is waited for in the cycle after it was taken" in twin.check(_with(twin.words, soon))


def test_the_clock_before_the_wait(twin):
    words = _moved(twin.words, twin.clock(), twin.arrival())
    rules = twin.check(words)
    assert "the clock is read after a load whose result was not waited for" in rules
    # The same in what ptxas assembled, so that nothing else would notice.
    waits = twin.arrival()
    late = {waits: WAIT.put(twin.words[waits], 0)}
    assert "the clock is read after a load whose result was not waited for" in twin.check(_with(twin.words, late))


def test_the_result_is_that_of_the_load(twin):
    at = twin.arrival()
    own = _SECOND.get(twin.words[at])
    for other in (own + 1, own - 1, _TARGET.get(twin.words[twin.loads[1]]), 255):
        assert twin.check(_with(twin.words, {at: _SECOND.put(twin.words[at], other)})), other
    # Read before the load.
    assert twin.check(_moved(twin.words, at, twin.loads[0]))


def test_the_guard_of_the_load(twin):
    choices = [at for at in range(twin.loads[0], twin.backs[0]) if twin.columns.names[at] == "SEL"
               and _FIRST.get(twin.words[at]) == 255]  # fmt: skip
    assert choices
    for other in (7, 0, 8, 1):
        assert twin.check(_with(twin.words, {choices[0]: _CHOICE.put(twin.words[choices[0]], other)})), other


def test_both_sides_of_one_load(twin):
    begin, load, back = twin.begins[0], twin.loads[0], twin.backs[0]
    # Swapped.
    words = [*twin.words[:begin], *twin.words[load + 1 : back], twin.words[load], *twin.words[begin:load],
             *twin.words[back:]]  # fmt: skip
    assert len(words) == len(twin.words)
    assert twin.check(words)
    # All before the load, and all after it.
    assert twin.check(_moved(twin.words, load, back - 1))
    assert twin.check(_moved(twin.words, load, begin))
    # The load is there twice.
    nothing = next(at for at in range(load + 1, back) if twin.words[at] & 0xFFF == _NOP)
    assert "the displaced instruction is another than the site's, or there twice" in twin.check(
        _with(twin.words, {nothing: twin.words[load]})
    )


def test_code_after_another_load(twin):
    """The code after the first load behind the second one, and the reverse."""
    parts = [twin.words[load + 1 : back] for load, back in zip(twin.loads, twin.backs, strict=True)]
    if len(parts[0]) != len(parts[1]):
        pytest.fail("both loads have the same code, of one length")
    for number in (0, 1):
        words = list(twin.words)
        words[twin.loads[number] + 1 : twin.backs[number]] = parts[1 - number]
        assert twin.check(words), number


def test_code_after_a_load_that_is_missing(twin):
    load, back = twin.loads[0], twin.backs[0]
    nothing = 0x7918 | control.control(1)
    words = _with(twin.words, dict.fromkeys(range(load + 1, back), nothing))
    assert "an instruction is missing that ptxas assembled" in twin.check(words)
    before = _with(twin.words, dict.fromkeys(range(twin.begins[0], load), nothing))
    assert "an instruction is missing that ptxas assembled" in twin.check(before)
    site = _with(twin.words, {twin.sites[0]: instruction_words(twin.old.code)[twin.sites[0]]})
    assert "LDG has no code, although others have" in twin.check(site)


def test_scoreboards_and_cycles_of_the_code_after(twin):
    """Those whose result somebody uses, the last one for operands, which are read in order, and stalls of sums."""
    changes = []
    for at in range(twin.loads[0] + 1, twin.backs[0]):
        word = twin.words[at]
        if WRITE_BARRIER.get(word) != NO_BARRIER and twin.columns.names[at] in ("LDC", "S2UR", "S2R"):
            changes.append((at, WRITE_BARRIER, NO_BARRIER))
        if twin.columns.names[at] in ("IADD3", "LOP3", "ISETP") and STALL.get(word) > 3:
            changes.append((at, STALL, 1))
    reading = [at for at in range(twin.loads[0] + 1, twin.backs[0])
               if READ_BARRIER.get(twin.words[at]) != NO_BARRIER]  # fmt: skip
    changes.append((reading[-1], READ_BARRIER, NO_BARRIER))
    assert len(changes) > 4
    missed = [(hex(16 * at), field) for at, field, value in changes
              if not twin.check(_with(twin.words, {at: field.put(twin.words[at], value)}))]  # fmt: skip
    assert missed == []


def _is_read(twin: _Twin, at: int) -> bool:
    """Whether anything in the code that an instruction is in reads what it writes."""
    written = twin.columns.writes[at] & (1 << 256) - 1
    until = next(end for end in (twin.loads[0], twin.backs[0]) if at <= end)
    for later in range(at + 1, until):
        if twin.columns.reads[later] & written:
            return True
        written &= ~twin.columns.writes[later]
    return False


def test_no_bit_of_the_code_may_differ(twin):
    for at in range(twin.begins[0], twin.backs[0]):
        if twin.words[at] & 0xFFF == _NOP:
            continue
        for bit in (at * 7 % 105, at * 29 % 105):
            if bit in _DESTINATION and not _is_read(twin, at):
                # Any register that nothing else has will do.
                continue
            words = _with(twin.words, {at: twin.words[at] ^ 1 << bit})
            assert twin.check(words), (hex(16 * at), bit)


def test_the_branch_to_the_end(sampled):
    leap, back = sampled.leap(), sampled.backs[0]
    word = sampled.words[leap]
    assert word >> 12 & 7 != 7

    def to(target: int) -> int:
        made = control.branch(16 * leap, 16 * target, 90)
        return control.guarded(made, word >> 12 & 7, negated=bool(word >> 15 & 1))

    end = next(target for target in range(leap, back + 1) if to(target) == word)
    # Elsewhere: into the code, back into it, out of it, to the next trampoline, to itself.
    wrong = [end - 2, leap + 1, leap, sampled.loads[0], sampled.begins[1], back + 1, sampled.sites[0] + 1]
    for target in wrong:
        assert sampled.check(_with(sampled.words, {leap: to(target)})), target
    # Under the opposite predicate, another, none; with a second one; as other cycles.
    for changed in (word ^ 1 << 15, word ^ 1 << 12, word & ~(0xF << 12) | 7 << 12, word ^ 1 << 87, STALL.put(word, 4)):
        assert sampled.check(_with(sampled.words, {leap: changed})), hex(changed)
    # It is what the vote said: of another register that is kept lanes may have different values.
    moves = [at for at in range(sampled.loads[0], leap) if sampled.words[at] & 0xFFF == _MOVE]
    (asked,) = moves
    others = {_SECOND.get(sampled.words[at]) for at in range(leap, back) if sampled.words[at] & 0xFFF == _MOVE}
    for other in others:
        assert sampled.check(_with(sampled.words, {asked: _SECOND.put(sampled.words[asked], other)})), other
    # A vote that is none: each lane's own number decides.
    vote = next(at for at in range(sampled.begins[0], sampled.loads[0]) if sampled.columns.names[at] == "VOTE")
    nothing = 0x7918 | control.control(13)
    rules = sampled.check(_with(sampled.words, {vote: nothing}))
    assert any("lanes that are together may part at a branch" in rule for rule in rules)


def test_what_is_under_way_on_the_short_way(sampled):
    """Where the branch leads to the end everything before it is done: a scoreboard is waited for there as well."""
    leap = sampled.leap()
    moves = [at for at in range(sampled.loads[0], leap) if sampled.words[at] & 0xFFF == _MOVE]
    taking = {moves[0]: WRITE_BARRIER.put(sampled.words[moves[0]], 5)}
    rules = sampled.check(_with(sampled.words, taking))
    assert any("scoreboard 5 was taken and not waited for" in rule for rule in rules)


def test_predicates_get_their_values_back_after_the_code(codes):
    """In a kernel that names all of them."""
    path = next(case.path for case in cases() if case.kernel == _ALL_PREDICATES)
    one = _Twin(cut_of(path, _ALL_PREDICATES), _ALL_PREDICATES, codes[16])
    assert one.check(one.words) == []
    found = [at for at in range(one.begins[0], one.backs[0]) if one.words[at] & 0xFFF in (_PUT_BY, _GIVE_BACK)]
    assert len(found) == 2
    for at in found:
        assert one.words[at] & 0xFFF == (_PUT_BY if at < one.loads[0] else _GIVE_BACK)
        for bit in (12, 16, 24, 32, 33):
            assert one.check(_with(one.words, {at: one.words[at] ^ 1 << bit})), (hex(16 * at), bit)
        assert one.check(_with(one.words, {at: 0x7918 | control.control(15)}))


_PROBE = """
from neutrino import Map, probe
import neutrino.language as nl
total: nl.u64 = 0
@Map(level="thread", type="sum", size=8)
class Total:
    total: nl.u64
@probe(pos="kernel", level="thread", after=True)
def end():
    Total.save(total)
@probe(pos="{pos}", level="thread", after=True)
def at():
    {statement}
"""


@pytest.mark.parametrize(
    ("pos", "statement", "reason"),
    [
        ("ld.global", "total += 1", ""),
        ("ld.global.f32", "total += 1", "the probes' code is another at .*, of which machine code does not tell"),
        ("ld.global", "total += nl.addr", "for its address, which may be overwritten"),
        ("ld.global.nc", "total += 1", "runs after an instruction, .* of which machine code does not tell"),
        ("st.global", "total += 1", "runs after an instruction"),
        ("fma.rn.f32", "total += 1", "runs after an instruction"),
    ],
)
def test_what_probes_may_do_after_loads(pos: str, statement: str, reason: str, tmp_path: Path):
    tool("ptxas")
    (tmp_path / "probe.py").write_text(_PROBE.format(pos=pos, statement=statement))
    probes = load_probes([str(tmp_path / "probe.py")])
    if not reason:
        assert AccessCode(probes, "sm_90", find_assembler()).at(0)[0].after
        return
    with pytest.raises(MachineCodeError, match=reason):
        AccessCode(probes, "sm_90", find_assembler()).at(0)
