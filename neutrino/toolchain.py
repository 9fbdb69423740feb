"""The external tools: where they are, how they are run, and what ``ptxas`` says about its work.

Every tool runs through ``run_tool``. Importing this module imports nothing heavy and starts nothing: a run
whose twins are all cached asks for ``assembler_identity`` only, which answers from a file once a ``ptxas``
has been seen.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shlex
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neutrino.cache import private_folder, read_private, write_private
from neutrino.errors import NeutrinoError, ToolError, ToolMissingError

ASSEMBLER_HINT = 'pip install "neutrino-gpu[cuda]", or name one in NEUTRINO_PTXAS'
ASSEMBLE_TIMEOUT = 600.0
"""Seconds that one ``ptxas`` may take; a 4.8 MB module of 201 kernels takes 5."""
LINKER_HINT = 'pip install "neutrino-gpu[cuda]", put that of a CUDA toolkit on PATH, or name one in NEUTRINO_NVLINK'
LINK_TIMEOUT = 120.0
"""Seconds that one ``nvlink`` may take; 201 kernels take less than one."""

# CUDA release -> PTX ISA version: the table "PTX Release History" of the PTX ISA manual, "Release Notes".
# 12.6 came with 8.5. A release newer than the table accepts at least the last line's.
_PTX_RELEASES: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    ((11, 0), (7, 0)), ((11, 1), (7, 1)), ((11, 2), (7, 2)), ((11, 3), (7, 3)), ((11, 4), (7, 4)),
    ((11, 5), (7, 5)), ((11, 6), (7, 6)), ((11, 7), (7, 7)), ((11, 8), (7, 8)), ((12, 0), (8, 0)),
    ((12, 1), (8, 1)), ((12, 2), (8, 2)), ((12, 3), (8, 3)), ((12, 4), (8, 4)), ((12, 5), (8, 5)),
    ((12, 7), (8, 6)), ((12, 8), (8, 7)), ((12, 9), (8, 8)), ((13, 0), (9, 0)), ((13, 1), (9, 1)),
)  # fmt: skip

# Architecture -> CUDA release whose assembler knows it first: the same manual, table "PTX Release History".
_FIRST_RELEASES: dict[int, tuple[int, int]] = {
    75: (10, 0), 80: (11, 0), 86: (11, 1), 87: (11, 4), 88: (13, 0), 89: (11, 8), 90: (11, 8),
    100: (12, 8), 101: (12, 8), 103: (12, 9), 110: (13, 0), 120: (12, 8), 121: (12, 9),
}  # fmt: skip

LATEST_PTX = _PTX_RELEASES[-1][1]
"""The highest PTX ISA ``.version`` known here, for twins that no assembler sees."""

_TOOLKIT = Path("/usr/local/cuda")
_CRASHES = {-4: "SIGILL", -6: "SIGABRT", -8: "SIGFPE", -11: "SIGSEGV"}
_REFUSAL = re.compile(
    r"^(?:ptxas|nvlink) (?:error|fatal)\s*:|^ptxas .*, line \d+; (?:error|fatal)\s*:", re.MULTILINE
)
# The last two are nvlink's for a folder that is not there and for a full disk.
_ENVIRONMENT = re.compile(
    r"could not be (?:opened|read|written|created)|[Mm]emory allocation|No space left|out of memory|bad_alloc"
    r"|Could not open|Internal error: writing file"
)


@dataclass(frozen=True)
class ToolResult:
    """A tool's run that ended with status 0."""

    argv: list[str]
    stdout: bytes
    stderr: str


class AssemblyError(ToolError):
    """The assembler or linker refused its input or crashed on it: a verdict about that, unlike any other ToolError."""

    @property
    def reason(self) -> str:
        """The first line that says what is wrong, without the path of the temporary file."""
        for line in self.stderr.splitlines():
            if _REFUSAL.search(line):
                line = re.sub(r"^ptxas .*?, line (\d+); ", r"line \1: ", line)
                line = re.sub(r"^(?:ptxas|nvlink) ", "", line)
                return re.sub(r" in '[^']*/[^']*'", "", line).strip()
        return f"it crashed ({_CRASHES[self.status]})" if self.status in _CRASHES else str(self)


