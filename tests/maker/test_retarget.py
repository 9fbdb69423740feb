"""PTX of another architecture than the machine code: which one is taken when asked for, and what shows that it is
another program."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from neutrino.abi.reasons import Reason
from neutrino.assemble.retargeting import NOT_SHOWN
from neutrino.backend.protocol import Options
from neutrino.backend.ptx_source import find_source
from neutrino.backend.registry import target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import ImageKind, build_container, build_entry, read_container
from neutrino.fatbin.ptxscan import with_ptx_target, with_ptx_version
from neutrino.maker.patcher import make_twins, patch_image
from neutrino.maker.serving import TwinSettings, make_entry
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.sass.cubin import CubinKernel, read_cubin
from neutrino.sass.variant import difference
from neutrino.toolchain.ptxas import Assembler
from neutrino.tracing.manifest import Retargeted, read_manifest
from neutrino.twins.cache_entry import Entry, read_entry
from neutrino.verification import load_probes

KEY = bytes(32)
ALL = Selection((), ())
MODULE = """.version {version}
.target {arch}
.address_size 64
{body}"""
KERNEL = """.visible .entry k(.param .u64 p{parameters})
{directives}{{
.reg .u64 %a; .reg .f32 %f<4>;
ld.param.u64 %a, [p];
{instructions}
ret;
}}
"""
WORK = "ld.global.f32 %f0, [%a]; fma.rn.f32 %f1, %f0, %f0, %f0; st.global.f32 [%a], %f1;"


def kernel(instructions: str = WORK, *, parameters: str = "", directives: str = "") -> str:
    return KERNEL.format(instructions=instructions, parameters=parameters, directives=directives)


def module(arch: str, body: str | None = None, version: str = "8.8") -> str:
    return MODULE.format(arch=arch, version=version, body=kernel() if body is None else body)


def fatbin(assembler: Assembler, codes: dict[str, str], texts: dict[str, str]) -> bytes:
    """Machine code and PTX by architecture."""
    entries = [build_entry(ImageKind.CUBIN, assembler.assemble(text, arch).cubin, arch) for arch, text in codes.items()]
    entries += [build_entry(ImageKind.PTX, text.encode(), arch, options="") for arch, text in texts.items()]
    return build_container(entries)


def patched(assembler: Assembler, image: bytes, arch: str = "sm_90", **more: object) -> Entry:
    options = {"retarget": True} | more
    probes = load_probes(["block_sched"])
    data = patch_image(image, probes, arch, selection=ALL, assembler=assembler, key=KEY, **options)
    return read_entry(data, "entry")


def manifest(entry: Entry, name: str = "k") -> dict[str, object]:
    (found,) = [kernel for kernel in entry.kernels if kernel.name == name]
    assert found.reason is Reason.PROBED, found.detail
    data: dict[str, object] = json.loads(found.files["manifest.json"])
    return data


def retargeted(target: str, *, same: bool = True, own: bool = False) -> dict[str, object]:
    """What a manifest says."""
    return {"target": target, "same_code": same, "own_text": own}


@pytest.mark.parametrize(
    ("code", "texts", "device", "marked", "target"),
    [
        ("sm_90", ["sm_120"], "sm_90", "sm_120 → sm_90", "sm_90"),
        ("sm_90a", ["sm_120a"], "sm_90", "sm_120a → sm_90a", "sm_90a"),
        ("sm_90", ["sm_90a"], "sm_90", "sm_90a → sm_90", "sm_90"),
        # What is below assembles for what is above as it is.
        ("sm_90a", ["sm_90"], "sm_90", "sm_90 → sm_90a", "sm_90"),
        ("sm_90a", ["sm_80"], "sm_90", "sm_80 → sm_90a", "sm_80"),
        ("sm_90", ["sm_75", "sm_86", "sm_100", "sm_120"], "sm_90", "sm_86 → sm_90", "sm_86"),
        ("sm_90", ["sm_120", "sm_100"], "sm_90", "sm_100 → sm_90", "sm_90"),
        ("sm_86", ["sm_75", "sm_80", "sm_89", "sm_90"], "sm_86", "sm_89 → sm_86", "sm_86"),
        ("sm_86", ["sm_75", "sm_90"], "sm_86", "sm_75 → sm_86", "sm_75"),
        ("sm_100", ["sm_103", "sm_90"], "sm_100", "sm_103 → sm_100", "sm_100"),
        ("sm_100a", ["sm_100f", "sm_100"], "sm_100", "sm_100 → sm_100a", "sm_100"),
    ],
)
def test_which_text_is_taken(code, texts, device, marked, target, assembler):
    image = fatbin(assembler, {code: module(code)}, {arch: module(arch) for arch in texts})
    container = read_container(image, "image")
    refused = find_source(container, device)
    assert (refused.text, refused.reason, refused.retargeted) == (None, Reason.VARIANT, "")
    source = find_source(container, device, retarget=True)
    assert (source.reason, source.retargeted, source.arch) == (Reason.PROBED, marked, code)
    assert source.text == module(target)
    assert assembler.assemble(source.text, code).cubin


def test_a_run_that_asks_for_it(assembler, tmp_path):
    """What the listener makes, with the runs' keys apart; and what readers of the trace see."""
    image = fatbin(assembler, {"sm_90": module("sm_90")}, {"sm_80": module("sm_80")})
    settings = TwinSettings(RunProbes.of(load_probes(["block_sched"])), ALL, KEY, Cache(tmp_path / "cache"), None)
    version = assembler.version[0] * 1000 + assembler.version[1] * 10
    entries = {}
    for retarget in (False, True):
        key = bytes([retarget]) * 32
        made = make_entry(image, "sm_90", version, key, replace(settings, retarget=retarget))
        entries[retarget] = read_entry(made, "entry").kernels[0]
    assert entries[False].reason is Reason.VARIANT
    (tmp_path / "manifest.json").write_bytes(entries[True].files["manifest.json"])
    expected = Retargeted("sm_80 → sm_90", same_code=True, own_text=False)
    assert read_manifest(tmp_path / "manifest.json").retargeted == expected


