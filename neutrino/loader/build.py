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
    "coverage.c",
    "drain.c",
    "driver.c",
    "entry.c",
    "entry_fetch.c",
    "frames.c",
    "graph.c",
    "graph_layout.c",
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
    "replay.c",
    "room.c",
    "section.c",
    "sha256.c",
    "trace.c",
    "twin.c",
)
LATE_SOURCES = ("driver.c", "hook.c", "late.c", "object.c", "process.c", "slot_write.c", "slots.c")
"""Sources of the late hook that the hook does not have, or that are compiled with -DNEUTRINO_LATE for it."""
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
PLACEHOLDER = "/neutrino-driver-placeholder" + "/" * 996
"""Room for a path of 1023 bytes. As it stands it names a file that does not exist, which the loader ignores."""

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, else the one that Python was built with if it exists, else ``cc``.

    Options in it are left out.
    """
    configured = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(configured)
    # Python may have been built on another machine. A $CC that is missing is the user's error, and shows as such.
    is_missing = "CC" not in os.environ and subprocess.run(
        ["which", command[0]], capture_output=True, check=False
    ).returncode
    if is_missing:
        return ["cc"]
    return [word for word in command if not word.startswith("-")]


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> None:
    """Compile the five libraries into the folder target. flags: for optimization, or sanitizers.

    Raises CalledProcessError if the compiler fails.
    """
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
        """Compile sources into a new folder; return the paths of the object files by the sources' names."""
        folder.mkdir()
        subprocess.run([*compiling, *definitions, *(str(source / name) for name in names)], check=True, cwd=folder)
        return {name: str((folder / name).with_suffix(".o")) for name in names}

    def link(name: str, *arguments: str) -> None:
        """Link a shared library, whose SONAME is its name."""
        subprocess.run([*linking, *arguments, "-o", str(target / name), f"-Wl,-soname,{name}"], check=True)

    with tempfile.TemporaryDirectory() as temporary:
        hook = objects(Path(temporary) / "hook", (*SOURCES, "empty.c"))
        # The late hook's own objects replace those of the same names.
        late = hook | objects(Path(temporary) / "late", LATE_SOURCES, "-DNEUTRINO_LATE")
        empty = hook.pop("empty.c")
        del late["empty.c"]
        # -f sets DT_AUXILIARY.
        link("libneutrino_driver.so", empty, f"-Wl,-f,{PLACEHOLDER}")
        link(
            "libneutrino_late.so",
            *late.values(),
            # Function pointers of the program are redirected to it, so dlclose must never unload it.
            "-Wl,-z,nodelete",
            "-ldl",
            "-lpthread",
        )
        # The stub must not need anything: no startup files, no libc, no sanitizer's runtime. compiling[-1] is -c.
        subprocess.run(
            [
                *compiling[:-1], "-O2", "-fno-stack-protector", "-fno-sanitize=all", "-shared", "-nostdlib",
                "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu", "-Wl,-init,nt_stub_init",
                "-Wl,-soname,libneutrino_stub.so", str(source / "stub.c"), "-o", str(target / "libneutrino_stub.so"),
            ],
            check=True,
        )  # fmt: skip
        # The hook, which depends on libneutrino_driver.so beside it.
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
        # An empty library that depends on the hook, for programs that ask for the name without a version.
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
