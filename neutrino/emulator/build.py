"""Compile the stand-in driver: ``neutrino/emulator/lib/libcuda.so.1``. Needs a C compiler and nothing else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = (
    "allocation.c",
    "capture.c",
    "capture_info.c",
    "channel.c",
    "context.c",
    "copy.c",
    "count.c",
    "device.c",
    "error.c",
    "event.c",
    "failure.c",
    "function.c",
    "graph.c",
    "graph_exec.c",
    "graph_inspection.c",
    "image.c",
    "launch.c",
    "library.c",
    "memory.c",
    "module.c",
    "objects.c",
    "occupancy.c",
    "operation.c",
    "plan.c",
    "pointers.c",
    "printed.c",
    "queue.c",
    "settings.c",
    "stream.c",
    "symbols.c",
)
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
LIBRARY = "libcuda.so.1"

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """The C compiler: ``$CC``, else the one that Python was built with if it is here, else ``cc``."""
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    named = shlex.split(sysconfig.get_config_var("CC") or "cc")
    return [part for part in named if not part.startswith("-")] if shutil.which(named[0]) else ["cc"]


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> Path:
    """Compile into the folder target; the library's path. flags: optimisation, sanitizers.

    CalledProcessError when the compiler refuses.
    """
    source = _HERE / "csrc"
    target.mkdir(parents=True, exist_ok=True)
    command = [
        *compiler(),
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        *flags,
        *warnings,
        f"-ffile-prefix-map={source}=csrc",
        *(str(source / name) for name in SOURCES),
        "-o",
        str(target / LIBRARY),
        f"-Wl,-soname,{LIBRARY}",
        # The hook exports the same names in front of these.
        "-Wl,-Bsymbolic",
        "-Wl,-z,relro,-z,now",
        "-Wl,-z,noexecstack",
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return target / LIBRARY


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE / "lib")
