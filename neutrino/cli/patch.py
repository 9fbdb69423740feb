"""``neutrino-patch``: write a copy of a library with twins in it; check such a copy, or restore its original."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import mmap
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.arguments import Parser, given, given_path, number_of
from neutrino.cli.diagnostics import print_diagnostics
from neutrino.cli.kernel_names import some_of
from neutrino.cli.machine_code import add_machine_code, machine_code_notes
from neutrino.cli.max_registers import add_max_registers
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.table import counted
from neutrino.cli.termination import exiting_on_sigterm
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import FormatError, NeutrinoError, PatchError, ProbeError
from neutrino.resources import shipped_probes
from neutrino.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from neutrino.patched_files.check import Check
    from neutrino.patched_files.patch_report import KernelReport, Report
    from neutrino.patched_files.patching import Progress
    from neutrino.probing.ir.probe_set import ProbeSet

DONE, BAD_INPUT, NOTHING = 0, 2, 3
_FORMS = {"sass": "CODE", "ptx": "TEXT", "both": "BOTH"}
"""Words of --emit, with the names of the forms of twins, in the order of the help."""
_STDOUT = "standard output"
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors that only writing can cause."""
_INSTALL_LIEF = "pip install 'neutrino-gpu[check]'"
_MAX_LISTED = 40
"""Probed kernels that the table lists; of the others it has only the number."""
_MAX_EXAMPLES = 3
"""Kernels that are named as examples for each reason why kernels are not probed."""
_EXAMPLE_WIDTH = 40
"""Characters of such a name."""
_WIDTH = 160
"""Columns of the report where it goes to no terminal."""


