"""Twins of device-linked code, built by nvcc: judged by cuobjdump, and by what else is in the library."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.ahead.relocatable import LinkedSource, find_linked_source, is_linked, make_linked_twins
from neutrino.entry import KernelEntry
from neutrino.errors import FormatError, ToolMissingError
from neutrino.fatbin import (
    Container,
    ImageKind,
    build_container,
    build_entry,
    demangle,
    read_container,
    read_cubin,
    read_file,
)
from neutrino.numerics import count_arithmetic
from neutrino.patch import Dump, Twins
from neutrino.probing.layout import Reason, block_size
from neutrino.probing.selection import Selection
from neutrino.probing.toml import load_probes
from neutrino.toolchain import Assembler, Linker, find_assembler, find_linker

from .device_linked import FOLDER, SOURCES, build, need, parts, run, targets

ALL = Selection((), ())
REFUSED = {
    "calls_table": "it uses the function table operations",
    "calls_counting": "the called function _Z8countingf uses the module's variable hits",
}
CALLED = {"calls": {"_Z6scaledfi", "_Z5twiceIfET_S0_"}, "sums": {"_Z9block_sumf"}, "fill": {"_Z5twiceIfET_S0_"},
          "recurses": {"_Z9factoriali", "_Z15times_factorialii"}}  # fmt: skip


@pytest.fixture(scope="module")
def tools(tmp_path_factory, monkeypatch_module) -> tuple[Assembler, Linker]:
    monkeypatch_module.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    try:
        assembler = find_assembler()
        return assembler, find_linker(assembler)
    except ToolMissingError as error:
        pytest.skip(f"no ptxas with its nvlink: {error}")


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patcher:
        yield patcher


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Machine code and PTX for sm_90 and sm_100a."""
    every = (*targets("90:sm_90,compute_90", "100a:sm_100a,compute_100a"), "-lineinfo")
    linking = targets("90:sm_90", "100a:sm_100a")
    return build(tmp_path_factory.mktemp("rdc") / "all", dict.fromkeys(SOURCES, every), linking)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """The same names with other code in the first unit, whose registers are few, and LTO IR beside its code."""
    folder = tmp_path_factory.mktemp("other")
    text = (FOLDER / "first.cu").read_text().replace("+ c[i]", "- c[i]").replace("x * 1.5f", "x / 1.5f")
    assert text.count("- c[i]") == text.count("x / 1.5f") == 1
    (folder / "first.cu").write_text(text)
    (folder / "second.cu").write_text((FOLDER / "second.cu").read_text())
    units = {"first": (*targets("90:sm_90,compute_90,lto_90"), "-maxrregcount=24"), "second": targets("90:sm_90")}
    return build(folder / "built", units, ["-arch=sm_90"], source=folder)


def twins(source: LinkedSource, tools: tuple[Assembler, Linker], probe: str, **more: object) -> Twins:
    assembler, linker = tools
    options = {"selection": ALL} | more
    return make_linked_twins(source, load_probes([probe]), assembler=assembler, linker=linker, **options)


def short(entry: KernelEntry | str) -> str:
    """``calls`` of ``_Z5callsPfi``; kernels of one name are told apart by their arguments or units."""
    name = entry if isinstance(entry, str) else entry.name
    plain = re.sub(r"^(?:void )?([\w:]+(?:<\d+>)?).*", r"\1", demangle(name))
    static = re.match(r"__nv_static_\d+__\w+?_(first|second)_cu_", name)
    return f"{static[1]}:tally" if static else re.sub(r"<float>", "", plain)


def results(made: Twins) -> dict[str, tuple[Reason, str]]:
    return {short(entry): (entry.reason, entry.detail) for entry in made.kernels}