def run_tool(argv: Sequence[str | Path], *, input: bytes | None = None, timeout: float) -> ToolResult:
    """Run a tool to its end, without a shell. timeout: seconds.

    Raises ToolError when it cannot be started, ends with another status than 0 (a signal is negative) or runs
    past the timeout (status None); ToolMissingError when argv[0] does not exist.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=input, capture_output=True, timeout=timeout, check=False, close_fds=True)
    except FileNotFoundError as error:
        raise ToolMissingError(words[0], "the file does not exist") from error
    except OSError as error:
        raise ToolError(words, None, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(words, None, f"no result within {timeout:g} s") from error
    stderr = done.stderr.decode("utf-8", "replace")
    if done.returncode:
        raise ToolError(words, done.returncode, stderr or done.stdout.decode("utf-8", "replace"))
    return ToolResult(words, done.stdout, stderr)


def cache_root() -> Path:
    """Neutrino's folder under XDG_CACHE_HOME; it need not exist. Raises NeutrinoError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home().absolute() / ".cache") / "neutrino"
    except RuntimeError:
        raise NeutrinoError("this user has no home folder to keep the cache in; set XDG_CACHE_HOME") from None


def _chosen_tool(name: str) -> Path | None:
    variable = "NEUTRINO_" + name.upper().replace("-", "_")
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ToolMissingError(name, f"{variable} names {value}, which is no executable file")
    return path


def _tool_candidates(name: str) -> Iterator[Path]:
    """Places of a CUDA tool in the order in which they are asked; existing executables only, each once."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    folders += [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders.append(_TOOLKIT / "bin")
    for scheme in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        site = Path(scheme)
        folders += sorted((site / "nvidia").glob("cu*/bin"), reverse=True)
        folders += [site / "nvidia" / "cuda_nvcc" / "bin", site / "triton" / "backends" / "nvidia" / "bin"]
    names = [name, "ptxas-blackwell"] if name == "ptxas" else [name]
    seen: set[Path] = set()
    for folder in folders:
        for file in names:
            path = folder / file
            if path.is_file() and os.access(path, os.X_OK) and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def find_tool(name: str, hint: str = "install the CUDA toolkit, or put it on PATH") -> Path:
    """The path of a tool: NEUTRINO_<NAME>, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda, pip wheels, Triton's.

    Raises ToolMissingError with hint when it is nowhere, or when the variable names no executable.
    """
    chosen = _chosen_tool(name)
    if chosen is not None:
        return chosen
    for path in _tool_candidates(name):
        return path
    raise ToolMissingError(name, hint)


@dataclass(frozen=True)
class Resources:
    """What ``ptxas -v`` says of one kernel. Stack frame and spills in bytes per thread, called functions not
    included.

    functions: stack frames of functions that it calls and that were assembled with it.
    """

    registers: int
    frame: int
    spill_stores: int
    spill_loads: int
    functions: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Assembled:
    """A cubin, and what ``ptxas`` said. resources: by kernel. warnings: the warning and advisory lines, in order."""

    cubin: bytes
    resources: dict[str, Resources]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Assembler:
    """A ``ptxas``. version: (13, 0, 88). identity: what tells two builds of it apart, for the cache key.

    slots: held by each thread while the process runs: by default as many run as are asked for.
    """

    path: Path
    version: tuple[int, int, int]
    identity: str = field(compare=False)
    slots: contextlib.AbstractContextManager[object] = field(
        default_factory=contextlib.nullcontext, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """``ptxas 13.0.88``."""
        return "ptxas " + ".".join(map(str, self.version))

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The highest PTX ISA ``.version`` that it is known to accept."""
        accepted = (6, 5)
        for release, ptx in _PTX_RELEASES:
            if release <= self.version[:2]:
                accepted = ptx
        return accepted

    def assemble(
        self,
        text: str | bytes,
        arch: str,
        options: Sequence[str] | str = (),
        *,
        timeout: float = ASSEMBLE_TIMEOUT,
    ) -> Assembled:
        """Assemble PTX for arch (``sm_90a``) with further ptxas options. Text counts as latin-1; timeout in seconds.

        Raises AssemblyError when the text is refused or crashes the assembler; ToolError or OSError when the
        machine is at fault (no such file, killed, disk full), so that nothing was learned about the text.
        """
        words = shlex.split(options) if isinstance(options, str) else list(options)
        with tempfile.TemporaryDirectory(prefix="neutrino-") as folder:
            source, result = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
            source.write_bytes(text.encode("latin-1") if isinstance(text, str) else text)
            argv: list[str | Path] = [self.path, f"-arch={arch}", "-v", *words, source, "-o", result]
            try:
                with self.slots:
                    done = run_tool(argv, timeout=timeout)
            except ToolError as error:
                raise _classified(error) from error
            cubin = result.read_bytes()
        # ptxas 13.0 ends with status 0 when the disk filled up while it wrote.
        _check_whole("ptxas", cubin, folder)
        # Triton's ptxas and those before 11 print some of it on stdout.
        printed = done.stderr + done.stdout.decode("utf-8", "replace")
        return Assembled(cubin, _parse_resources(printed), _parse_warnings(printed))


