"""Entries for the embedded device: the twins' text, judged by machine code where there is an assembler."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.abi.reasons import Reason
from neutrino.backend.ptx_source import find_source
from neutrino.device.kind import DeviceKind
from neutrino.emulator.loaded_ptx import ImageError, find_ptx
from neutrino.fatbin import ImageKind, build_container, build_entry, read_container
from neutrino.fatbin.compression import Compression
from neutrino.maker.patcher import patch_image
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import Entry, KernelEntry, read_entry
from neutrino.verification import load_probes

from .test_patch import ALL, KEY, VADD, fatbin, reasons, wide

HEAD = "//\n// Made by a compiler that says so\n//\n"


def embedded(image: bytes, assembler: Assembler | None, probe: str = "block_sched") -> Entry:
    data = patch_image(
        image, load_probes([probe]), "sm_90", selection=ALL, assembler=assembler, key=KEY, device=DeviceKind.EMBEDDED
    )
    return read_entry(data, "entry")


def on_gpu(image: bytes, assembler: Assembler, probe: str = "block_sched") -> Entry:
    data = patch_image(image, load_probes([probe]), "sm_90", selection=ALL, assembler=assembler, key=KEY)
    return read_entry(data, "entry")


def facts(kernel: KernelEntry) -> tuple[object, ...]:
    return (
        kernel.name, kernel.reason, kernel.detail, kernel.twin, kernel.parameters, kernel.variables,
        kernel.block_offset, kernel.block_size, kernel.capped,
    )  # fmt: skip


@pytest.mark.parametrize("probe", ["block_sched", "gmem_bytes"])
def test_the_images_are_text_and_all_else_is_as_on_a_gpu(assembler: Assembler, probe: str) -> None:
    image = VADD.format(arch="sm_80").encode()
    entry, gpu = embedded(image, assembler, probe), on_gpu(image, assembler, probe)
    assert [facts(kernel) for kernel in entry.kernels] == [facts(kernel) for kernel in gpu.kernels]
    for here, there in zip(entry.kernels, gpu.kernels, strict=True):
        assert here.files.keys() == there.files.keys()
        assert json.loads(here.files["manifest.json"]) == json.loads(there.files["manifest.json"]) | {"emit": "ptx"}
        assert [here.files[name] == there.files[name] for name in ("original.ptx", "probed.ptx")] == [True] * 2
    (text,) = entry.images
    assert text.endswith(b"\0")
    assert text.count(b"\0") == 1
    # The text is that of the machine code which was judged.
    assert assembler.assemble(text[:-1], "sm_90").cubin == gpu.images[0]


def test_without_an_assembler_there_are_twins_and_no_figures(assembler: Assembler) -> None:
    image = VADD.format(arch="sm_80").encode()
    entry, judged = embedded(image, None), embedded(image, assembler)
    assert reasons(entry) == {"vadd": Reason.PROBED, "half2_pair": Reason.PROBED}
    assert [facts(kernel) for kernel in entry.kernels] == [facts(kernel) for kernel in judged.kernels]
    assert entry.images == judged.images
    for kernel in entry.kernels:
        manifest = json.loads(kernel.files["manifest.json"])
        assert manifest["sites"]
        assert [manifest[name] for name in ("assembler", "registers", "spills", "frame", "numerics")] == [None] * 5


def test_a_twin_that_computes_otherwise_is_refused_here_too(
    assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = TwinModule.render

    def careless(self: TwinModule, *arguments: object) -> str:
        read = "st.global.b32 [%d1+64], %h3;\nadd.f16x2 %h4, %h3, %h2;"
        return render(self, *arguments).replace("add.f16x2 %h4, %h3, %h2;", read)

    monkeypatch.setattr(TwinModule, "render", careless)
    entry = embedded(VADD.format(arch="sm_90").encode(), assembler)
    assert reasons(entry) == {"vadd": Reason.PROBED, "half2_pair": Reason.NUMERICS}


def test_twins_under_a_register_cap_are_text(assembler: Assembler) -> None:
    capped = 0
    for values in range(28, 44):
        image = wide(values).encode()
        entry, gpu = embedded(image, assembler), on_gpu(image, assembler)
        assert [assembler.assemble(text[:-1], "sm_90").cubin for text in entry.images] == list(gpu.images)
        capped += entry.kernels[0].capped
    assert capped


def test_ptx_runs_although_machine_code_lies_beside_it(assembler: Assembler) -> None:
    """On a GPU the sm_90 machine code runs, and no twin may be made from sm_80 PTX; here that PTX is what runs."""
    text = VADD.format(arch="sm_80")
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, assembler.assemble(text, "sm_90").cubin, "sm_90"),
            build_entry(ImageKind.PTX, text.encode(), "sm_80", version=(8, 8)),
        ]
    )
    assert set(reasons(on_gpu(image, assembler)).values()) == {Reason.VARIANT}
    assert set(reasons(embedded(image, assembler)).values()) == {Reason.PROBED}


def test_machine_code_alone_is_named(assembler: Assembler) -> None:
    cubin = assembler.assemble(VADD.format(arch="sm_90"), "sm_90").cubin
    assert set(read_cubin(cubin, "c").kernels) == {"vadd", "half2_pair"}
    entry = embedded(build_container([build_entry(ImageKind.CUBIN, cubin, "sm_90")]), assembler)
    assert entry.kernels == ()


def test_the_comments_that_say_who_made_the_original_stay(assembler: Assembler) -> None:
    (text,) = embedded((HEAD + VADD.format(arch="sm_90")).encode(), None).images
    assert text.decode().startswith(HEAD)


def test_compressed_images_and_their_options(assembler: Assembler) -> None:
    text = VADD.format(arch="sm_90").replace("mul.f16x2", "mul.f32").replace("add.f16x2", "add.f32")
    text = text.replace(".b32 %h<6>", ".f32 %h<6>").replace("global.b32", "global.f32")
    entry = embedded(fatbin(assembler, text, options="--fmad=false"), assembler)
    numerics = {
        kernel.name: json.loads(kernel.files["manifest.json"])["numerics"]["twin"] for kernel in entry.kernels
    }
    assert numerics["half2_pair"] == {"FMUL": 1, "FADD": 1}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sm_52", "sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103f"]),
            st.sampled_from([Compression.NONE, Compression.LZ4, Compression.ZSTD]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_text_is_the_one_that_the_stand_in_runs(entries: list[tuple[str, Compression]]) -> None:
    """Two readers, written apart, take the same text out of a container: the twin is of what runs."""
    image = build_container(
        [
            build_entry(ImageKind.PTX, f".version 8.8\n.target {arch}\n// {index}\n".encode(), arch, compression=how)
            for index, (arch, how) in enumerate(entries)
        ]
    )
    source = find_source(read_container(image, "image"), "sm_90", DeviceKind.EMBEDDED)
    try:
        assert source.text == find_ptx(image)
    except ImageError:
        assert source.text is None
        assert source.reason is Reason.NO_PTX
