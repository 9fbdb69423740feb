"""The commands of the pages for users, and what they print there, on the embedded device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.pages import PAGES, Folder, differences, examples, filled, is_as_shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder with the program: its kernels saxpy, which runs three times, and sum have 4,096 threads."""
    folder = Folder(tmp_path_factory.mktemp("demo"), tmp_path_factory.getbasetemp() / "cache")
    folder.build()
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_has(page: Path, folder: Folder) -> None:
    wrong = differences(page, folder)
    assert not wrong, "\n".join(wrong)


def test_pages_have_examples() -> None:
    least = {
        "one-liners": 3, "tutorial": 8, "cookbook": 6, "python": 4, "timelines": 5, "comparing": 3, "findings": 2
    }  # fmt: skip
    assert {page.stem for page in PAGES} == least.keys()
    for page in PAGES:
        text = page.read_text()
        found = examples(text)
        assert len(found) >= least[page.stem]
        # Each has an output, and none is lost on the way.
        assert all(example.output for example in found)
        assert filled(text, {number: example.output for number, example in enumerate(found)}) == text


@pytest.mark.parametrize(("shown", "is_shown"), [
    ("one\n…\nfour\n", True), ("  …\nfour\n", True), ("one\n…\n", True), ("one\ntwo\nthree\nfour\n", True),
    ("one\n…\nthree\n", False), ("…\nfive\n", False), ("one\n…\ntwo\n…\nfour\n", False),
    ("one\ntwo…\nfour\n", False), ("o.e\n…\n", False),
])  # fmt: skip
def test_dots_stand_for_lines_that_are_left_out(shown: str, is_shown: bool) -> None:
    """For one line or more."""
    assert is_as_shown("one\ntwo\nthree\nfour\n", shown) == is_shown


def test_a_wrong_output_is_found(folder: Folder, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = "neutrino-report --map x nowhere"
    page.write_text(f"```console\n$ {command}\nsomething else\n```\n")
    (wrong,) = differences(page, folder)
    assert "nowhere: no such folder; 'neutrino -p PROBE COMMAND'" in wrong
