"""``neutrino-extract``: the images and kernels of files, folders and wheels."""

from __future__ import annotations

import argparse
import errno
import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.cli.arguments import Parser, given, given_path, number_of
from neutrino.cli.diagnostics import print_diagnostics
from neutrino.cli.kernel_names import some_of
from neutrino.cli.listing import Row, Shown, Tables
from neutrino.cli.listing_json import JsonListing
from neutrino.cli.machine_code import add_machine_code, machine_code_notes
from neutrino.cli.progress import Progress, TimeLeft
from neutrino.cli.streams import SOURCES, escaped, escaped_text, print_anything
from neutrino.cli.table import counted
from neutrino.cli.termination import exiting_on_sigterm
from neutrino.device.machine_code import MachineCode
from neutrino.elf.cursor import release
from neutrino.errors import FormatError, NeutrinoError, ProbeError
from neutrino.fatbin.inputs import Input, find_inputs
from neutrino.version import __version__

if TYPE_CHECKING:
    from neutrino.fatbin.container import Container
    from neutrino.fatbin.extraction import Namer
    from neutrino.patched_files.patched_with import Patched
    from neutrino.patched_files.probeable_kernels import Coverage
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.probing.selection import Selection

DONE = 0
BAD = 2
_NOTHING = 3
_NAME = "neutrino-extract"
_RELEASE_BYTES = 32 << 20
"""Bytes of images that are read before the pages of the mapped file are released."""
_IMAGES_WITHOUT_TEXT = {
    "ptx": "image of PTX", "cubin": "cubin", "text": "assembly text", "nvvm": "image of NVVM",
    "code-object": "AMD code object", "bitcode": "image of AMD bitcode",
}  # fmt: skip
"""What --sass or --asm has no text of, by the image's kind."""
_MAX_LISTED_FILES = 20
"""Files of -o that are listed as they are written; of any more only the number is printed (--json lists all)."""

_DESCRIPTION = """\
Show the GPU code in files: PTX, cubins, fatbins, AMD's bundles and code objects, ELF libraries, programs and objects,
archives. Folders are searched for such files, and so are wheels (and other ZIP files), without unpacking them. The
plain listing decodes no image.

Files of a folder are read in name order; symbolic links are not followed. Files without device code are skipped;
damaged ones are reported and the rest is shown."""

_EPILOG = """\
examples:
  neutrino-extract libkernels.so                       images: kind, architecture, sizes
  neutrino-extract libkernels.so --kernels -k softmax  kernels with that name, and the images that hold them
  neutrino-extract libkernels.so --resources           registers, stack, shared memory: as cuobjdump -res-usage
  neutrino-extract libkernels.so --coverage --arch sm_90
                                                       which kernels can be probed there, and why others cannot
  neutrino-extract torch.whl -o images --arch sm_90    every sm_90 image of a wheel as a file of its own
  neutrino-extract libkernels.so --sass | less         machine code as text, by nvdisasm
  neutrino-extract libhip.so --asm --arch gfx942       AMD's machine code as text, which assembles to the same bytes

-o writes NAME.CONTAINER.IMAGE.ARCH.EXT, EXT one of ptx, cubin, ltoir, hsaco, bc, bin (sass with --sass, s
with --asm). NAME is the
input's, reduced to letters, digits and +-_. ; a second input of the same name gets NAME-2. Existing files are
replaced, each only when the new one is complete.

exit status: 0 done; 3 no device code, or none that was chosen; 2 an input that cannot be read, a damaged image, output
that cannot be written, a missing tool."""


