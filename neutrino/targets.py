"""Which assembly a probe file is for: the targets by the platform that files name, for what reads and verifies them.

``backend/registry.py`` has those whose kernels can be probed, and chooses one for an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from neutrino.errors import NeutrinoError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.target import Language, Languages


# Imported when they are asked for: a run has probes for one of them.
def _ptx() -> Language:
    """Import and return PTX."""
    from neutrino.ptx.snippets.language import PTX

    return PTX


def _gcn() -> Language:
    """Import and return the assembly of AMD's GPUs."""
    from neutrino.gcn.language import GCN

    return GCN


_LOADERS: Mapping[str, Callable[[], Language]] = {"cuda": _ptx, "hip": _gcn}
"""By platform; the first one is that of files that name none."""


class _Lazy(Mapping[str, Language]):
    """Languages that are imported when they are looked up."""

    def __getitem__(self, platform: str) -> Language:
        return _LOADERS[platform]()

    def __iter__(self) -> Iterator[str]:
        return iter(_LOADERS)

    def __len__(self) -> int:
        return len(_LOADERS)


LANGUAGES: Languages = _Lazy()
"""All languages that probe files may be in, by platform."""


def platform_of(arch: str) -> str:
    """Return the platform of the devices of an architecture, such as ``gfx1100``.

    Raises NeutrinoError for what is no name of an architecture.
    """
    for language in LANGUAGES.values():
        # An example without its number.
        beginning = language.device.rstrip("0123456789")
        if arch.startswith(beginning) and arch[len(beginning) :][:1].isdigit():
            return language.platform
    examples = " or ".join(language.device for language in LANGUAGES.values())
    raise NeutrinoError(f"--target {arch}: not an architecture; write it as {examples}")


def lowered(probes: ProbeSet) -> ProbeSet:
    """Return verified probes with their typed statements as their target's assembly."""
    verifier = LANGUAGES[probes.platform].verifier
    if verifier is None:
        raise LookupError(f"{probes.platform}: nothing has verified these probes")
    return verifier.lowered(probes)


def written(probes: ProbeSet) -> str:
    """Return a lowered set as the text of a probe file, as ``probing.writing.write``."""
    # Here, since most of what reads probes writes none.
    from neutrino.probing.writing import write

    return write(probes, LANGUAGES[probes.platform])


def trace_text(probes: ProbeSet) -> str:
    """Return the text of the probe file that is stored for a lowered set, as ``text_of_trace``."""
    from neutrino.probing.writing import text_of_trace

    return text_of_trace(probes, LANGUAGES[probes.platform])
