"""Compile the hook: four shared libraries under ``neutrino/loader/lib``. Needs a C compiler and nothing else.

``libneutrino_audit.so``   the auditing module: it answers with the hook when a program asks the loader for the driver
``libcuda.so.1``           the hook, under the driver's SONAME; its DT_NEEDED names the real driver
``libneutrino_stub.so``    the library that patched libraries load; it has no dependencies, and loads the next if asked
``libneutrino_late.so``    the hook for a process that is running already: it redirects slots in memory

The paths in the first two are placeholders that ``install`` replaces, so that one build serves every machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLOORS = ("base", "trace", "memory", "drain", "image", "launch", "graph", "front")
"""Folders of ``csrc``: what is in one calls what is in it and in those before it."""
SOURCES = (
    "base/apart.c", "base/captures.c", "base/clock.c", "base/driver.c", "base/errand.c", "base/grace.c",
    "base/handles.c", "base/lock.c", "base/memory.c", "base/mode.c", "base/own_table.c", "base/quiet.c",
    "base/quiet_write.c", "base/regions.c", "base/settings.c", "base/sha256.c", "base/thread.c", "base/trusted.c",
    "base/upcalls.c", "base/wake.c",
    "trace/counters.c", "trace/event.c", "trace/files.c", "trace/launches_file.c", "trace/lines.c", "trace/path.c",
    "trace/records.c", "trace/results.c", "trace/trace.c", "trace/writer.c",
    "memory/greens.c", "memory/own_memory.c", "memory/pool.c", "memory/pools.c", "memory/room.c", "memory/segment.c",
    "memory/slabs.c", "memory/streams.c",
    "drain/benchmark.c", "drain/drain.c", "drain/drain_thread.c", "drain/frames.c", "drain/replay.c", "drain/runs.c",
    "image/assess.c", "image/attributes.c", "image/backend.c", "image/background.c", "image/cached_file.c",
    "image/change.c",
    "image/choice.c",
    "image/entry.c", "image/entry_fetch.c", "image/function.c", "image/image.c", "image/image_bytes.c",
    "image/image_log.c", "image/kernel_image.c",
    "image/links.c", "image/ltoir.c", "image/needs.c", "image/passed.c", "image/passed_file.c",
    "image/prepare.c", "image/ranges.c",
    "image/registry.c", "image/requests.c", "image/section.c", "image/sets.c", "image/twin.c",
    "launch/launch.c", "launch/launch_forms.c",
    "graph/graph.c", "graph/graph_bodies.c", "graph/graph_choice.c", "graph/graph_exec.c", "graph/graph_layout.c",
    "graph/graph_memory.c", "graph/graph_replay.c",
    "front/control.c", "front/coverage.c", "front/hook.c", "front/lifetimes.c", "front/linked.c", "front/loaded.c",
    "front/nvtx.c", "front/passing.c", "front/process.c", "front/second_link.c", "front/steering.c",
)  # fmt: skip
LATE_SOURCES = (
    "base/driver.c", "front/cached_pointers.c", "front/hook.c", "front/late.c", "front/late_state.c",
    "front/memory_map.c", "front/nvtx.c", "front/object.c", "front/passing.c",
    "front/process.c", "front/slot_write.c", "front/slots.c",
)  # fmt: skip
"""Sources of the late hook that the hook does not have, or that are compiled with -DNEUTRINO_LATE for it."""
AUDIT_SOURCES = ("front/audit.c", "front/audit_object.c", "front/audit_passing.c", "front/audit_start.c")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
HOOK_PLACEHOLDER = "/neutrino-hook-placeholder".ljust(1023, "/")
DRIVER_PLACEHOLDER = "/neutrino-driver-placeholder".ljust(1023, "/")
"""Room for paths of 1023 bytes."""

_HERE = Path(__file__).resolve().parent
CSRC = _HERE / "csrc"


def compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, else the one that Python was built with if it exists, else ``cc``.

    Options in it, such as those that Python was built with, are left out.
    """
    configured = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(configured)
    # Python may have been built on another machine. A $CC that is missing is the user's error, and shows as such.
    is_missing = (
        "CC" not in os.environ and subprocess.run(["which", command[0]], capture_output=True, check=False).returncode
    )
    if is_missing:
        return ["cc"]
    return [word for word in command if not word.startswith("-")]


