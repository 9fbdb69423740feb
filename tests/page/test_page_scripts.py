"""The page's JavaScript: its types, and that it can stand in a page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.page.document import page_script, web_files
from neutrino.page.registry import VIEWS
from neutrino.page.scripts import WEB
from tests.page.made_pages import write_schedule


def test_script_and_style_cannot_end_themselves() -> None:
    assert "</" not in page_script()
    assert "</" not in (WEB / "page.css").read_text()
    assert "<!--" not in page_script()


def test_each_view_is_one_file_and_one_row() -> None:
    files = {path.name for path in (WEB / "views").iterdir()}
    assert files == {view.file for view in VIEWS}
    assert len({view.name for view in VIEWS}) == len(VIEWS)


def test_modules_say_that_their_types_are_checked() -> None:
    for path in web_files():
        if path.suffix == ".js":
            assert path.read_text().startswith("// @ts-check\n"), path


def test_types(tmp_path: Path) -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("tsc is not installed (npm install --global typescript)")
    options = {
        "allowJs": True, "checkJs": True, "noEmit": True, "strict": True, "noUnusedLocals": True, "target": "es2022",
        "module": "es2022", "moduleResolution": "bundler", "lib": ["es2022", "dom", "dom.iterable"], "types": [],
    }  # fmt: skip
    config = tmp_path / "tsconfig.json"
    config.write_text(json.dumps({"compilerOptions": options, "include": [f"{WEB}/**/*.js"]}))
    found = subprocess.run([compiler, "-p", str(config)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_other_reports_do_not_load_what_makes_pages(tmp_path: Path) -> None:
    write_schedule(tmp_path / "trace", blocks=4, launches=1)
    code = (
        "import sys; from neutrino.cli.report import main; main(sys.argv[1:]);"
        " print(sorted(name for name in sys.modules if 'neutrino.page' in name or 'matplotlib' in name))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "trace")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
