"""Start COMMAND: checks, keys, the listener, the environment, and exec."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import NoReturn

from neutrino.device.kind import CODE_ALONE, DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import NeutrinoError, ToolError
from neutrino.late_dataclass import dataclass
from neutrino.loader.driver import driver_version, find_driver, is_library
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.loader.hookable import why_not_hooked
from neutrino.loader.install import LATE, built, install_hook, place_hook, variables
from neutrino.loader.shared_folder import shared_folder
from neutrino.maker.history import History
from neutrino.maker.keys import kept_identity, run_key
from neutrino.maker.passed import OF_USER, SUFFIX, keep_beside
from neutrino.maker.serving import TwinSettings
from neutrino.maker.store import Cache
from neutrino.places import cache_root, run_cache_parent
from neutrino.private_files import private_folder, read_private, write_private
from neutrino.probing.selection import Selection
from neutrino.resources import tool_path
from neutrino.run.folders import make_run_folder
from neutrino.run.launch_choice import Choice
from neutrino.run.listener import Settings, start_listener
from neutrino.run.parent import run_beneath
from neutrino.run.probes import RunProbes
from neutrino.run.range_choice import INJECTION, OWN_INJECTION
from neutrino.run.scripts import NO_SCRIPTS, Scripts
from neutrino.run.terminal import Terminal, Unused
from neutrino.run.traces import RunTraces, new_run
from neutrino.toolchain.tool_choice import COMPILES_ANEW, assembler_identity
from neutrino.trusted_paths import why_not_trusted
from neutrino.version import __version__

_WITHOUT_ASSEMBLER = {
    DeviceKind.GPU: "kernels that are not in the cache run without probes",
    DeviceKind.EMBEDDED: "twins are made, but neither their registers nor their arithmetic is verified",
}
_USUAL_TRACEDIR = Path("trace")
"""In the current folder, unless the user says another."""


_MOST_SAID = 300
"""Characters of the options that messages repeat."""


@dataclass(frozen=True)
class Request:
    """The user's settings of a run of COMMAND.

    command: the program and its arguments. probes: None to use those of patched libraries. probe_names: as the user
    gave them, for the trace. tracedir: the folder in which traces are made. driver: path of the driver's library,
    None to find it. device: the embedded device (emulator) instead of the machine's GPU; driver is ignored then.
    pool: bytes of device memory for maps, None for the default. timeout: seconds that the program waits for the
    twins of an image, None for the default. waits: whether the program waits for twins; else they are made and loaded
    beside it. hot: the launch of a kernel, from 1, at which its twin is requested, 0: when its image is loaded; the
    program does not wait for those. save_temps: a folder for the output of each stage. quiet: whether not
    to print where traces are and what they cover. hides_arguments: leave COMMAND's arguments out of traces.
    follows: whether programs that COMMAND starts are probed.
    max_trace_size: bytes of launch records and their data that a trace keeps, None for no limit. retarget: whether
    twins may be made from PTX of another architecture than the machine code's. texts: folders of machine code with
    its PTX in files beside it. max_registers: a cap of twins' registers per thread, None without one; the embedded
    device has no registers to limit. machine_code: of which machine code twins are made; the embedded device runs
    none. ranks: of the processes that are probed, none for all. choice: of the launches that are probed. scripts:
    False disables the probes' analyze hooks and callbacks. results: prints what the run's traces hold, given COMMAND's
    exit status; then this process stays COMMAND's parent, and calls it when COMMAND has ended. None: this process
    becomes COMMAND. meanwhile: runs in a thread of that parent until the event is set, at COMMAND's end. run: names
    this run in its traces. measures_only: whether launches run their originals, and only the memory that their twins
    would take is measured. pid: of the process that is probed, None for this one, which becomes COMMAND. is_switched:
    whether that process switches recording on and off. benchmark: the seed by which launches run originals and twins
    in random order and are timed, 0 for no benchmark. lifeline: the reading end of a pipe at whose end the listener
    ends, None if it lasts as long as the process. says_long: whether to say on a terminal that an assembler takes long
    even if quiet.
    """

    command: list[str]
    probes: RunProbes | None
    probe_names: tuple[str, ...]
    selection: Selection
    tracedir: Path = _USUAL_TRACEDIR
    driver: Path | None = None
    device: EmbeddedDevice | None = None
    pool: int | None = None
    timeout: int | None = None
    waits: bool = True
    hot: int = 0
    save_temps: Path | None = None
    quiet: bool = False
    hides_arguments: bool = False
    follows: bool = True
    max_trace_size: int | None = None
    retarget: bool = False
    texts: tuple[Path, ...] = ()
    max_registers: int | None = None
    machine_code: MachineCode = MachineCode.AUTO
    ranks: tuple[int, ...] = ()
    choice: Choice = field(default_factory=Choice)
    scripts: bool = True
    results: Callable[[RunTraces, int], None] | None = None
    meanwhile: Callable[[RunTraces, threading.Event], None] | None = None
    run: str = field(default_factory=new_run)
    measures_only: bool = False
    pid: int | None = None
    is_switched: bool = False
    benchmark: int = 0
    says_long: bool = False
    lifeline: int | None = None


def prepare(request: Request) -> dict[str, str]:
    """Check the request and prepare the run; return the environment to start COMMAND with.

    Installs the hook (a library that intercepts calls of the CUDA driver), and starts the listener (a process that
    makes twins, the instrumented kernels) if there are probes. Without a driver it prints a line on stderr and returns
    this process's own environment. Raises NeutrinoError, OSError.
    """
    environment = dict(os.environ)

    # The driver and the folders.
    kind = DeviceKind.EMBEDDED if request.device else DeviceKind.GPU
    if request.device:
        driver: Path | None = stand_in()
    else:
        driver = request.driver or find_driver(environment)
    if driver is None:
        say("no CUDA driver (libcuda.so.1) on this machine: COMMAND runs without probes; --device embedded needs none")
        return environment
    if not is_library(driver):
        raise NeutrinoError(f"--driver {driver}: not a 64-bit ELF library that can be read")
    tracedir, elsewhere = _trace_folder(request)
    with _explaining_cache_errors():
        cache, lock = _cache_of_run(request)
        module = install_hook(driver.absolute(), cache, shared_folder())
        if elsewhere:
            private_folder(tracedir)
            if not request.quiet:
                say(f"traces are in {tracedir}: in the current folder, {elsewhere}")
    _check_writable(f"--tracedir {tracedir}: no trace", tracedir)
    if request.save_temps:
        _check_writable(f"--save-temps {request.save_temps}: nothing", request.save_temps.absolute())

    # The environment.
    if request.device:
        environment |= request.device.environment(environment)
    # If this process itself runs under the hook, it has the variables of that run, with other probes.
    if environment.get(INJECTION) == environment.get(OWN_INJECTION):
        environment.pop(INJECTION, None)
    for name in _RUN_VARIABLES:
        environment.pop(name, None)
    if request.probes is None:
        # The twins are in the patched libraries, so there is nothing for a listener to make.
        environment["NEUTRINO_AHEAD"] = "1"
    else:
        # Where results are printed, that line is one of them.
        is_silent = request.quiet or request.pid or request.results
        unused = None if is_silent else Unused.watch(RunTraces.before(tracedir, request.run))
        for place in request.texts:
            if not keep_beside(cache, place):
                raise NeutrinoError(
                    f"{OF_USER} {place}: no machine code NAME.cubin with its text NAME{SUFFIX} beside it; a run before"
                    " this one has to leave both there: see CuTe DSL in docs/frameworks.md"
                )
        environment |= _start_probing(request, request.probes, driver, kind, cache, unused, lock)
    environment |= variables(module, environment)
    if request.choice.ranges:
        # NVTX calls one library alone.
        if environment.get(INJECTION):
            raise NeutrinoError(
                f"--range: {INJECTION} is {environment[INJECTION]}, so another tool gets the calls of NVTX, and nothing"
                " would be probed; unset it, or run without --range"
            )
        # In a process that runs already, the hook is another library.
        with _explaining_cache_errors():
            hook = built(LATE) if request.pid else place_hook(driver.absolute(), cache)
        environment |= dict.fromkeys((INJECTION, OWN_INJECTION), str(hook))
    environment |= {
        "NEUTRINO_DRIVER": str(driver.absolute()),
        "NEUTRINO_TRACEDIR": str(tracedir),
        "NEUTRINO_VERSION": __version__,
    }
    # None leaves the variable as it is, or unset; the hook has defaults.
    for name, value in {
        "POOL": request.pool,
        "TIMEOUT": request.timeout,
        "NO_WAIT": None if request.waits else 1,
        "HOT": request.hot or None,
        "QUIET": 1 if request.quiet else None,
        "RUN": request.run,
        "MEMUSAGE": 1 if request.measures_only else None,
        "SWITCHED": 1 if request.is_switched else None,
        "BENCHMARK": request.benchmark or None,
        # Programs that it starts find the library of its NVTX calls in the environment, and are not probed.
        "PID": request.pid,
        # It may ask for other probes later, where nothing else is made with the first ones.
        "ASKS": 1 if request.pid and may_ask_again(request) else None,
        # "all" replaces what an outer neutrino has set.
        "FOLLOW": "all" if request.follows else "none",
        "NO_ARGV": 1 if request.hides_arguments else None,
        "CHOICE": _chooses(request),
        "KERNELS": _said_of(request.selection),
        "MAX_TRACE_SIZE": request.max_trace_size,
        "ONLY_RANKS": ",".join(map(str, request.ranks)) or None,
        **dict(request.choice.variables()),
    }.items():
        if value is not None:
            environment[f"NEUTRINO_{name}"] = str(value)
    return environment


def _chooses(request: Request) -> str:
    """Return what can leave out launches of a run, in words: the options that are given, and commands and blocks."""
    options = [f"-k {pattern}" for pattern in request.selection.keep]
    options += [f"--filter {pattern}" for pattern in request.selection.drop]
    options += [f"--rank {rank}" for rank in request.ranks]
    options += request.choice.options()
    options += ["--benchmark"] * bool(request.benchmark)
    options.append("blocks of neutrino.trace" if request.is_switched else "neutrino-ctl")
    text = " or ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
    return "".join(character if character.isprintable() else "?" for character in text)[:_MOST_SAID]


def _said_of(selection: Selection) -> str | None:
    """Return what is said if ``-k`` has chosen no kernel that was launched; None if ``--filter`` counts, too."""
    if not selection.keep or selection.drop:
        return None
    text = " or ".join(selection.keep)
    is_part = not any(character in pattern for pattern in selection.keep for character in "*?[/:")
    said = f"no kernel has {text} in its name" if is_part else f"no kernel matches {text}"
    return "".join(character if character.isprintable() else "?" for character in said)[:_MOST_SAID]


def may_ask_again(request: Request) -> bool:
    """Return whether a process may get other probes later: not if its twins are made beside it, or only measured."""
    return request.waits and not request.hot and not request.measures_only


_RUN_VARIABLES = (
    "NEUTRINO_AHEAD", "NEUTRINO_KEY", "NEUTRINO_CACHE", "NEUTRINO_SOCKET", "NEUTRINO_PROBE_FILE", "NEUTRINO_PROBES",
    "NEUTRINO_READER", "NEUTRINO_RUN", "NEUTRINO_ONLY_RANKS", "NEUTRINO_LAUNCHES", "NEUTRINO_EVERY",
    "NEUTRINO_ONLY_DEVICES", "NEUTRINO_DURATION", "NEUTRINO_SWITCHED", "NEUTRINO_NO_WAIT", "NEUTRINO_HOT",
    "NEUTRINO_RANGES", "NEUTRINO_RANGE_SCOPE", "NEUTRINO_PID", "NEUTRINO_MEMUSAGE", "NEUTRINO_BENCHMARK",
    "NEUTRINO_MACHINE_CODE", "NEUTRINO_CODE_ARCHS", "NEUTRINO_ASKS", "NEUTRINO_KERNELS", "NEUTRINO_CHOICE",
    OWN_INJECTION,
)  # fmt: skip
"""Variables by which the hook knows what a run probes; not all runs set all of them."""


def _start_probing(
    request: Request, probes: RunProbes, driver: Path, kind: DeviceKind, cache: Path, unused: Unused | None,
    lock: int | None,
) -> dict[str, str]:  # fmt: skip
    """Start the listener for a run with probes; return the environment variables that configure the hook for it.

    The listener makes twins (instrumented kernels) when the hook, in COMMAND, asks for them. driver: the library, which
    decides which assembler is used. kind: of the device. cache: the folder of the cache. unused: reports that COMMAND
    never used a GPU. lock: descriptor of a cache that ends with the run; None for one that stays.
    """
    version = driver_version(driver, cache)
    try:
        assembler = assembler_identity(version)
    except ToolError as error:
        # Not an error of the run: twins may be in the cache.
        say(f"{error}: {_WITHOUT_ASSEMBLER[kind]}")
        assembler = "none"
    # The key under which twins are cached. With --save-temps it is a new one, so that all stages run.
    patcher = f"{__version__} {os.urandom(16).hex() if request.save_temps else kept_identity(cache)}"
    # A run without --retarget must not find twins that were made with it.
    patcher += " retarget" if request.retarget else ""
    max_registers = None if kind is DeviceKind.EMBEDDED else request.max_registers
    if request.max_registers is not None and max_registers is None and not request.quiet:
        say("--max-registers: the embedded device has no registers to limit, so it changes nothing")
    code = _machine_code(request, kind, assembler != "none")
    key = run_key(probes.digest, request.selection.digest, assembler, patcher, kind, max_registers, code)
    with _explaining_cache_errors():
        probe_file = _store_probes(cache, probes)
    # A GPU never runs twins that were not assembled, so a worker then looks for an assembler again.
    assembled = request.device is None or assembler != "none"
    terminal = Terminal.of(2) if request.says_long or not request.quiet else None
    socket = start_listener(
        Settings(
            TwinSettings(
                probes=probes,
                selection=request.selection,
                run_key=key,
                cache=Cache(cache),
                save_temps=request.save_temps,
                device=kind,
                assembled=assembled,
                retarget=request.retarget,
                max_registers=max_registers,
                machine_code=code,
                compiled=Path(tempfile.gettempdir()) if _makes_at_loads(request, kind) else None,
                driver_version=version,
                history=_history(cache, key) if _makes_at_loads(request, kind) else None,
                waits=request.waits and not request.hot,
                say=terminal.say if terminal else None,
            ),
            # With --memusage there is nothing that they could read.
            scripts=Scripts.of(probes) if request.scripts and not request.measures_only else NO_SCRIPTS,
            unused=unused,
            cache_lock=lock,
            lifeline=request.lifeline,
        ),
        request.pid,
    )
    return {
        "NEUTRINO_KEY": key.hex(),
        "NEUTRINO_CACHE": str(cache),
        "NEUTRINO_SOCKET": str(socket),
        "NEUTRINO_PROBE_FILE": str(probe_file),
        "NEUTRINO_PROBES": " ".join(request.probe_names),
        "NEUTRINO_READER": str(tool_path("read.py")),
        **({"NEUTRINO_MACHINE_CODE": "1"} if kind in CODE_ALONE else {}),
        **({"NEUTRINO_MACHINE_CODE": "only" if code is MachineCode.ONLY else "kernels"} if code.is_on else {}),
        **({"NEUTRINO_CODE_ARCHS": " ".join(code.architectures)} if code.is_on and code.architectures else {}),
    }


def _machine_code(request: Request, kind: DeviceKind, is_assembled: bool) -> MachineCode:
    """Return of which machine code twins (instrumented kernels) are made in a run: of none on the embedded device,
    without an assembler, where the driver is told to compile PTX in place of the machine code that it has, and unless
    the user wants it, with probes that no GPU has shown."""
    code = request.machine_code.for_probes(request.probe_names)
    why_not = (
        "the embedded device runs no machine code" if kind is DeviceKind.EMBEDDED
        else "there is no ptxas" if not is_assembled
        else next((f"{name} is set" for name in COMPILES_ANEW if os.environ.get(name, "0") != "0"), "")
    )  # fmt: skip
    if why_not and code not in (MachineCode.AUTO, MachineCode.OFF) and not request.quiet:
        say(f"--machine-code {code.value}: {why_not}, so no twins are made of machine code")
    return MachineCode.OFF if why_not else code


def _cache_of_run(request: Request) -> tuple[Path, int | None]:
    """Return the cache's folder; and, if there is no place but one that ends with the run, a descriptor that keeps it.

    Raises NeutrinoError, OSError.
    """
    try:
        return private_folder(cache_root()), None
    except NeutrinoError as error:
        parent = run_cache_parent()
        # Without a listener nobody would know when the run has ended.
        if parent is None or request.probes is None:
            raise
        if not request.quiet:
            say(f"what this run caches is not kept: {error}")
    return make_run_folder(parent)


def _trace_folder(request: Request) -> tuple[Path, str]:
    """Return the folder in which traces are made, and "": the one that the user says, or one in the current folder.

    If another user could change traces in the current folder, it is one in the cache, and the reason is returned in
    place of "". Raises NeutrinoError.
    """
    try:
        usual = request.tracedir.absolute()
    except FileNotFoundError:
        raise NeutrinoError("the current folder no longer exists; give --tracedir an absolute path") from None
    reason = _why_no_trace_in(usual)
    if not reason:
        return usual, ""
    if request.tracedir != _USUAL_TRACEDIR:
        raise NeutrinoError(f"--tracedir {usual}: no trace is made there: {reason}")
    return cache_root() / "trace", reason


def _why_no_trace_in(folder: Path) -> str:
    """Return why traces in a folder, which need not exist, would not be this user's alone; "" if they would.

    The hook applies the same rule to the folder itself, and to the owners of those above it (``files.c``).
    """
    # That others can write to a device is right, and must not be changed.
    with contextlib.suppress(OSError):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            return f"{there} is not a directory"
    with contextlib.suppress(OSError):
        mode = folder.stat().st_mode
        # In a folder with the sticky bit, as /tmp, others cannot rename what is the user's.
        if mode & 0o022 and not mode & stat.S_ISVTX:
            return "others can write there; chmod go-w it, or give another folder"
    reason = why_not_trusted(folder, own_group=True)
    return f"{reason}; give a folder that only you can change" if reason else ""


def _history(cache: Path, key: bytes) -> History | None:
    """Return what earlier runs with this key have left: whether this one is likely to ask for twins, and so may be
    prepared.

    None if the cache cannot be written. key: of the run. (A twin is the copy of a kernel with probes.)
    """
    try:
        return History.begin(private_folder(cache / "runs") / key.hex())
    except OSError:
        return None


def _makes_at_loads(request: Request, kind: DeviceKind) -> bool:
    """Return whether twins are made when images are loaded, for a GPU, and kept: then they may be made before that."""
    return kind is DeviceKind.GPU and not request.hot and request.save_temps is None


def start(request: Request, hint: Callable[[Sequence[str]], str] = lambda _: "") -> NoReturn:
    """Replace this process by COMMAND, or, if results are printed at its end, start it as a child and end as it ends.

    hint: returns what to write in place of a command that cannot be run, "" if nothing is known. Exits with 127 if it
    is not found, and 126 if it cannot be run, as env(1) does. Raises NeutrinoError, OSError as ``prepare``.
    """
    _occupy_standard_descriptors()
    # Looked up before the listener is started, which a command that cannot run does not need.
    program = _find_program(request.command, hint)
    if request.results is None:
        _become(request, program)
    tracedir = request.tracedir
    # It is said where the run is prepared.
    with contextlib.suppress(NeutrinoError):
        tracedir, _ = _trace_folder(request)
    traces = RunTraces.before(tracedir.absolute(), request.run)
    meanwhile = partial(request.meanwhile, traces) if request.meanwhile else None
    run_beneath(partial(_become, request, program), partial(request.results, traces), meanwhile)


def _become(request: Request, program: str) -> NoReturn:
    """Prepare the run, and replace this process by COMMAND. program: its path. Raises NeutrinoError, OSError."""
    environment = prepare(request)
    reason = why_not_hooked(Path(program))
    if reason is not None:
        say(f"{program}: {reason}: its own kernels run without probes; those of programs that it starts are probed")
    # Python ignores these two signals, and COMMAND would inherit that: it would not end when `| head` does.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execve(program, request.command, environment)
        except OSError as error:
            # ENOEXEC: not a program of this machine's format.
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a #! line runs by sh, as with execvp(3).
            os.execve("/bin/sh", ["sh", program, *request.command[1:]], environment)
    except OSError as error:
        say(f"{request.command[0]}: {error.strerror}")
        raise SystemExit(126) from None


def say(line: str) -> None:
    """Print a message on stderr; do nothing if that is closed or cannot be written."""
    # sys.stderr is None if it is closed, for which print() would write to stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"neutrino: {line}", file=sys.stderr, flush=True)


def _occupy_standard_descriptors() -> None:
    """Open descriptors 0 to 2 if they are closed, so that no file that this process opens gets such a number.

    They are closed again by exec, so that COMMAND finds them as they were.
    """
    # open returns the lowest free number; the first one above 2 shows that 0 to 2 are taken.
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(descriptor)


@contextlib.contextmanager
def _explaining_cache_errors() -> Iterator[None]:
    """Turn an OSError of the block into a NeutrinoError that names the cache's folder and what to do."""
    try:
        yield
    except OSError as error:
        # An error that private_folder itself has detected has no errno, and is a whole sentence.
        if error.strerror is None:
            raise
        raise NeutrinoError(
            f"{cache_root()}: the cache cannot be there: {error.strerror}; set XDG_CACHE_HOME to a folder of your own"
        ) from error