def _compiling(options: Sequence[str]) -> list[str]:
    """Return the command that compiles sources of the hook (Neutrino's library in the program)."""
    return [
        *compiler(),
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-g",
        "-fPIC",
        "-fvisibility=hidden",
        f'-DNT_FRONT_HOOK="{HOOK_PLACEHOLDER}"',
        f'-DNT_FRONT_DRIVER="{DRIVER_PLACEHOLDER}"',
        *options,
        f"-I{CSRC}",
        f"-ffile-prefix-map={CSRC}=csrc",
    ]


def compile_objects(target: Path, names: Sequence[str], options: Sequence[str]) -> dict[str, Path]:
    """Compile sources of the hook into a folder, two floors at the same time; names: their paths in ``csrc``.

    options: of the compiler. Returns the paths of the object files by these names. Raises CalledProcessError if the
    compiler fails.
    """

    def compile_floor(floor: str) -> None:
        """Compile the sources of one folder of ``csrc``, the floor."""
        (target / floor).mkdir(parents=True)
        paths = [str(CSRC / name) for name in names if name.startswith(f"{floor}/")]
        if paths:
            subprocess.run([*_compiling(options), "-c", *paths], check=True, cwd=target / floor)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_floor, FLOORS))
    return {name: (target / name).with_suffix(".o") for name in names}


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> None:
    """Compile the four libraries of the hook, which intercepts a program's calls of the CUDA driver, into a folder.

    They are the hook itself (``libcuda.so.1``), the auditing module that gives it to programs that ask for the driver,
    the hook for a process that is running already (late), and the stub that patched libraries load. target: the folder;
    it is created. flags: for optimization, or sanitizers. Raises CalledProcessError if the compiler fails.
    """
    target.mkdir(parents=True, exist_ok=True)
    compiling = _compiling((*flags, *warnings))
    linking = [*compiler(), *flags, "-g", "-shared", "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack"]

    def link(name: str, *arguments: str) -> None:
        """Link a shared library, whose SONAME is its name."""
        subprocess.run([*linking, *arguments, "-o", str(target / name), f"-Wl,-soname,{name}"], check=True)

    def link_alone(name: str, source_names: Sequence[str], *arguments: str) -> None:
        """Compile and link a library that needs nothing: no startup files, no libc, no sanitizer's runtime."""
        subprocess.run(
            [
                *compiling, "-O2", "-fno-stack-protector", "-fno-sanitize=all", "-shared", "-nostdlib",
                "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu", *arguments, f"-Wl,-soname,{name}",
                *(str(CSRC / source_name) for source_name in source_names), "-o", str(target / name),
            ],
            check=True,
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as temporary:
        hook = compile_objects(Path(temporary) / "hook", SOURCES, (*flags, *warnings))
        # The late hook's own objects replace those of the same names.
        late = hook | compile_objects(
            Path(temporary) / "late", LATE_SOURCES, (*flags, *warnings, "-DNEUTRINO_LATE")
        )
        link(
            "libneutrino_late.so",
            *map(str, late.values()),
            # Function pointers of the program are redirected to it, so dlclose must never unload it.
            "-Wl,-z,nodelete",
            "-ldl",
            "-lpthread",
        )
        # A compiler must not turn the module's loops into calls of strlen.
        # In two segments, which are mapped faster than four.
        alone = ("-ffreestanding", "-fno-tree-loop-distribute-patterns", "-Wl,-z,noseparate-code")
        link_alone("libneutrino_audit.so", AUDIT_SOURCES, *alone)
        link_alone("libneutrino_stub.so", ["front/stub.c"], "-Wl,-init,nt_stub_init")
        # The hook depends on a library of which the linker needs only the name.
        driver = str(Path(temporary) / "driver.so")
        naming = ("-nostdlib", f"-Wl,-soname,{DRIVER_PLACEHOLDER}", "-x", "c", os.devnull)
        subprocess.run([*linking, *naming, "-o", driver], check=True)
        link(
            "libcuda.so.1",
            *map(str, hook.values()),
            "-Wl,--no-as-needed",
            driver,
            # It has threads, and functions that run at the end.
            "-Wl,-z,nodelete",
            # Its own functions are meant, not what a program has under their names.
            "-Wl,-Bsymbolic",
            "-ldl",
            "-lpthread",
        )


if __name__ == "__main__":
    import argparse

    _parser = argparse.ArgumentParser("python -m neutrino.loader.build", description="Compile the hook.")
    _parser.add_argument("folder", nargs="?", type=Path, default=_HERE / "lib", help="default: in the package")
    build(_parser.parse_args().folder)