@exiting_on_sigterm()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: patch, check or restore a file.

    Returns the exit status: 0 done, 2 bad input or a tool that failed, 3 nothing to do.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    _refuse_unused_options(parser, options)
    # --check and --restore have the file as their value.
    file = options.check or options.restore or options.file
    print_anything()
    try:
        _require_regular_file(file)
        if options.check is not None:
            status = _check(options)
        elif options.restore is not None:
            status = _restore(options)
        else:
            status = _patch(parser, options)
        with _errors_name(_STDOUT):
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (| head). Python would print an error when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except ProbeError as error:
        print_diagnostics(error.diagnostics)
        return BAD_INPUT
    except NeutrinoError as error:
        return _fail(str(error))
    except OSError as error:
        place = error.filename if error.filename is not None else file
        if place == _STDOUT:
            # What is left in stdout's buffer must not fail a second time when Python closes it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(f"{os.fsdecode(place)}: {error.strerror or error}")
    except MemoryError:
        return _fail("out of memory; fewer processes (-j) need less")
    except KeyboardInterrupt:
        # End by the signal, as the shell expects; unfinished files are removed by now.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    return status


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all options and their help."""
    parser = Parser(
        prog="neutrino-patch",
        usage="neutrino-patch FILE -p PROBE [options]\n"
        "       neutrino-patch --check FILE\n"
        "       neutrino-patch --restore FILE [-o OUTPUT]",
        description="Write a copy of FILE, a shared library or a program, with instrumented twins of its GPU kernels. "
        "Use the copy in place of FILE. It behaves as FILE does until a run is recorded: under `neutrino COMMAND`, or "
        "with NEUTRINO_TRACEDIR set.",
        epilog=f"Probes that ship with Neutrino: {', '.join(shipped_probes())}. Exit status: 0 done, 2 bad input, a "
        "tool that is missing or failed, or an output that cannot be written; 3 no kernel matched or none could be "
        "probed, and no file was written.",
    )
    names: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    parser.add_argument(
        "file", nargs="?", type=given_path, metavar="FILE", help="the library or program; never changed"
    )
    parser.add_argument(
        "-p", "--probe", action="append", default=[], metavar="PROBE",
        help="a shipped probe's name, the path of a .toml or .py file, or probes in one line; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=given, metavar="OUTPUT",
        help="the copy, or, if it ends with a slash, the folder for it (default: NAME.neutrino.EXT beside FILE)",
    )  # fmt: skip
    parser.add_argument(
        "-k", "--kernel", **names,
        help="probe only kernels whose mangled or demangled name contains NAME; with *?[ a glob over the whole name, "
        "/re/ a regular expression, a:b a list; repeatable",
    )  # fmt: skip
    parser.add_argument("--filter", **names, help="do not probe these kernels, even if -k selects them; repeatable")
    parser.add_argument(
        "--arch", action="append", default=[], metavar="ARCH",
        help="make twins for this GPU architecture, such as sm_90; repeatable (default: this machine's GPUs, or "
        "without one all architectures of FILE's images)",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="DEVICE",
        help="embedded: make twins for the embedded device, which runs PTX on the CPU",
    )  # fmt: skip
    parser.add_argument(
        "--emit", choices=tuple(_FORMS), default="sass",
        help="the form of the twins: machine code (sass, the default), PTX that the driver compiles, or both",
    )  # fmt: skip
    parser.add_argument(
        "--retarget", action="store_true",
        help="also use PTX for another architecture than the machine code's, for kernels where it is proven to be the "
        "same program; reports mark them",
    )  # fmt: skip
    parser.add_argument(
        "--retarget-unproven", action="store_true",
        help="as --retarget, and also for kernels where it is not proven, but nothing contradicts it: with such twins "
        "the program may compute different results while it is recorded",
    )  # fmt: skip
    add_max_registers(parser)
    add_machine_code(parser)
    parser.add_argument("-n", "--dry-run", action="store_true", help="make the twins and report, but write no file")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", type=given_path, metavar="FILE", help="check a patched file and report all faults")
    modes.add_argument(
        "--restore", type=given_path, metavar="FILE",
        help="write the original of a patched file, byte for byte (default: NAME.original.EXT beside FILE)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "-j", "--jobs", type=number_of("processes", 4096), metavar="N",
        help="worker processes (default: one per processor)",
    )  # fmt: skip
    parser.add_argument(
        "--stub", metavar="PATH",
        help="the library that the copy loads to record without `neutrino` (default: the installed one; $ORIGIN/… is "
        "relative to the copy; libneutrino_late.so goes beside it)",
    )  # fmt: skip
    parser.add_argument(
        "--save-temps", type=given_path, metavar="DIR",
        help="keep the output of each stage: original, sites, probed text, images, messages of tools",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"neutrino-patch {__version__}")
    return parser


def _refuse_unused_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with an error if --check or --restore is combined with an option that has no effect there."""
    if options.check is None and options.restore is None:
        # Patching uses all options.
        return
    if options.file or options.probe:
        parser.error("--check and --restore take one FILE, and no probe")
    allowed = {"check", "json"} if options.check is not None else {"restore", "json", "output"}
    mode = "--check" if options.check is not None else "--restore"
    # An option is taken as given if its value is not the default.
    for name, value in vars(options).items():
        if name not in allowed and value != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} cannot be used with {mode}")


def _require_regular_file(path: Path | None) -> None:
    """Raise PatchError for a FIFO or device. Missing files and folders get their errors when they are opened."""
    # Checked before the file is opened, since opening a FIFO would wait for a writer.
    if path is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise PatchError(str(path), "is not a regular file")


@contextlib.contextmanager
def _errors_name(output: Path | str) -> Iterator[None]:
    """Make write errors raised in the block name ``output``, not the temporary file that is renamed to it at the end.

    So the user's message is about a file that the user knows. output: a path, or words for stdout.
    """
    try:
        yield
    except OSError as error:
        # Names of temporary files: spool files, and unfinished copies (``unfinished.py``), which are named after the
        # output, cut to 200 characters.
        is_temporary = error.filename is not None and Path(os.fsdecode(error.filename)).name.startswith(
            (".neutrino-", f".{Path(output).name[:200]}.")
        )
        # write(2) on an open file fails without a name.
        if is_temporary or (error.filename is None and error.errno in _WRITE_ERRORS):
            error.filename = str(output)
        raise


