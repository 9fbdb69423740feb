"""Kernels that leave few registers: probes record what a model says, and results keep their bits."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import copy_names
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.code import decode, split_target, wave_features, written
from neutrino.gcn.instrument import spare_registers
from neutrino.gcn.instrument.hazards import with_fences
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import registers_of
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.snippets.meaning import typed
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.emulator.gcn import judge
from tests.gcn.objects import need_clang, need_llvm
from tests.gcn.probe_model import Shape
from tests.gcn.sgpr_hazards import missing_waits, new_hazards, read_by_vectors
from tests.gcn.test_instrument_probes import DEEP, FLAT, judged
from tests.gcn.twin_reader import listing_of, read_twin

_LAST = {"gfx1201": 103, "gfx1100": 103, "gfx90a": 99, "gfx942": 99}
"""The highest of the SGPRs that the kernel below names; the processor has two or three more."""
_CROWDED = """
typedef unsigned u32;
typedef unsigned long u64;
extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 128)))
void crowded(const u64 *a, const u64 *b, u64 *o) {{
    const int i = __builtin_amdgcn_workgroup_id_x() * 128 + __builtin_amdgcn_workitem_id_x();
    asm volatile("{first}" ::: {names});
    u64 x = a[i], sum = 0;
    u32 y = 0;
    for (int turn = 0; turn < 3; turn++) {{
        if (x >> turn & 1) sum += b[i] >> turn;
        asm volatile("{turn}" : "+v"(y) :: {names});
        o[i] = sum + y;
    }}
    asm volatile("{last}" : "+v"(y) :: {names});
    o[i] = sum + y;
}}
"""
"""All SGPRs from the 10th on have values all the time."""


def _crowded(folder: Path, processor: str, options: tuple[str, ...] = (), last_one: int = 0) -> bytes:
    """A code object with a kernel that leaves two or three SGPRs, or those after another last one."""
    numbers = range(10, (last_one or _LAST[processor]) + 1)
    wait = ["s_wait_alu depctr_sa_sdst(0)"] if processor == "gfx1201" else []
    first = [f"s_mov_b32 s{one}, {one * 40503:#x}" for one in numbers]
    turn: list[str] = []
    for one in numbers[::2]:
        # Vector instructions read every other pair alone.
        write = [f"s_xor_b32 s{one}, s{one}, s{one + 1}"]
        read = [f"v_xor_b32 %0, s{one}, %0"]
        turn += [*read, *write, *wait, *read] if one % 4 else [*write, f"s_xor_b32 s{one + 1}, s{one}, s{one + 1}"]
    last = [line for one in numbers[:-2] for line in (f"s_xor_b32 s{numbers[-1]}, s{numbers[-1]}, s{one}", *wait)]
    last.append(f"v_xor_b32 %0, s{numbers[-1]}, %0")
    if processor.startswith("gfx9"):
        # Wait states between the vector instruction and what compilers put behind it are theirs.
        turn, last = ([*lines, "s_nop 4"] for lines in (turn, last))
    texts = {name: "\\n".join(lines) for name, lines in (("first", first), ("turn", turn), ("last", last))}
    source = folder / "crowded.hip"
    source.write_text(_CROWDED.format(**texts, names=", ".join(f'"s{one}"' for one in numbers)))
    built = folder / f"crowded-{processor}.hsaco"
    subprocess.run(
        [need_clang(), "-x", "hip", f"--offload-arch={processor}", "--offload-device-only", "-nogpuinc", "-nogpulib",
         "--no-gpu-bundle-output", "-w", "-O1", *options, str(source), "-o", str(built)],
        check=True, capture_output=True,
    )  # fmt: skip
    return built.read_bytes()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    need_clang()
    folder = tmp_path_factory.mktemp("shortage")
    return {
        name: judge.compile_for_gpu(folder, name.partition("-")[0], options)
        for name, options in (
            ("gfx942-O0", ("-O0",)), ("gfx90a-O0", ("-O0",)), ("gfx1030-O0", ("-O0",)),
        )
    }  # fmt: skip


@pytest.mark.parametrize(
    ("processor", "options", "probes"),
    [
        ("gfx1201", (), ("inst_count", "opcode_mix", "block_sched")),
        ("gfx1201", (), ("value_watch", "gmem_bytes", "work_per_warp")),
        ("gfx1201", ("-mwavefrontsize64",), ("inst_count", "value_watch")),
        ("gfx1100", (), ("gmem_bytes",)),
        ("gfx942", (), ("inst_count",)),
    ],
)
def test_kernels_that_name_nearly_all_scalar_registers(
    tmp_path: Path, processor: str, options: tuple[str, ...], probes: tuple[str, ...]
) -> None:
    data = _crowded(tmp_path, processor, options)
    for probe in probes:
        assert judged(load_probes([probe], platform="hip"), data, ["crowded"], FLAT)


@pytest.mark.parametrize(("processor", "last_one"), [("gfx1100", 81), ("gfx1201", 85)])
def test_snippets_take_what_is_not_in_use_where_no_vector_register_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: str, last_one: int
) -> None:
    monkeypatch.setattr(spare_registers, "_spare_vectors", lambda *_: [])
    data = _crowded(tmp_path, processor, (), last_one)
    assert judged(load_probes(["inst_count"], platform="hip"), data, ["crowded"], FLAT)
    if processor == "gfx1201":
        assert _hazards(data, "inst_count", ["crowded"])[0] == []
    data = _crowded(tmp_path, processor, (), last_one + 8)
    with pytest.raises(AssertionError, match="no vector register is left"):
        judged(load_probes(["inst_count"], platform="hip"), data, ["crowded"], FLAT)


def _hazards(data: bytes, probe: str, names: list[str]) -> tuple[list[str], int]:
    """What the twins of kernels lack that their originals do not, and how many ``ds_nop`` they have."""
    llvm = need_llvm()
    target = code_object_functions(data, "built here").target
    processor, features = split_target(target)
    able, left_out = able_probes(GcnTarget(), load_probes([probe], platform="hip"))
    source = CodeObjectSource(0, target, data)
    backend = GcnTwins(source, typed(able), left_out)
    plan = backend.plan(names)
    code = backend.write(plan)
    assert not {**plan.refused, **code.refused}
    image = code_object_functions(code.image, "built here")
    module, after = decode(image.functions, processor, features, llvm), {one.name: one for one in image.functions}
    found, nops = [], 0
    for kernel, twin in zip(plan.kernels, code.twins, strict=True):
        flags = wave_features(processor, features, twin.lanes)
        places = {one.address: one for one in image.functions}
        copies = {one.function.address: name for one, name in zip(kernel.functions, copy_names(kernel), strict=True)}
        for address, name in copies.items():
            before, now = (
                listing_of(row.name, row.address, row.code, llvm.disassemble(row.code, processor, flags))
                for row in (places[address], after[name])
            )
            reading = read_twin(before, now, copies={old: after[new].address for old, new in copies.items()})
            original, written = module.function(places[address].name), module.function(name)
            assert original is not None
            assert written is not None
            registers = KernelRegisters(source.module, kernel.function, PROCESSORS[processor])
            called = [one for one in registers.functions if not one.is_kernel]
            read = read_by_vectors([*called, *filter(None, map(module.function, copies.values()))])
            found += new_hazards(original, written, dict(reading.inserted), registers.named, read)
            nops += sum(row.mnemonic == "ds_nop" for row in written.instructions)
    return found, nops


@pytest.mark.parametrize("options", [(), ("-mwavefrontsize64",)])
def test_no_scalar_register_is_read_too_early(tmp_path: Path, options: tuple[str, ...]) -> None:
    data = _crowded(tmp_path, "gfx1201", options)
    for probe in ("inst_count", "coalescing"):
        found, nops = _hazards(data, probe, ["crowded"])
        assert not found
        assert nops


@pytest.mark.parametrize("wave", [32, 64])
def test_each_fence_of_lent_registers_is_needed(wave: int) -> None:
    snippet = [
        "v_writelane_b32 v9, s4, 0", "s_mov_b32 s4, 7", "v_mov_b32_e32 v8, s4", "s_mov_b32 vcc_lo, 0",
        "v_readlane_b32 s4, v9, 0",
    ]  # fmt: skip
    choose = f"v_cndmask_b32_e32 v0, v1, v2, {'vcc' if wave == 64 else 'vcc_lo'}"
    behind = [
        choose, "s_add_co_i32 s6, s4, 1", "v_mov_b32_e32 v3, s4", "s_mov_b32 s4, 2",
        "v_mov_b32_e32 v0, s4",
    ]  # fmt: skip
    before, machine = [choose, "v_mov_b32_e32 v7, s4", "s_mov_b32 s4, 3"], Machine(PROCESSORS["gfx1201"], wave)
    named = registers_of("s4") | registers_of("s6") | registers_of("vcc")
    for after, written_later in ((behind[:3], 0), (behind[3:], registers_of("s4"))):
        fenced = with_fences(
            [[written(line) for line in before]], snippet, [[]], machine, named=named, written_later=written_later
        )
        fences = [index for index, line in enumerate(fenced) if line not in snippet]
        assert len(fences) > (wave // 8 if written_later else 2)
        assert not _lacking([*before, *fenced, *after], wave)
        # What the kernel reads first has no hazard that is the snippet's, where it reads nothing of it.
        needed = [
            index for index in fences if _lacking([*before, *fenced[:index], *fenced[index + 1 :], *after], wave)
        ]
        assert len(needed) >= len(fences) - 1, (fenced, needed)


def _lacking(lines: list[str], wave: int) -> list[set[str]]:
    """What the instructions of a kernel lack."""
    llvm = need_llvm()
    features = f"+wavefrontsize{wave},-wavefrontsize{96 - wave}"
    code = llvm.assemble("\n".join([*lines, "s_endpgm"]), "gfx1201", features)
    function = decode([("k", 0, code, True, wave)], "gfx1201", "", llvm).function("k")
    assert function is not None
    return list(missing_waits(function, wave).values())


def test_addresses_in_scalar_registers_are_forgotten_again(tmp_path: Path) -> None:
    """Vector instructions of probes read the program's SGPRs in kernels that leave enough, too."""
    data = judge.compile_for_gpu(tmp_path, "gfx1201", ("-O2",))
    found, nops = _hazards(data, "coalescing", ["exchanged", "sorted_together", "calling"])
    assert not found
    assert nops


