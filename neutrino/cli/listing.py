"""What ``neutrino-extract`` prints of one file: tables for people, an object for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.cli.streams import visible
from neutrino.cli.table import count, table
from neutrino.fatbin.demangle import demangle

if TYPE_CHECKING:
    from neutrino.ahead.coverage import Coverage
    from neutrino.ahead.patched import Patched
    from neutrino.errors import FormatError
    from neutrino.fatbin.code_object import CodeObjectKernel
    from neutrino.fatbin.container import Container
    from neutrino.fatbin.contents import Contents
    from neutrino.fatbin.image import Image
    from neutrino.fatbin.inputs import Input
    from neutrino.fatbin.resource_usage import FunctionUsage

_REASON_DETAILS = 20
"""Kernels named one by one under --coverage, for each reason; --json has all."""


@dataclass
class Row:
    """An image as it is shown. decoded: its bytes when decoded, None where it was not looked into. kernels, functions,
    code_objects: those that are shown. fault: what is wrong with it. output: the file it was written to, "" if none.
    """

    container: Container
    image: Image
    decoded: int | None = None
    kernels: tuple[str, ...] = ()
    functions: tuple[FunctionUsage, ...] = ()
    code_objects: tuple[CodeObjectKernel, ...] = ()
    fault: FormatError | None = None
    output: str = ""

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


@dataclass
class Shown:
    """What is known of one file, and shown. containers: all of them, rows: the images that are shown.

    coverage: by architecture, for the probes of these names.
    """

    input: Input
    containers: Sequence[Container]
    rows: list[Row]
    patched: Patched | None = None
    coverage: list[Coverage] = field(default_factory=list)
    probes: Sequence[str] = ()


def document(shown: Shown) -> dict[str, Any]:
    """The file's object of ``--json``."""
    member = shown.input.member
    found: dict[str, Any] = {"file": str(shown.input.path)}
    if member is not None:
        found["member"] = member.name
    by_container: dict[int, list[Row]] = {}
    for row in shown.rows:
        by_container.setdefault(row.container.index, []).append(row)
    if shown.patched is not None:
        found["patched"] = {
            "probes": list(shown.patched.probes), "twins": shown.patched.twins,
            "archs": list(shown.patched.archs), "device": "embedded" if shown.patched.embedded else "gpu",
            "version": shown.patched.maker,
        }  # fmt: skip
    found["containers"] = [
        _container(container, by_container.get(container.index, []))
        for container in shown.containers
        if container.index in by_container or not container.images
    ]
    if shown.coverage:
        found["probes"] = list(shown.probes)
        found["coverage"] = [_coverage(coverage) for coverage in shown.coverage]
    return found


def _container(container: Container, rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": container.index,
        "kind": container.kind,
        "section": container.section,
        "offset": container.offset,
        "size": container.size,
    }
    if container.member:
        found["member"] = container.member
    found["images"] = [_image(row) for row in rows]
    return found


def _image(row: Row) -> dict[str, Any]:
    image = row.image
    found: dict[str, Any] = {
        "index": image.index,
        "kind": image.kind.value,
        "arch": image.arch,
        "compression": image.compression.value,
        "size": row.size,
        "stored_size": image.stored_size,
        "kernels": [{"name": name, "demangled": demangle(name)} for name in row.kernels],
    }
    if row.functions:
        found["resources"] = [_usage(usage) for usage in row.functions]
    if row.code_objects:
        found["resources"] = [_registers(kernel) for kernel in row.code_objects]
    if row.output:
        found["output"] = row.output
    if row.fault is not None:
        found["fault"] = str(row.fault)
    return found


def _usage(usage: FunctionUsage) -> dict[str, Any]:
    return {
        "name": usage.name,
        "demangled": demangle(usage.name),
        "kernel": usage.kernel,
        "registers": usage.registers,
        "stack": usage.stack,
        "shared": usage.shared,
        "local": usage.local,
        "constants": {str(bank): size for bank, size in usage.constants.items()},
        "textures": usage.textures,
        "surfaces": usage.surfaces,
        "samplers": usage.samplers,
    }


def _registers(kernel: CodeObjectKernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        "kernel": True,
        "vgprs": kernel.vgprs,
        "sgprs": kernel.sgprs,
        "agprs": kernel.agprs,
        "lds": kernel.group_segment,
        "scratch": kernel.private_segment,
        "kernarg": kernel.kernarg_segment,
        "wavefront": kernel.wavefront_size,
        "max_workgroup": kernel.max_workgroup_size,
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "arch": coverage.arch,
        "total": len(coverage.kernels),
        "can_be_probed": coverage.probed,
        "reasons": [
            {"reason": reason.word, "detail": text, "kernels": number} for reason, text, number in coverage.reasons
        ],
        "kernels": [
            {
                "name": kernel.name,
                "demangled": demangle(kernel.name),
                "container": kernel.container,
                "image": kernel.image,
                "arch": kernel.arch,
                "can_be_probed": kernel.probed,
                "reason": None if kernel.probed else kernel.reason.word,
                "detail": kernel.detail,
                "sites": kernel.sites,
            }
            for kernel in coverage.kernels
        ],
    }