def _say(line: str) -> None:
    """Print a line on stderr after the command's name. Errors of stderr itself are ignored."""
    # With stderr closed, sys.stderr is None, and print(file=None) would write to stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"neutrino-patch: {escaped(line)}", file=sys.stderr)


def _fail(message: str) -> int:
    """Print a message on stderr, each line after the command's name; the exit status for bad input."""
    for line in message.splitlines():
        _say(line)
    return BAD_INPUT


def _patch(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Write a copy of FILE with twins (instrumented copies) of its kernels, and print the report.

    Returns the exit status. Raises NeutrinoError and OSError for bad input and output that cannot be written.
    """
    if options.file is None:
        parser.error("no FILE to patch")
    if not options.probe:
        parser.error("no probe: name at least one with -p")
    # Imported here: help and errors of the command line need none of it.
    from neutrino.assemble.emit import Emit
    from neutrino.backend.registry import EMBEDDED_DEVICE, device_arch
    from neutrino.cli.loading import load_for_file, short_names
    from neutrino.loader.embedded_driver import EmbeddedDevice
    from neutrino.patched_files.image_twins import Settings
    from neutrino.patched_files.patch_report import Report
    from neutrino.patched_files.patching import STUB, output_path, patch_file
    from neutrino.probing.selection import Selection

    if options.file.is_dir():  # not searched for device code before it is refused: it may be the root of all
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(options.file))
    first = options.arch[0] if options.arch else None
    probes, names = load_for_file(options.file, first, options.probe), short_names(options.probe)
    if options.device is not None:
        # For its check alone: a file takes twins for the embedded device, not the device's settings.
        EmbeddedDevice.parse(options.device, without="make twins for the GPUs of --arch")
    kind = DeviceKind.GPU if options.device is None else DeviceKind.EMBEDDED
    archs = [device_arch(arch) for arch in options.arch]
    if kind is DeviceKind.EMBEDDED and any(arch != EMBEDDED_DEVICE for arch in archs):
        raise NeutrinoError(f"the embedded device is an {EMBEDDED_DEVICE}; leave --arch out")
    settings = Settings(
        probes,
        Selection(tuple(options.kernel), tuple(options.filter)),
        kind,
        Emit[_FORMS[options.emit]],
        retarget=options.retarget or options.retarget_unproven,
        save_temps=options.save_temps.absolute() if options.save_temps else None,
        unproven=options.retarget_unproven,
        max_registers=options.max_registers if kind is DeviceKind.GPU else None,
        machine_code=MachineCode(options.machine_code).for_probes(options.probe)
        if kind is DeviceKind.GPU else MachineCode.OFF,
    )  # fmt: skip
    if kind is DeviceKind.EMBEDDED and options.max_registers is not None:
        _say("--max-registers: the embedded device has no registers to limit, so it changes nothing")
    target = None if options.dry_run else output_path(options.file, options.output)
    stub = str(STUB) if options.stub is None else _stub(options.stub)

    # The copy; it is written aside and renamed when it is complete.
    if target is not None:
        # Copies that killed runs left would fill the disk that this one needs.
        _report_unfinished(target.parent, remove=True)
    with _output_folder(target, options.output), _errors_name(target or options.file), _progress() as progress:
        try:
            report = patch_file(
                options.file, target, settings,
                names=names, archs=archs, jobs=options.jobs, stub=stub, progress=progress,
            )  # fmt: skip
        except PatchError as error:
            # Programs that read stdout get a document for a refused file too, besides the error on stderr.
            if options.json:
                refused = Report(options.file, None, names, tuple(archs), (), refused=error.reason)
                print(json.dumps(refused.document(), indent=1))
            raise

    # The report.
    notes = (*report.notes, *_notes(report, stub), *_script_notes(report, probes))
    if kind is DeviceKind.GPU:
        notes += (*machine_code_notes(report.kernels, options.machine_code, options.probe),)
    report = replace(report, notes=notes)
    with _errors_name(_STDOUT):
        if options.json:
            print(json.dumps(report.document(), indent=1))
        else:
            _print_report(report)
    if report.refused:
        _say(f"{report.input}: {report.refused}")
    elif not report.probed:
        _say(f"{report.input}: {_why_none_probed(report)}; no file was written")
    return DONE if report.probed else NOTHING


def _notes(report: Report, stub: str) -> Iterator[str]:
    """Yield notes for the report: architectures without kernels, an input patched before, and a stub that is missing.

    stub: the path or name of the stub, the library that the copy loads to record without ``neutrino``.
    """
    from neutrino.patched_files.check import stub_note

    for arch in report.archs:
        # A kernel's code for one architecture may run on others too: kernel.devices has those of the twin. A file
        # without kernels gets a message of its own.
        if report.kernels and not any(arch == kernel.arch or arch in kernel.devices for kernel in report.kernels):
            yield f"nothing in the file runs on {arch}, so there are no twins for it"
    # The other notes are about the copy, which does not exist in a dry run or if nothing was probed.
    if report.output is None:
        return
    if patched_note := _patched_before(report.input):
        yield patched_note
    if missing_note := stub_note(stub, report.output.resolve().parent):
        yield missing_note


def _script_notes(report: Report, probes: ProbeSet) -> Iterator[str]:
    """Yield a note about the analysis scripts that the probes name, if a copy was written: it has their paths only."""
    names = ", ".join(dict.fromkeys((*probes.callbacks, *probes.analyze_hooks)))
    if names and report.output is not None:
        yield f"scripts are not stored in the copy; neutrino-report TRACE --analyze runs {names} if it exists then"


def _patched_before(file: Path) -> str:
    """Return a note if a file was patched before, else "". Raises OSError if it cannot be read."""
    from neutrino.patched_files.patched_with import read_patched

    with file.open("rb") as opened:
        data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        patched = read_patched(data, str(file))
    except FormatError:
        # Nothing is lost by replacing twins that cannot be read.
        return ""
    if patched is None:
        return ""
    twins = f"{counted(patched.twins, 'twin')} with {', '.join(patched.probes)}"
    return f"the input is patched already ({twins}); its twins are replaced, and the original kernels are probed"


def _report_unfinished(folder: Path, *, remove: bool) -> None:
    """Report on stderr the unfinished copies in a folder that no live process of this machine is writing.

    remove: whether to remove those that killed runs on this machine have left. Others are only reported: whether a
    process on another machine still writes them cannot be seen from here.
    """
    from neutrino.patched_files.unfinished import find_unfinished

    unfinished = find_unfinished(folder, remove=remove)
    for path in unfinished.removed:
        _say(f"removed {path}, left by a run that was killed")
    for path in unfinished.left:
        _say(f"{path} is an unfinished copy; remove it unless a run on another machine is still writing it")


def _stub(path: str) -> str:
    """Return the name of the stub library for the copy's DT_AUXILIARY entry (see ld.so(8) for names and $ORIGIN).

    A path is made absolute unless it begins with $ORIGIN; a plain name, for which the linker searches, stays.
    Raises PatchError for an empty name.
    """
    if not path:
        raise PatchError("--stub", "needs the path of a library")
    is_plain_name = "/" not in path
    if is_plain_name or path.startswith(("$ORIGIN/", "${ORIGIN}/")):
        return path
    return str(Path(path).absolute())


@contextlib.contextmanager
def _output_folder(target: Path | None, output: str | None) -> Iterator[None]:
    """Create the folder of ``-o DIR/`` if it is missing, and remove it again if no file was written into it.

    target: the file to write, None in a dry run. output: the value of ``-o``. Does nothing without ``-o DIR/``, or if
    the folder exists.
    """
    if target is None or output is None or not output.endswith("/") or target.parent.exists():
        yield
        return
    target.parent.mkdir(parents=True)
    try:
        yield
    finally:
        if not target.exists():
            with contextlib.suppress(OSError):
                target.parent.rmdir()


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """Show on stderr how many twins (copies of kernels with probes) are made; yields the function that updates it.

    It is called with how many are made, how many there are in all, and what is being made; None without a terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("making twins"), progress.BarColumn(), progress.MofNCompleteColumn(),
               progress.TimeElapsedColumn(), progress.TextColumn("{task.description}", markup=False))  # fmt: skip
    # Drawn by calls, not by a thread of its own: worker processes are forked, which is unsafe with a second thread.
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False,
                   redirect_stdout=False, redirect_stderr=False)  # fmt: skip
    with bar:
        # How many twins there are to make is known at the first call of show.
        task = bar.add_task("", total=None)
        bar.refresh()

        def show(done: int, total: int, item: str) -> None:
            """Show that ``done`` of ``total`` twins (copies with probes) are made, and which one is being made now."""
            bar.update(task, completed=done, total=total, description=item, refresh=True)

        yield show


