"""Kernels that are asked for one by one: of an image that a process has written once, as much is read as they need."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from neutrino import load_probes
from neutrino.abi.requests import OF_KEPT_KERNEL, OF_KERNEL
from neutrino.device.machine_code import MachineCode
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry
from neutrino.fatbin.container import Container, read_container
from neutrino.maker import patcher
from neutrino.maker.kept_images import Asked, KeptImages, asked_for
from neutrino.maker.keys import image_key
from neutrino.maker.messages import MAKE, REPLY, REQUEST, REQUEST_MAGIC, receive
from neutrino.maker.serving import TwinSettings, serve_twins
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.twins.cache_entry import read_entry
from tests.sass_twin.listing import PTX, assemble

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return assemble(PTX.read_text(), "sm_90", tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def image(code: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """As libraries have it: for several architectures, compressed."""
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry other() { ret; }\n"
    older = assemble(text, "sm_80", tmp_path_factory.mktemp("older"))
    return build_container([
        build_entry(ImageKind.CUBIN, older, "sm_80", compression=Compression.ZSTD),
        build_entry(ImageKind.CUBIN, code, "sm_90", compression=Compression.ZSTD),
    ])  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> TwinSettings:
    probes = RunProbes.of(load_probes(["block_sched"]))
    return TwinSettings(probes, Selection(), KEY, Cache(tmp_path / "cache"), None, machine_code=MachineCode.UNPROVEN)


@contextmanager
def connected(folder: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection to a socket in a folder, and its other end."""
    path = folder / "s"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as ours:
        listening.bind(str(path))
        listening.listen(1)
        ours.connect(str(path))
        its, _ = listening.accept()
        with its:
            yield ours, its


def ask(folder: Path, data: bytes, settings: TwinSettings) -> tuple[int, bytes]:
    """Ask for what data says; the status and the answer. data has to fit into the socket."""
    with connected(folder) as (ours, its):
        key = image_key(KEY, "sm_90", data)
        header = REQUEST.pack(REQUEST_MAGIC, MAKE, os.getpid(), key, b"sm_90", 0, 0, len(data))
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        # The answer may be larger than what the socket takes.
        child = os.fork()
        if child == 0:
            serve_twins(its, header, settings)
            os._exit(0)
        its.close()
        _, status, _, size = REPLY.unpack(receive(ours, REPLY.size) or b"")
        answer = receive(ours, size)
        os.waitpid(child, 0)
    assert answer is not None
    return status, answer


def reason_of(answer: tuple[int, bytes]) -> Sequence[str]:
    status, entry = answer
    assert status == 0, entry
    return [f"{kernel.name}: {kernel.reason.word}" for kernel in read_entry(entry, "entry").kernels]


def test_what_a_request_asks_for() -> None:
    digest = bytes(range(10, 42))
    assert asked_for(b"\x50\xed\x55\xba") == Asked(b"\x50\xed\x55\xba")
    assert asked_for(OF_KERNEL + b"name\nimage\n") == Asked(b"image\n", "name")
    assert asked_for(OF_KEPT_KERNEL + b"name\n" + digest) == Asked(b"", "name", digest)
    for damaged in (OF_KERNEL + b"name", OF_KEPT_KERNEL + b"name", OF_KEPT_KERNEL + b"name\n" + digest[1:]):
        with pytest.raises(FormatError):
            asked_for(damaged)


def test_each_worker_after_the_second_reads_the_machine_code_alone(
    image: bytes, code: bytes, settings: TwinSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all get the twins that they get of the whole image."""
    read = tmp_path / "read"

    def counted(data: bytes, name: str) -> Container:
        with read.open("a") as file:
            file.write(f"{len(data)}\n")
        return read_container(data, name)

    monkeypatch.setattr(patcher, "read_container", counted)
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    digest = hashlib.sha256(image).digest()
    (tmp_path / digest.hex()).write_bytes(image)
    kernels = ("reversed", "divided", "switched")
    answers = [ask(tmp_path, OF_KEPT_KERNEL + name.encode() + b"\n" + digest, settings) for name in kernels]
    assert [reason_of(answer) for answer in answers] == [[f"{name}: probed"] for name in kernels]
    assert [int(line) for line in read.read_text().split()] == [len(image), len(image), len(code)]
    whole = [ask(tmp_path, OF_KERNEL + name.encode() + b"\n" + image, settings) for name in kernels]
    for kept, sent in zip(answers, whole, strict=True):
        assert read_entry(kept[1], "kept").images == read_entry(sent[1], "sent").images


def test_an_image_that_is_not_there_is_the_reason(settings: TwinSettings, image: bytes, tmp_path: Path) -> None:
    digest = hashlib.sha256(image).digest()
    data = OF_KEPT_KERNEL + b"reversed\n" + digest
    assert ask(tmp_path, data, settings) == (1, b"the program's image is not there any more: No such file or directory")
    (tmp_path / digest.hex()).write_bytes(image[:-1])
    assert ask(tmp_path, data, settings) == (1, b"the program's image was damaged on the way")


def test_a_damaged_entry_is_gone_for_the_next_run(settings: TwinSettings, image: bytes, tmp_path: Path) -> None:
    """The process did not write its image, as it saw an entry in the cache; the next one will."""
    data = OF_KEPT_KERNEL + b"reversed\n" + hashlib.sha256(image).digest()
    path = settings.cache.write(image_key(KEY, "sm_90", data), b"damaged")
    status, _ = ask(tmp_path, data, settings)
    assert status == 1
    assert not path.exists()


def test_what_cannot_be_kept_is_read_again(image: bytes, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    kept = KeptImages(tmp_path, scratch, "sm_90")
    digest = hashlib.sha256(image).digest()
    (tmp_path / digest.hex()).write_bytes(image)
    KeptImages(tmp_path, tmp_path / "missing", "sm_90").keep_alone(digest, b"code")
    # Another user could put something else there.
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    KeptImages(tmp_path, shared, "sm_90").keep_alone(digest, b"code")
    (shared / f"{digest.hex()}.sm_90").write_bytes(b"planted")
    assert KeptImages(tmp_path, shared, "sm_90").read(digest) == image
    assert kept.read(digest) == image
    # The first one to read it may be the only one.
    kept.keep_alone(digest, b"first")
    assert kept.read(digest) == image
    kept.keep_alone(digest, b"code")
    kept.keep_alone(digest, b"other")
    assert kept.read(digest) == b"code"
    assert KeptImages(tmp_path, scratch, "sm_80").read(digest) == image
    with pytest.raises(NeutrinoError, match="not there"):
        kept.read(bytes(32))
