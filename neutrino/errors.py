"""The exceptions that Neutrino raises: one tree, with the facts on the exception."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class NeutrinoError(Exception):
    """Base class of all errors that Neutrino raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # Workers raise them in one process for another. What Exception does would call __init__ with the message alone.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[NeutrinoError], args: tuple[object, ...], facts: dict[str, object]) -> NeutrinoError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class FormatError(NeutrinoError):
    """A file or an image does not have the form that it claims.

    file: what was read, as the user would name it. offset: byte offset in it.
    field: the field being read. found, expected: in words.
    """

    def __init__(self, file: str, offset: int, field: str, found: str, expected: str) -> None:
        super().__init__(f"{file}: at {offset:#x}: {field} is {found}, expected {expected}")
        self.file = file
        self.offset = offset
        self.field = field
        self.found = found
        self.expected = expected


class PatchError(NeutrinoError):
    """A file that cannot be patched or restored because of what it is, not because it is damaged.

    file: as the user would name it. reason: why, and what to do instead.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class ToolError(NeutrinoError):
    """An external tool could not be run or refused its input. status: None when it did not start."""

    def __init__(self, argv: list[str], status: int | None, stderr: str) -> None:
        tool = Path(argv[0]).name
        what = "could not be started" if status is None else f"exit status {status}"
        super().__init__(
            f"{tool}: {what}: {stderr.strip().splitlines()[0] if stderr.strip() else 'no message'}"
        )
        self.argv = argv
        self.status = status
        self.stderr = stderr


class ToolMissingError(ToolError):
    """An external tool is not on this machine; the message says how to get it."""

    def __init__(self, tool: str, hint: str) -> None:
        super().__init__([tool], None, f"not found; {hint}")
        self.hint = hint


@dataclass(frozen=True)
class Span:
    """A place in the probe file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Diagnostic:
    """One fault in a probe file. line and column count from 1; source is the line itself.

    code: which kind of fault it is, in kebab-case, for programs that read it (``undeclared-register``).
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
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}{hint}"


class ProbeError(NeutrinoError):
    """A probe file is wrong.

    diagnostics: every fault found, in file order, never empty, with the warnings of the file. partial: what was read of
    each file, as a ``ProbeSet`` whose snippets can still be verified.
    """

    def __init__(self, diagnostics: list[Diagnostic], partial: tuple[Any, ...] = ()) -> None:
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = diagnostics
        self.partial = partial


class PtxError(NeutrinoError):
    """PTX text that cannot be probed. line: in the text, from 1. source: the statement."""

    def __init__(self, line: int, source: str, message: str) -> None:
        super().__init__(f"PTX line {line}: {message}: {source.strip()!r}")
        self.line = line
        self.source = source


class TraceError(NeutrinoError):
    """A trace directory that cannot be read."""


class EmulatorError(NeutrinoError):
    """Base class of the errors that the embedded device reports of a program."""


class PtxRefusedError(EmulatorError):
    """PTX that the embedded device does not run: malformed, or not supported.

    line: in the text, from 1. source: the statement as it stands there.
    """

    def __init__(self, line: int, source: str, message: str) -> None:
        super().__init__(f"PTX line {line}: {message}: {' '.join(source.split())!r}")
        self.line = line
        self.source = source


class FaultKind(Enum):
    """What a kernel did that ends its context."""

    OUT_OF_BOUNDS = "access outside every allocation"
    MISALIGNED = "misaligned access"
    DEADLOCK = "threads wait for others that never arrive"
    STEP_LIMIT = "step limit reached"
    TRAP = "trap"
    BAD_CALL = "call of what is not a function"


class DeviceFaultError(EmulatorError):
    """A kernel ended by a fault. line, source: the statement. block, thread: indices of the first thread that did it.

    address: of the access, None where there is none.
    """

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
        where = f" by thread {thread} of block {block}" if thread is not None else ""
        at = f" at {address:#x}" if address is not None else ""
        what = f": {detail}" if detail else ""
        super().__init__(f"{kernel}: {kind.value}{at}{where}{what}: PTX line {line}: {' '.join(source.split())!r}")
        self.kind = kind
        self.kernel = kernel
        self.line = line
        self.source = source
        self.block = block
        self.thread = thread
        self.address = address
