"""Which attempts are made for a kernel, and what they cost: runs of ptxas, counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import ATTEMPTS, MOST_TRIALS, Way
from neutrino.backend import ptx_parts as parts
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.maker.patcher import patch_image
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.cache_entry import Entry, read_entry
from neutrino.verification import load_probes, read_probes
from tests.maker.test_patch import wide
from tests.maker.test_pinning import DIVIDED
from tests.maker.test_pinning import HEAD as DIVISION_HEAD
from tests.maker.test_pinning import kernel as division_kernel

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
PROBE = "gmem_bytes"
LAYER_NORM = Path(__file__).parents[1] / "fixtures" / "kernels" / "triton" / "layernorm_bf16.ptx"


def kernel(code: str, name: str = "k") -> str:
    return (
        f".visible .entry {name}(.param .u64 p)\n{{\n.reg .f32 %f<9>; .reg .u64 %a; .reg .b32 %r<4>;\n"
        f"ld.param.u64 %a, [p]; ld.global.f32 %f1, [%a]; ld.global.f32 %f2, [%a+4]; ld.global.f32 %f3, [%a+8];\n"
        f"{code}\nst.global.f32 [%a+12], %f4;\nret;\n}}\n"
    )


PLAIN = "add.f32 %f4, %f1, %f2;"
TWO_PRODUCTS = "mul.f32 %f5, %f1, %f2; mul.f32 %f6, %f2, %f3; add.f32 %f4, %f5, %f6;"
"""Equal counts do not show which of the products is fused, so it is always written explicitly."""


@dataclass(frozen=True)
class Counting(Assembler):
    """A ptxas that counts its runs: texts and options. change: of what it gives, by the text."""

    runs: list[tuple[str, tuple[str, ...]]] = field(default_factory=list, compare=False)
    change: Callable[[str, Assembled], Assembled] = field(default=lambda text, made: made, compare=False)

    @property
    def capped(self) -> int:
        """Runs under a register cap."""
        return sum(".maxnreg" in text for text, _ in self.runs)

    @property
    def uncapped(self) -> int:
        """The others."""
        return len(self.runs) - self.capped

    def assemble(
        self, text: str | bytes, arch: str, options: Sequence[str] | str = (), **more: float
    ) -> Assembled:
        assert isinstance(text, str)
        self.runs.append((text, tuple(options)))
        return self.change(text, super().assemble(text, arch, options, **more))


def counting(
    assembler: Assembler, change: Callable[[str, Assembled], Assembled] = lambda text, made: made
) -> Counting:
    return Counting(assembler.path, assembler.version, assembler.identity, change=change)


def patched(image: bytes, assembler: Assembler, probes: ProbeSet | None = None) -> Entry:
    chosen = probes or load_probes([PROBE])
    return read_entry(
        patch_image(image, chosen, "sm_90", selection=Selection(), assembler=assembler, key=bytes(32)), "entry"
    )


def shipped(text: str, assembler: Assembler, arch: str = "sm_90") -> bytes:
    """Machine code with the text that it was made of."""
    cubin = assembler.assemble(text, arch).cubin
    return build_container([
        build_entry(ImageKind.CUBIN, cubin, arch), build_entry(ImageKind.PTX, text.encode(), arch),
    ])  # fmt: skip


def proofs(entry: Entry) -> set[str]:
    return {json.loads(kernel.files["manifest.json"])["numerics"]["proof"] for kernel in entry.kernels if kernel.files}


def test_a_kernel_that_is_well_costs_one(assembler: Assembler) -> None:
    ptxas = counting(assembler)
    entry = patched(shipped(HEAD + kernel(PLAIN), assembler), ptxas)
    assert (proofs(entry), ptxas.uncapped) == ({"counts"}, 1)


def test_a_kernel_without_machine_code_costs_two(assembler: Assembler) -> None:
    ptxas = counting(assembler)
    entry = patched((HEAD + kernel(PLAIN)).encode() + b"\0", ptxas)
    assert (proofs(entry), ptxas.uncapped) == ({"counts"}, 2)


def test_a_stack_frame_costs_one_more(assembler: Assembler) -> None:
    """It may hold spills, which only the assembler reports."""
    declared = "{ .local .align 4 .b32 own[64]; .reg .b64 %own, %base; .reg .b32 %at, %value;"
    used = (
        "mov.u32 %at, %tid.x; mul.wide.u32 %own, %at, 4; mov.u64 %base, own; add.u64 %own, %own, %base; "
        "st.local.u32 [%own + 4], %at; bar.sync 0; ld.local.u32 %value, [%own]; st.global.u32 [%a + 16], %value;"
    )
    framed = kernel(PLAIN + used).replace("{", declared, 1)
    ptxas = counting(assembler)
    entry = patched(shipped(HEAD + framed, assembler), ptxas)
    (manifest,) = (json.loads(kernel.files["manifest.json"]) for kernel in entry.kernels)
    assert (manifest["frame"]["original"] > 0, ptxas.uncapped) == (True, 2)


def test_explicit_fma_costs_three_more(assembler: Assembler) -> None:
    ptxas = counting(assembler)
    entry = patched(shipped(HEAD + kernel(TWO_PRODUCTS), assembler), ptxas)
    assert (proofs(entry), ptxas.uncapped) == ({"pinned"}, 5)
    assert len(set(ptxas.runs)) == len(ptxas.runs)


def test_a_division_costs_four_more(assembler: Assembler) -> None:
    """A layer norm by Triton, whose variance a product within a division is added to."""
    ptxas = counting(assembler)
    entry = patched(LAYER_NORM.read_bytes() + b"\0", ptxas, load_probes(["smem_bank_conflict"]))
    assert (proofs(entry), ptxas.uncapped) == ({"lines"}, 6)
    assert len(set(ptxas.runs)) == len(ptxas.runs)


def test_a_register_cap_costs_one(assembler: Assembler) -> None:
    ptxas = counting(assembler)
    entry = patched(shipped(wide(34), assembler), ptxas, load_probes(["block_sched"]))
    assert [kernel.reason for kernel in entry.kernels] == [Reason.PROBED]
    assert (ptxas.uncapped, ptxas.capped) == (1, 1)


def test_a_twin_with_explicit_fma_waits_for_no_more_than_its_original(assembler: Assembler) -> None:
    """It is read again, with the loops of the probe, which depend on what they read."""
    ptxas = counting(assembler)
    entry = patched(LAYER_NORM.read_bytes() + b"\0", ptxas, load_probes(["dmat"]))
    assert (proofs(entry), [kernel.fewer_blocks for kernel in entry.kernels]) == ({"lines"}, [FewerBlocks.ANY])


def test_fewer_registers_than_the_assembler_takes_cost_one(assembler: Assembler) -> None:
    ptxas = counting(assembler)
    entry = patched(LAYER_NORM.with_name("softmax_sm_90.ptx").read_bytes() + b"\0", ptxas, load_probes(["dmat"]))
    manifest = json.loads(entry.kernels[0].files["manifest.json"])
    caps = [int(cap) for text, _ in ptxas.runs for cap in re.findall(r"\.maxnreg (\d+)", text)]
    # With the original's it spills much; with some more hardly.
    assert (ptxas.capped, caps[0] < caps[1], manifest["maxnreg"]) == (2, True, caps[1])
    assert sum(manifest["spills"]["twin"].values()) <= 48 < sum(manifest["spills"]["capped"].values())


def test_an_unknown_assembly_is_tried_without_fusing(assembler: Assembler) -> None:
    """A cubin that keeps its PTX, of a kernel assembled without fusing: nothing says so."""
    text = HEAD + kernel("mul.f32 %f5, %f1, %f2; add.f32 %f4, %f5, %f3;")
    cubin = assembler.assemble(text, "sm_90", ("-lineinfo", "--fmad=false")).cubin
    ptxas = counting(assembler)
    entry = patched(cubin, ptxas)
    assert [kernel.reason for kernel in entry.kernels] == [Reason.PROBED]
    unfused = [text for text, options in ptxas.runs if "--fmad=false" in options and ".maxnreg" not in text]
    assert unfused
    assert ptxas.uncapped <= 2 + 4 + 2


def test_the_most_that_a_kernel_costs(assembler: Assembler, tmp_path: Path) -> None:
    """A probe that reads a copy of a quotient, through which it is fused, is refused by each attempt."""
    code = DIVIDED.replace("sub.f32 %f5, %f5, %f3", "mov.f32 %f6, %f3; sub.f32 %f5, %f5, %f6")
    text = DIVISION_HEAD + division_kernel(code)
    probe = tmp_path / "reads.toml"
    probe.write_text(
        '[map.Value]\ntype = "array"\nlevel = "thread"\ncap = 8\ndata = { value = "u32" }\n'
        '[probe.value]\nposition = "mov.f32"\nlevel = "thread"\nafter = "SAVE [ Value ] { OUT.bits };"\n'
    )
    cubin = assembler.assemble(text, "sm_90a", ("-lineinfo",)).cubin
    ptxas = counting(assembler)
    entry = patched(cubin, ptxas, load_probes([str(probe)]))
    assert [kernel.reason for kernel in entry.kernels] == [Reason.NUMERICS]
    made = {tuple(option for option in options if option in {"-lineinfo", "--fmad=false"}) for _, options in ptxas.runs}
    assert made >= {(), ("-lineinfo",), ("--fmad=false",)}
    assert 2 + 4 + 2 <= len(ptxas.runs) <= 13
    assert len(set(ptxas.runs)) == len(ptxas.runs)
    # What is said is what stood against it as its text was first assembled.
    assert "in the original" in entry.kernels[0].detail


def refused(pattern: str) -> Callable[[str, Assembled], Assembled]:
    def change(text: str, made: Assembled) -> Assembled:
        if re.search(pattern, text):
            raise AssemblyError(["ptxas"], 255, "ptxas fatal   : refused")
        return made

    return change


def test_one_refused_twin_costs_a_run_for_each_and_one(assembler: Assembler) -> None:
    count = 5
    text = HEAD + "".join(kernel(PLAIN, f"k{number}") for number in range(count))
    ptxas = counting(assembler, refused("k3__neutrino"))
    entry = patched(shipped(text, assembler), ptxas)
    assert [kernel.name for kernel in entry.kernels if kernel.reason is not Reason.PROBED] == ["k3"]
    assert ptxas.uncapped == 2 + count + 1


def test_several_kernels_of_a_module_cost_no_more_than_one(assembler: Assembler) -> None:
    text = HEAD + "".join(kernel(TWO_PRODUCTS, f"k{number}") for number in range(6))
    ptxas = counting(assembler)
    entry = patched(shipped(text, assembler), ptxas)
    assert (proofs(entry), ptxas.uncapped) == ({"pinned"}, 5)


def test_parts_cost_as_much_each(assembler: Assembler) -> None:
    count = 4
    text = HEAD + "".join(kernel(PLAIN, f"k{number}") for number in range(count))
    ptxas = counting(assembler)
    with mock.patch.object(parts, "PART_SIZE", 1), mock.patch.object(parts, "_TIMES_COMMON", 0):
        entry = patched(shipped(text, assembler), ptxas)
    assert len(entry.images) > 1
    assert ptxas.uncapped == count


def test_a_part_that_cannot_be_cut_out_is_assembled_with_all(assembler: Assembler) -> None:
    count = 4
    text = HEAD + "".join(kernel(PLAIN, f"k{number}") for number in range(count))
    text += ".visible .global .align 8 .u64 table[1] = {k2};\n"
    ptxas = counting(assembler)
    with mock.patch.object(parts, "PART_SIZE", 1), mock.patch.object(parts, "_TIMES_COMMON", 0):
        entry = patched(text.encode() + b"\0", ptxas)
    assert {kernel.reason for kernel in entry.kernels} == {Reason.PROBED}
    assert len(entry.images) == 1


def test_the_attempts_are_these_in_this_order() -> None:
    assert [(attempt.way, attempt.in_parts, attempt.unfused) for attempt in ATTEMPTS] == [
        (Way.AS_WRITTEN, True, False), (Way.AS_WRITTEN, False, False), (Way.EXPLICIT_FMA, False, False),
        (Way.AS_WRITTEN, False, True), (Way.EXPLICIT_FMA, False, True),
        (Way.CAPPED, False, False), (Way.FEWER_REGISTERS, False, False),
    ]  # fmt: skip


def test_outcomes_are_values(assembler: Assembler) -> None:
    """The same image twice gives the same entry, whatever was tried before."""
    image = shipped(HEAD + kernel(TWO_PRODUCTS), assembler)
    assert patched(image, assembler) == patched(image, replace(assembler))


def marked(*numbers: int) -> ProbeSet:
    """Probes with maps of their own, each known in a text by the number that it adds."""
    return read_probes("marked.toml", 'platform = "cuda"\n' + "".join(
        f'[map.M{number}]\ntype = "array"\nlevel = "thread"\ndata = {{ value = "u64" }}\n'
        f'[probe.p{number}]\nposition = "st.global"\nlevel = "thread"\n'
        f'before = ".reg .b64 %t$; mov.u64 %t$, {number}; SAVE [ M{number} ] {{ %t$ }};"\n'
        for number in numbers
    ))  # fmt: skip


def names_left_out(entry: Entry) -> list[list[str]]:
    manifests = [json.loads(kernel.files["manifest.json"]) for kernel in entry.kernels if kernel.files]
    return [[probe["probe"] for probe in manifest.get("probes_left_out", [])] for manifest in manifests]


@pytest.mark.parametrize(
    ("bad", "runs"),
    [((0,), 4), ((1,), 3), ((3,), 2), ((0, 1, 2), 6), ((1, 2), 5)],
    ids=str,
)
def test_probes_that_the_assembler_refuses_are_left_out_at_a_cost_that_is_known(
    bad: tuple[int, ...], runs: int, assembler: Assembler
) -> None:
    """runs: of ptxas, after the twin with all probes and the original were assembled."""
    numbers = [7001, 7002, 7003, 7004]
    pattern = "|".join(f"mov.u64 .*, {numbers[index]};" for index in bad)
    ptxas = counting(assembler, refused(pattern))
    text = shipped(HEAD + kernel(PLAIN), assembler)
    entry = patched(text, ptxas, marked(*numbers))
    assert names_left_out(entry) == [[f"p{numbers[index]}" for index in bad]]
    assert len(ptxas.runs) == 2 + runs
    assert len(set(ptxas.runs)) == len(ptxas.runs)
    assert entry.kernels[0].reason is Reason.PROBED
    assert all(f"probe 'p{numbers[index]}' is left out" in entry.kernels[0].detail for index in bad)


def test_a_kernel_whose_every_probe_is_refused_is_refused_for_the_reason_of_all(assembler: Assembler) -> None:
    ptxas = counting(assembler, refused("mov.u64 .*, 700[0-9];"))
    entry = patched(shipped(HEAD + kernel(PLAIN), assembler), ptxas, marked(7001, 7002))
    assert [kernel.reason for kernel in entry.kernels] == [Reason.ASSEMBLER]
    assert len(ptxas.runs) == 2 + 2


def test_the_search_for_probes_to_leave_out_ends(assembler: Assembler) -> None:
    """Every other of many is refused: after so many trials what was not tried alone is left out, too, and says so."""
    numbers = list(range(7000, 7016))
    ptxas = counting(assembler, refused("mov.u64 .*, 70[0-9][13579];"))
    entry = patched(shipped(HEAD + kernel(PLAIN), assembler), ptxas, marked(*numbers))
    assert len(ptxas.runs) == 2 + MOST_TRIALS
    assert entry.kernels[0].reason is Reason.PROBED
    (left,) = names_left_out(entry)
    assert {f"p{number}" for number in numbers if number % 2} <= {*left} < {f"p{number}" for number in numbers}
    assert "was not tried" in entry.kernels[0].detail


def test_kernels_of_a_module_are_tried_together(assembler: Assembler) -> None:
    """Of two kernels each has another probe that does not go in; trials have twins of both."""
    text = HEAD + kernel(PLAIN, "one") + kernel(PLAIN, "two").replace("st.global.f32", "st.global.wt.f32")
    both = shipped(text, assembler)
    ptxas = counting(assembler, refused(r"(?s)one__neutrino.*mov.u64 [^,]*, 7001;.*two__neutrino|mov.u64 [^,]*, 7002;"))
    entry = patched(both, ptxas, marked(7001, 7002, 7003))
    assert all(kernel.reason is Reason.PROBED for kernel in entry.kernels)
    assert all("p7003" not in names for names in names_left_out(entry))


def test_a_probe_that_changes_how_arithmetic_is_fused_is_left_out(assembler: Assembler, tmp_path: Path) -> None:
    code = DIVIDED.replace("sub.f32 %f5, %f5, %f3", "mov.f32 %f6, %f3; sub.f32 %f5, %f5, %f6")
    cubin = assembler.assemble(DIVISION_HEAD + division_kernel(code), "sm_90a", ("-lineinfo",)).cubin
    value = (
        '[map.Value]\ntype = "array"\nlevel = "thread"\ncap = 8\ndata = { value = "u32" }\n'
        '[probe.value]\nposition = "mov.f32"\nlevel = "thread"\nafter = "SAVE [ Value ] { OUT.bits };"\n'
    )
    count = (
        '[map.Count]\ntype = "array"\nlevel = "thread"\ndata = { value = "u32" }\n'
        '[probe.count]\nposition = "kernel"\nlevel = "thread"\nbefore = "SAVE [ Count ] { %ctaid.x };"\n'
    )
    entry = patched(cubin, counting(assembler), read_probes("p.toml", value + count))
    alone = patched(cubin, counting(assembler), read_probes("p.toml", count))
    assert [kernel.reason for kernel in (*entry.kernels, *alone.kernels)] == [Reason.PROBED] * 2
    (left,) = json.loads(entry.kernels[0].files["manifest.json"])["probes_left_out"]
    assert (left["probe"], left["reason"], left["maps"]) == ("value", "numerics", ["Value"])
    assert "would change how the assembler fuses arithmetic" in left["detail"]
    assert left["remedy"]
    # The same counts of arithmetic as without it.
    numerics = [json.loads(made.kernels[0].files["manifest.json"])["numerics"] for made in (entry, alone)]
    assert numerics[0] == numerics[1]
