"""Code of probes at accesses: that of ``dmat`` in kernels, judged by nvdisasm, and mutants of it by the checker.

nvdisasm prints the kernels that ptxas assembled of the probes' code, and the twins. A trampoline has to have the same
opcodes as what was assembled, in the same order; that its registers and numbers are right is what the checker says.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from bench.machine_code_sums import SOURCE
from neutrino.api import load_probes
from neutrino.backend.sass_access_code import AccessCode
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import NO_BARRIER, WAIT, WRITE_BARRIER
from neutrino.sass.twin.access_twin import access_twin
from neutrino.sass.twin.checking import check_code
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.hazards import Columns
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probe_code import packed
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import assemble, instructions, tool

LOGGED = ("widths", "predicated", "loops", "copies", "calls")
"""Kernels of the benchmark without atomics."""
_NAMES = {"LDG": "load", "STG": "store", "LDGSTS": "async_copy"}
_ACCESS = re.compile(r"(?:@!?P\d )?(LDG|STG|LDGSTS)\b")
_ADDRESS = re.compile(r"desc\[UR\d+\]\[R(\d+)\.64(?:\+(-?0x[0-9a-f]+))?\]")
_PRODUCT = re.compile(r"IMAD\.WIDE R\d+, R\d+, (-?0x[0-9a-f]+), R(\d+)$")
_LEFT_OUT = {"NOP", "BSSY", "BSYNC", "BRA", "BAR", "LDS", "STS"}
_PLACEHOLDERS = {"MOV", "SEL", "CS2R", "P2R", "R2P"}
"""What stands for a placeholder, with IMAD for an address."""
MUTATED = ("coalescing", "ld.global | st.global { @[SITE] = count() }", "st.global { @first = min(ADDR) }")
"""Of other kinds: what lanes ask each other, keys with a place for each site, sums that are kept, extremes."""
_CONTROL = 105
_FLIPS, _SOME = 60, 5
"""How many random bits of a twin are changed, and of how many instructions one is. A fourth of them without
``--thorough``."""
_PART = 4

Listing = dict[int, str]


@pytest.fixture(scope="module")
def code() -> AccessCode:
    tool("ptxas")
    return AccessCode(load_probes(["dmat"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return Cutter(assemble(SOURCE.read_text(), "sm_90", tmp_path_factory.mktemp("kernels")), "kernels")


def _twin(cutter: Cutter, kernel: str, probes: str = "dmat"):
    made = ProbeCode(load_probes([probes]), "sm_90", find_assembler())
    cut = cutter.cut(kernel)
    return cut, made.twin_of(cut, kernel, "cut"), made


def _opcodes(lines: Iterator[str]) -> list[str]:
    names = [re.sub(r"^@!?U?P\d+ ", "", line).split()[0].split(".")[0] for line in lines]
    return [name for name in names if name not in _LEFT_OUT | _PLACEHOLDERS]


@pytest.mark.parametrize("kernel", LOGGED)
def test_each_access_has_the_code_that_was_assembled(kernel, kernels, code, tmp_path):
    cut, twin, made = _twin(kernels, kernel)
    original = instructions(cut, kernel, tmp_path)
    listed = instructions(twin.data, kernel, tmp_path)
    places = {place: access[1] for place, text in original.items() if (access := _ACCESS.match(text))}
    assert list(twin.accesses) == list(places)
    sites = list(made.sites(cut, kernel, "cut", twin))
    expected = [(_NAMES[one], at) for at, one in enumerate(places.values())]
    assert [(name, number) for name, _, number in sites] == expected
    parts = code.assembler.assemble(code.texts(twin.parameter_offset % 16 + 16), "sm_90").cubin
    for place, name in places.items():
        assert listed[place] == f"BRA `({twin.accesses[place]:#x})"
        body, at = [], twin.accesses[place]
        while listed[at].replace(".reuse", "") != original[place].replace(".reuse", ""):
            body.append(listed[at])
            at += 16
        assert listed[at + 16] == f"BRA `({place + 16:#x})"
        assembled = instructions(parts, _part(original[place], name), tmp_path)
        until = next(at for at, text in assembled.items() if text.startswith("BAR"))
        wanted = _opcodes(text for at, text in assembled.items() if at < until and not text.startswith("LDC R1,"))
        found = _opcodes(iter(body))
        # The address is the access's, one product with 1; who executes it is a choice by its guard.
        address = _ADDRESS.search(original[place])
        assert address is not None
        product = next(line for line in map(_PRODUCT.match, body) if line is not None)
        assert (product[2], int(product[1], 16)) == (address[1], int(address[2] or "0x0", 16))
        guard = re.match(r"@(!?)(P\d) ", original[place])
        # SEL takes the first, 0, if the predicate holds.
        choice = ("" if guard[1] else "!") + guard[2] if guard else "!PT"
        executes = [line for line in body if re.match(r"SEL R\d+, RZ, 0x1, ", line)]
        assert [line.split(", ")[-1] for line in executes] == [choice]
        found.remove("IMAD")
        assert found == wanted


def _part(text: str, name: str) -> str:
    """The kernel with the code of an access, by nvdisasm's text."""
    for part, size in ((".128", 16), (".64", 8), (".U8", 1), (".U16", 2), (".S8", 1), (".S16", 2)):
        if part in text.split(" [", maxsplit=1)[0].split(" R", maxsplit=1)[0]:
            return f"at_{name}_{size}"
    return f"at_{name}_4"


