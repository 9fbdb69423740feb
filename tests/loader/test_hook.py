"""The hook in front of a fake driver: what the program gets, and what the trace says."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from neutrino.probing.layout import FRAME, FRAME_MAGIC, LaunchState, Reason

from .conftest import Bench, compile_c
from .trace_files import Files


@pytest.mark.parametrize("scenario", ["plain", "unversioned", "extra"])
def test_every_launch_is_probed_and_written(use_lib: Bench, tmp_path: Path, scenario: str) -> None:
    result = use_lib.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert len(files.written()) == 20
    files.check_records()
    assert files.header["ended"] == 1
    kernel = files.path / "kernel" / str(files.kernel("count_p2"))
    assert {file.name for file in kernel.iterdir()} == {"manifest.json", "original.ptx", "probed.ptx"}


def test_four_threads_launch_on_streams_of_their_own_and_a_shared_one(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("threads", tmp_path)
    assert (result.stdout, result.returncode) == ("12000\n", 0)
    files = Files(tmp_path / "trace")
    assert sum(files.counted("count_p2").values()) == 12000
    probed = files.counted("count_p2")["probed"]
    assert len(files.written()) == probed
    assert probed > 11000
    files.check_records()


def test_a_launch_larger_than_a_segment_takes_chunks_and_one_larger_than_the_pool_is_named(
    use_lib: Bench, tmp_path: Path
) -> None:
    result = use_lib.run("large", tmp_path)
    assert (result.stdout, result.returncode) == ("7\n", 0)
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert counted["map-size"] == 1
    assert counted["probed"] + counted.get("pool-full", 0) == 6
    assert len(files.written()) == counted["probed"] >= 1
    files.check_records()


def test_a_kernel_that_waits_for_200_more_launches_ends(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("spin", tmp_path)
    assert (result.stdout, result.returncode) == ("200\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("spin_p1") == {"probed": 1}
    assert files.counted("count_p2") == {"probed": 200}
    assert len(files.written()) == 201


def test_a_captured_launch_runs_its_original(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("capture", tmp_path)
    assert (result.stdout, result.returncode) == ("1\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 1, "graph": 1}


def test_modules_that_come_and_go(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("reload", tmp_path)
    assert (result.stdout, result.returncode) == ("50\n", 0)
    files = Files(tmp_path / "trace")
    assert int(files.counters[:, Reason.PROBED].sum()) == 50
    assert len([event for event in files.events if event["event"] == "kernel"]) == 2
    files.check_records()


@pytest.mark.parametrize("scenario", ["fork", "bare-fork"])
def test_a_forked_child_passes_through_and_leaves_the_trace_alone(
    use_lib: Bench, tmp_path: Path, scenario: str
) -> None:
    result = use_lib.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == ("1\n", 3)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 1}
    assert result.stderr.count("neutrino: trace in") == 1


def test_a_killed_process_leaves_a_readable_trace(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("kill", tmp_path)
    assert result.returncode == -9
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 100}
    assert len(files.written()) == 100
    assert files.header["ended"] == 0
    files.check_records()


def test_an_error_of_the_program_is_returned_as_it_is(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("refused", tmp_path)
    assert (result.stdout, result.returncode) == ("0\n", 1)


def test_a_context_is_drained_before_it_goes(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("destroy", tmp_path)
    assert (result.stdout, result.returncode) == ("30\n", 0)
    files = Files(tmp_path / "trace")
    assert len(files.written()) == 30
    files.check_records()


def test_a_twin_that_the_driver_refuses_gives_way_to_the_original(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, extra={"FAKE_REFUSE": "1"})
    assert (result.stdout, result.returncode) == ("20\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"refused": 20}
    assert set(files.launches["state"]) == {LaunchState.FALLBACK}


def test_a_twin_with_lower_occupancy_is_not_launched(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, extra={"FAKE_OCCUPANCY": "1"})
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"occupancy": 20}


def test_the_entrys_reason_is_reported(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, reason=Reason.NUMERICS)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"numerics": 20}
    kernel = next(event for event in files.events if event["event"] == "kernel")
    assert (kernel["reason"], kernel["detail"]) == ("numerics", "said the test")


def test_without_a_helper_the_originals_run(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"helper": 20}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_cache_entry_is_not_used(use_lib: Bench, tmp_path: Path, damage: str) -> None:
    use_lib.run("plain", tmp_path / "first")
    cache = tmp_path / "first" / "cache"
    entries = sorted(cache.glob("twins/*/*.twins"))
    assert len(entries) == 2
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
        (tmp_path / entry.name).write_bytes(data)
    for entry in entries:
        entry.write_bytes((tmp_path / entry.name).read_bytes())
    result = use_lib.run("plain", tmp_path / "second", twins=False, extra={"NEUTRINO_CACHE": str(cache)})
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert Files(tmp_path / "second" / "trace").counted("count_p2") == {"helper": 20}


def test_an_unwritable_trace_directory_costs_only_the_trace(use_lib: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = use_lib.run("plain", tmp_path, extra={"NEUTRINO_TRACEDIR": str(tmp_path / "file" / "trace")})
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert len(result.stderr.splitlines()) == 1
    assert "no trace directory could be made" in result.stderr


def test_without_the_drivers_file_programs_still_run(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, extra={"NEUTRINO_DRIVER": str(tmp_path / "gone")})
    assert result.returncode == 9
    assert result.stdout.startswith("line ")
    assert not (tmp_path / "trace").exists()


def test_a_child_that_kept_only_ld_preload_still_finds_its_driver(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, extra={"NEUTRINO_DRIVER": "", "NEUTRINO_KEY": ""})
    assert (result.stdout, result.stderr, result.returncode) == ("20\n", "", 0)
    assert not (tmp_path / "trace").exists()


def test_a_limit_on_files_sizes_costs_only_the_trace(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("small-files", tmp_path)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert "no trace directory could be made" in result.stderr


def test_a_launch_written_in_part_is_cut_off_again(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("cut", tmp_path)
    assert (result.stdout, result.returncode) == ("21\n", 0)
    files = Files(tmp_path / "trace")
    assert list(files.launches["state"]) == [LaunchState.LOST] + 20 * [LaunchState.WRITTEN]
    data = (files.path / "result" / f"{files.kernel('count_p2')}.bin").read_bytes()
    assert len(data) < 1 << 20
    assert data.count(FRAME_MAGIC) == 20
    assert len(data) == int(files.launches["data_offset"][-1] + files.launches["data_size"][-1]) + FRAME.size
    files.check_records()


def test_a_pipe_that_nobody_reads_is_no_reason_to_die(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("nobody-listens", tmp_path)
    assert (result.stdout, result.returncode) == ("20\n", 0)


@pytest.mark.parametrize("scenario", ["forgetful", "closed"])
def test_what_the_program_closed_or_forgot_is_not_needed(use_lib: Bench, tmp_path: Path, scenario: str) -> None:
    result = use_lib.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert len(Files(tmp_path / "trace").written()) == 20


def test_a_launch_beyond_64_bits_of_records_runs_its_original(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("immense", tmp_path, cap=1 << 31)
    assert (result.stdout, result.returncode) == ("1\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"map-size": 1}


def test_what_was_written_before_a_fault_stays_written(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("fault", tmp_path)
    assert (result.stdout, result.returncode) == ("10\n", 0)
    files = Files(tmp_path / "trace")
    assert list(files.launches["state"][:11]) == 10 * [LaunchState.WRITTEN] + [LaunchState.LOST]
    files.check_records()


def test_a_context_that_ends_while_its_pool_is_made(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("unannounced", tmp_path, extra={"FAKE_SLOW": "1"})
    assert (result.stdout, result.returncode) == ("6\n", 0), result.stderr
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 1, "context": 5}


def test_a_context_without_memory_for_a_pool_is_not_asked_again(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("no-memory", tmp_path, extra={"FAKE_NO_MEMORY": "1"})
    assert (result.stdout, result.returncode) == ("1\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"context": 1}


def test_threads_that_came_and_went_leave_no_segments_behind(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("own-streams", tmp_path, extra={"NEUTRINO_POOL": str(4 << 20)})
    assert (result.stdout, result.returncode) == ("40\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 40}
    assert len(files.written()) == 40
    files.check_records()


def test_without_a_thread_to_drain_the_originals_run(
    use_lib: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "no_threads.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <errno.h>\n#include <pthread.h>\n"
        "int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)\n{\n"
        "\tint detached = 0;\n\tif (a)\n\t\tpthread_attr_getdetachstate(a, &detached);\n"
        "\tif (detached)\n\t\treturn EAGAIN;\n"
        "\treturn ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))"
        'dlsym(RTLD_NEXT, "pthread_create"))(t, a, f, x);\n}\n'
    )
    compile_c(tmp_path / "no_threads.so", "-shared", "-fPIC", str(source))
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "no_threads.so"))
    begin = time.monotonic()
    result = use_lib.run("plain", tmp_path)
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert time.monotonic() - begin < 4
    assert Files(tmp_path / "trace").counted("count_p2") == {"context": 20}


def test_folders_above_the_trace_are_made(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("plain", tmp_path, extra={"NEUTRINO_TRACEDIR": str(tmp_path / "a" / "b" / "c")})
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert len(Files(tmp_path / "a" / "b" / "c").written()) == 20


def test_a_helper_that_takes_no_calls_is_waited_for_no_longer_than_was_said(use_lib: Bench, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            result = use_lib.run(
                "plain",
                tmp_path,
                twins=False,
                extra={"NEUTRINO_SOCKET": str(path), "NEUTRINO_TIMEOUT": "1"},
            )
    assert (result.stdout, result.returncode) == ("20\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"helper": 20}


@pytest.mark.parametrize(("scenario", "launches"), [("churn", 4800), ("names", 15), ("primary", 15)])
def test_handles_that_come_go_and_come_again(use_lib: Bench, tmp_path: Path, scenario: str, launches: int) -> None:
    result = use_lib.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == (f"{launches}\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.written()) == launches
    files.check_records()


def test_streams_that_end_with_work_on_them_and_others_at_their_address(use_lib: Bench, tmp_path: Path) -> None:
    result = use_lib.run("short-streams", tmp_path, extra={"NEUTRINO_POOL": str(4 << 20)})
    assert (result.stdout, result.returncode) == ("900\n", 0)
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert sum(counted.values()) == 900
    assert counted["probed"] == len(files.written()) > 800
    files.check_records()


def test_the_end_while_other_threads_launch(use_lib: Bench, tmp_path: Path) -> None:
    begin = time.monotonic()
    result = use_lib.run("exit-amid", tmp_path)
    assert result.returncode == 4
    assert time.monotonic() - begin < 4
    files = Files(tmp_path / "trace")
    assert files.header["ended"] == 1
    counted = files.counted("count_p2")
    assert sum(counted.values()) - sum(counted.get(word, 0) for word in ("ending", "pool-full")) == counted["probed"]
    assert len(files.written()) <= counted["probed"]
    files.check_records()
