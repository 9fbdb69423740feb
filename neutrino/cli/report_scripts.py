"""``neutrino-report --analyze``: the scripts that a trace's probes name."""

from __future__ import annotations

from pathlib import Path

from neutrino.cli.report_messages import BAD_INPUT, DONE, fail, say
from neutrino.cli.streams import escaped
from neutrino.errors import NeutrinoError, TraceError
from neutrino.tracing.events import read_events
from neutrino.tracing.files import is_in_trace
from neutrino.tracing.probe_sets import probe_files


def analyze_trace(path: Path) -> int:
    """Run the analysis scripts that a trace's probes name, and report which. Returns the worst exit status of all.

    path: the trace directory.
    """
    # A trace without probes has a message, too. DONE is the least of the exit statuses.
    return max(_run_scripts(path, file) for file in probe_files(path) or [path / "probe.toml"])


def _run_scripts(path: Path, file: Path) -> int:
    """Run the scripts that one probe file in a trace directory names. Returns the exit status: 2 if any cannot be run.

    Scripts that are missing, or that other users could have written, are reported and not run.
    """
    # Here, since a report without scripts need not wait for what reads probes.
    from neutrino.probing.toml import read_probe_file
    from neutrino.run.scripts import Scripts, analyze
    from neutrino.targets import LANGUAGES

    try:
        is_in_trace(file)
        probes = read_probe_file(file, LANGUAGES)
    except (NeutrinoError, OSError) as error:
        return fail(f"{path}: its probes cannot be read: {error}")
    source = f"named by {escaped(_who_named(path, file))}"

    # Which scripts can be run.
    missing = [warning.message for warning in probes.warnings if warning.code == "script-missing"]
    for message in missing:
        fail(f"{path}: {escaped(message)}; {source}")
    named = dict.fromkeys((*probes.callbacks, *probes.analyze_hooks))
    refused = {script for script in named if _refuse(path, script, source)}
    status = BAD_INPUT if missing or refused else DONE
    scripts = Scripts(
        tuple(script for script in probes.analyze_hooks if script not in refused),
        tuple(script for script in probes.callbacks if script not in refused),
    )
    if not scripts:
        # Scripts that are missing or refused have been reported.
        if not missing and not refused:
            say(f"{path}: its probes name no script")
        return status

    # Run them.
    names = escaped(", ".join(script for script in named if script not in refused))
    say(f"{path}: running {names}; {source}")
    for problem in analyze(path.absolute(), scripts):
        status = fail(problem)
    say(f"{path}: ran {names}; see {path / 'analyze.log'}")
    return status


def _who_named(path: Path, file: Path) -> str:
    """Return the paths of the patched libraries that a trace's probe file comes from; the file's name if from none.

    It is shown before a script that the probes name is run, since whoever patched the library chose the script. path:
    the trace directory. Without a library, the probes are those of the neutrino command.
    """
    try:
        sections = read_events(path / "events.jsonl").of("section")
    except TraceError:
        sections = ()
    libraries = dict.fromkeys(str(row.get("library")) for row in sections if row.get("file") == file.name)
    return ", ".join(libraries) or file.name


def _refuse(path: Path, script: str, source: str) -> bool:
    """Return whether a script must not be run, since other users could have written it; reports why.

    path: the trace directory. source: which probes name the script, in words.
    """
    from neutrino.run.script_trust import why_not_trusted

    try:
        distrust = why_not_trusted(script)
    except OSError as error:
        distrust = error.strerror or str(error)
    if distrust:
        fail(f"{path}: {escaped(script)} is not run: {distrust}; {source}; run it by hand if you trust it")
    return bool(distrust)
