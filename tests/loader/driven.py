"""``driven.c``: a program that does what a test tells it, line by line, and waits in between."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache

from .conftest import IMAGE, RUN_KEY, Bench, check_sanitizers, entry_of
from .trace_files import Files

WARPS = 4
"""Of each launch: how much it adds to the program's counter."""


class Driven:
    """The program while it runs, and what it has printed at its end."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.process = process
        self.home = home
        self.counter = ""
        self.said = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, *lines: str, thread: int = 0) -> None:
        """Have a thread of the program do these lines, and wait until it has."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for line in lines:
            self.process.stdin.write(f"{thread} {line}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.counter, self.said = self.process.communicate(timeout=600)
        self.counter = self.counter.strip()
        check_sanitizers(self.home, self.said)
        assert self.process.returncode == 0

    @property
    def files(self) -> Files:
        return Files(self.home / "trace")

    def check(self, bench: Bench, launches: int, **counted: int) -> None:
        """After the end: so many launches, all of which have run, of which so many were counted for each reason."""
        assert self.counter == str(WARPS * launches)
        files = self.files
        expected = {word.replace("_", "-"): count for word, count in counted.items() if count}
        assert files.counted("count_p2") == expected
        assert sum(expected.values()) == launches
        assert len(files.written()) == counted.get("probed", 0)
        files.check_tickets(bench.maps)


@contextmanager
def driven(
    bench: Bench, home: Path, extra: Mapping[str, str] | None = None, *, hook: bool = True, ends: bool = True
) -> Iterator[Driven]:
    """Start the program; when the block ends, so does the program. ends: False if the test has ended it."""
    home.mkdir(exist_ok=True)
    (home / "image").write_bytes(IMAGE)
    environment = bench.environment(home)
    if hook:
        Cache(home / "cache").write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
        environment = bench.hooked(environment, home)
    with subprocess.Popen(
        [str(bench.folder / "driven")], env=environment | dict(extra or {}), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            program = Driven(process, home)
            yield program
            if ends:
                program.end()
        finally:
            process.kill()
