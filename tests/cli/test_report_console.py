"""What a report's console writes without rich looks as what rich writes."""

from __future__ import annotations

import io
import random
import re
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neutrino.cli.report_console import NARROW, ReportConsole
from neutrino.cli.table import stripped

WORDS = [
    "vecadd(int*)", "1,024", "a", "elapsed", "0.5 %", "▁▂█", "核心", "é", "void at::native::kernel<4, float>(float*)",
    "[bold]no markup[/bold]", ":smile:", "3.14e+20", "", "x y  z", "/home/user/a_long_path/to/the/source.cu:1047",
]  # fmt: skip
_BOLD = re.compile(r"\x1b\[[0-9;]*m")
_WHOLE_BOLD = re.compile(r"\x1b\[1m(.*?)\x1b\[0m")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _texts(dice: random.Random) -> list[str]:
    return [" ".join(dice.choices(WORDS, k=dice.randint(0, 12))) for _ in range(6)]


def _table(dice: random.Random) -> tuple[list[str], list[list[str]], list[bool], int | None]:
    count = dice.randint(1, 6)
    texts = [" ".join(dice.choices(WORDS, k=dice.choice([1, 1, 1, 4]))) for _ in range(30)]
    rows = [["  " * dice.randint(0, 2) + dice.choice(texts) for _ in range(count)] for _ in range(dice.randint(0, 5))]
    right = [dice.random() < 0.5 for _ in range(count)]
    return dice.choices(WORDS, k=count), rows, right, dice.choice([None, count - 1])


def _rich_table(head: list[str], rows: list[list[str]], right: list[bool], unbroken: int | None) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(head):
        if number == unbroken:
            grid.add_column(title, justify="right" if right[number] else "left", no_wrap=True)
        else:
            grid.add_column(title, justify="right" if right[number] else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize("width", [20, 45, 80, 132, 250, 0], ids=lambda width: str(width or "piped"))
@pytest.mark.parametrize("is_terminal", [False, True])
def test_it_looks_as_if_rich_had_written_it(
    monkeypatch: pytest.MonkeyPatch, width: int, is_terminal: bool
) -> None:
    if is_terminal and not width:
        # A terminal has a width.
        width = 100
    monkeypatch.setattr(sys, "stdout", _Terminal() if is_terminal else io.StringIO())
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    dice = random.Random(width)
    lines = tables = plain = 0
    for _ in range(30):
        console = ReportConsole()
        judge = Console(markup=False, highlight=False, emoji=False, width=width or 10_000)
        with judge.capture() as captured:
            for text in _texts(dice):
                is_bold, wraps = dice.random() < 0.3, dice.random() < 0.7
                console.print(text, is_bold=is_bold, wraps=wraps)
                judge.print(text, style="bold" if is_bold else None, soft_wrap=None if wraps else True)
                lines += 1
            text, indent = dice.choice(WORDS), dice.randint(0, 4)
            console.print_indented(text, indent)
            judge.print(Padding(Text(text), (0, 0, 0, indent)))
            head, rows, right, unbroken = _table(dice)
            console.print_table(head, rows, right, unbroken)
            judge.print(_rich_table(head, rows, right, unbroken))
            tables += 1
        plain += console._console is None
        expected = captured.get()
        # Blanks at the ends of lines are bold or not, which nobody sees.
        assert stripped(_BOLD.sub("", console.text())) == stripped(_BOLD.sub("", expected))
        assert "".join(_WHOLE_BOLD.findall(console.text())).split() == "".join(_WHOLE_BOLD.findall(expected)).split()
        assert ("\x1b" in expected) <= is_terminal
    # Of all that fits, and of that alone.
    assert plain == 30 if not width else plain < 30
    assert lines == 180
    assert tables == 30


def test_what_fits_is_written_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    console = ReportConsole()
    console.print("a title", is_bold=True)
    console.print_table(["name", "count"], [["sum", "1,024"], ["a longer name", "7"]], [False, True])
    console.print("x" * 40)
    assert console._console is None
    assert console.text() == (
        "\x1b[1ma title\x1b[0m\n\x1b[1mname           count\x1b[0m\nsum            1,024\na longer name      7\n"
        + "x" * 40
    )
    console.print("x" * 41)
    assert console._console is not None
    assert console.text().endswith("\n" + "x" * 40 + "\nx")


@pytest.mark.parametrize(
    ("variables", "width"),
    [
        ({"COLUMNS": "70"}, 70), ({"COLUMNS": "x"}, 80), ({"TERM": "dumb"}, 80),
        ({"TERM": "dumb", "COLUMNS": "70"}, 80),
        ({"TERM": "dumb", "COLUMNS": "70", "LINES": "20"}, 70), ({"TERM": "dumb", "LINES": "20"}, 80),
    ],
)  # fmt: skip
def test_its_width_is_that_of_rich(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], width: int
) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    # Another test of this process may have left one.
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ReportConsole().width == Console().width == width


def test_characters_that_are_not_looked_up_are_one_column_wide() -> None:
    """Of those that can come: others are escaped before."""
    known = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isprintable() and NARROW.fullmatch(chr(code))]
    assert len(known) > 600
    assert {character for character in known if cell_len(character) != 1} == set()
