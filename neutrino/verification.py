"""From names and files to verified probes: the one way by which commands, Python and the hook get a ``ProbeSet``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.probing.faults import DECLARATION_FAULTS
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet, verified
from neutrino.probing.ir.verifier import verify as verify_typed
from neutrino.probing.merging import merge, merge_faults
from neutrino.probing.nearest import nearest
from neutrino.probing.platforms import mixed_platforms, require_platform
from neutrino.probing.toml import read_probe_file, read_probe_text
from neutrino.probing.written import WrittenProbes
from neutrino.ptx.snippets.lowering import TARGET
from neutrino.ptx.snippets.verifier import verify, verify_draft
from neutrino.resources import shipped_probes

_ABOUT_REGISTERS = frozenset({"undeclared-register", "register-type", "not-a-predicate", "save-type"})
"""Codes of faults that follow from a declaration that could not be read."""


@dataclass(frozen=True)
class Checked:
    """Everything there is to say of some probe files.

    probes: None where something is wrong, or where a file's assembly is for a platform without a verifier. written: the
    files, as far as they can be read, in the order of their names. diagnostics: by file, in file order. is_read: all
    files are probe files; what is wrong is in their assembly alone.
    """

    probes: ProbeSet | None
    written: tuple[WrittenProbes | DraftProbes, ...]
    diagnostics: tuple[Diagnostic, ...]
    is_read: bool

    @property
    def is_valid(self) -> bool:
        """Nothing is wrong, warnings aside."""
        return all(found.severity != "error" for found in self.diagnostics)

    def probe_set(self) -> ProbeSet:
        """The probes, for CUDA kernels. Raises ProbeError with all diagnostics where something is wrong."""
        if not self.is_valid:
            raise ProbeError(list(self.diagnostics))
        require_platform(self.written, "cuda")
        if self.probes is None:
            raise TypeError("valid probes of a known platform make a set")
        return self.probes


def load_probes(names: Sequence[str]) -> ProbeSet:
    """The probes of these names, verified and merged in this order.

    A name with a ``/`` or ending in ``.toml`` or ``.py`` is a path, any other a probe that ships with Neutrino. Raises
    ProbeError with all faults of all files, NeutrinoError for a file or a shipped probe that is not there.
    """
    return check_probes(names).probe_set()


def load_probe_file(path: str | Path) -> ProbeSet:
    """The probes of one file, verified. Raises as ``load_probes``."""
    return _check([lambda: _read_file(path)]).probe_set()


def read_probes(file: str, text: str) -> ProbeSet:
    """The probes of a text, verified. file: its path, which paths in it are relative to. Raises as ``load_probes``."""
    return _check([lambda: read_probe_text(file, text)]).probe_set()


def check_probes(names: Sequence[str]) -> Checked:
    """As ``load_probes``, with what is wrong as a value. Raises NeutrinoError for files that are not there."""
    if not names:
        raise NeutrinoError("no probe is named; give -p a shipped probe or the path of a .toml or .py file")
    return _check([_reader(name) for name in dict.fromkeys(names)])


def _reader(name: str) -> Callable[[], WrittenProbes | DraftProbes]:
    return lambda: _read_file(_find(name))


def _read_file(path: str | Path) -> WrittenProbes | DraftProbes:
    if str(path).endswith(".py"):
        from neutrino.language.reader import read_python_file

        return read_python_file(path)
    return read_probe_file(path)


def _check(readers: Sequence[Callable[[], WrittenProbes | DraftProbes]]) -> Checked:
    """Snippets are verified as well where other things are wrong, so that a second run finds nothing new."""
    written: list[WrittenProbes | DraftProbes] = []
    found: list[Diagnostic] = []
    is_read = True
    for read in readers:
        try:
            part = read()
            found += part.warnings
            written.append(part)
        except ProbeError as error:
            is_read = False
            found += error.diagnostics
            written += error.partial
    if is_read:
        found += mixed_platforms(written) or merge_faults(written)
    sets = []
    for part in written:
        if isinstance(part, DraftProbes):
            faults = verify_typed(part) or verify_draft(part)
            found += faults
            if all(fault.severity != "error" for fault in faults):
                sets.append(
                    verified(part.file, part.source, False, "", part.maps, part.registers, part.probes, part.warnings)
                )
            continue
        if part.platform != "cuda":
            continue
        outcome = verify(part)
        known = {(item.file, item.line, item.column) for item in found if item.severity == "error"}
        unsure = any(item.file == part.file and item.code in DECLARATION_FAULTS for item in found)
        found += [
            item
            for item in outcome.diagnostics
            if outcome.probes is not None
            or ((item.file, item.line, item.column) not in known and not (unsure and item.code in _ABOUT_REGISTERS))
        ]
        if outcome.probes is not None:
            sets.append(_sealed(part, outcome.probes))
    # What could not be read may have been the SAVE.
    wrong_files = {item.file for item in found if item.severity == "error"}
    found = [item for item in found if item.code != "unused-map" or item.file not in wrong_files]
    files = list(dict.fromkeys(item.file for item in found))
    diagnostics = sorted(found, key=lambda item: (files.index(item.file), item.line, item.column))
    probes = None
    if sets and len(sets) == len(written) and not wrong_files:
        probes = sets[0] if len(sets) == 1 else merge(sets)
    return Checked(probes, tuple(written), tuple(diagnostics), is_read)


def _sealed(part: WrittenProbes, probes: tuple[Probe, ...]) -> ProbeSet:
    return verified(
        part.file, part.source, not part.is_older, TARGET, part.maps,
        part.registers, probes, part.warnings, (), part.analyze_hooks, part.callbacks,
    )  # fmt: skip


def _find(name: str) -> Path:
    if "/" in name or name.endswith((".toml", ".py")):
        return Path(name)
    shipped = shipped_probes()
    if name in shipped:
        return shipped[name]
    if not name:
        raise NeutrinoError("the name of a probe is empty; give a shipped probe or the path of a .toml or .py file")
    guess = nearest(name, shipped)
    meant = f"; did you mean {guess}?" if guess else ""
    raise NeutrinoError(
        f"{name}: no such shipped probe{meant} (there are: {', '.join(shipped)}; "
        f"a file's name needs a '/' or must end in .toml or .py)"
    )
