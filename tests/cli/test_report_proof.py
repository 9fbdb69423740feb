"""``neutrino-report --proof``: which bytes were loaded, against hashes that are made here."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter


def test_a_proof_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[BLOCK_SCHED])
    writer.count(1, Reason.PROBED, 1)
    library = tmp_path / "lib.so"
    library.write_bytes(b"abc")
    writer.event("image", id=1, kind="fatbin", size=3, source=str(library))
    writer.event("image", id=2, kind="fatbin", size=3, source=str(tmp_path / "gone.so"))
    writer.count(1, Reason.POOL_FULL, 4)
    assert main([str(writer.write()), "--proof"]) == 0
    text = capsys.readouterr().out
    assert "4 of 5 launches ran without probes" in text
    # SHA-256 of "abc", FIPS 180-2; the file is younger than the trace.
    assert "sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad, changed since the run" in text
    assert f"{tmp_path / 'gone.so'}: not there now" in text
    assert "no hash of 3 images" in text


def test_a_proof_finds_the_bytes_that_were_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each image's in its file, by the hash that the hook wrote; not where a byte of it is another one now."""
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[BLOCK_SCHED])
    run, library, ptx = bytes(range(32)), tmp_path / "lib.so", tmp_path / "k.ptx"
    fatbins = [struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 70_000) + os.urandom(70_000) for _ in range(4)]
    library.write_bytes(b"before" + b"".join(fatbins))
    ptx.write_bytes(b".version 8.0\n.target sm_90\n")
    size = len(fatbins[0])
    for number, fatbin in enumerate(fatbins[:3], 1):
        key = hashlib.sha256(run + b"sm_90" + (fatbin if number != 2 else fatbin[:-1] + b"\0\0")).hexdigest()
        writer.event(
            "image", id=number, kind="fatbin", size=size, source=str(library), key=key, settings=run.hex(), arch="sm_90"
        )
    # Of an image without probes the beginning: what is after it may be anything.
    begins = hashlib.sha256(struct.pack("<Q", size) + fatbins[3][:65536]).hexdigest()
    writer.event("image", id=4, kind="fatbin", size=size, source=str(library), begins=begins)
    text = ptx.read_bytes()
    key = hashlib.sha256(run + b"sm_90" + text).hexdigest()
    writer.event("image", id=5, kind="ptx", size=len(text), source=str(ptx), key=key, settings=run.hex(), arch="sm_90")
    writer.event("image", id=6, kind="ptx", size=-1, source=str(ptx), begins=7)
    assert main([str(writer.write()), "--proof"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    found = {line[6]: line.partition("): ")[2] for line in lines if line.startswith("image ")}
    assert found["1"] == "its bytes as loaded are there now, at byte 6"
    assert found["2"].startswith("its bytes are not in that file now")
    assert found["3"] == f"its bytes as loaded are there now, at byte {6 + 2 * size:,}"
    assert found["4"] == f"its first 65,536 bytes as loaded are there now, at byte {6 + 3 * size:,}"
    assert found["5"] == "its bytes as loaded are there now, at byte 0"
    assert "6" not in found