@dataclass(frozen=True)
class Linker:
    """An ``nvlink``. version: (13, 0, 88). identity: what tells two builds of it apart, for the cache key."""

    path: Path
    version: tuple[int, int, int]
    identity: str = field(compare=False)

    @property
    def name(self) -> str:
        """``nvlink 13.0.88``."""
        return "nvlink " + ".".join(map(str, self.version))

    def link(self, cubins: Sequence[bytes], arch: str, *, timeout: float = LINK_TIMEOUT) -> bytes:
        """Link relocatable cubins (``ptxas -c``) for arch (``sm_90a``) into one that the driver loads.

        timeout: seconds. Raises AssemblyError when they do not go together, as for a function that none of them
        defines; ToolError or OSError when the machine is at fault. nvlink 13.0 takes a truncated cubin without a
        word, so these must be whole.
        """
        with tempfile.TemporaryDirectory(prefix="neutrino-") as folder:
            inputs = [Path(folder) / f"unit{number}.cubin" for number in range(len(cubins))]
            for path, cubin in zip(inputs, cubins, strict=True):
                path.write_bytes(cubin)
            result = Path(folder) / "linked.cubin"
            try:
                run_tool([self.path, f"-arch={arch}", "-m64", *inputs, "-o", result], timeout=timeout)
            except ToolError as error:
                raise _classified(error) from error
            linked = result.read_bytes()
        _check_whole("nvlink", linked, folder)
        return linked


def _check_whole(tool: str, cubin: bytes, folder: str) -> None:
    if not _is_whole_elf(cubin):
        problem = f"{tool} wrote a truncated cubin of {len(cubin)} bytes; is the disk full?"
        raise OSError(errno.ENOSPC, problem, folder)


def _classified(error: ToolError) -> ToolError:
    refused = error.status is not None and error.status > 0 and _REFUSAL.search(error.stderr)
    if (refused or error.status in _CRASHES) and not _ENVIRONMENT.search(error.stderr):
        return AssemblyError(error.argv, error.status, error.stderr)
    return error


def _is_whole_elf(data: bytes) -> bool:
    if len(data) < 64 or data[:4] != b"\x7fELF":
        return False
    programs, sections = struct.unpack_from("<QQ", data, 0x20)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", data, 0x36)
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    return bool(end <= len(data))


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def _parse_resources(printed: str) -> dict[str, Resources]:
    """The kernels' lines of ``ptxas -v``; those of functions that a kernel calls stand behind its own."""
    found: dict[str, Resources] = {}
    called: dict[str, int] = {}
    entry = function = ""
    stack = (0, 0, 0)
    for line in printed.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif match and not entry:
            called[function] = int(match[1])
        elif (match := _REGISTERS.search(line)) and entry:
            called = {}
            found[entry] = Resources(int(match[1]), *stack, functions=called)
            entry = ""
    return found


