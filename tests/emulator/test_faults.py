"""What a kernel must not do ends its launch, and the error says what it was, where, and who did it."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.errors import DeviceFaultError, FaultKind, PtxRefusedError
from tests.emulator.kernels_by_hand import HEAD, Kernel, module_text, words


def fault(body: str, *, block: int = 32, grid: int = 1, before: str = "", **options: object) -> DeviceFaultError:
    kernel = Kernel(body, before=before, **options)
    with pytest.raises(DeviceFaultError) as caught:
        kernel.run(np.zeros(grid * block, np.uint32), grid=grid, block=block)
    error = caught.value
    assert error.kernel == "k"
    # The line is that of the statement in the text that was loaded.
    assert "".join(error.source.split()) in "".join(kernel.text.splitlines()[error.line - 1 :][:3]).replace(" ", "")
    return error


@pytest.mark.parametrize("seed", [None, 1])
def test_behind_an_allocation(seed: int | None) -> None:
    error = fault("    st.global.u32 [%d1+4], %r0;", grid=3, seed=seed)
    assert error.kind is FaultKind.OUT_OF_BOUNDS
    assert (error.block, error.thread) == ((2, 0, 0), (31, 0, 0))
    assert error.address is not None
    assert error.address % 256 == 3 * 32 * 4 % 256


def test_between_allocations() -> None:
    kernel = Kernel("    ld.global.u32 %r4, [%d0+-4];")
    with pytest.raises(DeviceFaultError, match="outside every allocation"):
        kernel.run(np.zeros(8, np.uint32))


def test_an_access_that_begins_inside_and_ends_outside() -> None:
    error = fault("    and.b32 %r4, %r0, 28;\n    mul.wide.u32 %d3, %r4, 4;\n    add.s64 %d3, %d0, %d3;\n"
                  "    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d3+16];")
    assert error.kind is FaultKind.OUT_OF_BOUNDS
    assert error.thread == (28, 0, 0)


def test_freed_memory() -> None:
    device = Device(memory=1 << 20)
    function = device.load(module_text("    ld.global.u32 %r4, [%d0];")).functions["k"]
    address = device.allocate(64)
    device.launch(function, (1, 1, 1), (1, 1, 1), [address])
    device.free(address)
    with pytest.raises(DeviceFaultError) as caught:
        device.launch(function, (1, 1, 1), (1, 1, 1), [address])
    assert caught.value.address == address


@pytest.mark.parametrize(
    ("body", "address"),
    [
        ("    ld.global.u64 %d4, [%d0+4];", 4),
        ("    st.global.v4.f32 [%d0+8], {%f0, %f1, %f2, %f3};", 8),
        ("    atom.global.add.u32 %r4, [%d0+2], 1;", 2),
        ("    ld.u16 %h0, [%d0+1];", 1),
    ],
)
def test_misaligned(body: str, address: int) -> None:
    error = fault(body)
    assert error.kind is FaultKind.MISALIGNED
    assert error.address is not None
    assert error.address % 256 == address


def test_only_the_threads_of_the_guard_are_looked_at() -> None:
    array = words("    setp.lt.u32 %p0, %r0, 31;\n    @%p0 st.global.u32 [%d1+4], %r0;")
    assert array.tolist() == [0, *range(31)]


def test_shared_memory_has_an_end() -> None:
    before = ".shared .align 4 .b8 room[64];"
    error = fault("    mul.lo.u32 %r4, %r0, 4;\n    mov.u32 %r5, room;\n    add.u32 %r5, %r5, %r4;\n"
                  "    st.shared.u32 [%r5], %r0;", before=before)
    assert (error.kind, error.thread, error.address) == (FaultKind.OUT_OF_BOUNDS, (16, 0, 0), 64)


def test_local_memory_has_an_end() -> None:
    error = fault("    .local .align 8 .b8 room[16];\n    mov.u64 %d4, room;\n    st.local.u32 [%d4+16], %r0;")
    assert (error.kind, error.address) == (FaultKind.OUT_OF_BOUNDS, 16)


def test_constants_are_not_written() -> None:
    before = ".const .align 4 .b32 c[4] = {1, 2, 3, 4};"
    with pytest.raises(PtxRefusedError, match="cannot be written"):
        Kernel("    st.const.u32 [c], %r0;", before=before).run(np.zeros(1, np.uint32))
    error = fault("    mov.u64 %d4, c;\n    cvta.const.u64 %d4, %d4;\n    st.u32 [%d4], %r0;", before=before)
    assert error.kind is FaultKind.OUT_OF_BOUNDS
    assert "constant" in str(error)


def test_parameters_are_not_written() -> None:
    with pytest.raises(PtxRefusedError, match="cannot be written"):
        Kernel("    st.param.u64 [p0], %d0;").run(np.zeros(1, np.uint32))


def test_a_constant_load_of_global_memory() -> None:
    error = fault("    ld.const.u32 %r4, [%d0];")
    assert "not in constant memory" in str(error)


def test_trap_names_the_first_thread() -> None:
    error = fault("    setp.gt.u32 %p0, %r0, 40;\n    @%p0 trap;", grid=2)
    assert (error.kind, error.block, error.thread) == (FaultKind.TRAP, (1, 0, 0), (9, 0, 0))


@pytest.mark.parametrize("seed", [None, 5])
def test_a_barrier_that_not_all_reach(seed: int | None) -> None:
    error = fault("    setp.lt.u32 %p0, %r3, 32;\n    @%p0 bar.sync 1, 64;", block=64, seed=seed)
    assert error.kind is FaultKind.DEADLOCK
    assert error.source.endswith("bar.sync 1, 64;")


def test_threads_that_have_ended_are_not_waited_for() -> None:
    array = words(
        "    setp.lt.u32 %p0, %r3, 40;\n    @%p0 exit;\n    bar.sync 0;\n    st.global.u32 [%d1], 7;", block=64
    )
    assert array.tolist() == [0] * 40 + [7] * 24


def test_a_shuffle_whose_partners_wait_elsewhere() -> None:
    error = fault(
        "    setp.lt.u32 %p0, %r3, 16;\n    @%p0 bra OTHER;\n    shfl.sync.idx.b32 %r4, %r3, 0, 31, -1;\n"
        "    bra DONE;\n"
        "OTHER:\n    shfl.sync.idx.b32 %r4, %r3, 1, 31, -1;\nDONE:"
    )
    assert error.kind is FaultKind.DEADLOCK
    assert "16 threads wait here, 16 elsewhere" in str(error)


def test_an_endless_loop() -> None:
    error = fault("AGAIN:\n    bra AGAIN;", step_limit=1000)
    assert error.kind is FaultKind.STEP_LIMIT


def test_a_jump_beyond_the_table() -> None:
    error = fault("    add.u32 %r4, %r3, 0;\n    min.u32 %r4, %r4, 2;\nlist: .branchtargets A, B;\n"
                  "    brx.idx %r4, list;\nA:\nB:")
    assert (error.kind, error.thread) == (FaultKind.BAD_CALL, (2, 0, 0))


def test_a_call_of_what_is_no_function() -> None:
    error = fault("    mov.u64 %d4, 77;\nshape: .callprototype _ ();\n    call %d4, shape;")
    assert (error.kind, error.address) == (FaultKind.BAD_CALL, 77)


def test_recursion_without_end() -> None:
    before = ".func deeper()\n{\n    .local .b8 room[1024];\n    call deeper;\n    ret;\n}\n"
    error = fault("    call deeper;", before=before)
    assert error.kind is FaultKind.OUT_OF_BOUNDS


def test_a_barrier_object_that_is_none() -> None:
    before = ".shared .align 8 .b64 gate;"
    error = fault("    mbarrier.arrive.shared.b64 %d4, [gate];", before=before)
    assert "no mbarrier" in str(error)


@pytest.mark.parametrize(
    "statement",
    [
        "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f0, %f1}];",
        "wgmma.fence.sync.aligned;",
        "add.s32 %r0, %r1;",
        "add.s32 %r0, %r1, %missing;",
        "nonsense.u32 %r0, %r1;",
        "bra NOWHERE;",
        "add.f32 %f0, %f1, %d0;",
        "ld.global.u64 %r0, [%d0];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%d0, {%r1}], [%r2];",
    ],
)
def test_what_it_does_not_do_is_quoted(statement: str) -> None:
    with pytest.raises(PtxRefusedError) as caught:
        Kernel(f"    {statement}").run(np.zeros(32, np.uint32))
    error = caught.value
    assert error.source == statement
    assert module_text(f"    {statement}").splitlines()[error.line - 1].strip() == statement


@pytest.mark.parametrize(
    "mark",
    [
        "// Generated by NVIDIA NVVM Compiler",
        "// Compiler Build ID: CL-34097967",
        "/*\n * Cuda compilation tools, release 12.4, V12.4.131\n */",
        "// Based on NVVM 7.0.1",
    ],
)
def test_what_nvcc_made_is_refused(mark: str) -> None:
    with pytest.raises(PtxRefusedError, match="licence"):
        Device(memory=1 << 16).load(f"//\n{mark}\n//\n" + module_text(""))


def test_what_nvcc_made_is_refused_by_its_debug_information() -> None:
    section = ".section .debug_str\n{\ninfo:\n.b8 " + ",".join(str(byte) for byte in b"lgenfe: EDG 6.6\0") + "\n}\n"
    with pytest.raises(PtxRefusedError, match="licence"):
        Device(memory=1 << 16).load(module_text("") + section)
    clang = ".section .debug_str\n{\ninfo:\n.b8 " + ",".join(str(byte) for byte in b"clang version 19\0") + "\n}\n"
    assert "k" in Device(memory=1 << 16).load(module_text("") + clang).functions


def test_launches_that_cannot_be() -> None:
    device = Device(memory=1 << 20)
    text = f"{HEAD}.entry k(.param .u32 a) .reqntid 64, 1, 1\n{{\n    ret;\n}}"
    function = device.load(text).functions["k"]
    device.launch(function, (1, 1, 1), (64, 1, 1), [1])
    for grid, block, arguments, shared in [
        ((0, 1, 1), (64, 1, 1), [1], 0),
        ((1, 1, 1), (32, 1, 1), [1], 0),
        ((1, 1, 1), (64, 32, 1), [1], 0),
        ((1, 1, 1), (64, 1, 1), [1, 2], 0),
        ((1, 1, 1), (64, 1, 1), [b"12345678"], 0),
        ((1, 1, 1), (64, 1, 1), [1], 1 << 20),
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            device.launch(function, grid, block, arguments, shared=shared)


def test_clusters_are_refused() -> None:
    device = Device(memory=1 << 20)
    function = device.load(f"{HEAD}.entry k() .reqnctapercluster 2, 1, 1\n{{\n    ret;\n}}").functions["k"]
    with pytest.raises(PtxRefusedError, match="clusters"):
        device.launch(function, (2, 1, 1), (64, 1, 1), [])


def test_a_vector_with_elements_of_no_bytes_is_refused() -> None:
    with pytest.raises(PtxRefusedError, match="vector of the wrong size"):
        Kernel("    mov.b16 %h0, {%h1, %h2, %h3, %h4};").run(np.zeros(1, np.uint32))
