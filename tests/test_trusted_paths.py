"""Paths that no other user can change, and the places that are chosen where the usual one is not such a path."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neutrino import places, trusted_paths
from neutrino.errors import NeutrinoError
from neutrino.private_files import private_folder
from neutrino.trusted_paths import why_not_trusted

ROOT = Path(__file__).resolve().parents[1]

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give files away, or be another user")
OTHER = 54321
"""A user that has no name."""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can search, unlike those of the tests, in /tmp."""
    with tempfile.TemporaryDirectory(prefix="trusted-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_user(real: int, effective: int, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python as another user, who need not be able to read Python itself: it is all loaded before."""
    program = f"""
import grp, os, pwd, sys, tempfile
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from neutrino.places import *
from neutrino.private_files import *
from neutrino.trusted_paths import *
os.environ.clear()
os.environ.update({variables!r})
os.setgroups([])
os.setgid({effective})
os.setresuid({real}, {effective}, {effective})
{code}
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_a_folder_in_which_others_can_write_spoils_all_below(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    assert why_not_trusted(below) == ""
    for folder in (below, below.parent, below.parent.parent):
        for mode in (0o775, 0o757, 0o777):
            folder.chmod(mode)
            assert why_not_trusted(below) == f"{folder} can be written by others (mode {mode:o})"
            # What is not there yet is made in it.
            assert why_not_trusted(below / "new" / "newer") == f"{folder} can be written by others (mode {mode:o})"
            folder.chmod(0o1777)
            assert why_not_trusted(below) == ""
            folder.chmod(0o755)


def test_the_folders_of_links_count_and_those_of_what_they_lead_to(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder in (own, shared):
        (folder / "data").mkdir(parents=True)
    shared.chmod(0o777)
    (own / "out").symlink_to(shared / "data")
    (own / "relative").symlink_to("../shared/../own/data")
    (shared / "in").symlink_to(own / "data")
    (own / "twice").symlink_to("out")
    why = f"{shared} can be written by others (mode 777)"
    assert why_not_trusted(own / "out") == why_not_trusted(own / "twice") == why_not_trusted(shared / "in") == why
    # Though it is left again.
    assert why_not_trusted(own / "relative") == why
    assert why_not_trusted(own / "data") == ""
    (own / "loop").symlink_to("loop")
    assert "too many links" in why_not_trusted(own / "loop")


def test_write_permission_by_a_list_shows(tmp_path: Path) -> None:
    folder = tmp_path / "listed"
    folder.mkdir(mode=0o700)
    # acl(5), as setfacl -m u:OTHER:rwx writes it: the owner, a user, the owner's group, the mask, others.
    nobody = 0xFFFFFFFF
    rows = ((0x01, 7, nobody), (0x02, 7, OTHER), (0x04, 0, nobody), (0x10, 7, nobody), (0x20, 0, nobody))
    try:
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
        os.setxattr(folder, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert why_not_trusted(folder / "below") == f"{folder} can be written by others (mode 770)"


@needs_root
def test_what_belongs_to_others_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "mine"
    folder.mkdir(parents=True)
    os.chown(folder.parent, OTHER, OTHER)
    assert why_not_trusted(folder) == f"{folder.parent} belongs to user {OTHER}"
    link = tmp_path / "link"
    link.symlink_to("/usr")
    os.lchown(link, OTHER, OTHER)
    assert why_not_trusted(link) == f"the link {link} belongs to user {OTHER}"
    # In a folder with the sticky bit, whoever makes an entry first has it.
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    assert why_not_trusted(sticky / "new") == ""
    (sticky / "new").mkdir()
    os.chown(sticky / "new", OTHER, OTHER)
    assert why_not_trusted(sticky / "new" / "below") == f"{sticky / 'new'} belongs to user {OTHER}"
    with pytest.raises(PermissionError, match=f"belongs to user {OTHER}; set XDG_CACHE_HOME"):
        private_folder(sticky / "new")
    # Nothing was made in what another user can change.
    with pytest.raises(PermissionError):
        private_folder(sticky / "new" / "below")
    assert list((sticky / "new").iterdir()) == []


@needs_root
def test_the_effective_user_counts(open_folder: Path) -> None:
    theirs = open_folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    done = as_user(OTHER, 0, f"print(why_not_trusted(Path({str(theirs)!r})))")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{theirs} belongs to user {OTHER}\n"


def test_folders_that_are_made_are_the_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "a" / "b" / "c", 0o755)
    finally:
        os.umask(before)
    modes = [one.stat().st_mode & 0o777 for one in (folder.parent.parent, folder.parent, folder)]
    assert modes == [0o700, 0o700, 0o755]


def test_an_own_group_without_others_is_no_other_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd
    from types import SimpleNamespace

    folder = tmp_path / "grouped"
    folder.mkdir()
    folder.chmod(0o775)
    number = folder.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ada"))
    cases = (("ada", [], True), ("ada", ["ada"], True), ("ada", ["bob"], False), ("x", [], False))
    for name, members, is_private in cases:
        group = SimpleNamespace(gr_name=name, gr_mem=members, gr_gid=number)
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        assert (trusted_paths.own_private_group() == number) is is_private
        assert (why_not_trusted(folder, own_group=True) == "") is is_private
    assert why_not_trusted(folder) != ""
    folder.chmod(0o777)
    assert why_not_trusted(folder, own_group=True) != ""


@needs_root
def test_roots_cache_is_not_in_another_users_home(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = open_folder / "home"
    home.mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert places.cache_place() == places.Place(home / ".cache" / "neutrino")
    os.chown(home, OTHER, OTHER)
    places._cache_place.cache_clear()
    place = places.cache_place()
    assert place.path == Path("/var/cache/neutrino/private")
    assert place.instead == f"{home} belongs to user {OTHER}"
    places._cache_place.cache_clear()


CHOICE = "p = cache_place(); print(p.path, p.instead, sep='|')"


@needs_root
@pytest.mark.parametrize(
    ("mode", "reason"),
    [(0o775, "can be written by others (mode 775)"), (0o555, "cannot be written"), (None, "no home")],
)
def test_a_user_whose_home_does_not_do_has_a_cache_of_his_own(open_folder: Path, mode: int | None, reason: str) -> None:
    home = open_folder / "home"
    if mode is not None:
        home.mkdir()
        os.chown(home, OTHER, OTHER)
        home.chmod(mode)
    done = as_user(OTHER, OTHER, CHOICE, HOME=str(home) if mode is not None else "")
    assert done.returncode == 0, done.stderr
    path, _, instead = done.stdout.strip().partition("|")
    assert path == f"/var/tmp/neutrino-{OTHER}"
    assert reason in instead
    # It is used, and another user's of that name is not.
    made = as_user(OTHER, OTHER, f"{CHOICE}; private_folder(p.path)", HOME="")
    try:
        assert made.returncode == 0, made.stderr
        assert Path(path).stat().st_mode & 0o777 == 0o700
        os.chown(path, OTHER + 1, OTHER + 1)
        done = as_user(OTHER, OTHER, CHOICE, HOME="")
        assert f"{path} belongs to user {OTHER + 1}" in done.stderr
        assert "set XDG_CACHE_HOME to a folder of your own" in done.stderr
    finally:
        Path(path).rmdir()


@needs_root
def test_a_users_runtime_folder_is_the_first_choice_without_a_home(open_folder: Path) -> None:
    runtime = Path(f"/run/user/{OTHER}")
    if not runtime.parent.is_dir():
        pytest.skip("this machine has no /run/user")
    runtime.mkdir(mode=0o700)
    os.chown(runtime, OTHER, OTHER)
    try:
        assert as_user(OTHER, OTHER, CHOICE, HOME="").stdout == f"{runtime}/neutrino|this user has no home folder\n"
        # Whatever sudo -E has left in the variable.
        code = "print(next(run_parents()))"
        assert as_user(OTHER, OTHER, code, XDG_RUNTIME_DIR="/run/user/0").stdout == f"{runtime}\n"
    finally:
        runtime.rmdir()


def test_temporary_files_are_not_made_where_others_can_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert places.scratch_parent() == tmp_path
    tmp_path.chmod(0o777)
    assert places.scratch_parent() != tmp_path
    monkeypatch.setattr(places, "run_parents", lambda: iter(()))
    with pytest.raises(NeutrinoError, match="set TMPDIR to a folder of your own"):
        places.scratch_parent()


def test_modules_are_not_taken_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("print('code of the current folder runs')\n")
    program = f"import sys; sys.path = [{str(ROOT)!r}, *sys.path[1:]]; import neutrino; neutrino.install('block_sched')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    # There may be a GPU, or none: then it says so.
    assert "NeutrinoError" in done.stderr or done.returncode == 0, done.stderr
    assert "code of the current folder" not in done.stdout + done.stderr
