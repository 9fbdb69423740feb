"""What a new user meets first: a short README, pictures that their scripts make, commands that have been timed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

from bench import newcomer
from neutrino.abi.reasons import REASON_REMEDY, Reason
from tests.docs.test_links import PAGES, ROOT

README = (ROOT / "README.md").read_text()
_CONSOLE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160


def test_the_picture_of_the_workflow_is_what_its_script_draws() -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "docs" / "workflow_picture.py"], capture_output=True, text=True, check=True
    ).stdout
    picture = ROOT / "docs" / "pictures" / "workflow.svg"
    assert picture.read_text() == drawn, "python docs/workflow_picture.py > docs/pictures/workflow.svg"


def test_a_new_user_has_results_in_time() -> None:
    """Of the commands that the README has, as they were recorded in a fresh clone."""
    results = json.loads(newcomer.RESULTS.read_text())
    recorded = [(step, command) for step, command, _ in results["commands"]]
    assert recorded == [("clone", "git clone"), *((step, text) for step, texts in newcomer.STEPS for text in texts)]
    for step, most in newcomer.MOST_SECONDS.items():
        assert newcomer.after(results, step) <= most
    for step in ("setup", "first result", "demo"):
        assert all(f"$ {text}\n" in README for name, text in recorded if name == step)


def test_targets_of_make_that_the_pages_name_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    command = re.compile(r"(?:`|^    |^\$ )make ([a-z][\w-]*)", re.MULTILINE)
    named = {
        f"{page.name}: make {target}"
        for page in PAGES for target in command.findall(page.read_text()) if target not in targets
    }  # fmt: skip
    assert not named


def test_options_that_the_pages_name_are_there() -> None:
    """Of the commands in blocks of text and in sentences; those in console blocks are run."""
    helps: dict[str, str] = {}
    wrong = set()
    line = re.compile(r"(?:^    |(?<!`)`)(neutrino(?:-\w+)?) ([^`\n]*?)(?: {2,}#.*)?(?:$|`)", re.MULTILINE)
    for page in PAGES:
        for command, words in line.findall(_CONSOLE.sub("", page.read_text())):
            module = "run" if command == "neutrino" else command.partition("-")[2]
            if command not in helps:
                asked = [sys.executable, "-m", f"neutrino.cli.{module}", "--help"]
                helps[command] = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
                if command == "neutrino-probe":
                    for one in ("check", "codes", "compile", "list", "new", "opcodes", "show", "sites", "try"):
                        more = subprocess.run([*asked[:3], one, "--help"], capture_output=True, text=True, check=True)
                        helps[command] += more.stdout
            ours = words.partition("./")[0].partition("python")[0]
            wrong |= {
                f"{page.name}: {command} {option}"
                for option in re.findall(r"(?<!\S)(--[a-z][\w-]*|-[a-zA-Z](?!\S))", ours)
                if not re.search(rf"(?<![\w-]){option}(?![\w-])", helps[command])
            }
    assert not wrong


def test_every_reason_is_listed_with_what_helps() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text()
    listed = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    assert listed == {reason.word: REASON_REMEDY[reason] for reason in Reason if reason is not Reason.PROBED}


def test_python_on_the_pages_is_python() -> None:
    """That of probe files and of programs for a GPU, too, which no test of a page runs."""
    blocks = {
        (page.name, block) for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    }  # fmt: skip
    assert len(blocks) > 12
    for name, block in blocks:
        compile(block, name, "exec", ast.PyCF_ONLY_AST)


def test_every_page_can_be_found_from_the_readme() -> None:
    found, to_read = set(), [ROOT / "README.md"]
    while to_read:
        page = to_read.pop()
        found.add(page)
        for target in re.findall(r"\]\(([^():#]+\.md)", page.read_text()):
            linked = (page.parent / target).resolve()
            if linked not in found:
                to_read.append(linked)
    assert set((ROOT / "docs").glob("*.md")) <= found
