"""Neutrino for AMD's code where only Python and pip are: ``python -m bench.fresh_amd``.

Makes a wheel of this tree, installs it with the extra ``amd`` into a new environment, and runs the commands of COMMANDS
there on a copy of ``examples/amd`` with nothing else on the path: no compiler, no linker, no ROCm. Prints each command
and what it ended with, and exits with 1 if that is not what is expected.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "neutrino-extract libvector.so --resources",
    "neutrino-extract libvector.so --asm",
    "neutrino-extract libvector.so --coverage",
    "neutrino-patch libvector.so -p block_sched -o patched/",
    "neutrino-patch --check patched/libvector.so",
    "neutrino-extract patched/libvector.so --asm",
    "neutrino-patch --restore patched/libvector.so -o restored.so",
    "neutrino-probe check block_sched --target gfx1100",
    "neutrino-probe sites block_sched libvector.so",
    "neutrino-probe show block_sched libvector.so --arch gfx942 -k saxpy",
    "neutrino-probe try block_sched libvector.so -k saxpy",
)
"""All of them end with 0."""
_SHOWN = 3
"""Lines of a command's output that are shown where it fails."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, run all commands, and say how they ended. Returns the exit status."""
    parser = argparse.ArgumentParser("python -m bench.fresh_amd", description=(__doc__ or "").split("\n", 1)[0])
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder / "wheel"), str(ROOT)]
        subprocess.run(pip, check=True)
        (wheel,) = (folder / "wheel").glob("*.whl")
        venv.create(folder / "environment", with_pip=True)
        programs = folder / "environment" / "bin"
        subprocess.run([programs / "pip", "install", "--quiet", f"{wheel}[amd]"], check=True)
        shutil.copytree(ROOT / "examples" / "amd", folder / "work")
        failed = sum(not _ends_well(command, programs, folder) for command in COMMANDS)
        same = (folder / "work" / "restored.so").is_file() and (
            (folder / "work" / "restored.so").read_bytes() == (ROOT / "examples" / "amd" / "libvector.so").read_bytes()
        )
    print(f"{'ok  ' if same else 'FAIL'} the restored library is the original")
    return 1 if failed or not same else 0


def _ends_well(command: str, programs: Path, folder: Path) -> bool:
    """Run a command with that folder of programs alone on the path, and say whether it ended with 0."""
    name, *rest = command.split()
    environment = {"PATH": str(programs), "HOME": str(folder / "home"), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [programs / name, *rest], cwd=folder / "work", env=environment, capture_output=True, text=True, check=False
    )
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {command}")
    if done.returncode:
        print("\n".join(f"     {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-_SHOWN:]))
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
