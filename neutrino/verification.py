"""Reading, verifying and merging probe files: how commands, the Python API and the hook get a ``ProbeSet``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.late_dataclass import dataclass
from neutrino.probing.capabilities import Able, capability_faults
from neutrino.probing.faults import DECLARATION_FAULTS
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet, verified
from neutrino.probing.ir.verifier import verify as verify_typed
from neutrino.probing.merging import merge, merge_faults
from neutrino.probing.model import DEFAULT_PLATFORM
from neutrino.probing.nearest import nearest
from neutrino.probing.platforms import mixed_platforms, require_verified
from neutrino.probing.target import Verifier
from neutrino.probing.toml import read_probe_file, read_probe_text
from neutrino.probing.written import WrittenProbes
from neutrino.resources import probe_path, shipped_probes
from neutrino.targets import LANGUAGES

_ABOUT_REGISTERS = frozenset({"undeclared-register", "register-type", "not-a-predicate", "save-type"})
"""Codes of faults that may only be caused by a register declaration that could not be read."""

_Read = Callable[[], WrittenProbes | DraftProbes]
_BEGUN = 3
"""Letters of a shipped probe's name that tell it from others."""
NO_PROBE = "no probe is named; name a shipped probe (-p), or the path of a .toml or .py file"


def _endings_of_code() -> frozenset[str]:
    """Return the ends of names of files that probes are put into. Imports all languages."""
    texts = (f".{language.words.file_ending}" for language in LANGUAGES.values())
    return frozenset({".so", ".a", ".o", ".whl", *texts})


