"""Compile the stand-in driver: ``neutrino/emulator/lib/libcuda.so.1``. Needs a C compiler and nothing else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

SOURCES = (
    "allocation.c",
    "apart.c",
    "capture.c",
    "capture_info.c",
    "channel.c",
    "conditional.c",
    "context.c",
    "context_settings.c",
    "copy.c",
    "count.c",
    "device.c",
    "error.c",
    "event.c",
    "failure.c",
    "function.c",
    "graph.c",
    "graph_exec.c",
    "graph_exec_update.c",
    "graph_inspection.c",
    "graph_memory.c",
    "graph_node.c",
    "green.c",
    "image.c",
    "launch.c",
    "launch_attributes.c",
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
    "write_value.c",
)
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
LIBRARY = "libcuda.so.1"

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, else the one that built Python if installed, else ``cc``."""
    # $CC may have options as well.
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    # Python's own flags (such as -pthread) are dropped.
    return [part for part in command if not part.startswith("-")] if shutil.which(command[0]) else ["cc"]


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> Path:
    """Compile the stand-in driver into the folder ``target``, and return the path of the library.

    flags: for optimisation or sanitizers. warnings: options of the compiler, too. Raise CalledProcessError if the
    compiler fails.
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
        # The sources mark what the driver exports.
        "-fvisibility=hidden",
        *flags,
        *warnings,
        # Names of source files, in debug information and messages, do not depend on where this folder is.
        f"-ffile-prefix-map={source}=csrc",
        *(str(source / name) for name in SOURCES),
        "-o",
        str(target / LIBRARY),
        f"-Wl,-soname,{LIBRARY}",
        # The hook (Neutrino's own libcuda.so.1) exports the same names in front of these: calls within this library
        # must not reach it.
        "-Wl,-Bsymbolic",
        # Hardening: addresses of functions are bound at once and read-only, the stack is not executable.
        "-Wl,-z,relro,-z,now",
        "-Wl,-z,noexecstack",
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return target / LIBRARY


if __name__ == "__main__":
    import argparse

    _parser = argparse.ArgumentParser("python -m neutrino.emulator.build", description="Compile the stand-in driver.")
    _parser.add_argument("folder", nargs="?", type=Path, default=_HERE / "lib", help="default: in the package")
    build(_parser.parse_args().folder)
