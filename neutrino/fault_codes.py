"""Codes of diagnostics with their meanings, of all who verify probes, as a command prints them."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.language.faults import FAULTS as PYTHON
from neutrino.language.one_liner import FAULTS as ONE_LINER
from neutrino.probing.capabilities import CODE
from neutrino.probing.faults import FAULTS, WARNINGS
from neutrino.probing.ir.verifier import FAULTS as TYPED
from neutrino.ptx.isa.form_table import FAULTS as SNIPPETS

CODES: Mapping[str, Mapping[str, str]] = {
    "the file": FAULTS,
    "accepted with a warning": WARNINGS,
    "Python and one-liners": {**PYTHON, **TYPED, **ONE_LINER},
    "snippets": SNIPPETS,
    "the target": {
        CODE: "something that the target cannot do at all",
        "clock-unit": "a warning: the clock counts in another unit there than cycles",
    },
}
"""What is wrong → code → meaning."""
