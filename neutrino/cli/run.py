"""``neutrino``: run a command with probes in its GPU kernels, or record with those that patched libraries carry."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neutrino.cli.arguments import given_path, suggested
from neutrino.cli.command_hints import hint_of_command, options_after
from neutrino.cli.defines import add_define
from neutrino.cli.intervals import Interval, print_meanwhile, take_intervals
from neutrino.cli.machine_code import proven
from neutrino.cli.max_registers import add_max_registers
from neutrino.cli.row_options import MOST_ROWS, number_of_rows
from neutrino.device.machine_code import MachineCode
from neutrino.errors import NeutrinoError, ProbeError
from neutrino.loader.embedded_driver import EmbeddedDevice
from neutrino.places import cache_root
from neutrino.probing.selection import Selection
from neutrino.resources import include_folder, shipped_probes
from neutrino.run.launch_choice import MOST_DEVICES, Choice
from neutrino.run.probes import ProbeSources, RunProbes, kept_probes
from neutrino.run.range_choice import Scope
from neutrino.run.start import Request, say, start
from neutrino.run.traces import RunTraces
from neutrino.version import __version__

if TYPE_CHECKING:
    from neutrino.probing.ir.probe_set import ProbeSet

OWN_FAILURE = 125
"""Exit status when Neutrino itself fails before COMMAND starts, as env(1) has it."""
_DAY_S = 86400
_UNIT_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}
"""Unit of a size → the power of two that it stands for."""
_MIN_SIZE, _MAX_SIZE = 4 << 20, 1 << 40
"""Bytes that --max-device-memory and --max-trace-size may ask for."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors exit with ``OWN_FAILURE``, since argparse's 2 may be a status of COMMAND."""

    def error(self, message: str) -> NoReturn:
        """Exit with OWN_FAILURE and a message."""
        self.exit(OWN_FAILURE, f"neutrino: {suggested(self, message)}; see neutrino --help\n")


class _PrintIncludeFolder(argparse.Action):
    """Prints the folder of the shipped header, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the folder as it is: argparse would break long lines."""
        print(include_folder())
        parser.exit()


def _seconds(text: str) -> int:
    """Parse an option's whole number of seconds, less than a day, for argparse."""
    if not re.fullmatch(r"\d{1,5}", text) or not 0 < int(text) < _DAY_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to {_DAY_S - 1}")
    return int(text)


def _rank(text: str) -> int:
    """Parse a rank (the number of a process among those of a launcher), for argparse."""
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a rank")
    return int(text)


def _launches(text: str) -> tuple[int, int | None]:
    """Parse ``A:B`` into the numbers of the first launch and of that after the last; None where B is left out."""
    match = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text, re.ASCII)
    if not match or text == ":":
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of launches such as 10:20, which begin with 0")
    first, end = int(match[1] or 0), int(match[2]) if match[2] else None
    if end is not None and first >= end:
        raise argparse.ArgumentTypeError(f"{text!r} holds no launch: B of A:B is the first that is not probed any more")
    return first, end


def _every(text: str) -> int:
    """Parse the value of --every, a number from 1 on, for argparse."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of launches from 1 on")
    return int(text)


def _hot(text: str) -> int:
    """Parse the value of --hot, a number of launches from 1 on, for argparse."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of launches from 1 on")
    return int(text)


def _duration(text: str) -> int:
    """Parse the value of --duration, seconds such as ``2.5``, into milliseconds, for argparse."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text, re.ASCII) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 30 or 2.5")
    return round(float(text) * 1000)


def _size(text: str) -> int:
    """Parse an option's size such as ``512M`` or ``2GiB`` into bytes, for argparse: from 4M to 1024G."""
    # G, GB and GiB are the same unit.
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper().removesuffix("IB").removesuffix("B"))
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    number, unit = match.groups()
    size = int(number) << _UNIT_SHIFTS[unit]
    if size < _MIN_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} is less than the minimum, 4M")
    if size > _MAX_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} is more than the maximum, 1024G")
    return size


