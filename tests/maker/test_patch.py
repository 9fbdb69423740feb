"""From image to entry, end to end: what ptxas and the shipped machine code say of the twins."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.protocol import Options
from neutrino.backend.ptx_source import Source, find_source
from neutrino.backend.registry import target_of_device
from neutrino.errors import FormatError, ToolError, ToolMissingError
from neutrino.fatbin import ImageKind, build_container, build_entry, read_container
from neutrino.maker.patcher import Twins, make_twins, patch_image
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.sass.arithmetic import compare
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.cache_entry import Entry, read_entry
from neutrino.verification import load_probe_file, load_probes

KEY = bytes(range(32))
ALL = Selection((), ())

VADD = """.version 8.8
.target {arch}
.address_size 64
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{{
.reg .pred %p; .reg .u32 %r<5>; .reg .u64 %d<8>; .reg .f32 %f<4>;
ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c]; ld.param.u32 %r0, [n];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
mad.lo.u32 %r4, %r1, %r2, %r3;
setp.ge.u32 %p, %r4, %r0;
@%p bra DONE;
cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2;
mul.wide.u32 %d3, %r4, 4;
add.u64 %d4, %d0, %d3; add.u64 %d5, %d1, %d3; add.u64 %d6, %d2, %d3;
ld.global.f32 %f0, [%d4]; ld.global.f32 %f1, [%d5];
add.f32 %f2, %f0, %f1;
st.global.f32 [%d6], %f2;
DONE: ret;
}}
.visible .entry half2_pair(.param .u64 a, .param .u64 b)
{{
.reg .b32 %h<6>; .reg .u64 %d<3>;
ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b];
ld.global.b32 %h0, [%d0]; ld.global.b32 %h1, [%d0+4]; ld.global.b32 %h2, [%d0+8];
mul.f16x2 %h3, %h0, %h1;
ld.global.b32 %h5, [%d1];
add.f16x2 %h4, %h3, %h2;
st.global.b32 [%d1+4], %h5;
st.global.b32 [%d1], %h4;
ret;
}}
"""
EMPTY = ".visible .entry extra(.param .u32 x) { ret; }\n"

READS_PRODUCT = """
platform = "cuda"
[map.Seen]
type = "array"
level = "thread"
cap = 4
size = 8
data = { value = "u32", again = "u32" }
[probe.Products]
position = "mul.f16x2"
level = "thread"
after = "SAVE [ Seen ] { OUT, OUT };"
"""


def fatbin(assembler: Assembler, text: str, arch: str = "sm_90", options: str | None = None) -> bytes:
    cubin = assembler.assemble(text, arch, options or "").cubin
    return build_container(
        [
            build_entry(ImageKind.CUBIN, cubin, arch),
            build_entry(ImageKind.PTX, text.encode("latin-1"), arch, version=(8, 8), options=options),
        ]
    )


def patched(
    image: bytes, assembler: Assembler | None, probe: str = "block_sched", device: str = "sm_90",
    selection: Selection = ALL, **more: object,
) -> Entry:  # fmt: skip
    """The entry, with the kernels in the order of their names from the last: vadd first."""
    data = patch_image(image, load_probes([probe]), device, selection=selection, assembler=assembler, key=KEY, **more)
    return in_order(read_entry(data, "entry"))


def twins_of(source: Source, probe: str, assembler: Assembler, emit: Emit) -> Twins:
    return make_twins(
        target_of_device("sm_90"), source, load_probes([probe]), selection=ALL, tools=assembler,
        options=Options(emit=emit),
    )  # fmt: skip


def in_order(entry: Entry) -> Entry:
    return replace(entry, kernels=tuple(sorted(entry.kernels, key=lambda kernel: kernel.name, reverse=True)))


def reasons(entry: Entry) -> dict[str, Reason]:
    return {kernel.name: kernel.reason for kernel in entry.kernels}


@pytest.mark.parametrize("probe", ["block_sched", "gmem_bytes"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_an_image_becomes_an_entry(assembler, probe, arch):
    entry = patched(fatbin(assembler, VADD.format(arch=arch), arch), assembler, probe, arch.rstrip("a"))
    assert entry.key == KEY
    assert [map_entry.name for map_entry in entry.maps] == [item.name for item in load_probes([probe]).maps]
    assert reasons(entry) == {"vadd": Reason.PROBED, "half2_pair": Reason.PROBED}
    cubin = read_cubin(entry.images[0], "twins")
    assert cubin.arch == arch
    for kernel in entry.kernels:
        twin = cubin.kernels[kernel.twin]
        assert kernel.twin == f"{kernel.name}__neutrino"
        expected = [*kernel.parameters, (kernel.block_offset, kernel.block_size)]
        assert [(offset, size) for _, offset, size in twin.parameters] == expected
        assert kernel.block_size == block_size(len(entry.maps), len(kernel.variables))
        manifest = json.loads(kernel.files["manifest.json"])
        assert manifest["name"] == manifest["demangled"] == kernel.name
        assert manifest["arch"] == arch
        assert manifest["registers"]["twin"] == twin.registers
        assert manifest["block"] == {"offset": kernel.block_offset, "size": kernel.block_size}
        assert manifest["assembler"] == assembler.name
        numerics = manifest["numerics"]
        assert compare(numerics["original"], numerics["twin"], numerics["own"]) is None
        assert numerics["original"] == ({"FADD": 1} if kernel.name == "vadd" else {"HFMA2": 1})
        assert kernel.files["original.ptx"] in VADD.format(arch=arch).encode()
        assert kernel.twin.encode() in kernel.files["probed.ptx"]
        assert all(0 < site["line"] <= VADD.count("\n") for site in manifest["sites"])
    sites = {site["instruction"].split()[0] for site in json.loads(entry.kernels[1].files["manifest.json"])["sites"]}
    assert (sites >= {"ld.global.b32", "st.global.b32"}) == (probe == "gmem_bytes")


def test_a_probe_that_reads_a_product_leaves_the_fusion(assembler, tmp_path):
    (tmp_path / "products.toml").write_text(READS_PRODUCT)
    probes = load_probe_file(tmp_path / "products.toml")
    image = fatbin(assembler, VADD.format(arch="sm_90"))
    data = patch_image(image, probes, "sm_90", selection=ALL, assembler=assembler, key=KEY)
    entry = in_order(read_entry(data, "entry"))
    assert reasons(entry) == {"vadd": Reason.NO_SITE, "half2_pair": Reason.PROBED}
    numerics = json.loads(entry.kernels[1].files["manifest.json"])["numerics"]
    assert numerics["original"] == {"HFMA2": 1}
    assert numerics["own"] == {"HMUL2": 1}
    assert numerics["twin"] == {"HFMA2": 1, "HMUL2": 1}


@pytest.mark.parametrize("emit", [Emit.CODE, Emit.TEXT])
def test_a_twin_that_computes_otherwise_is_pinned_or_refused(assembler, monkeypatch, emit):
    """The rewriting is made to read the product itself, as a careless probe would."""
    source = find_source(read_container(fatbin(assembler, VADD.format(arch="sm_90")), "image"), "sm_90")
    render = TwinModule.render

    def careless(self, *arguments):
        read = "st.global.b32 [%d1+64], %h3;\nadd.f16x2 %h4, %h3, %h2;"
        return render(self, *arguments).replace("add.f16x2 %h4, %h3, %h2;", read)

    monkeypatch.setattr(TwinModule, "render", careless)
    made = twins_of(source, "gmem_bytes", assembler, emit)
    half, vadd = sorted(made.kernels, key=lambda kernel: kernel.name)
    assert vadd.reason is Reason.PROBED
    if emit is Emit.CODE:
        assert half.reason is Reason.PROBED
        numerics = json.loads(half.files["manifest.json"])["numerics"]
        assert (numerics["proof"], numerics["original"], numerics["twin"]) == ("pinned", {"HFMA2": 1}, {"HFMA2": 1})
        assert b"fma.rn.f16x2 %h4" in half.files["probed.ptx"]
    else:
        # What assembles the text where it runs may fuse by other rules.
        assert half.reason is Reason.NUMERICS
        assert re.search(r"HFMA2 1 → 0", half.detail)
        assert half.twin == ""


def test_a_pinned_twin_is_held_against_its_machine_code(assembler, monkeypatch):
    """Both texts are made wrong: the one that ptxas may fuse, and the one that says what is fused."""
    render = TwinModule.render

    def careless(self, *arguments):
        apart = r"mul.rn.f16x2 %h4, \1, \2;\nadd.rn.f16x2 %h4, %h4, %h2;"
        text = render(self, *arguments).replace("mul.f16x2", "mul.rn.f16x2")
        return re.sub(r"fma\.rn\.f16x2 %h4, ([^,]+), ([^,]+), %h2;", apart, text)

    monkeypatch.setattr(TwinModule, "render", careless)
    entry = patched(fatbin(assembler, VADD.format(arch="sm_90")), assembler)
    assert reasons(entry) == {"vadd": Reason.PROBED, "half2_pair": Reason.NUMERICS}
    assert re.search(r"HFMA2 1 → 0", entry.kernels[1].detail)
    assert entry.kernels[1].twin == ""


def test_ptx_alone_is_compared_with_its_own_assembly(assembler):
    entry = patched(VADD.format(arch="sm_80").encode(), assembler, device="sm_90")
    assert set(reasons(entry).values()) == {Reason.PROBED}
    assert read_cubin(entry.images[0], "twins").arch == "sm_90"


def test_ptx_for_another_architecture_is_named(assembler):
    text = VADD.format(arch="sm_80")
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, assembler.assemble(text, "sm_90").cubin, "sm_90"),
            build_entry(ImageKind.PTX, text.encode(), "sm_80", version=(8, 8)),
        ]
    )
    entry = patched(image, assembler)
    assert set(reasons(entry).values()) == {Reason.VARIANT}
    assert entry.images == ()
    assert "sm_80" in entry.kernels[0].detail
    assert "sm_90" in entry.kernels[0].detail


def test_machine_code_older_than_what_is_understood_is_named(assembler):
    entry = patched(
        VADD.format(arch="sm_70").replace(".version 8.8", ".version 6.0").encode(), assembler, device="sm_70"
    )
    assert set(reasons(entry).values()) == {Reason.UNSUPPORTED}
    assert "sm_75" in entry.kernels[0].detail


def test_the_selection_is_kept(assembler):
    image = fatbin(assembler, VADD.format(arch="sm_90"))
    entry = patched(image, assembler, selection=Selection(("half2",), ()))
    assert reasons(entry) == {"vadd": Reason.NOT_SELECTED, "half2_pair": Reason.PROBED}
    assert set(read_cubin(entry.images[0], "twins").kernels) == {"half2_pair__neutrino"}
    assert patched(image, assembler, selection=Selection((), ("*",))).images == ()


def test_kernels_that_the_ptx_lacks_are_named(assembler):
    text = VADD.format(arch="sm_90")
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, assembler.assemble(text + EMPTY, "sm_90").cubin, "sm_90"),
            build_entry(ImageKind.PTX, text.encode(), "sm_90", version=(8, 8)),
        ]
    )
    entry = patched(image, assembler)
    assert reasons(entry)["extra"] is Reason.NO_PTX
    assert reasons(entry)["vadd"] is Reason.PROBED


def test_parameters_that_differ_from_the_machine_code_are_refused(assembler):
    shipped = VADD.format(arch="sm_90").replace(".param .u32 n)", ".param .u32 n, .param .u32 unused)")
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, assembler.assemble(shipped, "sm_90").cubin, "sm_90"),
            build_entry(ImageKind.PTX, VADD.format(arch="sm_90").encode(), "sm_90", version=(8, 8)),
        ]
    )
    entry = patched(image, assembler)
    assert reasons(entry) == {"vadd": Reason.UNSUPPORTED, "half2_pair": Reason.PROBED}
    assert "parameters" in entry.kernels[0].detail


def test_machine_code_of_another_program_is_refused(assembler):
    shipped = VADD.format(arch="sm_90").replace("mul.f16x2", "mul.rn.f16x2")
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, assembler.assemble(shipped, "sm_90").cubin, "sm_90"),
            build_entry(ImageKind.PTX, VADD.format(arch="sm_90").encode(), "sm_90", version=(8, 8)),
        ]
    )
    assert reasons(patched(image, assembler))["half2_pair"] is Reason.NUMERICS


def test_options_stored_with_the_image_shape_the_twin(assembler):
    text = VADD.format(arch="sm_90").replace("mul.f16x2", "mul.f32").replace("add.f16x2", "add.f32")
    text = text.replace(".b32 %h<6>", ".f32 %h<6>").replace("global.b32", "global.f32")
    entry = patched(fatbin(assembler, text, options="--fmad=false"), assembler)
    assert set(reasons(entry).values()) == {Reason.PROBED}
    numerics = json.loads(entry.kernels[1].files["manifest.json"])["numerics"]
    assert numerics["twin"] == {"FMUL": 1, "FADD": 1}


def test_a_cubin_assembled_without_fusion_is_matched(assembler):
    text = VADD.format(arch="sm_90").split(".visible .entry vadd")[0] + (
        ".visible .entry" + VADD.format(arch="sm_90").split(".visible .entry")[2]
    )
    text = text.replace("mul.f16x2", "mul.f32").replace("add.f16x2", "add.f32")
    text = text.replace(".b32 %h<6>", ".f32 %h<6>").replace("global.b32", "global.f32")
    cubin = assembler.assemble(text, "sm_90", ["-lineinfo", "--fmad=false"]).cubin
    entry = patched(cubin, assembler)
    assert reasons(entry) == {"half2_pair": Reason.PROBED}
    assert json.loads(entry.kernels[0].files["manifest.json"])["numerics"]["twin"] == {"FMUL": 1, "FADD": 1}


def wide(values: int) -> str:
    """A kernel that holds so many values at once."""
    return VADD.format(arch="sm_90").split(".visible")[0] + "\n".join(
        [
            ".visible .entry wide(.param .u64 p)",
            "{ .reg .u64 %a; .reg .f32 %f<64>; ld.param.u64 %a, [p];",
            *(f"ld.global.f32 %f{index}, [%a+{4 * index}];" for index in range(values)),
            "bar.sync 0;",
            *(f"st.global.f32 [%a+{4 * index}], %f{values - 1 - index};" for index in range(values)),
            "ret; }",
        ]
    )


def units(registers: int) -> int:
    """Registers come in units of 8."""
    return -(-registers // 8)


def test_more_registers_get_a_second_image_under_the_originals_cap_where_that_spills(assembler):
    seen = set()
    # Only some of these grow by a unit.
    for values in range(28, 44):
        entry = patched(fatbin(assembler, wide(values)), assembler, "block_sched")
        kernel = entry.kernels[0]
        manifest = json.loads(kernel.files["manifest.json"])
        registers = manifest["registers"]
        assert kernel.capped == (len(entry.images) == 2) == (registers["capped"] is not None)
        seen.add(kernel.capped)
        if kernel.capped:
            capped = read_cubin(entry.images[1], "capped").kernels[kernel.twin]
            assert capped.registers == registers["capped"]
            assert units(registers["capped"]) <= units(registers["original"]) < units(registers["twin"])
            assert manifest["spills"]["capped"]["stores"] > manifest["spills"]["original"]["stores"]
        else:
            assert units(registers["twin"]) <= units(registers["original"])
    assert seen == {True, False}


class Spilling(Assembler):
    """Says of originals that they spill more than any twin. They have no other machine code."""

    def assemble(self, text, arch, options=(), **more) -> Assembled:
        made = super().assemble(text, arch, options, **more)
        if "__neutrino" in text:
            return made
        many = {name: replace(own, spill_stores=1 << 20, spill_loads=1 << 20) for name, own in made.resources.items()}
        return replace(made, resources=many)


def test_a_cap_that_spills_no_more_than_the_original_is_the_twins_own(assembler):
    """One image, the one under the cap, and its figures."""
    spilling = Spilling(assembler.path, assembler.version, assembler.identity)
    entry = patched(wide(34).encode() + b"\0", spilling, "block_sched")
    (kernel,) = entry.kernels
    registers = json.loads(kernel.files["manifest.json"])["registers"]
    assert (len(entry.images), kernel.image, kernel.capped, registers["capped"]) == (1, 0, 0, None)
    assert read_cubin(entry.images[0], "twin").kernels[kernel.twin].registers == registers["twin"]
    assert units(registers["twin"]) == units(registers["original"])


SOFTMAX = Path(__file__).parents[1] / "fixtures" / "kernels" / "triton" / "softmax_sm_90.ptx"


@pytest.mark.parametrize(
    ("text", "arch", "probe", "capped"),
    [
        (SOFTMAX.read_text(), "sm_90a", "dmat", True),
        (wide(34), "sm_90", "block_sched", False),
        (wide(38), "sm_90", "gmem_bytes", False),
    ],
    ids=["softmax", "wide", "sums"],
)
def test_the_probed_text_is_what_was_assembled(assembler, text, arch, probe, capped):
    """By itself it gives the twin's registers, which without its directive are others where it has one."""
    (kernel,) = patched(fatbin(assembler, text, arch), assembler, probe).kernels
    manifest = json.loads(kernel.files["manifest.json"])
    probed = kernel.files["probed.ptx"].decode()
    assert (manifest["maxnreg"] is not None) == capped == (".maxnreg" in probed)

    shared = "".join(re.findall(r"^\.extern \.shared.*\n", text, re.M))

    def registers(probed: str) -> int:
        module = f".version 8.8\n.target {arch}\n.address_size 64\n{shared}{probed}"
        return assembler.assemble(module, arch).resources[kernel.twin].registers

    assert registers(probed) == manifest["registers"]["twin"]
    if capped:
        assert registers(re.sub(r"\.maxnreg \d+", "", probed)) > manifest["maxnreg"] >= manifest["registers"]["twin"]


