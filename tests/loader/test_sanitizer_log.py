"""What a sanitizer says in a thread that has no stderr, as the hook's have none, is shown by the test that it fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.once import SANITIZERS, require_sanitizer

from .conftest import HERE, Bench, check_sanitizers, compile_c


def test_a_race_of_threads_without_stderr_is_shown(tmp_path: Path) -> None:
    require_sanitizer("thread", tmp_path)
    program = tmp_path / "raced"
    compile_c(program, *SANITIZERS["thread"], *(str(HERE / "programs" / name) for name in ("raced.c", "program.c")))
    environment = Bench(tmp_path, "thread").environment(tmp_path)
    result = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode == 3:
        pytest.skip("threads can have no descriptors of their own here")
    assert (result.stdout, result.returncode) == ("1\n", 99)
    # So little stands there.
    assert "race raced.c" not in result.stderr
    with pytest.raises(AssertionError, match=f"data race.*{os.sep}raced.c"):
        check_sanitizers(tmp_path, result.stderr)
