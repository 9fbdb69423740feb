"""What is fuzzed: one function per way into the parsers, and what each must keep to whatever it is given.

A target returns the bytes that its input claims to decode to, which it may allocate; it raises FormatError for what
is not valid, and ``ContradictionError`` when a reading contradicts itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError, PatchError
from neutrino.fatbin import Container, ImageKind, build_container, kernel_names, read_container, read_file
from neutrino.fatbin import write_container as write
from neutrino.fatbin.code_object import code_object_kernel_names, code_object_target, read_code_object
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.fatbin.compression import MAX_DECODED
from neutrino.fatbin.offload_binary import read_offload_binaries
from neutrino.fatbin.ptxscan import is_ptx, ptx_entries, ptx_target
from neutrino.fatbin.wheel import MAX_MEMBER, decode, first_bytes, read_members
from neutrino.patched_files.appended import LARGEST_GAP
from neutrino.patched_files.attach import attach
from neutrino.patched_files.check import check_file
from neutrino.patched_files.restore import restore
from neutrino.patched_files.section import read_section
from neutrino.sass.cubin import cubin_arch, cubin_compatibility, cubin_kernel_names, read_cubin
from neutrino.sass.resource_usage import resource_usage
from neutrino.twins.cache_entry import DIGESTED_FROM, read_entry
from tests.fuzz import seeds

NAME = "input"
_THIN = b"!<thin>\n"


class ContradictionError(AssertionError):
    """A reading that contradicts its input or another reading of it."""


@dataclass(frozen=True)
class Target:
    """A way into the parsers. run: as the module says. seeds: valid inputs."""

    name: str
    run: Callable[[bytes], int]
    seeds: Callable[[], list[bytes]]


def _must(condition: bool, what: str) -> None:
    """Raise ContradictionError, which ends the fuzzing, unless a condition holds that a parser's result must meet.

    what: in words.
    """
    if not condition:
        raise ContradictionError(what)


def _images(container: Container) -> int:
    """Ask for everything that can be asked of a container's images. Returns the bytes that they claim to decode to."""
    claimed = 0
    for image in container.images:
        claimed = max(claimed, min(image.decoded_size, MAX_DECODED))
        try:
            data = image.data
            # What only NVIDIA's tools decode has the decoded size and the stored bytes.
            _must(image.obfuscated or len(data) == image.size, f"size {image.size} of {len(data)} bytes")
            kernel_names(image)
            if image.kind is ImageKind.CUBIN:
                read_cubin(data, NAME)
            elif image.kind is ImageKind.CODE_OBJECT:
                read_code_object(data, NAME)
        except FormatError:
            continue
    return claimed


def _container(data: bytes) -> int:
    """Read a container of GPU code and write it back.

    Returns the bytes that its images claim to decode to; raises FormatError for what is not valid.
    """
    container = read_container(data, NAME)
    _must(write(container) == data, "written back differently")
    _must(0 <= container.size <= len(data), f"container of {container.size} bytes")
    return _images(container)


