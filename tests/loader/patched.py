"""Libraries with twins in them, made by the linker from a section that ``patched_files`` wrote, and their programs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neutrino.device.kind import DeviceKind
from neutrino.patched_files.section import TwinsRow, write_section
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.resources import tool_path
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probe_file
from neutrino.version import __version__
from tests.once import SANITIZERS

from .conftest import HERE, IMAGE, TICKETS, Bench, check_sanitizers, compile_c, entry_of

PROGRAMS = HERE / "programs"
_FAR = "0x40000000"
"""A page that no other section is near, so that the linker starts a segment there."""


def section_of(
    image: bytes = IMAGE, *, arch: str = "sm_90", device: DeviceKind = DeviceKind.EMBEDDED, probes: Path = TICKETS
) -> bytes:
    """The section of a library that holds this image."""
    loaded: ProbeSet = load_probe_file(probes)
    entry = entry_of(image, loaded)
    row = TwinsRow(
        hashlib.sha256(image).digest(), len(image), read_entry(entry, "entry").key, arch, device, entry=0
    )
    parts = write_section(
        [row], [entry], names=probes.stem, maker=__version__, probes=probes.read_bytes(),
        reader=tool_path("read.py").read_bytes(), report=b"{}",
    )  # fmt: skip
    return b"".join(parts)


@dataclass(frozen=True)
class Programs:
    """The stand-in, the hook and the stub of a bench, with libraries and programs that are compiled here."""

    bench: Bench
    folder: Path

    @property
    def user(self) -> Path:
        return self.compile("user")

    @property
    def stub(self) -> Path:
        return self.bench.folder / "lib" / "libneutrino_stub.so"

    def compile(self, name: str, *flags: str, source: str = "") -> Path:
        """A program of one source, by default its own name's."""
        target = self.folder / name
        if not target.exists():
            path = str(PROGRAMS / (source or f"{name}.c"))
            compile_c(target, *SANITIZERS[self.bench.sanitizer], path, *flags)
        return target

    def library(
        self,
        name: str,
        section: bytes | None,
        *flags: str,
        image: bytes = IMAGE,
        stub: Path | str | None = "",
        sources: Sequence[str] = ("patched.c", "program.c"),
    ) -> Path:
        """A library that holds the image; section None: it is not patched. stub: None names none."""
        (self.folder / f"{name}.ptx").write_bytes(image)
        arguments = [f'-DIMAGE="{self.folder / name}.ptx"']
        if section is not None:
            (self.folder / f"{name}.section").write_bytes(section)
            arguments += [f'-DSECTION="{self.folder / name}.section"', f"-Wl,--section-start=.neutrino={_FAR}"]
            if stub is not None:
                arguments.append(f"-Wl,-f,{stub or self.stub}")
        target = self.folder / f"{name}.so"
        compile_c(
            target, *SANITIZERS[self.bench.sanitizer], "-shared", "-fPIC", *arguments, *flags,
            *(str(PROGRAMS / source) for source in sources),
        )  # fmt: skip
        return target

    def environment(self, home: Path, hook: bool = False, device: Mapping[str, object] | None = None) -> dict[str, str]:
        """With the trace in home/trace: by the hook in front of the driver, or by the stub alone."""
        home.mkdir(exist_ok=True)
        environment = self.bench.environment(home, device)
        if hook:
            environment = self.bench.hooked(environment, home) | {"NEUTRINO_AHEAD": "1"}
            for name in ("NEUTRINO_KEY", "NEUTRINO_CACHE"):
                del environment[name]
        return environment | {"NEUTRINO_TRACEDIR": str(home / "trace")}

    def run(
        self, home: Path, *command: str | Path, hook: bool = False, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The command, recording; extra: "" takes a variable away."""
        environment = self.environment(home, hook) | dict(extra or {})
        result = subprocess.run(
            [os.fspath(part) for part in command],
            env={name: value for name, value in environment.items() if value},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        check_sanitizers(home, result.stderr)
        return result