@exiting_on_sigterm()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 done, 2 bad input or output that cannot be written, 3 no
    device code."""
    options = _parser().parse_args(arguments)
    print_anything()
    extraction: _Extraction | None = None
    try:
        extraction = _Extraction(options)
        extraction.run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (| head); without this, the interpreter would print an error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except ProbeError as error:
        print_diagnostics(error.diagnostics)
        return BAD
    except NeutrinoError as error:
        return _bad(str(error))
    except OSError as error:
        return _bad(_error_text(error))
    except KeyboardInterrupt:
        if extraction is not None:
            extraction.progress.clear()
        # End by the signal, as the shell expects; worker processes and unfinished files are gone by now.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    finally:
        if extraction is not None:
            extraction.progress.clear()
    return extraction.status


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all options and their help."""
    parser = Parser(
        prog=_NAME,
        usage=f"{_NAME} [options] FILE|FOLDER|WHEEL ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", nargs="+", type=given, metavar="FILE|FOLDER|WHEEL", help="what to read")
    what = parser.add_argument_group("what to show")
    what.add_argument("--kernels", action="store_true", help="list the kernels too, with demangled names")
    what.add_argument(
        "--resources",
        action="store_true",
        help="resource usage of each function: REG, STACK, SHARED … as cuobjdump -res-usage prints it; for AMD's "
        "kernels registers, LDS, scratch and kernel arguments in bytes, and the wavefront size",
    )
    what.add_argument(
        "--sass",
        action="store_true",
        help="disassemble cubins with nvdisasm; with -o, into files. Not for vendor-licensed libraries or AMD's code",
    )
    what.add_argument(
        "--asm",
        action="store_true",
        help="AMD's machine code as assembly text, which assembles to the same bytes: with labels, symbols, source "
        "lines and metadata; with -o, into files. What is assembly already is printed as it is",
    )
    what.add_argument(
        "--coverage",
        action="store_true",
        help="which kernels can be probed, and why the others cannot. PTX is not assembled, so ptxas and the check of "
        "the arithmetic may still refuse some (neutrino-patch --dry-run); twins of machine code are made",
    )
    what.add_argument(
        "--sample", type=number_of("kernels", 10**9), metavar="N",
        help="with --coverage, look at N kernels of each file, drawn at random, and say what that means for all",
    )  # fmt: skip
    what.add_argument("--json", action="store_true", help="JSON instead of tables, with the kernels")
    which = parser.add_argument_group("which images and kernels")
    which.add_argument(
        "--arch",
        action="append",
        default=[],
        metavar="ARCH",
        help="only images for this architecture (sm_90a, gfx942); with --coverage, the device's architecture "
        "(default: this machine's GPUs, or without one all architectures of the images); repeatable",
    )
    which.add_argument(
        "-k",
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="only kernels whose mangled or demangled name contains NAME, and images that hold one; with *?[ a glob "
        "over the whole name, /re/ a regular expression, a:b a list; repeatable",
    )
    which.add_argument(
        "--filter", action="append", default=[], metavar="NAME", help="exclude these kernels, even if -k selects them"
    )
    which.add_argument(
        "-p",
        "--probe",
        action="append",
        default=[],
        metavar="PROBE",
        help="with --coverage, the probes to check, as for neutrino (default: block_sched); repeatable",
    )
    add_machine_code(which)
    parser.add_argument(
        "-o", "--output", type=given_path, metavar="FOLDER", help="write the decoded images into this folder"
    )
    parser.add_argument("--version", action="version", version=f"{_NAME} {__version__}")
    return parser


def _bad(message: str) -> int:
    """Print a message on stderr after the command's name; the exit status for bad input."""
    print(f"{_NAME}: {escaped(message)}", file=sys.stderr)
    return BAD


