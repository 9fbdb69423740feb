"""Twins of device-linked code, built by nvcc: judged by cuobjdump, and by what else is in the library."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.backend.protocol import Options
from neutrino.backend.ptx_linked_source import LinkedSource, find_linked_source, is_linked
from neutrino.backend.ptx_target import LinkingTools
from neutrino.backend.registry import target_of_device
from neutrino.demangle import demangle
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, ToolMissingError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container, read_file
from neutrino.maker.patcher import Twins, make_twins
from neutrino.patched_files.check import check_file
from neutrino.patched_files.image_twins import Settings
from neutrino.patched_files.patching import patch_file
from neutrino.patched_files.place import find_section
from neutrino.patched_files.section import read_section
from neutrino.probing.selection import Selection
from neutrino.sass.arithmetic import count_arithmetic
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler, find_linker
from neutrino.twins.cache_entry import KernelEntry
from neutrino.verification import load_probes

from .device_linked import SOURCES, Parts, build, link, need, parts, run, texts

REFUSED = {
    "calls_table": "it uses the function table operations",
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
    return build(tmp_path_factory.mktemp("rdc"))


@pytest.fixture(scope="module")
def linked_and_units(library) -> Parts:
    return parts(library)


@pytest.fixture(scope="module")
def source(linked_and_units) -> LinkedSource:
    return find_linked_source(*linked_and_units, "sm_90")


def twins(
    source: LinkedSource, tools: tuple[Assembler, Linker], probe: str, *names: str, dump: Dump | None = None,
    max_registers: int | None = None,
) -> Twins:  # fmt: skip
    """Of the kernels with one of these in their names, or of all."""
    assembler, linker = tools
    selection = Selection(names, ())
    return make_twins(
        target_of_device(source.arch), source, load_probes([probe]), selection=selection,
        tools=LinkingTools(assembler, linker), options=Options(max_registers=max_registers, dump=dump or Dump()),
    )  # fmt: skip


def test_a_cap_of_the_users_holds_for_each_kernel(source: LinkedSource, tools: tuple[Assembler, Linker]) -> None:
    free, capped = (
        {short(entry): entry for entry in twins(source, tools, "dmat", max_registers=cap).kernels}
        for cap in (None, 24)
    )
    assert free.keys() == capped.keys()
    tight = 0
    for name, entry in capped.items():
        if entry.reason is not free[name].reason:
            # What is spilled needs stack, and of a recursive function there may be any number of frames.
            assert "stack frame grows" in entry.detail
        elif entry.reason is Reason.PROBED:
            before, after = (json.loads(one.files["manifest.json"]) for one in (free[name], entry))
            assert (before.get("max_registers"), after["max_registers"]) == (None, 24)
            assert after["registers"]["twin"] <= 24, name
            tight += before["registers"]["twin"] > 24
    assert tight > len(capped) // 3


def short(entry: KernelEntry | str) -> str:
    """``calls`` of ``_Z5callsPfi``; kernels of one name are told apart by their arguments or units."""
    name = entry if isinstance(entry, str) else entry.name
    plain = re.sub(r"^(?:void )?([\w:]+(?:<\d+>)?).*", r"\1", demangle(name))
    static = re.match(r"__nv_static_\d+__\w+?_(first|second)_cu_", name)
    return f"{static[1]}:tally" if static else re.sub(r"<float>", "", plain)


def results(made: Twins) -> dict[str, tuple[Reason, str]]:
    return {short(entry): (entry.reason, entry.detail) for entry in made.kernels}


@pytest.mark.parametrize(("probe", "arch"), [("block_sched", "sm_90"), ("gmem_bytes", "sm_100a")])
def test_every_kernel_of_a_library(linked_and_units, tools, probe, arch, tmp_path):
    linked, units = linked_and_units
    if arch != "sm_90":
        linked, units = link(tools, [(text, "-lineinfo") for text in texts(units)], arch)
    assert is_linked(linked, units)
    source = find_linked_source(linked, units, arch.rstrip("a"))
    assert (source.arch, source.missing, source.refused) == (arch, "", {})
    made = twins(source, tools, probe)
    found = results(made)
    assert len(found) == len(made.kernels) == 14
    assert {name: detail for name, (reason, detail) in found.items() if reason is not Reason.PROBED} == REFUSED
    images = [read_cubin(image, "twins") for image in made.images]
    assert {image.arch for image in images} == {arch}
    all_shown = [resource_usage(image, tmp_path / f"{index}.cubin") for index, image in enumerate(made.images)]
    originals = resource_usage(next(item.data for item in linked.images), tmp_path / "linked.cubin")
    for entry in made.kernels:
        if entry.reason is not Reason.PROBED:
            continue
        manifest = json.loads(entry.files["manifest.json"])
        image, shown = images[entry.image], all_shown[entry.image]
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


def test_variables_are_reached_by_the_names_in_the_linked_code(source, linked_and_units, tools):
    made = twins(source, tools, "block_sched", "uses", "tally")
    variables = {short(entry): entry.variables for entry in made.kernels}
    assert variables["uses_own"] == ("coefficients", "scale_table")
    assert variables["uses_extern"] == ("coefficients", "hits", "scale_table")
    code = linked_and_units[0].images[0].data
    for unit in SOURCES:
        (name,) = variables[f"{unit}:tally"]
        assert re.fullmatch(rf"__nv_static_\d+__\w+_{unit}_cu_\w+_local_count", name)
        assert name.encode() + b"\0" in code


def test_called_functions_are_the_originals(source, tools, tmp_path):
    """Assembled by the release that made the library, they come out as they were linked."""
    if source.machine.toolkit != tools[0].version[:2]:
        pytest.skip(f"nvcc is of CUDA {source.machine.toolkit}, {tools[0].name} of another release")
    dump = Dump(tmp_path / "stages")
    image = read_cubin(twins(source, tools, "gmem_bytes", *CALLED, dump=dump).images[0], "twins")
    called = set().union(*CALLED.values())
    originals = {name for name in image.functions if "__neutrino_" not in name}
    assert called <= originals <= source.machine.functions.keys()
    assert "_Z8countingf__neutrino__Z14calls_countingPf" in image.functions
    for name in called:
        before, after = source.machine.functions[name], image.functions[name]
        assert len(before) == len(after)
        assert count_arithmetic(before, "sm_90") == count_arithmetic(after, "sm_90")
    assert source.machine.functions["_Z6scaledfi"] == image.functions["_Z6scaledfi"]
    stages = {path.name for path in (tmp_path / "stages").iterdir()}
    assert {"original.0.ptx", "original.1.ptx", "probed.0.ptx", "probed.1.ptx", "probed.cubin", "sites.json"} <= stages
    assert "_Z5callsPfi: probed\n" in (tmp_path / "stages" / "kernels.txt").read_text()


def test_only_selected_kernels(source, tools):
    made = twins(source, tools, "block_sched", "axpy")
    assert [short(entry) for entry in made.kernels if entry.reason is Reason.PROBED] == ["axpy"]
    assert set(read_cubin(made.images[0], "twins").kernels) == {"_Z4axpyPKfS0_Pfi__neutrino"}
    assert {entry.reason for entry in made.kernels} == {Reason.PROBED, Reason.NOT_SELECTED}


def test_ptx_of_another_architecture_is_a_variant(linked_and_units, tools):
    linked, units = linked_and_units
    changed = []
    for unit in units:
        cubin, text = sorted(unit.images, key=lambda image: image.kind is ImageKind.PTX)
        changed.append(replace(unit, images=(cubin, replace(text, arch="sm_80"))))
    source = find_linked_source(linked, changed, "sm_90")
    made = twins(source, tools, "block_sched")
    assert made.images == ()
    detail = "its unit's PTX is for sm_80, the linked machine code for sm_90"
    assert set(results(made).values()) == {(Reason.VARIANT, detail)}


def test_a_device_without_machine_code(linked_and_units, tools):
    source = find_linked_source(*linked_and_units, "sm_75")
    assert (source.machine, source.reason) == (None, Reason.NO_PTX)
    holds = "the linked image holds sm_90, and the driver would link its units itself"
    assert source.detail == f"nothing for sm_75: {holds}"
    assert twins(source, tools, "block_sched") == Twins((), ())


def test_without_one_of_the_units(linked_and_units, tools):
    linked, units = linked_and_units
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


def other_first_unit(units: Sequence[Container]) -> str:
    """The first unit's PTX with other code in ``axpy`` and in ``scaled``."""
    first = texts(units)[0]
    changed = first.replace("0f3FC00000", "0f3FD00000", 1)
    at = changed.index("setp.", changed.index(".entry _Z4axpyPKfS0_Pfi"))
    changed = changed[:at] + changed[at:].replace(".ge.s32", ".gt.s32", 1)
    assert sum(before != after for before, after in zip(first, changed, strict=True)) == 2
    return changed


