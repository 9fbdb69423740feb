"""The light scan of PTX text: names, targets and versions, whatever stands around them."""

from __future__ import annotations

import re

import pytest
from fatbin_inputs import PTX
from hypothesis import given
from hypothesis import strategies as st

from neutrino.fatbin import ImageKind, read_file
from neutrino.fatbin.ptxscan import is_ptx, ptx_entries, ptx_target, ptx_version, with_ptx_version
from neutrino.sass.cubin import read_cubin
from tests.work import counted

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
    """Nothing counts the steps of a regular expression; the square of this many would not end."""
    text = unit * (1 << 20)
    is_ptx(text)
    ptx_target(text)
    ptx_entries(text)


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


def test_the_calls_for_a_kernel_are_few():
    """Only the line before its name is looked at, and nothing of its body."""
    kernels = 2_000
    text = PTX.format(arch="sm_90").encode() * kernels
    longer = text.replace(b"{", b"{" + b"\n    mov.u32 %r1, %r2;" * 50)
    assert len(longer) > 2 * len(text)
    calls = []
    for each in (text, longer):
        with counted() as work:
            ptx_entries(each)
        calls.append(work.calls)
    assert calls[0] == calls[1] < 20 * kernels