def _why_none_probed(report: Report) -> str:
    """Say why the report of a patched file has no probed kernel."""
    if not report.kernels:
        from neutrino.cli.loaded_code import no_kernels
        return no_kernels(report.input)
    if [reason.word for reason, _ in report.skipped] == ["not-selected"]:
        return f"no kernel matched; there are {some_of(kernel.name for kernel in report.kernels)}"
    return "no kernel could be probed"


def _print_report(report: Report) -> None:
    """Print the report of patching as text and tables, as wide as the terminal."""
    from rich.console import Console

    # Without a terminal rich takes 80 columns, in which a template's name has twenty lines; it obeys COLUMNS.
    has_width = "COLUMNS" in os.environ or sys.stdout.isatty()
    console = Console(markup=False, highlight=False, emoji=False, width=None if has_width else _WIDTH)
    # Captured and printed in one go: rich itself would exit the process on a closed pipe (| head).
    with console.capture() as captured:
        _print_sections(console, report)
    print(captured.get(), end="")


def _print_sections(console: Console, report: Report) -> None:
    """Print the parts of a report: files, counts, probed kernels, kernels that are not probed, notes."""
    output = "no file written" if report.output is None else str(report.output)
    console.print(escaped(f"{report.input} → {output}"), style="bold", soft_wrap=True)
    if report.kernels:
        console.print(_counts(report), soft_wrap=True)
    probed = [kernel for kernel in report.kernels if kernel.probed]
    if probed:
        console.print()
        _print_probed(console, probed)
    if report.skipped:
        console.print()
        console.print("Not probed", style="bold")
        _print_skipped(console, report)
    for note in report.notes:
        console.print(escaped(f"note: {note}"), soft_wrap=True)