def test_units_that_were_not_linked(linked_and_units, tools):
    """The first unit of another library: same names, other code for two functions."""
    linked, (first, second) = linked_and_units
    both = texts((first, second))
    _, (changed, _) = link(tools, [(other_first_unit((first,)), ""), (both[1], "")], "sm_90")
    source = find_linked_source(linked, [changed, second], "sm_90")
    found = results(twins(source, tools, "block_sched", "axpy", "calls"))
    detail = "the unit that defines it has machine code for sm_90 that differs from the linked code"
    assert found["axpy"] == (Reason.VARIANT, detail)
    another = "it calls the function _Z6scaledfi, and what was linked is another of that name"
    assert found["calls"] == (Reason.UNSUPPORTED, another)
    # Both there: the one that was linked is taken.
    source = find_linked_source(linked, [changed, first, second], "sm_90")
    assert source.kernels["_Z4axpyPKfS0_Pfi"] == 1
    found = results(twins(source, tools, "block_sched", "axpy", "calls"))
    assert found["axpy"][0] is Reason.PROBED
    assert found["calls"] == (
        Reason.UNSUPPORTED, "it calls the function _Z6scaledfi, which translation units define differently"
    )  # fmt: skip


def test_options_of_a_unit_hold_for_its_twins(source, linked_and_units, tools):
    """Few registers and no fused arithmetic in the first unit alone; the second has LTO IR in the place of its PTX."""
    names = ("axpy", "uses_own", "calls", "prints")
    without = read_cubin(twins(source, tools, "dmat", *names).images[0], "twins")
    assert all(without.kernels[f"{name}__neutrino"].registers > 24 for name in ("_Z4axpyPKfS0_Pfi", "_Z8uses_ownPfi"))
    both = texts(linked_and_units[1])
    # nvcc fuses by itself, where ptxas has no say.
    fused = re.compile(r"fma\.rn\.f32 (%f\d+), (%f\d+), (%f\d+), (%f\d+);")
    split = fused.sub(r"mul.f32 \1, \2, \3; add.f32 \1, \1, \4;", both[0])
    linked, units = link(tools, [(split, "-maxrregcount=24 --fmad=false"), (both[1], "")], "sm_90")
    second = tuple(replace(image, kind=ImageKind.NVVM) if image.kind is ImageKind.PTX else image
                   for image in units[1].images)  # fmt: skip
    source = find_linked_source(linked, (units[0], replace(units[1], images=second)), "sm_90")
    assert source.units[0].options == ("-maxrregcount=24", "--fmad=false")
    made = twins(source, tools, "dmat", *names)
    found = results(made)
    detail = "no unit in the file has its PTX for sm_90; there is LTO IR, which is not supported"
    assert found["calls"] == found["prints"] == (Reason.NO_PTX, detail)
    image = read_cubin(made.images[0], "twins")
    assert all(kernel.registers <= 24 for kernel in image.kernels.values())
    assert count_arithmetic(image.kernels["_Z4axpyPKfS0_Pfi__neutrino"].code, "sm_90") == {"FMUL": 1, "FADD": 1}


