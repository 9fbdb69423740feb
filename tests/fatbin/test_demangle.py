"""Names, judged by c++filt."""

from __future__ import annotations

import ctypes
import subprocess

from fatbin_inputs import need
from hypothesis import given
from hypothesis import strategies as st

from neutrino.demangle import demangle
from neutrino.fatbin import kernel_names, read_file

NAMES = [
    "_Z6smoothIfEvPT_S0_l",
    "_ZN5space6gatherENS_5PointEPfcsc",
    "_Z6hiddenPi",
    "_ZN12_GLOBAL__N_16kernelEv",
    "vadd",
    "f",
    "i",
    "_Znot_a_name",
    "_Z",
    "",
]


def test_as_cxxfilt():
    filt = need("c++filt")
    # By default c++filt too reads only what begins with _Z; a type such as "i" it would read with -t.
    said = subprocess.run([filt], input="\n".join(NAMES), capture_output=True, text=True, check=True).stdout
    assert [demangle(name) for name in NAMES] == said.split("\n")


def test_kernels_of_nvcc(fatbins):
    names = kernel_names(read_file(fatbins["default"])[0].images[0])
    assert {demangle(name) for name in names} >= {
        "vadd",
        "void smooth<float>(float*, float, long)",
        "space::gather(space::Point, float*, char, short, char)",
        "hidden(int*)",
    }


@given(st.text(max_size=30) | st.text("_ZN0123456789abcESt\0", max_size=30).map("_Z".__add__))
def test_any_text_has_a_name(name):
    assert isinstance(demangle(name), str)


def test_without_the_library(monkeypatch):
    from neutrino.demangle import _names

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    _names.cache_clear()
    try:
        assert demangle("_Z6hiddenPi") == "_Z6hiddenPi"
    finally:
        _names.cache_clear()