def _error_text(error: Exception) -> str:
    """Return an error's message; of an OSError the file and the reason, without the number that its own text has."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror or error}" if error.filename else str(error.strerror or error)
    return str(error)


class _Extraction:
    """One run of the command: reads the inputs one by one and prints or writes what the options ask for.

    status: the exit status so far. progress: the line on stderr that shows the current file. _selection: of -k and
    --filter, None without them. _probes: those of --coverage, None without it. _namer: names the files that -o writes,
    None without -o.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Check the options. Raises NeutrinoError for a wrong combination, ProbeError for invalid probes (-p)."""
        self.status = DONE
        self.progress = Progress(_NAME)
        self._options = options
        self._selection = _selection(options)
        self._seen: set[str] = set()
        self._probes: ProbeSet | None = None
        self._namer: Namer | None = None
        self._printed = 0
        """How many listings, or images with --sass and --asm, were printed on stdout."""
        self._written = 0
        # With --sass or --asm, images of the present file: by kind those without such a text, and the others.
        self._without_text: dict[str, int] = {}
        self._disassembled = 0
        self._prints_text = bool(options.sass or options.asm)
        self._is_refused = False
        """Files that were written into the folder of -o."""
        self._files = self._containers = self._images = 0
        """What was shown, for the line of totals at the end."""
        # The plain listing reads the headers of images alone; everything else decodes them.
        self._decodes = bool(
            options.kernels or options.resources or options.sass or options.asm or options.coverage or options.json
            or options.output or self._selection
        )  # fmt: skip

        text = "--sass" if options.sass else "--asm"
        if options.sass and options.asm:
            raise NeutrinoError("--sass and --asm cannot be combined: one is of NVIDIA's machine code, one of AMD's")
        if options.coverage and self._prints_text:
            raise NeutrinoError(f"--coverage and {text} cannot be combined")
        if self._prints_text and options.json and options.output is None:
            raise NeutrinoError(f"{text} prints text; give -o FOLDER to have JSON beside it")
        if options.sample is not None and not options.coverage:
            raise NeutrinoError("--sample goes with --coverage")
        if options.probe and not options.coverage:
            raise NeutrinoError("-p goes with --coverage")
        if options.machine_code != MachineCode.AUTO.value and not options.coverage:
            raise NeutrinoError("--machine-code goes with --coverage")

        if options.coverage:
            from neutrino.cli.loading import load
            from neutrino.patched_files.probeable_kernels import USUAL_PROBE

            options.probe = options.probe or [USUAL_PROBE]
            self._probes = load(options.probe)
            # Still empty on a machine without a GPU: then each file's own architectures are used.
            options.arch = [_device_arch(name) for name in options.arch] or _archs_of_machine()
        if options.output is not None:
            from neutrino.fatbin.extraction import Namer

            if options.output.exists() and not options.output.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file, and -o names a folder", str(options.output))
            options.output.mkdir(parents=True, exist_ok=True)
            self._namer = Namer()

    def run(self) -> None:
        """Show and write everything. Raises OSError for output that cannot be written, ToolError of nvdisasm."""
        options = self._options
        # In JSON, a single file named on the command line is one object; several files, or a folder's, are a list.
        first_input, *other_inputs = options.input
        is_one_file = not other_inputs and not Path(first_input).is_dir()
        # Files that were read and are arguments themselves, not in a folder or wheel.
        named = 0
        for input_ in find_inputs(options.input, self._report_error, self.progress.show):
            named += input_.is_named
            self._show(input_, single=is_one_file and input_.is_named)

        if self._written > _MAX_LISTED_FILES:
            self._say(f"wrote {self._written:,} files to {options.output} in all (--json names each)")
        # A wheel is one argument, but its files are a list too. One file that cannot be read has no JSON.
        if options.json and not (is_one_file and named):
            # The end of the list, which the first file has begun if there was any.
            print("\n]}" if self._printed else '{"files": []}')
        elif not options.json and not self._printed and not named and self.status == DONE:
            # A named file without device code is reported when it is read, and so is what cannot be read.
            self._say(f"{', '.join(options.input)}: no device code found")
        if not self._containers and self.status == DONE:
            self.status = _NOTHING
        # The line of totals, for people only.
        if self._files > 1 and not options.json and not self._prints_text:
            images = counted(self._images, "image")
            print(f"\n{counted(self._files, 'file')}: {counted(self._containers, 'container')}, {images}")

    def _show(self, input_: Input, *, single: bool) -> None:
        """Read one file, and print or write what the options ask for. Its errors are reported, not raised.

        single: whether its JSON object is the whole document, not one of a list.
        """
        self._seen.clear()
        # The file's containers, and the images in them that --arch selects.
        try:
            data = input_.data()
            # For the plain listing, the whole file would have to be searched for images that nothing points to.
            containers = input_.read(data, search_data=self._decodes)
            rows = self._rows(containers)
        except (FormatError, OSError) as error:
            self._report_error(input_.name, error)
            return
        if self._decodes:
            # What was searched of a large file would stay in memory beside its images.
            release(data)
        shown = Shown(input_, containers, [])
        try:
            shown.patched = _patched(shown, data)
        except FormatError as error:
            # The original device code is still worth showing.
            self._report_error(input_.name, error)

        # One image after the other; only what the listing needs of an image is kept.
        listing = self._json_listing(shown, single=single) if self._options.json else self._tables()
        for row in self._decoded(input_, rows, data) if self._decodes else rows:
            shown.rows.append(row)
            listing.add(row)
            row.release()
        if self._options.coverage:
            shown.coverage = self._coverage(shown, _vendor(input_, data) if rows else None)
            shown.probes = self._options.probe
            kernels = [kernel for coverage in shown.coverage for kernel in coverage.kernels]
            shown.notes = list(machine_code_notes(kernels, self._options.machine_code, self._options.probe))

        self._say_what_has_none(shown)
        # Files of a folder are silent if there is nothing to show; named files are not.
        is_empty = not shown.rows and not shown.coverage
        if not is_empty or input_.is_named:
            self._print(shown, listing, single=single, is_empty=is_empty)

    def _print(self, shown: Shown, listing: JsonListing | Tables, *, single: bool, is_empty: bool) -> None:
        """Print a file's listing, or a message that there is nothing to list, and count what was shown."""
        self.progress.clear()
        if isinstance(listing, JsonListing):
            listing.finish()
            # In a list, the next object's separator or the end of the list has the newline.
            print(end="\n" if single else "")
        # With --sass and --asm, the images themselves were printed or written as they were read.
        elif not is_empty and not self._prints_text:
            # An empty line separates the listings of two files.
            if self._printed:
                print()
            for line in listing.lines(shown):
                print(line)
        if is_empty:
            self._say_empty(shown)
        else:
            self._files += 1
            self._containers += len({row.container.index for row in shown.rows})
            self._images += len(shown.rows)
        # JSON has an object for an empty file too.
        self._printed += not is_empty or self._options.json

    def _json_listing(self, shown: Shown, *, single: bool) -> JsonListing:
        """Return the writer of a file's JSON object. single: whether the object is the whole document."""
        is_first_piece = True

        def write(text: str) -> None:
            """Print a piece of the object; before the first one, what separates it from the previous file's."""
            nonlocal is_first_piece
            self.progress.clear()
            if is_first_piece and not single:
                text = ('{"files": [\n' if not self._printed else ",\n") + text
            is_first_piece = False
            print(text, end="")

        return JsonListing(shown, write)

    def _tables(self) -> Tables:
        """Begin the tables of one file's images, with those of kernels and of resources if the options ask for them."""
        return Tables(kernels=self._options.kernels, resources=self._options.resources)

    def _rows(self, containers: Sequence[Container]) -> list[Row]:
        """Return a row for each image that is for an architecture of --arch; without --arch, for each image."""
        # With --coverage, --arch is the device's architecture: it may run images for several.
        archs = () if self._options.coverage else self._options.arch
        return [
            Row(container, image)
            for container in containers
            for image in container.images
            # AMD's architectures may have features appended: gfx90a:xnack+.
            if not archs or any(image.arch == arch or image.arch.startswith(f"{arch}:") for arch in archs)
        ]

    def _decoded(self, input_: Input, rows: Sequence[Row], data: memoryview) -> Iterator[Row]:
        """Decode the images one at a time, write them if asked to, and yield those with a selected kernel.

        data: the whole file, mapped into memory. Damaged images are reported, and yielded with their fault.
        """
        from neutrino.fatbin.contents import read_contents

        options = self._options
        # Only a file with images to write takes a name.
        stem = self._namer.stem(input_.stem) if self._namer and rows else ""
        vendor = _vendor(input_, data) if self._prints_text and rows else None
        if vendor:
            error = NeutrinoError(f"{vendor}: a vendor-licensed library, which is not disassembled")
            self._report_error(input_.name, error)
            self._is_refused = True
            return
        self._is_refused = False
        bytes_read = 0
        for number, row in enumerate(rows):
            self.progress.show(f"{input_.name}: image {number + 1} of {len(rows)}")
            # Pages of the mapped file that were read stay in memory until they are released.
            bytes_read += row.image.stored_size
            if bytes_read >= _RELEASE_BYTES:
                release(row.image.payload)
                bytes_read = 0
            try:
                contents = read_contents(row.image, resources=options.resources)
            except FormatError as fault:
                row.fault = fault
                self._report_damaged_image(input_, row, fault)
                yield row
                continue
            row.fill(contents, self._selects)
            # With -k or --filter, images without a selected kernel are left out.
            if row.kernels or not self._selection:
                try:
                    self._write(input_, row, contents.data, stem)
                except FormatError as fault:
                    row.fault = fault
                    self._report_damaged_image(input_, row, fault)
                # Freed before the next image is decoded: the images of a large file together would fill the memory.
                del contents
                yield row

    def _selects(self, name: str) -> bool:
        """Return whether -k and --filter select the kernel with a mangled name."""
        if self._selection is None:
            return True
        from neutrino.demangle import demangle

        self._seen.add(name)

        return self._selection.selects(name, demangle(name))

    def _coverage(self, shown: Shown, vendor: str | None) -> list[Coverage]:
        """Return for each architecture which of a file's kernels can be probed, and why others cannot (--coverage).

        The architectures are those of --arch, else those of the file. vendor: the name of a vendor-licensed library
        that the file is, whose kernels are never probed; None for others.
        """
        from neutrino.patched_files.probeable_kernels import Known, architectures, find_coverage
        from neutrino.patched_files.workers import processors
        from neutrino.probing.selection import Selection

        # Nothing without --coverage, or without device code.
        if self._probes is None or not shown.containers:
            return []
        selection = self._selection or Selection()
        coverages = []
        # Shared by all architectures, which may run the same machine code.
        known: Known = {}
        thresholds = gc.get_threshold()
        # Millions of small objects live until a module is done: looking through them less often saves a tenth.
        gc.set_threshold(20_000, 20, 50)
        try:
            for arch in self._options.arch or architectures(shown.containers):
                where = f"{shown.input.name}: {arch}"
                self.progress.show(where)
                coverages.append(
                    find_coverage(
                        shown.containers,
                        arch,
                        self._probes,
                        selection,
                        vendor=vendor,
                        known=known,
                        machine_code=MachineCode(self._options.machine_code).for_probes(self._options.probe),
                        jobs=processors(),
                        sample=self._options.sample,
                        progress=TimeLeft(self.progress, where, "kernels").show,
                    )
                )
        except FormatError as error:
            self._report_error(shown.input.name, error)
        finally:
            gc.set_threshold(*thresholds)
        return coverages

    def _write(self, input_: Input, row: Row, data: bytes, stem: str) -> None:
        """Write an image into the folder of -o, or its disassembly (--sass) there or to stdout.

        data: the decoded image. stem: the first part of the file's name, from the input's. Raises OSError for output
        that cannot be written, ToolError of nvdisasm.
        """
        options = self._options
        if options.output is None and not self._prints_text:
            # Only the listing is asked for.
            return
        from neutrino.fatbin.extraction import file_name, write_aside

        # None: the usual one of the image's kind.
        extension = None
        if self._prints_text:
            lines = self._text(row, data)
            if lines is None:
                self._without_text[row.image.kind.value] = self._without_text.get(row.image.kind.value, 0) + 1
                return
            self._disassembled += 1
            extension = "sass" if options.sass else None if row.image.kind.value == "ptx" else "s"
            if options.output is None:
                self.progress.clear()
                comment = "//" if options.sass else ";"
                print(f"{comment} {escaped(input_.name)}: image {row.place}, {row.image.arch}")
                for line in lines:
                    # Names in it are the file's, and could hold escape sequences.
                    print(escaped_text(line))
                self._printed += 1
                return
            data = "\n".join(lines).encode()
        if options.output is None:
            return
        target = options.output / file_name(stem, row.container, row.image, extension)
        write_aside(target, data)
        row.output = target.name
        self._written += 1
        if self._written <= _MAX_LISTED_FILES:
            self._say(f"wrote {target}")

    def _text(self, row: Row, data: bytes) -> Iterable[str] | None:
        """Return the lines of an image's machine code as text (--sass, --asm), the last one empty; None for an image
        without such a text.

        data: the decoded image. Raises FormatError for a damaged one, ToolError of what disassembles it.
        """
        kind = row.image.kind.value
        chosen = row.kernels if self._selection else None
        if self._options.sass:
            from neutrino.toolchain.nvdisasm import disassemble

            # nvdisasm reads nothing else.
            return disassemble(data, chosen).split("\n") if kind == "cubin" else None
        if kind == "code-object":
            from neutrino.backend.gcn_listing import code_object_text

            return itertools.chain(code_object_text(data, f"image {row.place}", chosen), [""])
        # What is text already.
        return data.decode("utf-8", "replace").split("\n") if kind in ("ptx", "text") else None

    def _say_what_has_none(self, shown: Shown) -> None:
        """Report that --sass has disassembled no image of a file that has some, or --coverage has no architecture."""
        options = self._options
        if (
            options.coverage
            and shown.rows
            and not shown.coverage
            and not any(row.image.kind.value in ("ptx", "cubin", "nvvm") for row in shown.rows)
        ):
            archs = (
                ", ".join(dict.fromkeys(row.image.arch for row in shown.rows if row.image.arch)) or "no architecture"
            )
            self._say(f"{shown.input.name}: its code is for {archs}, for which no kernel can be probed")
        if self._without_text and not self._disassembled:
            kinds = ", ".join(
                counted(count, _IMAGES_WITHOUT_TEXT.get(kind, f"image of kind {kind}"))
                for kind, count in self._without_text.items()
            )
            if options.asm:
                message = f"no assembly text; it has {kinds}"
                hint = "--sass disassembles NVIDIA's machine code" if "cubin" in self._without_text else ""
            else:
                message = f"no machine code of NVIDIA's GPUs to disassemble; it has {kinds}"
                is_amd = self._without_text.keys() & {"code-object", "text"}
                hint = (
                    "--asm shows AMD's machine code as text"
                    if is_amd
                    else ("--coverage says which kernels can be probed, and why others cannot")
                )
            self._say(f"{shown.input.name}: {message}{f'; {hint}' if hint else ''}")
        self._without_text, self._disassembled = {}, 0

    def _there_are(self, shown: Shown) -> str:
        """Say in words what a file has of which nothing was selected."""
        archs = dict.fromkeys(image.arch for each in shown.containers for image in each.images if image.arch)
        if not self._seen:
            return f"its images are for {', '.join(archs) or 'no architecture'}"
        return f"its kernels are {some_of(self._seen)}"

    def _say_empty(self, shown: Shown) -> None:
        """Report that a file has no device code, or none that is selected."""
        if any(container.images for container in shown.containers):
            # A vendor-licensed library that is not disassembled has no rows either, and that has been reported.
            if not self._is_refused:
                self._say(f"{shown.input.name}: no image or kernel matches; {self._there_are(shown)}")
        else:
            self._say(f"{shown.input.name}: no device code found")

    def _report_damaged_image(self, input_: Input, row: Row, fault: FormatError) -> None:
        """Report that an image of a file cannot be decoded; the exit status becomes 2, and the run goes on."""
        self.status = BAD
        self._say(f"{input_.name}: image {row.place}: {fault}")

    def _report_error(self, name: str, error: Exception) -> None:
        """Report that an input cannot be read; the exit status becomes 2, and the run goes on. name: of the input."""
        self.status = BAD
        message = _error_text(error)
        if isinstance(error, FormatError) and name.endswith(SOURCES):
            message = f"{name}: a source: compile it first, as with nvcc -ptx, and give the PTX or the program"
        self._say(message if name in message else f"{name}: {message}")

    def _say(self, message: str) -> None:
        """Print a message on stderr after the command's name, in place of the line of progress."""
        self.progress.clear()
        print(f"{_NAME}: {escaped(message)}", file=sys.stderr)


