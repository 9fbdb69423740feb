"""The probes of a run, as far as its start needs to know them.

Importing what verifies probes takes longer than all else at a start, and a run whose twins (instrumented kernels) are
all cached has no other use for them. So the cache keeps what a start needs of probes that were found valid. The process
that makes twins verifies the probes again, from what was read then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.late_dataclass import dataclass
from neutrino.maker.source_stamp import package_stamp
from neutrino.private_files import private_folder, read_private, write_private
from neutrino.resources import probe_path

if TYPE_CHECKING:
    from neutrino.probing.ir.probe_set import ProbeSet

_LARGEST_FILE = 1 << 20
"""Bytes of a probe file, at most, for which anything is kept."""


@dataclass(frozen=True)
class ProbeSources:
    """Probes as a command line names them, with the texts of their files.

    names: of ``-p``, each once. files: of each name the path, for messages, and the text. expressions: of ``-e``.
    defines: of ``-D``.
    """

    names: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    expressions: tuple[str, ...]
    defines: tuple[tuple[str, int | float], ...]

    @classmethod
    def read(
        cls, names: Sequence[str], expressions: Sequence[str], defines: Sequence[tuple[str, int | float]]
    ) -> ProbeSources | None:
        """Read the files; None if one is not there, is no regular file of a usual size, or no text."""
        names = tuple(dict.fromkeys(names))
        files = []
        for path in map(probe_path, names):
            text = _text(path) if path else None
            if text is None:
                return None
            files.append((str(path), text))
        return cls(names, tuple(files), tuple(expressions), tuple(defines))

    @cached_property
    def digest(self) -> str:
        """A hash, in hex, of all that decides what the probes are, Neutrino's own sources among it.

        Names are, too: traces may hold them.
        """
        parts = (package_stamp(), self.names, [text for _, text in self.files], self.expressions, self.defines)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def verified(self) -> ProbeSet:
        """Return the probes, read and verified. Raises ProbeError."""
        from neutrino.verification import load_texts

        return load_texts(self.files, self.expressions, defines=dict(self.defines))


@dataclass(frozen=True)
class RunProbes:
    """The probes of a run.

    digest: ``ProbeSet.digest``. text: of the probe file that traces hold. source: the probes, or what they are read
    from. analyze_hooks, callbacks: of ``ProbeSet``. kept_as: the name under which the cache is to keep this; None for
    what it has, and what it does not keep.
    """

    digest: str
    text: str
    source: ProbeSet | ProbeSources
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    kept_as: str | None = None

    @classmethod
    def of(cls, probes: ProbeSet, kept_as: str | None = None) -> RunProbes:
        """Return what a run needs to know of probes that were read already.

        kept_as: the name for the cache, from ``ProbeSources.digest``; None not to keep them. Probes that name scripts,
        which may vanish, are not kept. Raises ProbeError for probes in the assembly of another platform than that of
        the devices that run programs here.
        """
        require_runnable(probes)
        from neutrino.targets import lowered, trace_text

        is_kept = not (probes.analyze_hooks or probes.callbacks)
        return cls(
            probes.digest, trace_text(lowered(probes)), probes, probes.analyze_hooks, probes.callbacks,
            kept_as if is_kept else None,
        )  # fmt: skip

    @cached_property
    def probe_set(self) -> ProbeSet:
        """The probes; they are only verified now if an earlier run has done so before."""
        return self.source.verified() if isinstance(self.source, ProbeSources) else self.source

    def keep(self, cache: Path) -> None:
        """Have the cache keep these probes as verified, so that later runs start faster; nothing if ``kept_as`` is
        None.

        cache: its folder. OSErrors are ignored.
        """
        if self.kept_as is None:
            return
        data = json.dumps({"digest": self.digest, "text": self.text}).encode()
        with contextlib.suppress(OSError):
            write_private(private_folder(cache / "verified") / self.kept_as, hashlib.sha256(data).digest() + data)


def require_runnable(probes: ProbeSet) -> None:
    """Raise ProbeError for probes in the assembly of a platform whose programs cannot be run with probes.

    The fault is at the file's ``platform``.
    """
    from neutrino.probing.model import DEFAULT_PLATFORM

    if not probes.target or probes.platform == DEFAULT_PLATFORM:
        return
    from neutrino.errors import ProbeError
    from neutrino.probing.platforms import platform_fault
    from neutrino.targets import LANGUAGES

    vendor, taken = LANGUAGES[probes.platform].vendor, LANGUAGES[DEFAULT_PLATFORM]
    raise ProbeError(
        [
            platform_fault(
                part,
                f'platform is "{part.platform}": kernels of {vendor}\'s GPUs are probed in files, not as they run',
                f"neutrino-patch takes the file; what runs is probed on {taken.devices}",
            )
            for part in probes.parts or (probes,)
            if part.platform != DEFAULT_PLATFORM
        ]
    )


def kept_probes(cache: Path, sources: ProbeSources) -> RunProbes | None:
    """Return probes that an earlier run had the cache keep; None if there are none."""
    try:
        data = read_private(cache / "verified" / sources.digest) or b""
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[size:]).digest() != data[:size]:
        return None
    kept = json.loads(data[size:])
    return RunProbes(kept["digest"], kept["text"], sources)


def _text(path: Path) -> str | None:
    """Return the text of a regular file that is not too large; None for any other, and if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        # Asked first, since a pipe that is opened and closed again would end its writer.
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE:
            return path.read_bytes().decode()
    return None
