"""For which architectures and probes ``--machine-code auto`` makes twins of machine code."""

from __future__ import annotations

import pytest

from neutrino.cli.machine_code import proven
from neutrino.device import machine_code
from neutrino.device.machine_code import MachineCode
from neutrino.resources import shipped_probes
from neutrino.sass.twin.trampolines import ARCHITECTURES

AUTO, OFF, ONLY, UNPROVEN = MachineCode.AUTO, MachineCode.OFF, MachineCode.ONLY, MachineCode.UNPROVEN


@pytest.mark.parametrize(
    ("proven", "names", "expected"),
    [
        ({}, ("block_sched",), OFF),
        ({"sm_90": {"block_sched"}}, ("block_sched",), AUTO),
        ({"sm_90": {"block_sched"}}, ("gmem_bytes",), OFF),
        ({"sm_90": {"block_sched"}}, ("block_sched", "gmem_bytes"), OFF),
        ({"sm_90": {"block_sched"}}, ("block_sched", "-DN=2"), OFF),
        ({"sm_90": {"block_sched"}, "sm_90a": {"gmem_bytes"}}, ("gmem_bytes",), AUTO),
        ({"sm_90": {"block_sched"}}, (), OFF),
    ],
)
def test_auto_is_off_with_probes_that_no_gpu_has_shown(
    monkeypatch: pytest.MonkeyPatch, proven: dict[str, set[str]], names: tuple[str, ...], expected: MachineCode
) -> None:
    monkeypatch.setattr(machine_code, "PROVEN", {arch: frozenset(shown) for arch, shown in proven.items()})
    assert AUTO.for_probes(names) is expected
    assert [one.for_probes(names) for one in (OFF, ONLY, UNPROVEN)] == [OFF, ONLY, UNPROVEN]
    assert {arch for arch in (*ARCHITECTURES, "sm_80") if AUTO.takes(arch)} == set(proven)
    assert (AUTO.is_on, OFF.is_on, ONLY.is_on, UNPROVEN.is_on) == (bool(proven), False, True, True)


def test_what_is_proven_can_be_made() -> None:
    assert set(machine_code.PROVEN) <= set(ARCHITECTURES)
    assert {name for shown in machine_code.PROVEN.values() for name in shown} <= set(shipped_probes())


def test_help_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neutrino.cli.machine_code.PROVEN", {})
    assert proven() == "none yet"
    shown = {"sm_90a": frozenset({"b", "a"}), "sm_90": frozenset({"a"})}
    monkeypatch.setattr("neutrino.cli.machine_code.PROVEN", shown)
    assert proven() == "sm_90, sm_90a, with a and b"
