"""The cache key covers every module of Neutrino that the patcher imports, whoever imports it and when."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.maker import keys
from neutrino.maker.keys import imports_of, patcher_identity, patcher_sources

PACKAGE = Path(__file__).resolve().parents[2] / "neutrino"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)

PATCHES = """
import sys
from pathlib import Path
from neutrino.maker.patcher import patch_image
at_once = {*sys.modules}
from neutrino.device.kind import DeviceKind
from neutrino.errors import ToolMissingError
from neutrino.probing.selection import Selection
from neutrino.verification import load_probes
from neutrino.toolchain.tool_choice import find_assembler
probes = load_probes(sys.argv[2:])
before = {*sys.modules}
image = Path(sys.argv[1]).read_bytes() + bytes(1)
patch_image(image, probes, "sm_90", selection=Selection(), assembler=None, key=bytes(32), device=DeviceKind.EMBEDDED)
try:
    assembler = find_assembler()
    patch_image(image, probes, "sm_90", selection=Selection(), assembler=assembler, key=bytes(32))
except ToolMissingError:
    pass
print(*at_once, *({*sys.modules} - before))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "neutrino", ignore=shutil.ignore_patterns("__pycache__", "lib")))


def test_what_patching_imports_is_covered() -> None:
    root = PACKAGE.parent
    kernels = root / "tests" / "fixtures" / "kernels" / "triton" / "gelu_sm_90.ptx"
    probes = [str(root / "probes" / name) for name in ("program_progress.py", "value_watch.py")]
    printed = subprocess.run(
        [sys.executable, "-c", PATCHES, str(kernels), *probes], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ).stdout.split()  # fmt: skip
    loaded = {name for name in printed if name.startswith("neutrino.")}
    assert {"neutrino.fatbin.container", "neutrino.maker.patcher", "neutrino.sass.arithmetic"} <= loaded
    covered = {
        ".".join(Path("neutrino", path).with_suffix("").parts).removesuffix(".__init__") for path in patcher_sources()
    }
    assert loaded <= covered
    assert "neutrino.cli.run" not in covered


def test_imports_are_those_that_python_sees() -> None:
    assert len(SOURCES) > 100
    for path in SOURCES:
        source = path.read_text()
        expected = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("neutrino")]
                expected |= {(node.col_offset == 0, name, ()) for name in names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative imports are not followed"
                if node.module is not None and node.module.startswith("neutrino"):
                    expected.add((node.col_offset == 0, node.module, tuple(alias.name for alias in node.names)))
        # What strings hold (code for other processes, examples in docstrings) only makes the key cover more.
        assert expected <= {*imports_of(source)}, path


def test_each_covered_source_is_in_the_identity(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, sources = patcher_identity(package), patcher_sources(package)
    assert before == patcher_identity(package) == patcher_identity()
    with monkeypatch.context() as patch:
        # One source after the other is another, without all being read again.
        for path, source in sources.items():
            changed_one = {**sources, path: source + b"\n"}
            patch.setattr(keys, "patcher_sources", lambda _, found=changed_one: found)
            assert patcher_identity(package) != before, path
    for path in sources:
        with (package / path).open("a") as file:
            file.write("\n")
    assert patcher_sources(package) == {path: source + b"\n" for path, source in sources.items()}
    changed = patcher_identity(package)
    (package / "cli" / "run.py").write_text("")
    assert patcher_identity(package) == changed != before


@pytest.mark.parametrize(
    "line",
    [
        "from neutrino.new_home import new\n", "import neutrino.new_home.new\n",
        "def later():\n    from neutrino.new_home.new import (\n        value,\n    )\n",
        "from neutrino.new_home.between import anything\n",
    ],
)  # fmt: skip
def test_a_new_module_is_covered_wherever_it_is_imported(package: Path, line: str) -> None:
    home = package / "new_home"
    home.mkdir()
    (home / "__init__.py").write_text("")
    (home / "between.py").write_text("import neutrino.new_home.new\n")
    (home / "new.py").write_text("value = 1\n")
    assert "new_home/new.py" not in patcher_sources(package)
    with (package / "sass" / "arithmetic.py").open("a") as file:
        file.write(line)
    before = patcher_identity(package)
    (home / "new.py").write_text("value = 2\n")
    assert patcher_identity(package) != before


def test_names_that_a_package_imports_lazily_lead_to_their_modules(package: Path) -> None:
    home = package / "lazy"
    home.mkdir()
    (home / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from neutrino.lazy.one import one\n    from neutrino.lazy.two import two\n"
    )
    (home / "one.py").write_text("one = 1\n")
    (home / "two.py").write_text("two = 2\n")
    with (package / "errors.py").open("a") as file:
        file.write("from neutrino.lazy import one\n")
    sources = patcher_sources(package)
    assert {"lazy/__init__.py", "lazy/one.py"} <= {*sources}
    assert "lazy/two.py" not in sources
