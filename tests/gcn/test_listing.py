"""The text of code objects: it assembles to the bytes that it was made of, in whole and function by function."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import Function, Module, decode, split_target, wave_features
from neutrino.gcn.listing import Encodings, Notes, layout_of, listing
from neutrino.gcn.llvm import Llvm
from tests.gcn.objects import BUILDS, KERNELS, code_objects, need_llvm

KEPT_AS_DATA = re.compile(r"v_\w+(_e64)?|s_nop|v_cndmask_b32_e32")
"""Instructions of clang 19 that LLVM 23 encodes in another way: VOP3 forms with a second operand that is not used, on
gfx10 and later, which older compilers left 0."""


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    return need_llvm()


@pytest.fixture(scope="module")
def encodings(llvm: Llvm) -> Encodings:
    return Encodings(llvm)


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    return code_objects()


def read(path: Path, llvm: Llvm) -> tuple[Module, str, Notes]:
    found = code_object_functions(path.read_bytes(), path.name, unnamed=True)
    module = decode(found.functions, *split_target(found.target), llvm)
    return module, found.target, Notes(symbols=found.variables)


def text_of(functions: Sequence[Function], target: str, encodings: Encodings, notes: Notes | None = None) -> str:
    rows = [(row.name, row.address, row.code, row.is_kernel, row.wave) for row in functions]
    return "\n".join(listing(functions, layout_of(rows, target), encodings, notes))


def assembled(text: str, module: Module, llvm: Llvm, wave: int) -> bytes:
    return llvm.assemble(text, module.processor, wave_features(module.processor, module.features, wave))


@pytest.mark.parametrize("name", BUILDS)
def test_text_of_a_whole_object_gives_its_bytes(objects, llvm, encodings, name) -> None:
    module, target, notes = read(objects[name], llvm)
    text = text_of(module.functions, target, encodings, notes)
    wave = 64 if "wave64" in name or "gfx9" in name else 32
    assert {function.wave for function in module.functions} == {wave}
    assert assembled(text, module, llvm, wave) == b"".join(function.code for function in module.functions)
    assert not [function.refused for function in module.functions if function.refused]
    assert {function.name for function in module.functions if function.is_kernel} == set(KERNELS)
    kept = re.findall(r"^\t\.long .*; (\S+)", text, re.MULTILINE)
    assert not {mnemonic for mnemonic in kept if not KEPT_AS_DATA.fullmatch(mnemonic)}
    # On gfx9 the two agree on everything.
    assert not (kept and "gfx9" in name)
    # It is text: branches and addresses have names.
    assert re.search(r"^\ts_cbranch_\w+ \.L[0-9a-f]+$", text, re.MULTILINE)
    assert "weights@rel32@lo" in text
    assert "_Z10polynomialfj@rel32@hi" in text


@pytest.mark.parametrize("name", ["gfx942-preload", "gfx1100-O2"])
def test_text_of_a_function_gives_its_bytes(objects, llvm, encodings, name) -> None:
    module, target, notes = read(objects[name], llvm)
    for function in module.functions:
        if function.name:
            text = text_of([function], target, encodings, notes)
            assert assembled(text, module, llvm, function.wave) == function.code
            assert re.findall(r"^(\w+):$", text, re.MULTILINE) == [function.name]


@pytest.mark.parametrize("name", ["gfx942-O0", "gfx1201-O2"])
def test_text_of_some_functions_gives_their_bytes(objects, llvm, encodings, name) -> None:
    """They refer to the same variables and to each other: from where they are in the text, not in the file."""
    module, target, notes = read(objects[name], llvm)
    chosen = [row for row in module.functions if row.name in ("saxpy", "calls", "pointers", "_Z10polynomialfj")]
    assert len(chosen) == 4
    text = text_of(chosen, target, encodings, notes)
    assert assembled(text, module, llvm, chosen[0].wave) == b"".join(row.code for row in chosen)
    assert "weights@rel32@lo" in text
    assert re.search(r"weights\.from_[0-9a-f]+@rel32@lo", text)


@pytest.mark.parametrize("name", ["gfx90a-O2", "gfx1030-O2", "gfx942-O0"])
def test_another_assembler_agrees(objects, llvm, encodings, name, tmp_path) -> None:
    """LLVM 19's, and its linker, which places the text where the object had it."""
    for tool in ("llvm-mc-19", "ld.lld-19", "llvm-objcopy-19"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on PATH")
    module, target, notes = read(objects[name], llvm)
    # What older assemblers have no word for.
    text = re.sub(r"\blit\((\w+)\)", r"\1", text_of(module.functions, target, encodings, notes) + "\n")
    (tmp_path / "text.s").write_text(text)
    for argv in (
        [
            "llvm-mc-19",
            "-triple=amdgcn-amd-amdhsa",
            f"-mcpu={module.processor}",
            "-filetype=obj",
            "text.s",
            "-o",
            "text.o",
        ],
        ["ld.lld-19", "-shared", "--no-undefined", "text.o", "-o", "text.so"],
        ["llvm-objcopy-19", "-O", "binary", "--only-section=.text", "text.so", "text.bin"],
    ):
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "text.bin").read_bytes() == b"".join(function.code for function in module.functions)


