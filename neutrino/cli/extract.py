"""``neutrino-extract``: the images and kernels of a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino import __version__
from neutrino.cli.streams import print_anything
from neutrino.errors import FormatError
from neutrino.fatbin import Container, Image, ImageKind, demangle, kernel_names, read_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DONE = 0
BAD = 2

_EXTENSIONS = {
    ImageKind.PTX: "ptx",
    ImageKind.CUBIN: "cubin",
    ImageKind.NVVM: "ltoir",
    ImageKind.CODE_OBJECT: "hsaco",
    ImageKind.BITCODE: "bc",
    ImageKind.UNKNOWN: "bin",
}


@dataclass(frozen=True)
class _Row:
    """An image as it is shown. fault: what is wrong with it, None if nothing."""

    container: Container
    image: Image
    size: int
    kernels: tuple[str, ...]
    fault: FormatError | None

    @property
    def place(self) -> str:
        return f"{self.container.index}.{self.image.index}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Show or write what the file named by the arguments holds. Returns the exit status: 0, or 2 for bad
    input."""
    options = _parser().parse_args(arguments)
    print_anything()
    try:
        status = _extract(options.file, as_json=options.json, directory=options.output)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader had enough (| head); without this, the interpreter would complain when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except FormatError as error:
        return _bad(str(error))
    except OSError as error:
        return _bad(f"{error.filename or options.file}: {error.strerror or error}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neutrino-extract",
        description="Show the GPU images and kernels in FILE: PTX, a cubin, a fatbin, or an ELF library, "
        "executable or object. An ELF file without device code is no error.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="write every image to DIR as NAME.CONTAINER.IMAGE.ARCH.EXT, decompressed",
    )
    parser.add_argument("--version", action="version", version=f"neutrino-extract {__version__}")
    return parser


def _bad(message: str) -> int:
    print(f"neutrino-extract: {message}", file=sys.stderr)
    return BAD


def _extract(file: Path, *, as_json: bool, directory: Path | None) -> int:
    containers = read_file(file)
    rows = [_row(container, image) for container in containers for image in container.images]
    if as_json:
        print(json.dumps(_document(file, containers, rows), indent=2))
    elif rows:
        _print_tables(file, containers, rows)
    if not rows:
        print(f"neutrino-extract: {file}: no CUDA device code found", file=sys.stderr)
    if directory is not None:
        _write(file, rows, directory)
    for row in rows:
        if row.fault is not None:
            print(f"neutrino-extract: image {row.place}: {row.fault}", file=sys.stderr)
    return BAD if any(row.fault for row in rows) else DONE


def _row(container: Container, image: Image) -> _Row:
    try:
        return _Row(container, image, image.size, kernel_names(image), None)
    except FormatError as fault:
        return _Row(container, image, image.decoded_size, (), fault)


def _document(file: Path, containers: Sequence[Container], rows: Sequence[_Row]) -> dict[str, Any]:
    return {
        "file": str(file),
        "containers": [
            {
                "index": container.index,
                "kind": container.kind,
                "section": container.section,
                "offset": container.offset,
                "size": container.size,
                "images": [
                    {
                        "index": row.image.index,
                        "kind": row.image.kind.value,
                        "arch": row.image.arch,
                        "compression": row.image.compression.value,
                        "size": row.size,
                        "stored_size": row.image.stored_size,
                        "kernels": [{"name": name, "demangled": demangle(name)} for name in row.kernels],
                    }
                    for row in rows
                    if row.container is container
                ],
            }
            for container in containers
        ],
    }


def _print_tables(file: Path, containers: Sequence[Container], rows: Sequence[_Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    images = Table("image", "section", "kind", "arch", "compression", box=box.SIMPLE_HEAD)
    for name in ("bytes", "stored", "kernels"):
        images.add_column(name, justify="right")
    for row in rows:
        image = row.image
        images.add_row(
            row.place, row.container.section, image.kind.value, image.arch, image.compression.value,
            f"{row.size:,}", f"{image.stored_size:,}", "damaged" if row.fault else str(len(row.kernels)),
        )  # fmt: skip

    homes: dict[tuple[int, str], dict[str, list[str]]] = {}
    for row in rows:
        for name in row.kernels:
            forms = homes.setdefault((row.container.index, name), {})
            forms.setdefault(row.image.kind.value, []).append(row.image.arch)
    kernels = Table("container", "in", "kernel", box=box.SIMPLE_HEAD)
    for (container, name), forms in homes.items():
        images_of = "; ".join(f"{kind} {', '.join(archs)}" for kind, archs in forms.items())
        kernels.add_row(str(container), images_of, Text(demangle(name), overflow="fold"))

    console = Console(highlight=False, markup=False, emoji=False)
    # The images' table, cut to fit a narrow terminal, would be ellipses only; kernel names fold. A pipe has no width:
    # nothing is folded there, so that one kernel stays one line.
    fixed = (images,) if console.is_terminal else (images, kernels)
    width = max(console.width if console.is_terminal else 0, _width(console, *fixed))
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    counts = ((len(containers), "container"), (len(rows), "image"), (len(homes), "kernel"))
    # Captured, since rich would end the process itself when the reader of a pipe has gone.
    with console.capture() as captured:
        console.print(f"{file}: {', '.join(_count(number, word) for number, word in counts)}", soft_wrap=True)
        console.print(images)
        if homes:
            console.print(kernels)
    print(captured.get(), end="")


def _width(console: Console, *tables: Table) -> int:
    unlimited = console.options.update(width=1 << 16)
    return max(console.measure(table, options=unlimited).maximum for table in tables)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _write(file: Path, rows: Sequence[_Row], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for row in rows:
        if row.fault is None:
            arch = row.image.arch or "unknown"
            target = directory / f"{file.stem}.{row.place}.{arch}.{_EXTENSIONS[row.image.kind]}"
            try:
                target.write_bytes(row.image.data)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(target)) from error
            print(f"neutrino-extract: wrote {target}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