@dataclass(frozen=True)
class Checked:
    """The result of checking some probe files.

    probes: the verified and merged probes; None if there is an error, or if a file's assembly is for a platform without
    a verifier. written: the files' content, as far as it could be read, in the order in which the files were named.
    diagnostics: errors and warnings, by file, in file order. is_read: whether all files could be read; if so, the
    errors are in their snippets only.
    """

    probes: ProbeSet | None
    written: tuple[WrittenProbes | DraftProbes, ...]
    diagnostics: tuple[Diagnostic, ...]
    is_read: bool

    @property
    def is_valid(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    def probe_set(self) -> ProbeSet:
        """Return the probes.

        Raises ProbeError with all diagnostics if there is an error, and for a platform without a verifier.
        """
        if not self.is_valid:
            raise ProbeError(list(self.diagnostics))
        require_verified(self.written, LANGUAGES)
        # For the type checker: valid probes for such a platform always make a set.
        if self.probes is None:
            raise TypeError("valid probes of a known platform make a set")
        return self.probes


def load_probes(
    names: Sequence[str], one_liners: Sequence[str] = (), *, defines: Mapping[str, int | float] | None = None,
    platform: str = DEFAULT_PLATFORM,
) -> ProbeSet:  # fmt: skip
    """Read the named probe files, verify them, and merge them in this order, with probes in one line after them.

    A name that contains ``/``, or ends in ``.toml`` or ``.py``, is a path; any other is that of a probe that ships with
    Neutrino. defines: other values of the constants of files in Python, by name. platform: as for ``check_probes``.
    Raises ProbeError with all errors of all files, NeutrinoError for a file or shipped probe that does not exist, and
    for a constant that no file has.
    """
    return load_all(names, one_liners=one_liners, defines=defines, platform=platform)


def load_texts(
    files: Sequence[tuple[str, str]], one_liners: Sequence[str], *, defines: Mapping[str, int | float]
) -> ProbeSet:
    """Verify and merge probes as ``load_probes``. files: path and text of each file."""
    # Imported here because most probes are in TOML.
    from neutrino.language.reader import read_python_text

    readers: list[_Read] = [
        partial(read_python_text, file, text, LANGUAGES[DEFAULT_PLATFORM], defines)
        if file.endswith(".py")
        else partial(read_probe_text, file, text, LANGUAGES)
        for file, text in files
    ]
    if one_liners:
        readers.append(lambda: _read_one_liners(one_liners))
    return _check(readers).probe_set()


def load_probe_file(path: str | Path) -> ProbeSet:
    """Read and verify one probe file. Raises as ``load_probes``."""
    return _check([lambda: _read_file(path)]).probe_set()


def load_all(
    names: Sequence[str] = (), functions: Sequence[object] = (), source: str | None = None,
    one_liners: Sequence[str] = (), *, defines: Mapping[str, int | float] | None = None,
    platform: str = DEFAULT_PLATFORM, warn: Callable[[Diagnostic], None] = lambda _: None,
) -> ProbeSet:  # fmt: skip
    """Read, verify and merge probes from files and from a running program, in this order.

    names, defines, platform: as for ``load_probes``. functions: those of the program with ``@nl.probe``. source: the
    text of a probe file in Python. one_liners: texts of ``-e``. warn: is called with each warning. Raises as
    ``load_probes``, and NeutrinoError for a function whose text is not known.
    """
    readers = [_reader(name, defines or {}, platform) for name in dict.fromkeys(names)]
    if functions or source is not None:
        readers += _live_readers(functions, source, defines or {}, platform)
    if one_liners:
        readers.append(lambda: _read_one_liners(one_liners, platform))
    if not readers:
        raise NeutrinoError(NO_PROBE)
    checked = _check(readers)
    probes = checked.probe_set()
    require_constants(defines or {}, checked.written)
    # Without errors these are warnings alone.
    for diagnostic in checked.diagnostics:
        warn(diagnostic)
    return probes


def _live_readers(
    functions: Sequence[object], source: str | None, defines: Mapping[str, int | float], platform: str
) -> list[_Read]:
    """Return functions that read the probes of the running program. Parameters: as for ``load_all``."""
    # Imported here because most probes are in files.
    from neutrino.language.live import live_texts
    from neutrino.language.reader import read_live_text, read_python_text

    language = LANGUAGES[platform]
    readers: list[_Read] = [partial(read_live_text, part, language, defines) for part in live_texts(functions)]
    if source is not None:
        readers.append(partial(read_python_text, "<source>", source, language, defines))
    return readers


def read_probes(file: str, text: str) -> ProbeSet:
    """Verify the text of a probe file. Raises as ``load_probes``.

    file: its path, for messages; paths in the text are relative to it.
    """
    return _check([lambda: read_probe_text(file, text, LANGUAGES)]).probe_set()


def check_probes(
    names: Sequence[str], one_liners: Sequence[str] = (), *, defines: Mapping[str, int | float] | None = None,
    platform: str = DEFAULT_PLATFORM, device: str | None = None,
) -> Checked:  # fmt: skip
    """Check the named probe files as ``load_probes``, but return the errors instead of raising ProbeError.

    platform: the one that probes in Python and in one line are for; a file in TOML names its own. device: the
    architecture of one of its devices, of which what the probes ask for is asked, too; None for some device.

    Raises NeutrinoError when no file is named and there is no one-liner, or a file does not exist. A constant of
    ``defines`` that no file has is no error here; ``require_constants`` raises it.
    """
    if not names and not one_liners:
        raise NeutrinoError(NO_PROBE)
    # A file that is named twice is read once.
    readers = [_reader(name, defines or {}, platform) for name in dict.fromkeys(names)]
    if one_liners:
        readers.append(lambda: _read_one_liners(one_liners, platform))
    return _check(readers, None if device is None else (platform, device))


def is_one_liner(name: str) -> bool:
    """Return whether what names a probe is the text of probes in one line, as of ``-e``: it has braces."""
    return "{" in name and "}" in name


def _read_one_liners(texts: Sequence[str], platform: str = DEFAULT_PLATFORM) -> DraftProbes:
    """Read probes in one line each: a fault in the second text is in line 2. Raises ProbeError."""
    # Imported here because most runs have none.
    from neutrino.language.one_liner import read_one_liner

    return read_one_liner("\n".join(texts), LANGUAGES[platform])


def require_constants(defines: Mapping[str, int | float], parts: Sequence[WrittenProbes | DraftProbes]) -> None:
    """Raise NeutrinoError if none of some probe files has a constant of ``defines``."""
    constants = {name for part in parts if isinstance(part, DraftProbes) for name in part.constants}
    unknown = [name for name in defines if name not in constants]
    if not unknown:
        return
    guess = nearest(unknown[0], constants)
    there_are = f"there are: {', '.join(sorted(constants))}" if constants else "none has any"
    raise NeutrinoError(
        f"-D {unknown[0]}: no probe file has a constant of that name; "
        + (f"did you mean {guess}?" if guess else there_are)
    )


def _reader(name: str, defines: Mapping[str, int | float], platform: str = DEFAULT_PLATFORM) -> _Read:
    """Return a function that reads the probe file of that name. defines, platform: as for ``check_probes``."""
    return lambda: _read_file(_find(name, platform), defines, platform)


def _read_file(
    path: str | Path, defines: Mapping[str, int | float] | None = None, platform: str = DEFAULT_PLATFORM
) -> WrittenProbes | DraftProbes:
    """Read a probe file, in Python or TOML by its suffix. Raises ProbeError, NeutrinoError for a missing file.

    defines, platform: as for ``check_probes``; files in TOML have no constants.
    """
    if str(path).endswith(".py"):
        # Imported here because most probes are in TOML.
        from neutrino.language.reader import read_python_file

        return read_python_file(path, LANGUAGES[platform], defines or {})
    return read_probe_file(path, LANGUAGES)


def _check(readers: Sequence[_Read], device: tuple[str, str] | None = None) -> Checked:
    """Read, verify and merge probe files; errors are collected in the result.

    readers: functions that read one file each. device: platform and architecture of what is to run the probes. Snippets
    are verified even if there are other errors, so that fixing these does not bring up new ones.
    """
    written: list[WrittenProbes | DraftProbes] = []
    diagnostics: list[Diagnostic] = []
    is_read = True
    for read in readers:
        try:
            part = read()
            diagnostics += part.warnings
            written.append(part)
        except ProbeError as error:
            is_read = False
            diagnostics += error.diagnostics
            written += error.partial
    # What is missing in files that could not be read would cause errors here. Probes for different platforms cannot be
    # merged at all, so other faults of merging are not looked for then.
    if is_read:
        diagnostics += mixed_platforms(written) or merge_faults(written)

    sets: list[ProbeSet] = []
    for part in written:
        verifier = LANGUAGES[part.platform].verifier
        if verifier is None:
            continue
        if isinstance(part, DraftProbes):
            able = verifier if device is None or device[0] != part.platform else verifier.device(device[1])
            probe_set, faults = _verify_typed(part, verifier, able)
        else:
            probe_set, faults = _verify_assembly(part, verifier, diagnostics)
        if device is not None and device[0] == part.platform and probe_set is not None:
            faults = [*faults, *verifier.device_faults(part, probe_set, device[1])]
        diagnostics += faults
        if probe_set is not None:
            sets.append(probe_set)

    # In a file with errors, a map may seem unused only because the SAVE to it could not be read.
    wrong_files = {item.file for item in diagnostics if item.severity == "error"}
    diagnostics = [item for item in diagnostics if item.code != "unused-map" or item.file not in wrong_files]
    files = list(dict.fromkeys(item.file for item in diagnostics))
    in_order = sorted(diagnostics, key=lambda item: (files.index(item.file), item.line, item.column))
    # Without errors a set may be missing only for a platform without a verifier.
    probes = None
    if sets and len(sets) == len(written) and not wrong_files:
        probes = sets[0] if len(sets) == 1 else merge(sets)
    return Checked(probes, tuple(written), tuple(in_order), is_read)


def _verify_typed(part: DraftProbes, verifier: Verifier, able: Able) -> tuple[ProbeSet | None, list[Diagnostic]]:
    """Verify typed probes, of a Python file. Returns the probe set (None if there are errors), and all faults.

    able: what they may ask for.
    """
    faults = verify_typed(part)
    # Two checks may find a fault at one place, what the target lacks and what is wrong on any: it is reported once.
    for find in (partial(capability_faults, target=able), verifier.verify_draft):
        places = {(fault.line, fault.column) for fault in faults}
        faults += [fault for fault in find(part) if (fault.line, fault.column) not in places]
    if not part.is_whole or any(fault.severity == "error" for fault in faults):
        return None, faults
    probe_set = verified(
        part.file, part.source, reads_back=False, target="", maps=part.maps, registers=part.registers,
        probes=part.probes, warnings=part.warnings, callbacks=part.callbacks,
        platform=part.platform,
    )  # fmt: skip
    return probe_set, faults


def _verify_assembly(
    part: WrittenProbes, verifier: Verifier, earlier: Sequence[Diagnostic]
) -> tuple[ProbeSet | None, list[Diagnostic]]:
    """Verify hand-written probes. Returns the probe set (None if there are errors), and the new faults.

    earlier: diagnostics of all files so far. Errors that only follow from those are left out: an error at the same
    place, and one about a register if a declaration of the file could not be read.
    """
    outcome = verifier.verify(part)
    if outcome.probes is not None:
        return _probe_set(part, verifier.name, outcome.probes), list(outcome.diagnostics)
    error_places = {(item.file, item.line, item.column) for item in earlier if item.severity == "error"}
    lacks_declarations = any(item.file == part.file and item.code in DECLARATION_FAULTS for item in earlier)
    return None, [
        item
        for item in outcome.diagnostics
        if (item.file, item.line, item.column) not in error_places
        and not (lacks_declarations and item.code in _ABOUT_REGISTERS)
    ]


def _probe_set(part: WrittenProbes, target: str, probes: tuple[Probe, ...]) -> ProbeSet:
    """Return the probe set of a file. probes: those of the file, verified as the target's assembly."""
    return verified(
        part.file, part.source, reads_back=not part.is_older, target=target, maps=part.maps,
        registers=part.registers, probes=probes, warnings=part.warnings,
        analyze_hooks=part.analyze_hooks, callbacks=part.callbacks, platform=part.platform,
    )  # fmt: skip


def _find(name: str, platform: str) -> Path:
    """Return the path of a named probe file, which for a path need not exist. platform: as for ``check_probes``.

    Raises NeutrinoError for any other name that is not a shipped probe's.
    """
    path = probe_path(name, platform)
    if path is not None and path.suffix not in {".toml", ".py"} and path.suffix in _endings_of_code():
        raise NeutrinoError(f"{name}: GPU code or a program, and no probe; probes are .toml and .py files, named first")
    if path is not None:
        return path
    if not name:
        raise NeutrinoError("the name of a probe is empty; give a shipped probe or the path of a .toml or .py file")
    if is_one_liner(name):
        raise NeutrinoError(f"{name}: no such shipped probe; a probe in one line goes after -e")
    shipped = shipped_probes()
    guess = nearest(name, shipped)
    if "," in name and all(part.strip() in shipped for part in name.split(",")):
        options = " ".join(f"-p {part.strip()}" for part in name.split(","))
        raise NeutrinoError(f"{name}: one probe at a time: {options}")
    # What begins with it, and a file of that name, are meant rather than what is only similar.
    begun = [probe for probe in shipped if probe.startswith(name)] if len(name) >= _BEGUN else []
    guess = begun[0] if len(begun) == 1 else guess
    files = [f"./{name}{ending}" for ending in (".py", ".toml") if Path(f"{name}{ending}").is_file()]
    if files:
        raise NeutrinoError(f"{name}: no such shipped probe; for the file write {files[0]}")
    if re.fullmatch(r"[a-z]+(?:\.\w+)+", name, re.ASCII):
        example = f"'{name} {{ @n = count() }}'"
        raise NeutrinoError(f"{name}: no such shipped probe; a probe in one line says what it does: {example}")
    suggestion = f"did you mean {guess}? " if guess else ""
    raise NeutrinoError(
        f"{name}: no such shipped probe; {suggestion}neutrino-probe list has them all, and a file's name needs a '/' "
        "or ends in .toml or .py"
    )
