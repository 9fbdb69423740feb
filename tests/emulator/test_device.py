"""Memory, variables, arguments, calls, copies under way: a kernel each, by hand."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.emulator.address_space import POISON, OutOfMemoryError, Window
from neutrino.emulator.code import module_code
from neutrino.emulator.device import Device
from neutrino.emulator.kernel import kernel_of
from neutrino.errors import DeviceFaultError, FaultKind, PtxRefusedError
from tests.emulator.kernels_by_hand import HEAD, Kernel, words

_BASE = 1 << 44


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60))
def test_allocations_never_touch(steps: list[tuple[bool, int]]) -> None:
    window = Window(_BASE, np.zeros(1 << 16, np.uint8))
    live: dict[int, int] = {}
    for give_back, number in steps:
        if give_back and live:
            address = sorted(live)[number % len(live)]
            window.free(address)
            del live[address]
            assert not window.holds(address, address + 1)
            continue
        try:
            address = window.allocate(number)
        except OutOfMemoryError:
            continue
        live[address] = number
        assert address % 256 == 0
        start = address - _BASE
        assert (window.buffer[start : start + number] == POISON).all()
        for other, size in live.items():
            assert window.holds(other, other + size)
            assert not window.holds(other, other + size + 1)
            assert window.allocation(other + size - 1) == (other, size)
            assert other == address or other + size < address or address + number < other
    for address in live:
        window.free(address)
    assert window.allocate((1 << 16) - 512) == _BASE


def test_memory_is_poisoned_and_bounded() -> None:
    device = Device(memory=1 << 16)
    address = device.allocate(100)
    assert device.read(address, 100) == bytes([POISON]) * 100
    device.write(address, np.arange(10, dtype=np.int16))
    assert device.read(address, 20) == np.arange(10, dtype=np.int16).tobytes()
    with pytest.raises(ValueError, match="not inside one allocation"):
        device.read(address, 101)
    with pytest.raises(OutOfMemoryError):
        device.allocate(1 << 16)


@pytest.mark.parametrize("what", ["register", "shared", "local"])
def test_nothing_begins_as_zero(what: str) -> None:
    body = {
        "register": "    st.global.u32 [%d1], %r20;",
        "shared": "    ld.shared.u32 %r4, [room];\n    st.global.u32 [%d1], %r4;",
        "local": "    .local .b32 mine;\n    ld.local.u32 %r4, [mine];\n    st.global.u32 [%d1], %r4;",
    }[what]
    assert (words(body, before=".shared .b32 room;") == 0xA5A5A5A5).all()


def test_variables_and_their_initial_values() -> None:
    before = """
    .global .align 4 .b32 zero;
    .global .align 8 .u64 pointers[3] = {numbers, numbers+4, generic(numbers)+8};
    .global .align 2 .u16 numbers[2][3] = {{1, 2}, {0x10, -1, 6}};
    .global .align 1 .b8 split[8] = {0xFF(numbers), 0xFF00(numbers), 0xFF0000(numbers), 0xFF000000(numbers)};
    .const .align 4 .f32 floats[] = {0f3F800000, 2.5, -1};
    .global .align 1 .b8 text[] = "a\\n\\x41";
    .global .f64 wide = 0d3FF0000000000000;
    """
    device = Device(memory=1 << 20)
    module = device.load(HEAD + before)
    place = {name: address for name, (address, _) in module.variables.items()}

    def content(name: str, dtype: str) -> list[float]:
        address, size = module.variables[name]
        return np.frombuffer(device.read(address, size), dtype).tolist()

    assert content("zero", "u4") == [0]
    assert content("pointers", "u8") == [place["numbers"], place["numbers"] + 4, place["numbers"] + 8]
    assert content("numbers", "u2") == [1, 2, 0, 16, 65535, 6]
    assert content("split", "u1") == [*place["numbers"].to_bytes(8, "little")[:4], 0, 0, 0, 0]
    assert content("floats", "f4") == [1.0, 2.5, -1.0]
    assert content("text", "u1") == [*b"a\nA\0"]
    assert content("wide", "f8") == [1.0]


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        # As ptxas 13 assembles them.
        ("b64 a[2] = {0f3F800000, 0f40000000}", [0x3F800000, 0, 0x40000000, 0]),
        ("b32 a[3] = {0d3FF0000000000000, 1.5, 2}", [0x3F800000, 0x3FC00000, 2]),
        ("b16 a[4] = {0f3F800001, 2, 3, 4}", [0x00020001, 0x00040003]),
        ("v2 .u32 a[2][2] = {{{1, 2}, {5, 6}}, {{3, 4}, {7, 8}}}", [1, 2, 5, 6, 3, 4, 7, 8]),
    ],
)
def test_initial_values_of_other_sizes(declaration: str, expected: list[int]) -> None:
    device = Device(memory=1 << 20)
    address, size = device.load(f"{HEAD}.global .align 8 .{declaration};").variables["a"]
    assert np.frombuffer(device.read(address, size), "u4").tolist() == expected


def test_initial_values_that_are_nested_too_deep() -> None:
    with pytest.raises(PtxRefusedError, match="too many dimensions"):
        Device(memory=1 << 20).load(f"{HEAD}.global .u32 a[1] = {'{' * 5000}1{'}' * 5000};")


def test_a_module_gives_its_memory_back() -> None:
    device = Device(memory=1 << 16)
    text = HEAD + ".global .b8 room[40000];"
    for _ in range(3):
        module = device.load(text)
        with pytest.raises(PtxRefusedError, match="no memory"):
            device.load(text)
        device.unload(module)


def test_kernels_are_forgotten_with_their_text() -> None:
    """A process that loads many texts, one after the other, does not keep them all."""
    code = weakref.ref(module_code(f"{HEAD}.visible .entry k() {{ ret; }}"))
    kernel_of(code(), "k").units(observed=False)
    for number in range(module_code.cache_info().maxsize):
        module_code(f"{HEAD}.visible .entry k{number}() {{ ret; }}")
    gc.collect()
    assert code() is None


def test_arguments_by_value() -> None:
    text = HEAD + """.entry k(.param .u64 out, .param .align 8 .b8 s[16], .param .f32 f, .param .u8 b, .param .f64 d)
    {
        .reg .b64 %d<4>; .reg .f32 %f<2>; .reg .f64 %e<2>; .reg .b32 %r<4>; .reg .b16 %h<2>;
        ld.param.u64 %d0, [out];
        ld.param.v2.u32 {%r0, %r1}, [s+8];
        ld.param.f32 %f0, [f];
        ld.param.u8 %h0, [b];
        ld.param.f64 %e0, [d];
        cvt.u32.u16 %r2, %h0;
        st.global.v2.u32 [%d0], {%r0, %r1};
        st.global.f32 [%d0+8], %f0;
        st.global.u32 [%d0+12], %r2;
        st.global.f64 [%d0+16], %e0;
        ret;
    }"""
    device = Device(memory=1 << 16)
    function = device.load(text).functions["k"]
    assert [(one.offset, one.size) for one in function.parameters] == [(0, 8), (8, 16), (24, 4), (28, 1), (32, 8)]
    assert function.parameter_size == 40
    out = device.allocate(24)
    structure = np.array([(1, 2, 3, 4)], "u4,u4,u4,u4")
    device.launch(function, (1, 1, 1), (1, 1, 1), [out, structure, 0.5, 200, 0.25])
    found = device.read(out, 24)
    assert np.frombuffer(found[:8], "u4").tolist() == [3, 4]
    assert np.frombuffer(found[8:12], "f4")[0] == 0.5
    assert np.frombuffer(found[12:16], "u4")[0] == 200
    assert np.frombuffer(found[16:], "f8")[0] == 0.25
    with pytest.raises(ValueError, match="bytes for"):
        device.launch(function, (1, 1, 1), (1, 1, 1), [out, b"short", 0.5, 200, 0.25])


_ACKERMANN = """
.func (.param .b32 result) ackermann(.param .b32 m, .param .b32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<6>;
    ld.param.u32 %r0, [m];
    ld.param.u32 %r1, [n];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra FIRST;
    sub.u32 %r2, %r0, 1;
    setp.eq.u32 %p1, %r1, 0;
    mov.u32 %r3, 1;
    @%p1 bra SECOND;
    sub.u32 %r4, %r1, 1;
    { .param .b32 a; .param .b32 b; .param .b32 c;
      st.param.b32 [a], %r0; st.param.b32 [b], %r4;
      call.uni (c), ackermann, (a, b);
      ld.param.b32 %r3, [c]; }
SECOND:
    { .param .b32 a; .param .b32 b; .param .b32 c;
      st.param.b32 [a], %r2; st.param.b32 [b], %r3;
      call.uni (c), ackermann, (a, b);
      ld.param.b32 %r5, [c]; }
    st.param.b32 [result], %r5;
    ret;
FIRST:
    add.u32 %r5, %r1, 1;
    st.param.b32 [result], %r5;
    ret;
}
"""


@pytest.mark.parametrize("seed", [None, 1])
def test_recursion_of_another_depth_in_every_thread(seed: int | None) -> None:
    body = """
    and.b32 %r4, %r3, 3;
    shr.u32 %r5, %r3, 2;
    min.u32 %r4, %r4, 2;
    { .param .b32 a; .param .b32 b; .param .b32 c;
      st.param.b32 [a], %r4; st.param.b32 [b], %r5;
      call (c), ackermann, (a, b);
      ld.param.b32 %r6, [c]; }
    st.global.u32 [%d1], %r6;
    """
    def ackermann(m: int, n: int) -> int:
        return n + 1 if m == 0 else ackermann(m - 1, ackermann(m, n - 1) if n else 1)

    found = words(body, before=_ACKERMANN, seed=seed)
    assert found.tolist() == [ackermann(min(thread & 3, 2), thread >> 2) for thread in range(32)]


def test_calls_by_register_parameters_under_a_guard() -> None:
    before = """
    .func (.reg .u32 r) twice(.reg .u32 a) { add.u32 r, a, a; ret; }
    .func (.reg .u32 r) thrice(.reg .u32 a) { mad.lo.u32 r, a, 2, a; ret; }
    .global .u64 table[2] = {twice, thrice};
    """
    body = """
    mov.u32 %r4, %r3;
    setp.lt.u32 %p0, %r3, 20;
    @%p0 call (%r4), twice, (%r3);
    and.b32 %r5, %r3, 1;
    mul.wide.u32 %d3, %r5, 8;
    mov.u64 %d4, table;
    add.u64 %d4, %d4, %d3;
    ld.global.u64 %d5, [%d4];
    shape: .callprototype (.reg .u32 _) _ (.reg .u32 _);
    call (%r4), %d5, (%r4), shape;
    st.global.u32 [%d1], %r4;
    """
    expected = [(2 * thread if thread < 20 else thread) * (3 if thread & 1 else 2) for thread in range(32)]
    assert words(body, before=before).tolist() == expected
    assert words(body, before=before, seed=4).tolist() == expected


def test_exit_inside_a_function_ends_the_thread() -> None:
    before = """
    .func leave(.reg .u32 a) { .reg .pred %p; setp.gt.u32 %p, a, 15; @%p exit; ret; }
    """
    assert words("    call leave, (%r3);\n    st.global.u32 [%d1], 1;", before=before).tolist() == [1] * 16 + [0] * 16


_COPY = """
    mov.u32 %r4, room;
    shl.b32 %r5, %r3, 2;
    add.u32 %r4, %r4, %r5;
    st.shared.u32 [%r4], 0;
    cp.async.ca.shared.global [%r4], [%d1], 4;
    cp.async.commit_group;
    {WAIT}
    ld.shared.u32 %r6, [%r4];
    st.global.u32 [%d1], %r6;
