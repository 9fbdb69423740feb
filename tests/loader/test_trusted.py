"""The hook's rule for paths that no other user can change, against the rule in Python."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from neutrino.loader import build
from neutrino.trusted_paths import why_not_trusted

CSRC = Path(build.__file__).parent / "csrc"
MAIN = r"""
#include "base/trusted.h"
#include <stdio.h>
#include <string.h>
int main(void)
{
	char line[8192];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		printf("%d%d\n", nt_trusted_path(line, true), nt_trusted_path(line, false));
	}
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trusted")
    (folder / "main.c").write_text(MAIN)
    flags = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}")
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    subprocess.run(
        [*build.compiler(), *flags, *sanitizers, folder / "main.c", CSRC / "base" / "trusted.c", "-o", folder / "main"],
        check=True,
    )
    return folder / "main"


def ask(program: Path, paths: list[str]) -> list[str]:
    text = "".join(f"{path}\n" for path in paths)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("seed", range(6))
def test_both_rules_agree(program: Path, tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    folders, links = [tmp_path], []
    for number in range(40):
        parent = choose.choice(folders)
        if number % 3 == 2:
            target = choose.choice(folders)
            relative = choose.random() < 0.5
            link = parent / f"l{number}"
            end = choose.choice(["", "/", "/."])
            link.symlink_to(os.path.relpath(target, parent) if relative else f"{target}{end}")
            links.append(link)
        else:
            folder = parent / f"d{number}"
            folder.mkdir()
            folders.append(folder)
    for one in choose.sample(folders[1:], 6):
        one.chmod(choose.choice([0o777, 0o775, 0o1777, 0o757, 0o700, 0o1770]))
    if os.geteuid() == 0:
        for one in choose.sample([*folders[1:], *links], 4):
            os.lchown(one, 54321, 54321)
    paths = []
    for _ in range(300):
        path = str(choose.choice([*folders, *links]))
        for _ in range(choose.randrange(3)):
            entry = choose.choice("ld") + str(choose.randrange(40))
            path += choose.choice(["/", "//", "/.", "/..", f"/{entry}", "/new"])
        paths.append(path)
    strict = [str(int(not why_not_trusted(Path(path)))) for path in paths]
    found = ask(program, paths)
    assert [row[0] for row in found] == strict
    # The group's permission may be no fault; all else is.
    assert all(row in ("00", "01", "11") for row in found)
    assert {row[0] for row in found} == {"0", "1"}


def test_loops_and_what_is_too_long(program: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a").symlink_to(f"{tmp_path}/b/x")
    (tmp_path / "b").symlink_to(f"{tmp_path}/a/x")
    (tmp_path / "long").symlink_to("x/" * 2000)
    (tmp_path / "x").symlink_to("long")
    (tmp_path / "grow").symlink_to("grow/" + "y" * 200)
    names = ("loop", "a", "b", "x", "grow", "loop/..")
    assert ask(program, [str(tmp_path / name) for name in names]) == ["00"] * len(names)
    assert ask(program, ["/" + "a/" * 3000, "relative", "", "/", "/.", "/..", "//"]) == ["00"] * 3 + ["11"] * 4
