"""``neutrino-ctl`` and Python programs: blocks of ``trace``, and processes that have put the hook in themselves."""

from __future__ import annotations

import pytest

from tests.cli.pages import Folder

from .test_session import _NEUTRINO, _run, folder

__all__ = ["folder"]

_CTL = """
import os, subprocess, sys
def ctl(command):
    done = subprocess.run([sys.executable, "-m", "neutrino.cli.ctl", str(os.getpid()), command],
                          capture_output=True, text=True)
    return done.stdout.splitlines()[:1] + done.stderr.splitlines()
"""
_BLOCKS = """
counts, said = [], []
for command in ("status", "off", "status", "on"):
    said += ctl(command)
    with neutrino.trace() as t:
        saxpy(vector)
        saxpy(vector)
    counts.append([t.coverage.probed, t.coverage.left_out, len(t.launches)])
said += ctl("status")
say(counts=counts, said=said, path=ctl("flush") == [f"written: {neutrino.trace_dir()}"], y=y[6])
"""


@pytest.mark.parametrize("only_blocks", [None, False, True])
def test_off_wins_over_blocks(folder: Folder, only_blocks: bool | None) -> None:
    # None: by the command.
    installed = f'neutrino.install("gmem_bytes", device="embedded", quiet=True, only_blocks={only_blocks})\n'
    command = (*_NEUTRINO, "-p", "gmem_bytes") if only_blocks is None else ()
    text = f"{'' if command else installed}vector = load()\nsaxpy(vector)\n{_CTL}{_BLOCKS}"
    (found,) = _run(folder, text, command)
    off, outside = "recording: off, by neutrino-ctl", "off, as no neutrino.trace() block is open"
    on = f"recording: {outside}" if only_blocks else "recording: on"
    both = f"{off}; {outside}" if only_blocks else off
    assert found == {
        "counts": [[2, 0, 2], [0, 2, 0], [0, 2, 0], [2, 0, 2]], "said": [on, both, both, on, on], "path": True,
        "y": 9 * 12.0,
    }  # fmt: skip
