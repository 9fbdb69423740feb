"""What kernels are launched with: generated, or as the user says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.backend.ptx_launches import PtxKernels
from neutrino.errors import NeutrinoError
from neutrino.playground.elements import NAMES, ElementType, element_type
from neutrino.playground.launch_inputs import Buffer, Choices, Inputs, Number, make_inputs
from neutrino.twins.kernel_text import Kernel, Parameter, Role, Value


def kernel(*values: Value, block: tuple[int, int, int] | None = None, exact: bool = False) -> Kernel:
    parameters = tuple((Parameter(value.name, value.size), (value,))
                       for value in values)  # fmt: skip
    return Kernel("k", parameters, block, exact, dynamic_shared=False)


X = Value("x", 0, 8, Role.POINTER, "f32", loads=True)
OUT = Value("out", 0, 8, Role.POINTER, "s16", stores=True)
N = Value("n", 0, 4, Role.INTEGER, "u32")
A = Value("a", 0, 4, Role.FLOAT, "f32")


def items(inputs: Inputs) -> list[Buffer | Number]:
    return [item for _, items in inputs.arguments for item in items]


def test_what_is_made_up() -> None:
    inputs = make_inputs(kernel(X, OUT, N, A), Choices())
    x, out, n, a = items(inputs)
    assert (inputs.grid, inputs.block, inputs.shared) == ((4, 1, 1), (128, 1, 1), 0)
    assert isinstance(x, Buffer)
    assert isinstance(out, Buffer)
    assert isinstance(n, Number)
    assert isinstance(a, Number)
    numbers = np.frombuffer(x.data, "<f4")
    assert len(numbers) == x.elements == (1 << 20) // 4
    assert -1 <= numbers.min() < -0.9
    assert 0.9 < numbers.max() <= 1
    assert out.data == bytes(1 << 20)
    assert n.data == (512).to_bytes(4, "little")
    assert np.frombuffer(a.data, "<f4")[0] == 1.5


def test_the_same_seed_gives_the_same_data_and_no_two_buffers_are_alike() -> None:
    other = Value("z", 0, 8, Role.POINTER, "f32", loads=True)
    one, same, different = (make_inputs(kernel(X, other), Choices(seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert one.buffers[0].data != one.buffers[1].data
    assert one.buffers[0].data != different.buffers[0].data


def test_integers_that_may_be_indices_stay_inside() -> None:
    index = Value("i", 0, 8, Role.POINTER, "s64", loads=True)
    (buffer,) = make_inputs(kernel(index), Choices(grid=(2, 1, 1), block=(32, 1, 1))).buffers
    numbers = np.frombuffer(buffer.data, "<i8")
    assert (numbers.min(), numbers.max()) == (0, 63)


def test_the_kernels_own_block_and_the_users_choice() -> None:
    wanted = kernel(N, block=(64, 2, 1))
    assert make_inputs(wanted, Choices()).block == (64, 2, 1)
    assert make_inputs(wanted, Choices(block=(32, 1, 1), grid=(7, 1, 1))).block == (32, 1, 1)
    exact = kernel(N, block=(64, 2, 1), exact=True)
    with pytest.raises(NeutrinoError, match=r"--block 32,1,1: the kernel says .reqntid 64,2,1"):
        make_inputs(exact, Choices(block=(32, 1, 1)))


@pytest.mark.parametrize("key", ["x", "0"])
def test_arguments_by_name_and_by_position(key: str, tmp_path: Path) -> None:
    def first(text: str) -> Buffer | Number:
        return items(make_inputs(kernel(X, N), Choices(arguments={key: text})))[0]

    given = first("f64:3=0.25")
    assert isinstance(given, Buffer)
    assert np.frombuffer(given.data, "<f8").tolist() == [0.25] * 3
    assert given.origin == "all 0.25"
    assert first("u8:5=0x7").data == b"\7" * 5
    np.save(tmp_path / "x.npy", np.arange(4, dtype="<f4"))
    assert np.frombuffer(first(f"@{tmp_path}/x.npy").data, "<f4").tolist() == [0, 1, 2, 3]
    (tmp_path / "raw").write_bytes(b"abcd")
    assert first(f"@{tmp_path}/raw").data == b"abcd"


def test_positions_are_those_of_the_parameters() -> None:
    """Also behind a structure of which the kernel reads nothing, or several parts: as nl.param and PARAM count."""
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .align 8 .b8 unread[24], .param .align 4 .b8 parts[12], .param .f64 weight,
                  .param .s16 short, .param .f32 scale, .param .u32 n)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [a];
    ld.param.u32 %r1, [parts+4];
    ld.param.f32 %r2, [parts+8];
    ld.param.u32 %r3, [n];
    st.global.v2.u32 [%d1], {%r1, %r3};
    ret;
}
"""
    kernels = PtxKernels(text)
    found = kernels.kernel(kernels.choose(None))

    def chosen(**arguments: str) -> dict[str, tuple[str, bytes]]:
        keys = {key.removeprefix("_").replace("p", "+"): text for key, text in arguments.items()}
        numbers = [item for item in items(make_inputs(found, Choices(arguments=keys))) if isinstance(item, Number)]
        return {item.value.name: (item.text, item.data) for item in numbers}

    assert chosen(_6="7")["n"][0] == "7"
    assert chosen(_2p4="9", _2p8="0.5") == chosen() | {
        "parts+4": ("9", b"\x09\0\0\0"), "parts+8": ("0.5", struct.pack("<f", 0.5)),
    }  # fmt: skip
    # Of what the kernel does not read, its declaration says the type.
    assert chosen(_3="2.5")["weight"] == ("2.5", struct.pack("<d", 2.5))
    assert chosen(_5="-0.25")["scale"] == ("-0.25", struct.pack("<f", -0.25))
    assert chosen(_4="-3")["short"] == ("-3", struct.pack("<h", -3))
    for key in ("1", "2", "7", "unread", "parts"):
        with pytest.raises(NeutrinoError) as caught:
            make_inputs(found, Choices(arguments={key: "1"}))
        assert str(caught.value) == (
            f"--arg {key}: the kernel's arguments are a (0), unread (1), which is not read, parts+4 (2+4), "
            "parts+8 (2+8), weight (3), short (4), scale (5), n (6)"
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"y": "1"}, r"--arg y: the kernel's arguments are x \(0\), n \(1\), a \(2\)"),
        ({"3": "1"}, "--arg 3: the kernel's arguments are"),
        ({"x": "7"}, "a pointer takes TYPE:COUNT"),
        ({"x": "f33:4"}, "TYPE is one of u8"),
        ({"x": "f32:0"}, "a buffer takes 1 to"),
        ({"x": "f64:999999999999"}, "a buffer takes 1 to"),
        ({"x": "u8:4=256"}, "u8 does not hold 256"),
        ({"x": "u8:4=half"}, "it takes an integer"),
        ({"x": "@/nonexistent"}, "cannot be read"),
        ({"x": "@no such file"}, "cannot be read: No such file or directory$"),
        ({"x": "@/dev/zero"}, "it is not a regular file"),
        ({"x": "@/"}, "it is not a regular file"),
        ({"x": "f32:4=1e39"}, r"f32 does not hold 1e\+39"),
        ({"x": "f64:4=1e400"}, "does not hold it; write inf"),
        ({"a": "1e400"}, "f32 does not hold it; write inf"),
        ({"n": "1.5"}, "n=1.5: it takes an integer"),
        ({"n": "4294967296"}, "it has 32 bits"),
        ({"a": "much"}, "a=much: it takes a number"),
        ({"a": "1e99"}, "f32 does not hold it"),
    ],
)
def test_choices_that_do_not_fit_are_named(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(NeutrinoError, match=said):
        make_inputs(kernel(X, N, A), Choices(arguments=arguments))


@given(st.sampled_from(NAMES), st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 9))
def test_made_up_elements_are_of_their_type_and_range(name: str, count: int, below: int, seed: int) -> None:
    kind = ElementType(name)
    data = kind.random(count, below, np.random.default_rng(seed)).tobytes()
    assert len(data) == count * kind.dtype.itemsize
    numbers = kind.decode(data).astype("f8")
    assert np.isfinite(numbers).all()
    low, high = (-1, 1) if kind.is_float else (0, max(below - 1, 0))
    assert ((low <= numbers) & (numbers <= high)).all()


@pytest.mark.parametrize(("ptx", "name"), [("b32", "u32"), ("e4m3", "u8"), ("f16x2", "u16"), ("", "u8")])
def test_types_that_numpy_lacks(ptx: str, name: str) -> None:
    assert element_type(ptx).name == name
