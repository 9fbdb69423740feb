"""``-e 'interval: …'``: what one-liners have recorded so far, while COMMAND runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neutrino.cli.intervals import Interval, take_intervals
from neutrino.cli.run import main
from neutrino.errors import NeutrinoError
from tests.cli.pages import ROOT, Folder

from .test_session import _NEUTRINO, _START, folder

__all__ = ["folder"]

COUNT = "ld.global { @n = count() }"


def test_clauses_are_taken_out() -> None:
    texts = [f"{COUNT} interval:1.5s {{ print(@n, @) }}", "interval:200ms{print;}", "kernel { @t = max(elapsed) }"]
    others, intervals = take_intervals(texts)
    assert [text.rstrip() for text in others] == [COUNT, texts[2]]
    assert intervals == [Interval(1.5, ("n", "")), Interval(0.2, ())]
    # What follows stays where it was.
    assert take_intervals([f"interval:1m {{ print() }} {COUNT}"])[0][0].index("ld") == len("interval:1m { print() } ")
    # No clause of its own.
    quoted = 'st.global { print("interval:1s {}", IN1) }'
    assert take_intervals([quoted]) == ([quoted], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interval:1 { print }", "has no unit: write interval:1s"), ("interval:1s { @n = count() }", "is not print"),
        ("interval:1s { print(n) }", "the names of maps begin with @"), ("interval:0s { print }", "from 100ms"),
        ("interval:99ms { print }", "from 100ms"), ("interval:2000m { print }", "from 100ms"),
        ("interval:1h { print }", "has another unit than ms, s and m"), ("interval:1s", "no clause of interval"),
        ("interval:-1s { print }", "no clause of interval"),
    ],
)  # fmt: skip
def test_wrong_ones_are_refused(text: str, said: str) -> None:
    with pytest.raises(NeutrinoError, match=said):
        take_intervals([COUNT, text])


def test_there_must_be_something_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in ((["-e", "interval:1s { print }"], "give one of these, too"),
                          (["-e", COUNT, "-e", "interval:1s { print(@m) }"], "no map @m; there are @n")):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(["--device", "embedded", *options, "true"])
        assert ended.value.code == 125
        assert said in capsys.readouterr().err


def test_it_ends_with_the_results(folder: Folder) -> None:
    """The program goes on when its first launch was printed."""
    (folder.path / "script.py").write_text(f"""{_START}
import time
from pathlib import Path
vector = load()
saxpy(vector)
while not Path("go").exists():
    time.sleep(0.02)
saxpy(vector)
""")
    command = [*_NEUTRINO, "-e", f"{COUNT} interval:100ms {{ print(@n) }}", sys.executable, "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.path / "cache")}
    with subprocess.Popen(command, cwd=folder.path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        before = []
        for line in process.stderr:
            before.append(line)
            if line.startswith("  saxpy"):
                break
        (folder.path / "go").touch()
        after = process.stderr.read()
    assert process.returncode == 0
    assert before[0].startswith("after ")
    once = int(before[-1].split()[-1].replace(",", ""))
    assert once > 0
    # The last ones are those of the end, with no interval's heading.
    assert after.rpartition("after ")[2].endswith(f"\n\n@n:\n  saxpy  {2 * once:,}\n\n")