"""
_ROOM = ".shared .align 16 .b8 room[512];\n.shared .align 8 .b64 gate;"


@pytest.mark.parametrize(
    ("wait", "lands"),
    [
        ("cp.async.wait_group 0;", True),
        ("cp.async.wait_all;", True),
        ("cp.async.wait_group 1;", False),
        ("", False),
        ("cp.async.commit_group; cp.async.wait_group 1;", True),
    ],
)
def test_a_copy_lands_when_it_is_waited_for(wait: str, lands: bool) -> None:
    found = words(_COPY.replace("{WAIT}", wait), before=_ROOM, initial=range(5, 37))
    assert found.tolist() == (list(range(5, 37)) if lands else [0] * 32)


@pytest.mark.parametrize("opcode", ["cp", "cp.async", "cp.async.bulk", "cp.async.bulk.global", "mbarrier"])
def test_an_opcode_that_is_cut_short_is_refused(opcode: str) -> None:
    with pytest.raises(PtxRefusedError):
        Kernel(f"    {opcode} [%d0], [%d1], 16;").run(np.zeros(32, np.uint32))


def test_copies_of_fewer_bytes_are_filled_with_zeros() -> None:
    body = """
    mov.u32 %r4, room;
    shl.b32 %r5, %r3, 4;
    add.u32 %r4, %r4, %r5;
    mul.wide.u32 %d3, %r5, 1;
    add.u64 %d3, %d0, %d3;
    mov.u32 %r6, %r3;
    cp.async.cg.shared.global [%r4], [%d3], 16, %r6;
    cp.async.wait_all;
    ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r4];
    st.global.v4.u32 [%d3], {%r7, %r8, %r9, %r10};
    """
    array = np.full(32 * 4, 0xFFFFFFFF, np.uint32)
    Kernel(body, before=_ROOM).run(array)
    for thread, piece in enumerate(array.view(np.uint8).reshape(32, 16)):
        assert piece.tolist() == [255] * min(thread, 16) + [0] * max(16 - thread, 0)


_BULK = """
    mov.u32 %r4, room;
    mov.u32 %r5, gate;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r4;
    st.shared.u32 [%r6], 0;
    setp.ne.u32 %p0, %r3, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r5], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d0], 128, [%r5];