def _parser() -> _Parser:
    """Return the parser of the command line, with all options and their help."""
    parser = _Parser(
        prog="neutrino",
        usage="neutrino [-p PROBE | -e TEXT] [options] COMMAND [ARGUMENT ...]",
        description="Run COMMAND with probes in its GPU kernels. Its results, output and exit status do not change. "
        "Each process that uses the GPU writes a trace directory; read it with neutrino-report. Without -p, the probes "
        "are those that neutrino-patch put into COMMAND's libraries. Static programs, and those linked to musl, run "
        "without probes.",
        epilog=f"Probes that ship with Neutrino: {', '.join(shipped_probes())}. If something is missing, "
        "neutrino --doctor says what, and how to get it.",
    )
    parser.add_argument(
        "-p",
        "--probe",
        action="append",
        default=[],
        metavar="PROBE",
        help="a shipped probe's name, or the path of a .toml or .py file; repeatable",
    )
    add_define(parser)
    parser.add_argument(
        "-e",
        "--expression",
        action="append",
        default=[],
        metavar="TEXT",
        help="a probe in one line, whose results are printed on stderr at the end, as in "
        "'ld.global { @bytes = hist(BYTES) }' or 'kernel { @time = max(elapsed) }'; 'interval:1s { print(@bytes) }' "
        "prints them each second, too; repeatable",
    )
    parser.add_argument(
        "--rows",
        type=number_of_rows,
        default=MOST_ROWS,
        metavar="N",
        help=f"rows of a print(…) of -e that are printed at the end: the first N (default: {MOST_ROWS})",
    )
    parser.add_argument(
        "-k",
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="probe only kernels whose mangled or demangled name contains NAME; with *?[ a glob over "
        "the whole name, /re/ a regular expression, a:b a list; repeatable",
    )
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="NAME",
        help="do not probe these kernels, even if -k selects them; repeatable",
    )
    parser.add_argument(
        "--rank",
        action="append",
        type=_rank,
        default=[],
        metavar="N",
        help="of the processes of a launcher such as torchrun, mpirun or srun, probe only that with rank N (RANK, "
        "OMPI_COMM_WORLD_RANK, SLURM_PROCID; 0 without one); repeatable",
    )
    parser.add_argument(
        "--tracedir",
        type=given_path,
        default=Path("trace"),
        metavar="DIR",
        help="parent folder of the trace directories (default: ./trace)",
    )
    parser.add_argument(
        "--max-trace-size",
        type=_size,
        metavar="SIZE",
        help="disk space for the launches of each process; when it is used up, the oldest launches are removed "
        "(default: no limit)",
    )
    parser.add_argument(
        "--no-argv",
        action="store_true",
        help="leave COMMAND's arguments out of the traces, which then hold only its name",
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="do not print on stderr, at the end, where the trace is and what it covers",
    )
    parser.add_argument(
        "--launches",
        type=_launches,
        default=(0, None),
        metavar="A:B",
        help="of each kernel, probe only launches A to B - 1; they are numbered from 0, and each kernel of each replay "
        "of a graph is one. A or B may be left out",
    )
    parser.add_argument(
        "--every",
        type=_every,
        default=1,
        metavar="N",
        help="of each kernel, probe only launches 0, N, 2N and so on; with --launches, those of them in A:B",
    )
    parser.add_argument(
        "--range",
        dest="ranges",
        action="append",
        default=[],
        metavar="[DOMAIN@]NAME",
        help="probe only launches in ranges of that name, which COMMAND marks by NVTX, or by neutrino.range, whose "
        "domain is neutrino; of NVTX's default domain without one. * stands for any text, a / at the end leaves out "
        "ranges that are started and ended; repeatable",
    )
    parser.add_argument(
        "--range-scope",
        choices=[scope.value for scope in Scope],
        default=Scope.THREAD.value,
        help="whether ranges that are pushed count for launches of their thread (the default) or of the process, as "
        "those of PyTorch's backward pass, which has a thread of its own",
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        metavar="SECONDS",
        help="probe nothing any more so long after a process has first loaded GPU code, as in 30 or 2.5",
    )
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="measure how much longer kernels take with the probes: of each kernel with one grid and block, launches "
        "run with and without them in random order, each timed on the GPU; graphs by whole replays. The medians are "
        "printed at the end",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="at the end write a page of pictures into the trace, and show it in a browser; neutrino-report --html "
        "writes it at any time",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="DEVICE",
        help="N: probe only launches on the device that COMMAND knows as number N, from 0; "
        "repeatable. embedded: run the kernels' PTX on the CPU, without a GPU; times are steps, not cycles. "
        "embedded:seed=N schedules warps in random order, the same for the same N; also delay=MICROSECONDS (random "
        "delay of a stream's work), memory=SIZE (of the device)",
    )
    parser.add_argument(
        "--driver", type=given_path, metavar="PATH", help="CUDA driver library to use instead of the machine's"
    )
    parser.add_argument(
        "--retarget",
        action="store_true",
        help="also probe kernels whose PTX is for another architecture than the machine code that runs, where it is "
        "proven to be the same program; the trace marks them",
    )
    parser.add_argument(
        "--ptx",
        type=given_path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder in which a compiler has left machine code, NAME.cubin, and its PTX, NAME.ptx, as CuTe DSL does "
        "with CUTE_DSL_KEEP=ptx,cubin: where COMMAND loads that machine code, twins are made from that PTX, in later "
        "runs too; folders in it count; repeatable",
    )
    add_max_registers(parser)
    parser.add_argument(
        "--machine-code",
        choices=[code.value for code in MachineCode],
        help="of which machine code twins are made: auto (the default) of kernels without PTX of their own, with "
        f"probes that a GPU has shown, one of them at a time ({proven()}); off: of none; unproven: also with others, "
        "and with several, at kernels' entries and ends, before accesses of global memory and around loads, and with "
        "those that count instructions (docs/machine-code.md); only: likewise, of all kernels, and none of PTX",
    )
    parser.add_argument(
        "--callback",
        type=given_path,
        action="append",
        default=[],
        metavar="SCRIPT",
        help="a Python script to run beside COMMAND, as SCRIPT TRACE/result/ID.bin, whenever the trace has new "
        "launches of a kernel; its output goes to analyze.log in the trace; repeatable",
    )
    parser.add_argument(
        "--save-temps",
        type=given_path,
        metavar="DIR",
        help="keep the output of each stage: original, sites, probed text, images, messages of tools",
    )
    parser.add_argument(
        "--max-device-memory",
        "--pool",
        dest="pool",
        type=_size,
        metavar="SIZE",
        help="limit of the device memory for maps, per context (default: 1/64 of the device's, at most 1G, with logs "
        "half of what is free); at most 64M is taken at first, with logs up to 1/16 of what is free; what no launch "
        "uses is given back when an allocation of COMMAND fails",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long a module load may wait for its twins to be made (default: 120)",
    )
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="never wait for twins that are not in the cache: they are made and loaded beside COMMAND, whose launches "
        "run without probes until then, as not-ready",
    )
    parser.add_argument(
        "--when",
        choices=("load", "launch"),
        help="when twins are made: when COMMAND loads the code, and waited for (load, the default), or when it first "
        "launches a kernel, and not waited for (launch)",
    )
    parser.add_argument(
        "--hot",
        type=_hot,
        default=0,
        metavar="N",
        help="as --when launch, but at the Nth launch of a kernel, for programs that launch many kernels only a few "
        "times",
    )
    parser.add_argument(
        "--follow",
        choices=("all", "none"),
        default="all",
        help="whether the programs that COMMAND starts are probed, too (all, the default), or COMMAND alone (none), "
        "whose children then start as without neutrino",
    )
    parser.add_argument(
        "--memusage",
        action="store_true",
        help="probe nothing: run COMMAND's own kernels, and print at the end how much memory their maps would take, by "
        "kernel and map, and how large the trace would be; also neutrino-report",
    )
    parser.add_argument("--version", action="version", version=f"neutrino {__version__}")
    parser.add_argument(
        "--include-dir",
        action=_PrintIncludeFolder,
        nargs=0,
        help="print the folder of neutrino_mark.h, which marks ranges in device code, and exit",
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="print what probing needs of this machine, what of it is here and how to get the rest, and exit: with 0 "
        "if kernels can be probed on its GPU, else 3",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _taken(given: Sequence[str]) -> str:
    """Say which option has taken what may be COMMAND as its value, after "no COMMAND to run"; "" if none has."""
    if len(given) > 1 and given[-2].startswith("-") and (shutil.which(given[-1]) or Path(given[-1]).is_file()):
        return f": {given[-2]} needs a value, and took {given[-1]}"
    return ""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run COMMAND with probes, in place of this process, or beneath it where results are printed at the end.

    Exits with status 125 if Neutrino itself fails before that.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] and given[0] in _TOOLS:
        raise SystemExit(_run_tool(given[0], given[1:]))
    options = _parser().parse_args(given)
    if options.doctor:
        # Imported here: no run needs it.
        from neutrino.cli.doctor import print_diagnosis

        raise SystemExit(print_diagnosis(options.driver))
    # A "--" ends the options of neutrino, and is no part of COMMAND.
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        _parser().error(f"no COMMAND to run{_taken(given)}")
    if options.benchmark and (options.launches != (0, None) or options.every > 1):
        _parser().error("--benchmark draws which launches are probed: it goes without --launches and --every")
    if options.hot and options.when == "load":
        _parser().error("--hot N makes twins at a launch, --when load does not: give one of them")
    if not options.probe and not options.expression:
        _refuse_options_that_need_a_probe(options)
    if options.memusage:
        _refuse_options_that_probe(options)
    try:
        _refuse_file_names(options.expression)
        _refuse_split(options.expression, command)
        options.expression, intervals = take_intervals(options.expression)
        device, ordinals = _devices(options)
        # None: the run records with the twins that patched libraries carry.
        probes = None
        if options.probe or options.expression:
            probes = _run_probes(options)
        # Absolute, since the process that makes the twins has / as its working directory.
        save_temps = options.save_temps.absolute() if options.save_temps else None
        request = Request(
            command,
            probes,
            (
                *options.probe,
                *(["-e"] if options.expression else []),
                *(f"-D{name}={value}" for name, value in options.define),
            ),
            Selection(tuple(options.kernel), tuple(options.filter)),
            tracedir=options.tracedir,
            driver=options.driver,
            device=device,
            pool=options.pool,
            timeout=options.timeout,
            waits=not options.no_wait,
            hot=options.hot or int(options.when == "launch"),
            save_temps=save_temps,
            quiet=options.quiet,
            hides_arguments=options.no_argv,
            follows=options.follow == "all",
            max_trace_size=options.max_trace_size,
            retarget=options.retarget,
            texts=tuple(options.ptx),
            max_registers=options.max_registers,
            machine_code=MachineCode(options.machine_code or MachineCode.AUTO.value),
            ranks=tuple(options.rank),
            choice=Choice(
                first=options.launches[0],
                end=options.launches[1],
                every=options.every,
                devices=ordinals,
                duration_ms=options.duration,
                ranges=tuple(options.ranges),
                range_scope=Scope(options.range_scope),
            ),
            results=_results(options),
            meanwhile=_meanwhile(options, intervals),
            measures_only=options.memusage,
            benchmark=int.from_bytes(os.urandom(7), "little") + 1 if options.benchmark else 0,
        )
        if after := options_after(command):
            say(after)
        start(request, hint_of_command)
    except ProbeError as error:
        from neutrino.cli.diagnostics import print_diagnostics

        print_diagnostics(error.diagnostics)
        raise SystemExit(OWN_FAILURE) from None
    except (NeutrinoError, OSError) as error:
        for line in _message(error).splitlines():
            say(line)
        raise SystemExit(OWN_FAILURE) from None
    except KeyboardInterrupt:
        # End by the signal, as COMMAND would.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise


