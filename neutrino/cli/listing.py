"""The tables that ``neutrino-extract`` prints of a file. ``listing_json`` has the same for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.cli.streams import visible
from neutrino.cli.table import count, table
from neutrino.demangle import demangle

if TYPE_CHECKING:
    from neutrino.ahead.coverage import Coverage
    from neutrino.ahead.patched import Patched
    from neutrino.cli.kept_rows import KeptRows
    from neutrino.errors import FormatError
    from neutrino.fatbin.code_object import CodeObjectKernel
    from neutrino.fatbin.container import Container
    from neutrino.fatbin.contents import Contents
    from neutrino.fatbin.image import Image
    from neutrino.fatbin.inputs import Input
    from neutrino.sass.resource_usage import FunctionUsage

_REASON_DETAILS = 20
"""Kernels named one by one under --coverage, for each reason; --json has all."""


@dataclass
class Row:
    """An image as it is shown. decoded: its bytes when decoded, None where it was not looked into. kernels, functions,
    code_objects: those that are shown. fault: what is wrong with it. output: the file it was written to, "" if none.

    kernel_count, has_resources: what is left of kernels, functions and code_objects once they are let go of.
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
        """``CONTAINER.IMAGE``, as in names of files."""
        return f"{self.container.index}.{self.image.index}"

    @property
    def size(self) -> int:
        """Bytes when decoded; what the headers say where it was not."""
        return self.image.stated_size if self.decoded is None else self.decoded

    def fill(self, contents: Contents, selects: Callable[[str], bool]) -> None:
        """Take over what was found inside, of kernels and functions with the names that are wanted."""
        self.decoded = len(contents.data)
        self.kernels = tuple(filter(selects, contents.kernels))
        self.functions = tuple(usage for usage in contents.functions if selects(usage.name))
        self.code_objects = tuple(kernel for kernel in contents.code_objects if selects(kernel.name))
        self.kernel_count = len(self.kernels)
        self.has_resources = bool(self.functions or self.code_objects)

    def let_go(self) -> None:
        """Forget the kernels by name and their figures: those of all images of a file may be larger than memory."""
        self.kernels, self.functions, self.code_objects = (), (), ()


@dataclass
class Shown:
    """What is known of one file, and shown. containers: all of them, rows: the images that are shown, once each was
    looked into.

    coverage: by architecture, for the probes of these names.
    """

    input: Input
    containers: Sequence[Container]
    rows: list[Row]
    patched: Patched | None = None
    coverage: list[Coverage] = field(default_factory=list)
    probes: Sequence[str] = ()


class Tables:
    """The tables of a file. kernels, resources: whether these were asked for.

    Widths of columns are known when the last image is, so what is in them is kept until then, on disk.
    """

    def __init__(self, *, kernels: bool, resources: bool) -> None:
        self._with_kernels = kernels
        self._with_resources = resources
        self._container = -1
        self._names: set[str] = set()
        self._different = 0
        self._homes: dict[str, dict[str, list[str]]] = {}
        self._banks: set[int] = set()
        self._kernels: KeptRows | None = None
        self._cuda: KeptRows | None = None
        self._amd: KeptRows | None = None

    def add(self, row: Row) -> None:
        """Take an image in. Of a container the kernels of all images are shown together."""
        if row.container.index != self._container:
            self._end_container()
            self._container = row.container.index
        self._names.update(row.kernels)
        if self._with_kernels:
            for name in row.kernels:
                forms = self._homes.setdefault(name, {})
                forms.setdefault(row.image.kind.value, []).append(visible(row.image.arch or "-"))
        if self._with_resources and row.functions:
            self._cuda = self._cuda or _kept_rows()
            for usage in row.functions:
                self._banks.update(usage.constants)
                self._cuda.add(_cuda_figures(row, usage))
        if self._with_resources and row.code_objects:
            self._amd = self._amd or _kept_rows()
            for kernel in row.code_objects:
                self._amd.add(_amd_figures(row, kernel))

    def lines(self, shown: Shown) -> Iterator[str]:
        """The tables, line by line, once each of the file's images was added."""
        self._end_container()
        rows = shown.rows
        containers = len({row.container.index for row in rows})
        counts = [count(containers, "container"), count(len(rows), "image")]
        if any(row.decoded is not None for row in rows):
            counts.append(count(self._different, "kernel"))
        yield f"{visible(shown.input.name)}: {', '.join(counts)}"
        if shown.patched is not None:
            yield from _patched(shown.patched)
        if shown.coverage:
            for coverage in shown.coverage:
                yield from _covered(coverage)
            yield ""
            yield f"  with {visible(', '.join(shown.probes))}; nothing was assembled, so ptxas and the check of the"
            yield "  arithmetic may still refuse some (neutrino-patch --dry-run)"
            return
        yield ""
        yield from _images(rows)
        if self._with_resources:
            yield from self._cuda_resources()
            yield from self._amd_resources()
            yield from _without_resources(rows)
        # A table of resources names the kernels as well, but not those of images without figures.
        if self._kernels is not None and any(
            row.kernel_count and not (self._with_resources and row.has_resources) for row in rows
        ):
            yield ""
            yield from table(["container", "in", "kernel"], self._kernels)

    def _end_container(self) -> None:
        self._different += len(self._names)
        self._names.clear()
        if self._homes:
            self._kernels = self._kernels or _kept_rows()
            for name, forms in self._homes.items():
                images = "; ".join(f"{kind} {', '.join(archs)}" for kind, archs in forms.items())
                self._kernels.add([str(self._container), images, visible(demangle(name))])
            self._homes.clear()

    def _cuda_resources(self) -> Iterator[str]:
        if self._cuda is None:
            return
        from neutrino.cli.kept_rows import Cells

        banks = [str(bank) for bank in sorted(self._banks)]
        head = ["image", "arch", "REG", "STACK", "SHARED", "LOCAL", *(f"CONSTANT[{bank}]" for bank in banks)]
        head += ["TEXTURE", "SURFACE", "SAMPLER", "function"]

        def cells(figures: list[Any]) -> list[str]:
            *first, constants, textures, surfaces, samplers, name = figures
            return [*first, *(constants.get(bank, "-") for bank in banks), textures, surfaces, samplers, name]

        yield ""
        yield from table(head, Cells(self._cuda, cells), right=head[2:-1])

    def _amd_resources(self) -> Iterator[str]:
        if self._amd is None:
            return
        head = ["image", "arch", "VGPR", "SGPR", "AGPR", "LDS", "scratch", "kernarg", "wave", "kernel"]
        yield ""
        yield from table(head, self._amd, right=head[2:-1])


