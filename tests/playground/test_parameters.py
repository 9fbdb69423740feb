"""What is read off a kernel's text: which parameters are pointers, to what, and how the kernel wants to be launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neutrino.backend.ptx_launches import PtxKernels
from neutrino.errors import NeutrinoError
from neutrino.playground.elements import element_type
from neutrino.twins.kernel_text import Kernel, Role, Value
from tests.kernels.cases import Case, cases

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "embedded" / "kernels.ptx"
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def kernel_of(text: str, name: str | None = None) -> Kernel:
    kernels = PtxKernels(text)
    return kernels.kernel(kernels.choose(name))


def entry(parameters: str, body: str, header: str = "", before: str = "") -> Kernel:
    return kernel_of(f"{HEAD}{before}\n.visible .entry k({parameters}) {header}\n{{\n{body}\nret;\n}}\n")


def values(kernel: Kernel) -> dict[str, Value]:
    return {value.name: value for _, found in kernel.parameters for value in found}


def test_the_example() -> None:
    found = values(kernel_of(EXAMPLE.read_text(), "saxpy"))
    assert found == {
        "x": Value("x", 0, 8, Role.POINTER, "f32", loads=True),
        "y": Value("y", 0, 8, Role.POINTER, "f32", loads=True, stores=True),
        "a": Value("a", 0, 4, Role.FLOAT, "f32"),
        "n": Value("n", 0, 4, Role.INTEGER, "u32"),
    }
    total = values(kernel_of(EXAMPLE.read_text(), "sum"))["total"]
    assert total == Value("total", 0, 8, Role.POINTER, "f32", updates=True)


@pytest.mark.parametrize(
    ("between", "role"),
    [
        ("mov.b64 %d1, %d0;", Role.POINTER),
        ("cvta.to.global.u64 %d1, %d0;", Role.POINTER),
        ("add.s64 %d1, %d2, %d0;", Role.POINTER),
        ("sub.s64 %d1, %d0, %d2;", Role.POINTER),
        ("mad.wide.u32 %d1, %r0, 4, %d0;", Role.POINTER),
        ("mad.lo.s64 %d1, %d2, %d3, %d0;", Role.POINTER),
        ("selp.b64 %d1, %d2, %d0, %p0;", Role.POINTER),
        # A factor or a shifted number is no address.
        ("mad.lo.s64 %d1, %d0, %d3, %d2;", Role.INTEGER),
        ("shl.b64 %d1, %d0, 2;", Role.INTEGER),
        ("mul.lo.s64 %d1, %d0, 4;", Role.INTEGER),
    ],
)
def test_what_moves_an_address(between: str, role: Role) -> None:
    found = values(entry(".param .u64 v", f"ld.param.u64 %d0, [v];\n{between}\nld.global.u32 %r1, [%d1+4];"))
    assert found["v"].role is role


@pytest.mark.parametrize(
    ("access", "type", "loads", "stores", "updates"),
    [
        ("ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d0];", "f32", True, False, False),
        ("st.global.u8 [%d0], %r0;", "u8", False, True, False),
        ("atom.global.add.u64 %d1, [%d0], 1;", "u64", False, False, True),
        ("red.global.add.f64 [%d0], %fd0;", "f64", False, False, True),
        ("@%p0 ld.global.nc.s16 %h0, [%d0+2];", "s16", True, False, False),
        ("ld.global.b32 %r1, [%d0];\nfma.rn.f32 %r2, %r1, %r1, %r1;", "f32", True, False, False),
        ("ld.global.b32 %r1, [%d0];\nmov.b32 {%h0, %h1}, %r1;\nadd.f16 %h0, %h0, %h1;", "f16", True, False, False),
        ("ld.global.b32 %r1, [%d0];\nadd.rn.bf16x2 %r1, %r1, %r1;", "bf16", True, False, False),
        ("ld.global.b16 %h1, [%d0];\ncvt.f32.bf16 %f0, %h1;", "bf16", True, False, False),
        ("add.f32 %r1, %r1, %r1;\nst.global.b32 [%d0], %r1;", "f32", False, True, False),
        ("cp.async.ca.shared.global [%r0], [%d0], 16;", "f32", True, False, False),
        ("cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 64;", "f32", False, True, False),
    ],
)
def test_what_is_behind_a_pointer(access: str, type: str, loads: bool, stores: bool, updates: bool) -> None:
    found = values(entry(".param .u64 .ptr .global .align 4 p", f"ld.param.b64 %d0, [p];\n{access}"))
    assert found["p"] == Value("p", 0, 8, Role.POINTER, type, loads, stores, updates)


@pytest.mark.parametrize(
    ("kind", "use", "role", "type"),
    [
        (".u32", "ld.param.b32 %r0, [v];\nadd.s32 %r1, %r0, 1;", Role.INTEGER, "u32"),
        (".b32", "ld.param.b32 %r0, [v];\nmul.f32 %r1, %r0, %r0;", Role.FLOAT, "f32"),
        (".f64", "ld.param.f64 %fd0, [v];", Role.FLOAT, "f64"),
        (".u64", "ld.param.u64 %d0, [v];\nsetp.lt.u64 %p0, %d1, %d0;", Role.INTEGER, "u64"),
        (".u8", "ld.param.u8 %h0, [v];", Role.INTEGER, "u8"),
        (".u32", "", Role.INTEGER, "u32"),
    ],
)
def test_numbers(kind: str, use: str, role: Role, type: str) -> None:
    found = values(entry(f".param {kind} v", use))
    assert (found["v"].role, found["v"].type) == (role, type)


def test_a_structure_has_values_in_it() -> None:
    body = """
    ld.param.u64 %d0, [s+8]; ld.param.v2.u32 {%r0, %r1}, [s];
    ld.global.f64 %fd0, [%d0];
    """
    found = values(entry(".param .align 8 .b8 s[24]", body))
    assert [(value.name, value.offset, value.role) for value in found.values()] == [
        ("s+0", 0, Role.INTEGER), ("s+4", 4, Role.INTEGER), ("s+8", 8, Role.POINTER),
    ]  # fmt: skip
    assert found["s+8"].type == "f64"


def test_a_pointer_that_goes_to_a_call_is_one() -> None:
    body = """
    ld.param.u64 %d0, [p];
    { .param .b64 param0; st.param.b64 [param0], %d0; call.uni helper, (param0); }
    """
    assert values(entry(".param .u64 p", body))["p"].role is Role.POINTER


@pytest.mark.parametrize(
    ("header", "block", "exact"),
    [("", None, False), (".maxntid 64", (64, 1, 1), False), (".reqntid 16, 4", (16, 4, 1), True),
     (".maxntid 8,8,2 .minnctapersm 2", (8, 8, 2), False)],
)  # fmt: skip
def test_the_block_that_the_text_says(header: str, block: tuple[int, int, int] | None, exact: bool) -> None:
    kernel = entry("", "", header)
    assert (kernel.block, kernel.exact, kernel.dynamic_shared) == (block, exact, False)


TILE = ".extern .shared .align 16 .b8 tile[];\n"
TOUCH = ".reg .u32 %r;\nmov.u32 %r, tile;"


@pytest.mark.parametrize(
    ("before", "body", "used"),
    [
        (TILE, TOUCH, True),
        (TILE, "", False),
        (TILE, ".reg .u32 %tile;\nmov.u32 %tile, 0;", False),
        ("", TILE + TOUCH, True),
        (f"{TILE}.func touch() {{ {TOUCH} ret; }}\n", "call.uni touch, ();", True),
        (f"{TILE}.func touch() {{ {TOUCH} ret; }}\n", "", False),
        (f"{TILE}.func touch() {{ {TOUCH} ret; }}\n.func over() {{ call.uni touch, (); ret; }}\n",
         "call.uni over, ();", True),
        (f"{TILE}.global .align 8 .u64 table[1] = {{tile}};\n", ".reg .u64 %d;\nmov.u64 %d, table;", True),
        (".shared .align 16 .b8 tile[64];\n", TOUCH, False),
    ],
)  # fmt: skip
def test_dynamic_shared_memory_is_what_the_kernel_reaches(before: str, body: str, used: bool) -> None:
    assert entry("", body, before=before).dynamic_shared is used


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_roles_are_those_that_the_kernels_tests_give_them(case: Case) -> None:
    kernel = kernel_of(case.path.read_text("latin-1"), case.kernel)
    for place, (argument, (_, found)) in enumerate(zip(case.arguments, kernel.parameters, strict=True)):
        if isinstance(argument, bytes):
            continue
        (value,) = found
        if isinstance(argument, np.ndarray):
            assert value.role is Role.POINTER
            assert value.stores or value.updates or place not in case.expected
        elif value.role is Role.POINTER:
            # Triton's last two, which the kernel never uses; the tests give 0.
            assert (argument, value.loads, value.stores, value.updates) == (0, False, False, False)
        else:
            assert value.role is (Role.FLOAT if argument.dtype.kind == "f" else Role.INTEGER)


def test_most_element_types_are_those_of_the_kernels_tests() -> None:
    """Where they differ, a test looks at words as something else, or a kernel only moves them."""
    right = wrong = 0
    for case in cases():
        kernel = kernel_of(case.path.read_text("latin-1"), case.kernel)
        for argument, (_, found) in zip(case.arguments, kernel.parameters, strict=True):
            if isinstance(argument, np.ndarray):
                dtype = element_type(found[0].type).dtype
                kinds = {"f" if kind == "f" else "u" for kind in (dtype.kind, argument.dtype.kind)}
                same = dtype.itemsize == argument.dtype.itemsize and (len(kinds) == 1 or found[0].type == "bf16")
                right, wrong = right + same, wrong + (not same)
    assert right > 200
    assert wrong <= right / 10


def test_which_kernel() -> None:
    kernels = PtxKernels(EXAMPLE.read_text())
    assert kernels.choose("sum") == "sum"
    with pytest.raises(NeutrinoError, match=r"2 kernels in it; choose one with --kernel: saxpy, sum"):
        kernels.choose(None)
    with pytest.raises(NeutrinoError, match=r"no kernel saxp in it; it has saxpy, sum"):
        kernels.choose("saxp")
    with pytest.raises(NeutrinoError, match="no kernel in it"):
        PtxKernels(HEAD).choose(None)