class Faulty(Assembler):
    """An assembler with faults: ``fault`` sees each text first."""

    fault = staticmethod(lambda text: None)

    def assemble(self, text, arch, options=(), **more) -> Assembled:
        type(self).fault(text)
        return super().assemble(text, arch, options, **more)


@pytest.fixture
def faulty(assembler, monkeypatch):
    def build(fault) -> Assembler:
        monkeypatch.setattr(Faulty, "fault", staticmethod(fault))
        return Faulty(assembler.path, assembler.version, assembler.identity)

    return build


def refuse_when(pattern: str):
    def fault(text: str) -> None:
        if re.search(pattern, text):
            raise AssemblyError(["ptxas"], 255, "ptxas /tmp/x.ptx, line 7; error   : Bad thing\nptxas fatal   : Ptx")

    return fault


def test_one_bad_twin_does_not_lose_the_others(assembler, faulty):
    image = fatbin(assembler, VADD.format(arch="sm_90"))
    entry = patched(image, faulty(refuse_when(r"vadd__neutrino")))
    assert reasons(entry) == {"vadd": Reason.ASSEMBLER, "half2_pair": Reason.PROBED}
    assert entry.kernels[0].detail == f"{assembler.name}: line 7: error   : Bad thing"
    assert set(read_cubin(entry.images[0], "twins").kernels) == {"half2_pair__neutrino"}


