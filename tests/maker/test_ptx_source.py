"""Which machine code a device runs, and whose PTX a twin may be made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend.ptx_source import compiles_for, find_source, runs_on, stored_options
from neutrino.errors import FormatError
from neutrino.fatbin import ImageKind, build_container, build_entry, read_container

KERNEL = """.version 8.8
.target {arch}
.address_size 64
.visible .entry k(.param .u64 p)
{{
.reg .u64 %a; .reg .u32 %r;
ld.param.u64 %a, [p];
ld.global.u32 %r, [%a];
add.u32 %r, %r, {number};
st.global.u32 [%a+4], %r;
ret;
}}
"""


def text_of(arch: str, number: int = 1) -> str:
    return KERNEL.format(arch=arch, number=number)


@pytest.fixture(scope="module")
def image(assembler):
    """Builds a fatbin of machine code for some architectures and PTX for others, with options."""

    def build(cubins: list[str], texts: list[str], options: str | None = None, lineinfo: str = "") -> bytes:
        entries = [
            build_entry(
                ImageKind.CUBIN,
                assembler.assemble(text_of(lineinfo or arch), arch, ["-lineinfo"] if lineinfo else []).cubin,
                arch,
            )
            for arch in cubins
        ]
        entries += [
            build_entry(ImageKind.PTX, text_of(arch, index).encode(), arch, version=(8, 8), options=options)
            for index, arch in enumerate(texts)
        ]
        return build_container(entries)

    return build


@pytest.mark.parametrize(
    ("device", "codes", "best"),
    [
        ("sm_90", ["sm_80", "sm_90", "sm_90a"], "sm_90a"),
        ("sm_90", ["sm_80", "sm_89", "sm_100"], None),
        ("sm_89", ["sm_80", "sm_86", "sm_90"], "sm_86"),
        ("sm_86", ["sm_87", "sm_89", "sm_80"], "sm_80"),
        ("sm_103", ["sm_100", "sm_100a", "sm_100f"], "sm_100f"),
        ("sm_103", ["sm_100f", "sm_103"], "sm_103"),
        ("sm_100", ["sm_103f", "sm_100f", "sm_100a"], "sm_100a"),
        ("sm_120", ["sm_100", "sm_103f", "sm_90a"], None),
        ("sm_121", ["sm_120", "sm_120f", "sm_121a"], "sm_121a"),
        ("sm_90", ["compute_90", "lto_90", ""], None),
    ],
)
def test_the_code_that_the_driver_picks(device, codes, best):
    ranked = {code: rank for code in codes if (rank := runs_on(code, device)) is not None}
    assert (max(ranked, key=ranked.__getitem__) if ranked else None) == best


@pytest.mark.parametrize(
    ("text", "device", "compiles"),
    [
        ("sm_52", "sm_90", True),
        ("sm_90", "sm_120", True),
        ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100", False),
        ("sm_100f", "sm_103", True),
        ("sm_100f", "sm_120", False),
        ("sm_100", "sm_90", False),
    ],
)
def test_the_ptx_that_the_driver_compiles(text, device, compiles):
    assert (compiles_for(text, device) is not None) == compiles


@pytest.mark.parametrize(
    ("cubins", "texts", "device", "expected"),
    [
        # (architecture to assemble for, number in the text that is taken, or the reason)
        (["sm_90"], ["sm_90"], "sm_90", ("sm_90", 0)),
        (["sm_80", "sm_90"], ["sm_80", "sm_90"], "sm_90", ("sm_90", 1)),
        (["sm_80", "sm_90"], ["sm_80", "sm_90"], "sm_86", ("sm_80", 0)),
        (["sm_90a"], ["sm_90", "sm_90a"], "sm_90", ("sm_90a", 1)),
        (["sm_90a"], ["sm_90"], "sm_90", Reason.VARIANT),
        (["sm_90"], ["sm_90a"], "sm_90", Reason.VARIANT),
        (["sm_90a"], ["sm_80"], "sm_90", Reason.VARIANT),
        (["sm_90"], ["sm_120"], "sm_90", Reason.VARIANT),
        (["sm_90"], [], "sm_90", Reason.NO_PTX),
        (["sm_80"], ["sm_80"], "sm_90", ("sm_90", 0)),
        (["sm_80"], ["sm_80", "sm_89", "sm_100"], "sm_90", ("sm_90", 1)),
        ([], ["sm_90a", "sm_80"], "sm_90", ("sm_90a", 0)),
        ([], ["sm_90a", "sm_80"], "sm_100", ("sm_100", 1)),
        ([], ["sm_100"], "sm_90", Reason.NO_PTX),
    ],
)
def test_whose_ptx(image, cubins, texts, device, expected):
    source = find_source(read_container(image(cubins, texts), "test"), device)
    if isinstance(expected, Reason):
        assert source.text is None
        assert source.reason is expected
        assert all(arch in source.detail for arch in [*cubins[-1:], *texts])
    else:
        assert source.text == text_of(texts[expected[1]], expected[1])
        assert source.arch == expected[0]
        assert source.reason is Reason.PROBED
        assert (source.machine is None) == all(runs_on(cubin, device) is None for cubin in cubins)


def test_the_ptx_that_line_information_leaves_in_the_cubin(image):
    kept = find_source(read_container(image(["sm_90"], [], lineinfo="sm_90"), "test"), "sm_90")
    assert kept.text is not None
    assert "add.u32" in kept.text
    assert kept.reason is Reason.PROBED
    other = find_source(read_container(image(["sm_90"], [], lineinfo="sm_80"), "test"), "sm_90")
    assert (other.text, other.reason) == (None, Reason.VARIANT)
    assert "sm_80" in other.detail
    assert "sm_90" in other.detail


def test_ptx_that_states_no_architecture_is_nobodys_source(image):
    container = read_container(image(["sm_90"], ["sm_80"]), "test")
    images = tuple(replace(entry, arch="") if entry.kind is ImageKind.PTX else entry for entry in container.images)
    source = find_source(replace(container, images=images), "sm_90", retarget=True)
    assert (source.text, source.reason, source.retargeted, source.own) == (None, Reason.VARIANT, "", False)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("", ()),
        ("-O1 -v  -maxrregcount=40 --generate-line-info ", ("-O1", "-maxrregcount=40", "--generate-line-info")),
        ("--maxrregcount 32 --fmad=false -m64", ("--maxrregcount", "32", "--fmad=false")),
        ("-dlcm=cg --def-store-cache wb", ("-dlcm=cg", "--def-store-cache", "wb")),
    ],
)
def test_stored_options_are_used(line, kept):
    assert stored_options(line) == (kept, None)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--compile-only  ", "--compile-only"),
        ("-v -c", "-c"),
        ("-o /etc/passwd", "-o"),
        ("--options-file=x", "--options-file=x"),
        ("-maxrregcount", "-maxrregcount"),
        ("'unclosed", "unclosed"),
    ],
)
def test_options_that_cannot_be_used_are_named(line, word):
    kept, refusal = stored_options(line)
    assert kept == ()
    assert refusal is not None
    assert word in refusal


def test_relocatable_ptx_is_unsupported(image):
    source = find_source(read_container(image(["sm_90"], ["sm_90"], "--compile-only  "), "test"), "sm_90")
    assert source.reason is Reason.UNSUPPORTED
    assert "relocatable" in source.detail


def test_a_damaged_cubin_is_a_format_error(image):
    whole = bytearray(image(["sm_90"], ["sm_90"]))
    at = whole.index(b"\x7fELF")
    whole[at + 0x28 : at + 0x30] = b"\xff" * 8
    with pytest.raises(FormatError):
        find_source(read_container(bytes(whole), "test"), "sm_90")
