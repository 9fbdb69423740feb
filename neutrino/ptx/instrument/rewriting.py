"""What all twins of one module share while they are written."""

from __future__ import annotations

import functools
from collections.abc import Callable

from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.ptx.analysis.additions import Additions
from neutrino.ptx.analysis.linkage import Callee, Linkage
from neutrino.ptx.analysis.matching import Found, Matcher
from neutrino.ptx.instrument.lowering import lower
from neutrino.ptx.instrument.private_names import PrivateNames
from neutrino.ptx.instrument.probe_facts import ProbeFacts


@functools.lru_cache(maxsize=8)
def _known(
    probes: tuple[Probe, ...], demangle: Callable[[str], str] | None
) -> tuple[Matcher, ProbeFacts, Additions]:
    """What is known of probes whatever the module: for all texts that the same ones are looked for in."""
    return Matcher(probes, demangle), ProbeFacts(probes), Additions(probes)


class Rewriting:
    """A probe set on its way into the kernels of a module. Parameters and errors: as of ``probe_module``.

    version: the module's; highest: the one that a twin may have. architecture: ``90`` of ``sm_90a``.
    """

    def __init__(
        self,
        linkage: Linkage,
        probes: ProbeSet,
        *,
        version: tuple[int, int] | None,
        demangle: Callable[[str], str] | None,
    ) -> None:
        if not isinstance(probes, ProbeSet):
            raise TypeError(f"probes to insert are a verified ProbeSet, not {type(probes).__name__}")
        module = linkage.module
        if module.version is None or module.architecture is None:
            raise PtxError(1, module.text[:80], "no .version, or no .target sm_; not a PTX module for a GPU")
        self.module = module
        self.linkage = linkage
        self.probes = probes = lower(probes)
        self.version = module.version
        self.highest = max(version or module.version, module.version)
        self.architecture = module.architecture
        self.names = PrivateNames.for_text(module.text)
        # They may be an earlier module's, whose probes are equal and not the same.
        self.matcher, self.facts, self.additions = _known(probes.probes, demangle)
        self._found_in: dict[tuple[int, str], Found] = {}

    def find(self, callee: Callee, first: int = 0) -> Found:
        """What the body of a kernel or of what it calls holds. first: the number of its first site."""
        return self.matcher.find(callee.module, callee.function, callee.body, first)

    def find_in_function(self, callee: Callee, first: int) -> Found:
        """As ``find``, of a function that several kernels may call."""
        found = self._found_in.get(callee.key)
        if found is None:
            found = self._found_in[callee.key] = self.find(callee)
        return self.find(callee, first) if found.hits else found