_WARNING = re.compile(r"^ptxas (?:.*?, line \d+; )?(?:warning|advisory|info)\s*:\s*(.*)")
_CODE = re.compile(r"\(C\d{4}\)")


def _parse_warnings(printed: str) -> tuple[str, ...]:
    """Warnings, and the lines with a code such as (C7508), which some releases print as information."""
    found = []
    for line in printed.splitlines():
        match = _WARNING.search(line)
        if match and ("warning" in line.split(":")[0] or _CODE.search(match[1])):
            found.append(match[1].strip())
    return tuple(found)


_VERSION = re.compile(r"V(\d+\.\d+\.\d+)\b")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_BUILD = re.compile(r"^Build (\S+)", re.MULTILINE)
_VERSIONS_FILE = "assemblers.json"


def _assembler_at(path: Path) -> Assembler | None:
    """The assembler at path, None when it cannot say its version."""
    found = _release_at(path)
    return Assembler(path, found[0], f"ptxas {found[1]}") if found else None


def _linker_at(path: Path) -> Linker | None:
    found = _release_at(path)
    return Linker(path, found[0], f"nvlink {found[1]}") if found else None


@functools.lru_cache(maxsize=64)
def _release_at(path: Path) -> tuple[tuple[int, int, int], str] | None:
    """A tool's version, and the same with its build; None when it cannot say. Kept by path, size and time."""
    status = path.stat()
    stamp = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    known = _known_versions()
    if stamp not in known:
        try:
            text = run_tool([path, "--version"], timeout=60).stdout.decode("utf-8", "replace")
        except ToolError:
            return None
        version, build = _VERSION.search(text), _BUILD.search(text)
        if not version:
            return None
        known[stamp] = (version[1], build[1] if build else "unknown")
        # Without a cache folder the next run asks again: slower, never wrong.
        with contextlib.suppress(OSError, NeutrinoError):
            write_private(private_folder(cache_root()) / _VERSIONS_FILE, json.dumps(known).encode())
    release, build_name = known[stamp]
    major, minor, patch = map(int, release.split("."))
    return (major, minor, patch), f"{release} {build_name}"


def _known_versions() -> dict[str, tuple[str, str]]:
    try:
        data = read_private(cache_root() / _VERSIONS_FILE)
        known = json.loads(data) if data else {}
    except (OSError, NeutrinoError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        stamp: (entry[0], entry[1])
        for stamp, entry in known.items()
        if isinstance(entry, list) and len(entry) == 2 and _RELEASE.fullmatch(str(entry[0]))
    }


def _chosen_assembler() -> Assembler | None:
    """The one that NEUTRINO_PTXAS names."""
    chosen = _chosen_tool("ptxas")
    if chosen is None:
        return None
    assembler = _assembler_at(chosen)
    if assembler is None:
        raise ToolMissingError("ptxas", f"NEUTRINO_PTXAS names {chosen}, which does not say its version")
    return assembler


def _assemblers() -> list[Assembler]:
    """Every one there is, at least one. Raises ToolMissingError."""
    found = [entry for path in _tool_candidates("ptxas") if (entry := _assembler_at(path)) is not None]
    if not found:
        raise ToolMissingError("ptxas", ASSEMBLER_HINT)
    return found