def test_an_option_that_is_not_known_is_not_used(linked_and_units, tools):
    _, units = linked_and_units
    first, second = (replace(unit, images=tuple(
        replace(image, options="--compile-only --mystery") if image.kind is ImageKind.PTX else image
        for image in unit.images)) for unit in units)  # fmt: skip
    source = find_linked_source(linked_and_units[0], (first, second), "sm_90")
    detail = "the image was assembled with an unknown ptxas option: --mystery"
    assert source.units == ()
    assert set(results(twins(source, tools, "block_sched")).values()) == {(Reason.UNSUPPORTED, detail)}


def test_a_unit_without_machine_code_of_its_own_shows_nothing(linked_and_units):
    linked, units = linked_and_units
    first = replace(units[0], images=tuple(image for image in units[0].images if image.kind is ImageKind.PTX))
    source = find_linked_source(linked, [first, units[1]], "sm_90")
    detail = "the unit that defines it has no machine code for sm_90 to compare with the linked code"
    assert source.refused["_Z4axpyPKfS0_Pfi"] == (Reason.VARIANT, detail)


def test_a_variable_whose_name_is_not_unique_has_no_address(source, tools):
    doubled = replace(source, variables=(*source.variables, "hits"))
    lacking = replace(source, variables=tuple(name for name in source.variables if name != "hits"))
    for changed, count in ((doubled, "2"), (lacking, "none")):
        reason, detail = results(twins(changed, tools, "block_sched", "uses_extern"))["uses_extern"]
        assert reason is Reason.UNSUPPORTED
        assert detail == f"it uses the variable hits, and the linked code has {count} of that name"


