"""The hook in front of the stand-in driver: what the program gets, and what the trace says."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.abi.results import FRAME, FRAME_MAGIC
from neutrino.loader import install
from neutrino.maker.store import Cache
from neutrino.maps.regions import region_layout
from neutrino.tracing import Trace
from neutrino.twins.cache_entry import read_entry, write_entry

from .conftest import (
    IMAGE,
    POOL_LEAST,
    Bench,
    Reference,
    compile_c,
    entry_of,
    in_parts,
    probes_with_cap,
    second,
    write_capped,
    write_immense,
    write_reasons,
    write_with_fewer_blocks,
    write_with_lanes,
    write_with_local_memory,
)
from .trace_files import ALL_PROBED, Files


@pytest.mark.parametrize("scenario", ["plain", "unversioned"])
def test_every_launch_is_probed_and_written(any_bench: Bench, tmp_path: Path, scenario: str) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n{ALL_PROBED}", result.stderr)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert list(files.check_tickets(any_bench.maps)) == list(range(120))
    assert files.header["ended"] == 1
    (kernel,) = files.kernels("count_p2")
    names = {file.name for file in (files.path / "kernel" / str(kernel)).iterdir()}
    assert names == {"manifest.json", "original.ptx", "probed.ptx"}


def test_parameters_of_every_size_arrive_in_both_forms(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    result = any_bench.run("parameters", tmp_path)
    assert (result.stdout, result.returncode) == reference("parameters")
    assert result.stdout.endswith("\n70\n")
    files = Files(tmp_path / "trace")
    assert files.counted("count_p6")["probed"] == 10
    assert len(files.check_tickets(any_bench.maps)) == 70


def test_a_twin_counts_in_the_originals_variable(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("variables", tmp_path)
    assert (result.stdout, result.returncode) == reference("variables")
    assert result.stdout == "8 bytes: 1040\n8 bytes: 1020\n0\n"
    files = Files(tmp_path / "trace")
    assert files.counted("count_p0") == {"probed": 20}
    assert len(files.written()) == 20


def test_attributes_hold_for_the_twin(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("shared-memory", tmp_path)
    assert (result.stdout, result.returncode) == reference("shared-memory")
    counted = Files(tmp_path / "trace").counted("shared_p3")
    assert counted.pop("probed") == 2
    assert sum(counted.values()) == 1


def test_no_twin_makes_the_driver_enlarge_local_memory(bench: Bench, tmp_path: Path) -> None:
    for size, counted in ((512, {"probed": 20}), (5000, {"local-memory": 20})):
        home = tmp_path / str(size)
        write_with_local_memory(home, size)
        result = bench.run("plain", home, twins=False)
        assert (result.stdout, result.returncode) == ("120\n", 0)
        assert Files(home / "trace").counted("count_p2") == counted


def test_launches_by_every_call(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("forms", tmp_path)
    assert (result.stdout, result.returncode) == reference("forms")
    assert result.stdout.endswith("\n14\n")
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 7}
    assert len(files.check_tickets(any_bench.maps)) == 14


def test_a_launch_larger_than_a_segment_takes_chunks_and_one_larger_than_the_pool_is_named(
    any_bench: Bench, tmp_path: Path
) -> None:
    probes = probes_with_cap(tmp_path, 64)
    result = any_bench.run("large", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == (f"{6 * 512 + 4096}\n", 0)
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert counted["map-size"] == 1
    assert counted["probed"] + counted.get("pool-full", 0) == 6
    assert len(files.written()) == counted["probed"] >= 1
    files.check_tickets(probes.maps)


def test_a_launch_beyond_64_bits_of_records_runs_its_original(any_bench: Bench, tmp_path: Path) -> None:
    write_immense(tmp_path)
    result = any_bench.run("immense", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("8192\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"map-size": 1}


def test_a_launch_written_in_part_is_cut_off_again(any_bench: Bench, tmp_path: Path) -> None:
    probes = probes_with_cap(tmp_path, 1024)
    result = any_bench.run("cut", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == (f"{1024 + 40}\n", 0)
    files = Files(tmp_path / "trace")
    assert list(files.launches["state"]) == [LaunchState.LOST] + 20 * [LaunchState.WRITTEN]
    (kernel,) = files.kernels("count_p2")
    data = (files.path / "result" / f"{kernel}.bin").read_bytes()
    assert len(data) < 1 << 20
    assert data.count(FRAME_MAGIC) == 20
    written = files.written()
    assert len(data) == int((written["data_offset"] + written["data_size"]).max()) + FRAME.size
    files.check_tickets(probes.maps)


def test_a_twin_that_the_driver_refuses_gives_way_to_the_original(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, device={"fail": "twinlaunch"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"refused": 20}
    assert set(files.launches["state"]) == {LaunchState.FALLBACK}


def test_twins_refused_now_and_then(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("plain", tmp_path, device={"fail": "twinlaunch@3,twinlaunch@4,twinlaunch@11=701"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 17, "refused": 3}
    assert len(files.check_tickets(any_bench.maps)) == 6 * 17


def test_an_error_that_is_not_the_twins_is_the_programs(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, device={"fail": "twinlaunch@5=400"})
    assert result.returncode == 9
    assert result.stdout.endswith("error 400\n")


def test_a_twin_with_lower_occupancy_is_not_launched(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, device={"fail": "occupancy"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"occupancy": 20}


def test_a_twin_whose_blocks_wait_for_none_runs_with_fewer(bench: Bench, tmp_path: Path) -> None:
    write_with_fewer_blocks(tmp_path, FewerBlocks.ANY)
    result = bench.run("plain", tmp_path, twins=False, device={"fail": "occupancy"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert set(files.launches["variant"]) == {2}


@pytest.mark.parametrize(("divisor", "variants"), [(2, {2}), (1 << 20, set())])
def test_a_twin_whose_blocks_may_wait_runs_with_fewer_where_all_fit(
    bench: Bench, tmp_path: Path, divisor: int, variants: set[int]
) -> None:
    write_with_fewer_blocks(tmp_path, FewerBlocks.ALL_FIT)
    result = bench.run("plain", tmp_path, twins=False, device={"fail": f"occupancy={divisor}"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert set(files.launches["variant"]) == variants
    assert files.counted("count_p2") == ({"probed": 20} if variants else {"occupancy": 20})


@pytest.mark.parametrize("lanes", [32, 64])
def test_the_kernels_lanes_shape_its_memory(bench: Bench, tmp_path: Path, lanes: int) -> None:
    write_with_lanes(tmp_path, lanes)
    result = bench.run("plain", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    launches = Files(tmp_path / "trace").launches
    assert set(launches["lanes"]) == {lanes}
    for launch in launches:
        blocks, threads = (int(np.prod(launch[name])) for name in ("grid", "block"))
        _, size = region_layout(bench.maps, blocks, -(-threads // lanes), lanes)
        assert launch["data_size"] == size


def test_no_fewer_blocks_of_a_cooperative_launch(bench: Bench, tmp_path: Path) -> None:
    write_with_fewer_blocks(tmp_path, FewerBlocks.ANY)
    bench.run("forms", tmp_path, twins=False, device={"fail": "occupancy"})
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 6, "occupancy": 1}


def test_twins_in_several_images(any_bench: Bench, tmp_path: Path) -> None:
    with in_parts():
        assert len(read_entry(entry_of(IMAGE), "entry").images) >= 3
        result = any_bench.run("reload", tmp_path)
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    assert set(files.counted("count_p2")) == {"probed"}
    files.check_tickets(any_bench.maps)


def test_twins_under_a_cap_in_several_images(any_bench: Bench, tmp_path: Path) -> None:
    write_capped(tmp_path)
    result = any_bench.run("plain", tmp_path, twins=False, device={"fail": "occupancy@1"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert set(files.launches["variant"]) == {1}
    files.check_tickets(any_bench.maps)


@pytest.mark.parametrize(("member", "value"), [("image", 9), ("capped", 9), ("image", 2**32 - 1)])
def test_a_twin_in_an_image_that_is_not_there_is_not_used(
    bench: Bench, tmp_path: Path, member: str, value: int
) -> None:
    cache = Cache(tmp_path / "cache")
    for variant in (IMAGE, second(IMAGE)):
        entry = read_entry(entry_of(variant), "entry")
        kernels = [replace(kernel, **{member: value}) for kernel in entry.kernels]
        cache.write(entry.key, write_entry(entry.key, bench.maps, kernels, entry.images))
    result = bench.run("plain", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"helper": 20}


def test_twins_that_do_not_load_leave_the_originals(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, device={"fail": "load@2"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"load": 20}


@pytest.mark.parametrize("failing", ["hostalloc", "stream@1", "event@1", "event@40"])
def test_without_what_a_pool_needs_the_originals_run(bench: Bench, tmp_path: Path, failing: str) -> None:
    # The smallest pool that there may be: of a larger one, half is tried next.
    result = bench.run("plain", tmp_path, device={"fail": failing}, extra={"NEUTRINO_POOL": str(4 << 20)})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"context": 20}


def test_half_a_pool_is_made_where_a_whole_one_cannot_be(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, device={"fail": "event@40"}, extra={"NEUTRINO_POOL": str(8 << 20)})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 20}


def test_the_entrys_reason_is_reported(bench: Bench, tmp_path: Path) -> None:
    write_reasons(tmp_path, Reason.NUMERICS)
    result = bench.run("plain", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"numerics": 20}
    kernel = next(event for event in files.events if event["event"] == "kernel")
    assert (kernel["reason"], kernel["detail"]) == ("numerics", "said the test")


def test_without_a_helper_the_originals_run(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"helper": 20}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_cache_entry_is_not_used(bench: Bench, tmp_path: Path, damage: str) -> None:
    bench.run("plain", tmp_path / "first")
    cache = tmp_path / "first" / "cache"
    entries = sorted(cache.glob("twins/*/*.twins"))
    assert len(entries) == 2
    damaged = []
    for entry in entries:
        data = bytearray(entry.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 0x40
        elif damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "empty":
            data.clear()
        else:
            data = bytearray(entries[entries[0] == entry].read_bytes())
        damaged.append(bytes(data))
    for entry, data in zip(entries, damaged, strict=True):
        entry.write_bytes(data)
    result = bench.run("plain", tmp_path / "second", twins=False, extra={"NEUTRINO_CACHE": str(cache)})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "second" / "trace").counted("count_p2") == {"helper": 20}


def test_an_unwritable_trace_directory_costs_only_the_trace(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = bench.run("plain", tmp_path, extra={"NEUTRINO_TRACEDIR": str(tmp_path / "file" / "trace")})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert len(result.stderr.splitlines()) == 1
    assert "no trace directory could be made" in result.stderr


def test_folders_above_the_trace_are_made(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, extra={"NEUTRINO_TRACEDIR": str(tmp_path / "a" / "b" / "c")})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert len(Files(tmp_path / "a" / "b" / "c").written()) == 20


def test_without_the_hooks_driver_programs_get_their_own(bench: Bench, tmp_path: Path) -> None:
    # Started with another driver, which a container or an update took away.
    link = tmp_path / "gone" / "libcuda.so.1"
    link.parent.mkdir()
    link.symlink_to(bench.driver)
    with mock.patch.object(install, "_BUILT", bench.folder / "lib"):
        module = install.install_hook(link, tmp_path)
    link.unlink()
    result = bench.run("plain", tmp_path, extra={"LD_AUDIT": str(module)})
    assert (result.stdout, result.stderr, result.returncode) == ("120\n", "", 0)
    assert not (tmp_path / "trace").exists()


def test_a_child_that_kept_only_ld_audit_still_finds_its_driver(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("plain", tmp_path, extra={"NEUTRINO_DRIVER": "", "NEUTRINO_KEY": ""})
    assert (result.stdout, result.stderr, result.returncode) == ("120\n", "", 0)
    assert not (tmp_path / "trace").exists()


def test_a_limit_on_files_sizes_costs_only_the_trace(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("small-files", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert LaunchState.LOST in files.launches["state"]
    Trace(files.path)


def test_a_pipe_that_nobody_reads_is_no_reason_to_die(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("nobody-listens", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)


@pytest.mark.parametrize("scenario", ["forgetful", "closed", "clears-environment"])
def test_what_the_program_closed_or_forgot_is_not_needed(bench: Bench, tmp_path: Path, scenario: str) -> None:
    result = bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert len(Files(tmp_path / "trace").written()) == 20


def test_without_a_thread_to_drain_the_originals_run(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "no_threads.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <errno.h>\n#include <pthread.h>\n#include <string.h>\n"
        "int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)\n{\n"
        # The hook lies in the folder hook of the cache.
        "\tDl_info info;\n\tif (dladdr(__builtin_return_address(0), &info) && strstr(info.dli_fname, \"/hook/\"))\n"
        "\t\treturn EAGAIN;\n"
        "\treturn ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))"
        'dlsym(RTLD_NEXT, "pthread_create"))(t, a, f, x);\n}\n'
    )
    compile_c(tmp_path / "no_threads.so", "-shared", "-fPIC", str(source))
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "no_threads.so"))
    result = bench.run("plain", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"context": 20}
    # The end waits for nothing.
    assert "did not arrive" not in (files.path / "events.jsonl").read_text()


def test_a_helper_that_takes_no_calls_is_waited_for_no_longer_than_was_said(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            extra = {"NEUTRINO_SOCKET": str(path), "NEUTRINO_TIMEOUT": "1"}
            result = bench.run("plain", tmp_path, twins=False, extra=extra)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"helper": 20}
