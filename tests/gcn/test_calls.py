"""Where calls lead: addresses are followed to the calls that take them, and what else takes one is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.calls import Calls, FunctionCalls
from neutrino.gcn.code import Module, decode, split_target
from neutrino.gcn.llvm import Llvm
from tests.gcn.objects import code_objects, need_llvm

KERNEL, CALLED, OTHER = 0x1000, 0x8000, 0x9000
ADDRESS = "s_getpc_b64 s[{0}:{1}]\ns_add_u32 s{0}, s{0}, {2}@rel32@lo+4\ns_addc_u32 s{1}, s{1}, {2}@rel32@hi+12\n"
CALL = "s_swappc_b64 s[30:31], s[{0}:{1}]\n"


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    return need_llvm()


def calls(llvm: Llvm, text: str, called: str = "s_setpc_b64 s[30:31]", *, kernel: bool = True) -> FunctionCalls:
    """The calls of a function at KERNEL; ``f`` and ``g`` in its text are functions at CALLED and OTHER."""
    symbols = {"f": CALLED - KERNEL, "g": OTHER - KERNEL}
    rows = [("kernel", KERNEL, llvm.assemble(f"{text}\ns_endpgm", "gfx942", symbols=symbols), kernel, 64)]
    rows += [(name, at, llvm.assemble(called, "gfx942"), False, 64) for name, at in (("f", CALLED), ("g", OTHER))]
    module = decode(rows, "gfx942", "", llvm)
    function = module.function("kernel")
    assert function is not None
    return Calls(module, 9).calls_of(function)


def address(register: int, name: str = "f") -> str:
    return ADDRESS.format(register, register + 1, name)


def call(register: int) -> str:
    return CALL.format(register, register + 1)


SPILL = "v_writelane_b32 v1, s4, 7\nv_writelane_b32 v1, s5, 8\n"
RELOAD = "v_readlane_b32 s8, v{0}, 7\nv_readlane_b32 s9, v{0}, 8\n"
ALL_LANES = "s_or_saveexec_b64 s[34:35], -1\n"
JUMP = "s_getpc_b64 s[8:9]\nhere:\ns_add_u32 s8, s8, {0}-here\ns_addc_u32 s9, s9, lit(0xffffffff)\ns_setpc_b64 s[8:9]\n"
LOOP = "loop:\n{}s_cbranch_scc1 loop\n"


@pytest.mark.parametrize("text", [
    address(4) + call(4),
    address(4) + "s_mov_b64 s[6:7], s[4:5]\ns_mov_b64 s[4:5], 0\n" + call(6),
    address(4) + "s_mov_b32 s8, s4\ns_mov_b32 s9, s5\n" + call(8),
    # In lanes, in an accumulator and in stack slots.
    address(4) + SPILL + "s_mov_b64 s[4:5], 0\n" + RELOAD.format(1) + call(8),
    address(4) + SPILL + ALL_LANES + "v_accvgpr_write_b32 a3, v1\nv_accvgpr_read_b32 v2, a3\n" + RELOAD.format(2)
    + call(8),
    address(4) + SPILL + ALL_LANES + "scratch_store_dword off, v1, s33 offset:16\nv_mov_b32 v1, 0\n"
    "scratch_load_dword v2, off, s33 offset:16\n" + RELOAD.format(2) + call(8),
    # In registers that a called function keeps, around a loop; and a jump at the end.
    address(34) + LOOP.format(call(34)),
    "s_cbranch_scc1 other\n" + address(4) + "s_branch join\nother:\n" + address(4) + "join:\n" + call(4),
    address(4) + "s_setpc_b64 s[4:5]\n",
    f"s_call_b64 s[30:31], {(CALLED - KERNEL - 4) // 4}\n",
])  # fmt: skip
def test_an_address_is_followed_to_its_call(llvm: Llvm, text: str) -> None:
    found = calls(llvm, text)
    assert [row.function.name for row in found.called] == ["f"]
    assert found.unknown == ()
    assert found.escaped == frozenset()


def test_a_jump_within_the_function_is_no_call(llvm: Llvm) -> None:
    text = "place:\ns_nop 0\n" + address(4) + call(4) + JUMP.format("place")
    assert calls(llvm, f"s_nop 1\n{text}").unknown == ()
    # What it leads to is not known to have what was in front of it.
    (unknown,) = calls(llvm, address(4) + "place:\n" + call(4) + JUMP.format("place")).unknown
    assert unknown.startswith("s_swappc_b64")


def test_a_return_is_no_call(llvm: Llvm) -> None:
    assert calls(llvm, "s_setpc_b64 s[30:31]", kernel=False) == FunctionCalls()
    assert calls(llvm, "s_setpc_b64 s[30:31]").unknown


@pytest.mark.parametrize("text", [
    "s_load_dwordx2 s[4:5], s[0:1], 0x0\n" + call(4),
    address(4) + "s_mov_b32 s5, 0\n" + call(4),
    address(4) + "s_mov_b32 s6, s5\ns_mov_b32 s7, s4\n" + call(6),
    address(4) + "s_cbranch_scc1 join\ns_mov_b64 s[4:5], s[8:9]\njoin:\n" + call(4),
    address(4) + "s_cbranch_scc1 join\n" + address(4, "g") + "join:\n" + call(4),
    address(4) + SPILL + "v_writelane_b32 v1, s0, 7\n" + RELOAD.format(1) + call(8),
    address(4) + SPILL + "v_mov_b32 v1, 0\n" + RELOAD.format(1) + call(8),
    # Only some lanes are copied; a slot, and its frame, are written in between.
    address(4) + SPILL + "v_accvgpr_write_b32 a3, v1\nv_accvgpr_read_b32 v2, a3\n" + RELOAD.format(2) + call(8),
    address(4) + SPILL + ALL_LANES + "scratch_store_dword off, v1, s33 offset:16\n"
    "scratch_store_dwordx2 off, v[4:5], s33 offset:16\nscratch_load_dword v2, off, s33 offset:16\n"
    + RELOAD.format(2) + call(8),
    address(4) + SPILL + ALL_LANES + "scratch_store_dword off, v1, s33 offset:16\ns_add_i32 s33, s33, 64\n"
    "scratch_load_dword v2, off, s33 offset:16\n" + RELOAD.format(2) + call(8),
    "s_setpc_b64 s[4:5]\n",
])  # fmt: skip
def test_what_is_not_the_same_on_all_ways_is_not_known(llvm: Llvm, text: str) -> None:
    assert calls(llvm, text).unknown


def test_what_a_called_function_changes_is_not_known_behind_its_call(llvm: Llvm) -> None:
    text = address(4) + "s_mov_b64 s[6:7], s[4:5]\n" + call(4) + call(6)
    assert calls(llvm, text).unknown == ()
    changing = "s_mov_b32 s6, 0\nv_mov_b32 v1, 0\ns_setpc_b64 s[30:31]"
    assert calls(llvm, text, changing).unknown
    # What it restores is another matter.
    assert calls(llvm, address(34) + call(34) + call(34), "s_mov_b32 s34, 0\ns_setpc_b64 s[30:31]").unknown == ()


@pytest.mark.parametrize("use", [
    "v_mov_b32 v0, s4\n", "s_cmp_eq_u64 s[4:5], s[8:9]\n", "s_add_u32 s8, s4, 8\n", "s_cselect_b32 s8, s5, 0\n",
    SPILL + "global_store_dword v[2:3], v1, off\n", "s_mov_b64 s[10:11], s[4:5]\nv_mov_b32 v0, s11\n",
    SPILL + ALL_LANES + "scratch_store_dword off, v1, s33\nscratch_load_dword v2, off, s33\nv_add_u32 v3, v2, v2\n",
])  # fmt: skip
def test_an_address_that_is_used_otherwise_is_said_so(llvm: Llvm, use: str) -> None:
    found = calls(llvm, address(4) + use + call(4))
    (row,) = found.called
    assert found.escaped == row.origins == {0}
    # Other addresses of the function are not concerned.
    found = calls(llvm, address(4) + use + address(12) + call(12))
    assert found.escaped == {0}
    assert 0 not in found.called[0].origins


def test_a_function_may_be_given_an_address(llvm: Llvm) -> None:
    text = address(4, "g") + address(8) + call(8)
    assert calls(llvm, text).escaped == frozenset()
    assert calls(llvm, text, "v_mov_b32 v0, s5\ns_setpc_b64 s[30:31]").escaped == {0}


def modules(paths: dict[str, Path], llvm: Llvm, *names: str) -> list[Module]:
    found = []
    for name in names:
        functions = code_object_functions(paths[name].read_bytes(), name)
        processor, features = split_target(functions.target)
        decoded = decode(functions.functions, processor, features, llvm)
        found.append(Module(processor, features, decoded.functions, functions.pointed))
    return found


def test_what_kernels_of_a_compiler_reach(llvm: Llvm) -> None:
    paths = code_objects()
    for module in modules(paths, llvm, "gfx90a-O0", "gfx1030-O2", "gfx1100-O0", "gfx942-O2"):
        found = Calls(module, 9 if module.processor.startswith("gfx9") else int(module.processor[3:5]))
        for kernel in module.functions:
            if not kernel.is_kernel:
                continue
            reach = found.reach(kernel)
            names = {function.name for function in reach.originals}
            assert bool(reach.unknown) == bool(names) == (kernel.name == "pointers")
            if kernel.name == "pointers":
                assert {"_Z6sum_ofjj", "_Z13difference_ofjj", "_Z10product_ofjj"} <= names
                assert "_Z10polynomialfj" not in names
            if kernel.name == "recursion":
                assert reach.copied[-1].name == "_Z9ackermannjj"
                assert reach.redirected[-1] == {literal.get_pc for literal in reach.copied[-1].literals}