def test_an_original_that_is_refused_is_said_to_be(assembler, faulty):
    entry = patched(VADD.format(arch="sm_90").encode(), faulty(refuse_when(r"vadd\(")))
    assert set(reasons(entry).values()) == {Reason.ASSEMBLER}
    assert "refuses the original" in entry.kernels[0].detail


@pytest.mark.parametrize(
    "fault", [ToolError(["ptxas"], -9, ""), ToolError(["ptxas"], None, "no result"), OSError(28, "full")]
)
@pytest.mark.parametrize("text", ["__neutrino", "vadd\\("])
def test_faults_of_the_machine_are_raised(assembler, faulty, fault, text):
    def strike(given: str) -> None:
        if re.search(text, given):
            raise fault

    with pytest.raises(type(fault)) as caught:
        patched(VADD.format(arch="sm_90").encode(), faulty(strike))
    assert not isinstance(caught.value, AssemblyError)


def test_no_assembler_says_how_to_get_one(assembler):
    with pytest.raises(ToolMissingError, match=r'pip install "neutrino-gpu\[cuda\]"'):
        patched(VADD.format(arch="sm_90").encode(), None)


@pytest.mark.parametrize(
    "warning",
    [
        "(C7508) Potential Performance Loss: 'setmaxnreg' ignored",
        "(C7510) Potential Performance Loss: serialized in the function 'vadd__neutrino'",
    ],
)
def test_a_new_warning_of_a_pipeline_fails_the_twin(assembler, monkeypatch, warning):
    assemble = Assembler.assemble

    def warns(self, text, arch, options=(), **more):
        done = assemble(self, text, arch, options, **more)
        return replace(done, warnings=(*done.warnings, warning)) if "vadd__neutrino" in text else done

    image = fatbin(assembler, VADD.format(arch="sm_90"))
    monkeypatch.setattr(Assembler, "assemble", warns)
    entry = patched(image, assembler)
    assert reasons(entry) == {"vadd": Reason.ASSEMBLER, "half2_pair": Reason.PROBED}
    assert "(C75" in entry.kernels[0].detail


