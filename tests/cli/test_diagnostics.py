"""How faults are printed: the marks stand under what they mean, and nothing is wider than the terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from neutrino.cli.diagnostics import document, lines, print_diagnostics
from neutrino.cli.streams import has_colours
from neutrino.errors import Diagnostic

TEXT = st.text(alphabet=st.sampled_from("ab%.;, \t世é\x1b\x00"), min_size=1, max_size=60)


def shown(source: str, column: int, width: int = 1000) -> list[str]:
    return list(lines([Diagnostic("p.toml", 7, column, source, "wrong", "do it so", code="a-code")], width=width))


def test_a_fault_is_printed_as_compilers_do() -> None:
    assert shown("mov.u32 %now, %clok;", 15) == [
        "p.toml:7:15: error: wrong [a-code]",
        "    7 | mov.u32 %now, %clok;",
        "      |               ^~~~~",
        "  hint: do it so",
    ]


@pytest.mark.parametrize(
    ("source", "column", "word"),
    [
        ("cap = 4", 7, "4"),
        ('level = "wrap"', 9, '"wrap"'),
        ("add.u64 %a, %a, OUT.y;", 17, "OUT.y"),
        ("ld.global.f32 %f, [%a];", 1, "ld.global.f32"),
        ("a { b", 3, "{"),
        ("abc", 4, " "),
        ("abc", 400, " "),
    ],
)
def test_the_word_is_marked(source: str, column: int, word: str) -> None:
    marks = shown(source, column)[2].split("| ")[1]
    assert len(marks.strip()) == len(word)
    assert marks.index("^") == min(column - 1, len(source))


@given(TEXT, st.data())
def test_marks_stand_under_the_place_in_the_cells_of_a_terminal(source: str, data: st.DataObject) -> None:
    column = data.draw(st.integers(1, len(source)))
    if not source.strip():
        assert len(shown(source, column)) == 2
        return
    _, line, marks, _ = shown(source, column)
    assert line.isprintable()
    escaped = "".join(
        "    " if character == "\t" else character if character.isprintable() else ascii(character)[1:-1]
        for character in source[: column - 1]
    )
    assert line.startswith(f"    7 | {escaped}".rstrip())
    # Rich's table of widths is the judge.
    assert marks.index("^") == cell_len(f"    7 | {escaped}")


@given(st.integers(1, 5000), st.integers(60, 200), st.sampled_from(["a", " b", "世", "\t"]))
def test_a_long_line_is_cut_around_the_place(column: int, width: int, piece: str) -> None:
    source = "#" + piece * 2500
    column = min(column, len(source))
    _, line, marks, _ = shown(source, column, width)
    assert max(cell_len(line), cell_len(marks)) <= width + 3
    assert "^" in marks


def test_a_fault_of_the_file_as_a_whole_names_the_file_alone() -> None:
    fault = Diagnostic("p.toml", 0, 0, "", "is no file")
    assert list(lines([fault])) == ["p.toml: error: is no file"]
    assert document(fault)["line"] == 0


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    fault = Diagnostic("p.toml", 1, 1, "x", "wrong", severity="warning")
    terminal, pipe = Terminal(), io.StringIO()
    print_diagnostics([fault], terminal)
    print_diagnostics([fault], pipe)
    assert "\x1b[1;35mwarning:\x1b[0m" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue()
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        assert not has_colours(terminal)
        monkeypatch.setenv(name, "")


def test_text_of_a_file_does_not_move_the_cursor() -> None:
    fault = Diagnostic("p\x1b[2J.toml", 1, 1, "\x1b[31mx", "wrong \x07", "hint\x1b")
    assert all(line.isprintable() for line in lines([fault]))


def test_of_many_the_first_errors_are_printed_and_the_others_counted() -> None:
    warnings = [Diagnostic("p.toml", line, 1, "x", "doubtful", severity="warning") for line in range(1, 100)]
    errors = [Diagnostic("p.toml", line, 1, "x", "wrong") for line in range(100, 15_100)]
    stream = io.StringIO()
    print_diagnostics([*warnings, *errors], stream)
    said = stream.getvalue()
    assert said.count("error: ") == 100
    assert "p.toml:100:1: error: wrong" in said
    assert "warning" not in said
    assert said.endswith("\n… 14,999 more (neutrino-probe check --json lists all)\n")
    few = io.StringIO()
    print_diagnostics(warnings, few)
    assert (few.getvalue().count("warning: "), "more" in few.getvalue()) == (99, False)


def test_where_nobody_listens_nothing_fails() -> None:
    closed = io.TextIOWrapper(io.BufferedWriter(_Full()), write_through=True)
    print_diagnostics([Diagnostic("p.toml", 1, 1, "x", "wrong")], closed)


class _Full(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")
