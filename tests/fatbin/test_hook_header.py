"""Whether the hook sees in an image's headers if it holds PTX, as the reader does that reads all of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cffi import FFI
from fatbin_inputs import run

from neutrino.fatbin import ImageKind, read_file
from neutrino.loader import build
from neutrino.loader.interface import declarations
from neutrino.sass.cubin import read_cubin

_KERNEL = "__global__ void scale(float *x) { x[threadIdx.x] *= 2; }\n"
_ALONE = ("-gencode=arch=compute_80,code=sm_80",)
_PACKED = ("-Xfatbin=-compress-all",)
_BUILDS = {
    "packed": (*_ALONE, *_PACKED),
    "packed, lines": (*_ALONE, *_PACKED, "-lineinfo"),
    "packed by LZ4, lines": (*_ALONE, *_PACKED, "--compress-mode=speed", "-lineinfo"),
    "packed, debug": (*_ALONE, *_PACKED, "-G"),
    "lines": (*_ALONE, "-lineinfo"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "scale.cu"
    path.write_text(_KERNEL)
    return path


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> tuple[FFI, object]:
    library = tmp_path_factory.mktemp("hook") / "bytes.so"
    folder = Path(build.__file__).parent / "csrc"
    options = ("-std=gnu11", "-D_GNU_SOURCE", f"-I{folder}", "-shared", "-fPIC")
    argv = [*build.compiler(), *options, folder / "image" / "image_bytes.c", "-o", library]
    subprocess.run(list(map(str, argv)), check=True)
    ffi = FFI()
    ffi.cdef(declarations("image/image_bytes.h"))
    return ffi, ffi.dlopen(str(library))


def sees_ptx(hook: tuple[FFI, object], image: bytes) -> bool:
    ffi, library = hook
    measured = ffi.new("struct nt_image_bytes *")
    assert library.nt_image_bytes_measure(ffi.from_buffer(image), len(image), measured)
    assert measured.size == len(image)
    return bool(measured.has_text)


@pytest.mark.parametrize("name", _BUILDS)
def test_the_hook_sees_what_the_reader_finds(name, hook, source, nvcc, tmp_path):
    fatbin = tmp_path / "k.fatbin"
    run(nvcc, "-fatbin", *_BUILDS[name], "-o", fatbin, source)
    (image,) = read_file(fatbin)[0].images
    assert image.kind is ImageKind.CUBIN
    has_ptx = read_cubin(image.data, name).debug_ptx is not None
    assert has_ptx == ("lines" in name or "debug" in name)
    assert sees_ptx(hook, fatbin.read_bytes()) == has_ptx


def test_what_the_device_linker_makes_holds_no_ptx(hook, source, nvcc, tmp_path):
    """It links machine code that has line information, and keeps the PTX of none."""
    run(nvcc, "-rdc=true", "-lineinfo", *_ALONE, "-c", source, "-o", tmp_path / "unit.o")
    run(nvcc, "-dlink", "-fatbin", *_ALONE, *_PACKED, tmp_path / "unit.o", "-o", tmp_path / "linked.fatbin")
    images = read_file(tmp_path / "linked.fatbin")[0].images
    assert [image.kind for image in images] == [ImageKind.CUBIN]
    assert read_cubin(images[0].data, "linked").debug_ptx is None
    assert not sees_ptx(hook, (tmp_path / "linked.fatbin").read_bytes())
