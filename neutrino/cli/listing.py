"""The tables that ``neutrino-extract`` prints of a file. ``listing_json`` has the same for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from neutrino.cli.streams import escaped
from neutrino.cli.table import counted, table
from neutrino.demangle import demangle
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.cli.spooled_rows import SpooledRows
    from neutrino.errors import FormatError
    from neutrino.fatbin.code_object import CodeObjectKernel
    from neutrino.fatbin.container import Container
    from neutrino.fatbin.contents import Contents
    from neutrino.fatbin.image import Image
    from neutrino.fatbin.inputs import Input
    from neutrino.patched_files.patched_with import Patched
    from neutrino.patched_files.probeable_kernels import Coverage
    from neutrino.sass.resource_usage import FunctionUsage

_TEXT_WIDTH = 75
_MAX_KERNELS_PER_REASON = 20
"""Kernels that --coverage lists for each reason why kernels cannot be probed; --json lists all."""


@dataclass
class Row:
    """An image (PTX, cubin, code object …) as one row of the listing.

    decoded: its size in bytes when decoded, None if it was not decoded. kernels: mangled names of the selected kernels.
    functions, code_objects: their resource usage, of CUDA's and of AMD's images. fault: what is wrong with the image,
    None if nothing is. output: the name of the file that it was written to, "" if none. kernel_count, has_resources:
    the number of kernels, and whether there is resource usage; ``release`` leaves these.
    """

    container: Container
    image: Image
    decoded: int | None = None
    kernels: tuple[str, ...] = ()
    functions: tuple[FunctionUsage, ...] = ()
    code_objects: tuple[CodeObjectKernel, ...] = ()
    fault: FormatError | None = None
    output: str = ""
    kernel_count: int = 0
    has_resources: bool = False

    @property
    def place(self) -> str:
        """``CONTAINER.IMAGE``: their indices, as in the names of files that -o writes."""
        return f"{self.container.index}.{self.image.index}"

    @property
    def size(self) -> int:
        """Size in bytes when decoded; of an image that was not decoded, the size in its header."""
        return self.image.stated_size if self.decoded is None else self.decoded

    def fill(self, contents: Contents, selects: Callable[[str], bool]) -> None:
        """Set the row's kernels and their resource usage from a decoded image. selects: whether a name is selected."""
        self.decoded = len(contents.data)
        self.kernels = tuple(filter(selects, contents.kernels))
        self.functions = tuple(usage for usage in contents.functions if selects(usage.name))
        self.code_objects = tuple(kernel for kernel in contents.code_objects if selects(kernel.name))
        self.kernel_count = len(self.kernels)
        self.has_resources = bool(self.functions or self.code_objects)

    def release(self) -> None:
        """Drop the names and figures of the kernels; those of all images of a large file would fill the memory."""
        self.kernels, self.functions, self.code_objects = (), (), ()


@dataclass
class Shown:
    """What is shown of one file. containers: all of them. rows: the images that are shown, without their kernels.

    patched: what neutrino-patch added, None for other files. coverage: for each architecture, which kernels can be
    probed. probes: names of the probes that coverage is for. notes: remarks about it.
    """

    input: Input
    containers: Sequence[Container]
    rows: list[Row]
    patched: Patched | None = None
    coverage: list[Coverage] = field(default_factory=list)
    probes: Sequence[str] = ()
    notes: Sequence[str] = ()


