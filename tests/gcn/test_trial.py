"""What ``neutrino-probe check --target`` says of probes is what ``neutrino-patch`` does with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.errors import NeutrinoError
from neutrino.gcn import trial
from neutrino.gcn.instrument import twin
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.llvm import Llvm
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.resources import shipped_probes
from neutrino.twins.cache_entry import KernelEntry, read_entry
from neutrino.verification import Checked, check_probes, load_probes
from tests.gcn.objects import code_objects, need_llvm

PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
KERNELS = "/^(saxpy|block_sum|histogram)$/"
_FLAGS, _GFX950 = 0x30, 0x4F


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    """A code object for each processor. What is for gfx942 runs on gfx950, too: only its name is changed."""
    need_llvm()
    objects = code_objects()
    found = {one: objects[f"{one}-O2"].read_bytes() for one in PROCESSORS if one != "gfx950"}
    data = bytearray(found["gfx942"].replace(b"gfx942", b"gfx950"))
    data[_FLAGS] = _GFX950
    return found | {"gfx950": bytes(data)}


def checked(probe: str | Path, processor: str) -> Checked:
    return check_probes([str(probe)], platform="hip", device=processor)


def patched(image: bytes, probe: str | Path, processor: str, kernels: str = KERNELS) -> list[KernelEntry]:
    """The kernels with an instruction that the probe matches, if it asks for any; none where the target lacks something
    of it."""
    try:
        probes = load_probes([str(probe)], platform="hip")
        data = patch_image(
            image, probes, processor, selection=Selection((kernels,)), assembler=None, key=bytes(32)
        )
    except NeutrinoError:
        return []
    is_of_kernels = all(one.tracepoint.is_kernel for one in probes.probes)
    return [
        kernel for kernel in read_entry(data, "entry").kernels
        if kernel.reason not in (Reason.NO_SITE, Reason.NOT_SELECTED)
        and (kernel.reason is not Reason.PROBED or is_of_kernels or has_instructions(kernel))
    ]  # fmt: skip


def has_instructions(kernel: KernelEntry) -> bool:
    """Whether a twin has probes at instructions, and not at the kernel's entry and ends alone."""
    return any(site["site"] is not None for site in json.loads(kernel.files["manifest.json"])["sites"])


def cases(*, thorough: bool) -> Iterator[tuple[str, str]]:
    """Every shipped probe on a processor, each time another; or on every one."""
    for number, name in enumerate(shipped_probes()):
        for place, processor in enumerate(PROCESSORS):
            if thorough or place == number % len(PROCESSORS):
                yield name, processor


def test_check_and_patch_agree_on_all_shipped_probes(images: dict[str, bytes], request: pytest.FixtureRequest) -> None:
    wrong = []
    some_go_in = False
    for name, processor in cases(thorough=request.config.getoption("--thorough")):
        result = checked(name, processor)
        kernels = patched(images[processor], name, processor)
        whole = [kernel.name for kernel in kernels if kernel.reason is Reason.PROBED and not kernel.detail]
        if not result.is_valid:
            if whole:
                wrong.append(f"{name} on {processor}: refused by check, but in {', '.join(whole)}")
        elif kernels:
            some_go_in = True
            if not whole:
                wrong.append(f"{name} on {processor}: valid, but {kernels[0].name}: {kernels[0].detail}")
    assert not wrong, "\n".join(wrong)
    assert some_go_in


LACKING = """
import neutrino.language as nl
from neutrino import probe, Map
n: nl.u64 = 0

@Map(level="thread", type="sum")
class N:
    n: nl.u64

@probe(pos="kernel", level="thread", after=True)
def total():
    N.save(n)

@probe(pos="ld.global", level="thread", before=True)
def loads():
    n += 1

@probe(pos="st.global", level="thread", before=True)
def stores():
    n += 1
"""


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_what_some_kernels_alone_cannot_have_is_a_warning(
    images: dict[str, bytes], processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lacking.py"
    path.write_text(LACKING)
    # As long as something is not possible at stores alone, whatever it is.
    write = twin.write

    def refusing(request: twin.Request, llvm: Llvm) -> twin.TwinCode:
        function, at = request.functions[0]
        names = {one.offset: one.mnemonic for one in function.instructions}
        if any("store" in names[offset] for offset in at):
            raise CannotError("STORES is not possible in AMD's kernels yet")
        return write(request, llvm)

    monkeypatch.setattr(twin, "write", refusing)
    monkeypatch.setattr(trial, "write", refusing)
    result = checked(path, processor)
    (warning,) = result.diagnostics
    assert (warning.severity, warning.line, warning.code) == ("warning", 18, "target-lacks")
    store = "global_store_b32" if processor == "gfx1100" else "global_store_dword"
    assert warning.message == (
        f"kernels for {processor} with {store} and the like are left out: STORES is not possible in AMD's kernels yet"
    )
    (kernel,) = patched(images[processor], path, processor, "/^saxpy$/")
    assert (kernel.reason, kernel.detail) == (Reason.UNSUPPORTED, "STORES is not possible in AMD's kernels yet")


def test_the_kernel_that_is_tried_has_instructions_of_each_kind() -> None:
    need_llvm()
    for processor in PROCESSORS:
        _, function, _, _ = trial._kernel(processor)
        names = {one.mnemonic.partition("_")[0] for one in function.instructions}
        assert {"s", "v", "global", "flat", "ds", "buffer", "scratch"} <= names, processor
        assert not [one.offset for one in function.instructions if not one.mnemonic]
        kinds = {one.mnemonic for one in function.instructions}
        assert any("mfma" in one or "wmma" in one for one in kinds) == (processor != "gfx1030")
        assert any("atomic" in one for one in kinds)
        assert len(function.instructions) > 40