_TOOLS = {
    "report": "neutrino.cli.report_start", "ctl": "neutrino.cli.ctl", "probe": "neutrino.cli.probe",
    "extract": "neutrino.cli.extract", "patch": "neutrino.cli.patch",
}  # fmt: skip
"""Words that stand for ``neutrino-WORD`` → its module. ``neutrino -- patch`` runs a program of that name."""


def _run_tool(name: str, arguments: Sequence[str]) -> int:
    """Run another command of Neutrino in place of a COMMAND. Returns its exit status."""
    # It takes its arguments, and what it is called in messages, from there.
    sys.argv = [f"neutrino-{name}", *arguments]
    return int(importlib.import_module(_TOOLS[name]).main() or 0)


def _results(options: argparse.Namespace) -> Callable[[RunTraces, int], None] | None:
    """Return what prints the results of the run's traces when COMMAND has ended; None where nothing is printed."""
    if options.memusage or options.benchmark or options.expression or options.open:
        # Imported here: most runs do not need it.
        from neutrino.cli.run_results import print_results

        return partial(print_results, options)
    return None


def _meanwhile(
    options: argparse.Namespace, intervals: Sequence[Interval]
) -> Callable[[RunTraces, threading.Event], None] | None:
    """Return what prints results while COMMAND runs, as clauses ``interval:`` ask; None without one.

    Raises NeutrinoError for a map that no one-liner has.
    """
    if not intervals:
        return None
    from neutrino.cli.one_liner_results import require_maps

    require_maps(options.expression, [name for interval in intervals for name in interval.maps])
    return partial(print_meanwhile, options.expression, intervals, options.rows)