class Tables:
    """The tables of one file: images are added one by one, then ``lines`` gives the text.

    The width of a column is known when all its cells are, so rows are spooled to disk until then.
    """

    def __init__(self, *, kernels: bool, resources: bool) -> None:
        """Set up the tables that list one file's images. kernels, resources: whether to show these, too (--kernels,
        --resources)."""
        self._with_kernels = kernels
        self._with_resources = resources
        self._kernel_count = 0
        """Kernels of the containers that have ended; one in several images of a container counts once."""
        self._container = -1
        """Index of the container whose images are being added."""
        self._names: set[str] = set()
        """Mangled names of that container's kernels."""
        self._archs: dict[str, dict[str, list[str]]] = {}
        """Of that container, kernel → kind of image → architectures."""
        self._banks: set[int] = set()
        """Constant banks that a CUDA kernel uses; each has a column."""
        # Rows of the tables of kernels, of CUDA's and of AMD's resources; None as long as there is no row.
        self._kernels: SpooledRows | None = None
        self._cuda: SpooledRows | None = None
        self._amd: SpooledRows | None = None

    def add(self, row: Row) -> None:
        """Add an image, in the order of the file. A kernel in several images of one container becomes one row."""
        if row.container.index != self._container:
            self._end_container()
            self._container = row.container.index
        self._names.update(row.kernels)
        if self._with_kernels:
            for name in row.kernels:
                archs_by_kind = self._archs.setdefault(name, {})
                archs_by_kind.setdefault(row.image.kind.value, []).append(escaped(row.image.arch or "-"))
        if self._with_resources and row.functions:
            self._cuda = self._cuda or _spooled_rows()
            for usage in row.functions:
                self._banks.update(usage.constants)
                self._cuda.add(_cuda_cells(row, usage))
        if self._with_resources and row.code_objects:
            self._amd = self._amd or _spooled_rows()
            for kernel in row.code_objects:
                self._amd.add(_amd_cells(row, kernel))

    def lines(self, shown: Shown) -> Iterator[str]:
        """Yield the text of the tables, line by line. Call it after the last image was added."""
        self._end_container()
        rows = shown.rows
        containers = len({row.container.index for row in rows})
        counts = [counted(containers, "container"), counted(len(rows), "image")]
        # Without decoding, kernels are not known.
        if any(row.decoded is not None for row in rows):
            counts.append(counted(self._kernel_count, "kernel"))
        yield f"{escaped(shown.input.name)}: {', '.join(counts)}"
        if shown.patched is not None:
            yield _patched_line(shown.patched)
        if shown.coverage:
            for coverage in shown.coverage:
                yield from _coverage_lines(coverage)
            yield ""
            from neutrino.backend.registry import target_of_device

            judges = dict.fromkeys(target_of_device(coverage.arch).judges for coverage in shown.coverage)
            made = sum(coverage.of_machine_code for coverage in shown.coverage)
            untried = sum(len(coverage.kernels) for coverage in shown.coverage) - made
            remarks = [f"with {escaped(', '.join(shown.probes))}"]
            if made:
                remarks.append(f"twins of machine code were made, or tried, for {counted(made, 'kernel')}")
            if untried:
                where = "of the others nothing" if made else "nothing"
                remarks.append(
                    f"{where} was assembled, so {' or '.join(judges)} may still refuse some (neutrino-patch --dry-run)"
                )
            for text in ("; ".join(remarks), *(f"note: {escaped(note)}" for note in shown.notes)):
                yield from textwrap.wrap(text, width=_TEXT_WIDTH, initial_indent="  ", subsequent_indent="  ")
            # --coverage is shown instead of the other tables.
            return
        yield ""
        yield from _image_table(rows)
        if self._with_resources:
            yield from self._cuda_table()
            yield from self._amd_table()
            yield from _without_resources_line(rows)
        # The tables of resources name the kernels too; this table is needed if they leave any out.
        is_any_unnamed = any(row.kernel_count and not (self._with_resources and row.has_resources) for row in rows)
        if self._kernels is not None and is_any_unnamed:
            yield ""
            yield from table(["container", "in", "kernel"], self._kernels)

    def _end_container(self) -> None:
        """Count the kernels of the container whose images were added, and spool their rows."""
        self._kernel_count += len(self._names)
        self._names.clear()
        if self._archs:
            self._kernels = self._kernels or _spooled_rows()
            for name, archs_by_kind in self._archs.items():
                images = "; ".join(f"{kind} {', '.join(archs)}" for kind, archs in archs_by_kind.items())
                self._kernels.add([str(self._container), images, escaped(demangle(name))])
            self._archs.clear()

    def _cuda_table(self) -> Iterator[str]:
        """Yield the table of --resources for CUDA's functions, with the columns of ``cuobjdump -res-usage``."""
        if self._cuda is None:
            return
        from neutrino.cli.spooled_rows import MappedRows

        banks = [str(bank) for bank in sorted(self._banks)]
        head = ["image", "arch", "REG", "STACK", "SHARED", "LOCAL", *(f"CONSTANT[{bank}]" for bank in banks)]
        head += ["TEXTURE", "SURFACE", "SAMPLER", "function"]

        def with_bank_columns(row: list[Any]) -> list[str]:
            """Replace a row's sizes by constant bank, a dict, by a cell for each bank of the file."""
            # The row is as _cuda_cells returns it.
            *first, sizes_by_bank, textures, surfaces, samplers, name = row
            return [*first, *(sizes_by_bank.get(bank, "-") for bank in banks), textures, surfaces, samplers, name]

        yield ""
        # All but image, arch and the name are numbers.
        yield from table(head, MappedRows(self._cuda, with_bank_columns), right=head[2:-1])

    def _amd_table(self) -> Iterator[str]:
        """Yield the table of --resources for AMD's kernels; sizes are in bytes."""
        if self._amd is None:
            return
        head = ["image", "arch", "VGPR", "SGPR", "AGPR", "LDS", "scratch", "kernarg", "wave", "kernel"]
        yield ""
        # All but image, arch and the name are numbers.
        yield from table(head, self._amd, right=head[2:-1])


def _spooled_rows() -> SpooledRows:
    """Return an empty table on disk. Imported when it is first needed, since the plain listing needs none."""
    from neutrino.cli.spooled_rows import SpooledRows

    return SpooledRows()


