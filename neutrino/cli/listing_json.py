"""The JSON object that ``neutrino-extract --json`` prints for a file: written image by image, since it may be larger
than memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neutrino.cli.json_writer import JsonWriter
from neutrino.demangle import demangle

if TYPE_CHECKING:
    from neutrino.cli.listing import Row, Shown
    from neutrino.fatbin.code_object import CodeObjectKernel
    from neutrino.fatbin.container import Container
    from neutrino.patched_files.probeable_kernels import Coverage
    from neutrino.sass.resource_usage import FunctionUsage


class JsonListing:
    """Writes the JSON object of one file: ``add`` for each image in order, then ``finish``."""

    def __init__(self, shown: Shown, write: Callable[[str], object]) -> None:
        """Set up a writer of one file's JSON object. write: called with each piece of the text, first by ``add`` or
        ``finish``."""
        self._shown = shown
        self._json = JsonWriter(write)
        self._unwritten = list(reversed(shown.containers))
        """Containers that come after the current one, the next one last."""
        self._container: Container | None = None
        """The container whose list of images is open."""
        self._has_begun = False
        """Whether the members before the containers are written."""

    def add(self, row: Row) -> None:
        """Write an image, and its container's members before the first image of a container."""
        self._begin_file()
        if row.container is not self._container:
            self._end_container()
            self._write_empty_containers(row.container)
            self._begin_container(row.container)
        self._json.value(_image_object(row))

    def finish(self) -> None:
        """Write what follows the last image: empty containers, the coverage, and the end of the object."""
        self._begin_file()
        self._end_container()
        self._write_empty_containers(None)
        # The list of containers ends here, the file's object below.
        self._json.end()
        # What --coverage asks for; it is known after the last image only.
        if self._shown.coverage:
            self._json.key("probes")
            self._json.value(list(self._shown.probes))
            self._json.key("coverage")
            self._json.value([_coverage_object(coverage) for coverage in self._shown.coverage])
        self._json.end()

    def _begin_file(self) -> None:
        """Write the members before the containers. Does nothing when called again."""
        if self._has_begun:
            return
        self._has_begun = True
        shown = self._shown
        self._json.begin_object()
        self._member("file", str(shown.input.path))
        if shown.input.member is not None:
            self._member("member", shown.input.member.name)
        if shown.patched is not None:
            patched = {
                "probes": list(shown.patched.probes), "twins": shown.patched.twins,
                "archs": list(shown.patched.archs), "device": "embedded" if shown.patched.embedded else "gpu",
                "version": shown.patched.maker,
            }  # fmt: skip
            self._member("patched", patched)
        # finish() ends this list.
        self._json.key("containers")
        self._json.begin_list()

    def _begin_container(self, container: Container) -> None:
        """Write a container's members and open its list of images."""
        self._container = container
        self._json.begin_object()
        self._member("index", container.index)
        self._member("kind", container.kind)
        self._member("section", container.section)
        self._member("offset", container.offset)
        self._member("size", container.size)
        if container.member:
            self._member("member", container.member)
        self._json.key("images")
        self._json.begin_list()

    def _end_container(self) -> None:
        """Close the list of images and the object of the current container, if there is one."""
        if self._container is not None:
            # The list, then the object.
            self._json.end()
            self._json.end()
            self._container = None

    def _write_empty_containers(self, following: Container | None) -> None:
        """Write the containers without images that come before a container; None: all that are left.

        Containers with images of which none is selected are left out.
        """
        while self._unwritten:
            container = self._unwritten.pop()
            if container is following:
                return
            if not container.images:
                self._begin_container(container)
                self._end_container()

    def _member(self, name: str, value: Any) -> None:
        """Write a key and its value into the JSON object that is open."""
        self._json.key(name)
        self._json.value(value)


def _image_object(row: Row) -> dict[str, Any]:
    """Return an image's JSON object, with its kernels; resources, output and fault only if it has them."""
    image = row.image
    document: dict[str, Any] = {
        "index": image.index,
        "kind": image.kind.value,
        "arch": image.arch,
        "compression": image.compression.value,
        "size": row.size,
        "stored_size": image.stored_size,
        "kernels": [{"name": name, "demangled": demangle(name)} for name in row.kernels],
    }
    # An image has functions of CUDA or kernels of AMD, never both.
    if row.functions:
        document["resources"] = [_cuda_resources(usage) for usage in row.functions]
    if row.code_objects:
        document["resources"] = [_amd_resources(kernel) for kernel in row.code_objects]
    if row.output:
        document["output"] = row.output
    if row.fault is not None:
        document["fault"] = str(row.fault)
    return document


def _cuda_resources(usage: FunctionUsage) -> dict[str, Any]:
    """Return the JSON object with the resources of a CUDA function: registers per thread, sizes in bytes.

    ``kernel`` says whether it is a kernel, not a device function. ``constants`` has the size of each constant bank.
    """
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


def _amd_resources(kernel: CodeObjectKernel) -> dict[str, Any]:
    """Return the JSON object with the resources of an AMD kernel: registers, sizes in bytes, threads."""
    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        # AMD's metadata has kernels only.
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


def _coverage_object(coverage: Coverage) -> dict[str, Any]:
    """Return the JSON object of --coverage for one architecture: which kernels can be probed, why others cannot."""
    from neutrino.patched_files.sample import CONFIDENCE, SEED, interval

    sample = {}
    if coverage.is_sample:
        low, high = interval(coverage.probed, len(coverage.kernels))
        share = {"low": low, "high": high, "confidence": CONFIDENCE}
        sample = {"sample": {"of": coverage.of, "seed": SEED, "share": share}}
    return {
        "arch": coverage.arch,
        "total": len(coverage.kernels),
        **sample,
        "can_be_probed": coverage.probed,
        "of_machine_code": coverage.of_machine_code,
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