def test_a_function_that_computes_otherwise_is_refused(source, tools):
    """The called function's machine code is made to have an FFMA more than what its text gives."""
    ffma = struct.pack("<2Q", 0x0000000502097223, 0x004FE20000000009)
    code = ffma + source.machine.functions["_Z6scaledfi"][16:]
    machine = replace(source.machine, functions=source.machine.functions | {"_Z6scaledfi": code})
    found = results(twins(replace(source, machine=machine), tools, "block_sched", "calls", "sums"))
    assert found["calls"] == (Reason.NUMERICS, "in the called function _Z6scaledfi: FFMA 2 → 1")
    assert found["sums"][0] is Reason.PROBED


def test_a_library_is_patched_and_found_valid(library, linked_and_units, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("NEUTRINO_PTXAS", str(tools[0].path))
    monkeypatch.setenv("NEUTRINO_NVLINK", str(tools[1].path))
    settings = Settings(load_probes(["block_sched"]), Selection(("axpy",), ()))
    target = tmp_path / "library.so"
    report = patch_file(library, target, settings, names=["block_sched"], archs=["sm_90"], jobs=1)
    rows = {short(kernel.name): (kernel.container, kernel.reason) for kernel in report.kernels}
    assert len(rows) == len(report.kernels) == 14
    assert {container for container, _ in rows.values()} == {linked_and_units[0].index}
    assert [name for name, (_, reason) in rows.items() if reason is Reason.PROBED] == ["axpy"]
    check = check_file(target)
    assert (check.faults, check.counts["twins"]) == ([], 1)
    # The hook asks for what the program registers: the linked container, not the units.
    data = target.read_bytes()
    place = find_section(Elf(memoryview(data), str(target)))
    section = read_section(data[place.offset : place.offset + place.size], str(target))
    linked = linked_and_units[0]
    begin = linked.offset
    digest = hashlib.sha256(library.read_bytes()[begin : begin + linked.size]).digest()
    assert {(row.arch, row.image_digest, row.image_size) for row in section.rows} == {("sm_90", digest, linked.size)}


def test_what_is_linked_and_what_is_not(library, linked_and_units):
    linked, units = linked_and_units
    assert is_linked(linked, units)
    assert not is_linked(units[0], units)
    assert not is_linked(linked, ())
    assert all(not is_linked(container, units) for container in read_file(library.parent / "first.o"))
    plain = build_container([build_entry(ImageKind.PTX, b".version 8.0\n.target sm_90\n", "sm_90")])
    assert not is_linked(read_container(plain, "plain"), units)


def test_damaged_images_are_format_errors(linked_and_units):
    linked, units = linked_and_units

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
