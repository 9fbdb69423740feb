"""The input of ``sites`` and ``show``: the selected kernels of a file, with the sites of the probes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.probe_status import BAD_INPUT, DONE, NOTHING, say
from neutrino.errors import FormatError

if TYPE_CHECKING:
    from neutrino.ahead.preview import Preview
    from neutrino.cli.progress import Progress
    from neutrino.fatbin.inputs import Input
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.probing.selection import Selection


def add_options(parser: argparse.ArgumentParser) -> None:
    """The probes, the file, and which of its kernels."""
    parser.add_argument("probe", nargs="+", metavar="PROBE", help="a probe file, or the name of a shipped probe")
    parser.add_argument(
        "file", metavar="FILE",
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
    """A file with device code. name: as shown. arch: of the device that is to run it.

    vendor: the name by which it is a vendor-licensed library, whose kernels are not looked at; "" if it is none.
    """

    name: str
    arch: str
    vendor: str = ""


class Kernels:
    """The selected kernels of what FILE names. damaged: whether some of it could not be read."""

    def __init__(self, options: argparse.Namespace, probes: ProbeSet) -> None:
        from neutrino.cli.progress import Progress
        from neutrino.probing.selection import Selection

        self.damaged = False
        self.probes = probes
        self.selection: Selection = Selection(tuple(options.kernel), tuple(options.filter))
        self._name: str = options.file
        self._arch = _arch(options.arch)
        self._files = 0
        self._kernels = 0
        self._vendors = 0
        self._progress: Progress = Progress("neutrino-probe")

    def files(self) -> Iterator[tuple[File, Iterator[Preview]]]:
        """Each file with device code, and its kernels, which must be consumed before the next file is requested.

        Damaged files and vendor-licensed ones are reported on stderr, and the others follow.
        """
        from neutrino.fatbin.inputs import find_inputs

        try:
            for found in find_inputs([self._name], self._refused, self._progress.show):
                with self._naming(found.name):
                    yield from self._file(found)
        finally:
            self._progress.clear()

    def ending(self, *, found: bool) -> int:
        """The exit status, once all files were read; prints why nothing was found. found: whether anything is shown."""
        if self.damaged:
            return BAD_INPUT
        if not self._files:
            say(f"{self._name}: no device code found")
            return DONE
        if not self._kernels and not self._vendors:
            say(f"{self._name}: no kernel matches")
        return DONE if found else NOTHING

    def _file(self, found: Input) -> Iterator[tuple[File, Iterator[Preview]]]:
        from neutrino.ahead.preview import default_architecture, preview
        from neutrino.ahead.vendor import vendor_library

        data = found.data()
        containers = found.read(data)
        if not any(container.images for container in containers):
            return
        self._files += 1
        path = Path(found.member.name) if found.member else found.path
        vendor = vendor_library(path, data)
        if vendor:
            self._vendors += 1
            self._say(f"{found.name}: {vendor} is a vendor-licensed library, which is never rewritten")
            yield File(found.name, "", vendor), iter(())
            return
        arch = self._arch or default_architecture(containers)
        yield File(found.name, arch), self._previews(found, preview(containers, arch, self.probes, self.selection))

    def _previews(self, found: Input, previews: Iterator[Preview]) -> Iterator[Preview]:
        with self._naming(found.name):
            for number, kernel in enumerate(previews):
                self._progress.show(f"{found.name}: kernel {number + 1}")
                self._kernels += 1
                yield kernel
        self._progress.clear()

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FormatError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            self._refused(name, error)

    def _refused(self, name: str, error: Exception) -> None:
        self.damaged = True
        words = str(error.strerror or error) if isinstance(error, OSError) else str(error)
        self._say(words if name in words else f"{name}: {words}")

    def _say(self, message: str) -> None:
        self._progress.clear()
        say(message)


def _arch(word: str | None) -> str | None:
    if word is not None:
        from neutrino.ahead.plan import device_arch

        return device_arch(word)
    from neutrino.loader.driver import machine_archs

    here = machine_archs()
    return here[0] if here else None


