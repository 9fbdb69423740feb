"""The assembly text of AMD's code objects: what their reader finds, given to what writes text."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

from neutrino.demangle import demangle
from neutrino.errors import FormatError
from neutrino.fatbin.code_object import NOTE_OWNER, NT_AMDGPU_METADATA, Metadata, unpacked
from neutrino.fatbin.code_object_functions import CodeFunctions, code_object_functions
from neutrino.fatbin.code_object_lines import notes, source_lines
from neutrino.gcn.code import decode_each, split_target
from neutrino.gcn.listing import Encodings, Notes, layout_of, listing
from neutrino.gcn.llvm import Llvm, find_llvm

_E_FLAGS = 0x30
"""Offset of that field in the ELF header."""
_RESOURCES = (
    (".vgpr_count", "VGPR"), (".agpr_count", "AGPR"), (".sgpr_count", "SGPR"), (".vgpr_spill_count", "spilled VGPR"),
    (".sgpr_spill_count", "spilled SGPR"),
)  # fmt: skip
_SIZES = (
    (".group_segment_fixed_size", "LDS"), (".private_segment_fixed_size", "scratch"),
    (".kernarg_segment_size", "arguments"),
)  # fmt: skip


def code_object_text(data: bytes, name: str, kernels: Collection[str] | None = None) -> Iterator[str]:
    """Yield the lines of a code object's assembly text, without line ends: with labels, symbols, source lines and what
    the metadata say of each kernel. It assembles to the same bytes.

    name: for error messages. kernels: mangled names, for the text of these alone; None: all code. Raises FormatError
    for a damaged code object, ToolMissingError without AMD's LLVM or pyelftools.
    """
    found = code_object_functions(data, name, unnamed=kernels is None)
    processor, features = split_target(found.target)
    if not processor:
        raise FormatError(name, _E_FLAGS, "processor in e_flags and metadata", "unknown", "one of AMD's, as gfx942")
    llvm = find_llvm(processor)
    chosen = found.functions if kernels is None else [row for row in found.functions if row.name in kernels]
    functions = decode_each(chosen, processor, features, llvm)
    yield from listing(functions, layout_of(chosen, found.target), _encodings(llvm), _notes(data, name, found))


@functools.cache
def _encodings(llvm: Llvm) -> Encodings:
    """Return what the texts of instructions assemble to, which all code objects of a run share."""
    return Encodings(llvm)


def _notes(data: bytes, name: str, found: CodeFunctions) -> Notes:
    """Return what is written beside the code. Raises ToolMissingError without pyelftools."""
    comments: dict[str, list[str]] = {}
    for owner, kind, content in notes(data, name):
        # pyelftools has no name for the type of AMD's note.
        if owner == NOTE_OWNER.rstrip(b"\0").decode() and kind == NT_AMDGPU_METADATA:
            for kernel in unpacked(content, name, 0).maps("amdhsa.kernels"):
                comments[kernel.text(".name")] = list(_kernel_comments(kernel))
            break
    try:
        sources = source_lines(data, name)
    except FormatError as error:
        # The code is worth showing without.
        sources = {}
        for function in found.functions:
            comments.setdefault(function.name, []).append(f"no source lines: {error}")
    names = {function.name: demangle(function.name) for function in found.functions}
    return Notes(found.variables, _where_they_change(sources), comments, names)


def _where_they_change(sources: Mapping[int, str]) -> dict[int, str]:
    """Return the rows that differ from the one before: tables have one for each column, too."""
    changed: dict[int, str] = {}
    last = ""
    for address, source in sorted(sources.items()):
        if source != last and source:
            changed[address] = source
        last = source
    return changed


def _kernel_comments(kernel: Metadata) -> Iterator[str]:
    """Yield what the metadata say of a kernel. Raises FormatError for malformed ones."""
    counts = [
        f"{count} {word}{'s' * (count != 1)}" for key, word in _RESOURCES if (count := kernel.optional_number(key))
    ]
    sizes = [f"{word} {size} bytes" for key, word in _SIZES if (size := kernel.optional_number(key))]
    wave = kernel.optional_number(".wavefront_size")
    threads = kernel.optional_number(".max_flat_workgroup_size")
    lanes = [f"waves of {wave}"] if wave else []
    groups = [f"work-groups of up to {threads}"] if threads else []
    yield ", ".join([*counts, *sizes, *lanes, *groups])
    hidden = []
    for argument in kernel.maps(".args"):
        label = argument.text(".name", "") or argument.text(".value_kind", "argument")
        kind = argument.text(".value_kind", "")
        if kind.startswith("hidden_"):
            hidden.append(argument.number(".offset"))
            continue
        size, offset = argument.number(".size"), argument.number(".offset")
        yield f"argument at {offset}: {label}, {size} bytes{f', {kind}' if kind != label else ''}"
    if hidden:
        yield f"arguments of the runtime from {min(hidden)} on: {len(hidden)}"
