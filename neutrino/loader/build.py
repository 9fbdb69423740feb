"""Compile the hook: five shared libraries under ``neutrino/loader/lib``. Needs a C compiler and nothing else.

``libcuda.so.1``           the hook, under the driver's SONAME, so that later look-ups by that name find it
``libcuda.so``             the same for programs that ask for the name without a version
``libneutrino_driver.so``  empty; its DT_AUXILIARY names the real driver. The path in it is a placeholder that
                           ``install`` replaces, so that one build serves every machine
``libneutrino_stub.so``    the library that patched libraries load; it has no dependencies, and loads the next if asked
``libneutrino_late.so``    the hook for a process that is running already: it redirects slots in memory
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = (
    "backend.c",
    "drain.c",
    "driver.c",
    "entry.c",
    "entry_fetch.c",
    "frames.c",
    "handles.c",
    "hook.c",
    "image.c",
    "image_bytes.c",
    "launch.c",
    "launch_forms.c",
    "lifetimes.c",
    "loaded.c",
    "pool.c",
    "process.c",
    "regions.c",
    "registry.c",
    "room.c",
    "section.c",
    "sha256.c",
    "trace.c",
    "twin.c",
)
LATE_SOURCES = ("driver.c", "hook.c", "late.c", "object.c", "process.c", "slots.c")
"""Sources of the late hook that the hook has not, or that it compiles differently."""
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
PLACEHOLDER = "/neutrino-driver-placeholder" + "/" * 996
"""Room for a path of 1023 bytes. As it stands it names a file that does not exist, which the loader ignores."""

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """The C compiler: ``$CC``, else the one that Python was built with if it is here, else ``cc``."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(named)
    if (
        "CC" not in os.environ
        and subprocess.run(["which", command[0]], capture_output=True, check=False).returncode
    ):
        return ["cc"]
    return [part for part in command if not part.startswith("-")]


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> None:
    """Compile into the folder target. flags: optimisation, sanitizers. CalledProcessError when the compiler refuses."""
    source = _HERE / "csrc"
    target.mkdir(parents=True, exist_ok=True)
    compiling = [
        *compiler(),
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-g",
        "-fPIC",
        "-fvisibility=hidden",
        *flags,
        *warnings,
        f"-ffile-prefix-map={source}=csrc",
        "-c",
    ]
    linking = [*compiler(), *flags, "-g", "-shared", "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack"]

    def objects(folder: Path, names: Sequence[str], *definitions: str) -> dict[str, str]:
        folder.mkdir()
        subprocess.run([*compiling, *definitions, *(str(source / name) for name in names)], check=True, cwd=folder)
        return {name: str((folder / name).with_suffix(".o")) for name in names}

    def link(name: str, *arguments: str) -> None:
        subprocess.run([*linking, *arguments, "-o", str(target / name), f"-Wl,-soname,{name}"], check=True)

    with tempfile.TemporaryDirectory() as temporary:
        hook = objects(Path(temporary) / "hook", (*SOURCES, "empty.c"))
        late = hook | objects(Path(temporary) / "late", LATE_SOURCES, "-DNEUTRINO_LATE")
        empty = hook.pop("empty.c")
        del late["empty.c"]
        link("libneutrino_driver.so", empty, f"-Wl,-f,{PLACEHOLDER}")
        link(
            "libneutrino_late.so",
            *late.values(),
            # Slots lead to it for as long as the process lives.
            "-Wl,-z,nodelete",
            "-ldl",
            "-lpthread",
        )
        subprocess.run(
            [
                *compiling[:-1], "-O2", "-fno-stack-protector", "-fno-sanitize=all", "-shared", "-nostdlib",
                "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu", "-Wl,-init,nt_stub_init",
                "-Wl,-soname,libneutrino_stub.so", str(source / "stub.c"), "-o", str(target / "libneutrino_stub.so"),
            ],
            check=True,
        )  # fmt: skip
        link(
            "libcuda.so.1",
            *hook.values(),
            f"-L{target}",
            "-Wl,--no-as-needed",
            "-lneutrino_driver",
            "-Wl,-rpath,$ORIGIN",
            "-ldl",
            "-lpthread",
        )
        link(
            "libcuda.so",
            empty,
            "-Wl,--no-as-needed",
            f"-L{target}",
            "-l:libcuda.so.1",
            "-Wl,-rpath,$ORIGIN",
            f"-Wl,-rpath-link,{target}",
        )


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE / "lib")
