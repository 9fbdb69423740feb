"""The options of ``neutrino-report`` about findings; ``findings_text.py`` does what they ask for."""

from __future__ import annotations

import argparse
from typing import Any


def add_findings(parser: argparse.ArgumentParser) -> None:
    """Add the options about findings to a command line parser."""
    group = parser.add_argument_group(
        "findings",
        "What the trace says in sentences: of scheduling, tails, imbalance, memory, arithmetic, divergence, waiting, "
        "NaNs, each as far as the probes of the run have recorded it. The report has those that are no good.",
    )
    many: dict[str, Any] = {"action": "append", "default": []}
    group.add_argument(
        "--findings",
        action="store_true",
        help="in place of the report all findings, good ones too: figures, thresholds, how sure they are, where, what "
        "to try, and the command that records it again",
    )
    group.add_argument("--analysis", metavar="NAME", help="only these analyses", **many)
    group.add_argument(
        "--summary",
        action="store_true",
        help="in place of the report one page of facts and findings, 60 lines at most, for a chat or the log of a job",
    )
    group.add_argument(
        "--fail-if",
        metavar="EXPR",
        help="exit with status 1 if EXPR holds for a kernel, and say for which: 'nan_count > 0', "
        "'uncoalesced.sectors_per_request > 4', \"tail.state == 'issue'\"; a wrong name lists all",
        **many,
    )
    group.add_argument(
        "--proof",
        action="store_true",
        help="in place of the report what shows that launches without probes ran the code that the program had loaded",
    )
    group.add_argument("--xml", action="store_true", help="the document of --json as XML")
    group.add_argument("--schema", action="store_true", help="print the JSON Schema of --json, and end")