def _patched(shown: Shown, data: memoryview) -> Patched | None:
    """Return what neutrino-patch added to a file; None if it is not patched. data: the whole file.

    Raises FormatError if what was added is damaged.
    """
    # Only files that hold others are patched: not one that is itself an image, such as a cubin, which is a container of
    # kind "file" outside of any section, and not one without any container.
    if all(container.kind == "file" and not container.section for container in shown.containers):
        return None
    from neutrino.patched_files.patched_with import read_patched

    return read_patched(data, shown.input.name)


def _vendor(input_: Input, data: memoryview) -> str | None:
    """Return the name of the vendor-licensed library that a file is, None for other files.

    A file in a wheel is known by its own name, not by the wheel's. data: the whole file.
    """
    from neutrino.patched_files.vendor import vendor_library

    return vendor_library(Path(input_.member.name) if input_.member else input_.path, data)


def _selection(options: argparse.Namespace) -> Selection | None:
    """Return the selection of -k and --filter, None without either."""
    if not options.kernel and not options.filter:
        return None
    from neutrino.probing.selection import Selection

    return Selection(tuple(options.kernel), tuple(options.filter))


def _archs_of_machine() -> list[str]:
    """The architectures of this machine's GPUs (``sm_90``), none without a GPU.

    Imported when needed: it asks the driver.
    """
    from neutrino.loader.driver import machine_archs

    return list(machine_archs())


def _device_arch(name: str) -> str:
    """The architecture that a user's text names, as ``sm_90``. Raises NeutrinoError for another text."""
    from neutrino.backend.registry import device_arch

    return device_arch(name)


if __name__ == "__main__":
    sys.exit(main())
