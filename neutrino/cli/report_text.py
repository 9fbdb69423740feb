"""A report as text: lines and tables on a console, as narrow as the console is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.memory_report import usage_lines
from neutrino.cli.record_rows import record_lines
from neutrino.cli.report_console import ReportConsole
from neutrino.cli.section_text import INDENT, cell_text, section_lines
from neutrino.cli.streams import escaped
from neutrino.tracing.memory_usage import MemoryUsage
from neutrino.tracing.shown.model import Cell, Heading, Kind, Line, Name, Section, ShownReport, Table
from neutrino.tracing.shown.report import heading
from neutrino.tracing.shown.why import Why
from neutrino.tracing.summary import TraceSummary
from neutrino.tracing.trace import Trace, TraceKernel

_BAR_WIDTH = 40
"""Characters of the longest bar."""
_NAME_WIDTH = 100
"""Characters of a kernel's name, however wide the console is."""
_MIN_NAME_WIDTH = 16
"""Characters of a kernel's name, however narrow the console is."""
_NAME_SHARE = 0.4
"""Of the console's width, for kernel names in tables and among other words."""


class ReportText:
    """Prints what is shown of a trace on a console, as narrow as the console is."""

    def __init__(
        self, console: ReportConsole, *, wide: bool, show_all: bool, rows: int = 0, launches: range | None = None
    ) -> None:
        """Prepare to print reports. wide: whether to print whole kernel names (--wide). show_all: whether to leave
        nothing out (--all).

        rows: records to print of each map (what probes save to) of a kernel (--rows), launches: of which launches
        (--launch).
        """
        self.launches = launches
        self.rows = rows
        self.console = console
        self.wide = wide
        self.show_all = show_all

    def _print(self, text: str = "", *, is_bold: bool = False, wraps: bool = True) -> None:
        """Print a line. Names in a trace come from the program, and could hold escape sequences: none is printed."""
        self.console.print(escaped(text), is_bold=is_bold, wraps=wraps)

    def show(self, report: ShownReport, summary: TraceSummary) -> None:
        """Print all parts of a trace's report. summary: of which it is; has the kernels whose records are printed."""
        self._heading(report.heading)
        kernels = {kernel.kernel.id: kernel.kernel for kernel in summary.kernels}
        for section in report.sections:
            if section.kind == "benchmark":
                self._unwrapped(section)
            else:
                self._section(section, kernels)
            self._print()
        for note in report.notes:
            self._print(f"note: {note.text}")

    def show_usage(self, usage: MemoryUsage, keep: Callable[[TraceKernel], bool]) -> None:
        """Print what a run with --memusage says that recording would take. keep: whether to list a kernel."""
        self._heading(heading(usage.trace))
        for line in usage_lines(usage, keep, shows_all=self.show_all, is_wide=self.wide):
            self._print(line, wraps=False)

    def show_why(self, trace: Trace, kernels: Sequence[Why], not_listed: str = "") -> None:
        """Print for each kernel how many launches were not probed, for which reasons, and what helps.

        not_listed: how many kernels have nothing that a probe matches, which are not among these.
        """
        self._heading(heading(trace))
        for why in kernels:
            self._print(self._label(demangled(why.kernel)), is_bold=True, wraps=not self.wide)
            for line in why.lines():
                self.console.print_indented(escaped(line.text), len(INDENT) * line.indent)
            self.console.print()
        if not_listed:
            self._print(f"{not_listed}; --all lists them")
        # Such as why the driver did not load a twin.
        for note in trace.notes:
            self._print(f"note: {note}")

    def _label(self, name: str, share: float = 1.0) -> str:
        """Return a kernel's name as it is shown: shortened to a share (0 to 1) of the console's width, unless --wide
        asks for whole names.
        """
        width = min(int(self.console.width * share), _NAME_WIDTH)
        return name if self.wide else shorten(name, max(_MIN_NAME_WIDTH, width))

    def _heading(self, found: Heading) -> None:
        """Print the trace's path, and what was run, where, when and on which devices."""
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.started))
        self._print(found.path, is_bold=True, wraps=False)
        self._print(f"{found.command or 'unknown command'}: {', '.join((found.process, started, *found.devices))}")
        for line in found.lines:
            self._print(line.text)
        self._print()

    def _section(self, section: Section, kernels: dict[int, TraceKernel]) -> None:
        """Print a section, and after that of a map its records. kernels: those of the report, by id."""
        if section.title is not None:
            is_bold = section.kind not in ("map", "empty")
            # A kernel's name has the whole line.
            share = 1.0 if section.kind == "kernel" else _NAME_SHARE
            self._line(section.title, is_bold=is_bold, share=share)
        for block in section.blocks:
            if isinstance(block, Section):
                self._section(block, kernels)
            elif isinstance(block, Table):
                self._table(block)
            else:
                self._line(block)
        if section.kind == "map" and section.kernel in kernels:
            for text in record_lines(kernels[section.kernel], section.name, self.rows, self.launches):
                self._print(text, wraps=False)

    def _line(self, line: Line, *, is_bold: bool = False, share: float = _NAME_SHARE) -> None:
        """Print a line, with the names of kernels shortened. share: of the console's width, for each of them."""
        shorter = (self._label(part.text, share) if isinstance(part, Name) else part for part in line.parts)
        self._print(f"{INDENT * line.indent}{''.join(shorter)}", is_bold=is_bold, wraps=not self.wide)

    def _table(self, shown: Table) -> None:
        """Print a table, its cells wrapped where the console is too narrow."""
        indent = INDENT * shown.indent
        text_of = partial(cell_text, label=lambda name: self._label(name, _NAME_SHARE))
        head = [escaped(column.title) for column in shown.columns]
        right = [column.kind is Kind.NUMBER or column.kind is Kind.BARS for column in shown.columns]
        rows = [[text_of(cell) for cell in row] for row in shown.rows]
        if shown.bars is not None:
            head.append("")
            right.append(False)
            for cells, row in zip(rows, shown.rows, strict=True):
                cells.append(_bar(row[shown.bars], shown))
        for cells in (head, *rows):
            cells[0] = indent + cells[0]
        self.console.print_table(head, rows, right, None if shown.bars is None else len(head) - 1)
        if shown.more is not None:
            self._line(shown.more)

    def _unwrapped(self, section: Section) -> None:
        """Print a section of a table that is never wrapped, and its lines."""
        for text in section_lines(section, lambda name: self._label(name, _NAME_SHARE)):
            self._print(text, wraps=False)


def _bar(cell: Cell, shown: Table) -> str:
    """Return the bar of a number in a table."""
    value = cell.value if isinstance(cell.value, int) else 0
    # Rounded up, so that only empty buckets have no bar.
    return "#" * -(-value * _BAR_WIDTH // int(shown.longest))