def _find_program(command: list[str], hint: Callable[[Sequence[str]], str]) -> str:
    """Return the path of a command's program, which is looked up in PATH unless it has a slash. hint: as of ``start``.

    Prints a message and raises SystemExit with status 126 if there is only a file that cannot be executed, 127 if there
    is none.
    """
    name = command[0]
    # A path is used as it is.
    is_path = "/" in name
    # An empty entry in PATH is the current folder.
    search_path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = [Path(name)] if is_path else [Path(folder or ".") / name for folder in search_path]
    exists = False
    for path in candidates:
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        # A folder that is named by its path exists, but one in PATH with the command's name is passed over.
        exists = exists or stat.S_ISREG(mode) or is_path
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            return str(path)
    meant = hint(command)
    say(f"{name}: {'cannot be executed' if exists else 'command not found'}{'; ' * bool(meant)}{meant}")
    raise SystemExit(126 if exists else 127)


def _check_writable(what: str, folder: Path) -> None:
    """Raise NeutrinoError if files cannot be created in a folder, or in the nearest existing one above it.

    what: the start of the message: which option the folder is from, and what is not written.
    """
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".neutrino-", dir=nearest):
            pass
    except OSError as error:
        raise NeutrinoError(f"{what} can be written there: {error.strerror}") from error


def _store_probes(cache: Path, probes: RunProbes) -> Path:
    """Store the probes as a file in the cache and return its path; hooked processes copy it into their traces."""
    data = probes.text.encode()
    # Named by the file's own hash, not by probes.digest, which does not cover the scripts.
    path = private_folder(cache / "probes") / f"{hashlib.sha256(data).hexdigest()}.toml"
    # Not written if it is there, so that a cache on a full or read-only disk can still be used.
    if read_private(path) != data:
        write_private(path, data)
    probes.keep(cache)
    return path