def test_the_judge_of_scalar_registers_knows_what_llvm_writes() -> None:
    """Cases of LLVM's own tests, valu-read-sgpr-hazard.mir."""

    def lacks(*lines: str) -> list[set[str]]:
        return _lacking(list(lines), 32)

    read, write = "v_mov_b32_e32 v0, s4", "s_mov_b32 s5, 1"
    assert lacks(read, write, "v_mov_b32_e32 v1, s5") == [{"sa_sdst"}]
    assert lacks(read, write, "s_add_co_i32 s6, s5, 1") == [{"sa_sdst"}]
    assert lacks(read, write, "s_wait_alu depctr_sa_sdst(0)", "v_mov_b32_e32 v1, s5") == []
    assert lacks(write, "v_mov_b32_e32 v1, s5") == []
    assert lacks(read, *["ds_nop"] * 4, write, "v_mov_b32_e32 v1, s5") == []
    assert lacks(read, *["ds_nop"] * 3, write, "v_mov_b32_e32 v1, s5") == [{"sa_sdst"}]
    assert lacks(read, "v_readfirstlane_b32 s5, v3", "v_mov_b32_e32 v1, s5") == [{"va_sdst"}]
    assert lacks(read, "v_readfirstlane_b32 s5, v3", "s_add_co_i32 s6, s5, 1") == []
    assert lacks(read, write, "s_load_b32 s8, s[2:3], 0x0", "v_mov_b32_e32 v1, s5") == []
    choose = "v_cndmask_b32_e32 v0, v1, v2, vcc_lo"
    assert lacks(choose, "s_mov_b32 vcc_lo, 0", choose) == [{"sa_sdst"}]
    assert lacks(choose, "v_cmp_eq_u32_e32 vcc_lo, v1, v2", choose) == [{"va_vcc"}]