def _kept_rows() -> KeptRows:
    # Here, because the plain listing needs none.
    from neutrino.cli.kept_rows import KeptRows

    return KeptRows()


def _cuda_figures(row: Row, usage: FunctionUsage) -> list[Any]:
    return [
        row.place, row.image.arch or "-", str(usage.registers), str(usage.stack), str(usage.shared), str(usage.local),
        {str(bank): str(size) for bank, size in usage.constants.items()},
        str(usage.textures), str(usage.surfaces), str(usage.samplers), visible(demangle(usage.name)),
    ]  # fmt: skip


def _amd_figures(row: Row, kernel: CodeObjectKernel) -> list[Any]:
    return [
        row.place, visible(row.image.arch or "-"), str(kernel.vgprs), str(kernel.sgprs),
        "-" if kernel.agprs is None else str(kernel.agprs), str(kernel.group_segment),
        f"{kernel.private_segment}{'+' if kernel.dynamic_stack else ''}", str(kernel.kernarg_segment),
        str(kernel.wavefront_size), visible(demangle(kernel.name)),
    ]  # fmt: skip


def _patched(patched: Patched) -> Iterator[str]:
    archs = visible(", ".join(patched.archs))
    yield (
        f"  patched by Neutrino {visible(patched.maker)}: {count(patched.twins, 'twin')} with "
        f"{visible(', '.join(patched.probes))}, for {f'the embedded device ({archs})' if patched.embedded else archs}"
    )


def _images(rows: Sequence[Row]) -> Iterator[str]:
    with_member = any(row.container.member for row in rows)
    with_kernels = any(row.decoded is not None for row in rows)
    head = ["image", "section", "kind", "arch", "compression", "bytes", "stored"]
    if with_member:
        head.insert(1, "member")
    if with_kernels:
        head.append("kernels")
    cells = []
    for row in rows:
        image = row.image
        line = [
            row.place, visible(row.container.section or "-"), image.kind.value, visible(image.arch or "-"),
            image.compression.value, f"{row.size:,}", f"{image.stored_size:,}",
        ]  # fmt: skip
        if with_member:
            line.insert(1, visible(row.container.member or "-"))
        if with_kernels:
            line.append("damaged" if row.fault else str(row.kernel_count))
        cells.append(line)
    yield from table(head, cells, right=("bytes", "stored", "kernels"))


def _without_resources(rows: Sequence[Row]) -> Iterator[str]:
    """A line about images whose kernels are in no table, unless their container's machine code has them."""
    shown = {row.container.index for row in rows if row.has_resources}
    images = [row for row in rows if row.kernel_count and not row.has_resources and row.container.index not in shown]
    if images:
        kinds = ", ".join(dict.fromkeys(row.image.kind.value for row in images))
        yield ""
        yield f"  {count(len(images), 'image')} ({kinds}) without figures, which only machine code has"


def _covered(coverage: Coverage) -> Iterator[str]:
    total = len(coverage.kernels)
    yield ""
    yield f"  {visible(coverage.arch)}: {coverage.probed:,} of {count(total, 'kernel')} can be probed"
    if coverage.probed < total:
        yield ""
        cells = [[f"{number:,}", reason.word, visible(text)] for reason, text, number in coverage.reasons]
        yield from table(["kernels", "reason", "why not"], cells, right=("kernels",))
    named: list[list[str]] = []
    more = 0
    # Of a vendor's library the reason is the same for all, and says nothing of the kernel.
    for reason in dict.fromkeys(reason for reason, _, _ in coverage.reasons if reason.word != "vendor"):
        kernels = [kernel for kernel in coverage.kernels if kernel.reason is reason]
        more += max(0, len(kernels) - _REASON_DETAILS)
        named += [
            [f"{kernel.container}.{kernel.image}", reason.word, visible(demangle(kernel.name))]
            for kernel in kernels[:_REASON_DETAILS]
        ]
    if named:
        yield ""
        yield from table(["image", "reason", "kernel"], named)
    if more:
        yield f"  … {more:,} more (--json)"