_WORDS = st.lists(
    st.one_of(
        st.integers(0, 2**32 - 1),
        # Branches near and far, and the parts of a sum with the program counter.
        st.builds(lambda code, words: 0xBF800000 | code << 16 | words & 0xFFFF, st.integers(0, 40), st.integers(-9, 9)),
        st.sampled_from([0xBE801C00, 0x8000FF00, 0x8201FF01, 0xBE804780, 0xBF810000, 0xBFB00000, 0, 0xBF9F0000]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


_PROCESSORS = ("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1010", "gfx1030", "gfx1100", "gfx1201", "gfx1250")
_NAMES = ("f", "s0", "vcc", "", "a b", 'q"uote', "line\nbreak", ".L1000", "lit")


@settings(max_examples=60)
@given(words=_WORDS, processor=st.sampled_from(_PROCESSORS), cut=st.integers(0, 3), name=st.sampled_from(_NAMES))
def test_any_bytes_have_a_text_that_gives_them(words: list[int], processor: str, cut: int, name: str) -> None:
    llvm = need_llvm()
    code = b"".join(word.to_bytes(4, "little") for word in words)
    code = code[: len(code) - cut]
    module = decode([(name, 0x1000, code, True, 64)], processor, "", llvm)
    text = text_of(module.functions, processor, Encodings(llvm))
    assert assembled(text, module, llvm, 64) == code


def test_a_branch_to_the_beginning_is_no_relocation(llvm, encodings) -> None:
    code = llvm.assemble("a: s_branch a", "gfx942")
    module = decode([("f", 0x1000, code, True, 64)], "gfx942", "", llvm)
    text = text_of(module.functions, "gfx942", encodings)
    assert llvm.assemble(text, "gfx942") == code
    assert "\ts_branch .L1000\n" in text


def test_functions_with_another_wave_keep_their_bytes(llvm, encodings) -> None:
    """Kernels of 32 and of 64 lanes in one object: an assembler takes one size."""
    wide = "+wavefrontsize64,-wavefrontsize32"
    narrow_code = llvm.assemble("v_cmp_eq_u32_e32 vcc_lo, v0, v1\ns_and_b32 s0, vcc_lo, exec_lo\ns_endpgm", "gfx1100")
    wide_code = llvm.assemble("v_cmp_eq_u32_e64 s[0:1], v0, v1\ns_endpgm", "gfx1100", wide)
    rows = [("narrow", 0, narrow_code, True, 32), ("wide", 256, wide_code, True, 64)]
    module = decode(rows, "gfx1100", "", llvm)
    text = text_of(module.functions, "gfx1100", encodings)
    assert llvm.assemble(text, "gfx1100") == narrow_code + wide_code
    assert "; v_cmp_eq_u32_e64 s[0:1], v0, v1" in text


def test_notes_stand_where_they_belong(llvm, encodings) -> None:
    code = llvm.assemble("s_nop 0\ns_nop 1\ns_endpgm", "gfx942")
    module = decode([("_Z1kv", 0x2000, code, True, 64)], "gfx942", "", llvm)
    notes = Notes(sources={0x2004: "k.hip:7\x1b"}, comments={"_Z1kv": ["3 registers"]}, names={"_Z1kv": "k()"})
    assert text_of(module.functions, "gfx942", encodings, notes).split("\n") == [
        '\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"', "\t.text", "\t.p2align 8", ".Ltext:", "", "\t; k()",
        "\t; 3 registers", "\t.globl _Z1kv", "\t.type _Z1kv,@function", "_Z1kv:", "\ts_nop 0", "\t; k.hip:7\\x1b",
        "\ts_nop 1", "\ts_endpgm", "\t.size _Z1kv, .-_Z1kv",
    ]  # fmt: skip
