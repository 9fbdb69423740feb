"""The store of twins: private, whole or absent, and safe with several writers."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import subprocess

import pytest

from neutrino.abi.reasons import Reason
from neutrino.maker.keys import image_key, run_key
from neutrino.maker.store import Cache
from neutrino.private_files import private_folder
from neutrino.twins.cache_entry import KernelEntry, write_entry

KEY = bytes(range(32))


def an_entry(key: bytes = KEY, size: int = 100) -> bytes:
    return write_entry(key, [], [KernelEntry("k", Reason.NO_PTX)], [b"x" * size])


def test_written_entries_are_read_back_and_private(tmp_path):
    cache = Cache(tmp_path / "neutrino")
    assert cache.read(KEY) is None
    path = cache.write(KEY, an_entry())
    assert path == cache.entry_path(KEY) == tmp_path / "neutrino" / "twins" / "00" / f"{KEY.hex()}.twins"
    assert cache.read(KEY) == an_entry()
    assert path.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (cache.root, path.parent, path.parent.parent)} == {0o700}


def test_the_keys_are_what_the_hook_computes():
    run = run_key("aa", "bb", "ptxas 13.0.88", "0.1.0")
    assert len(run) == 32
    assert image_key(run, "sm_90", b"image") == hashlib.sha256(run + b"sm_90" + b"image").digest()
    # Fields are framed: moving a letter from one to the next is another key.
    assert run != run_key("aab", "b", "ptxas 13.0.88", "0.1.0")
    assert run != run_key("aa", "bb", "ptxas 13.1.80", "0.1.0")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\0", lambda data: b""])
def test_a_damaged_entry_counts_as_none_and_goes(tmp_path, damage):
    cache = Cache(tmp_path / "neutrino")
    path = cache.write(KEY, an_entry())
    path.write_bytes(damage(an_entry()))
    assert cache.read(KEY) is None
    assert not path.exists()


def test_an_entry_under_another_key_counts_as_none(tmp_path):
    cache = Cache(tmp_path / "neutrino")
    cache.write(KEY, an_entry(bytes(32)))
    assert cache.read(KEY) is None


def test_folders_open_to_others_are_refused(tmp_path):
    folder = tmp_path / "neutrino"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="written by others"):
        private_folder(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="not a folder"):
        private_folder(tmp_path / "file")


def test_links_and_folders_of_others_are_refused(tmp_path):
    if os.getuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    target = tmp_path / "mine"
    target.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    assert private_folder(link) == link
    os.lchown(link, 12345, 12345)
    with pytest.raises(PermissionError):
        private_folder(link)
    os.chown(target, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        private_folder(target)


def test_an_entry_that_is_a_link_is_not_followed(tmp_path):
    cache = Cache(tmp_path / "neutrino")
    path = cache.write(KEY, an_entry())
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        cache.read(KEY)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor: int, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = Cache(tmp_path / "neutrino")
    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        cache.write(KEY, an_entry())
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []


def test_a_really_full_disk_leaves_what_was_there(tmp_path):
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    mounted = os.getuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", small], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not mounted:
        pytest.skip("mounting a small tmpfs needs root and the capability")
    try:
        cache = Cache(small / "neutrino")
        cache.write(KEY, an_entry())
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            cache.write(KEY, an_entry(size=1 << 20))
        assert cache.read(KEY) == an_entry()
        assert len([path for path in cache.root.rglob("*") if path.is_file()]) == 1
    finally:
        subprocess.run(["umount", small], check=True)


def _write_many(root, seed: int) -> None:
    for size in range(seed, seed + 40):
        Cache(root).write(KEY, an_entry(size=1000 * size))


def test_several_writers_never_show_half_an_entry(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path / "neutrino", seed)) for seed in (1, 50, 100)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        data = Cache(tmp_path / "neutrino").read(KEY)
        seen += data is not None
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen > 0
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