class _Mutated:
    """A twin whose trampolines are changed. begins: of the entry's and one exit's; an access's is the first."""

    def __init__(self, cutter: Cutter, kernel: str, probes: str = "dmat") -> None:
        cut, twin, made = _twin(cutter, kernel, probes)
        offset = twin.parameter_offset
        self.old = read_cubin(cut, "cut").kernels[kernel]
        new = read_cubin(twin.data, "twin").kernels[kernel]
        self.words = instruction_words(new.code)
        base = new.parameter_base + offset
        self.around = Surroundings(
            self.old.registers, (base, base + made.block_size), new.parameter_base, None,
            twin.reference,
        )  # fmt: skip
        self.tells_sites = "first" not in probes
        first = min(twin.accesses.values()) // 16
        begins = {twin.entry // 16, *(place // 16 for place in twin.exits.values()), first}
        ends = sorted({*begins, *(place // 16 for place in twin.accesses.values())})
        self.inside = [
            at for begin in begins
            for at in range(begin, next((one for one in ends if one > begin), len(self.words)) - 2)
        ]  # fmt: skip

    def around_words(self) -> list[int]:
        """The original's instructions."""
        return instruction_words(self.old.code)

    def check(self, words: list[int]) -> list[str]:
        return [one.rule for one in check_code(self.old.code, packed(words), self.around)]


@pytest.fixture(scope="module", params=("dmat", *MUTATED))
def mutated(kernels, request) -> _Mutated:
    tool("ptxas")
    return _Mutated(kernels, "predicated", request.param)


def test_the_twin_itself_passes(mutated):
    assert mutated.check(mutated.words) == []


def test_no_bit_of_the_code_may_differ(mutated, pytestconfig):
    chosen = random.Random(3)
    for _ in range(_FLIPS if pytestconfig.getoption("--thorough") else _FLIPS // _PART):
        at, bit = chosen.choice(mutated.inside), chosen.randrange(_CONTROL)
        words = list(mutated.words)
        words[at] ^= 1 << bit
        assert mutated.check(words), (hex(16 * at), bit)


def test_no_instruction_may_be_missing_or_elsewhere(mutated, pytestconfig):
    some = _SOME if pytestconfig.getoption("--thorough") else _SOME * _PART
    nothing = {word & (1 << _CONTROL) - 1 for word in mutated.words if word & 0xFFF == 0x918}
    real = [at for at in mutated.inside if mutated.words[at] & (1 << _CONTROL) - 1 not in nothing]
    assert len(real) > some + 1
    for at in real[::some]:
        words = list(mutated.words)
        words[at] = 0x918 | 7 << 12 | words[at] >> _CONTROL << _CONTROL
        assert mutated.check(words), hex(16 * at)
    for at in (at for at in real[1::some] if at + 1 in real):
        words = list(mutated.words)
        words[at], words[at + 1] = words[at + 1], words[at]
        assert mutated.check(words), hex(16 * at)


def _is_read(columns: Columns, at: int, after: int | None = None) -> bool:
    """Whether an instruction's result is read, before the code's end and before it is written again.

    after: a later instruction that waits for its scoreboard: whether it is read before another one waits for that.
    """
    left, barrier = columns.writes[at], columns.write_barrier[at]
    for number in range(at + 1, len(columns)):
        if after is not None and number > after and columns.wait[number] >> barrier & 1:
            return False
        if columns.reads[number] & left:
            return True
        left &= ~columns.writes[number]
        if columns.names[number] in ("BRA", "EXIT"):
            break
    return False


def _is_waited_for(columns: Columns, at: int) -> bool:
    """Whether an instruction waits for a result that is read, for which no other one waits."""
    left = columns.wait[at]
    for before in range(at - 1, 0, -1):
        if columns.names[before] in ("BRA", "EXIT"):
            break
        if left >> columns.write_barrier[before] & 1 and _is_read(columns, before, at):
            return True
        left &= ~columns.wait[before]
    return False


def test_waits_and_scoreboards_that_are_missing_are_noticed(mutated):
    columns = Columns(decode(packed(mutated.words), 90))
    # Other waits are for operands, which instructions of variable latency read in their order.
    changes = [(at, WRITE_BARRIER, NO_BARRIER) for at in mutated.inside
               if WRITE_BARRIER.get(mutated.words[at]) != NO_BARRIER and _is_read(columns, at)]  # fmt: skip
    changes += [(at, WAIT, 0) for at in mutated.inside if _is_waited_for(columns, at)]
    assert len(changes) > 20
    for at, field, nothing in changes:
        words = list(mutated.words)
        words[at] = field.put(words[at], nothing)
        assert mutated.check(words), (hex(16 * at), field)


def test_predicates_of_the_kernel_get_their_values_back(kernels):
    calls = _Mutated(kernels, "calls")
    assert calls.check(calls.words) == []
    saving = [at for at in calls.inside if calls.words[at] & 0xFFF in (0x803, 0x804)]
    assert len(saving) == 2
    for at in saving:
        for bit in (12, 16, 24, 32, 33, 38):
            words = list(calls.words)
            words[at] ^= 1 << bit
            assert calls.check(words), (hex(16 * at), bit)


def test_each_access_has_code(mutated):
    original = mutated.around_words()
    name, site = next(
        (name, at) for at, word in enumerate(original) for opcode, name in ((0x981, "LDG"), (0x986, "STG"))
        if word != mutated.words[at] and word & 0xFFF == opcode
    )  # fmt: skip
    words = list(mutated.words)
    words[site] = original[site]
    rules = mutated.check(words)
    assert f"{name} has no code, although others have" in rules
    assert mutated.tells_sites == ("the sites are not numbered in their order" in rules)


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
@probe(pos="{pos}", level="thread", {when}=True)
def at():
    {statement}
"""


@pytest.mark.parametrize(
    ("pos", "when", "statement", "reason"),
    [
        ("ld.global | ldu.global | wmma.load.global", "before", "total += nl.addr & 127", ""),
        ("ld.global", "before", "total += nl.addr", ""),
        ("ldu.global", "before", "total += nl.addr", "LDG may be ld.global or ldu.global, where other probes are"),
        ("ld", "before", "total += nl.addr", "of which machine code does not tell"),
        (
            "st.global | wmma.store.global", "before", "total += nl.u64(nl.u32(nl.addr) % nl.u32(nl.addr >> 8))",
            "the probe's code has ",
        ),
        ("red.global | atom.global", "before", "total += nl.addr", "has no access of memory that the probes are for"),
        ("ld.global.f32", "before", "total += nl.addr", "of which machine code does not tell"),
        ("fma.rn.f32", "after", "total += 1", "runs after an instruction|does not tell"),
    ],
)
def test_what_probes_may_do(pos, when, statement, reason, kernels, tmp_path):
    tool("ptxas")
    (tmp_path / "probe.py").write_text(_PROBE.format(pos=pos, when=when, statement=statement))
    probes = load_probes([str(tmp_path / "probe.py")])
    cut = kernels.cut("widths")
    if not reason:
        assert len(AccessCode(probes, "sm_90", find_assembler()).probes_at["LDG", 4]) == 1
        assert ProbeCode(probes, "sm_90", find_assembler()).twin_of(cut, "widths", "cut").accesses
        return

    def refused() -> None:
        made = AccessCode(probes, "sm_90", find_assembler())
        access_twin(cut, "widths", "cut", made.at, made.kinds)

    with pytest.raises(MachineCodeError, match=reason):
        refused()


def test_kernels_with_other_accesses_are_left_alone(kernels):
    with pytest.raises(MachineCodeError, match=r"has REDG\.\S+ at 0x\w+, for which the probes have no code"):
        _twin(kernels, "atomics")
