"""The pairing of a kernel's lines with its twin's: ``patch`` makes the one of the other by it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.cli.difference import Line, compare, compare_paired, hunks, runs
from tests.work import counted

# Words of lines that come again and again, as in kernels.
WORD = st.sampled_from(["ret;", "add;", "}", "mov;", "ld;"])


@given(st.lists(WORD, max_size=12), st.lists(st.tuples(st.integers(0, 12), WORD), max_size=6), st.integers(0, 12))
def test_both_texts_are_whole(original: list[str], added: list[tuple[int, str]], altered: int) -> None:
    probed = list(original)
    if altered < len(probed):
        probed[altered] = "altered;"
    for place, word in added:
        probed.insert(min(place, len(probed)), word)
    lines = compare(original, probed)
    assert [line.text for line in lines if line.mark != "+"] == original
    assert [line.text.strip() for line in lines if line.mark != "-"] == probed
    # Nothing is called changed where a text is what it was.
    assert compare(original, original) == [line for line in compare(original, original) if line.mark == " "]


@given(st.lists(WORD, max_size=12), st.lists(st.tuples(st.integers(0, 12), WORD), max_size=6))
def test_what_is_only_added_to_takes_nothing_away(original: list[str], added: list[tuple[int, str]]) -> None:
    probed = list(original)
    for place, _ in added:
        probed.insert(min(place, len(probed)), "inserted;")
    assert sum(line.mark == "+" for line in compare(original, probed)) == len(added)
    assert not any(line.mark == "-" for line in compare(original, probed))


@pytest.mark.parametrize("context", [0, 3])
def test_patch_takes_the_hunks(tmp_path: Path, context: int) -> None:
    if not shutil.which("patch"):
        pytest.skip("patch is not on this machine")
    original = [f"line {number};" if number % 3 else "ret;" for number in range(40)]
    probed = [*original[:5], "    new;", *original[5:20], "altered;", *original[21:], "    last;"]
    lines = compare(original, probed)
    (tmp_path / "a").write_text("before\n" + "\n".join(original) + "\n")
    difference = "\n".join(["--- a", "+++ b", *hunks(lines, context, first=2)]) + "\n"
    done = subprocess.run(
        ["patch", "-s", "a", "-o", "b"], input=difference, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (tmp_path / "b").read_text().splitlines() == ["before", *(text.rstrip() for text in probed)]


def test_long_kernels_need_work_in_proportion() -> None:
    original = [("add;", "ld;", "mov;")[number % 3] for number in range(20000)]
    probed = [text for line in original for text in ("    count;", line)]
    with counted(lines=True) as work:
        assert len(compare(original, probed)) == 40000
    # 25 calls and 30 lines of Python for each line are usual.
    assert work.calls < 60 * 40000
    assert work.lines < 60 * 40000


def test_pieces_begin_behind_lines_that_stayed() -> None:
    lines = compare(["a;", "b;"], ["a;", "x;", "y;", "b;", "z;"])
    assert [lines[place].text for place in runs(lines)] == ["    x;", "    z;"]


def test_where_pairs_are_known_equal_lines_that_were_inserted_are_not_taken_for_the_original_s() -> None:
    original = ["k:", "  wait", "  load", "  branch .L4", "  end"]
    probed = ["k__twin:", "  wait", "  count", "  wait", "  load", "  wait", "  branch .Lp9", "  end"]
    lines = compare_paired(original, probed, (0, 3, 4, 6, 7))
    assert [(line.mark, line.text.strip(), line.original) for line in lines] == [
        ("-", "k:", 0), ("+", "k__twin:", 1), ("+", "wait", 1), ("+", "count", 1), (" ", "wait", 1), (" ", "load", 2),
        ("+", "wait", 3), ("-", "branch .L4", 3), ("+", "branch .Lp9", 4), (" ", "end", 4),
    ]  # fmt: skip
    # By their text alone the first is taken for the original's.
    assert Line(" ", "  wait", 1) in compare(original, probed)
    assert compare(original, probed).index(Line(" ", "  wait", 1)) < lines.index(Line(" ", "  wait", 1))
    # A label to which nothing leads any more.
    assert [line.mark for line in compare_paired(["k:", ".L4:", "  end"], ["k:", "  end"], (0, None, 1))] == [
        " ", "-", " ",
    ]  # fmt: skip
