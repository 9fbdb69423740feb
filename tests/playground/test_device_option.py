"""``--device``: what it takes, and what reaches the stand-in driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.loader import embedded_driver
from neutrino.loader.embedded_driver import VARIABLE, EmbeddedDevice
from neutrino.maker.keys import run_key


def settings(device: EmbeddedDevice, before: dict[str, str]) -> dict[str, str]:
    (pair,) = device.environment(before).items()
    assert pair[0] == VARIABLE
    return dict(part.split("=", 1) for part in pair[1].split(";"))


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("embedded", EmbeddedDevice()),
        ("embedded:", EmbeddedDevice()),
        ("embedded:seed=0", EmbeddedDevice(seed=0)),
        ("embedded:seed=3,delay=200,memory=1G", EmbeddedDevice(3, 200, 1 << 30)),
        ("embedded:memory=67108864", EmbeddedDevice(memory=64 << 20)),
    ],
)
def test_what_it_takes(text: str, device: EmbeddedDevice) -> None:
    assert EmbeddedDevice.parse(text) == device


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("embeded", "there is no device of that name; use embedded"),
        ("", "there is no device of that name"),
        ("cuda:0", "there is no device of that name"),
        ("embedded:speed=9", "'speed' is no option of it: seed, delay, memory"),
        ("embedded:seed", "seed needs a number, not ''"),
        ("embedded:seed=-1", "seed needs a number, not '-1'"),
        ("embedded:seed=1G", "seed needs a number, not '1G'"),
        ("embedded:memory=lots", "memory needs a number"),
        ("embedded:memory=1M", "memory is from 64M to 64G"),
        ("embedded:memory=65G", "memory is from 64M to 64G"),
        ("embedded:seed=1,,", "'' is no option"),
    ],
)
def test_what_it_does_not_take_is_named(text: str, said: str) -> None:
    with pytest.raises(NeutrinoError, match=said):
        EmbeddedDevice.parse(text)


def test_the_stand_in_is_told_where_python_and_the_package_are() -> None:
    told = settings(EmbeddedDevice(seed=4), {})
    assert told["python"].replace("%3B", ";").replace("%25", "%") == sys.executable
    assert (Path(told["root"]) / "neutrino" / "emulator").is_dir()
    assert told["seed"] == "4"
    assert "delay" not in told


def test_settings_that_are_there_stay() -> None:
    told = settings(EmbeddedDevice(seed=4), {VARIABLE: "fail=launch@3=719;seed=1;python=/nowhere"})
    assert (told["fail"], told["seed"], told["python"]) == ("launch@3=719", "4", sys.executable)


def test_a_separator_in_a_path_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/a;b/50%/python")
    assert settings(EmbeddedDevice(), {})["python"] == "/a%3Bb/50%25/python"


def test_a_stand_in_that_was_not_built_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded_driver, "_LIBRARY", tmp_path / "libcuda.so.1")
    with pytest.raises(NeutrinoError, match=r"libcuda.so.1 is missing: the embedded device was not built; run make"):
        embedded_driver.stand_in()


def test_the_two_kinds_of_device_share_no_cache_entry() -> None:
    keys = {run_key("p", "s", "a", "v", kind) for kind in DeviceKind}
    assert len(keys) == len(DeviceKind)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "embeded"), "there is no device of that name"),
        (("--device", "embedded", "--driver", "/x"), "not allowed with --device embedded"),
    ],
)
def test_nothing_starts_and_one_line_says_why(arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "neutrino.cli.run", *arguments, "-p", "block_sched", "true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (result.stdout, result.returncode) == ("", 125)
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr
