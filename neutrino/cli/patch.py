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
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.cli.streams import print_anything, visible
from neutrino.device.kind import DeviceKind
from neutrino.errors import FormatError, NeutrinoError, PatchError, ProbeError
from neutrino.resources import shipped_probes
from neutrino.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from neutrino.ahead.check import Check
    from neutrino.ahead.library import Progress
    from neutrino.ahead.report import KernelReport, Report
    from neutrino.probing.ir.probe_set import ProbeSet

DONE, BAD_INPUT, NOTHING = 0, 2, 3
_STDOUT = "standard output"
_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors that only writing can cause."""
_INSTALL_LIEF = "pip install 'neutrino-gpu[check]'"
_LISTED = 40
"""Kernels that the table shows one by one; of more, only how many there are for each reason."""
_NAMED = 3
"""Kernels that stand for all that share a reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 done, 2 bad input or a tool that failed, 3 nothing to do."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _refuse_idle(parser, options)
    print_anything()
    _end_tidily()
    try:
        _need_regular(options.check or options.restore or options.file)
        if options.check is not None:
            status = _check(options)
        elif options.restore is not None:
            status = _restore(options)
        else:
            status = _patch(parser, options)
        with _writing(_STDOUT):
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except ProbeError as error:
        print_diagnostics(error.diagnostics)
        return BAD_INPUT
    except NeutrinoError as error:
        return _fail(str(error))
    except OSError as error:
        place = error.filename if error.filename is not None else options.check or options.restore or options.file
        if place == _STDOUT:
            # What is left in the buffer must not fail a second time when Python closes it.
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
    parser = argparse.ArgumentParser(
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
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the library or program; never changed")
    parser.add_argument(
        "-p", "--probe", action="append", default=[], metavar="PROBE",
        help="a shipped probe's name, or the path of a .toml or .py file; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="OUTPUT",
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
        "--emit", choices=("sass", "ptx", "both"), default="sass",
        help="the form of the twins: machine code (sass, the default), PTX that the driver compiles, or both",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="DEVICE",
        help="embedded: make twins for the embedded device, which runs PTX on the CPU",
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
    parser.add_argument(
        "-j", "--jobs", type=_count, metavar="N", help="worker processes (default: the number of CPUs)"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="make the twins and report, but write no file")
    parser.add_argument(
        "--stub", metavar="PATH",
        help="the library that the copy loads to record without `neutrino` (default: the installed one; $ORIGIN/… is "
        "relative to the copy; libneutrino_late.so goes beside it)",
    )  # fmt: skip
    parser.add_argument(
        "--save-temps", type=Path, metavar="DIR",
        help="keep the output of each stage: original, sites, probed text, images, messages of tools",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", type=Path, metavar="FILE", help="check a patched file and report all faults")
    modes.add_argument(
        "--restore", type=Path, metavar="FILE",
        help="write the original of a patched file, byte for byte (default: NAME.original.EXT beside FILE)",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"neutrino-patch {__version__}")
    return parser


def _refuse_idle(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that have no effect with --check or --restore."""
    if options.check is None and options.restore is None:
        return
    if options.file or options.probe:
        parser.error("--check and --restore take one FILE, and no probe")
    meant = {"check", "json"} if options.check is not None else {"restore", "json", "output"}
    mode = "--check" if options.check is not None else "--restore"
    for name, value in vars(options).items():
        if name not in meant and value != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} cannot be used with {mode}")


def _need_regular(path: Path | None) -> None:
    # Looked at before it is opened, since opening a FIFO would wait for a writer.
    if path is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise PatchError(str(path), "is not a regular file")


@contextlib.contextmanager
def _writing(place: Path | str) -> Iterator[None]:
    """Let errors of writing name the file that is written, not the temporary file that it begins as."""
    try:
        yield
    except OSError as error:
        aside = error.filename is not None and Path(os.fsdecode(error.filename)).name.startswith(
            (".neutrino-", f".{Path(place).name[:200]}.")
        )
        if aside or (error.filename is None and error.errno in _WRITING):
            error.filename = str(place)
        raise


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to 4096")
    return int(text)


def _say(line: str) -> None:
    # print() takes a closed stderr, which is None, for stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"neutrino-patch: {visible(line)}", file=sys.stderr)


def _fail(message: str) -> int:
    for line in message.splitlines():
        _say(line)
    return BAD_INPUT


def _end_tidily() -> None:
    """Let SIGTERM remove unfinished files, as SIGINT does."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _patch(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.file is None:
        parser.error("no FILE to patch")
    if not options.probe:
        parser.error("no probe: name at least one with -p")
    # Imported here: help and errors of the command line need none of it.
    from neutrino.ahead.library import STUB, output_path, patch_file
    from neutrino.ahead.plan import EMBEDDED_DEVICE, device_arch
    from neutrino.ahead.report import Report
    from neutrino.ahead.target_twins import Settings
    from neutrino.assemble.emit import Emit
    from neutrino.cli.loading import load
    from neutrino.loader.embedded import EmbeddedDevice
    from neutrino.probing.selection import Selection

    probes = load(options.probe)
    if options.device is not None:
        EmbeddedDevice.parse(options.device)
    kind = DeviceKind.GPU if options.device is None else DeviceKind.EMBEDDED
    archs = [device_arch(arch) for arch in options.arch]
    if kind is DeviceKind.EMBEDDED and any(arch != EMBEDDED_DEVICE for arch in archs):
        raise NeutrinoError(f"the embedded device is an {EMBEDDED_DEVICE}; leave --arch out")
    settings = Settings(
        probes,
        Selection(tuple(options.kernel), tuple(options.filter)),
        kind,
        Emit(options.emit),
        options.retarget or options.retarget_unproven,
        options.save_temps.absolute() if options.save_temps else None,
        options.retarget_unproven,
    )
    target = None if options.dry_run else output_path(options.file, options.output)
    stub = str(STUB) if options.stub is None else _stub(options.stub)
    if target is not None:
        _name_unfinished(target.parent, remove=True)
    with _folder_of(target, options.output), _writing(target or options.file), _progress() as progress:
        try:
            report = patch_file(
                options.file, target, settings,
                names=options.probe, archs=archs, jobs=options.jobs, stub=stub, progress=progress,
            )  # fmt: skip
        except PatchError as error:
            if options.json:
                refused = Report(options.file, None, tuple(options.probe), tuple(archs), (), refused=error.reason)
                print(json.dumps(refused.document(), indent=1))
            raise
    report = replace(report, notes=(*report.notes, *_notes(report, stub), *_script_notes(report, probes)))
    with _writing(_STDOUT):
        if options.json:
            print(json.dumps(report.document(), indent=1))
        else:
            _print_report(report)
    if report.refused:
        _say(f"{report.input}: {report.refused}")
    elif not report.probed:
        _say(f"{report.input}: {_nothing(report)}; no file was written")
    return DONE if report.probed else NOTHING


def _notes(report: Report, stub: str) -> Iterator[str]:
    """What the user should know in addition to the report."""
    from neutrino.ahead.check import stub_note

    for arch in report.archs:
        if report.kernels and not any(arch == kernel.arch or arch in kernel.devices for kernel in report.kernels):
            yield f"nothing in the file runs on {arch}, so there are no twins for it"
    if report.output is None:
        return
    if before := _patched_before(report.input):
        yield before
    if note := stub_note(stub, report.output.resolve().parent):
        yield note


def _script_notes(report: Report, probes: ProbeSet) -> Iterator[str]:
    """A note about scripts: the copy holds only their paths."""
    names = ", ".join(dict.fromkeys((*probes.callbacks, *probes.analyze_hooks)))
    if names and report.output is not None:
        yield f"scripts are not stored in the copy; neutrino-report TRACE --analyze runs {names} if it exists then"


def _patched_before(file: Path) -> str:
    """A note if the file is a patched one, else "". Raises OSError."""
    from neutrino.ahead.patched import read_patched

    with file.open("rb") as opened:
        data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        found = read_patched(data, str(file))
    except FormatError:
        # Nothing is lost by replacing twins that cannot be read.
        return ""
    if found is None:
        return ""
    twins = f"{_number(found.twins, 'twin')} with {', '.join(found.probes)}"
    return f"the input is patched already ({twins}); its twins are replaced, and the original kernels are probed"


def _name_unfinished(folder: Path, *, remove: bool) -> None:
    """Report the unfinished copies that killed runs left in a folder; remove those that no process can still use."""
    from neutrino.ahead.unfinished import find_unfinished

    found = find_unfinished(folder, remove=remove)
    for path in found.removed:
        _say(f"removed {path}, left by a run that was killed")
    for path in found.left:
        _say(f"{path} is an unfinished copy; remove it unless a run on another machine is still writing it")


def _stub(path: str) -> str:
    """The stub's name for DT_AUXILIARY: paths are absolute, or relative to the file by $ORIGIN. Raises PatchError for
    an empty name."""
    if not path:
        raise PatchError("--stub", "needs the path of a library")
    return path if "/" not in path or path.startswith(("$ORIGIN/", "${ORIGIN}/")) else str(Path(path).absolute())


@contextlib.contextmanager
def _folder_of(target: Path | None, output: str | None) -> Iterator[None]:
    """The folder that ``-o DIR/`` asks for is made; it goes again when nothing was written."""
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
    """A bar on stderr, where that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("making twins"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}", markup=False))  # fmt: skip
    # Drawn when something is done, not by a thread: with a second thread, a fork would not be safe.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False,
                   redirect_stdout=False, redirect_stderr=False)  # fmt: skip
    with bar:
        task = bar.add_task("", total=None)
        bar.refresh()

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what, refresh=True)

        yield show


def _nothing(report: Report) -> str:
    if not report.kernels:
        return "no CUDA kernels found"
    if [reason.word for reason, _ in report.skipped] == ["not-selected"]:
        return "no kernel matched"
    return "no kernel could be probed"


def _print_report(report: Report) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    # Captured, since rich would end the process itself when the reader of a pipe has gone.
    with console.capture() as captured:
        _show(console, report)
    print(captured.get(), end="")


def _show(console: Console, report: Report) -> None:
    where = "no file written" if report.output is None else str(report.output)
    console.print(visible(f"{report.input} → {where}"), style="bold", soft_wrap=True)
    if report.kernels:
        console.print(_counted(report), soft_wrap=True)
    probed = [kernel for kernel in report.kernels if kernel.probed]
    if probed:
        console.print()
        _show_probed(console, probed)
    if report.skipped:
        console.print()
        console.print("Not probed", style="bold")
        _show_skipped(console, report)
    for note in report.notes:
        console.print(visible(f"note: {note}"), soft_wrap=True)


def _counted(report: Report) -> str:
    """How many kernels there are and how many twins, which are counted per architecture."""
    kernels = len({(kernel.container, kernel.name) for kernel in report.kernels})
    probed = f"{report.probed:,} of {len(report.kernels):,} probed"
    if len(report.kernels) > kernels:
        probed += ", counted once per architecture that they have code for"
    return f"{_number(kernels, 'kernel')} for {', '.join(report.archs)}: {probed}"


def _show_probed(console: Console, kernels: Sequence[KernelReport]) -> None:
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    table = _table()
    table.add_column("probed kernel", overflow="fold")
    table.add_column("image")
    table.add_column("arch")
    table.add_column("sites", justify="right")
    table.add_column("registers", justify="right")
    retargeted = any(kernel.retargeted for kernel in kernels)
    if retargeted:
        table.add_column("PTX retargeted", overflow="fold")
    width = max(20, console.width - (80 if retargeted else 44))
    names = {kernel.name: demangle(kernel.name) for kernel in kernels[:_LISTED]}
    short = {name: shorten(text, width) for name, text in names.items()}
    often = Counter(short.values())
    # What is the same when it is short is shown in full, over several lines.
    shown = {name: text if often[text] == 1 else names[name] for name, text in short.items()}
    for kernel in kernels[:_LISTED]:
        registers = " → ".join(map(str, kernel.registers)) if kernel.registers else "not assembled"
        place = f"{kernel.container}.{kernel.image}"
        row = [visible(shown[kernel.name]), place, kernel.arch, f"{kernel.sites:,}", registers]
        table.add_row(*row, *([_retargeted(kernel)] if retargeted else []))
    console.print(table)
    if len(kernels) > _LISTED:
        rest = kernels[_LISTED:]
        sites = sum(kernel.sites for kernel in rest)
        console.print(f"and {_number(len(rest), 'more kernel')} with {_number(sites, 'site')} (--json lists all)")
    unproven = sum(map(_is_unproven, kernels))
    if unproven:
        console.print(
            f"{_number(unproven, 'twin')} unproven: the PTX is not proven to be the program that runs, so results may "
            "differ while it is recorded",
            soft_wrap=True,
        )
    grown = [kernel.registers[1] - kernel.registers[0] for kernel in kernels if kernel.registers]
    if len(grown) > 1:
        console.print(f"registers per thread: {sum(grown) / len(grown):+.1f} on average, {max(grown):+d} at most")


def _retargeted(kernel: KernelReport) -> str:
    if kernel.retargeted is None:
        return "no"
    shown = "same code" if kernel.retargeted.get("same_code") else "other code"
    shown = "unproven" if _is_unproven(kernel) else shown
    return f"{kernel.retargeted['target']}, {shown}"


def _is_unproven(kernel: KernelReport) -> bool:
    found = kernel.retargeted
    return found is not None and not found.get("same_code") and not found.get("own_text")


def _show_skipped(console: Console, report: Report) -> None:
    from neutrino.ahead.report import group_skipped
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    table = _table()
    table.add_column("kernels", justify="right")
    table.add_column("reason")
    table.add_column("", overflow="fold")
    for group in group_skipped(report.kernels):
        names = list(dict.fromkeys(shorten(demangle(kernel.name), 40) for kernel in group.kernels))
        shown = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        table.add_row(f"{len(group.kernels):,}", group.reason.word, visible(f"{group.text}: {shown}"))
    console.print(table)


def _table() -> Any:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _check(options: argparse.Namespace) -> int:
    from neutrino.ahead.check import check_file

    check = check_file(options.check)
    _name_unfinished(options.check.parent, remove=False)
    with _writing(_STDOUT):
        _print_check(check, options.json)
    return DONE if check.is_valid else BAD_INPUT


def _print_check(check: Check, as_json: bool) -> None:
    from neutrino.ahead.validation import has_lief

    if as_json:
        print(json.dumps(check.document(), indent=1))
        return
    for fault in check.faults:
        print(visible(f"{check.file}: fault: {fault}"))
    for note in check.notes:
        print(visible(f"{check.file}: note: {note}"))
    if check.lief:
        print(visible(f"{check.file}: LIEF {check.lief} accepts it too"))
    elif not has_lief():
        print(visible(f"{check.file}: not checked with LIEF, which is not installed: {_INSTALL_LIEF}"))
    if check.is_valid:
        twins = _number(check.counts["twins"], "twin")
        archs = ", ".join(check.archs)
        devices = f"the embedded device ({archs})" if check.embedded else archs
        made = f"{twins} by {check.names} for {devices}, made by Neutrino {check.maker}"
        print(visible(f"{check.file}: valid: {made}"))


def _restore(options: argparse.Namespace) -> int:
    from neutrino.ahead.library import output_path
    from neutrino.ahead.restore import restore

    target = output_path(options.restore, options.output, "original")
    _name_unfinished(target.parent, remove=True)
    with _folder_of(target, options.output), _writing(target):
        restore(options.restore, target)
    with _writing(_STDOUT):
        if options.json:
            print(json.dumps({"input": str(options.restore), "output": str(target)}, indent=1))
        else:
            print(visible(f"{options.restore} → {target}: the original, byte for byte"))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