@pytest.mark.parametrize("probe", ["block_sched", "gmem_bytes"])
@pytest.mark.parametrize(("device", "arch"), [("sm_90", "sm_90"), ("sm_100", "sm_100a")])
def test_every_kernel_of_a_library(library, tools, probe, device, arch, tmp_path):
    linked, units = parts(library)
    assert is_linked(linked, units)
    source = find_linked_source(linked, units, device)
    assert (source.arch, source.missing, source.refused) == (arch, "", {})
    made = twins(source, tools, probe)
    found = results(made)
    assert len(found) == len(made.kernels) == 14
    assert {name: detail for name, (reason, detail) in found.items() if reason is Reason.UNSUPPORTED} == REFUSED
    assert {name for name, (reason, _) in found.items() if reason is not Reason.UNSUPPORTED} == {
        name for name, (reason, _) in found.items() if reason is Reason.PROBED
    }
    image = read_cubin(made.images[0], "twins")
    assert image.arch == arch
    shown = resource_usage(made.images[0], tmp_path / "twins.cubin")
    originals = resource_usage(next(item.data for item in linked.images if item.arch == arch), tmp_path / "all.cubin")
    for entry in made.kernels:
        if entry.reason is not Reason.PROBED:
            continue
        manifest = json.loads(entry.files["manifest.json"])
        assert shown[entry.twin]["REG"] == manifest["registers"]["twin"] == image.kernels[entry.twin].registers
        assert originals[entry.name]["REG"] == manifest["registers"]["original"]
        assert shown[entry.twin]["SHARED"] == originals[entry.name]["SHARED"]
        block = (entry.block_offset, block_size(len(load_probes([probe]).maps), len(entry.variables)))
        assert [place for _, *place in image.kernels[entry.twin].parameters] == [
            *map(list, entry.parameters), list(block)
        ]  # fmt: skip
        assert entry.files["original.ptx"].decode() in source.units[source.kernels[entry.name]].text
        assert set(CALLED.get(short(entry), ())) <= image.functions.keys()


def resource_usage(cubin: bytes, path: Path) -> dict[str, dict[str, int]]:
    """What cuobjdump says that kernels and functions take."""
    path.write_bytes(cubin)
    printed = run(need("cuobjdump"), "-res-usage", str(path))
    found = re.findall(r"Function ([\w$]+):\n\s*(REG.*)", printed)
    assert found
    return {name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)} for name, line in found}


def test_variables_are_reached_by_the_names_in_the_linked_code(library, tools):
    linked, units = parts(library)
    made = twins(find_linked_source(linked, units, "sm_90"), tools, "block_sched")
    variables = {short(entry): entry.variables for entry in made.kernels}
    assert variables["uses_own"] == ("coefficients", "scale_table")
    assert variables["uses_extern"] == ("coefficients", "hits", "scale_table")
    for unit in SOURCES:
        (name,) = variables[f"{unit}:tally"]
        assert re.fullmatch(rf"__nv_static_\d+__\w+_{unit}_cu_\w+_local_count", name)
        assert name.encode() in linked.images[0].data


def test_called_functions_are_the_originals(library, tools, tmp_path):
    """Assembled by the release that made the library, they come out as they were linked."""
    linked, units = parts(library)
    source = find_linked_source(linked, units, "sm_90")
    if source.machine.toolkit != tools[0].version[:2]:
        pytest.skip(f"nvcc is of CUDA {source.machine.toolkit}, {tools[0].name} of another release")
    dump = Dump(tmp_path / "stages")
    image = read_cubin(twins(source, tools, "gmem_bytes", dump=dump).images[0], "twins")
    called = set().union(*CALLED.values())
    assert called <= image.functions.keys() <= source.machine.functions.keys()
    for name in called:
        before, after = source.machine.functions[name], image.functions[name]
        assert len(before) == len(after)
        assert count_arithmetic(before, "sm_90") == count_arithmetic(after, "sm_90")
    assert source.machine.functions["_Z6scaledfi"] == image.functions["_Z6scaledfi"]
    stages = {path.name for path in (tmp_path / "stages").iterdir()}
    assert {"original.0.ptx", "original.1.ptx", "probed.0.ptx", "probed.1.ptx", "probed.cubin", "sites.json"} <= stages
    assert "calls: probed" in (tmp_path / "stages" / "kernels.txt").read_text().replace("_Z5callsPfi", "calls")