def _counts(report: Report) -> str:
    """Return the line with the numbers of kernels and of twins (copies with probes).

    A kernel may have a twin for each architecture.
    """
    kernels = len({(kernel.container, kernel.name) for kernel in report.kernels})
    probed = f"{report.probed:,} of {len(report.kernels):,} probed"
    if len(report.kernels) > kernels:
        probed += ", counted once per architecture that they have code for"
    # Of code that cannot be probed, as AMD's, no architecture was asked for.
    archs = report.archs or tuple(dict.fromkeys(kernel.arch for kernel in report.kernels))
    return f"{counted(kernels, 'kernel')} for {', '.join(archs)}: {probed}"


def _print_probed(console: Console, kernels: Sequence[KernelReport]) -> None:
    """Print the table of probed kernels, and below it what it leaves out and the cost in registers."""
    table = _table()
    table.add_column("probed kernel", overflow="fold")
    table.add_column("image")
    table.add_column("arch")
    table.add_column("sites", justify="right")
    table.add_column("registers", justify="right")
    with_retargeted = any(kernel.retargeted for kernel in kernels)
    if with_retargeted:
        table.add_column("PTX retargeted", overflow="fold")
    # About as many characters as the other columns take; a name gets some even on the narrowest terminal.
    other_columns = 80 if with_retargeted else 44
    names = _table_names(kernels[:_MAX_LISTED], max(20, console.width - other_columns))
    for kernel in kernels[:_MAX_LISTED]:
        registers = " → ".join(map(str, kernel.registers)) if kernel.registers else "not assembled"
        image = f"{kernel.container}.{kernel.image}"
        row = [escaped(names[kernel.name]), image, kernel.arch, f"{kernel.sites:,}", registers]
        if with_retargeted:
            row.append(_retargeted(kernel))
        table.add_row(*row)
    console.print(table)

    unlisted = kernels[_MAX_LISTED:]
    if unlisted:
        sites = sum(kernel.sites for kernel in unlisted)
        console.print(f"and {counted(len(unlisted), 'more kernel')} with {counted(sites, 'site')} (--json lists all)")
    _print_probes_left_out(console, kernels)
    _print_occupancy(console, kernels)
    unproven = sum(map(_is_unproven, kernels))
    if unproven:
        console.print(
            f"{counted(unproven, 'twin')} unproven: the PTX is not proven to be the program that runs, so results may "
            "differ while it is recorded",
            soft_wrap=True,
        )
    added = [twin - original for original, twin in (kernel.registers for kernel in kernels if kernel.registers)]
    # The registers of a single kernel are in the table.
    if len(added) > 1:
        console.print(f"registers per thread: {sum(added) / len(added):+.1f} on average, {max(added):+d} at most")


def _print_probes_left_out(console: Console, kernels: Sequence[KernelReport]) -> None:
    """Print which probes are not in the twins (copies with probes) of which kernels: of each probe and reason the first
    kernel.
    """
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    groups: dict[tuple[str, str], list[tuple[KernelReport, Mapping[str, Any]]]] = {}
    for kernel in kernels:
        for probe in kernel.probes_left_out:
            groups.setdefault((probe["probe"], probe["reason"]), []).append((kernel, probe))
    for rows in groups.values():
        kernel, probe = rows[0]
        others = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        where = f"{shorten(demangle(kernel.name), _EXAMPLE_WIDTH)}{others}"
        text = f"probe '{probe['probe']}' ({probe['tracepoint']}) is left out of {where}: {probe['detail']}"
        console.print(escaped(text), soft_wrap=True)
        if probe["remedy"]:
            console.print(escaped(f"    what helps: {probe['remedy']}"), soft_wrap=True)


def _print_occupancy(console: Console, kernels: Sequence[KernelReport]) -> None:
    """Print which twins (copies with probes) may run with fewer blocks at a time than their originals: of the worst,
    both numbers.
    """
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    rows = [(kernel, kernel.warps_by_registers) for kernel in kernels if kernel.warps_by_registers]
    if not rows:
        return
    kernel, (before, after) = min(rows, key=lambda row: row[1][1] / row[1][0])
    others = f" (so do {len(rows) - 1:,} more)" if len(rows) > 1 else ""
    console.print(
        escaped(
            f"{shorten(demangle(kernel.name), _EXAMPLE_WIDTH)} may run with fewer blocks at a time{others}: by "
            f"registers alone {after} of {before} warps fit on a multiprocessor; --max-registers limits them"
        ),
        soft_wrap=True,
    )


def _table_names(kernels: Sequence[KernelReport], width: int) -> dict[str, str]:
    """Return for each mangled name the demangled one, shortened to a width in characters.

    Names that would look the same when shortened stay whole; the table folds them over several lines.
    """
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    whole = {kernel.name: demangle(kernel.name) for kernel in kernels}
    short = {name: shorten(demangled, width) for name, demangled in whole.items()}
    uses = Counter(short.values())
    return {name: text if uses[text] == 1 else whole[name] for name, text in short.items()}


