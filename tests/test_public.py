"""The public surface: what ``import neutrino`` gives, and that nothing unverified gets into a kernel through it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neutrino
from neutrino.errors import NeutrinoError, ProbeError
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from tests.fronts import read_probe_text

ROOT = Path(__file__).resolve().parent.parent
EVIL = """[map.M]
level = "thread"
data = { a = "u64" }
[probe.p]
position = "ld.global"
level = "thread"
before = \"\"\"
.reg .u64 %a;
mov.u64 %a, ADDR;
st.global.u64 [%a], 1;
bar.sync 0;
SAVE [ M ] { %a };
\"\"\"
"""


def test_every_name_is_there_and_documented() -> None:
    assert sorted(neutrino.__all__) == dir(neutrino)
    for name in neutrino.__all__:
        value = getattr(neutrino, name)
        if name != "__version__":
            assert inspect.getdoc(value), name
    functions = [getattr(neutrino, name) for name in neutrino.__all__ if inspect.isfunction(getattr(neutrino, name))]
    names = {"Map", "extract", "install", "load_probes", "open_trace", "patch_file", "probe", "trace", "trace_dir"}
    assert {function.__name__ for function in functions} == names
    assert all("Raises" in (function.__doc__ or "") for function in functions if function is not neutrino.trace_dir)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        neutrino.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        neutrino.import_modules  # noqa: B018


def test_wrong_arguments_name_the_right_ones() -> None:
    for call, said in (
        (lambda: neutrino.Map("sum"), r"Map\(\) takes its arguments by name, as level=…; it has level, type"),
        (lambda: neutrino.probe("ld.global"), r"probe\(\) takes its arguments by name, as pos=…; it has pos"),
        (lambda: neutrino.probe(where="ld", level="warp"), r"probe\(\) has no option where; it has pos, position"),
        (lambda: neutrino.probe(pos="ld"), r"probe\(\): missing a required.* argument: 'level'; it has pos"),
        (lambda: neutrino.load_probes("gmem_bytes", define={}), "has no option define; did you mean defines"),
        (lambda: neutrino.open_trace(5), "5 is no path of a trace"),
        (lambda: neutrino.open_trace("nothing/here"), "nothing/here: cannot be read: No such file"),
        (lambda: neutrino.patch_file("x.so", "gmem_bytes"), r"not str: write load_probes\('gmem_bytes'\)"),
    ):
        with pytest.raises(NeutrinoError, match=said) as caught:
            call()
        assert caught.value.__cause__ is None
    # What goes wrong inside is not taken for a wrong call.
    with pytest.raises(TypeError, match="not int"):
        neutrino.patch_file(5, neutrino.load_probes("gmem_bytes"))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="it has extract, install, load_probes, open_trace"):
        neutrino.profile  # noqa: B018


def test_what_may_be_wrong_in_probes_is_a_warning_where_they_are_named() -> None:
    with pytest.warns(neutrino.ProbeWarning, match="no instruction of PTX has the modifier 'globl'") as found:
        neutrino.load_probes("ld.globl { @n = count() }")
    assert [warning.filename for warning in found] == [__file__]


def test_importing_it_imports_little() -> None:
    script = "import neutrino, sys; sys.exit(len([name for name in sys.modules if name.startswith('neutrino')]) > 2)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    path = tmp_path / "evil.toml"
    path.write_text(EVIL)
    return path


def test_what_the_verifier_refuses_is_not_loaded(evil: Path) -> None:
    for name in (evil, str(evil), [evil], ["block_sched", evil]):
        with pytest.raises(ProbeError, match=r"'st\.global\.u64' is not allowed"):
            neutrino.load_probes(name)


def _alter(probes: neutrino.ProbeSet, written: Any) -> list[Callable[[], object]]:
    """Ways to come by a set of the verifier's type that holds what it has not seen."""
    members = {name: getattr(probes, name) for name in probes.__dataclass_fields__ if name != "seal"}
    return [
        lambda: dataclasses.replace(probes, probes=written.probes),
        lambda: dataclasses.replace(probes),
        lambda: type(probes)(**members),
        lambda: type(probes)(**members | {"probes": written.probes}),
    ]


def test_a_set_is_made_by_the_verifier_alone() -> None:
    probes = neutrino.load_probes("block_sched")
    for way in _alter(probes, read_probe_text("evil.toml", EVIL)):
        with pytest.raises(TypeError, match=r"made by neutrino\.load_probes"):
            way()
    with pytest.raises(dataclasses.FrozenInstanceError):
        probes.probes = ()  # type: ignore[misc]
    # Workers get sets from other processes.
    assert pickle.loads(pickle.dumps(probes)) == copy.deepcopy(probes) == probes


def test_nothing_inserts_what_is_not_verified(evil: Path, tmp_path: Path) -> None:
    """Every public function that takes probes, and what they all end in, refuse anything but a verified set."""
    written = read_probe_text("evil.toml", EVIL)
    kernels = ROOT / "examples" / "embedded" / "kernels.ptx"
    functions = [getattr(neutrino, name) for name in neutrino.__all__ if inspect.isfunction(getattr(neutrino, name))]
    takers = [function for function in functions if "probes" in inspect.signature(function).parameters]
    assert takers == [neutrino.install, neutrino.patch_file, neutrino.trace]
    module = parse(kernels.read_text("latin-1"))
    for given in (written, EVIL, str(evil), evil, None, [written]):
        with pytest.raises((TypeError, NeutrinoError)):
            neutrino.patch_file(kernels, given, tmp_path / "out.so")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="verified"):
            probe_module(module, given)  # type: ignore[arg-type]
        # These take names, too, and verify what the files have.
        with pytest.raises((TypeError, NeutrinoError, OSError)):
            neutrino.install(given, device="embedded")  # type: ignore[arg-type]
        with pytest.raises((TypeError, NeutrinoError, OSError)):
            neutrino.trace(given, device="embedded").__enter__()  # type: ignore[arg-type]
    assert list(tmp_path.glob("out*")) == []


def test_the_functions_do_what_they_say(tmp_path: Path) -> None:
    probes = neutrino.load_probes(["block_sched", ROOT / "probes" / "gmem_bytes.py"])
    assert [entry.name for entry in probes.maps] == ["BlockSched", "GmemBytes"]
    kernels = ROOT / "examples" / "embedded" / "kernels.ptx"
    (container,) = neutrino.extract(kernels, tmp_path / "images")
    (image,) = container.images
    (file,) = (tmp_path / "images").iterdir()
    assert file.name == "kernels.0.0.sm_75.ptx"
    assert file.read_bytes() == bytes(image.data)
    with pytest.raises(neutrino.TraceError, match="there is no"):
        neutrino.open_trace(tmp_path)
    with pytest.raises(neutrino.PatchError):
        neutrino.patch_file(kernels, probes, tmp_path / "out.ptx")