def test_a_warning_that_the_original_gets_too_is_no_matter(assembler, monkeypatch):
    assemble = Assembler.assemble

    def warns(self, text, arch, options=(), **more):
        done = assemble(self, text, arch, options, **more)
        name = re.search(r"vadd(__neutrino)?(?=\()", text)
        line = f"(C7510) serialized at line {len(text)} in the function '{name[0]}'" if name else ""
        return replace(done, warnings=(line,))

    image = fatbin(assembler, VADD.format(arch="sm_90"))
    monkeypatch.setattr(Assembler, "assemble", warns)
    assert set(reasons(patched(image, assembler)).values()) == {Reason.PROBED}


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: b"\x7fELF" + data[4:],
                                    lambda data: data[:80] + b"\xff" * 40 + data[120:]])  # fmt: skip
def test_damaged_images_are_format_errors(assembler, damage):
    with pytest.raises(FormatError):
        patched(damage(fatbin(assembler, VADD.format(arch="sm_90"))), assembler)


def test_each_stage_is_kept_for_those_who_ask(assembler, tmp_path):
    image = fatbin(assembler, VADD.format(arch="sm_90"))
    patched(image, assembler, save_temps=tmp_path / "temps")
    folder = tmp_path / "temps" / KEY.hex()[:16]
    assert (folder / "image.bin").read_bytes() == image
    assert (folder / "original.ptx").read_text() == VADD.format(arch="sm_90")
    stages = {"source.json", "original.ptx", "original.cubin", "sites.json", "probed.ptx", "probed.cubin"}
    assert {path.name for path in folder.iterdir()} >= stages
    source = json.loads((folder / "source.json").read_text())
    assert (source["arch"], source["found"], source["reason"]) == ("sm_90", "PTX image", "probed")
    assert read_entry((folder / "entry.twins").read_bytes(), "entry").key == KEY
    assert (folder / "kernels.txt").read_text() == "half2_pair: probed\nvadd: probed\n"