@pytest.mark.parametrize(
    ("build", "name", "shape", "probes"),
    [
        ("gfx942-O0", "exchanged", DEEP, ("gmem_bytes",)), ("gfx942-O0", "turned", FLAT, ("work_per_warp",)),
        ("gfx90a-O0", "scanned", FLAT, ("gmem_bytes",)), ("gfx1030-O0", "exchanged", DEEP, ("gmem_bytes",)),
    ],
)  # fmt: skip
def test_generic_addresses_and_accumulators_of_unoptimized_kernels(
    objects: dict[str, bytes], build: str, name: str, shape: Shape, probes: tuple[str, ...]
) -> None:
    # Functions that they call access scratch memory alone: the model has the kernel's own instructions.
    for probe in probes:
        assert judged(load_probes([probe], platform="hip"), objects[build], [name], shape)


def test_generic_accesses_are_counted_without_vector_registers(objects: dict[str, bytes]) -> None:
    # Each kernel on one of them: how an access is counted and how many registers there are do not depend on each other.
    for number, build in enumerate(("gfx1030-O0", "gfx90a-O0")):
        data = objects[build]
        processor = PROCESSORS[build.partition("-")[0]]
        target = code_object_functions(data, "built here").target
        able, left_out = able_probes(GcnTarget(), load_probes(["gmem_bytes"], platform="hip"))
        backend = GcnTwins(CodeObjectSource(0, target, data), typed(able), left_out)
        code = backend.write(backend.plan([kernel.name for kernel in judge.kernels()[number::2]]))
        assert not code.refused
        figures = read_code_object(code.image, "built here").kernels
        for twin in code.twins:
            before, after = figures[twin.name], figures[twin.twin_name]
            assert (before.vgprs, twin.name) == (after.vgprs, twin.name)
            assert processor.waves(before.vgprs, twin.lanes) == processor.waves(after.vgprs, twin.lanes)


def test_accumulators_begin_behind_what_a_twin_names(objects: dict[str, bytes]) -> None:
    data = objects["gfx942-O0"]
    target = code_object_functions(data, "built here").target
    able, left_out = able_probes(GcnTarget(), load_probes(["work_per_warp"], platform="hip"))
    source = CodeObjectSource(0, target, data)
    backend = GcnTwins(source, typed(able), left_out)
    plan = backend.plan([kernel.name for kernel in judge.kernels()])
    code = backend.write(plan)
    figures = read_code_object(code.image, "built here").kernels
    descriptors = CodeObjectSource(0, target, code.image).descriptors
    moved = 0
    for twin in code.twins:
        first, now = (
            4 * ((struct.unpack_from("<I", descriptors[name], 44)[0] & 63) + 1) for name in (twin.name, twin.twin_name)
        )
        before, after = figures[twin.name], figures[twin.twin_name]
        assert after.agprs == before.agprs
        assert now >= first
        if before.agprs and now > first:
            moved += 1
            assert after.vgprs - now >= before.agprs, twin.name
    assert moved > 3