@contextmanager
def _in_memory(data: bytes) -> Iterator[Path]:
    """Provide a file with these bytes that never reaches a disk; yields its path."""
    descriptor = os.memfd_create(NAME)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def _folder() -> Iterator[Path]:
    """Provide an empty folder in memory, removed at the end; yields its path."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _file(data: bytes) -> int:
    """Find all GPU code in a file, as the tools do.

    Returns the bytes that images claim to decode to; raises FormatError for what is not valid.
    """
    claimed = 0
    try:
        with _in_memory(data) as path:
            for container in read_file(path):
                if _THIN in data and container.member:
                    # What lies in a file that a thin archive names is not in the input.
                    claimed = max(claimed, _images(container))
                    continue
                begin, end = container.offset, container.offset + container.size
                _must(0 <= begin <= end <= len(data), f"container from {begin} to {end} of {len(data)} bytes")
                _must(write(container) == data[begin:end], "written back differently")
                claimed = max(claimed, _images(container))
    except OSError:
        # A thin archive names files, which may not be there.
        _must(_THIN in data, "an operating system's error without a path in the input")
    return claimed


def _host(data: bytes) -> int:
    """Patch a library, and restore it: the same bytes must come back.

    Returns 0, as nothing is decoded; may raise FormatError.
    """
    section = seeds.sections()[1]
    with _in_memory(data) as path, _folder() as folder:
        try:
            attach(path, folder / "patched", [section], "libneutrino.so")
        except PatchError:
            _must(not list(folder.iterdir()), "a file in spite of the error")
            return 0
        size = (folder / "patched").stat().st_size
        _must(size < len(data) + LARGEST_GAP + (1 << 22), f"{len(data)} bytes became {size}")
        restore(folder / "patched", folder / "restored")
        _must((folder / "restored").read_bytes() == data, "restored differently")
    return 0


def _patched(data: bytes) -> int:
    """Check and restore a file that claims to be patched. Returns 0, as nothing is decoded; may raise FormatError."""
    with _in_memory(data) as path, _folder() as folder:
        check_file(path)
        try:
            restore(path, folder / "restored")
        except PatchError:
            _must(not list(folder.iterdir()), "a file in spite of the error")
    return 0


def _wheel(data: bytes) -> int:
    """Read the members of a wheel (a ZIP file).

    Returns the most bytes that one claims; raises FormatError for what is not valid.
    """
    claimed = 0
    for member in read_members(memoryview(data), NAME):
        claimed = max(claimed, min(member.size, MAX_MEMBER))
        try:
            first = first_bytes(member, 64)
            target = io.BytesIO()
            if member.compressed:
                decode(member, target)
                _must(target.getvalue()[: len(first)] == first, "two beginnings of a member")
                _must(len(target.getvalue()) == member.size, "another size")
        except FormatError:
            continue
    return claimed


def _cubin(data: bytes) -> int:
    """Read a cubin (NVIDIA's machine code) in several ways, which must agree.

    Returns 0, as nothing is decoded; may raise FormatError.
    """
    cubin = read_cubin(data, NAME)
    _must(cubin.arch == cubin_arch(data, NAME), "two architectures")
    _must(set(cubin.kernels) == set(cubin_kernel_names(data, NAME)), "two lists of kernels")
    cubin_compatibility(data, NAME)
    return 0


def _usage(data: bytes) -> int:
    """Read what kernels of a cubin use of registers and memory.

    Returns 0, as nothing is decoded; may raise FormatError.
    """
    usage = resource_usage(data, NAME)
    _must(all(function.name.encode("latin-1") in data for function in usage.functions), "a function that is not there")
    return 0


def _code_object(data: bytes) -> int:
    """Read an AMD code object in several ways, which must agree.

    Returns 0, as nothing is decoded; may raise FormatError.
    """
    code_object = read_code_object(data, NAME)
    _must(code_object.target in ("", code_object_target(data, NAME)), "two targets")
    _must(set(code_object.kernels) == set(code_object_kernel_names(data, NAME)), "two lists of kernels")
    try:
        functions = code_object_functions(data, NAME, unnamed=True).functions
    except FormatError:
        # The kernels' figures are read without their code.
        return 0
    kernels = {function.name for function in functions if function.is_kernel}
    _must(kernels == set(code_object.kernels), "two lists of kernels' code")
    return 0


def _ptx(data: bytes) -> int:
    """Read target and kernels of a PTX text. Returns 0, as nothing is decoded; may raise FormatError."""
    is_ptx(data)
    ptx_target(data)
    names = ptx_entries(data)
    _must(all(name.encode("latin-1") in data for name in names), "a kernel that is not in the text")
    return 0


_FLAGS = struct.Struct("<QIII")


def _entry(data: bytes) -> int:
    """Read a container of one entry whose sizes are made right, so that the fuzzer comes to the decoding of entries.

    Flags, kind and decoded size are from the input, all else is payload. Returns as ``_container``.
    """
    head = data[: _FLAGS.size].ljust(_FLAGS.size, b"\0")
    flags, kind, size, cut = _FLAGS.unpack(head)
    kind &= 0xFFFF
    payload = data[_FLAGS.size :]
    payload += bytes(-len(payload) % 8)
    stored = max(0, len(payload) - cut % 16)
    header = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x0101, 64, len(payload), stored, 0, 0, 8, 90, 0, 0, flags, 0, size)
    return _container(build_container([header + payload]))


def _offload(data: bytes) -> int:
    """Read a section of offload binaries (LLVM's container) and write them back.

    Returns 0; raises FormatError for what is not valid.
    """
    for container in read_offload_binaries(Cursor(memoryview(data), NAME), ".llvm.offloading"):
        begin, end = container.offset, container.offset + container.size
        _must(0 <= begin <= end <= len(data), f"container from {begin} to {end} of {len(data)} bytes")
        _must(write(container) == data[begin:end], "written back differently")
        _images(container)
    return 0


def _entry_seeds() -> list[bytes]:
    """Return valid inputs for the fuzz target ``_entry``: four numbers from the header of an entry of a fatbin, then
    the entry's payload.
    """
    made = []
    for entry in seeds.entries():
        (kind, _, header, payload, stored) = struct.unpack_from("<HHIQI", entry)
        (flags, _, size) = struct.unpack_from("<QQQ", entry, 0x28)
        # 64: the size of the headers that ``_entry`` writes.
        if header == 64 and payload:
            # How much of the payload is padding. stored: its bytes without that; 0 if it is not compressed.
            cut = payload - (stored or payload)
            made.append(_FLAGS.pack(flags, kind, size, cut) + entry[header:])
    return made


def _cursor(data: bytes) -> int:
    """Read with a bounds-checked Cursor and with slices, as the input says, and compare the two. Returns 0."""
    view = memoryview(data)
    half = len(data) // 2
    cursor = Cursor(view, NAME, start=half // 2, end=len(data) - half // 2)
    for step in range(0, half, 9):
        operation = data[step] % 4
        (argument,) = struct.unpack("<Q", data[step + 1 : step + 9].ljust(8, b"\0"))
        before = cursor.position
        try:
            if operation == 0:
                _must(cursor.take(argument, "bytes") == data[before : before + argument], "other bytes")
                _must(cursor.position == before + argument, "another position")
            elif operation == 1:
                width = 1 << argument % 4
                _must(cursor.integer(width, "number") == int.from_bytes(data[before : before + width], "little"),
                      "another number")  # fmt: skip
            elif operation == 2:
                cursor.seek(argument, "place")
            else:
                cursor.take(-(argument >> 1), "bytes")
        except FormatError as error:
            _must(cursor.position == before, "moved by what failed")
            _must(error.offset == before, "an error elsewhere")
        _must(cursor.start <= cursor.position <= cursor.end, "out of range")
    return 0


def _section(data: bytes) -> int:
    """Read the section of a patched file.

    Returns 0, as nothing is decoded; raises FormatError for what is not valid.
    """
    section = read_section(data, NAME)
    _must(0 <= section.size <= len(data), f"section of {section.size} bytes")
    _must(all(row.entry < len(section.entries) for row in section.rows), "a row without its entry")
    for entry in section.entries:
        try:
            read_entry(bytes(entry), NAME)
        except FormatError:
            continue
    return 0


def _twins(data: bytes) -> int:
    """Read a cache entry whose digest is made right whatever it holds, as no change would get past a wrong one.

    Returns 0; may raise FormatError.
    """
    digest = hashlib.sha256(data[DIGESTED_FROM:]).digest()
    data = data[: DIGESTED_FROM - 32] + digest + data[DIGESTED_FROM:]
    entry = read_entry(data, NAME)
    _must(all(image in data for image in entry.images), "an image that is not in the entry")
    return 0


TARGETS = {
    target.name: target
    for target in (
        Target("container", _container, seeds.containers),
        Target("bundle", _container, seeds.bundles),
        Target("file", _file, seeds.hosts),
        Target("cubin", _cubin, lambda: [seeds.cubin(), seeds.cubin(new=False)]),
        Target("usage", _usage, lambda: [seeds.cubin(), seeds.cubin(new=False)]),
        Target("code-object", _code_object, lambda: [seeds.code_object()]),
        Target("entry", _entry, _entry_seeds),
        Target("offload-binary", _offload, seeds.offload_binaries),
        Target("host", _host, seeds.dynamic_hosts),
        Target("patched", _patched, seeds.patched_hosts),
        Target("wheel", _wheel, seeds.wheels),
        Target("section", _section, seeds.sections),
        Target("twins", _twins, lambda: [seeds.twins(2), seeds.twins(0)]),
        Target("ptx", _ptx, lambda: [seeds.PTX, *(line for line in seeds.PTX.splitlines() if line)]),
        Target("cursor", _cursor, lambda: [bytes(range(64)), b"\1" * 99]),
    )
}
"""By name. What is read from files that others made comes first."""