def test_the_same_image_gives_the_same_entry(assembler):
    image = fatbin(assembler, VADD.format(arch="sm_90"))
    arguments = {"selection": Selection((), ()), "assembler": assembler, "key": KEY}
    probes = load_probes(["gmem_bytes"])
    assert patch_image(image, probes, "sm_90", **arguments) == patch_image(image, probes, "sm_90", **arguments)


@pytest.mark.parametrize("options", [None, "-maxrregcount=40"])
def test_text_is_emitted_with_the_options_of_the_original(assembler, options):
    container = read_container(fatbin(assembler, VADD.format(arch="sm_90"), options=options), "image")
    source = find_source(container, "sm_90")
    made = {
        emit: twins_of(source, "block_sched", assembler, emit)
        for emit in Emit
    }
    cubin = made[Emit.CODE].images[0]
    both = read_container(made[Emit.BOTH].images[0], "both")
    assert [image.kind for image in both.images] == [ImageKind.PTX, ImageKind.CUBIN]
    assert both.images[1].data == cubin
    only = read_container(made[Emit.TEXT].images[0], "ptx").images[0]
    assert (only.kind, only.data) == (ImageKind.PTX, both.images[0].data)
    assert assembler.assemble(only.data, "sm_90", source.options).cubin == cubin
    assert only.options == both.images[0].options == (options or "")
    for word, twins in zip(("sass", "ptx", "both"), made.values(), strict=True):
        assert {json.loads(kernel.files["manifest.json"])["emit"] for kernel in twins.kernels} == {word}