READY:
    bar.sync 0;
    {WAIT}
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%d1], %r7;
"""


@pytest.mark.parametrize("seed", [None, 1])
def test_a_bulk_copy_completes_its_barrier(seed: int | None) -> None:
    wait = "AGAIN:\n    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;\n    @!%p1 bra AGAIN;"
    found = words(_BULK.replace("{WAIT}", wait), before=_ROOM, initial=range(32), seed=seed)
    assert found.tolist() == list(range(32))
    assert words(_BULK.replace("{WAIT}", ""), before=_ROOM, initial=range(32), seed=seed).tolist() == [0] * 32


@pytest.mark.parametrize("wait", ["cp.async.bulk.wait_group 0;", ""])
def test_a_bulk_store_lands_at_the_latest_at_the_end(wait: str) -> None:
    body = f"""
    mov.u32 %r4, room;
    shl.b32 %r5, %r3, 2;
    add.u32 %r5, %r5, %r4;
    st.shared.u32 [%r5], %r3;
    bar.sync 0;
    setp.ne.u32 %p0, %r3, 0;
    @%p0 bra DONE;
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4], 128;
    cp.async.bulk.commit_group;
    {wait}
DONE:
    """
    assert words(body, before=_ROOM).tolist() == list(range(32))


def test_dynamic_shared_memory() -> None:
    before = ".extern .shared .align 16 .b8 room[];\n.shared .b32 fixed;"
    body = ("    mov.u32 %r4, room;\n    mov.u32 %r5, fixed;\n    st.shared.u32 [%r5], 1;\n    shl.b32 %r6, %r3, 2;\n"
            "    add.u32 %r6, %r6, %r4;\n    st.shared.u32 [%r6], %r3;\n    ld.shared.u32 %r7, [%r6];\n"
            "    mov.u32 %r8, %dynamic_smem_size;\n    add.u32 %r7, %r7, %r8;\n    st.global.u32 [%d1], %r7;")
    kernel = Kernel(body, before=before)
    assert kernel.module.functions["k"].shared_size == 16
    array = np.zeros(32, np.uint32)
    kernel.run(array, shared=128)
    assert array.tolist() == list(range(128, 160))
    with pytest.raises(DeviceFaultError) as caught:
        kernel.run(array, shared=64)
    assert (caught.value.kind, caught.value.thread) == (FaultKind.OUT_OF_BOUNDS, (16, 0, 0))


def test_what_kernels_print() -> None:
    before = """
    .extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
    .global .align 1 .b8 pattern[] = "%d %5.2f|%s|%llx %c%%\\n";
    .global .align 1 .b8 word[] = "word";
    """
    body = """
    .local .align 8 .b8 values[40];
    mov.u64 %d3, values;
    st.local.u32 [%d3], %r3;
    st.local.f64 [%d3+8], 0d3FF8000000000000;
    mov.u64 %d4, word;
    st.local.u64 [%d3+16], %d4;
    st.local.u64 [%d3+24], 0x1122334455;
    st.local.u32 [%d3+32], 65;
    cvta.local.u64 %d3, %d3;
    mov.u64 %d5, pattern;
    { .param .b64 a; .param .b64 b; .param .b32 r;
      st.param.b64 [a], %d5; st.param.b64 [b], %d3;
      call.uni (r), vprintf, (a, b);
      ld.param.b32 %r4, [r]; }
    st.global.u32 [%d1], %r4;
    """
    kernel = Kernel(body, before=before)
    array = np.zeros(2, np.uint32)
    kernel.run(array, block=2)
    assert kernel.device.take_printed() == b"0  1.50|word|1122334455 A%\n1  1.50|word|1122334455 A%\n"
    assert kernel.device.take_printed() == b""
    assert array.tolist() == [5, 5]


def test_malloc_and_free_of_kernels() -> None:
    before = (".extern .func (.param .b64 r) malloc(.param .b64 a);\n.extern .func free(.param .b64 a);")
    body = """
    { .param .b64 a; .param .b64 r;
      st.param.b64 [a], 16;
      call.uni (r), malloc, (a);
      ld.param.b64 %d3, [r]; }
    st.u32 [%d3+12], %r3;
    ld.u32 %r4, [%d3+12];
    st.global.u32 [%d1], %r4;
    { .param .b64 a; st.param.b64 [a], %d3; call.uni free, (a); }
    {AFTER}
    """
    assert words(body.replace("{AFTER}", ""), before=before).tolist() == list(range(32))
    with pytest.raises(DeviceFaultError, match="outside every allocation"):
        words(body.replace("{AFTER}", "ld.u32 %r4, [%d3];"), before=before)


def test_other_functions_without_a_body_are_refused_by_name() -> None:
    before = ".extern .func other(.param .b32 a);"
    with pytest.raises(PtxRefusedError, match="other has no body"):
        words("    call other, (%r3);", before=before)


def test_names_of_inner_scopes() -> None:
    body = """
    .reg .u32 a;
    mov.u32 a, 1;
    { .reg .u32 a; mov.u32 a, 5; DONE: setp.eq.u32 %p0, a, 5; @!%p0 bra DONE; }
    { .reg .u32 a; mov.u32 a, 6; DONE: setp.eq.u32 %p1, a, 6; @!%p1 bra DONE; }
    st.global.u32 [%d1], a;
    """
    assert (words(body) == 1).all()


def test_blocks_of_three_dimensions_that_fill_no_warp() -> None:
    body = """
    mov.u32 %r4, %tid.y;
    mov.u32 %r5, %tid.z;
    mov.u32 %r6, %ntid.x;
    mov.u32 %r7, %ntid.y;
    mad.lo.u32 %r8, %r5, %r7, %r4;
    mad.lo.u32 %r8, %r8, %r6, %r3;
    mul.wide.u32 %d3, %r8, 4;
    add.u64 %d3, %d0, %d3;
    vote.sync.ballot.b32 %r10, 1, -1;
    st.global.u32 [%d3], %r10;
    """
    array = np.zeros(42, np.uint32)
    Kernel(body).run(array, block=(3, 7, 2))
    assert array.tolist() == [0xFFFFFFFF] * 32 + [0x3FF] * 10


def test_a_parameters_address_lies_in_the_window_of_global_memory() -> None:
    # As an H200 answers, and PTX ISA 5.1.7 says.
    places = "\n".join(
        f"    isspacep.{space} %p1, %d4;\n    selp.u32 %r5, 1, 0, %p1;\n    st.global.u32 [%d0+{4 * place}], %r5;"
        for place, space in enumerate(["global", "const", "local", "shared", "param"])
    )
    out = np.zeros(8, np.uint32)
    Kernel(f"    mov.u64 %d3, p0;\n    cvta.param.u64 %d4, %d3;\n{places}").run(out, block=1)
    assert out[:5].tolist() == [1, 0, 0, 0, 1]
