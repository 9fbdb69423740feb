"""--max-registers: what ptxas makes of a twin under the user's cap, and where that is not the last word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neutrino.cli.patch import main as patch
from neutrino.cli.probe import main as probe
from neutrino.cli.run import main as run
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.maker.keys import run_key
from neutrino.maker.patcher import patch_image
from neutrino.maker.serving import TwinSettings, make_entry
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.run.listener import Settings
from neutrino.run.probes import RunProbes
from neutrino.run.start import Request, prepare
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.ptxas import Assembler
from neutrino.tracing.manifest import read_manifest
from neutrino.twins.cache_entry import KernelEntry, read_entry
from neutrino.verification import load_probes

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def kernel(directives: str = "", extra: str = "", values: int = 90) -> str:
    """It holds so many values at once."""
    loads = "\n".join(f"ld.volatile.global.f32 %f{index}, [%a+{4 * index}];" for index in range(values))
    stores = "\n".join(f"st.global.f32 [%a+{4 * index}], %f{values - 1 - index};" for index in range(values))
    return (
        f"{HEAD}.visible .entry wide(.param .u64 p) {directives}\n"
        f"{{ .reg .u64 %a; .reg .f32 %f<{values}>; ld.param.u64 %a, [p];\n"
        f"{extra}{loads}\nbar.sync 0;\n{stores}\nret; }}\n"
    )


def twin(assembler: Assembler, text: str, cap: int | None, options: str | None = None) -> KernelEntry:
    cubin = assembler.assemble(text, "sm_90a", options or "").cubin
    image = build_container(
        [
            build_entry(ImageKind.CUBIN, cubin, "sm_90a"),
            build_entry(ImageKind.PTX, text.encode(), "sm_90a", version=(8, 8), options=options),
        ]
    )
    data = patch_image(
        image, load_probes(["block_sched"]), "sm_90", selection=Selection(), assembler=assembler, key=bytes(32),
        max_registers=cap,
    )  # fmt: skip
    entry = read_entry(data, "entry")
    (made,) = entry.kernels
    # What the manifest says is what the code has.
    code = read_cubin(entry.images[made.image], "twin").kernels[made.twin]
    assert manifest(made)["registers"]["twin"] == code.registers
    return made


def manifest(entry: KernelEntry) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(entry.files["manifest.json"])
    return found


@pytest.mark.parametrize("cap", [24, 40, 64])
def test_a_twin_has_no_more_registers_than_the_cap(assembler: Assembler, cap: int) -> None:
    free, capped = manifest(twin(assembler, kernel(), None)), manifest(twin(assembler, kernel(), cap))
    assert "max_registers" not in free
    assert capped["max_registers"] == capped["maxnreg"] == cap
    assert free["registers"]["twin"] > cap >= capped["registers"]["twin"]
    # The original is as it was.
    assert capped["registers"]["original"] == free["registers"]["original"] > cap
    assert capped["spills"]["twin"]["stores"] > capped["spills"]["original"]["stores"] == 0
    assert f".maxnreg {cap}" in twin(assembler, kernel(), cap).files["probed.ptx"].decode()


def test_a_cap_that_is_no_limit_changes_no_code(assembler: Assembler) -> None:
    free, capped = (twin(assembler, kernel(values=8), cap) for cap in (None, 255))
    assert manifest(free)["registers"] == manifest(capped)["registers"]


@pytest.mark.parametrize(
    ("directives", "options", "most"),
    [
        # A block of 1,024 threads has 64 registers for each. ptxas alone would let a .maxnreg of more win.
        (".maxntid 1024, 1, 1", None, 64),
        (".reqntid 32, 24", None, 80),
        (".maxntid 32, /* y */ 32", None, 64),
        (".maxntid 0x400", None, 64),
        (".maxnreg 48", None, 48),
        (".maxntid 256 .minnctapersm 4", None, 64),
        ("", "--maxrregcount=40", 40),
        ("", "-maxrregcount 40", 40),
        ("", "--maxntid 1024", 64),
        (".maxntid 64", None, 128),
    ],
)
def test_what_limits_the_original_still_limits_the_twin(
    assembler: Assembler, directives: str, options: str | None, most: int
) -> None:
    """With a cap of 128 that has more registers than the kernel allows."""
    made = manifest(twin(assembler, kernel(directives), 128, options))
    assert made["max_registers"] == 128
    assert 24 <= made["registers"]["twin"] <= most


def test_registers_that_warps_hand_to_each_other_stay(assembler: Assembler) -> None:
    text = kernel(".maxnreg 168", "setmaxnreg.dec.sync.aligned.u32 24;\n", 8)
    free, capped = (twin(assembler, text, cap) for cap in (None, 40))
    assert "max_registers" not in manifest(capped)
    assert capped.files == free.files


def test_the_key_differs_with_the_cap_alone() -> None:
    def key(cap: int | None) -> bytes:
        return run_key("probes", "all", "ptxas", "1", DeviceKind.GPU, cap)

    assert len({key(None), key(24), key(32), key(255)}) == 4
    # As before there was the option, so that caches stay.
    assert key(None) == run_key("probes", "all", "ptxas", "1")


def test_the_embedded_device_ignores_it(assembler: Assembler) -> None:
    def entries(device: DeviceKind) -> list[bytes]:
        return [
            patch_image(
                kernel().encode() + b"\0", load_probes(["gmem_bytes"]), "sm_90a", selection=Selection(),
                assembler=assembler, key=bytes(32), device=device, max_registers=cap,
            )
            for cap in (None, 32)
        ]  # fmt: skip

    assert len({*entries(DeviceKind.EMBEDDED)}) == 1
    assert len({*entries(DeviceKind.GPU)}) == 2


@pytest.mark.parametrize("value", ["23", "256", "0", "-1", "x", "", "3e1", "٣٢", "99999"])
@pytest.mark.parametrize("command", [run, patch])
def test_what_ptxas_does_not_take_is_refused(command: Any, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(["-p", "gmem_bytes", f"--max-registers={value}", "true"])
    assert "is not a number from 24 to 255" in capsys.readouterr().err


def test_it_needs_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["--max-registers", "32", "true"])
    assert "--max-registers needs a probe" in capsys.readouterr().err


@pytest.mark.parametrize("embedded", [False, True])
def test_a_run_hands_it_to_the_listener(
    embedded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its settings and its key; on the embedded device it says that it does not."""
    noted: list[TwinSettings] = []

    def started(settings: Settings, pid: int | None = None) -> Path:
        noted.append(settings.twins)
        return Path("/nowhere")

    monkeypatch.setattr("neutrino.run.start.start_listener", started)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for cap in (None, 40):
        device = EmbeddedDevice() if embedded else None
        probes = RunProbes.of(load_probes(["block_sched"]))
        names = ("block_sched",)
        prepare(Request(["true"], probes, names, Selection(), driver=stand_in(), device=device, max_registers=cap))
    free, capped = noted
    assert (free.max_registers, capped.max_registers) == (None, None if embedded else 40)
    assert (free.run_key == capped.run_key) == embedded
    assert ("--max-registers: the embedded device has no registers to limit" in capsys.readouterr().err) == embedded


def test_try_says_that_it_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = str(Path(__file__).parents[2] / "examples" / "embedded" / "kernels.ptx")
    assert probe(["try", "block_sched", kernels, "-k", "saxpy", "--max-registers", "32"]) == 0
    assert "--max-registers: the embedded device has no registers to limit" in capsys.readouterr().err


def test_what_the_entry_of_a_run_has(assembler: Assembler, tmp_path: Path) -> None:
    """Made by the listener, and read back as reports do."""
    settings = TwinSettings(
        RunProbes.of(load_probes(["block_sched"])), Selection(), bytes(32), Cache(tmp_path / "cache"), None,
        max_registers=40,
    )  # fmt: skip
    image = kernel().encode() + b"\0"
    (made,) = read_entry(make_entry(image, "sm_90a", None, bytes(32), settings), "entry").kernels
    (tmp_path / "manifest.json").write_bytes(made.files["manifest.json"])
    assert read_manifest(tmp_path / "manifest.json").max_registers == 40
