"""The hook's object files, compiled once for all libraries and programs of the tests that are made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from neutrino.loader import build
from tests.once import kept

LATE = "-DNEUTRINO_LATE"


@dataclass(frozen=True)
class Objects:
    """By the paths of their sources in ``csrc``. late: what the late hook has of its own, or under the same names."""

    hook: dict[str, Path]
    late: dict[str, Path]


def hook_objects(name: str, flags: tuple[str, ...]) -> Objects:
    """The object files of the hook that the compiler makes with these flags. name: of the flags."""

    def compile_into(folder: Path) -> None:
        build.compile_objects(folder / "hook", build.SOURCES, flags)
        build.compile_objects(folder / "late", build.LATE_SOURCES, (*flags, LATE))

    folder = kept(f"objects-{name}", build.compiler(), flags, (), compile_into)

    def found(part: str, sources: Sequence[str]) -> dict[str, Path]:
        return {source: (folder / part / source).with_suffix(".o") for source in sources}

    return Objects(found("hook", build.SOURCES), found("late", build.LATE_SOURCES))


def unfolded_objects() -> Objects:
    """Those in which nothing is inlined, so that each call is seen; compiled soonest."""
    return hook_objects("unfolded", ("-O0", "-g0"))


@contextmanager
def linked_from(objects: Objects, again: Sequence[str] = ()) -> Iterator[None]:
    """While it holds, a build of the hook takes these object files. again: sources that it compiles nevertheless."""

    def take(
        compile_objects: Callable[[Path, Sequence[str], Sequence[str]], dict[str, Path]],
        target: Path, names: Sequence[str], options: Sequence[str],
    ) -> dict[str, Path]:  # fmt: skip
        known = objects.late if LATE in options else objects.hook
        changed = [name for name in names if name in again]
        return {name: known[name] for name in names} | compile_objects(target, changed, options)

    with mock.patch.object(build, "compile_objects", functools.partial(take, build.compile_objects)):
        yield
