"""``neutrino-probe try``: a probe on a single kernel, on the embedded device."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.arguments import given_path
from neutrino.cli.defines import add_define
from neutrino.cli.max_registers import add_max_registers
from neutrino.cli.probe_status import DIFFERENT, DONE, NOTHING, Commands, say
from neutrino.cli.streams import escaped
from neutrino.places import scratch_parent

if TYPE_CHECKING:
    from rich.console import Console

    from neutrino.playground.attempt import Attempt, Output
    from neutrino.playground.launch_inputs import Buffer, Number
    from neutrino.tracing import MapView, TraceKernel

_MAX_ELEMENTS = 6
"""Changed elements of a buffer that are shown."""
_MAX_SUM_COLUMNS = 5
"""Sums that are printed side by side; more are printed one below the other."""
_NOTICE_DELAY_S = 2.0
"""Seconds after which a terminal shows that the kernel is still running."""


def _extents(text: str) -> tuple[int, int, int]:
    """Parse the value of --grid or --block: ``X``, ``X,Y`` or ``X,Y,Z``; extents that are not given are 1."""
    parts = text.split(",")
    # Numbers of up to 18 digits fit in 64 bits.
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"[1-9]\d{0,17}", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not X, X,Y or X,Y,Z with numbers from 1")
    # Filled up with ones to three.
    x, y, z = (int(part) for part in (*parts, "1", "1")[:3])
    return x, y, z


def _argument(text: str) -> tuple[str, str]:
    """Parse the value of --arg, ``NAME=VALUE``, into name and value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _natural(text: str) -> int:
    """Parse an option's number from 0 on, for argparse."""
    if not re.fullmatch(r"\d{1,12}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    """Parse an option's number of seconds above 0, for argparse."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return float(text)


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe try`` and its options. commands: the subparsers of ``neutrino-probe``."""
    attempt = commands.add_parser(
        "try",
        help="run probes on one kernel, with generated inputs",
        description="Run a kernel of FILE on the embedded device, with and without the probes, and print what they "
        "recorded; one of AMD's code objects in an interpreter of its machine code. Inputs are generated: pointers "
        "get buffers, integers the number of threads, floating-point values 1.5. Times are steps of the interpreter, "
        "not durations.",
        epilog="--arg takes a number; for a pointer TYPE:COUNT (random data), TYPE:COUNT=NUMBER or @FILE (raw bytes or "
        ".npy). Exit status: 0 done, 1 the outputs differ with the probe, 2 bad input or a fault of the kernel, "
        "3 the kernel could not be probed.",
    )
    attempt.add_argument(
        "probe", nargs="+", metavar="PROBE", help="a shipped probe's name, or the path of a .toml or .py file"
    )
    attempt.add_argument(
        "file", type=given_path, metavar="FILE",
        help="PTX from clang or Triton, or written by hand; or a library, program, object or fatbin with such PTX; or "
        "with AMD's code objects, also one in a file of its own (.hsaco)",
    )  # fmt: skip
    add_define(attempt)
    names: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    attempt.add_argument(
        "-k", "--kernel", **names,
        help="the kernel whose mangled or demangled name is NAME or contains it; with *?[ a glob over the whole name, "
        "/re/ a regular expression, a:b a list; repeatable",
    )  # fmt: skip
    attempt.add_argument("--filter", **names, help="not these kernels, even if -k selects them; repeatable")
    attempt.add_argument(
        "--arch", metavar="ARCH",
        help="of AMD's code objects, that for this architecture, such as gfx942 (default: the highest of FILE)",
    )  # fmt: skip
    attempt.add_argument("--grid", type=_extents, metavar="X[,Y,Z]", help="blocks of the grid (default: 4)")
    attempt.add_argument(
        "--block", type=_extents, metavar="X[,Y,Z]", help="threads per block (default: the kernel's own, else 128)"
    )
    attempt.add_argument("--shared", type=_natural, metavar="BYTES", help="dynamic shared memory per block")
    attempt.add_argument(
        "--arg", type=_argument, action="append", default=[], metavar="NAME=VALUE",
        help="an argument, by its name or its parameter's position from 0, as nl.param counts; of a structure the part "
        "at a byte: 4+8=VALUE; repeatable",
    )  # fmt: skip
    attempt.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of generated data (default: 0)")
    attempt.add_argument(
        "--schedule", type=_natural, metavar="N", help="schedule warps in random order, the same for the same N"
    )
    attempt.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS",
        help="time limit for the kernel, with and without the probe (default: 60)",
    )  # fmt: skip
    attempt.add_argument(
        "--rows", type=_natural, default=8, metavar="N", help="records shown per map, and lines shown of what "
        "the kernel printed (default: 8)",
    )  # fmt: skip
    add_max_registers(attempt)
    attempt.add_argument("--diff", action="store_true", help="also show what the probe changed in the kernel's text")
    attempt.add_argument("--tracedir", type=given_path, metavar="DIR", help="keep the trace, in a folder under DIR")
    attempt.add_argument("--json", action="store_true", help="one JSON document on stdout, with all records")
    attempt.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the kernel with and without the probe, and print what differs and what was recorded.

    Returns the exit status: 0 done, 1 the outputs differ, 3 the kernel could not be probed. Raises NeutrinoError for
    bad input and faults of the kernel.
    """
    from neutrino.abi.reasons import REASON_TEXT, Reason
    from neutrino.backend.registry import platform_of_file
    from neutrino.cli.loading import load, short_names
    from neutrino.loader.embedded_driver import EmbeddedDevice
    from neutrino.playground.attempt import AttemptRequest, attempt
    from neutrino.playground.code_attempt import CodeRequest, attempt_code
    from neutrino.playground.kernel_choice import find_code, find_kernel
    from neutrino.playground.launch_inputs import Choices
    from neutrino.probing.model import DEFAULT_PLATFORM
    from neutrino.probing.selection import Selection

    if options.max_registers is not None:
        say("--max-registers: the embedded device has no registers to limit, so it changes nothing (show has a GPU's)")
    platform = platform_of_file(options.file, options.arch)
    probes = load(options.probe, defines=options.define, platform=platform)
    selection = Selection(tuple(options.kernel), tuple(options.filter))
    choices = Choices(options.grid, options.block, options.shared, dict(options.arg), options.seed)
    keep_trace = options.tracedir is not None
    folder = (
        nullcontext(str(options.tracedir))
        if keep_trace
        else tempfile.TemporaryDirectory(prefix="neutrino-try-", dir=scratch_parent())
    )
    with folder as tracedir:
        parent, names = Path(tracedir).absolute(), short_names(options.probe)
        with _notice_if_slow(options.timeout):
            if platform == DEFAULT_PLATFORM:
                text, kernel_name = find_kernel(options.file, selection)
                result = attempt(
                    AttemptRequest(
                        text, kernel_name, probes, names, choices, parent, EmbeddedDevice(seed=options.schedule),
                        options.timeout,
                    )
                )  # fmt: skip
            else:
                found = find_code(options.file, selection, options.arch)
                result = attempt_code(
                    CodeRequest(found, probes, names, choices, parent, options.schedule, options.timeout)
                )
        kernel = result.probed
        if options.json:
            print(json.dumps(_document(result), indent=1))
        else:
            _print(result, options)
        # A launch may run the original although the kernel has a twin (instrumented copy). There is a single launch, so
        # a single reason.
        fallbacks = [reason for reason in kernel.counters if reason is not Reason.PROBED]
        if fallbacks or kernel.reason is not Reason.PROBED:
            reason = fallbacks[0] if fallbacks else kernel.reason
            detail = f" ({kernel.detail})" if kernel.detail else ""
            say(f"{kernel.name} ran unprobed: {REASON_TEXT[reason]}{detail}")
            return NOTHING
        if keep_trace and not options.json:
            print(f"\nThe trace: {result.trace.path}")
    return DONE if result.identical else DIFFERENT


@contextmanager
def _notice_if_slow(timeout: float) -> Iterator[None]:
    """Print once on stderr, if that is a terminal, that the kernel still runs after ``_NOTICE_DELAY_S`` seconds.

    timeout: the kernel's time limit in seconds, for the message.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    notice = f"neutrino-probe: the kernel is still running (--timeout: {timeout:g} s)"
    timer = threading.Timer(_NOTICE_DELAY_S, print, (notice,), {"file": sys.stderr})
    # A command that is interrupted does not wait for the timer.
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Words and tables


def _print(result: Attempt, options: argparse.Namespace) -> None:
    """Print inputs, outputs, printed lines, the difference of the texts (--diff) and the records."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    # Captured and printed in one go: rich itself would exit the process on a closed pipe (| head).
    with console.capture() as captured:
        _print_inputs(console, result)
        _print_outputs(console, result)
        _print_printed(console, result, options.rows)
        if options.diff:
            _print_difference(console, result)
        _print_records(console, result, options.rows)
    print(captured.get(), end="")


def _print_inputs(console: Console, result: Attempt) -> None:
    """Print the launch's shape, and a table of the kernel's arguments with how it uses each buffer.

    The table has a row for each member of an argument that is a structure.
    """
    from neutrino.playground.launch_inputs import Buffer

    inputs = result.inputs
    grid, block = map(_shape, (inputs.grid, inputs.block))
    shared = f", {inputs.shared:,} bytes of dynamic shared memory" if inputs.shared else ""
    console.print(result.kernel.name, style="bold")
    console.print(f"  {grid} blocks of {block} threads{shared}")
    arguments = [argument for _, group in inputs.arguments for argument in group]
    if not arguments:
        # A kernel without parameters.
        return
    table = _table("    argument", "value", "used")
    for argument in arguments:
        parameter = argument.value
        if isinstance(argument, Buffer):
            uses = [("read", parameter.loads), ("written", parameter.stores), ("updated atomically", parameter.updates)]
            text = f"{argument.type.name} × {argument.elements:,}, {argument.origin}"
            table.add_row(f"    {parameter.name}", text, ", ".join(use for use, is_used in uses if is_used))
        else:
            table.add_row(f"    {parameter.name}", argument.text, "")
    console.print(table)
    console.print("  Generated inputs; --arg NAME=VALUE, --grid and --block replace them.")
    console.print()


def _shape(extents: tuple[int, int, int]) -> str:
    """Return extents in x, y and z as ``4``, ``4 × 2`` or ``4 × 2 × 3``, without trailing ones."""
    x, y, z = extents
    return f"{x} × {y} × {z}" if z > 1 else f"{x} × {y}" if y > 1 else str(x)


def _print_outputs(console: Console, result: Attempt) -> None:
    """Print which memory the kernel changed, and whether it is the same with the probe, bit for bit."""
    changed = [output for output in result.outputs if output.changed or not output.identical]
    if changed:
        console.print("What the kernel wrote", style="bold")
        table = _table("    memory", "changed", "the first of them")
        for output in changed:
            count, first = _changes(output)
            table.add_row(f"    {output.name}", f"{count:,} of {output.elements:,}", first)
        console.print(table)
    else:
        console.print(f"The kernel changed nothing: {_compared_memory(result)} is as before.")
    different = ", ".join(output.name for output in result.outputs if not output.identical)
    if different:
        console.print(f"  NOT the same bits with the probe: {different}", style="bold red")
    elif result.outputs:
        console.print("  The same bits with and without the probe.")
    console.print()


def _compared_memory(result: Attempt) -> str:
    """Return in words which memory was compared: buffers, the module's variables, or both."""
    # The outputs are all buffers, then all variables.
    buffers = len(result.inputs.buffers)
    variables = len(result.outputs) - buffers
    # With neither, "every buffer" is true of no buffers.
    kinds = [
        "every buffer" if buffers or not variables else "",
        "every .global variable of the module" if variables else "",
    ]
    return " and ".join(filter(None, kinds))


def _print_printed(console: Console, result: Attempt, rows: int) -> None:
    """Print what the kernel itself printed (printf), and whether the probe changed that. rows: lines at most."""
    plain, probed = result.printed
    if not plain and not probed:
        return
    console.print("What the kernel printed", style="bold")
    lines = plain.splitlines()
    for line in lines[:rows]:
        console.print(f"    {escaped(line.expandtabs())}", soft_wrap=True)
    if len(lines) > rows:
        console.print(f"    … {len(lines) - rows:,} more (--rows)")

    if plain == probed:
        console.print("  The same with and without the probe.")
    elif result.same_lines:
        console.print("  With the probe, the same lines in another order.")
    else:
        console.print("  NOT the same with the probe:", style="bold red")
        # Compared without their order: the order of threads is not defined.
        without_probe, with_probe = Counter(lines), Counter(probed.splitlines())
        for line in list((with_probe - without_probe).elements())[:rows]:
            console.print(f"  + {escaped(line.expandtabs())}", soft_wrap=True)
        for line in list((without_probe - with_probe).elements())[:rows]:
            console.print(f"  - {escaped(line.expandtabs())}", soft_wrap=True)
    console.print()


def _changes(output: Output) -> tuple[int, str]:
    """Return how many elements of a buffer or variable the kernel changed, and the new values of the first, as text."""
    import numpy as np

    # Compared as bytes, since a NaN is not equal to itself: one row has the bytes of one element. A rest of the memory
    # that is smaller than an element is left out.
    size = output.type.dtype.itemsize
    byte_count = output.elements * size
    before, after = (np.frombuffer(data, np.uint8, byte_count) for data in (output.before, output.plain))
    changed = np.flatnonzero((before != after).reshape(-1, size).any(axis=1))

    values = output.type.decode(output.plain)[changed[:_MAX_ELEMENTS]]
    ellipsis = ", …" if len(changed) > _MAX_ELEMENTS else ""
    return len(changed), ", ".join(_number(value) for value in values.tolist()) + ellipsis


def _print_difference(console: Console, result: Attempt) -> None:
    """Print the difference between the kernel's PTX and its probed text, both from the trace; nothing if unprobed.

    The trace has no probed text then.
    """
    from neutrino.backend.registry import target_of_device
    from neutrino.cli.difference import compare, hunks

    folder = result.trace.path / "kernel" / str(result.probed.id)
    manifest = result.probed.manifest
    names = target_of_device(manifest.arch).files if manifest is not None else ()
    if not names or not all((folder / name).is_file() for name in names):
        return
    original, probed = ((folder / name).read_text("latin-1").expandtabs(4).splitlines() for name in names)
    console.print("What the probe changed in the text", style="bold")
    for line in hunks(compare(original, probed), context=2):
        console.print(f"  {line}", soft_wrap=True)
    console.print()


def _print_records(console: Console, result: Attempt, rows: int) -> None:
    """Print what the probe recorded: sites (instructions that probes match) and registers, then each map.

    rows: records of a map at most.
    """
    from neutrino.cli.report_sources import meanings_in
    from neutrino.tracing.since_first import first_times

    manifest = result.probed.manifest
    if manifest is None:
        # The kernel has no twin; run() reports why.
        return
    assembly = manifest.assembly
    registers = (
        f"registers {assembly.registers_original} → {assembly.registers_twin} by {assembly.name}"
        if assembly
        else "not assembled: no ptxas"
    )
    console.print("What the probe saw", style="bold")
    sites = f"{len(manifest.sites)} {'site' if len(manifest.sites) == 1 else 'sites'}"
    console.print(f"  {sites}; {registers}")
    launches = [(launch, first_times(launch.maps, meanings_in(result.trace))) for launch in result.probed.launches()]
    since_first = " since the launch's first" if any(since for _, since in launches) else ""
    console.print(f"  times are steps of the interpreter{since_first}, not cycles", soft_wrap=True)
    for probe in manifest.probes_left_out:
        console.print(f"  {escaped(probe.shown)}", soft_wrap=True)
        if probe.remedy:
            console.print(f"      what helps: {escaped(probe.remedy)}", soft_wrap=True)
    for name in manifest.not_probed:
        console.print(f"  {name}: not probed in this kernel")
    for launch, since in launches:
        for view in launch.maps.values():
            _print_map(console, view, result.probed, rows, since)
    for view in result.probed.whole_run.maps.values():
        _print_map(console, view, result.probed, rows)


def _print_map(
    console: Console, view: MapView, kernel: TraceKernel, rows: int, since: Mapping[tuple[str, str], int] | None = None
) -> None:
    """Print what was recorded in a map (what probes save to) as a table, or sums as a list.

    view: the map's data; kernel: that it is of. rows: records at most. since: the launch's first time of fields that
    are clocks, by map and field.
    """
    from neutrino.cli.record_rows import addresses_of
    from neutrino.maps.declaration import Report, all_zero_words
    from neutrino.tracing.shown.names import words_of

    columns = _columns(view, kernel)
    addresses = addresses_of([kernel], view.map.name) & columns.keys()
    for name in addresses:
        columns[name] = [f"{value:#x}" if isinstance(value, int) else value for value in columns[name]]
    for (owner, name), first in (since or {}).items():
        if owner == view.map.name:
            columns[name] = [value - first if value else "" for value in columns[name]]
    named, words = words_of(view.map.name, [field.name for field in view.map.fields])
    if named in columns:
        columns[named] = [words.get(value, value) for value in columns[named]]
    if view.map.kind.report is Report.BUCKETS:
        # Of a histogram, the buckets that are not empty.
        filled = [index for index, count in enumerate(columns["count"]) if count]
        columns = {name: [column[index] for index in filled] for name, column in columns.items()}
    # All columns are of one length, that of the first.
    count = len(next(iter(columns.values()), ()))
    recorded = view.map.whole or f"{count:,} {'record' if count == 1 else 'records'}"
    lost = "overwritten" if view.map.kind.keeps_last else "dropped"
    if view.map.kind.report is Report.KEYS:
        lost = "saves found no place"
    dropped = f", {view.dropped:,} {lost}" if view.dropped else ""
    console.print(f"  {view.map.name}: {recorded}{dropped}")
    if not count:
        return
    all_zero = view.all_zero
    if all_zero:
        console.print(f"    {all_zero_words(all_zero, count)}", soft_wrap=True)

    # The records; sums are a single record, which has no room in one row if it has many fields.
    if view.map.kind.report is Report.TOTALS and not view.map.per.has_rows and len(columns) > _MAX_SUM_COLUMNS:
        _print_sums(console, {name: column[0] for name, column in columns.items()})
        return
    table = _table()
    for name in columns:
        is_text = bool(columns[name]) and isinstance(columns[name][0], str) and name not in addresses
        title = f"    {name}" if not table.columns else name
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    # Rounded, different keys and ends of buckets would look the same.
    exactly = {"low", "high", "key"} if view.map.kind.report in (Report.BUCKETS, Report.KEYS) else set()
    for index in range(min(count, rows)):
        cells = {name: column[index] for name, column in columns.items()}
        shown = [_cell(cell, is_exact=name in exactly) for name, cell in cells.items()]
        table.add_row(f"    {shown[0]}", *shown[1:])
    # With --rows 0 there is only the number of records.
    if count and rows:
        console.print(table)
    if count > rows:
        console.print(f"    … {count - rows:,} more (--rows)")


def _print_sums(console: Console, sums: dict[str, Any]) -> None:
    """Print sums, one per line, and the names of those that are 0 in one line. sums: name → value."""
    table = _table()
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in sums.items():
        if value:
            table.add_row(f"    {name}", _number(value))
    if table.row_count:
        # The columns have no titles.
        table.show_header = False
        console.print(table)
    zeros = ", ".join(name for name, value in sums.items() if not value)
    if zeros:
        console.print(f"    0: {zeros}")


def _columns(view: MapView, kernel: TraceKernel) -> dict[str, list[Any]]:
    """Return the valid records of a map as columns, name → values: block, warp, k and lane of each, then its fields.

    The first ones say whose a record is, in array maps and logs; a log has order in place of k, after the lane. A table
    by site has the place and the instruction of each, after its numbers. kernel: that the map is of.
    """
    from neutrino.maps.declaration import Layout, Report
    from neutrino.tracing.site_tables import KEY, is_by_site, key_name, place_of, sites_by_number

    records = view.valid()
    places = view.places() if view.map.kind.layout is not Layout.COPIES or view.map.per.has_rows else {}
    fields = {field.name for field in view.map.fields}
    columns = {
        # Brackets tell an axis from a field of the same name.
        f"[{axis}]" if axis in fields else axis: indices.tolist()
        for axis, indices in places.items()
        # k, the index within a slot, is always 0 where slots hold one record.
        if axis != "k" or view.cap > 1
    }
    columns |= {name: records[name].tolist() for name in records.dtype.names or ()}
    if view.map.kind.report is Report.KEYS:
        columns = {key_name(view.map): columns.pop(KEY), **columns}
    if not is_by_site(view.map):
        return columns
    sites = sites_by_number(kernel.manifest.sites if kernel.manifest else ())
    found = [place_of(sites.get(number, {})) for number in columns[key_name(view.map)]]
    texts = {"place": [place for place, _ in found], "instruction": [instruction for _, instruction in found]}
    return columns | texts


def _table(*titles: str) -> Any:
    """Return an empty ``rich`` table without borders; long cells are folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _cell(value: int | float | str, *, is_exact: bool) -> str:
    """Return a value as a table shows it: a number, or a text that may come from the program.

    is_exact: without rounding.
    """
    if isinstance(value, str):
        return escaped(value)
    # Imported here: it comes with NumPy, which the other commands need not wait for.
    from neutrino.tracing.shown.exact_numbers import exact

    return exact(value) if is_exact else _number(value)


def _number(value: int | float) -> str:
    """Return a number as it is printed: integers whole, fractions with six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


# JSON


def _document(result: Attempt) -> dict[str, Any]:
    """Return the JSON document: inputs, outputs, what was printed, the twin's facts, and all records by map."""
    inputs, manifest = result.inputs, result.probed.manifest
    printed_without_probe, _ = result.printed
    outputs = []
    for output in result.outputs:
        changed_elements, _ = _changes(output)
        outputs.append({"name": output.name, "changed": changed_elements, "identical": output.identical})
    return {
        "kernel": result.kernel.name,
        "grid": inputs.grid,
        "block": inputs.block,
        "shared": inputs.shared,
        "arguments": [_argument_document(argument) for _, group in inputs.arguments for argument in group],
        "outputs": outputs,
        "printed": printed_without_probe,
        "printed_alike": result.same_lines,
        "identical": result.identical,
        "reason": result.probed.reason.word,
        "detail": result.probed.detail,
        "clock": result.trace.clock.value,
        "assembler": manifest.raw.get("assembler") if manifest else None,
        "registers": manifest.raw.get("registers") if manifest else None,
        "sites": list(manifest.sites) if manifest else [],
        "probes_left_out": [asdict(probe) for probe in manifest.probes_left_out] if manifest else [],
        "maps": [
            *(
                _map_document(view, result.probed)
                for launch in result.probed.launches()
                for view in launch.maps.values()
            ),
            *(_map_document(view, result.probed) for view in result.probed.whole_run.maps.values()),
        ],
    }


def _argument_document(argument: Buffer | Number) -> dict[str, Any]:
    """Return a kernel argument's object in the JSON document."""
    from neutrino.playground.launch_inputs import Buffer

    parameter = argument.value
    document: dict[str, Any] = {"name": parameter.name, "role": parameter.role.value}
    if isinstance(argument, Buffer):
        return document | {"type": argument.type.name, "elements": argument.elements, "data": argument.origin}
    return document | {"type": parameter.type, "value": argument.text}


def _map_document(view: MapView, kernel: TraceKernel) -> dict[str, Any]:
    """Return a map's object in the JSON document, with all records as columns; the cap of a log is null."""
    from neutrino.abi.levels import Per
    from neutrino.maps.declaration import Layout, has_no_count

    return {
        "name": view.map.name,
        "kind": view.map.kind.name,
        "level": view.map.level.value,
        **({"per": view.map.per.value} if view.map.per is not Per.LAUNCH else {}),
        "cap": None if view.map.kind.layout is Layout.CHUNKS else view.cap,
        "dropped": view.dropped,
        **({"all_zero": view.all_zero} if has_no_count(view.map.kind, view.map.cap) else {}),
        "columns": {name: [_plain(value) for value in column] for name, column in _columns(view, kernel).items()},
    }


def _plain(value: int | float | str) -> int | float | str:
    """Return a number or text as JSON can have it: infinities and NaN as text."""
    return value if isinstance(value, (int, str)) or math.isfinite(value) else str(value)
