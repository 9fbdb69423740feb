"""The probes of a run, as far as its start needs to know them.

Importing what verifies probes takes longer than all else at a start, and a run whose twins (instrumented kernels) are
all cached has no other use for them. So the cache keeps what a start needs of probes that were found valid. The process
that makes twins reads and verifies the probes again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.cache.stamp import package_stamp
from neutrino.errors import NeutrinoError
from neutrino.private_files import private_folder, read_private, write_private
from neutrino.resources import probe_path

if TYPE_CHECKING:
    from neutrino.probing.ir.probe_set import ProbeSet

_LARGEST_FILE = 1 << 20
"""Bytes of a probe file, at most, for which anything is kept."""


@dataclass(frozen=True)
class ProbeNames:
    """Probes as a command line names them. names: of ``-p``. expressions: of ``-e``. defines: of ``-D``."""

    names: tuple[str, ...]
    expressions: tuple[str, ...] = ()
    defines: tuple[tuple[str, int | float], ...] = ()

    def digest(self) -> str | None:
        """Return a hash, in hex, of all that decides what the probes are; None if a file cannot be read twice.

        That is the contents of the files, their names, which a trace may hold, the texts, and Neutrino itself.
        """
        files = []
        for name in self.names:
            data = _contents(probe_path(name))
            if data is None:
                return None
            files.append((name, hashlib.sha256(data).hexdigest()))
        parts = (package_stamp(), files, self.expressions, self.defines)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def read(self) -> ProbeSet:
        """Read and verify the probes. Raises ProbeError, NeutrinoError, OSError."""
        from neutrino.verification import load_probes

        return load_probes(self.names, self.expressions, defines=dict(self.defines))

    def absolute(self) -> ProbeNames:
        """Return the same probes for a process in another working directory."""
        paths = {name: probe_path(name) for name in self.names}
        return replace(self, names=tuple(str(path.absolute()) if path else name for name, path in paths.items()))


@dataclass(frozen=True)
class RunProbes:
    """The probes of a run.

    digest: ``ProbeSet.digest``. text: of the probe file that traces hold. source: the probes, or how to read them.
    analyze_hooks, callbacks: of ``ProbeSet``. kept_as: the name under which the cache keeps this, None for probes
    that it does not keep.
    """

    digest: str
    text: str
    source: ProbeSet | ProbeNames
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    kept_as: str | None = None

    @classmethod
    def of(cls, probes: ProbeSet, kept_as: str | None = None) -> RunProbes:
        """Return what a run needs to know of probes that were read already.

        kept_as: of ``ProbeNames.digest``, None not to keep it. What names scripts, which may vanish, is not kept.
        """
        from neutrino.probing.writing import trace_text
        from neutrino.ptx.snippets.lowering import lower

        is_kept = not (probes.analyze_hooks or probes.callbacks)
        return cls(
            probes.digest, trace_text(lower(probes)), probes, probes.analyze_hooks, probes.callbacks,
            kept_as if is_kept else None,
        )  # fmt: skip

    @cached_property
    def probe_set(self) -> ProbeSet:
        """The probes. Raises NeutrinoError, OSError if they have to be read, and are other ones by now."""
        if not isinstance(self.source, ProbeNames):
            return self.source
        probes = self.source.read()
        if probes.digest != self.digest:
            raise NeutrinoError("a probe file was changed after the run had begun")
        return probes

    def keep(self, cache: Path) -> None:
        """Have the cache keep this, unless it has it or it is not kept. cache: its folder. OSErrors are ignored."""
        if self.kept_as is None:
            return
        data = json.dumps({"digest": self.digest, "text": self.text}).encode()
        with contextlib.suppress(OSError):
            path = private_folder(cache / "verified") / self.kept_as
            if not path.exists():
                write_private(path, hashlib.sha256(data).digest() + data)


def kept_probes(cache: Path, names: ProbeNames, kept_as: str | None) -> RunProbes | None:
    """Return probes that an earlier run had the cache keep; None if there are none. kept_as: ``names.digest()``."""
    if kept_as is None:
        return None
    try:
        data = read_private(cache / "verified" / kept_as) or b""
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[size:]).digest() != data[:size]:
        return None
    kept = json.loads(data[size:])
    return RunProbes(kept["digest"], kept["text"], names.absolute(), kept_as=kept_as)


def _contents(path: Path | None) -> bytes | None:
    """Return the contents of a regular file that is not too large; None for any other, and if it cannot be read."""
    if path is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        # Asked first, since a pipe that is opened and closed again would end its writer.
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE:
            return path.read_bytes()
    return None