def _run_probes(options: argparse.Namespace) -> RunProbes:
    """Return the probes that the command line names, from the cache or verified now.

    Raises as ``load_printing``, and NeutrinoError for a script of ``--callback`` that does not exist.
    """
    names = options.probe, options.expression, options.define
    sources = None if options.callback else ProbeSources.read(*names)
    # Whoever has no home folder has no cache; that is an error only once it is needed.
    with contextlib.suppress(NeutrinoError):
        if sources and (kept := kept_probes(cache_root(), sources)):
            return kept
    from neutrino.cli.loading import load_printing

    probes, has_warnings = load_printing(options.probe, options.expression, defines=options.define)
    if options.callback:
        return RunProbes.of(_with_callbacks(probes, options.callback))
    # Warnings are printed at each start. A file may have changed since it was read for the digest.
    is_kept = sources and not has_warnings and sources == ProbeSources.read(*names)
    return RunProbes.of(probes, sources.digest if sources and is_kept else None)


def _refuse_file_names(texts: Sequence[str]) -> None:
    """Raise NeutrinoError for a one-liner that is the name of a file, or empty."""
    for text in texts:
        if not text.strip():
            raise NeutrinoError("-e has an empty text; write it as in -e 'ld.global { @bytes = sum(BYTES) }'")
        if "{" not in text and Path(text).is_file():
            raise NeutrinoError(f'-e {text}: -e takes the probes themselves: -e "$(cat {shlex.quote(text)})"')


