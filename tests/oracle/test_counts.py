"""Probes that count, at every kind of position, in kernels that call functions: each figure is what threads did.

What they did is counted by instructions of our own beside the program's (``marked.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.marked import Statement, plain_kernel
from tests.oracle.probes import Probe
from tests.oracle.random_kernels import kernels
from tests.oracle.simulation import matches

_FEW = 25
_CLASSES = {
    "load": {"ld"}, "store": {"st"}, "branch": {"bra", "brx", "call", "ret", "exit"}, "convert": {"cvt"},
    "memory": {"ld", "st", "red"},
}  # fmt: skip
"""Of the instructions of random kernels."""
_NO_AFTER = frozenset({"bra", "brx", "ret", "exit"})
_POSITIONS = (
    "*", "* @", "* !u32", "memory", "memory !shared", "load", "store", "branch", "convert", "ld.global", "st", "mov",
    "setp @", "bra @", "selp @ | mul", "add | sub | xor", "and | or | mul.lo | shl", "mul.f32 | add.f32", "call",
    "ld.param | call | st.param", "bra | ret | exit", "* func:work0", "load func:random", "func:work0", "func:work1",
)  # fmt: skip
_SNIPPETS = {
    "one": ("SAVE [ S{} ] {{ 1 }};", 1),
    "amount": ("SAVE [ S{} ] {{ 1000003 }};", 1000003),
    "array": ("SAVE [ S{} ] {{ 5 }};", 1),
    "register": ("add.u32 %c{0}, %c{0}, 3;", 3),
    "choice": (
        "setp.ne.u32 %q{0}, %z{0}, 0;\n@!%q{0} add.u32 %c{0}, %c{0}, 2;\n@%q{0} add.u32 %c{0}, %c{0}, 100;", 2
    ),
    "lanes": (
        "mov.u32 %z{0}, %lanemask_eq;\nand.b32 %z{0}, %z{0}, LANES;\npopc.b32 %z{0}, %z{0};\n"
        "cvt.u64.u32 %y{0}, %z{0};\nSAVE [ S{0} ] {{ %y{0} }};", 1,
    ),
    "predicate": ("selp.u32 %z{0}, 1, 0, PRED;\ncvt.u64.u32 %y{0}, %z{0};\nSAVE [ S{0} ] {{ %y{0} }};", 1),
}  # fmt: skip
"""A snippet, and what it adds. The probe's number goes into the braces."""


@dataclass(frozen=True)
class Counter:
    """One probe. sides: before, after, or both."""

    number: int
    position: str
    level: str
    lanes: str
    sides: tuple[str, ...]
    snippet: str

    @property
    def text(self) -> str:
        """Its map and itself in TOML."""
        kind, room = ("array", "cap = 3\n") if self.snippet == "array" else ("sum", "")
        number, level = self.number, f'level = "{self.level}"\n'
        code = _SNIPPETS[self.snippet][0].format(number)
        field = "u32" if "%c" in code else "u64"
        text = f'[map.S{number}]\ntype = "{kind}"\n{level}{room}data = {{ n = "{field}" }}\n'
        text += f'[probe.p{number}]\nposition = "{self.position}"\n{level}lanes = "{self.lanes}"\n'
        declared = f".reg .u32 %c{number};\n.reg .u32 %z{number};\n.reg .u64 %y{number};\n.reg .pred %q{number};\n"
        for side in self.sides:
            text += f'{side} = """\n{declared if side == self.sides[0] else ""}{code}\n"""\n'
        if "%c" in code:
            text += f'[probe.e{number}]\nposition = "kernel"\n{level}after = "SAVE [ S{number} ] {{ %c{number} }};"\n'
        return text

    def expected(self, statements: list[Statement], block: int) -> int:
        """What its map must hold."""
        is_function = self.position.startswith("func:")
        times = 0
        for side in self.sides:
            for statement in statements:
                what = self._function(statement, side) if is_function else self._instruction(statement, side)
                times += statement.count(what, self.level, block)
        return times * _SNIPPETS[self.snippet][1]

    def _instruction(self, statement: Statement, side: str) -> str:
        first = statement.opcode.partition(".")[0]
        if not any(_finds(pattern, statement) for pattern in self.position.split(" | ")):
            return ""
        # What adds the predicate adds for the lanes of the instruction alone.
        executing = self.lanes == "executing" or self.snippet == "predicate"
        if side == "after" and first in _NO_AFTER:
            return ""
        if side == "after" and statement.callee:
            return "back" if executing else "all_back"
        return "runs" if executing else "comes"

    def _function(self, statement: Statement, side: str) -> str:
        name = self.position.removeprefix("func:")
        if side == "before":
            return "runs" if statement.is_first and statement.function == name else ""
        return "back" if statement.callee == name else ""


def _finds(pattern: str, statement: Statement) -> bool:
    subject, *words = pattern.split()
    modifiers = statement.opcode.split(".")
    for word in words:
        if word == "@" and not statement.guarded:
            return False
        if word.startswith("func:") and statement.function != word.removeprefix("func:"):
            return False
        if word.startswith("!") and word[1:] in modifiers[1:]:
            return False
    return subject == "*" or modifiers[0] in _CLASSES.get(subject, ()) or matches(subject, statement.opcode)


@st.composite
def _counters(draw: st.DrawFn) -> list[Counter]:
    found = []
    for number in range(draw(st.integers(1, 5))):
        position = draw(st.sampled_from(_POSITIONS))
        level = draw(st.sampled_from(("thread", "thread", "thread", "warp", "block")))
        sides = draw(st.sampled_from((("before",), ("before",), ("after",), ("before", "after"))))
        if {pattern.partition(" ")[0] for pattern in position.split(" | ")} & _NO_AFTER:
            sides = ("before",)
        # Functions have no lanes and no predicate, and of the lanes' own bits the leaders tell their own alone.
        absent = {"lanes", "predicate"} if position.startswith("func:") else {"lanes"} if level != "thread" else set()
        snippet = draw(st.sampled_from(("one", *(kind for kind in _SNIPPETS if kind not in absent))))
        lanes = draw(st.sampled_from(("executing", "executing", "reaching")))
        found.append(Counter(number, position, level, lanes, sides, snippet))
    return found


def _check(kernel: Kernel, counters: list[Counter]) -> None:
    plain, statements = plain_kernel(kernel)
    text = "".join(counter.text for counter in counters)
    probe = Probe("counts", (), text=text)
    bench = Bench(plain, (probe,), (None, 3))
    twins = bench.twins(probe)
    expected = {f"S{counter.number}": counter.expected(statements, prod(kernel.block)) for counter in counters}
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason.word == "no-site", skip
        assert not any(expected.values()), text
        return
    (twin,) = twins.kernels
    for seed in bench.schedules:
        views, results = bench.run(probe, twin, twins.render(), seed)
        assert results == bench.results(seed)
        found = {
            name: int(view.total()["n"]) if view.map.kind.name == "sum" else int(view.counts.sum())
            for name, view in views.items()
        }
        assert found == expected, f"{text}\n{plain.text}"


def test_counts_are_what_threads_did(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW

    @settings(
        max_examples=count,
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(kernels(), _counters())
    def check(kernel: Kernel, counters: list[Counter]) -> None:
        _check(kernel, counters)

    check()
