"""Code objects whose twins do not fit into memory together: kernel by kernel, with the same bytes, and whole or not."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.reasons import Reason
from neutrino.backend import gcn_writing
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import GcnCode
from neutrino.cli import patch
from neutrino.fatbin import read_code_object
from neutrino.fatbin.code_object_append import Appended, Appender, Part
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn import code, splice
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.snippets.meaning import typed
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.twins import spool
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes
from tests.gcn.objects import code_objects, need_llvm

BUILD = "gfx942-O2"


@pytest.fixture(scope="module")
def built() -> Path:
    need_llvm()
    return code_objects()[BUILD]


def entry(built: Path) -> bytes:
    return patch_image(
        built.read_bytes(), load_probes(["gmem_bytes"], platform="hip"), "gfx942", selection=Selection(),
        assembler=None, key=bytes(32),
    )  # fmt: skip


def backend_of(built: Path) -> GcnTwins:
    data = built.read_bytes()
    source = CodeObjectSource(0, code_object_functions(data, "built").target, data)
    able, left_out = able_probes(GcnTarget(), load_probes(["block_sched"], platform="hip"))
    return GcnTwins(source, typed(able), left_out)


def test_what_is_forgotten_meanwhile_is_decoded_again(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = entry(built)
    monkeypatch.setattr(code, "_MOST_DECODED", 100)
    monkeypatch.setattr(spool, "_IN_MEMORY", 0)
    most = []
    keep = code._Recent.keep

    def counted(recent: code._Recent, number: int, rows: tuple[code.Instruction, ...]) -> None:
        keep(recent, number, rows)
        kept = [len(each) for each in recent._kept.values()]
        assert len(kept) == 1 or sum(kept) <= 100
        most.append(number)

    decoded = Counter[bytes]()
    decode = Llvm.decode

    def noted(llvm: Llvm, machine_code: bytes, *arguments: Any, **named: Any) -> Any:
        decoded[bytes(machine_code)] += 1
        return decode(llvm, machine_code, *arguments, **named)

    monkeypatch.setattr(code._Recent, "keep", counted)
    monkeypatch.setattr(Llvm, "decode", noted)
    assert entry(built) == expected
    # Each more than once: otherwise nothing was forgotten.
    assert all(most.count(number) > 1 for number in set(most))
    # Which instructions they are is known: only their places are found out again.
    functions = Counter(bytes(row.code) for row in code_object_functions(built.read_bytes(), "built").functions)
    assert all(decoded[machine_code] <= count for machine_code, count in functions.items())


def test_the_memory_does_not_hold_what_was_written(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY", 0)
    backend = backend_of(built)
    written = backend.write(backend.plan(list(backend.kernels)))
    result = backend.entries(written, None)
    files = [row.files for row in result.entries.values() if row.reason is Reason.PROBED]
    assert len(files) > 10
    for one in files:
        assert set(one) == {"manifest.json", "original.s", "probed.s"}
        assert not [value for value in vars(one).values() if isinstance(value, (str, bytes))]
        assert json.loads(one["manifest.json"])["sites"]
        # Read anew each time, and the same.
        assert one["probed.s"] is not one["probed.s"]
        assert one["probed.s"] == one["probed.s"]


def addresses(written: GcnCode) -> dict[str, int]:
    functions = code_object_functions(written.image, "written").functions
    return {function.name: function.address for function in functions}


@pytest.mark.parametrize("failing", ["when it is spliced", "since its name is taken"])
def test_twins_after_one_that_cannot_be_written_move_up(
    built: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    backend = backend_of(built)
    names = list(backend.kernels)
    without = backend.write(backend.plan([name for name in names if "tiles" not in name]))
    if failing == "when it is spliced":
        splice_group = splice.splice_group

        def fail(members: Sequence[splice.Member], address: int) -> splice.SplicedGroup:
            if "tiles" in members[0].function.name:
                raise splice.SpliceError("a branch cannot reach")
            return splice_group(members, address)

        monkeypatch.setattr(splice, "splice_group", fail)
        why, kind = "a branch cannot reach", "branch"
    else:
        twin_name = gcn_writing.twin_name
        monkeypatch.setattr(
            gcn_writing, "twin_name", lambda kernel: kernel.name if "tiles" in kernel.name else twin_name(kernel)
        )
        why, kind = "there is tiles.kd already", "append"
    written = backend.write(backend.plan(names))
    ((name, (reason, detail)),) = written.refused.items()
    assert ("tiles" in name, reason) == (True, Reason.UNSUPPORTED)
    assert why in detail
    assert written.kinds == {name: kind}
    assert addresses(written) == addresses(without)
    assert written.image == without.image


def test_kernels_that_cannot_be_appended_are_found_before_their_code_is_written(built: Path) -> None:
    data = built.read_bytes()
    first, second, *_ = read_code_object(data, "built").kernels
    asked = [
        Appended("good", first, b"", 10, 10, 64), Appended(second, first, b"", 10, 10, 64),
        Appended("good", first, b"", 10, 10, 64), Appended("many", first, b"", 10, 300, 64),
        Appended("twice", first, b"", 10, 10, 64, (Part("twice", 0, 0), Part("twice", 0, 0))),
        Appended("other", "none", b"", 10, 10, 64), Appended("last", second, b"", 10, 10, 64),
    ]  # fmt: skip
    appender = Appender(data)
    refused = {kernel.name: why for kernel in asked if (why := appender.refusal(kernel))}
    assert list(refused) == [second, "good", "many", "twice", "other"]
    assert "names 300 vector registers" in refused["many"]
    assert "there is twice already" in refused["twice"]
    assert "there is no kernel none" in refused["other"]


def test_a_full_disk_leaves_what_was_there(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.hsaco"
    target.write_bytes(b"\x7fELF of before")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # Files may have as many bytes: of a twin's texts, of an entry, of the copy with all of it.
    for limit in (1 << 12, 1 << 16, 1 << 18):
        command = [sys.executable, "-m", "neutrino.cli.patch", *_words(built, target)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),  # type: ignore[misc]
        )  # fmt: skip
        assert done.returncode == 2, done.stdout + done.stderr
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert target.read_bytes() == b"\x7fELF of before"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.hsaco", "temporary"]
        assert list(temporary.iterdir()) == []


def test_a_kill_in_the_middle_leaves_what_was_there(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.hsaco"
    target.write_bytes(b"\x7fELF of before")
    command = [sys.executable, "-m", "neutrino.cli.patch", *_words(built, target)]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 600
    # The copy is begun, beside the target.
    while len(list(tmp_path.iterdir())) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert target.read_bytes() == b"\x7fELF of before"
    # And the next run removes what that one left.
    assert patch.main(_words(built, target)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.hsaco"]
    assert target.read_bytes() != b"\x7fELF of before"


def _words(built: Path, target: Path) -> list[str]:
    return [str(built), "-p", "inst_count", "-o", str(target), "-j", "1"]
