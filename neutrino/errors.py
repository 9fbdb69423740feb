"""The exceptions that Neutrino raises. All have one base class, and attributes with the details of the message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class NeutrinoError(Exception):
    """Base class of all errors that Neutrino raises."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the exception with its attributes, for worker processes that raise it to their parent."""
        # By default, unpickling would call __init__ with the message alone, but subclasses have other parameters.
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[NeutrinoError], args: tuple[object, ...], attributes: dict[str, object]) -> NeutrinoError:
    """Recreate a pickled exception without calling its __init__. kind: its class."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ArgumentError(NeutrinoError, TypeError):
    """A function of the API was called with arguments that it does not take, or without one that it needs."""


class ProbeWarning(UserWarning):
    """Something in probes that may be a mistake; they are used as they are."""


class FormatError(NeutrinoError):
    """A file or an image is not valid in its format. The parameters are attributes of the same names."""

    def __init__(self, file: str, offset: int, field: str, found: str, expected: str) -> None:
        """Build the message.

        file: what was read, as the user would name it. offset: byte offset in it. field: what is wrong there. found,
        expected: in words.
        """
        super().__init__(f"{file}: at {offset:#x}: {field} is {found}, expected {expected}")
        self.file = file
        self.offset = offset
        self.field = field
        self.found = found
        self.expected = expected


class PatchError(NeutrinoError):
    """A valid file that cannot be patched or restored.

    file: as the user would name it. reason: why, and what to do instead.
    """

    def __init__(self, file: str, reason: str) -> None:
        """Build the message from the file's name and the reason why it cannot be patched or restored."""
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class MachineCodeError(NeutrinoError):
    """A kernel's machine code that is left alone, because something of it is not understood or cannot be changed.

    kernel: its mangled name. reason: why, in words.
    """

    def __init__(self, kernel: str, reason: str) -> None:
        """Build the message from the kernel's mangled name and the reason why its machine code is left alone."""
        super().__init__(f"{kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class ToolError(NeutrinoError):
    """An external tool could not be run, or failed.

    argv: its command line. status: exit status, negative for a signal; None when it did not start or did not end.
    stderr: what it printed, or why it could not be run.
    """

    def __init__(self, argv: list[str], status: int | None, stderr: str) -> None:
        """Build the message from the tool's name, its status, and the first line of stderr.

        argv: command line. status: exit status, None when the tool did not start or did not end. stderr: what it
        printed, or why it could not be run.
        """
        tool = Path(argv[0]).name
        outcome = "could not be started" if status is None else f"exit status {status}"
        lines = stderr.strip().splitlines()
        super().__init__(f"{tool}: {outcome}: {lines[0] if lines else 'no message'}")
        self.argv = argv
        self.status = status
        self.stderr = stderr


class ToolMissingError(ToolError):
    """An external tool is not on this machine; the message says how to get it."""

    def __init__(self, tool: str, hint: str) -> None:
        """Build the message that a tool is not on this machine. hint: how to get it."""
        super().__init__([tool], None, f"not found; {hint}")
        self.hint = hint


@dataclass(frozen=True)
class Span:
    """A position in a probe file: line and column, which count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning in a probe file. line and column count from 1; source is the text of that line.

    severity: ``error`` or ``warning``. code: the kind of error in kebab-case, for programs (``undeclared-register``).
    """

    file: str
    line: int
    column: int
    source: str
    message: str
    hint: str = ""
    severity: str = "error"
    code: str = ""

    def __str__(self) -> str:
        """Return the diagnostic as one line: ``file:line:column: severity: message; hint: …``."""
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}{hint}"


class ProbeError(NeutrinoError):
    """A probe file has errors.

    diagnostics: all errors and warnings, in file order, never empty. partial: what could be read of each file, whose
    snippets can still be verified.
    """

    def __init__(self, diagnostics: list[Diagnostic], partial: tuple[Any, ...] = ()) -> None:
        """Build the message from all diagnostics, a line each. partial: what could be read of each file all the same.
        """
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = diagnostics
        self.partial = partial


class PtxError(NeutrinoError):
    """PTX text that cannot be probed. line: in the text, counted from 1. source: the statement there."""

    def __init__(self, line: int, source: str, message: str) -> None:
        """Build the message: the line in the PTX text, why its statement cannot be probed (message), and the statement.
        """
        super().__init__(f"PTX line {line}: {message}: {source.strip()!r}")
        self.line = line
        self.source = source


class TraceError(NeutrinoError):
    """A trace directory that cannot be read."""


class ExpressionError(NeutrinoError):
    """An expression over the fields of records that cannot be used. The parameters are attributes of the same names."""

    def __init__(self, text: str, at: int, message: str, hint: str = "") -> None:
        """Set the message and what it is about. text: the expression. at: where in it, in characters from 0. message:
        what is wrong. hint: what helps."""
        super().__init__(message)
        self.text = text
        self.at = at
        self.message = message
        self.hint = hint


class EmulatorError(NeutrinoError):
    """Base class of the errors of programs that the embedded device (the CPU emulator) runs."""


class PtxRefusedError(EmulatorError):
    """PTX that the embedded device does not run: malformed, or not supported.

    line: in the text, counted from 1. source: the statement there.
    """

    def __init__(self, line: int, source: str, message: str) -> None:
        """Build the message: the line in the PTX text, why its statement is refused (message), and the statement."""
        super().__init__(f"PTX line {line}: {message}: {' '.join(source.split())!r}")
        self.line = line
        self.source = source


class FaultKind(Enum):
    """Why a kernel was aborted. Its context cannot be used after that."""

    OUT_OF_BOUNDS = "access outside every allocation"
    MISALIGNED = "misaligned access"
    DEADLOCK = "threads wait for others that never arrive"
    STEP_LIMIT = "step limit reached"
    TRAP = "trap"
    BAD_CALL = "call of what is not a function"


class DeviceFaultError(EmulatorError):
    """A kernel was aborted by a fault. The parameters are attributes of the same names, except ``detail``."""

    def __init__(
        self,
        kind: FaultKind,
        kernel: str,
        line: int,
        source: str,
        detail: str,
        *,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
        address: int | None = None,
    ) -> None:
        """Build the message.

        line, source: number and text of the PTX statement. detail: in words, empty for none. block, thread: indices (x,
        y, z) of the first thread that caused the fault, None if no thread did. address: of the access, None for other
        faults.
        """
        by_thread = f" by thread {thread} of block {block}" if thread is not None else ""
        at_address = f" at {address:#x}" if address is not None else ""
        details = f": {detail}" if detail else ""
        statement = " ".join(source.split())
        super().__init__(f"{kernel}: {kind.value}{at_address}{by_thread}{details}: PTX line {line}: {statement!r}")
        self.kind = kind
        self.kernel = kernel
        self.line = line
        self.source = source
        self.block = block
        self.thread = thread
        self.address = address