def test_only_selected_kernels(library, tools):
    linked, units = parts(library)
    made = twins(find_linked_source(linked, units, "sm_90"), tools, "block_sched", selection=Selection(("axpy",), ()))
    probed = [short(entry) for entry in made.kernels if entry.reason is Reason.PROBED]
    assert probed == ["axpy"]
    assert set(read_cubin(made.images[0], "twins").kernels) == {"_Z4axpyPKfS0_Pfi__neutrino"}
    assert {entry.reason for entry in made.kernels} == {Reason.PROBED, Reason.NOT_SELECTED}


def test_ptx_of_another_architecture_is_a_variant(library, tools):
    linked, units = parts(library)
    units = tuple(
        replace(unit, images=tuple(image for image in unit.images if image.kind is not ImageKind.PTX
                                   or image.arch == "sm_100a"))
        for unit in units
    )  # fmt: skip
    source = find_linked_source(linked, units, "sm_90")
    assert source.arch == "sm_90"
    made = twins(source, tools, "block_sched")
    assert made.images == ()
    detail = "its unit's PTX is for sm_100a, the linked machine code for sm_90"
    assert set(results(made).values()) == {(Reason.VARIANT, detail)}


def test_a_device_without_machine_code(library, tools):
    source = find_linked_source(*parts(library), "sm_75")
    assert (source.machine, source.reason) == (None, Reason.NO_PTX)
    assert source.detail.startswith("nothing for sm_75: the linked image holds sm_100a, sm_90, and the driver")
    assert twins(source, tools, "block_sched") == Twins((), ())


def test_without_one_of_the_units(library, tools):
    linked, units = parts(library)
    without_second = find_linked_source(linked, [units[0]], "sm_90")
    lacking = {short(name) for name in without_second.refused}
    assert {"calls", "second:tally", "prints", "numbered<2>"} <= lacking
    assert not {"uses_own", "first:tally", "axpy", "numbered<1>", "fill"} & lacking
    assert set(without_second.refused.values()) == {(Reason.NO_PTX, "no unit in the file has its PTX for sm_90")}
    assert without_second.missing.startswith("no unit in the file has the PTX that defines ")
    found = results(twins(find_linked_source(linked, [units[1]], "sm_90"), tools, "block_sched"))
    for name, function in (("calls", "_Z6scaledfi"), ("sums", "_Z9block_sumf"), ("recurses", "_Z9factoriali")):
        assert found[name] == (Reason.UNSUPPORTED, f"it calls the external function {function}")
    assert found["uses_extern"][0] is Reason.PROBED


def test_units_that_were_not_linked(library, other, tools):
    """The first unit of another library: same names, other code for two functions, fewer registers."""
    linked, (first, second) = parts(library)
    _, (changed, _) = parts(other)
    source = find_linked_source(linked, [changed, second], "sm_90")
    found = results(twins(source, tools, "block_sched"))
    detail = "the unit that defines it has other machine code for sm_90 than what was linked"
    assert found["axpy"] == (Reason.VARIANT, detail)
    another = "it calls the function _Z6scaledfi, and what was linked is another of that name"
    assert found["calls"] == (Reason.UNSUPPORTED, another)
    # Both there: the one that was linked is taken, and its functions with it.
    both = find_linked_source(linked, [changed, first, second], "sm_90")
    assert both.kernels["_Z4axpyPKfS0_Pfi"] == 1
    found = results(twins(both, tools, "block_sched"))
    assert found["axpy"][0] is Reason.PROBED
    assert found["calls"] == (
        Reason.UNSUPPORTED, "it calls the function _Z6scaledfi, which translation units define differently"
    )  # fmt: skip