def _refuse_split(texts: Sequence[str], command: Sequence[str]) -> None:
    """Raise NeutrinoError for a one-liner without quotes, whose braces the shell has made a part of COMMAND."""
    for text in texts:
        if "{" not in text and any(word.startswith("{") for word in command) and not shutil.which(command[0]):
            raise NeutrinoError(f"-e {text}: the shell split it at its spaces: write it in quotes, '{text} {{ … }}'")


def _refuse_options_that_probe(options: argparse.Namespace) -> None:
    """Exit with an error for options that have no meaning with --memusage, which measures and probes nothing."""
    # What is launched before a twin is ready differs from run to run.
    waits_for_none = "--memusage measures what all launches take: it waits for twins"
    reasons = {
        "--no-wait": waits_for_none if options.no_wait else "",
        "--when launch": waits_for_none if options.when == "launch" else "",
        "--hot": waits_for_none if options.hot else "",
        "--benchmark": "with --memusage no twin runs that could be timed" if options.benchmark else "",
        "--callback": "with --memusage nothing is recorded that a script could read" if options.callback else "",
        "--open": "with --memusage nothing is recorded that a page could show" if options.open else "",
    }
    for name, reason in reasons.items():
        if reason:
            _parser().error(f"{name}: {reason}; leave one of them out")


def _refuse_options_that_need_a_probe(options: argparse.Namespace) -> None:
    """Exit with an error for options that only affect how twins (instrumented kernels) are made.

    Called when there is neither -p nor -e: without probes, no twins are made in this run.
    """
    need_probe = {
        "-D": options.define,
        "-k": options.kernel,
        "--filter": options.filter,
        "--timeout": options.timeout,
        "--no-wait": options.no_wait,
        "--memusage": options.memusage,
        "--retarget": options.retarget,
        "--ptx": options.ptx,
        "--max-registers": options.max_registers,
        "--machine-code": options.machine_code,
        "--save-temps": options.save_temps,
        "--callback": options.callback,
    }
    for name, value in need_probe.items():
        if value:
            _parser().error(
                f"{name} needs a probe (-p, -e); without one, only libraries that neutrino-patch patched are recorded"
            )


def _devices(options: argparse.Namespace) -> tuple[EmbeddedDevice | None, tuple[int, ...]]:
    """Return the embedded device, if --device names it, and the ordinals of the devices to probe, none for all.

    Raises NeutrinoError for other names, and if --driver names another device's driver.
    """
    ordinals, embedded = [], []
    for text in options.device:
        if not re.fullmatch(r"\d+", text, re.ASCII):
            embedded.append(EmbeddedDevice.parse(text))
        elif int(text) < MOST_DEVICES:
            ordinals.append(int(text))
        else:
            raise NeutrinoError(f"--device {text}: the number of a device is less than {MOST_DEVICES}")
    if len(embedded) > 1:
        raise NeutrinoError("--device: embedded is given more than once")
    if embedded and options.driver:
        raise NeutrinoError("--driver: not allowed with --device embedded, which has a driver of its own")
    return embedded[0] if embedded else None, tuple(ordinals)


def _with_callbacks(probes: ProbeSet, scripts: Sequence[Path]) -> ProbeSet:
    """Return the probes with the scripts of --callback added. Raises NeutrinoError for a script that does not exist."""
    for script in scripts:
        if not script.is_file():
            raise NeutrinoError(f"--callback {script}: no such file")
    # Absolute, since scripts are run in the folder of the trace.
    return probes.with_callbacks(tuple(str(script.absolute()) for script in scripts))


def _message(error: NeutrinoError | OSError) -> str:
    """The text of an error, without Python's words for it; of a file's with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    main()