def test_runs_with_and_without_it_share_no_entry():
    argv = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-q", "-p", "block_sched"]
    keys = []
    for option in ([], [], ["--retarget"]):
        command = ["sh", "-c", "echo $NEUTRINO_KEY"]
        done = subprocess.run([*argv, *option, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        keys.append(done.stdout)
    assert keys[0] == keys[1] != keys[2]
    done = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", "--retarget", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert "--retarget needs a probe" in done.stderr


def test_a_fitting_text_is_no_variant(assembler):
    image = fatbin(assembler, {"sm_90": module("sm_90")}, {"sm_90": module("sm_90"), "sm_89": module("sm_89")})
    assert find_source(read_container(image, "image"), "sm_90", retarget=True).retargeted == ""
    entry = patched(assembler, image)
    assert manifest(entry)["retargeted"] is None
    assert entry == patched(assembler, image, retarget=False)


def test_the_text_that_the_machine_code_keeps_goes_first(assembler):
    cubin = assembler.assemble(module("sm_80"), "sm_90", ["-lineinfo"]).cubin
    image = build_container(
        [build_entry(ImageKind.CUBIN, cubin, "sm_90"), build_entry(ImageKind.PTX, module("sm_89").encode(), "sm_89")]
    )
    assert find_source(read_container(image, "image"), "sm_90").reason is Reason.VARIANT
    assert manifest(patched(assembler, image))["retargeted"] == retargeted("sm_80 → sm_90", own=True)


def test_a_version_that_the_assembler_does_not_know_is_lowered(assembler, tmp_path):
    text = module("sm_120", version="99.0")
    image = fatbin(assembler, {"sm_90": module("sm_90")}, {"sm_120": text})
    entry = patched(assembler, image, save_temps=tmp_path)
    major, minor = assembler.ptx_version
    (probed,) = tmp_path.glob("*/probed.ptx")
    assert probed.read_text().startswith(f".version {major}.{minor}\n")
    assert manifest(entry)["retargeted"] == retargeted("sm_120 → sm_90")


def test_so_it_is_in_ptx_for_the_same_architecture(assembler):
    """As of a JIT compiler or linker that is newer than the driver and ptxas."""
    later = module("sm_90", version="99.0")
    entry = patched(assembler, fatbin(assembler, {"sm_90": module("sm_90")}, {"sm_90": later}))
    assert manifest(entry)["retargeted"] is None
    # Without machine code that the twin is compared with, the driver compiles the text, and must know its version.
    entry = patched(assembler, build_container([build_entry(ImageKind.PTX, later.encode(), "sm_90")]))
    assert entry.kernels[0].reason is Reason.ASSEMBLER


def test_the_embedded_device_has_no_machine_code_to_be_unlike(assembler):
    image = fatbin(assembler, {"sm_90": module("sm_90")}, {"sm_80": module("sm_80")})
    entry = patched(assembler, image, device=DeviceKind.EMBEDDED)
    assert manifest(entry)["retargeted"] is None


@pytest.mark.parametrize(
    ("code", "text", "says"),
    [
        (kernel(), kernel(parameters=", .param .u32 q"), "parameters (offset, size)"),
        (kernel(parameters=", .param .u64 q"), kernel(parameters=", .param .u32 q"), "parameters (offset, size)"),
        (
            kernel(parameters=", .param .align 8 .b8 q[24]"),
            kernel(parameters=", .param .align 8 .b8 q[32]"),
            "[(0, 8), (8, 24)], of the PTX [(0, 8), (8, 32)]",
        ),
        (
            kernel(".shared .b32 s[4]; ld.shared.f32 %f0, [s]; st.global.f32 [%a], %f0;"),
            kernel(".shared .b32 s[8]; ld.shared.f32 %f0, [s]; st.global.f32 [%a], %f0;"),
            "static shared memory",
        ),
        (kernel(directives=".reqntid 64\n"), kernel(directives=".reqntid 32\n"), ".reqntid"),
        (kernel(directives=".reqntid 64\n"), kernel(), ".reqntid"),
        (kernel(""), kernel(), "the machine code does nothing, the PTX computes"),
        (kernel(), kernel(""), "the machine code computes, the PTX does nothing"),
        (kernel("trap;"), kernel(), "the machine code only traps, the PTX computes"),
        (kernel(), kernel("trap;"), "the machine code computes, the PTX only traps"),
        (kernel(), kernel(WORK.replace("fma.rn.f32 %f1, %f0, %f0, %f0", "mul.rn.f32 %f1, %f0, %f0")), "FFMA 1 → 0"),
        (kernel(), kernel("add.rn.f32x2 %a, %a, %a; st.global.u64 [%a], %a;"), "refuses the original"),
    ],
)
def test_what_shows_that_it_is_another_program(code, text, says, assembler):
    image = fatbin(assembler, {"sm_90": module("sm_90", code)}, {"sm_120": module("sm_120", text)})
    (entry,) = patched(assembler, image).kernels
    assert entry.reason is Reason.VARIANT
    assert entry.detail.startswith("retargeted sm_120 → sm_90: ")
    assert says in entry.detail


SOURCE = """\
#include <cstdio>
#define NEW (__CUDA_ARCH__ >= 1000)
extern "C" {
__global__ void same(float *p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = p[i] * 2 + 1; }
__global__ void checks(float *p) { if (!p) __trap(); p[0] = 2; }
__global__ void left_out(float *p)
{
#if NEW
	p[0] = 1;
#endif
}
__global__ void only_old(float *p)
{
#if NEW
	printf("not compiled for this architecture");
	__trap();
#else
	p[0] = 1;
#endif
}
__global__ void tile(float *p)
{
	__shared__ float s[NEW ? 64 : 32];
	s[threadIdx.x % 32] = p[threadIdx.x];
	__syncthreads();
	p[threadIdx.x] = s[(threadIdx.x + 1) % 32];
}
__global__ void wants(float *p)
{
#if NEW
	asm volatile("{.reg .b64 r; mov.b64 r, 0; add.rn.f32x2 r, r, r;}");
#endif
	p[threadIdx.x] = 3;
}
}
"""


def test_what_nvcc_makes_of_architecture_dependent_code(assembler, tmp_path):
    """Also that what one kernel's text lacks below does not stand against the others."""
    nvcc = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is neither on PATH nor in /usr/local/cuda")
    (tmp_path / "k.cu").write_text(SOURCE)
    argv = [nvcc, "-fatbin", "-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_100,code=compute_100"]
    done = subprocess.run([*argv, "k.cu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nvcc does not work: {done.stderr.strip()[-300:]}")
    image = (tmp_path / "k.fatbin").read_bytes()
    assert {kernel.reason for kernel in patched(assembler, image, retarget=False).kernels} == {Reason.VARIANT}
    entry = patched(assembler, image)
    found = {kernel.name: (kernel.reason.name, kernel.detail.partition(": ")[2]) for kernel in entry.kernels}
    assert found.keys() == {"same", "checks", "left_out", "only_old", "tile", "wants"}
    assert found["same"] == found["checks"] == ("PROBED", "")
    assert found["left_out"] == ("VARIANT", "the machine code does nothing, the PTX computes")
    assert found["only_old"] == ("VARIANT", "the machine code computes, the PTX only traps")
    assert found["tile"][0] == found["wants"][0] == "VARIANT"
    assert "static shared memory of the machine code 1152 bytes, of the PTX 1280" in found["tile"][1]
    assert "refuses the original" in found["wants"][1]
    twins = read_cubin(entry.images[0], "twins")
    assert twins.arch == "sm_90"
    assert {"checks__neutrino", "same__neutrino"} <= twins.kernels.keys()
    for name in ("checks", "same"):
        assert manifest(entry, name)["retargeted"] == retargeted("sm_100 → sm_90")


VARIABLES = ".visible .const .b32 {}; .visible .const .b32 {};\n.visible .global .b32 {}; .visible .global .b32 {};\n"
LOADS = """.reg .b32 %r<4>;
ld.const.b32 %r0, [c]; ld.global.b32 %r1, [g]; add.s32 %r2, %r0, %r1; st.global.b32 [%a], %r2;"""
# It calls itself, so that it is not inlined.
CALLS = """.visible .func (.reg .b32 %o) f(.reg .b32 %i) {{
.reg .pred %q; .reg .b32 %r<2>;
add.s32 %r0, %i, {}; setp.lt.s32 %q, %r0, 1000; @%q call (%r1), f, (%r0); selp.b32 %o, %r1, %r0, %q; ret;
}}
"""
CALL = ".reg .b32 %r<4>; mov.b32 %r0, %tid.x; call (%r1), f, (%r0); st.global.b32 [%a], %r1;"


@pytest.mark.parametrize(
    ("code", "text", "differs"),
    [
        (kernel("st.global.u32 [%a], 5;"), kernel("st.global.u32 [%a], 7;"), "the instructions"),
        (
            VARIABLES.format(*"cdgh") + kernel(LOADS), VARIABLES.format(*"dcgh") + kernel(LOADS),
            "the instructions",
        ),
        (
            VARIABLES.format(*"cdgh") + kernel(LOADS), VARIABLES.format(*"cegh") + kernel(LOADS),
            "the variables in constant memory, or the addresses of those in global memory",
        ),
        (
            VARIABLES.format(*"cdgh") + kernel(LOADS),
            VARIABLES.format(*"cdhg") + kernel(LOADS.replace("[g]", "[h]")),
            "the variables in constant memory, or the addresses of those in global memory",
        ),
        (CALLS.format(5) + kernel(CALL), CALLS.format(7) + kernel(CALL), "the instructions"),
    ],
)
def test_what_is_not_shown_to_be_the_program_is_taken_only_when_asked_for(code, text, differs, assembler):
    """It has the same parameters and arithmetic, and computes something else."""
    image = fatbin(assembler, {"sm_90": module("sm_90", code)}, {"sm_80": module("sm_80", text)})
    (entry,) = patched(assembler, image).kernels
    assert entry.reason is Reason.VARIANT
    assert entry.detail.startswith(f"retargeted sm_80 → sm_90: {NOT_SHOWN}: ")
    assert entry.detail.endswith(f"({differs})")
    source = find_source(read_container(image, "image"), "sm_90", retarget=True)
    twins = make_twins(
        target_of_device("sm_90"), source, load_probes(["block_sched"]), selection=ALL, tools=assembler,
        options=Options(unproven=True),
    )  # fmt: skip
    (kernel,) = twins.kernels
    assert json.loads(kernel.files["manifest.json"])["retargeted"] == retargeted("sm_80 → sm_90", same=False)
    # The same code is taken with the same things that it refers to.
    same = fatbin(assembler, {"sm_90": module("sm_90", code)}, {"sm_80": module("sm_80", code)})
    assert manifest(patched(assembler, same))["retargeted"] == retargeted("sm_80 → sm_90")


def test_machine_code_of_another_virtual_architecture_is_not_of_the_text_for_its_own(assembler):
    """compute_80 made into sm_86, beside PTX for sm_86 that nothing was made of."""
    old, new = kernel("st.global.u32 [%a], 5;"), kernel("st.global.u32 [%a], 7;")
    cubin = build_entry(ImageKind.CUBIN, assembler.assemble(module("sm_80", old), "sm_86").cubin, "sm_86")
    beside = build_entry(ImageKind.PTX, module("sm_86", new).encode(), "sm_86", options="")
    below = build_entry(ImageKind.PTX, module("sm_80", old).encode(), "sm_80", options="")
    (entry,) = patched(assembler, build_container([cubin, beside]), "sm_86", retarget=False).kernels
    assert entry.reason is Reason.VARIANT
    assert entry.detail == "the PTX is for sm_86, the machine code that runs is sm_86, compiled from PTX for sm_80"
    (entry,) = patched(assembler, build_container([cubin, beside]), "sm_86").kernels
    assert entry.reason is Reason.VARIANT
    # The text that it was made of is taken whatever the assembler makes of it, which is not the program's.
    image = build_container([cubin, beside, below])
    assert manifest(patched(assembler, image, "sm_86"))["retargeted"] == retargeted("sm_80 → sm_86", own=True)
    unoptimized = assembler.assemble(module("sm_80", old), "sm_86", ["-O0"]).cubin
    image = build_container([build_entry(ImageKind.CUBIN, unoptimized, "sm_86"), beside, below])
    found = manifest(patched(assembler, image, "sm_86"))["retargeted"]
    assert found == retargeted("sm_80 → sm_86", same=False, own=True)


def test_of_several_images_nothing_is_taken(assembler):
    """Nothing shows which of them runs, or which of them the machine code was made from."""
    one, other = (module("sm_90", kernel(f"st.global.u32 [%a], {value};")) for value in (5, 7))
    cubins = [build_entry(ImageKind.CUBIN, assembler.assemble(text, "sm_90").cubin, "sm_90") for text in (one, other)]
    texts = [build_entry(ImageKind.PTX, text.encode(), "sm_90", options="") for text in (one, other)]
    for images, says in (
        ([cubins[0], *texts], "2 PTX texts for sm_90: it is not known from which one the code was compiled"),
        ([*cubins, texts[0]], "2 cubins for sm_90: it is not known which one the driver uses"),
        (texts, "2 PTX texts for sm_90: it is not known which one the driver uses"),
    ):
        for retarget in (False, True):
            (entry,) = patched(assembler, build_container(images), retarget=retarget).kernels
            assert (entry.reason, says in entry.detail) == (Reason.VARIANT, True), entry.detail
    twice = build_container([cubins[0], cubins[0], texts[0], texts[0]])
    assert manifest(patched(assembler, twice))["retargeted"] is None


BODIES = {
    "nothing": ("", "does nothing"),
    "trap": ("trap;", "only traps"),
    "message": (
        "{ .param .b64 x; .param .b64 y; .param .b32 z; st.param.b64 [x], %a; st.param.b64 [y], %a;\n"
        "call.uni (z), vprintf, (x, y); } trap;",
        "only traps",
    ),
    "check": (".reg .pred %q; setp.eq.u64 %q, %a, 0; @%q trap; st.global.u32 [%a], 1;", "computes"),
    "barrier": ("bar.sync 0;", "computes"),
    "store": ("st.global.u32 [%a], 1;", "computes"),
}


@pytest.mark.parametrize(
    ("arch", "options"),
    [("sm_75", ()), ("sm_80", ("-O0",)), ("sm_89", ()), ("sm_90a", ()), ("sm_100", ("-O0",)), ("sm_120", ())],
)
def test_bodies_of_every_architecture(arch, options, assembler):
    """Each against one that computes, whose arithmetic none of them has either."""
    head = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
    kernels = [kernel(body).replace(" k(", f" {name}(") for name, (body, _) in BODIES.items()]
    cubin = read_cubin(assembler.assemble(module(arch, head + "".join(kernels)), arch, options).cubin, arch)

    def compared(one: CubinKernel, other: CubinKernel) -> str | None:
        return difference(one, other, arch)

    for name, (_, says) in BODIES.items():
        expected = None if says == "computes" else f"the machine code {says}, the PTX computes"
        assert compared(cubin.kernels[name], cubin.kernels["store"]) == expected
        assert compared(cubin.kernels[name], cubin.kernels[name]) is None


def test_what_is_rewritten_in_a_text():
    text = b'// .target sm_10\n/* .version 1.0 */ .version 8.7 .target /**/ sm_120a, debug\n.b8 x[] = ".target sm_7";'
    assert with_ptx_target(text, "sm_90") == text.replace(b"sm_120a", b"sm_90")
    assert with_ptx_version(text, (8, 0)) == text.replace(b"8.7", b"8.0")
    assert with_ptx_target(b"// .target sm_10", "sm_90") == b"// .target sm_10"