def test_options_of_a_unit_hold_for_its_twins(other, tools):
    """-maxrregcount=24 in the first unit alone; the second has machine code only."""
    linked, units = parts(other)
    source = find_linked_source(linked, units, "sm_90")
    assert source.units[0].options == ("-maxrregcount=24",)
    made = twins(source, tools, "gmem_bytes")
    found = results(made)
    detail = "no unit in the file has its PTX for sm_90; there is LTO IR, which is not read"
    assert found["calls"] == found["prints"] == (Reason.NO_PTX, detail)
    image = read_cubin(made.images[0], "twins")
    assert {"_Z4axpyPKfS0_Pfi__neutrino"} <= image.kernels.keys()
    assert all(kernel.registers <= 24 for kernel in image.kernels.values())


def test_a_unit_without_machine_code_of_its_own_shows_nothing(library, tools):
    linked, units = parts(library)
    first = replace(units[0], images=tuple(image for image in units[0].images if image.kind is ImageKind.PTX))
    source = find_linked_source(linked, [first, units[1]], "sm_90")
    detail = "the unit that defines it has no machine code for sm_90 to hold against what was linked"
    assert source.refused["_Z4axpyPKfS0_Pfi"] == (Reason.VARIANT, detail)


def test_a_variable_whose_name_is_not_unique_has_no_address(library, tools):
    source = find_linked_source(*parts(library), "sm_90")
    doubled = replace(source, variables=(*source.variables, "hits"))
    lacking = replace(source, variables=tuple(name for name in source.variables if name != "hits"))
    for changed, count in ((doubled, "2"), (lacking, "none")):
        reason, detail = results(twins(changed, tools, "block_sched"))["uses_extern"]
        assert reason is Reason.UNSUPPORTED
        assert detail == f"it uses the variable hits, and the linked code has {count} of that name"


def test_a_function_that_computes_otherwise_is_refused(library, tools):
    """The called function's machine code is made to have an FFMA more than what its text gives."""
    source = find_linked_source(*parts(library), "sm_90")
    ffma = struct.pack("<2Q", 0x0000000502097223, 0x004FE20000000009)
    code = ffma + source.machine.functions["_Z6scaledfi"][16:]
    machine = replace(source.machine, functions=source.machine.functions | {"_Z6scaledfi": code})
    found = results(twins(replace(source, machine=machine), tools, "block_sched"))
    assert found["calls"] == (Reason.NUMERICS, "in the called function _Z6scaledfi: FFMA 2 → 1")
    assert found["sums"][0] is Reason.PROBED


def test_what_is_linked_and_what_is_not(library, tools, tmp_path):
    linked, units = parts(library)
    assert not is_linked(units[0], units)
    assert not is_linked(linked, ())
    assert all(not is_linked(container, units) for container in read_file(library.parent / "first.o"))
    plain = build_container([build_entry(ImageKind.PTX, b".version 8.0\n.target sm_90\n", "sm_90")])
    assert not is_linked(read_container(plain, "plain"), units)


def test_damaged_images_are_format_errors(library):
    linked, units = parts(library)

    def damaged(container: Container, change: bytes) -> Container:
        images = []
        for image in container.images:
            data = bytearray(image.data)
            if image.kind is ImageKind.CUBIN:
                data[0x28:0x30] = change
            images.append(replace(image, payload=memoryview(bytes(data)), encoded_size=None, decoded_size=len(data)))
        return replace(container, images=tuple(images))

    for change in (b"\xff" * 8, struct.pack("<Q", 1 << 40), struct.pack("<Q", 64)):
        with pytest.raises(FormatError):
            find_linked_source(damaged(linked, change), units, "sm_90")
        with pytest.raises(FormatError):
            find_linked_source(linked, [damaged(unit, change) for unit in units], "sm_90")