def lines(shown: Shown, *, kernels: bool, resources: bool) -> Iterator[str]:
    """The file's tables, line by line. kernels, resources: whether these were asked for."""
    rows = shown.rows
    containers = len({row.container.index for row in rows})
    names = {(row.container.index, name) for row in rows for name in row.kernels}
    counts = [count(containers, "container"), count(len(rows), "image")]
    if any(row.decoded is not None for row in rows):
        counts.append(count(len(names), "kernel"))
    yield f"{visible(shown.input.name)}: {', '.join(counts)}"
    if shown.patched is not None:
        yield from _patched(shown.patched)
    if shown.coverage:
        for coverage in shown.coverage:
            yield from _covered(coverage)
        yield ""
        yield f"  asked with {visible(', '.join(shown.probes))}; nothing was assembled: ptxas and the check of the"
        yield "  arithmetic have the last word (neutrino-patch --dry-run)"
        return
    yield ""
    yield from _images(rows)
    if resources:
        yield from _cuda_resources(rows)
        yield from _amd_resources(rows)
        yield from _without_resources(rows)
    # A table of resources names the kernels as well, but not those of images without figures.
    if kernels and any(row.kernels and not (resources and _has_resources(row)) for row in rows):
        yield ""
        yield from _kernels(rows)


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
            line.append("damaged" if row.fault else str(len(row.kernels)))
        cells.append(line)
    yield from table(head, cells, right=("bytes", "stored", "kernels"))


def _kernels(rows: Sequence[Row]) -> Iterator[str]:
    homes: dict[tuple[int, str], dict[str, list[str]]] = {}
    for row in rows:
        for name in row.kernels:
            forms = homes.setdefault((row.container.index, name), {})
            forms.setdefault(row.image.kind.value, []).append(visible(row.image.arch or "-"))
    cells = []
    for (container, name), forms in homes.items():
        images = "; ".join(f"{kind} {', '.join(archs)}" for kind, archs in forms.items())
        cells.append([str(container), images, visible(demangle(name))])
    yield from table(["container", "in", "kernel"], cells)


def _cuda_resources(rows: Sequence[Row]) -> Iterator[str]:
    found = [(row, usage) for row in rows for usage in row.functions]
    if not found:
        return
    banks = sorted({bank for _, usage in found for bank in usage.constants})
    head = ["image", "arch", "REG", "STACK", "SHARED", "LOCAL", *(f"CONSTANT[{bank}]" for bank in banks)]
    head += ["TEXTURE", "SURFACE", "SAMPLER", "function"]
    cells = [
        [
            row.place, row.image.arch or "-", str(usage.registers), str(usage.stack), str(usage.shared),
            str(usage.local), *(str(usage.constants[bank]) if bank in usage.constants else "-" for bank in banks),
            str(usage.textures), str(usage.surfaces), str(usage.samplers), visible(demangle(usage.name)),
        ]
        for row, usage in found
    ]  # fmt: skip
    yield ""
    yield from table(head, cells, right=head[2:-1])


def _amd_resources(rows: Sequence[Row]) -> Iterator[str]:
    found = [(row, kernel) for row in rows for kernel in row.code_objects]
    if not found:
        return
    head = ["image", "arch", "VGPR", "SGPR", "AGPR", "LDS", "scratch", "kernarg", "wave", "kernel"]
    cells = [
        [
            row.place, visible(row.image.arch or "-"), str(kernel.vgprs), str(kernel.sgprs),
            "-" if kernel.agprs is None else str(kernel.agprs), str(kernel.group_segment),
            f"{kernel.private_segment}{'+' if kernel.dynamic_stack else ''}", str(kernel.kernarg_segment),
            str(kernel.wavefront_size), visible(demangle(kernel.name)),
        ]
        for row, kernel in found
    ]  # fmt: skip
    yield ""
    yield from table(head, cells, right=head[2:-1])


def _has_resources(row: Row) -> bool:
    return bool(row.functions or row.code_objects)


def _without_resources(rows: Sequence[Row]) -> Iterator[str]:
    """A word on images whose kernels are in no table, unless their container's machine code has them."""
    told = {row.container.index for row in rows if _has_resources(row)}
    images = [row for row in rows if row.kernels and not _has_resources(row) and row.container.index not in told]
    if images:
        kinds = ", ".join(dict.fromkeys(row.image.kind.value for row in images))
        yield ""
        yield f"  {count(len(images), 'image')} ({kinds}) without figures: they are known of machine code only"


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