def _retargeted(kernel: KernelReport) -> str:
    """Return the table's cell on PTX that is for another architecture than the machine code: ``sm_120 → sm_90, …``."""
    if kernel.retargeted is None:
        return "no"
    evidence = "same code" if kernel.retargeted.get("same_code") else "other code"
    if _is_unproven(kernel):
        evidence = "unproven"
    return f"{kernel.retargeted['target']}, {evidence}"


def _is_unproven(kernel: KernelReport) -> bool:
    """Return whether nothing proves that the twin's PTX, for another architecture, is the program that runs."""
    retargeted = kernel.retargeted
    return retargeted is not None and not retargeted.get("same_code") and not retargeted.get("own_text")


def _print_skipped(console: Console, report: Report) -> None:
    """Print a row for each reason why kernels are not probed: how many, and a few of their names."""
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle
    from neutrino.patched_files.patch_report import group_skipped

    table = _table()
    table.add_column("kernels", justify="right")
    table.add_column("reason")
    table.add_column("", overflow="fold")
    for group in group_skipped(report.kernels):
        # Instances of one template may look the same when they are shortened.
        names = list(dict.fromkeys(shorten(demangle(kernel.name), _EXAMPLE_WIDTH) for kernel in group.kernels))
        examples = ", ".join(names[:_MAX_EXAMPLES]) + (" …" if len(names) > _MAX_EXAMPLES else "")
        table.add_row(f"{len(group.kernels):,}", group.reason.word, escaped(f"{group.text}: {examples}"))
    console.print(table)


def _table() -> Any:
    """An empty ``rich`` table without borders."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _check(options: argparse.Namespace) -> int:
    """Verify the patched file of --check and print its faults. Returns the exit status: 2 if it has any."""
    from neutrino.patched_files.check import check_file

    check = check_file(options.check)
    _report_unfinished(options.check.parent, remove=False)
    with _errors_name(_STDOUT):
        _print_check(check, as_json=options.json)
    return DONE if check.is_valid else BAD_INPUT


def _print_check(check: Check, *, as_json: bool) -> None:
    """Print the result of --check: faults, notes, and what a valid file has, one line each; or a JSON document.

    LIEF is another library that reads ELF files; where it is installed, the file is also checked with it.
    """
    from neutrino.patched_files.validation import has_lief

    if as_json:
        print(json.dumps(check.document(), indent=1))
        return
    for fault in check.faults:
        print(escaped(f"{check.file}: fault: {fault}"))
    for note in check.notes:
        print(escaped(f"{check.file}: note: {note}"))
    # check.lief is the version that has read the file; what it complains of is among the faults.
    if check.lief and not any(fault.startswith("LIEF: ") for fault in check.faults):
        print(escaped(f"{check.file}: LIEF {check.lief} accepts it too"))
    elif not has_lief():
        print(escaped(f"{check.file}: not checked with LIEF, which is not installed: {_INSTALL_LIEF}"))
    if check.is_valid:
        twins = counted(check.counts["twins"], "twin")
        archs = ", ".join(check.archs)
        devices = f"the embedded device ({archs})" if check.embedded else archs
        print(escaped(f"{check.file}: valid: {twins} by {check.names} for {devices}, made by Neutrino {check.maker}"))


def _restore(options: argparse.Namespace) -> int:
    """Write the original of the patched file of --restore. Returns the exit status.

    Raises NeutrinoError for a file that is not a valid patched one, OSError if the output cannot be written.
    """
    from neutrino.patched_files.patching import output_path
    from neutrino.patched_files.restore import restore

    target = output_path(options.restore, options.output, word="original")
    _report_unfinished(target.parent, remove=True)
    with _output_folder(target, options.output), _errors_name(target):
        restore(options.restore, target)
    with _errors_name(_STDOUT):
        if options.json:
            print(json.dumps({"input": str(options.restore), "output": str(target)}, indent=1))
        else:
            print(escaped(f"{options.restore} → {target}: the original, byte for byte"))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
