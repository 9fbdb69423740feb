"""What a new user meets first: a short README, pictures that their scripts make, commands that have been timed."""

from __future__ import annotations

import json
import subprocess
import sys

from bench import newcomer
from tests.docs.test_links import ROOT

README = (ROOT / "README.md").read_text()


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
