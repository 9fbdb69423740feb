"""The input of ``sites`` and ``show``: the selected kernels of a file, with the sites of the probes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.arguments import given
from neutrino.cli.defines import add_define
from neutrino.cli.probe_status import BAD_INPUT, DONE, NOTHING, say
from neutrino.cli.streams import SOURCES
from neutrino.errors import FormatError
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.cli.progress import Progress
    from neutrino.fatbin import Container
    from neutrino.fatbin.inputs import Input
    from neutrino.patched_files.preview import Preview
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.probing.selection import Selection


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the probes and the file, and the options that select kernels and the architecture."""
    parser.add_argument("probe", nargs="+", metavar="PROBE", help="a probe file, a shipped probe or probes in one line")
    add_define(parser)
    parser.add_argument(
        "file", type=given, metavar="FILE",
        help="PTX, a cubin, a fatbin, a library, program, object or archive with device code, a wheel, a folder",
    )  # fmt: skip
    names: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    parser.add_argument(
        "-k", "--kernel", **names,
        help="only kernels whose mangled or demangled name contains NAME; with *?[ a glob over the whole name, /re/ a "
        "regular expression, a:b a list; repeatable",
    )  # fmt: skip
    parser.add_argument("--filter", **names, help="exclude these kernels, even if -k selects them; repeatable")
    parser.add_argument(
        "--arch", metavar="ARCH",
        help="architecture of the device that is to run FILE, such as sm_90 (default: this machine's GPU, else the "
        "highest architecture that FILE has PTX for)",
    )  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file with device code. name: for messages. arch: the architecture of the device that is to run it.

    vendor: its name if it is a vendor-licensed library, whose kernels are never read; "" for other files.
    """

    name: str
    arch: str
    vendor: str = ""


class Kernels:
    """The selected kernels of the argument FILE: a file, or a folder or wheel with several.

    damaged: whether some input could not be read. probes: those whose sites are to be found.
    """

    def __init__(self, options: argparse.Namespace, probes: ProbeSet) -> None:
        """Set up the selection of kernels in a file. options: those that ``add_options`` adds.

        Raises NeutrinoError for an invalid selection or architecture.
        """
        from neutrino.cli.progress import Progress
        from neutrino.probing.selection import Selection

        self.damaged = False
        self.probes = probes
        self.selection: Selection = Selection(tuple(options.kernel), tuple(options.filter))
        self._name: str = options.file
        self._is_named = options.arch is not None
        self._arch = _arch(options.arch)
        # How many were read so far: files with device code, selected kernels in them, vendor-licensed libraries.
        self._file_count = 0
        self._kernel_count = 0
        self._vendor_count = 0
        self._progress: Progress = Progress("neutrino-probe")

    def files(self) -> Iterator[tuple[File, Iterator[Preview]]]:
        """Yield each file with device code, with an iterator of its kernels, to be consumed before the next file.

        Damaged files and vendor-licensed ones are reported on stderr, and the others follow.
        """
        from neutrino.fatbin.inputs import find_inputs

        try:
            for input_ in find_inputs([self._name], self._report_error, self._progress.show):
                with self._errors_reported(input_.name):
                    yield from self._file(input_)
        finally:
            self._progress.clear()

    def ending(self, *, found: bool) -> int:
        """Return the exit status of the command after all files were read, and report why nothing was found, if so.

        found: whether the command has shown anything.
        """
        if self.damaged:
            # What is wrong was reported when it was read.
            return BAD_INPUT
        if not self._file_count:
            # No error: a file or folder without device code is not damaged.
            say(f"{self._name}: no device code found")
            return DONE
        # The kernels of vendor-licensed libraries, which are reported themselves, are not looked at.
        if not self._kernel_count and not self._vendor_count:
            say(f"{self._name}: no kernel matches; neutrino-extract {self._name} --kernels lists them")
        return DONE if found else NOTHING

    def _file(self, input_: Input) -> Iterator[tuple[File, Iterator[Preview]]]:
        """Yield a file with the iterator of its kernels, which is empty for a vendor's; nothing without device code."""
        from neutrino.patched_files.preview import default_architecture, preview
        from neutrino.patched_files.vendor import vendor_library

        data = input_.data()
        containers = input_.read(data)
        if not any(container.images for container in containers):
            return
        self._file_count += 1
        # A file in a wheel is known by its own name, not by the wheel's.
        path = Path(input_.member.name) if input_.member else input_.path
        vendor = vendor_library(path, data)
        if vendor:
            self._vendor_count += 1
            self._say(f"{input_.name}: {vendor} is a vendor-licensed library, which is never rewritten")
            yield File(input_.name, "", vendor), iter(())
            return
        arch = self._arch
        if arch is None or not (self._is_named or _is_for(arch, containers)):
            arch = default_architecture(containers)
        yield File(input_.name, arch), self._previews(input_, preview(containers, arch, self.probes, self.selection))

    def _previews(self, input_: Input, previews: Iterator[Preview]) -> Iterator[Preview]:
        """Pass on the kernels of a file, count them and show the progress; an error ends them and is reported."""
        with self._errors_reported(input_.name):
            for number, kernel in enumerate(previews):
                self._progress.show(f"{input_.name}: kernel {number + 1}")
                self._kernel_count += 1
                yield kernel
        self._progress.clear()

    @contextmanager
    def _errors_reported(self, name: str) -> Iterator[None]:
        """Report errors in reading an input instead of raising them. name: of the input."""
        try:
            yield
        except (FormatError, OSError) as error:
            # The reader of the output has gone (| head), which is no fault of the input.
            if isinstance(error, BrokenPipeError):
                raise
            self._report_error(name, error)

    def _report_error(self, name: str, error: Exception) -> None:
        """Report that an input cannot be read, and remember it for the exit status. name: of the input."""
        self.damaged = True
        message = str(error.strerror or error) if isinstance(error, OSError) else str(error)
        if isinstance(error, FormatError) and name.endswith(SOURCES):
            message = f"{name}: a source: compile it first, as with nvcc -ptx, and give the PTX or the program"
        # Most messages begin with the name already.
        self._say(message if name in message else f"{name}: {message}")

    def _say(self, message: str) -> None:
        """Print a message on stderr, in place of the line of progress."""
        self._progress.clear()
        say(message)


def _is_for(arch: str, containers: Sequence[Container]) -> bool:
    """Return whether some image is of the kind that devices of an architecture, this machine's, run."""
    from neutrino.backend.registry import target_of_device

    target = target_of_device(arch)
    return any(target.takes(image) for container in containers for image in container.images)


def _arch(name: str | None) -> str | None:
    """Return the architecture of --arch, without it that of this machine's first GPU; None without a GPU.

    Raises NeutrinoError for a name that is no architecture.
    """
    if name is not None:
        from neutrino.backend.registry import device_arch

        return device_arch(name)
    from neutrino.loader.driver import machine_archs

    archs = machine_archs()
    return archs[0] if archs else None