def find_assembler(driver_version: int | None = None) -> Assembler:
    """The ``ptxas`` to use: NEUTRINO_PTXAS, else the highest release not newer than the driver's.

    driver_version: as ``cuDriverGetVersion`` gives it (13000); None: no driver, the highest release.
    When all are newer, the lowest of the driver's major release: within one, newer cubins load on older
    drivers ("CUDA Compatibility", minor version compatibility). Raises ToolMissingError, with what was found.
    """
    chosen = _chosen_assembler()
    if chosen is not None:
        return chosen
    found = _assemblers()
    if driver_version is None:
        return max(found, key=lambda entry: entry.version)
    release = (driver_version // 1000, driver_version % 1000 // 10)
    fitting = [entry for entry in found if entry.version[:2] <= release]
    if fitting:
        return max(fitting, key=lambda entry: entry.version)
    compatible = [entry for entry in found if entry.version[0] == release[0]]
    if compatible:
        return min(compatible, key=lambda entry: entry.version)
    newer = ", ".join(sorted({entry.name for entry in found}))
    raise ToolMissingError(
        "ptxas",
        f"the driver is CUDA {release[0]}.{release[1]} and only newer is here ({newer}); {ASSEMBLER_HINT}",
    )


def find_linker(assembler: Assembler) -> Linker:
    """The ``nvlink`` for what an assembler makes: NEUTRINO_NVLINK, else the oldest that is not older than it.

    It must be of the assembler's major release, since what it writes needs a driver of its own. Raises
    ToolMissingError, with what was found.
    """
    chosen = _chosen_tool("nvlink")
    candidates = [chosen] if chosen is not None else list(_tool_candidates("nvlink"))
    found = [entry for path in candidates if (entry := _linker_at(path)) is not None]
    if chosen is not None and not found:
        raise ToolMissingError("nvlink", f"NEUTRINO_NVLINK names {chosen}, which does not say its version")
    major = assembler.version[0]
    fitting = [entry for entry in found if entry.version >= assembler.version and entry.version[0] == major]
    if fitting:
        return min(fitting, key=lambda entry: entry.version)
    others = ", ".join(sorted({entry.name for entry in found}))
    detail = f"{assembler.name} needs one of release {major}, not older than itself"
    raise ToolMissingError("nvlink", f"{detail}{f', and here is {others}' if others else ''}; {LINKER_HINT}")


def assembler_identity(driver_version: int | None = None) -> str:
    """The identity of the assembler that find_assembler would return; starts no process once it is known.

    Raises ToolMissingError as find_assembler does.
    """
    return find_assembler(driver_version).identity


def release_of_ptx(version: tuple[int, int]) -> tuple[int, int] | None:
    """The first CUDA release that takes PTX of that ``.version``; None for a version of none that is known."""
    return next((release for release, ptx in _PTX_RELEASES if ptx >= version), None)


def find_assembler_for(release: tuple[int, int] | None, arch: str) -> Assembler:
    """The ``ptxas`` for code that is used later, elsewhere: NEUTRINO_PTXAS, else the newest not newer than the
    original's toolkit.

    release: of that toolkit, as (12, 4); None when it is not known: then the oldest. arch: to assemble for, as
    ``sm_90a``; what does not know it is passed over. When all that know it are newer than the toolkit, the oldest of
    them: its code asks the least of the driver. Raises ToolMissingError when there is none at all.
    """
    return _assemblers_for(release, arch)[0]


def find_linking_tools(release: tuple[int, int] | None, arch: str) -> tuple[Assembler, Linker]:
    """As find_assembler_for, of the assemblers that have their linker here; and that linker.

    Raises ToolMissingError when none has.
    """
    lacking: ToolMissingError | None = None
    for assembler in _assemblers_for(release, arch):
        try:
            return assembler, find_linker(assembler)
        except ToolMissingError as error:
            lacking = lacking or error
    raise lacking or ToolMissingError("nvlink", LINKER_HINT)


def _assemblers_for(release: tuple[int, int] | None, arch: str) -> list[Assembler]:
    """What find_assembler_for returns, then what comes next; never empty."""
    chosen = _chosen_assembler()
    if chosen is not None:
        return [chosen]
    found = sorted(_assemblers(), key=lambda entry: entry.version)
    number = int("".join(character for character in arch if character.isdigit()) or 0)
    first = _FIRST_RELEASES.get(number, (0, 0))
    knowing = [entry for entry in found if entry.version[:2] >= first] or found[-1:]
    fitting = [entry for entry in knowing if release is not None and entry.version[:2] <= release]
    return [*reversed(fitting), *(entry for entry in knowing if entry not in fitting)]