def _cuda_cells(row: Row, usage: FunctionUsage) -> list[Any]:
    """Return a function's row for the table of CUDA's resources: sizes in bytes, those of constant banks as a dict."""
    return [
        row.place, row.image.arch or "-", str(usage.registers), str(usage.stack), str(usage.shared), str(usage.local),
        {str(bank): str(size) for bank, size in usage.constants.items()},
        str(usage.textures), str(usage.surfaces), str(usage.samplers), escaped(demangle(usage.name)),
    ]  # fmt: skip


def _amd_cells(row: Row, kernel: CodeObjectKernel) -> list[Any]:
    """Return one kernel's row for the table of AMD's resources, sizes in bytes.

    ``+`` marks a stack of no fixed size, ``-`` that no accumulation registers (AGPRs) are stated, as where the
    architecture has none.
    """
    return [
        row.place, escaped(row.image.arch or "-"), str(kernel.vgprs), str(kernel.sgprs),
        "-" if kernel.agprs is None else str(kernel.agprs), str(kernel.group_segment),
        f"{kernel.private_segment}{'+' if kernel.dynamic_stack else ''}", str(kernel.kernarg_segment),
        str(kernel.wavefront_size), escaped(demangle(kernel.name)),
    ]  # fmt: skip


def _patched_line(patched: Patched) -> str:
    """Return the line about a patched file: which twins (instrumented copies of kernels) neutrino-patch added."""
    archs = escaped(", ".join(patched.archs))
    return (
        f"  patched by Neutrino {escaped(patched.maker)}: {counted(patched.twins, 'twin')} with "
        f"{escaped(', '.join(patched.probes))}, for {f'the embedded device ({archs})' if patched.embedded else archs}"
    )


def _image_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of images.

    It has a column of archive members only if there are any, and one of kernels only if images were decoded.
    """
    with_member = any(row.container.member for row in rows)
    with_kernels = any(row.decoded is not None for row in rows)
    head = ["image", "section", "kind", "arch", "compression", "bytes", "stored"]
    # The second column, after the image.
    if with_member:
        head.insert(1, "member")
    if with_kernels:
        head.append("kernels")
    cells = []
    for row in rows:
        image = row.image
        line = [
            row.place, escaped(row.container.section or "-"), image.kind.value, escaped(image.arch or "-"),
            image.compression.value, f"{row.size:,}", f"{image.stored_size:,}",
        ]  # fmt: skip
        if with_member:
            line.insert(1, escaped(row.container.member or "-"))
        if with_kernels:
            # A damaged image could not be decoded, so its kernels are not known.
            line.append("damaged" if row.fault else str(row.kernel_count))
        cells.append(line)
    yield from table(head, cells, right=("bytes", "stored", "kernels"))


def _without_resources_line(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line about images with kernels but without resource usage, such as PTX, if there are any.

    Not about images in a container that also has machine code, whose figures are shown.
    """
    with_figures = {row.container.index for row in rows if row.has_resources}
    images = [row for row in rows if row.kernel_count and row.container.index not in with_figures]
    if images:
        kinds = ", ".join(dict.fromkeys(row.image.kind.value for row in images))
        yield ""
        yield f"  {counted(len(images), 'image')} ({kinds}) without figures, which only machine code has"


def _coverage_lines(coverage: Coverage) -> Iterator[str]:
    """Yield what --coverage shows for one architecture: how many kernels can be probed, and which cannot, and why."""
    total = len(coverage.kernels)
    yield ""
    drawn = ", drawn at random," if coverage.is_sample else ""
    yield f"  {escaped(coverage.arch)}: {coverage.probed:,} of {counted(total, 'kernel')}{drawn} can be probed"
    if coverage.is_sample:
        from neutrino.patched_files.sample import CONFIDENCE, SEED, interval

        low, high = (100 * share for share in interval(coverage.probed, total))
        yield (
            f"  of all {coverage.of:,} kernels {low:.1f} to {high:.1f} % can, with {100 * CONFIDENCE:g} % confidence "
            f"(Wilson's interval; seed {SEED})"
        )
    if coverage.probed < total:
        yield ""
        cells = [[f"{number:,}", reason.word, escaped(text)] for reason, text, number in coverage.reasons]
        yield from table(["kernels", "reason", "why not"], cells, right=("kernels",))
    listed: list[list[str]] = []
    unlisted = 0
    # A reason may have several rows above, for different texts. All kernels of a vendor's library have that reason, so
    # listing them says nothing.
    for reason in dict.fromkeys(reason for reason, _, _ in coverage.reasons if reason.word != "vendor"):
        kernels = [kernel for kernel in coverage.kernels if kernel.reason is reason]
        unlisted += max(0, len(kernels) - _MAX_KERNELS_PER_REASON)
        listed += [
            [f"{kernel.container}.{kernel.image}", reason.word, escaped(demangle(kernel.name))]
            for kernel in kernels[:_MAX_KERNELS_PER_REASON]
        ]
    # Which kernels, below how many of each reason.
    if listed:
        yield ""
        yield from table(["image", "reason", "kernel"], listed)
    if unlisted:
        yield f"  … {unlisted:,} more (--json)"
