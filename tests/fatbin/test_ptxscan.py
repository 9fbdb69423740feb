"""The light scan of PTX text: names, targets and versions, whatever stands around them."""

from __future__ import annotations

import re
import time

import pytest
from fatbin_inputs import PTX
from hypothesis import given
from hypothesis import strategies as st

from neutrino.fatbin import ImageKind, read_file
from neutrino.fatbin.ptxscan import is_ptx, ptx_entries, ptx_target, ptx_version, with_ptx_version
from neutrino.sass.cubin import read_cubin

DECOYS = [
    "// .entry commented( .version 1.0",
    "/* .entry block( \n .target sm_20 */",
    '.file 1 "a .entry string( .target sm_20"',
    '.pragma "escaped \\" .entry quote(";',
    "//* .entry line( not a block",
    ".entrypoint other(",
    ".reg .b32 entry;",
    "$L__entry: bra $L__entry;",
    '// a stray " quote',
    "/**/",
    "/***/",
    '/* a stray " in a comment */',
]
SPACES = [" ", "\t", "\n", "\r\n  ", " // why\n", " /* because */ ", " /***/\n// both\n\t"]
NAMES = st.from_regex(r"\A[A-Za-z_$%][A-Za-z0-9_$]{0,12}\Z")


@given(
    names=st.lists(NAMES, unique=True, max_size=6),
    decoys=st.lists(st.sampled_from(DECOYS), min_size=7, max_size=7),
    spaces=st.lists(st.sampled_from(SPACES), min_size=7, max_size=7),
    head=st.lists(st.sampled_from(["\n", "  ", "// nvcc\n", "/* long\n */"]), max_size=4),
)
def test_only_kernels_are_found(names, decoys, spaces, head):
    parts = [*head, f".version{spaces[-2]}8.10\n", decoys[-1], "\n.target", spaces[-1], "sm_90a, debug\n"]
    for name, decoy, space in zip(names, decoys, spaces, strict=False):
        parts += [decoy, f"\n.visible .entry{space}{name}(\n)\n{{ ret; }}\n"]
    text = "".join(parts).encode()
    assert is_ptx(text)
    assert is_ptx(memoryview(text))
    assert ptx_entries(text) == tuple(names)
    assert ptx_target(memoryview(text)) == "sm_90a"
    assert ptx_version(memoryview(text)) == (8, 10)
    assert ptx_version(decoys[0].encode() + b"\n" + with_ptx_version(text, (7, 4))) == (7, 4)
    assert ptx_version(decoys[0].encode()) is None


def test_a_name_declared_twice_counts_once():
    assert ptx_entries(b".entry a(); .entry b() { ret; } .weak .entry a() { ret; }") == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"version 8.0",
        b".versions",
        b"// .version 8.0",
        b"/* .version 8.0",
        b"x .version 8.0",
        b"\xff\xfe",
    ],
)
def test_what_is_no_ptx(text):
    assert not is_ptx(text)


@given(st.text(alphabet='/*". \n\\aentry(', max_size=200))
def test_any_text_can_be_scanned(text):
    data = text.encode()
    is_ptx(data)
    ptx_target(data)
    stripped = re.sub(rb'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"?', b" ", data, flags=re.DOTALL)
    assert set(ptx_entries(data)) <= {name.decode() for name in re.findall(rb"[A-Za-z_$%][\w$]*", stripped)}


@pytest.mark.parametrize(
    "unit", [b"/*", b"/* *", b"//", b'"', b'"\\', b".entry ", b".entry /*", b".entry/**/", b"\n \n", b"/**/"]
)
def test_time_is_linear_in_hostile_text(unit):
    text = unit * (1 << 18)
    begin = time.process_time()
    is_ptx(text)
    ptx_target(text)
    ptx_entries(text)
    assert time.process_time() - begin < 5


def test_the_kernels_of_nvcc(fatbins):
    """PTX and the cubin made of it name the same kernels, in every build that has both."""
    compared = 0
    for path in fatbins.values():
        images = read_file(path)[0].images
        cubins = {image.arch: image.data for image in images if image.kind is ImageKind.CUBIN}
        for image in images:
            if image.kind is ImageKind.PTX and image.arch in cubins:
                compared += 1
                assert set(ptx_entries(image.data)) == set(read_cubin(cubins[image.arch], "cubin").kernels)
                assert ptx_target(image.data) == image.arch
    assert compared >= 20


def test_speed():
    """Far above 10 MB/s; the bound is loose, as other work may share the machine."""
    text = (PTX.format(arch="sm_90") * 20_000).encode()
    taken = []
    for _ in range(3):
        begin = time.process_time()
        ptx_entries(text)
        taken.append(time.process_time() - begin)
    assert len(text) / min(taken) > 20e6
